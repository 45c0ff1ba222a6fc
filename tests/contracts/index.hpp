// What every index promises: one that scores fills (queries, units) numbers, the same whatever else is in the
// table; one that does not says so. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/explain.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

namespace index_suite {

/// Units with random means in rows that are padded with NaN.
struct means {
    oracle::table<float> rows;
    std::vector<unit_record> unit;

    means(std::uint32_t units, std::uint32_t dim, std::uint32_t stride, std::uint64_t seed)
        : rows(units, dim, stride, seed), unit(units) {
        for (std::uint32_t u = 0; u < units; ++u) unit[u].entries = 1 + u % 7;
    }
    [[nodiscard]] units_view view() const {
        units_view u;
        u.unit = unit.data();
        u.count = static_cast<std::uint32_t>(rows.count);
        u.mean = rows.memory.data();
        u.dim = static_cast<std::uint32_t>(rows.dim);
        u.stride = static_cast<std::uint32_t>(rows.stride);
        u.max_entries = 8;
        return u;
    }
};

/// The exact score of query `q` for unit `u` of a table, as the policy's own test defines it.
template <class P, class Exact> void scores(const typename P::config& config, const Exact& exact) {
    using state = typename P::template state<geometry<shape{}>>;
    const auto model = geometry<shape{}>::from({1, 8, 2, 64});
    REQUIRE(model.ok());
    const state s(config, *model);
    std::uint64_t seed = 1;
    for (const std::uint32_t dim : {1U, 3U, 16U, 64U, 80U, 128U})
        for (const std::uint32_t units : {1U, 2U, 7U, 64U, 65U})
            for (const std::uint32_t queries : {1U, 2U, 3U, 4U, 5U, 8U, 12U}) {
                const means table(units, dim, dim + 5, ++seed);
                const auto q = oracle::normal_values<float>(std::size_t{queries} * dim, ++seed);
                const float untouched = -12345.0F;
                std::vector<float> out(std::size_t{queries} * units + 32, untouched);
                s.score(q.data(), queries, table.view(), std::span(out).first(std::size_t{queries} * units));
                oracle::largest_error worst;
                for (std::uint32_t i = 0; i < queries; ++i)
                    for (std::uint32_t u = 0; u < units; ++u) {
                        const float* query = q.data() + std::size_t{i} * dim;
                        const float* mean = table.rows.view().row(u);
                        worst.relative(static_cast<double>(out[std::size_t{i} * units + u]),
                                       exact(query, mean, dim),
                                       oracle::dot_of_magnitudes(query, mean, dim) + 1e-30);
                    }
                CHECK(worst.value() < 1e-6);
                CHECK(std::all_of(out.end() - 32, out.end(), [&](float x) { return x == untouched; }));
                std::vector<float> again(std::size_t{queries} * units);
                s.score(q.data(), queries, table.view(), again);
                CHECK(std::equal(again.begin(), again.end(), out.begin()));
            }
}

} // namespace index_suite

/// `exact(query, mean, dim)` is the score in double precision; unused where the index keeps no scores.
template <class P, class Exact> void index_contract(const typename P::config& config, const Exact& exact) {
    using state = typename P::template state<geometry<shape{}>>;
    static_assert(index_for<P, geometry<shape{}>>);
    CHECK(!std::string_view(P::name).empty());
    if constexpr (P::scores) {
        SUBCASE("scores") {
            index_suite::scores<P>(config, exact);
        }
    } else {
        static_assert(!index_scores<P, geometry<shape{}>>);
        CHECK_FALSE(P::needs_means); // nobody would read them
        CHECK(state::bytes_per_unit() == 0);
    }
}

} // namespace kvtl_test
