// Presets that rank entries without the prompt's queries, by the entries themselves. Those where the engine
// says what will matter are in engine_decides.hpp.
//
//   knorm    small keys stay ("A Simple and Effective L2 Norm-Based Strategy"), in decode as well.
//   keydiff  KeyDiff: keys that differ from the mean direction stay.
//   lagkv    LagKV: entries that stand out against the block after them; 4 sinks, lag 128, less where fewer than 516
//            entries are kept (the latest, up to two lags, are kept as they are and shall leave half of the budget).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_key_difference.hpp>
#include <kvtl/policies/retain_key_norm.hpp>
#include <kvtl/policies/retain_lag_relative.hpp>
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

} // namespace presets

using knorm = kv_manager<presets::knorm>;
using keydiff = kv_manager<presets::keydiff>;
using lagkv = kv_manager<presets::lagkv>;

}} // namespace kvtl::v0
