// What a choice says of a unit's entries: by which queries each is attended, and up to where any is.
// SPDX-License-Identifier: MIT
#include <kvtl/slots/selector.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using kvtl::chosen_unit;

TEST_CASE("a unit is attended as far as the last entry that any query attends") {
    for (const std::uint64_t mask : {0b0U, 0b1U, 0b110U, 0b1111U})
        for (const int cut : {0b0, 0b1, 0b110, 0b1111})
            for (const int first : {0, 1, 5, 16})
                for (const std::uint32_t n : {0U, 1U, 5U, 16U, 40U}) {
                    const chosen_unit c{3, static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(cut),
                                        mask};
                    std::uint32_t last = 0;
                    for (std::uint32_t i = 0; i < n; ++i)
                        if (c.queries_of(i) != 0) last = i + 1;
                    if (mask != 0) CHECK(c.attended(n) == last);
                    CHECK(c.attended(n) >= last);
                    CHECK(c.attended(n) <= n);
                }
}

TEST_CASE("choices are put in the order of units, and those above a bar keep theirs") {
    std::vector<chosen_unit> chosen{{.unit = 4}, {.unit = 1}, {.unit = 3}, {.unit = 0}};
    const std::vector<float> score{.5F, 2.0F, 9.0F, 1.0F, 3.0F};
    CHECK(kvtl::keep_above(1.0F, score, chosen) == 2); // a score that is the bar is not above it
    CHECK(chosen[0].unit == 4);
    CHECK(chosen[1].unit == 1);
    kvtl::sort_by_unit(chosen);
    CHECK(std::is_sorted(chosen.begin(), chosen.end(), [](auto& a, auto& b) { return a.unit < b.unit; }));
}
