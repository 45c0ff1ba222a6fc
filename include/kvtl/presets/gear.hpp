// GEAR: codes of 2 bits, a matrix of low rank for what they lose, and the largest numbers apart.
//
// Paper: "GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM" (Kang et al. 2024).
// Composed here: kivi_2 with `residual_corrected` records: rank 2 and 2 % outliers for each head and 32 tokens, of keys and of
// values. An entry of D = 64 takes 82.25 bytes instead of 256; 48 of them are codes. In the paper one matrix spans the prompt,
// so rank 4 costs next to nothing there; over 32 tokens rank 2 costs 1.5 bits per number.
//
// No cluster can be used with it: entries of clusters move one by one, and 32 tokens share a record.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_residual_corrected.hpp>
#include <kvtl/presets/kivi.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct gear : kivi_2 {
    static constexpr std::string_view name = "gear";
    using compressor = residual_corrected<int2_channel_group<float>>;
};

} // namespace presets

using gear = kv_manager<presets::gear>;

}} // namespace kvtl::v0
