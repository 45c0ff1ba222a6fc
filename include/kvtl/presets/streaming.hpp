// Presets whose cache has a fixed shape: the first tokens, the last tokens, or random ones.
//
//   streaming_llm    StreamingLLM: 4 sinks and the most recent entries, at positions inside the cache. Needs
//                    position.base (and dims, pairing) of the model. Deviations: the prompt itself is
//                    attended exactly. Keys are stored rotated, and the query is rotated instead
//                    (position_rolling.hpp), which gives equal attention.
//   sink_and_window  the same entries at their original positions. Most reimplementations call this
//                    StreamingLLM.
//   window_only      no sinks. Compare with it to see the effect of sinks.
//   random_keep      random entries, 4 sinks and a window of 8. Compare with it to see the effect of a score.
//   random_decoded   the first prompt stays, and decoded entries leave at random. It is the control for
//                    reasoning traces ("Random Attention", 2026). Set keep_tokens larger than the prompt.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/position_rolling.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_random.hpp>
#include <kvtl/policies/retain_sink_recent.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct sink_and_window : full {
    static constexpr std::string_view name = "sink_and_window";
    static constexpr std::uint32_t window_tokens = 1; // recency keeps the rest of the window
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = drop<sink_recent>;
};

struct streaming_llm : sink_and_window {
    static constexpr std::string_view name = "streaming_llm";
    using position = rolling;
};

struct window_only : sink_and_window {
    static constexpr std::string_view name = "window_only";
    static constexpr std::uint32_t sink_tokens = 0;
};

struct random_keep : full {
    static constexpr std::string_view name = "random_keep";
    static constexpr std::uint32_t window_tokens = 8;
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = drop<random_score>;
};

struct random_decoded : random_keep {
    static constexpr std::string_view name = "random_decoded";
    using retention = drop<random_after_prompt>;
};

} // namespace presets

using sink_and_window = kv_manager<presets::sink_and_window>;
using streaming_llm = kv_manager<presets::streaming_llm>;
using window_only = kv_manager<presets::window_only>;
using random_keep = kv_manager<presets::random_keep>;
using random_decoded = kv_manager<presets::random_decoded>;

}} // namespace kvtl::v0
