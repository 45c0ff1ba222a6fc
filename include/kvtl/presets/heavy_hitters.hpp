// Presets that watch where attention goes.
//
//   h2o               H2O: attention accumulated in prompt and decode, the least leaves at every query of
//                     both; half of the entries are the most recent ones (as its ratios 0.1 and 0.1). A
//                     prompt in chunks never takes more than keep_tokens and a chunk, and may be longer than
//                     prefill_tokens.
//   h2o_prefill_once  what KVCache-Factory calls H2O: accumulated over the prompt, evicted once.
//   tova              TOVA: the latest query alone decides, for all heads of a layer together. The current
//                     token itself always stays.
//   lazy_eviction     LazyEviction: entries whose attention recurs survive; evicts every `period` steps, of
//                     the prompt as well, which comes in chunks as for h2o. Decided by measurement
//                     (bench/RESULTS.md): 1e-3 of the attention makes an entry active, where 1e-4 is reported
//                     for caches of thousands of entries.
//
// Deviations are beside the scores (policies/retain_*.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/policies/retain_latest_attention.hpp>
#include <kvtl/policies/retain_recurrence.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct h2o : full {
    static constexpr std::string_view name = "h2o";
    static constexpr std::uint32_t window_tokens = automatic; // half of keep_tokens
    using retention = drop<heavy_hitters>;
};

struct h2o_prefill_once : h2o {
    static constexpr std::string_view name = "h2o_prefill_once";
    static constexpr std::uint32_t window_tokens = 8;
    using retention = drop<heavy_hitters_of_prompt>;
};

struct tova : full {
    static constexpr std::string_view name = "tova";
    static constexpr std::uint32_t window_tokens = 1;
    using retention = drop<latest_attention>;
};

struct lazy_eviction : full {
    static constexpr std::string_view name = "lazy_eviction";
    static constexpr std::uint32_t window_tokens = 8;
    using retention = drop<recurrence>;
    static constexpr recurrence::config retention_config{.activity = 1e-3F};
};

} // namespace presets

using h2o = kv_manager<presets::h2o>;
using h2o_prefill_once = kv_manager<presets::h2o_prefill_once>;
using tova = kv_manager<presets::tova>;
using lazy_eviction = kv_manager<presets::lazy_eviction>;

}} // namespace kvtl::v0
