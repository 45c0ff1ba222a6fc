// co_retrieval against a matrix of counts (DynaKV Eq. 8) and a chain made by going through all its cells.
// SPDX-License-Identifier: MIT
#include <kvtl/layout/co_retrieval.hpp>

#include "contracts/replacement.hpp" // guarded_bytes
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace layout_co_retrieval_test {

using namespace kvtl;

namespace {

class instance {
  public:
    instance(std::uint32_t sets, std::uint32_t units)
        : memory_(needed(sets, units)), pairs_(make(memory_, sets, units)), order(units), strength(units) {}
    co_retrieval* operator->() { return &pairs_; }
    void chain() { pairs_.chain(order, strength); }
    [[nodiscard]] bool intact() const { return memory_.intact(); }

  private:
    static std::size_t needed(std::uint32_t sets, std::uint32_t units) {
        carver c;
        co_retrieval(c, sets, units);
        return c.used();
    }
    static co_retrieval make(kvtl_test::guarded_bytes& memory, std::uint32_t sets, std::uint32_t units) {
        carver c(memory.memory());
        return {c, sets, units};
    }
    kvtl_test::guarded_bytes memory_;
    co_retrieval pairs_;

  public:
    std::vector<std::uint32_t> order, strength;
};

using matrix = std::vector<std::vector<std::uint32_t>>;

void count(matrix& together, const std::vector<chosen_unit>& set) {
    const std::size_t n = std::min<std::size_t>(set.size(), co_retrieval::set_limit);
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j)
            if (i != j) ++together[set[i].unit][set[j].unit];
}

struct pair_count {
    std::uint32_t a, b, count;
};

/// The most frequent pair first, ties to the lower indices, no unit with three neighbours, no ring.
std::vector<pair_count> greedy(const matrix& together) {
    const auto units = static_cast<std::uint32_t>(together.size());
    std::vector<pair_count> all, joined;
    for (std::uint32_t a = 0; a < units; ++a)
        for (std::uint32_t b = a + 1; b < units; ++b)
            if (together[a][b] > 0) all.push_back({a, b, together[a][b]});
    std::stable_sort(all.begin(), all.end(),
                     [](const pair_count& x, const pair_count& y) { return x.count > y.count; });
    std::vector<std::uint32_t> degree(units, 0), group(units);
    for (std::uint32_t u = 0; u < units; ++u) group[u] = u;
    for (const pair_count& l : all) {
        if (degree[l.a] == 2 || degree[l.b] == 2 || group[l.a] == group[l.b]) continue;
        const std::uint32_t from = group[l.b], to = group[l.a];
        std::replace(group.begin(), group.end(), from, to);
        ++degree[l.a];
        ++degree[l.b];
        joined.push_back(l);
    }
    return joined;
}

} // namespace

TEST_CASE("chains equal those of a naive matrix") {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        oracle::generator random(seed);
        const auto units = 2 + static_cast<std::uint32_t>(random.below(60));
        const auto sets = 1 + static_cast<std::uint32_t>(random.below(20));
        instance pairs(sets, units);
        matrix together(units, std::vector<std::uint32_t>(units, 0));
        for (std::uint32_t s = 0; s < sets; ++s) {
            std::vector<chosen_unit> set; // units near a common centre, each at most once
            const std::size_t centre = random.below(units);
            for (std::uint32_t u = 0; u < units; ++u)
                if (random.below(4) == 0 || (u + 3 > centre && u < centre + 3)) set.push_back({.unit = u});
            for (std::size_t i = set.size(); i > 1; --i) std::swap(set[i - 1], set[random.below(i)]);
            pairs->add(set);
            count(together, set);
        }
        pairs.chain();
        CHECK(pairs.intact());

        auto sorted = pairs.order;
        std::sort(sorted.begin(), sorted.end());
        for (std::uint32_t u = 0; u < units; ++u) REQUIRE(sorted[u] == u);

        std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> expected, got;
        for (const pair_count& l : greedy(together)) expected[{l.a, l.b}] = l.count;
        std::vector<std::uint32_t> best; // of each chain, in the order they come; 0 for a unit alone
        std::uint32_t strongest = 0;
        for (std::uint32_t i = 0; i < units; ++i) {
            strongest = std::max(strongest, pairs.strength[i]);
            if (pairs.strength[i] > 0) {
                REQUIRE(i + 1 < units);
                const auto [a, b] = std::minmax(pairs.order[i], pairs.order[i + 1]);
                got[{a, b}] = pairs.strength[i];
            } else {
                best.push_back(strongest);
                strongest = 0;
            }
        }
        CHECK(got == expected);
        CHECK(std::is_sorted(best.rbegin(), best.rend()));
    }
}

TEST_CASE("a set counts its first 24 units only, and as many sets as were announced") {
    instance pairs(1, 64);
    std::vector<chosen_unit> set;
    for (std::uint32_t u = 0; u < 64; ++u) set.push_back({.unit = 63 - u});
    pairs->add(set);
    pairs->add(set); // one more than there is room for
    pairs.chain();
    for (std::uint32_t i = 0; i < 23; ++i) CHECK(pairs.strength[i] == 1);
    for (std::uint32_t i = 23; i < 64; ++i) CHECK(pairs.strength[i] == 0);
    for (std::uint32_t i = 24; i < 64; ++i)
        CHECK(pairs.order[i] == i - 24); // units without any pair come last, by index
    CHECK(pairs.intact());
}

TEST_CASE("without sets the order is that of the units") {
    instance pairs(4, 9);
    pairs.chain();
    for (std::uint32_t u = 0; u < 9; ++u) {
        CHECK(pairs.order[u] == u);
        CHECK(pairs.strength[u] == 0);
    }
}

} // namespace layout_co_retrieval_test
