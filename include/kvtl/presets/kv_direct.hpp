// KV-Direct: the cache keeps the input x of each layer. The engine computes keys and values from x again at each step.
//
// Paper: "The Residual Stream Is All You Need: On the Redundancy of the KV Cache in Transformer Inference" (2026).
// Composed here: everything is attended and stays in memory. Every entry is a record of x, and the last 32 entries are
// also f16 rows.
//
//   kv_direct      records of floats: outputs have the same bits as with f16 rows.
//   kv_direct_f16  records of f16: half the bytes, and the rounding of x.
//
// Bytes of a token in a layer, with M numbers of x: 4 + 4 M (kv_direct) or 4 + 2 M (kv_direct_f16), instead of 4 H D.
// kv_direct_f16 saves memory if M < 2 H D. This holds for multi-head attention, and rarely for grouped queries:
//
//   model              M     H * D   f16 rows   kv_direct_f16
//   GPT-2              768     768   3,072 B    1,540 B
//   Llama 2 7B       4,096   4,096   16,384 B   8,196 B
//   Gemma 3 4B       2,560   1,024   4,096 B    5,124 B
//   Llama 3 8B       4,096   1,024   4,096 B    8,196 B
//
// Deviation: the paper keeps one residual per token for all layers (5 KB on Gemma 3 4B). Each step then needs a forward
// pass over all tokens. An engine can do this without a cache (bench/results/log/kv_direct.md).
//
// Set config.compressor.recompute, .engine and .width (policies/compress_recomputed.hpp). Needs engine_input::x.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_recomputed.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

/// memory_bytes must hold all records.
struct kv_direct : full {
    static constexpr std::string_view name = "kv_direct";
    static constexpr std::uint32_t window_tokens = 32;
    using compressor = recomputed<float>;
};

struct kv_direct_f16 : kv_direct {
    static constexpr std::string_view name = "kv_direct_f16";
    using compressor = recomputed<f16>;
};

} // namespace presets

using kv_direct = kv_manager<presets::kv_direct, engine_inputs_for<presets::kv_direct>>;
using kv_direct_f16 = kv_manager<presets::kv_direct_f16, engine_inputs_for<presets::kv_direct_f16>>;

}} // namespace kvtl::v0
