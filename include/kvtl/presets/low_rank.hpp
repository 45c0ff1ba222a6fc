// Presets that store entries as coefficients in a basis of low rank (compress_token_adaptive_rank.hpp). Most of
// them choose the number of coefficients for each token. kvtl-calibrate fits the bases to a model's keys before
// RoPE and to its values. Sinks, window and pending entries stay 16-bit rows. Records in memory take the rest of
// memory_bytes. If records differ in size, open() cannot guarantee that max_tokens fit, and a call that finds no
// room is refused.
//
//   dynakv_lr         "DynaKV" (token-adaptive low-rank compression): everything is attended. Sinks and the
//                     last 32 entries are plain rows. A trained gate gives each older token the rank of its
//                     keys and of its values, in one trained basis for all heads of a layer. A calibration
//                     file has gates for one share of coefficients; `compressor.rate` must name this share
//                     (with tau 0.1).
//   dynakv_lr_energy  as dynakv_lr, with the smallest rank that keeps 95 % of a row's energy, in bases that
//                     need no training.
//   snapkv_layer_then_dynakv_lr, snapkv_layer_then_lr_energy
//                     the survivors of snapkv_layer, encoded in one of these ways (the paper's Table 5).
//   kvswap_lr         kvswap with groups of such entries.
//   flexgen_lr        flexgen with such entries: fewer bytes to read per token.
//   dynakv_head_lr    dynakv with clusters of such entries and a basis per head. Units of one head cannot
//                     share a basis with other heads (the paper's own constraint, §5.2).
//   quest_head_lr     quest with such entries and a basis per head.
//
// Deviation: the papers compress every entry. Here sinks and window stay plain (`window_tokens`, `sink_tokens`).
//
// `compressor.share` is the share of energy. The paper trains all its bases and gates. The bases of
// dynakv_lr_energy and of the presets on storage need a text but no training.
//
//   palu              "Palu" (J-LRD) with one rank for every row of the same joint bases, without its
//                     quantisation. The paper truncates the projections. Keys before RoPE and values are the
//                     outputs of the projections, so it is equivalent to truncate the outputs in the basis of
//                     their second moment (tested). `compressor.rate` is the share of kept coefficients.
//                     Records need no headers.
//   matryoshka        "MatryoshkaKV" with one rate for all heads. Each head has an orthonormal basis for keys
//                     after RoPE and one for values, and a record has the first coefficients. Training cuts
//                     at random lengths. The bases that ship were trained with cross entropy. The authors
//                     train them to reproduce the full cache, and search a rate for each head.
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
