// Presets that divide a budget unevenly: layers or heads that need more entries get more. The score is
// SnapKV's unless stated otherwise.
//
//   pyramidkv          PyramidKV: each layer gets less than the one before, beta 20, window 8. Score as
//                      SnapKV, group mean.
//   pyramidkv_kvpress  the variant whose budget includes the window.
//   dynamickv          DynamicKV: layers compete as they arrive. Window 8, average of 7, r_max 10, every 4
//                      layers, as in its published scripts for Llama-3 and InternLM. For Mistral and Qwen2
//                      the scripts use the maximum, and for Qwen2 r_max 5 (defaults of class and command line
//                      differ). Deviation: group mean, which no script uses; see dynamickv_qhead.
//   dynamickv_qhead    the entries that its authors' code keeps. The code repeats keys before it caches them.
//                      So every query head keeps its own entries, and `keep_tokens` entries take G times the
//                      bytes.
//   cake               CAKE: every layer gets its share by entropy and variance. Window 32, average of 5.
//                      Deviation: no eviction in decode, unlike its authors' code.
//   adakv              Ada-KV: the heads of a layer compete, floor 0.2. Window 32, maximum of 7.
//   defensivekv        DefensiveKV: the worst case replaces the mean; heads compete. Window 32. The authors keep a
//                      fifth of the context. They first keep the entries that hold 90 % of the mean attention
//                      (`retention.sure`). Decided by measurement: this share is 0. With 64 to 256 of 2,000
//                      entries, those 90 % take the whole budget, and the worst case never decides
//                      (bench/results). The size of a value is its size after the output projection if
//                      config.calibration has section value_norms, otherwise the sum of its absolute values.
//   layer_defensivekv  as defensivekv, with all heads of all layers competing.
//   defensivekv_mean, defensivekv_max, layer_defensivekv_mean, layer_defensivekv_max
//                      controls of DefensiveKV, with its budgets and another score: the mean of all losses, or
//                      the largest loss of the group, averaged over the window.
//   expected_attention_heads  as expected_attention, but heads compete; floor 0.2.
//   duo_attention      DuoAttention: KV heads that retrieve keep the whole prompt. The others keep 64 sinks and
//                      their latest entries. Votes are an input (retention.votes). keep_tokens is the mean over
//                      all heads. If R of N heads retrieve, it must exceed R / N of the prompt; the rest goes to
//                      the other heads. A head keeps at most 10 times keep_tokens (budget.r_max). Until the last
//                      layer has its prompt, layers hold up to that many.
//   compress_kv        CompressKV: retrieval heads decide for their layer, and a table divides the budget
//                      among layers. Votes and table are inputs (retention.votes, budget.importance). The
//                      window has 8 entries.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/policies/budget_head_adaptive.hpp>
#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/budget_pyramid.hpp>
#include <kvtl/policies/budget_table.hpp>
#include <kvtl/policies/retain_mean_and_variance.hpp>
#include <kvtl/policies/retain_streaming_heads.hpp>
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

struct defensivekv_mean : defensivekv {
    static constexpr std::string_view name = "defensivekv_mean";
    using retention = drop<mean_loss>;
    static constexpr mean_loss::config retention_config{.sure = 0.0F};
};

struct defensivekv_max : defensivekv {
    static constexpr std::string_view name = "defensivekv_max";
    using retention = drop<group_loss>;
    static constexpr group_loss::config retention_config{.sure = 0.0F};
};

struct layer_defensivekv_mean : defensivekv_mean {
    static constexpr std::string_view name = "layer_defensivekv_mean";
    using budget = progressive_heads;
};

struct layer_defensivekv_max : defensivekv_max {
    static constexpr std::string_view name = "layer_defensivekv_max";
    using budget = progressive_heads;
};

struct expected_attention_heads : expected_attention {
    static constexpr std::string_view name = "expected_attention_heads";
    using budget = head_adaptive<>;
};

struct duo_attention : full {
    static constexpr std::string_view name = "duo_attention";
    static constexpr std::uint32_t window_tokens = 8;
    static constexpr std::uint32_t sink_tokens = 64;
    using retention = drop<streaming_heads>;
    using budget = progressive_heads;
    static constexpr progressive_heads::config budget_config{.interval = 1024}; // when all layers are seen
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
using defensivekv_mean = kv_manager<presets::defensivekv_mean>;
using defensivekv_max = kv_manager<presets::defensivekv_max>;
using layer_defensivekv_mean = kv_manager<presets::layer_defensivekv_mean>;
using layer_defensivekv_max = kv_manager<presets::layer_defensivekv_max>;
using expected_attention_heads = kv_manager<presets::expected_attention_heads>;
using duo_attention = kv_manager<presets::duo_attention>;
using compress_kv = kv_manager<presets::compress_kv>;

}} // namespace kvtl::v0
