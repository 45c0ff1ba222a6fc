// Presets that divide a budget: SnapKV's score, but layers or heads that need more get more.
//
//   pyramidkv          PyramidKV: less with every layer, beta 20, window 8. Score as SnapKV, group mean.
//   pyramidkv_kvpress  the variant whose budget includes the window.
//   dynamickv          DynamicKV: layers compete as they arrive. Window 8, average of 7, r_max 10, every 4 layers:
//                      what its published scripts run for Llama-3 and InternLM; they take the maximum for Mistral and
//                      Qwen2, and r_max 5 for Qwen2 (class and command-line defaults differ). Deviation: group
//                      mean, which none of them takes; see the next one.
//   dynamickv_qhead    what its authors' code keeps: keys are repeated before they are cached, so that every query
//                      head keeps entries of its own, and `keep_tokens` of them are G times the bytes.
//   cake               CAKE: every layer takes its share by entropy and variance. Window 32, average of 5. Deviation:
//                      its authors' code evicts in decode as well, here nothing is.
//   adakv              Ada-KV: the heads of a layer compete, floor 0.2. Window 32, maximum of 7.
//   defensivekv        DefensiveKV: worst case instead of mean, heads compete. Window 32. Its authors keep ahead of all
//                      others what attention on average needs to reach 90 %, at budgets of a fifth of the context.
//                      Decided by measurement: nothing (`retention.sure` = 0). With 64 to 256 of 2,000 entries 90 %
//                      is the whole budget, and the worst case never decides (bench/RESULTS.md). A value counts
//                      as what the output projection makes of it where config.calibration has section
//                      value_norms, else as the sum of its absolute values.
//   layer_defensivekv  the same, with all heads of all layers competing.
//   compress_kv        CompressKV: heads that retrieve decide for their layer, a table divides among layers;
//                      both are inputs (retention.votes, budget.importance). Window 8.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/policies/budget_head_adaptive.hpp>
#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/budget_pyramid.hpp>
#include <kvtl/policies/budget_table.hpp>
#include <kvtl/policies/retain_mean_and_variance.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>
#include <kvtl/policies/retain_worst_case.hpp>
#include <kvtl/presets/snapkv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct pyramidkv : snapkv_group {
    static constexpr std::string_view name = "pyramidkv";
    static constexpr std::uint32_t window_tokens = 8;
    using budget = pyramid;
};

struct pyramidkv_kvpress : pyramidkv {
    static constexpr std::string_view name = "pyramidkv_kvpress";
    using budget = pyramid_with_window;
};

struct dynamickv : full {
    static constexpr std::string_view name = "dynamickv";
    static constexpr std::uint32_t window_tokens = 8;
    using retention = drop<window_attention<over::mean, pooling::average, 7>>;
    using budget = progressive;
};

struct dynamickv_qhead : dynamickv {
    static constexpr std::string_view name = "dynamickv_qhead";
    using retention = drop<window_attention<over::mean, pooling::average, 7, true>>;
};

struct cake : full {
    static constexpr std::string_view name = "cake";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = drop<mean_and_variance>;
    using budget = cascade;
};

struct adakv : full {
    static constexpr std::string_view name = "adakv";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = drop<window_attention<over::mean, pooling::maximum, 7>>;
    using budget = head_adaptive<>;
};

struct defensivekv : full {
    static constexpr std::string_view name = "defensivekv";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = drop<worst_case>;
    using budget = head_adaptive<>;
    static constexpr worst_case::config retention_config{.sure = 0.0F};
};

struct layer_defensivekv : defensivekv {
    static constexpr std::string_view name = "layer_defensivekv";
    using budget = progressive_heads;
};

struct compress_kv : full {
    static constexpr std::string_view name = "compress_kv";
    static constexpr std::uint32_t window_tokens = 8;
    using retention = drop<voting_heads>;
    using budget = table;
};

} // namespace presets

using pyramidkv = kv_manager<presets::pyramidkv>;
using pyramidkv_kvpress = kv_manager<presets::pyramidkv_kvpress>;
using dynamickv = kv_manager<presets::dynamickv>;
using dynamickv_qhead = kv_manager<presets::dynamickv_qhead>;
using cake = kv_manager<presets::cake>;
using adakv = kv_manager<presets::adakv>;
using defensivekv = kv_manager<presets::defensivekv>;
using layer_defensivekv = kv_manager<presets::layer_defensivekv>;
using compress_kv = kv_manager<presets::compress_kv>;

}} // namespace kvtl::v0
