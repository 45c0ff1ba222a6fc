// Decode attention of ik_llama.cpp, one thread, as a rival of simd/attend.hpp.
//
// Its kernel is called as its flash attention of one token does for one KV head, with a mask of zeros: without a mask it would
// take the generic code of ggml. Queries, weights and sums are its own affair: it rounds queries to bf16 for bf16 rows, and to
// 8 bits for q8_0.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kernels {

class ik_attention {
  public:
    enum class rows { f16, bf16, q8 };

    /// keys, values: (tokens, dim) of the type, packed, which are not copied; those of q8 are f32 and quantised here. q: (group,
    /// dim). valid() is false where the kernel cannot: heads of other sizes than 64 and 128, tokens that are no multiple of
    /// 32.
    ik_attention(rows type, std::size_t dim, std::size_t group, std::size_t tokens, const float* q,
                 const void* keys, const void* values);

    [[nodiscard]] bool valid() const { return valid_; }
    void run() { static_cast<void>(attend()); }
    /// (group, dim)
    [[nodiscard]] const std::vector<float>& result() const { return out_; }

  private:
    bool attend();

    rows type_;
    std::size_t dim_, group_, tokens_;
    const float* q_;
    const void *keys_, *values_;
    std::vector<std::byte> codes_;
    std::vector<std::uint16_t> mask_;
    std::vector<float> out_;
    bool valid_ = false;
};

} // namespace kernels
