// Presets whose stored entries have as many numbers as each token needs (compress_token_adaptive_rank.hpp), in bases that
// kvtl-calibrate fits to a model's keys before RoPE and to its values. Sinks, window and what waits stay 16-bit rows.
// Records in memory take what memory_bytes leaves; where they have sizes of their own, open() cannot promise that
// max_tokens fit, and a call that finds no room is refused.
//
//   dynakv_lr         "DynaKV" (token-adaptive low-rank compression): everything is attended, sinks and the last 32
//                     entries as they are, all older ones with the rank that a trained gate gives a token's keys and
//                     values, one trained basis for all heads of a layer. `compressor.rate` names the gates by the share
//                     of coefficients that they keep (tau .1).
//   dynakv_lr_energy  likewise with the smallest rank that keeps 95 % of a row's energy, in bases that need no training.
//   snapkv_layer_then_dynakv_lr, snapkv_layer_then_lr_energy  what snapkv_layer keeps of a prompt, so encoded (the
//                     paper's Table 5).
//   kvswap_lr         kvswap with groups of such entries.
//   flexgen_lr        flexgen likewise: less to read for each token.
//   dynakv_head_lr    dynakv with clusters of such entries, a basis per head: units of one head cannot share a basis
//                     with others (the paper's own constraint, §5.2).
//   quest_head_lr     quest likewise.
//
// Sinks and window beside records are not the papers', which compress every entry; `window_tokens` and `sink_tokens` say
// how many there are.
//
// `compressor.share` is the share of energy. The paper trains all its bases and gates; those of dynakv_lr_energy and of
// the presets on storage need a text and no training.
//
//   palu              one rank for every row of the same joint bases: "Palu", J-LRD with a uniform rank, without its
//                     quantisation. The paper truncates the projections; keys before RoPE and values are their outputs,
//                     so that truncating these in the basis of their second moment is the same (a test shows it).
//                     `compressor.rate` of the coefficients are kept, headers are not needed.
//   matryoshka        a prefix of the coefficients in an orthonormal basis per head, of keys after RoPE and of values,
//                     trained on random prefixes: "MatryoshkaKV" with one rate for all heads. What ships was trained by
//                     cross entropy; its authors distil the full cache and search a rate per head.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_orthogonal_prefix.hpp>
#include <kvtl/policies/compress_token_adaptive_rank.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/kvswap.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct dynakv_lr_energy : full {
    static constexpr std::string_view name = "dynakv_lr_energy";
    static constexpr std::uint32_t window_tokens = 32;
    static constexpr std::uint32_t sink_tokens = 4;
    using compressor = token_adaptive_rank<coupling::layer>;
};

struct dynakv_lr : dynakv_lr_energy {
    static constexpr std::string_view name = "dynakv_lr";
    using compressor = token_adaptive_rank<coupling::layer, learned_gate>;
};

struct snapkv_layer_then_dynakv_lr : dynakv_lr {
    static constexpr std::string_view name = "snapkv_layer_then_dynakv_lr";
    using retention = snapkv_layer::retention;
};

struct palu : dynakv_lr_energy {
    static constexpr std::string_view name = "palu";
    using compressor = low_rank<coupling::layer>;
};

struct matryoshka : dynakv_lr_energy {
    static constexpr std::string_view name = "matryoshka";
    using compressor = orthogonal_prefix<>;
};

struct snapkv_layer_then_lr_energy : dynakv_lr_energy {
    static constexpr std::string_view name = "snapkv_layer_then_lr_energy";
    using retention = snapkv_layer::retention;
};

struct kvswap_lr : kvswap {
    static constexpr std::string_view name = "kvswap_lr";
    using compressor = token_adaptive_rank<coupling::layer>;
};

struct flexgen_lr : flexgen {
    static constexpr std::string_view name = "flexgen_lr";
    using compressor = token_adaptive_rank<coupling::layer>;
};

struct dynakv_head_lr : dynakv {
    static constexpr std::string_view name = "dynakv_head_lr";
    using compressor = token_adaptive_rank<coupling::head>;
};

struct quest_head_lr : quest {
    static constexpr std::string_view name = "quest_head_lr";
    using compressor = token_adaptive_rank<coupling::head>;
};

} // namespace presets

using dynakv_lr_energy = kv_manager<presets::dynakv_lr_energy, engine_inputs_for<presets::dynakv_lr_energy>>;
using dynakv_lr = kv_manager<presets::dynakv_lr, engine_inputs_for<presets::dynakv_lr>>;
using snapkv_layer_then_dynakv_lr =
    kv_manager<presets::snapkv_layer_then_dynakv_lr, engine_inputs_for<presets::snapkv_layer_then_dynakv_lr>>;
using palu = kv_manager<presets::palu, engine_inputs_for<presets::palu>>;
using matryoshka = kv_manager<presets::matryoshka, engine_inputs_for<presets::matryoshka>>;
using snapkv_layer_then_lr_energy =
    kv_manager<presets::snapkv_layer_then_lr_energy, engine_inputs_for<presets::snapkv_layer_then_lr_energy>>;
using kvswap_lr = kv_manager<presets::kvswap_lr, engine_inputs_for<presets::kvswap_lr>>;
using flexgen_lr = kv_manager<presets::flexgen_lr, engine_inputs_for<presets::flexgen_lr>>;
using dynakv_head_lr = kv_manager<presets::dynakv_head_lr, engine_inputs_for<presets::dynakv_head_lr>>;
using quest_head_lr = kv_manager<presets::quest_head_lr, engine_inputs_for<presets::quest_head_lr>>;

}} // namespace kvtl::v0
