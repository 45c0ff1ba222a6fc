// Presets that rank entries without the prompt's queries: by the entries themselves, or by somebody else.
//
//   knorm            small keys stay ("A Simple and Effective L2 Norm-Based Strategy"), in decode as well.
//   keydiff          KeyDiff: keys that differ from the mean direction stay.
//   lagkv            LagKV: entries that stand out against the block after them; 4 sinks, lag 128.
//   external_scores  the engine ranks (layer_input::external).
//   external_mask    the engine decides (Attention-Gate, Neural Garbage Collection).
//   lookahead_probe  the engine supplies queries of the future (DapQ, LookaheadKV, EpiCache); average of 5.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_external.hpp>
#include <kvtl/policies/retain_key_difference.hpp>
#include <kvtl/policies/retain_key_norm.hpp>
#include <kvtl/policies/retain_lag_relative.hpp>
#include <kvtl/policies/retain_probe_attention.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct knorm : full {
    static constexpr std::string_view name = "knorm";
    static constexpr std::uint32_t window_tokens = 8;
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = drop<key_norm>;
};

struct keydiff : knorm {
    static constexpr std::string_view name = "keydiff";
    using retention = drop<key_difference>;
};

struct lagkv : knorm {
    static constexpr std::string_view name = "lagkv";
    using retention = drop<lag_relative>;
};

/// Needs supplied<..., signal::external>.
struct external_scores : knorm {
    static constexpr std::string_view name = "external_scores";
    using retention = drop<kvtl::external_scores>;
};

/// Needs supplied<..., signal::external>.
struct external_mask : knorm {
    static constexpr std::string_view name = "external_mask";
    using retention = drop<kvtl::external_mask>;
};

/// Needs supplied<..., signal::probe>.
struct lookahead_probe : knorm {
    static constexpr std::string_view name = "lookahead_probe";
    using retention = drop<probe_attention<over::mean, pooling::average, 5>>;
};

} // namespace presets

template <class Geometry> using knorm = kv_manager<presets::knorm, Geometry>;
template <class Geometry> using keydiff = kv_manager<presets::keydiff, Geometry>;
template <class Geometry> using lagkv = kv_manager<presets::lagkv, Geometry>;
template <class Geometry, class Supplied>
using external_scores_cache = kv_manager<presets::external_scores, Geometry, Supplied>;
template <class Geometry, class Supplied>
using external_mask_cache = kv_manager<presets::external_mask, Geometry, Supplied>;
template <class Geometry, class Supplied>
using lookahead_probe = kv_manager<presets::lookahead_probe, Geometry, Supplied>;

}} // namespace kvtl::v0
