// Rows of 4-bit and 2-bit codes against double precision: any size of rows, group of queries and count of rows.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/packed.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace simd_packed_test {

namespace simd = kvtl::simd;

namespace {

/// Random rows that begin at any byte, right behind each other, and their numbers. With middles they are around 2.
template <std::size_t Bits, bool Middle> struct packed_table {
    std::vector<float> numbers;
    std::vector<std::byte> memory;
    simd::packed_rows<Bits, Middle> rows;

    packed_table(std::size_t count, std::size_t dim, std::size_t group, std::uint64_t seed)
        : rows{nullptr, count, dim, 0, group} {
        auto in = oracle::normal_values(count * dim, seed);
        if (Middle)
            for (float& x : in) x += 2;
        rows.stride = rows.row_bytes();
        memory.resize(count * rows.stride + 1);
        rows.data = memory.data() + 1;
        numbers.resize(count * dim);
        for (std::size_t i = 0; i < count; ++i) {
            simd::pack_row(in.data() + i * dim, rows, memory.data() + 1 + i * rows.stride);
            simd::unpack_row(rows, i, numbers.data() + i * dim);
        }
    }
    [[nodiscard]] const float* row(std::size_t i) const { return numbers.data() + i * rows.dim; }
};

/// Scores and weighted sums, both as shares of the sums of magnitudes.
template <class Arch, std::size_t Bits, bool Middle>
void check(std::size_t count, std::size_t dim, std::size_t group, std::size_t share,
           oracle::largest_error& worst) {
    const packed_table<Bits, Middle> of(count, dim, share, count + dim + group);
    const std::size_t stride = dim + 3, out_stride = count + 2;
    const auto q = oracle::normal_values(group * stride, 2);
    std::vector<float> out(group * out_stride, -7.0F);
    simd::score_packed<Arch>(q.data(), group, stride, of.rows, out.data(), out_stride);
    for (std::size_t g = 0; g < group; ++g) {
        for (std::size_t i = 0; i < count; ++i) {
            double exact = 0, size = 0;
            for (std::size_t d = 0; d < dim; ++d) {
                const double x = oracle::value(of.row(i)[d]) * oracle::value(q[g * stride + d]);
                exact += x;
                size += std::fabs(x);
            }
            worst.relative(oracle::value(out[g * out_stride + i]), exact, size);
        }
        CHECK(out[g * out_stride + count] == -7.0F);
        CHECK(out[g * out_stride + count + 1] == -7.0F);
    }
    if (count > simd::attend_block) return;
    auto weight = oracle::normal_values(group * simd::attend_block, 3);
    for (std::size_t g = 0; g < group; ++g) // behind the last row anything may be
        std::fill(weight.begin() + static_cast<std::ptrdiff_t>(g * simd::attend_block + count),
                  weight.begin() + static_cast<std::ptrdiff_t>((g + 1) * simd::attend_block),
                  std::numeric_limits<float>::quiet_NaN());
    std::vector<float> acc(group * stride, 0.5F);
    simd::accumulate_packed<Arch>(weight.data(), group, of.rows, acc.data(), stride);
    for (std::size_t g = 0; g < group; ++g) {
        for (std::size_t d = 0; d < dim; ++d) {
            double exact = 0.5, size = 0.5;
            for (std::size_t i = 0; i < count; ++i) {
                const double x =
                    oracle::value(of.row(i)[d]) * oracle::value(weight[g * simd::attend_block + i]);
                exact += x;
                size += std::fabs(x);
            }
            worst.relative(oracle::value(acc[g * stride + d]), exact, size);
        }
        for (std::size_t d = dim; d < stride; ++d) CHECK(acc[g * stride + d] == 0.5F);
    }
}

template <class Arch>
void check_all(const std::vector<std::size_t>& dims, const std::vector<std::size_t>& groups) {
    oracle::largest_error plain, with_middle;
    for (const std::size_t dim : dims)
        for (const std::size_t group : groups)
            for (const std::size_t count : {0U, 1U, 2U, 15U, 16U, 17U, 31U, 32U, 33U, 65U}) {
                CAPTURE(dim);
                CAPTURE(group);
                CAPTURE(count);
                const std::size_t share = (dim + count) % 2 != 0 ? 32 : 64;
                check<Arch, 4, false>(count, dim, group, share, plain);
                check<Arch, 2, true>(count, dim, group, share, with_middle);
                if constexpr (std::is_same_v<Arch, simd::default_arch>) { // of others, two are compiled
                    check<Arch, 2, false>(count, dim, group, share, plain);
                    check<Arch, 4, true>(count, dim, group, share, with_middle);
                }
            }
    CHECK(plain.value() < 4e-7);
    CHECK(with_middle.value() < 4e-7);
}

} // namespace

TEST_CASE("scores and weighted sums equal double precision") {
    check_all<simd::default_arch>({1, 8, 31, 33, 50, 64, 80, 96, 127, 128, 160, 256}, {1, 2, 3, 4, 7, 8, 16});
}

#ifdef __SSE2__
TEST_CASE("scores and weighted sums with registers of four numbers") {
    check_all<xsimd::sse2>({8, 33, 80, 128}, {1, 4, 9});
}
#endif

namespace {

/// The row of pack_row(), a number at a time. fit_step() is the kernel's own.
template <class Arch, std::size_t Bits, bool Middle>
std::vector<std::byte> packed_one_by_one(const std::vector<float>& in,
                                         const simd::packed_rows<Bits, Middle>& shape) {
    using format = simd::packed_format<Bits>;
    std::vector<std::byte> row(shape.row_bytes());
    const auto put = [&](std::size_t at, float x) {
        const auto rounded = kvtl::from_float<kvtl::bf16>(x);
        std::memcpy(&row[at * sizeof rounded], &rounded, sizeof rounded);
        return kvtl::to_float(rounded);
    };
    for (std::size_t j = 0; j < shape.groups(); ++j) {
        const std::size_t begin = j * shape.group, n = std::min(shape.group, shape.dim - begin);
        const auto x = std::span(in).subspan(begin, n);
        const auto [least, most] = std::minmax_element(x.begin(), x.end());
        const float middle = Middle ? put(shape.groups() + j, 0.5F * *least + 0.5F * *most + 0.0F) : 0.0F;
        std::vector<float> y(n);
        float largest = 0;
        for (const float number : x) largest = std::max(largest, std::fabs(number - middle));
        if (largest / format::centre < std::numeric_limits<float>::min()) continue;
        for (std::size_t i = 0; i < n; ++i) y[i] = (x[i] - middle) / largest;
        const float step = put(j, simd::fit_step<Bits, Arch>(y.data(), n) * largest);
        for (std::size_t i = 0; i < n; ++i) {
            const float level = std::clamp((x[i] - middle) / step, -format::centre, format::centre);
            const auto code = std::min(format::mask, static_cast<unsigned>(level + format::centre + 0.5F));
            // Blocks of 16 bytes, then one of 32 numbers if there are as many, then the rest.
            std::size_t first = 0;
            while (begin + i >= first + format::block_of(shape.dim - first))
                first += format::block_of(shape.dim - first);
            const std::size_t bytes = format::bytes_of(format::block_of(shape.dim - first)),
                              at = begin + i - first;
            row[shape.header_bytes() + first / format::per_byte + at % bytes] |=
                static_cast<std::byte>(code << (at / bytes * Bits));
        }
    }
    return row;
}

template <class Arch, std::size_t Bits, bool Middle> void check_bytes() {
    for (std::size_t dim = 1; dim <= 300; ++dim)
        for (const std::size_t group : {32U, 64U})
            for (const float least : {-9.0F, 0.0F, 1.0F}) { // some zeros, and a constant row
                CAPTURE(dim);
                CAPTURE(group);
                auto in = oracle::normal_values(dim, dim);
                for (float& x : in) x = least == 1 ? -0.0F : std::max(x, least);
                const simd::packed_rows<Bits, Middle> shape{nullptr, 1, dim, 0, group};
                std::vector<std::byte> row(shape.row_bytes());
                simd::pack_row<Bits, Middle, float, Arch>(in.data(), shape, row.data());
                CHECK(row == packed_one_by_one<Arch>(in, shape));
            }
}

} // namespace

TEST_CASE("rows are packed as number by number") {
    check_bytes<simd::default_arch, 4, false>();
    check_bytes<simd::default_arch, 4, true>();
    check_bytes<simd::default_arch, 2, true>();
#ifdef __SSE2__
    check_bytes<xsimd::sse2, 4, true>();
#endif
}

TEST_CASE("a score has the same bits wherever the row stands and whatever the other queries") {
    const std::size_t count = 67, dim = 160, group = 13;
    const packed_table<4, false> plain(count, dim, 32, 1);
    const packed_table<2, true> middle(count, dim, 64, 2);
    const auto q = oracle::normal_values(group * dim, 3);
    const auto compare = [&](const auto& rows) {
        std::vector<float> out(group * count);
        simd::score_packed<simd::default_arch>(q.data(), group, dim, rows, out.data(), count);
        for (std::size_t g = 0; g < group; ++g)
            for (std::size_t i = 0; i < count; ++i) {
                auto one = rows;
                one.data = rows.row(i);
                one.count = 1;
                float alone = 0;
                simd::score_packed<simd::default_arch>(q.data() + g * dim, 1, dim, one, &alone, 1);
                CHECK(alone == out[g * count + i]);
            }
    };
    compare(plain.rows);
    compare(middle.rows);
}

} // namespace simd_packed_test
