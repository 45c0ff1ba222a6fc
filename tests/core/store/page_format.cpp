// page_format: rows are aligned, do not overlap and fit, for many widths, element types and pages.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/page_format.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

using namespace kvtl;

namespace {

/// Calls body(format, device_page) for many shapes.
template <element E, class Body> void each_format(const Body& body) {
    for (const std::uint32_t device_page : {4096U, 8192U, 16384U, 65536U})
        for (const std::uint32_t width : {1U, 2U, 3U, 31U, 64U, 80U, 96U, 100U, 128U, 256U, 511U, 512U, 1000U,
                                          1024U, 2048U, 4096U, 5000U, 32768U}) {
            CAPTURE(device_page);
            CAPTURE(width);
            body(page_format<E>::make(device_page, width), device_page);
        }
}

} // namespace

TEST_CASE_TEMPLATE("rows fit and do not overlap", E, float, f16, bf16) {
    each_format<E>([](const page_format<E>& f, std::uint32_t device_page) {
        REQUIRE(f.rows >= 1);
        CHECK(f.page_bytes % device_page == 0);
        CHECK(f.value_offset % 64 == 0);
        CHECK(f.row_bytes() == f.width * sizeof(E));
        CHECK(f.entry_bytes() == 2 * f.row_bytes());
        CHECK(f.rows * f.row_bytes() <= f.value_offset);                // keys end before the values begin
        CHECK(f.value_offset + f.rows * f.row_bytes() <= f.page_bytes); // values end with the page
        const std::size_t keys = (f.rows + 1) * f.row_bytes();
        CHECK((keys + 63) / 64 * 64 + keys > f.page_bytes); // no further row fits
        if (f.page_bytes > device_page) {                   // larger only where one entry needs it
            CHECK(f.rows == 1);
            CHECK((f.row_bytes() + 63) / 64 * 64 + f.row_bytes() > f.page_bytes - device_page);
        }
    });
}

TEST_CASE_TEMPLATE("what is put into a row is found there, and nowhere else", E, float, f16, bf16) {
    each_format<E>([](const page_format<E>& f, std::uint32_t) {
        constexpr std::byte fill{0xEE};
        std::vector<std::uint64_t> memory(f.page_bytes / 8 + 8);
        auto* page = reinterpret_cast<std::byte*>(memory.data());
        std::memset(page, 0xEE, memory.size() * 8);
        std::vector<E> k(f.width), v(f.width);
        const std::uint32_t used = f.rows - f.rows / 3;
        const auto number = [](std::uint32_t row, std::uint32_t d, float base) {
            return from_float<E>(base + static_cast<float>((row * 7 + d) % 100));
        };
        for (std::uint32_t row = 0; row < used; ++row) {
            for (std::uint32_t d = 0; d < f.width; ++d) {
                k[d] = number(row, d, 1.0F);
                v[d] = number(row, d, -120.0F);
            }
            f.put(page, row, k.data(), v.data());
        }
        bool same = true;
        for (std::uint32_t row = 0; row < used; ++row)
            for (std::uint32_t d = 0; d < f.width; ++d)
                same = same && f.key(page, row)[d] == number(row, d, 1.0F) &&
                       f.value(page, row)[d] == number(row, d, -120.0F);
        CHECK(same);
        const auto is = [&](std::byte b) { return [b](std::byte x) { return x == b; }; };
        CHECK(std::all_of(page + used * f.row_bytes(), page + f.value_offset, is(fill)));
        CHECK(std::all_of(page + f.value_offset + used * f.row_bytes(), page + f.page_bytes, is(fill)));
        f.pad(page, used);
        CHECK(std::all_of(page + used * f.row_bytes(), page + f.value_offset, is(std::byte{0})));
        CHECK(
            std::all_of(page + f.value_offset + used * f.row_bytes(), page + f.page_bytes, is(std::byte{0})));
        CHECK(std::all_of(page + f.page_bytes, page + memory.size() * 8, is(fill)));
        CHECK(f.key(page, 0)[f.width - 1] == number(0, f.width - 1, 1.0F));
        CHECK(f.value(page, used - 1)[0] == number(used - 1, 0, -120.0F));
    });
}

TEST_CASE("a head's keys are a column of the lane's rows") {
    const auto f = page_format<f16>::make(4096, 3 * 16);
    std::vector<std::uint64_t> memory(4096 / 8);
    auto* page = reinterpret_cast<std::byte*>(memory.data());
    const auto keys = f.keys(page, 5, 2, 16), values = f.values(page, 5, 2, 16);
    CHECK(keys.count == 5);
    CHECK(keys.dim == 16);
    CHECK(keys.row(4) == f.key(page, 4) + 32);
    CHECK(values.row(3) == f.value(page, 3) + 32);
}

TEST_CASE("pages of keys and pages of values: twice the rows, an entry lies in one of each") {
    for (const std::uint32_t width : {64U, 80U, 1024U, 3000U}) {
        CAPTURE(width);
        const auto f = page_format<f16>::split(4096, width),
                   values = page_format<f16>::values_only(4096, width);
        CHECK(f.page_bytes == values.page_bytes);
        CHECK(f.rows == values.rows);
        CHECK(f.entry_bytes() == 2 * f.row_bytes());
        CHECK(values.entry_bytes() == values.row_bytes());
        std::vector<std::uint64_t> memory(f.page_bytes / 8, ~std::uint64_t{0});
        auto* page = reinterpret_cast<std::byte*>(memory.data());
        CHECK(f.key(page, f.rows - 1) == f.value(page, f.rows - 1));
        f.pad(page, f.rows);
        const std::size_t used = f.rows * f.row_bytes();
        CHECK(std::all_of(page, page + used, [](std::byte b) { return b == std::byte{0xff}; }));
        CHECK(std::all_of(page + used, page + f.page_bytes, [](std::byte b) { return b == std::byte{0}; }));
    }
}

TEST_CASE("known shapes") {
    const auto f = page_format<f16>::make(4096, 64); // 128-byte rows: sixteen keys, sixteen values, no gap
    CHECK(f.rows == 16);
    CHECK(f.value_offset == 2048);
    CHECK(f.pages_for(0) == 0);
    CHECK(f.pages_for(1) == 1);
    CHECK(f.pages_for(16) == 1);
    CHECK(f.pages_for(17) == 2);
    CHECK(page_format<f16>::make(4096, 1024).rows == 1);
    CHECK(page_format<f16>::make(4096, 1025).page_bytes == 8192);
}
