// streamed_keys scores a run of keys that is one head of wider rows, and says so to whoever composes a
// preset.
// SPDX-License-Identifier: MIT
#include <kvtl/geometry.hpp>
#include <kvtl/policies/index_streamed_keys.hpp>
#include <kvtl/slots/index.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace kvtl;

namespace {

template <element E> void check() {
    const streamed_keys::state<geometry<shape{}>> index;
    for (const std::size_t dim : {3U, 64U, 80U})
        for (const std::uint32_t queries : {1U, 3U, 8U})
            for (const std::size_t rows : {1U, 7U, 32U}) {
                const oracle::table<E> keys(rows, 2 * dim, 2 * dim, dim + rows);
                const auto q = oracle::normal_values<float>(queries * dim, 7);
                const std::size_t stride = rows + 5;
                std::vector<float> out(queries * stride, -7.0F);
                const rows_view<E> second{keys.memory.data() + dim, rows, dim, 2 * dim};
                index.score(q.data(), queries, second, out.data(), stride);
                for (std::uint32_t g = 0; g < queries; ++g)
                    for (std::size_t i = 0; i < stride; ++i)
                        if (i < rows)
                            CHECK(std::abs(static_cast<double>(out[g * stride + i]) -
                                           oracle::dot(&q[g * dim], second.row(i), dim)) < 1e-4);
                        else
                            CHECK(out[g * stride + i] == -7.0F); // the next run's place
            }
}

} // namespace

TEST_CASE("scores are inner products with the keys of a run") {
    check<float>();
    check<f16>();
}

TEST_CASE("it keeps nothing and reads keys") {
    static_assert(detail::streams_keys<streamed_keys>() && !detail::summarises<streamed_keys>());
    static_assert(detail::scores_entries<streamed_keys>() && !streamed_keys::needs_means);
    static_assert(contains(needs_of<streamed_keys>(), signal::k));
}
