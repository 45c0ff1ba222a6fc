// Decode attention of ggml (llama.cpp), one thread, as a rival of simd/attend.hpp.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace kernels {

/// One graph with one node, flash attention of one token: `group` query heads over `tokens` rows of one KV head. Objects on
/// several threads share nothing.
class ggml_attention {
  public:
    enum class rows { f32, f16, bf16, q8 };

    /// keys, values: (tokens, dim) of the type, packed; those of q8 are f32 and quantised here. q: (group, dim).
    /// Without a back-end, or one that cannot, valid() is false.
    ggml_attention(rows type, std::size_t dim, std::size_t group, std::size_t tokens, const float* q,
                   const void* keys, const void* values);
    ~ggml_attention();
    ggml_attention(const ggml_attention&) = delete;
    ggml_attention& operator=(const ggml_attention&) = delete;

    [[nodiscard]] bool valid() const;
    void run();
    /// (group, dim)
    [[nodiscard]] std::vector<float> result() const;

  private:
    struct parts;
    std::unique_ptr<parts> parts_;
};

} // namespace kernels
