// What a unit's record says of its pages since the last save.
// SPDX-License-Identifier: MIT
#include <kvtl/unit.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace unit_test {

using kvtl::unit_record;

TEST_CASE("pages up to the first that has changed are as saved, as far as there is room to say so") {
    std::mt19937_64 random(1);
    for (int round = 0; round < 1000; ++round) {
        const auto pages = static_cast<std::uint32_t>(1 + random() % 300);
        unit_record unit;
        REQUIRE(unit.has_changed(0)); // nothing was saved of a new one
        unit.as_saved = unit_record::all_pages;
        std::uint32_t first = pages; // that has changed
        for (auto changes = random() % 4; changes > 0; --changes) {
            const auto page = static_cast<std::uint32_t>(random() % pages);
            unit.change(page);
            first = std::min(first, page);
        }
        const std::uint32_t told = first == pages ? pages : std::min<std::uint32_t>(first, 126);
        CAPTURE(first);
        for (std::uint32_t page = 0; page < pages; ++page) REQUIRE(unit.has_changed(page) == (page >= told));
    }
}

} // namespace unit_test
