// Numbers per entry, column by column in blocks of 16 entries: what is set is what is scored.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/entry_columns.hpp>
#include <kvtl/slots/index.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace entry_columns_test {

using namespace kvtl;

TEST_CASE_TEMPLATE("scores are products with what was set, whatever the sizes; absent entries are lowest", E,
                   float, f16) {
    for (const std::uint32_t units : {1U, 5U, 16U, 33U})
        for (const std::uint32_t entries : {1U, 3U, 16U})
            for (const std::uint32_t width : {1U, 8U, 70U}) {
                CAPTURE(units);
                CAPTURE(entries);
                CAPTURE(width);
                const detail::entry_columns<E> columns{width};
                summary_view view;
                view.shape.max_entries = entries;
                view.stride = columns.unit_bytes(view.shape);
                const std::size_t numbers = (units * view.stride + columns.tail_bytes()) / sizeof(E);
                std::vector<E> memory(numbers + 8, from_float<E>(77.0F));
                view.unit = reinterpret_cast<std::byte*>(memory.data());
                // The first number is set by itself, the others are products with rows.
                const oracle::table<float> basis(width, 12, 15, width);
                std::vector<double> kept;
                std::vector<unit_record> unit(units);
                for (std::uint32_t u = 0; u < units; ++u) {
                    unit[u].entries = 1 + u % entries;
                    for (std::uint32_t i = 0; i < entries; ++i) {
                        const auto x = oracle::normal_values(12, u * 100 + i);
                        columns.set_products(view, u, i, 0, x.data(), basis.view());
                        columns.set(view, u, i, 0, x[0]);
                        for (std::uint32_t c = 0; c < width; ++c)
                            kept.push_back(oracle::value(from_float<E>(
                                c == 0
                                    ? x[0]
                                    : static_cast<float>(oracle::dot(x.data(), basis.view().row(c), 12)))));
                    }
                }
                for (std::size_t i = numbers; i < memory.size(); ++i) CHECK(to_float(memory[i]) == 77.0F);
                units_view table;
                table.unit = unit.data();
                table.count = units;
                table.max_entries = entries;
                table.summary = view;
                const std::size_t first = width / 3, some = width - first;
                const auto q = oracle::normal_values(2 * some, 5);
                std::vector<float> out(2 * units * entries + 4, 77.0F);
                columns.score(q.data(), 2, some, table, first, some, out.data());
                oracle::largest_error error;
                for (std::uint32_t g = 0; g < 2; ++g)
                    for (std::uint32_t u = 0; u < units; ++u)
                        for (std::uint32_t i = 0; i < entries; ++i) {
                            const std::size_t e = std::size_t{u} * entries + i;
                            const float got = out[g * units * entries + e];
                            double exact = 0, scale = 1;
                            for (std::size_t c = 0; c < some; ++c) {
                                const double term =
                                    static_cast<double>(q[g * some + c]) * kept[e * width + first + c];
                                exact += term, scale += std::fabs(term);
                            }
                            if (i < unit[u].entries)
                                error.relative(static_cast<double>(got), exact, scale);
                            else
                                CHECK((std::isinf(got) && got < 0));
                        }
                CHECK(error.value() < (std::is_same_v<E, float> ? 1e-5 : 1e-3));
                for (std::size_t i = out.size() - 4; i < out.size(); ++i) CHECK(out[i] == 77.0F);
            }
}

} // namespace entry_columns_test
