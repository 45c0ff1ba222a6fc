// Presets for which the engine supplies scores, or queries that score.
//
//   lookahead_probe  queries that stand for the future score the prompt, instead of its last queries: pseudo
//                    tokens at later positions (DapQ), a trained lookahead (LookaheadKV). Window and score are
//                    those of snapkv_group, so the two presets differ only in the source of the queries. Needs
//                    engine_input::probe.
//   epicache         block prefill (EpiCache, Kim et al.). Every chunk of a prompt comes with a probe. The probe scores
//                    the chunk and the survivors of earlier chunks, by the maximum over queries and group. Every
//                    head keeps keep_tokens, or its layer's share of them. The importance of layers is an input
//                    (budget.importance); without it all layers are equal. The last rows of a chunk may be the
//                    tokens of the probe: they attend and do not stay (layer_input::passing). A conversation has
//                    such a sequence for each of its episodes (kvtl/store/episodes.hpp). prefill_tokens does not
//                    depend on the length of the prompt. It is the sum of three numbers: the entries that a layer
//                    keeps (keep_tokens; up to budget.cap times as many with budget.importance), a chunk, and the
//                    probe. Window and sinks are additions of kvtl. Needs engine_input::probe with every chunk.
//   kvzip            the model reads the prompt once more. The score of an entry is the most attention that it gets
//                    during this replay (KVzip). Heads of all layers of a shard compete. 4 sinks and the last token
//                    always stay. The replayed tokens come as chunks in which all tokens pass
//                    (layer_input::passing), with their queries as the probe. The last of these chunks is the
//                    prompt's last_chunk. The cache holds the whole prompt until then, so prefill_tokens is the
//                    prompt and a chunk of the replay. No layer may slide. Needs engine_input::probe.
//   kvzip_plus       as kvzip, with the score of KVzip+. It is the attention, times the size of the value after the
//                    output projection, divided by the length of the replayed token's input of the layer (after the
//                    norm). Section value_norms of config.calibration gives the size of a value; without it, the
//                    sum of absolute values replaces it. Also needs engine_input::x.
//   external_scores  one number per token and KV head; larger is better. Window 8. Needs
//                    engine_input::external.
//   external_mask    as external_scores; entries without a score above 0 are dropped even if there is room
//                    (Attention-Gate, Neural Garbage Collection).
//
//   chosen_blocks    retrieval: the engine names blocks of 128 tokens for every KV head and step, as models
//                    with trained sparse attention do (for example 16 blocks). Blocks begin at token 0, so
//                    there are no sinks. The window holds the latest incomplete block and is always attended.
//                    Needs engine_input::chosen.
//
// The caches of external_scores and external_mask end in _cache, because the score policies have these names.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/budget_table.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_external.hpp>
#include <kvtl/policies/retain_probe_attention.hpp>
#include <kvtl/policies/retain_replay_attention.hpp>
#include <kvtl/policies/select_chosen_by_engine.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct lookahead_probe : full {
    static constexpr std::string_view name = "lookahead_probe";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = drop<probe_attention<over::mean, pooling::average, 5>>;
};

struct epicache : full {
    static constexpr std::string_view name = "epicache";
    static constexpr std::uint32_t window_tokens = 32;
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = drop<probe_attention<over::max, pooling::average, 1, probed::every_chunk>>;
    using budget = table;
};

struct kvzip : full {
    static constexpr std::string_view name = "kvzip";
    static constexpr std::uint32_t window_tokens = 1;
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = drop<replay_attention>;
    using budget = progressive_heads;
    static constexpr progressive_heads::config budget_config{.r_max = 1e5F, .interval = 1024}; // all at once
};

struct kvzip_plus : kvzip {
    static constexpr std::string_view name = "kvzip_plus";
    using retention = drop<replay_loss>;
};

struct external_scores : full {
    static constexpr std::string_view name = "external_scores";
    static constexpr std::uint32_t window_tokens = 8;
    using retention = drop<kvtl::external_scores>;
};

struct external_mask : external_scores {
    static constexpr std::string_view name = "external_mask";
    using retention = drop<kvtl::external_mask>;
};

struct chosen_blocks : offloaded {
    static constexpr std::string_view name = "chosen_blocks";
    static constexpr std::uint32_t sink_tokens = 0;
    using clusterer = head_groups<128>;
    using selector = chosen_by_engine;
};

} // namespace presets

using lookahead_probe = kv_manager<presets::lookahead_probe, engine_inputs_for<presets::lookahead_probe>>;
using epicache = kv_manager<presets::epicache, engine_inputs_for<presets::epicache>>;
using kvzip = kv_manager<presets::kvzip, engine_inputs_for<presets::kvzip>>;
using kvzip_plus = kv_manager<presets::kvzip_plus, engine_inputs_for<presets::kvzip_plus>>;
using external_scores_cache =
    kv_manager<presets::external_scores, engine_inputs_for<presets::external_scores>>;
using chosen_blocks = kv_manager<presets::chosen_blocks, engine_inputs_for<presets::chosen_blocks>>;
using external_mask_cache = kv_manager<presets::external_mask, engine_inputs_for<presets::external_mask>>;

}} // namespace kvtl::v0
