// GEAR: codes of 2 bits, a matrix of low rank for the error of the codes, and outliers that are stored exactly.
//
// Paper: "GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM" (Kang et al.
// 2024). Composed here: kivi_2 with `residual_corrected` records. Keys and values of each head and 32 tokens have rank 2
// and 2 % outliers. An entry of D = 64 takes 82.25 bytes instead of 256, and 48 of these are codes.
//
// Deviation: in the paper one matrix covers the whole prompt, so rank 4 costs almost nothing. Here a matrix covers 32
// tokens, and rank 2 costs 1.5 bits per number.
//
// This codec does not work with clusters. 32 tokens share a record, and entries of clusters move one by one.
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
