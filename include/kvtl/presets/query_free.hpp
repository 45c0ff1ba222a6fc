// Presets that rank entries by the entries themselves, without the prompt's queries. engine_decides.hpp has
// presets with scores from the engine.
//
//   knorm    entries with small keys stay ("A Simple and Effective L2 Norm-Based Strategy"), in decode as
//            well.
//   keydiff  KeyDiff: keys that differ from the mean direction stay.
//   lagkv    LagKV: entries that differ from the block after them stay. 4 sinks, lag 128. The lag is smaller
//            if fewer than 516 entries are kept: the latest entries, up to two lags, stay unchanged, and must
//            leave half of the budget.
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
