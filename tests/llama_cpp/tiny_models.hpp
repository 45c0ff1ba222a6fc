// GGUF files of random weights that llama.cpp loads, small enough to be written by each test.
//
//   tiny_models::write("gemma2.gguf", {.architecture = "gemma2", .type = GGML_TYPE_Q8_0});
//
// The weights are such that there is something to compare: the scores of a query differ (their standard deviation is
// about 2), what attention adds to the residual stream is as large as what is there, logits have a standard deviation
// of several units, and greedy text is mostly letters that vary. The vocabulary has all bytes, letters and
// syllables, so that any prompt can be read. The same options give the same file.
// SPDX-License-Identifier: MIT
#pragma once

#include <ggml.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tiny_models {

/// Rows of matrices are `embedding`, `hidden` and query_heads * head_dim long: multiples of 256 for k-quants (a matrix
/// whose rows do not fit its type is stored as f16).
struct options {
    std::string architecture = "llama"; ///< one of runnable() or refused()
    ggml_type type = GGML_TYPE_F16;     ///< of matrices; gpt-oss: experts are MXFP4 where this is quantised
    std::uint32_t layers = 4;           ///< gemma3n: 22, of which the last two have no keys of their own
    std::uint32_t query_heads = 8;
    std::uint32_t kv_heads = 2;
    std::uint32_t head_dim = 32; ///< query_heads * head_dim must be `embedding` for qwen2 and refused()
    std::uint32_t embedding = 256;
    std::uint32_t hidden = 256;
    std::uint32_t context = 2048;
    std::uint32_t window = 24; ///< tokens that sliding layers look back; gemma, gpt-oss
    float rope_base = 10000;
    float end_gain = 0;          ///< how loud the end of the text is; 1: as any word, 0: as good as never
    std::string chat_template{}; ///< "" for none
    std::uint64_t seed = 1;
};

/// Tokens of every model here; ids: 0 unknown, 1 begin, 2 end, 3 and 4 <|im_start|>, <|im_end|>, 5 + b the byte b.
inline constexpr std::uint32_t vocabulary = 512;

/// Architectures that kvtl_llama runs, and that it has to refuse: mpt (ALiBi), deepseek2 (MLA), phi3 (longrope),
/// gemma3n (layers that share K and V), bert (an encoder); lfm2 (a hybrid) runs but cannot rewind.
[[nodiscard]] std::vector<std::string> runnable();
[[nodiscard]] std::vector<std::string> refused();

/// 32 query and 8 KV heads of 64, 131,072 tokens; little else.
[[nodiscard]] options attention_of_1b();

/// False where the file cannot be written or the architecture is none of the above.
[[nodiscard]] bool write(const std::string& path, const options& o);

} // namespace tiny_models
