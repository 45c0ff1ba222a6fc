// KVQuant: keys before RoPE with a range per channel, values with a range per token, levels that were fitted to the
// model, and outliers that are stored exactly.
//
// Paper: "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization" (Hooper et al. 2024).
// Composed here: everything is attended and lies in memory. The first 4 and the last 32 entries are plain rows. The
// paper keeps only the first entry plain, and its code keeps a few. `kvtl-calibrate` fits the ranges and the levels for
// 2, 3 and 4 bits to a text (compressor.bits).
//
// compressor.outliers is the share of outliers. The default, 0.01, means one number per head and token with D = 64. To
// find needles, four were needed (0.06). Deviations: policies/compress_nonuniform.hpp and
// calibration/fit/level_fit.hpp.
//
//   kvquant_4       4 bits: an entry of D = 64 takes 80 bytes instead of 256.
//   kvquant_2       2 bits: 48 bytes.
//   dynakv_kvquant  dynakv with such entries, 4 bits. A record has one token, so clusters work.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_nonuniform.hpp>
#include <kvtl/presets/dynakv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct kvquant_4 : full {
    static constexpr std::string_view name = "kvquant_4";
    static constexpr std::uint32_t window_tokens = 32;
    static constexpr std::uint32_t sink_tokens = 4;
    using compressor = nonuniform<>;
};

struct kvquant_2 : kvquant_4 {
    static constexpr std::string_view name = "kvquant_2";
    static constexpr compressor::config compressor_config{.bits = 2};
};

struct dynakv_kvquant : dynakv {
    static constexpr std::string_view name = "dynakv_kvquant";
    using compressor = nonuniform<>;
};

} // namespace presets

using kvquant_4 = kv_manager<presets::kvquant_4, engine_inputs_for<presets::kvquant_4>>;
using kvquant_2 = kv_manager<presets::kvquant_2, engine_inputs_for<presets::kvquant_2>>;
using dynakv_kvquant = kv_manager<presets::dynakv_kvquant, engine_inputs_for<presets::dynakv_kvquant>>;

}} // namespace kvtl::v0
