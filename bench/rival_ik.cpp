// Built together with the few sources of ik_llama.cpp that its kernel needs, in a library of its own that shows nothing but
// ik_attention: its ggml and that of llama.cpp have the same names (cmake/kvtl-rivals.cmake).
// SPDX-License-Identifier: MIT
#include "rival_ik.hpp"

#define GGML_COMMON_DECL_C
#include <ggml-common.h>
#include <ggml.h>
#include <iqk/fa/iqk_fa_templates.h>
#include <iqk/iqk_mul_mat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

// What its sources take from the rest of its ggml. The kernel calls none of the first three.
extern "C" {
std::int64_t ggml_nrows(const ggml_tensor*) {
    std::abort();
}
std::size_t ggml_row_size(ggml_type, std::int64_t) {
    std::abort();
}
bool ggml_is_contiguous(const ggml_tensor*) {
    std::abort();
}
float ggml_table_f32_f16[1 << 16]; // of all half floats, which its start would fill
void ggml_abort(const char*, int, const char*, ...) {
    std::abort();
}
float ggml_bf16_to_fp32(ggml_bf16_t x) {
    const std::uint32_t bits = std::uint32_t{x.bits} << 16;
    float number = 0;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}
}

namespace kernels {
namespace {

void fill_table() {
    static const bool once = [] {
        for (std::uint32_t i = 0; i < 1 << 16; ++i)
            ggml_table_f32_f16[i] = GGML_COMPUTE_FP16_TO_FP32(static_cast<ggml_fp16_t>(i));
        return true;
    }();
    static_cast<void>(once);
}

/// Rows of q8_0: blocks of 32 codes with a scale.
void quantise(const float* in, std::size_t numbers, std::byte* out) {
    for (std::size_t i = 0; i < numbers; i += QK8_0, out += sizeof(block_q8_0)) {
        float largest = 0;
        for (std::size_t j = 0; j < QK8_0; ++j) largest = std::max(largest, std::fabs(in[i + j]));
        block_q8_0 block{};
        block.d = GGML_FP32_TO_FP16(largest / 127);
        for (std::size_t j = 0; j < QK8_0; ++j)
            block.qs[j] = largest > 0 ? static_cast<std::int8_t>(std::lround(in[i + j] / largest * 127))
                                      : std::int8_t{0};
        std::memcpy(out, &block, sizeof block);
    }
}

} // namespace

[[gnu::visibility("default")]] ik_attention::ik_attention(rows type, std::size_t dim, std::size_t group,
                                                          std::size_t tokens, const float* q,
                                                          const void* keys, const void* values)
    : type_(type), dim_(dim), group_(group), tokens_(tokens), q_(q), keys_(keys), values_(values),
      mask_(tokens), out_(group * dim) {
    fill_table();
    if (type == rows::q8) {
        const std::size_t bytes = tokens * dim / QK8_0 * sizeof(block_q8_0);
        codes_.resize(2 * bytes);
        quantise(static_cast<const float*>(keys), tokens * dim, codes_.data());
        quantise(static_cast<const float*>(values), tokens * dim, codes_.data() + bytes);
        keys_ = codes_.data();
        values_ = codes_.data() + bytes;
    }
    valid_ = tokens % 32 == 0 && attend();
}

[[gnu::visibility("default")]] bool ik_attention::attend() {
    const auto kernel = dim_ == 64 ? &iqk_fa_64_64 : dim_ == 128 ? &iqk_fa_128_128 : nullptr;
    if (kernel == nullptr) return false;
    const ggml_type type = type_ == rows::f16    ? GGML_TYPE_F16
                           : type_ == rows::bf16 ? GGML_TYPE_BF16
                                                 : GGML_TYPE_Q8_0;
    const std::size_t row = type_ == rows::q8 ? dim_ / QK8_0 * sizeof(block_q8_0) : dim_ * 2;
    const int stride = static_cast<int>(row), dim = static_cast<int>(dim_);
    return kernel(type, type, static_cast<int>(group_), static_cast<int>(tokens_), dim * 4, stride, stride, 0,
                  dim, q_, keys_, values_, mask_.data(), 1.0F / std::sqrt(static_cast<float>(dim_)), 0.0F,
                  out_.data(), nullptr, 0, nullptr, nullptr);
}

} // namespace kernels
