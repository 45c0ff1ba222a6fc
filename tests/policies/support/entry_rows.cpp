// Rows of numbers per entry: where they lie, products with them, and entries that units do not have.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/slots/index.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace entry_rows_test {

using namespace kvtl;

TEST_CASE("rows of all units are one table without gaps") {
    constexpr std::uint32_t units = 5, entries = 3, width = 7;
    const detail::entry_rows<float> rows{width};
    summary_view view;
    view.shape.max_entries = entries;
    view.stride = rows.unit_bytes(view.shape);
    CHECK(view.stride == entries * width * sizeof(float));
    std::vector<float> memory(units * entries * width);
    view.unit = reinterpret_cast<std::byte*>(memory.data());
    float next = 0;
    for (std::uint32_t u = 0; u < units; ++u)
        for (std::uint32_t i = 0; i < entries; ++i)
            for (std::uint32_t d = 0; d < width; ++d) rows.row(view, u, i)[d] = next++;
    for (std::size_t i = 0; i < memory.size(); ++i) CHECK(memory[i] == static_cast<float>(i));
    units_view table;
    table.count = units;
    table.max_entries = entries;
    table.summary = view;
    const rows_view<float> part = rows.all(table, 2, 4);
    CHECK(part.count == units * entries);
    CHECK(part.dim == 4);
    for (std::size_t i = 0; i < part.count; ++i) CHECK(part.row(i)[3] == static_cast<float>(i * width + 5));
}

TEST_CASE("encode_products: x times every row, rounded") {
    for (const std::size_t count : {1U, 63U, 64U, 65U, 200U}) {
        const oracle::table<float> rows(count, 24, 29, count);
        const auto x = oracle::normal_values(24, 9);
        std::vector<f16> out(count + 1, from_float<f16>(77.0F));
        detail::encode_products(x.data(), rows.view(), out.data());
        oracle::largest_error error;
        for (std::size_t i = 0; i < count; ++i)
            error.relative(oracle::value(out[i]), oracle::dot(x.data(), rows.view().row(i), 24), 10.0);
        CHECK(error.value() < 1e-3);
        CHECK(to_float(out[count]) == 77.0F);
    }
}

TEST_CASE(
    "hide_absent_entries: minus infinity behind a unit's entries, for every query; nothing in full units") {
    std::vector<unit_record> unit(3);
    unit[0].entries = 4, unit[1].entries = 0, unit[2].entries = 9; // of at most 4
    units_view table;
    table.count = 3;
    table.max_entries = 4;
    std::vector<float> score(2 * 3 * 4, 1.0F);
    detail::hide_absent_entries(table, 2, score.data());
    CHECK(score == std::vector<float>(24, 1.0F));
    table.unit = unit.data();
    detail::hide_absent_entries(table, 2, score.data());
    for (std::size_t i = 0; i < 24; ++i) {
        const bool absent = i / 4 % 3 == 1;
        CHECK((std::isinf(score[i]) && score[i] < 0) == absent);
    }
}

} // namespace entry_rows_test
