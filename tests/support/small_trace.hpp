// A trace of few tokens whose numbers are all different, and the same in every file.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/trace_writer.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvtl_test {

inline constexpr kvtl::shape small_trace = {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 8};

/// Numbers that f16 holds exactly, different for every (token, layer, tensor, place).
inline std::vector<float> numbers(std::size_t n, std::size_t token, std::size_t layer, std::size_t tensor) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i)
        x[i] = static_cast<float>((token * 131 + layer * 37 + tensor * 11 + i * 3) % 2048) / 64.0F - 16.0F;
    return x;
}
inline std::vector<float> copy(std::span<const float> x) {
    return {x.begin(), x.end()};
}

inline kvtl::trace_writer create_trace(const std::string& path, const kvtl::trace_header& what) {
    auto out = kvtl::trace_writer::create(path, what);
    REQUIRE_MESSAGE(out.ok(), (out.ok() ? std::string() : out.error().message));
    return *std::move(out);
}

/// 5 tokens, of which 3 are the prompt: tensors 0 to 4 are q, k, v, k_pre and the prediction.
inline void write_small_trace(const std::string& path,
                              std::uint32_t fields = kvtl::trace_header::has_k_pre |
                                                     kvtl::trace_header::has_prediction) {
    auto out =
        create_trace(path, {.shape = small_trace, .fields = fields, .pair_distance = 4, .fingerprint = 0x77});
    for (std::size_t t = 0; t < 5; ++t)
        for (std::uint32_t l = 0; l < small_trace.layers; ++l) {
            const auto q = numbers(32, t, l, 0), k = numbers(16, t, l, 1), v = numbers(16, t, l, 2),
                       pre = numbers(16, t, l, 3), guess = numbers(32, t, l, 4);
            out.write(t, l, {.q = q, .k = k, .v = v, .k_pre = pre}, guess);
        }
    const kvtl::status s = out.close(3, 5);
    REQUIRE_MESSAGE(s.ok(), s.what());
}

} // namespace kvtl_test
