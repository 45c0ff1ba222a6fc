// page_map against a vector of bools that is searched page by page.
// SPDX-License-Identifier: MIT
#include <kvtl/layout/page_map.hpp>

#include "contracts/replacement.hpp" // guarded_bytes
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace layout_page_map_test {

using namespace kvtl;

namespace {

struct naive_map {
    std::vector<bool> taken;
    std::uint32_t cursor = 0, top = 0;

    [[nodiscard]] std::uint32_t first_run(std::uint32_t begin, std::uint32_t end, std::uint32_t count) const {
        for (std::uint32_t page = begin; page + count <= end; ++page)
            if (std::none_of(taken.begin() + page, taken.begin() + page + count, [](bool b) { return b; }))
                return page;
        return none;
    }
    std::uint32_t allocate(std::uint32_t count) {
        const auto size = static_cast<std::uint32_t>(taken.size());
        std::uint32_t first = first_run(cursor, size, count);
        if (first == none) first = first_run(0, size, count); // a run across the cursor counts too
        if (first == none) return none;
        std::fill_n(taken.begin() + first, count, true);
        cursor = first + count;
        top = std::max(top, cursor);
        return first;
    }
    [[nodiscard]] std::uint32_t used() const {
        return static_cast<std::uint32_t>(std::count(taken.begin(), taken.end(), true));
    }
};

} // namespace

TEST_CASE("page_map equals a naive bitmap with next-fit search") {
    for (const std::uint32_t pages : {1U, 7U, 63U, 64U, 65U, 128U, 200U, 500U})
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
            kvtl_test::guarded_bytes memory(page_map::bytes(pages));
            page_map map(pages, memory.memory());
            naive_map naive{std::vector<bool>(pages)};
            oracle::generator random(seed * 1000 + pages);
            std::vector<std::pair<std::uint32_t, std::uint32_t>> held;
            const std::uint32_t longest = seed % 2 == 0 ? 5 : 90;
            for (int i = 0; i < 1500; ++i) {
                const std::size_t what = random.below(8);
                if (what < 4) {
                    const auto count = 1 + static_cast<std::uint32_t>(random.below(std::min(longest, pages)));
                    const std::uint32_t top = map.top();
                    const std::uint32_t first = map.allocate(count);
                    REQUIRE(first == naive.allocate(count));
                    REQUIRE(map.top() <= top + count); // what was reserved up to there is enough
                    if (first != none) held.emplace_back(first, count);
                } else if (what == 4) {
                    const auto page = static_cast<std::uint32_t>(random.below(pages));
                    REQUIRE(map.taken(page) == naive.taken[page]);
                    if (naive.taken[page]) continue;
                    map.take(page);
                    naive.taken[page] = true;
                    naive.top = std::max(naive.top, page + 1);
                    held.emplace_back(page, 1);
                } else if (!held.empty()) {
                    const std::size_t h = random.below(held.size());
                    const auto [first, count] = held[h];
                    map.release(first, count);
                    std::fill_n(naive.taken.begin() + first, count, false);
                    while (naive.top > 0 && !naive.taken[naive.top - 1]) --naive.top;
                    naive.cursor = std::min({naive.cursor, first, naive.top});
                    held.erase(held.begin() + static_cast<std::ptrdiff_t>(h));
                }
                REQUIRE(map.used() == naive.used());
                REQUIRE(map.top() == naive.top);
            }
            bool same = true;
            for (std::uint32_t p = 0; p < pages; ++p) same = same && map.taken(p) == naive.taken[p];
            CHECK(same);
            CHECK(memory.intact());
        }
}

TEST_CASE("a map may be full, and runs end at its last page") {
    kvtl_test::guarded_bytes memory(page_map::bytes(70));
    page_map map(70, memory.memory());
    CHECK(map.capacity() == 70);
    CHECK(map.allocate(71) == none);
    CHECK(map.allocate(70) == 0);
    CHECK(map.allocate(1) == none);
    map.release(60, 10); // across a word's end
    CHECK(map.allocate(11) == none);
    CHECK(map.allocate(10) == 60);
    CHECK(map.used() == 70);
}

} // namespace layout_page_map_test
