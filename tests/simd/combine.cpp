// SPDX-License-Identifier: MIT
#include <kvtl/simd/combine.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace simd_combine_test {

namespace {

template <class E> struct scene {
    std::vector<std::vector<E>> rows;
    std::vector<kvtl::simd::coefficient_row<E>> views;
    std::vector<float> basis;
    std::size_t depth, dim, stride;

    scene(std::size_t n, std::size_t depth_, std::size_t dim_, std::uint64_t seed)
        : depth(depth_), dim(dim_), stride(dim_ + 5) {
        oracle::generator random(seed);
        for (std::size_t i = 0; i < n; ++i) {
            rows.emplace_back(random.below(depth + 1));
            if (i == 0) rows[0].resize(depth);
            for (E& x : rows[i]) x = kvtl::from_float<E>(static_cast<float>(random.normal()));
        }
        for (const auto& r : rows) views.push_back({r.data(), static_cast<std::uint32_t>(r.size())});
        basis.resize(depth * stride);
        for (float& x : basis) x = static_cast<float>(random.normal());
    }
    [[nodiscard]] kvtl::rows_view<float> view() const { return {basis.data(), depth, dim, stride}; }
};

} // namespace

TEST_CASE_TEMPLATE("rows from coefficients equal sums in double precision, and end where they should", E,
                   float, kvtl::f16, kvtl::bf16) {
    std::uint64_t seed = 0;
    for (const std::size_t n : {1U, 3U, 4U, 9U})
        for (const std::size_t depth : {1U, 63U, 64U, 130U})
            for (const std::size_t dim : {1U, 8U, 64U, 80U, 130U}) {
                CAPTURE(n);
                CAPTURE(depth);
                CAPTURE(dim);
                const scene<E> s(n, depth, dim, ++seed);
                std::vector<float> out(n * (dim + 2), -7.0F);
                kvtl::simd::combine_rows(s.views.data(), n, s.view(), out.data(), dim + 2);
                oracle::largest_error error;
                for (std::size_t i = 0; i < n; ++i) {
                    for (std::size_t d = 0; d < dim; ++d) {
                        double exact = 0, size = 1e-30;
                        for (std::size_t r = 0; r < s.rows[i].size(); ++r) {
                            const double x =
                                oracle::value(s.rows[i][r]) * static_cast<double>(s.basis[r * s.stride + d]);
                            exact += x, size += std::fabs(x);
                        }
                        error.relative(static_cast<double>(out[i * (dim + 2) + d]), exact, size);
                    }
                    CHECK(out[i * (dim + 2) + dim] == -7.0F);
                }
                CHECK(error.value() < 1e-6);
                // A row alone is the same bits as among others.
                std::vector<float> alone(dim);
                kvtl::simd::combine_rows(&s.views[n - 1], 1, s.view(), alone.data(), dim);
                CHECK(
                    std::equal(alone.begin(), alone.end(), out.end() - static_cast<std::ptrdiff_t>(dim + 2)));
            }
}

TEST_CASE_TEMPLATE("coefficients of many rows are summed up to where each ends", E, float, kvtl::f16) {
    std::uint64_t seed = 100;
    for (const std::size_t n : {1U, 7U, 32U})
        for (const std::size_t group : {1U, 3U, 4U})
            for (const std::size_t first : {0U, 16U, 37U}) {
                const std::size_t depth = 90, some = 50;
                const scene<E> s(n, depth, 1, ++seed);
                const auto weight = oracle::normal_values<float>(group * (n + 1), ++seed);
                std::vector<float> sums(group * (some + 3), 0.5F);
                kvtl::simd::spectral_sums(weight.data(), group, n + 1, s.views.data(), n, first, some,
                                          sums.data(), some + 3);
                oracle::largest_error error;
                for (std::size_t g = 0; g < group; ++g) {
                    for (std::size_t r = 0; r < some; ++r) {
                        double exact = 0, size = 0;
                        for (std::size_t i = 0; i < n; ++i)
                            if (first + r < s.rows[i].size()) {
                                const double x = static_cast<double>(weight[g * (n + 1) + i]) *
                                                 oracle::value(s.rows[i][first + r]);
                                exact += x, size += std::fabs(x);
                            }
                        error.relative(static_cast<double>(sums[g * (some + 3) + r]), exact, size);
                    }
                    CHECK(sums[g * (some + 3) + some] == 0.5F);
                }
                CHECK(error.value() < 1e-6);
            }
}

} // namespace simd_combine_test
