// Presets that drop entries by the attention that they receive.
//
//   h2o               H2O: attention accumulated over prompt and decode. At every query of prompt and decode
//                     the lowest entry leaves. Half of the entries are the most recent ones (as with its
//                     ratios 0.1 and 0.1). A prompt in chunks takes at most keep_tokens and one chunk, and
//                     may be longer than prefill_tokens.
//   h2o_prefill_once  the method that KVCache-Factory calls H2O: attention accumulated over the prompt, one
//                     eviction.
//   tova              TOVA: the latest query decides for all heads of a layer together. The current token
//                     always stays.
//   lazy_eviction     LazyEviction: entries whose attention recurs survive. It evicts every `period` steps,
//                     also from the prompt, which comes in chunks as for h2o. Decided by measurement
//                     (bench/results): an entry is active from 1e-3 of the attention on. The paper reports
//                     1e-4, for caches of thousands of entries.
//                     Half of the entries are the most recent ones, as in h2o: with a window of 8 its
//                     divergence on text is 1.7 times as large.
//
// The headers of the scores (policies/retain_*.hpp) list the deviations.
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
    static constexpr std::uint32_t window_tokens = automatic;
    using retention = drop<recurrence>;
    static constexpr recurrence::config retention_config{.activity = 1e-3F};
};

} // namespace presets

using h2o = kv_manager<presets::h2o>;
using h2o_prefill_once = kv_manager<presets::h2o_prefill_once>;
using tova = kv_manager<presets::tova>;
using lazy_eviction = kv_manager<presets::lazy_eviction>;

}} // namespace kvtl::v0
