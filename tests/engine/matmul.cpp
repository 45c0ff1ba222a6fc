// Products of every stored type against double precision.
// SPDX-License-Identifier: MIT
#include "matmul.hpp"

#include "gguf_writer.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <random>

namespace {

using namespace engine;

constexpr tensor_type all_types[] = {tensor_type::f32, tensor_type::f16, tensor_type::bf16, tensor_type::q8_0,
                                     tensor_type::q4_0};

std::vector<double> noise(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<double> x(n);
    for (double& v : x) v = static_cast<double>(random()) / 2147483648.0 - 1;
    return x;
}

void compare(tensor_type type, std::size_t rows, std::size_t columns, std::size_t tokens, unsigned threads) {
    CAPTURE(type_name(type));
    CAPTURE(rows);
    CAPTURE(columns);
    CAPTURE(tokens);
    const auto stored = store_as(type, noise(rows * columns, 1));
    const tensor w{type, rows, columns, reinterpret_cast<const std::byte*>(stored.bytes.data())};
    std::vector<float> x, bias;
    for (const double v : noise(tokens * columns, 2)) x.push_back(static_cast<float>(v));
    for (const double v : noise(rows, 3)) bias.push_back(static_cast<float>(v));
    std::vector<float> y(tokens * rows + 1, -77.0F);
    thread_pool pool(threads);
    matmul(pool, w, bias, x.data(), tokens, y.data());
    double worst = 0;
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t r = 0; r < rows; ++r) {
            auto sum = static_cast<double>(bias[r]);
            for (std::size_t c = 0; c < columns; ++c)
                sum += stored.values[r * columns + c] * static_cast<double>(x[t * columns + c]);
            worst = std::max(worst, std::abs(sum - static_cast<double>(y[t * rows + r])));
        }
    CHECK(worst < 1e-5 * std::sqrt(static_cast<double>(columns)));
    CHECK(y.back() == -77.0F);

    // One token alone gives the same bits as among others.
    std::vector<float> alone(rows);
    matmul(pool, w, bias, x.data() + (tokens - 1) * columns, 1, alone.data());
    CHECK(std::equal(alone.begin(), alone.end(), y.end() - 1 - static_cast<std::ptrdiff_t>(rows)));
}

} // namespace

TEST_CASE("products of every type, odd extents, any number of tokens") {
    for (const auto type : all_types)
        for (const std::size_t tokens : {1U, 2U, 7U}) {
            compare(type, 37, 64, tokens, 1);
            compare(type, 6, 2080, tokens, 3); // more columns than are expanded at a time
        }
    for (const auto type : {tensor_type::f32, tensor_type::f16, tensor_type::bf16})
        compare(type, 5, 1037, 3, 2);
}

TEST_CASE("a block's scale and signs are read as ggml writes them") {
    float out[32];
    // q8_0: scale 0.5, then int8.
    std::string q8 = gguf_writer::raw(kvtl::from_float<kvtl::f16>(0.5F));
    for (int i = 0; i < 32; ++i) q8 += static_cast<char>(i - 16);
    expand(tensor_type::q8_0, reinterpret_cast<const std::byte*>(q8.data()), 0, 32, out);
    CHECK(out[0] == -8.0F);
    CHECK(out[31] == 7.5F);
    // q4_0: scale 2, byte j holds weight j in its low and weight j + 16 in its high nibble, both plus 8.
    std::string q4 = gguf_writer::raw(kvtl::from_float<kvtl::f16>(2.0F));
    for (int i = 0; i < 16; ++i) q4 += static_cast<char>(i | ((15 - i) << 4));
    expand(tensor_type::q4_0, reinterpret_cast<const std::byte*>(q4.data()), 0, 32, out);
    CHECK(out[0] == -16.0F);
    CHECK(out[15] == 14.0F);
    CHECK(out[16] == 14.0F);
    CHECK(out[31] == -16.0F);
}
