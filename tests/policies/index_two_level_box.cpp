// two_level_box: the score of a unit is minmax_box's, to the bit; the coarse level names whole blocks, those whose boxes have
// the greatest scores, after whatever changes.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_two_level_box.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace index_two_level_box_test {

using namespace kvtl;

namespace {

using state = two_level_box::state;
using flat = minmax_box::state;
template <class P> using lane_of = kvtl_test::index_suite::lane<P>;

/// Quest's bound in double precision over the keys of units [first, end).
double bound(const auto& lane, const float* q, std::uint32_t h, std::uint32_t first, std::uint32_t end) {
    double sum = 0;
    for (std::uint32_t c = 0; c < lane.shape().dim; ++c) {
        double low = std::numeric_limits<double>::infinity(), high = -low;
        for (std::uint32_t u = first; u < end; ++u)
            for (std::uint32_t i = 0; i < lane.entries(u); ++i) {
                low = std::min(low, static_cast<double>(lane.key(u, i, h)[c]));
                high = std::max(high, static_cast<double>(lane.key(u, i, h)[c]));
            }
        sum += std::max(static_cast<double>(q[c]) * low, static_cast<double>(q[c]) * high);
    }
    return sum;
}

/// What the manager lends for narrowing.
struct lent {
    std::vector<std::byte> memory;
    narrowing few;
    choice_counts counts;
    lent(std::uint32_t units, std::uint32_t width) {
        carver counting;
        static_cast<void>(narrowing::take(counting, units, width));
        memory.resize(counting.used() + 64);
        carver lend(memory);
        few = narrowing::take(lend, units, width);
        few.counts = &counts;
    }
};

/// The units that the best `probed` blocks have, in double precision, unless two are too near to tell.
void names_the_best(lane_of<two_level_box>& x, const std::vector<float>& q, std::uint32_t queries,
                    const two_level_box::config& c, std::uint32_t probed,
                    std::span<const std::uint32_t> got) {
    const std::uint32_t units = x.units(), blocks = (units + c.units_per_block - 1) / c.units_per_block,
                        dim = x.shape().dim;
    CHECK(std::is_sorted(got.begin(), got.end()));
    const std::set<std::uint32_t> named(got.begin(), got.end());
    REQUIRE(named.size() == got.size());
    double worst_in = 1e30, best_out = -1e30;
    std::uint32_t whole = 0;
    for (std::uint32_t b = 0; b < blocks; ++b) {
        const std::uint32_t first = b * c.units_per_block, end = std::min(units, first + c.units_per_block);
        double best = -1e30;
        for (std::uint32_t g = 0; g < queries; ++g)
            best = std::max(best, bound(x, &q[std::size_t{g} * dim], 0, first, end));
        const bool in = named.contains(first);
        for (std::uint32_t u = first; u < end; ++u) CHECK(named.contains(u) == in);
        whole += in ? 1 : 0;
        (in ? worst_in : best_out) = in ? std::min(worst_in, best) : std::max(best_out, best);
    }
    CHECK(whole == probed);
    CHECK(worst_in > best_out - 0.01 * dim); // boxes are f16
}

} // namespace

TEST_CASE("two_level_box scores as minmax_box does") {
    for (const std::uint32_t per_block : {1U, 4U, 7U, 64U}) {
        kvtl_test::summarising_index_contract<two_level_box>(
            [&](const summary_shape&) {
                return state({per_block, 2}, {});
            },
            0x1p-9,
            [&](const summary_shape& s) {
                const std::size_t box = 4 * s.width();
                return per_block == 1 || s.lane_heads > 1 ? box
                                                          : box + (2 * s.dim + per_block - 1) / per_block * 2;
            },
            [](const auto& lane, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t) {
                return bound(lane, q, h, u, u + 1);
            });
    }
}

TEST_CASE("two_level_box names the units of the best blocks, and scores them as all are") {
    for (const std::uint32_t dim : {8U, 64U, 80U})
        for (const std::uint32_t per_block : {4U, 7U}) {
            const two_level_box::config c{per_block, 2};
            const state s(c, {});
            const flat one_level;
            const kvtl_test::index_suite::extents e{{1, 3, dim, 8}, 203, true};
            lane_of<two_level_box> x(s, e, dim + per_block, 1.0);
            lane_of<minmax_box> y(one_level, e, dim + per_block, 1.0); // the same keys
            x.absorb_all(), y.absorb_all();
            lent memory(e.units, dim);
            const auto look = [&](std::uint64_t seed) {
                const auto q = oracle::normal_values<float>(std::size_t{3} * dim, seed);
                const units_view all = x.table(0);
                const std::uint32_t n = s.narrow(q.data(), 3, all, 100, memory.few), // 200 entries
                    probed = (200 + 8 * per_block - 1) / (8 * per_block);
                const auto named = memory.few.unit.first(n);
                names_the_best(x, q, 3, c, probed, named);
                const auto expected = y.score(q, 3, 0);
                std::vector<float> got(3 * std::size_t{n}), scratch(s.scratch_floats(e.shape, n));
                s.score(q.data(), 3, all.only(named), got, scratch);
                for (std::uint32_t g = 0; g < 3; ++g)
                    for (std::uint32_t i = 0; i < n; ++i)
                        REQUIRE(got[g * n + i] == expected[g * e.units + named[i]]);
                CHECK(x.score(q, 3, 0) == expected);
            };
            look(1);
            CHECK(memory.counts.scored == 3 * ((203 + per_block - 1) / per_block));
            CHECK(memory.counts.compared == (203 + per_block - 1) / per_block);
            CHECK(memory.counts.opened == (200 + 8 * per_block - 1) / (8 * per_block));
            for (std::uint32_t u = 3; u < e.units; u += 20) { // blocks change, and change back
                x.absorb_others(u);
                const auto q = oracle::normal_values<float>(std::size_t{3} * dim, u);
                static_cast<void>(s.narrow(q.data(), 3, x.table(0), 100, memory.few));
                x.absorb(u);
            }
            look(2);
        }
}

TEST_CASE("two_level_box: units that join a last block that was put together without them are seen") {
    const two_level_box::config c{4, 1};
    const state s(c, {});
    const kvtl_test::index_suite::extents e{{1, 1, 4, 8}, 39, true}; // 9 blocks of 4, and 3 units
    lane_of<two_level_box> grown(s, e, 11), whole(s, e, 11);         // the same keys
    whole.absorb_all();
    lent memory(e.units, 4);
    const auto name = [&](lane_of<two_level_box>& x, std::uint32_t units, std::uint64_t seed) {
        const auto q = oracle::normal_values<float>(4, seed);
        units_view u = x.table(0);
        u.count = units;
        const std::uint32_t n = s.narrow(q.data(), 1, u, 32, memory.few); // a block
        return std::vector<std::uint32_t>(memory.few.unit.begin(), memory.few.unit.begin() + n);
    };
    for (std::uint32_t u = 0; u < 37; ++u) grown.absorb(u);
    bool last = false;
    for (std::uint32_t units = 37; units <= 39; ++units) { // put together, then one more comes
        for (std::uint64_t seed = 0; seed < 200; ++seed) {
            const auto named = name(grown, units, seed);
            CHECK(named.size() == (named[0] == 36 ? units - 36 : 4));
            if (units < 39) continue;
            CHECK(named == name(whole, units, seed));
            last = last || named[0] == 36;
        }
        if (units < 39) grown.absorb(units);
    }
    CHECK(last);
}

TEST_CASE("two_level_box narrows nothing where every block is wanted, or units have several heads") {
    const state s({4, 2}, {});
    const auto q = oracle::normal_values<float>(2 * 16, 5);
    for (const std::uint32_t heads : {1U, 2U}) {
        lane_of<two_level_box> x(s, {{heads, 2, 16, 8}, 40, true}, 3);
        x.absorb_all();
        lent memory(40, heads * 16);
        CHECK(s.narrow(q.data(), 2, x.table(0), 10 * 32 / 2, memory.few) == 0); // 10 blocks of 32 entries
        CHECK((s.narrow(q.data(), 2, x.table(0), 9 * 32 / 2, memory.few) == 0) == (heads == 2));
        CHECK(state({1, 2}, {}).narrow(q.data(), 2, x.table(0), 8, memory.few) == 0);
    }
    CHECK(state::check({}).ok());
    CHECK(
        std::string(state::check({2, 2}).what()).find("index.units_per_block is 2; valid: 1, and 4 to 64") !=
        std::string::npos);
    CHECK(std::string(state::check({4, 0}).what()).find("index.probe_entries is 0") != std::string::npos);
}

} // namespace index_two_level_box_test
