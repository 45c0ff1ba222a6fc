// page_format: records are aligned, do not overlap and fit, for many sizes and pages; ragged ones too.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/page_format.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace core_store_page_format_test {

using namespace kvtl;

namespace {

/// Calls body(format, device_page) for many shapes.
template <class Body> void each_format(bool ragged, const Body& body) {
    for (const std::uint32_t device_page : {4096U, 8192U, 16384U, 65536U})
        for (const std::uint32_t bytes :
             {2U,   4U,   6U,    62U,   68U,   84U,   128U,  160U,  192U,   200U,
              256U, 512U, 1022U, 1024U, 2000U, 2048U, 4096U, 8192U, 10000U, 65536U})
            for (const record_bytes b : {record_bytes{bytes, bytes}, record_bytes{bytes, 2 * bytes + 4}}) {
                CAPTURE(device_page);
                CAPTURE(b.key);
                CAPTURE(b.value);
                body(page_format::make(device_page, b, ragged), device_page);
            }
}

/// A page and, behind it, what nobody may touch.
struct guarded_page {
    std::vector<std::uint64_t> memory;
    std::byte* page;
    std::uint32_t bytes;
    explicit guarded_page(std::uint32_t n)
        : memory(n / 8 + 8, 0xEEEEEEEEEEEEEEEEU), page(reinterpret_cast<std::byte*>(memory.data())),
          bytes(n) {}
    [[nodiscard]] bool intact() const {
        return std::all_of(page + bytes, page + memory.size() * 8,
                           [](std::byte b) { return b == std::byte{0xEE}; });
    }
};

/// Bytes of a record that tell which it is.
std::vector<std::byte> content(std::uint32_t row, std::uint32_t bytes, std::uint32_t base) {
    std::vector<std::byte> out(bytes);
    for (std::uint32_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(base + row * 7 + i % 100);
    return out;
}

} // namespace

TEST_CASE("records of one size fit and do not overlap") {
    each_format(false, [](const page_format& f, std::uint32_t device_page) {
        REQUIRE(f.rows >= 1);
        CHECK(f.page_bytes % device_page == 0);
        CHECK(f.value_offset % 64 == 0);
        CHECK(f.bytes_of(1) == f.record.key + f.record.value);
        CHECK(f.rows * f.record.key <= f.value_offset);                  // keys end before the values begin
        CHECK(f.value_offset + f.rows * f.record.value <= f.page_bytes); // values end with the page
        const std::size_t keys = (f.rows + 1) * f.record.key, values = (f.rows + 1) * f.record.value;
        CHECK((keys + 63) / 64 * 64 + values > f.page_bytes); // no further entry fits
        if (f.page_bytes > device_page) {                     // larger only where one entry needs it
            CHECK(f.rows == 1);
            CHECK((f.record.key + 63) / 64 * 64 + f.record.value > f.page_bytes - device_page);
        }
    });
}

TEST_CASE("what is put into a row is found there, and nowhere else") {
    each_format(false, [](const page_format& f, std::uint32_t) {
        constexpr std::byte fill{0xEE};
        guarded_page memory(f.page_bytes);
        std::byte* page = memory.page;
        const std::uint32_t used = f.rows - f.rows / 3;
        for (std::uint32_t row = 0; row < used; ++row) {
            CHECK(f.takes(page, row, f.record));
            const auto k = content(row, f.record.key, 1), v = content(row, f.record.value, 120);
            f.put(page, row, {k.data(), v.data(), f.record});
        }
        CHECK_FALSE(f.takes(page, f.rows, f.record));
        const auto keys = f.keys(page, 0, used), values = f.values(page, 0, used);
        bool same = f.entries_in(page, used) == used && f.entries_in(page, f.rows + 5) == f.rows;
        for (std::uint32_t row = 0; row < used; ++row) {
            const auto k = content(row, f.record.key, 1), v = content(row, f.record.value, 120);
            same = same && std::memcmp(keys.record(row), k.data(), k.size()) == 0 &&
                   std::memcmp(values.slice(row, 1).record(0), v.data(), v.size()) == 0 &&
                   f.entry(page, row).key == f.key(page, row);
        }
        CHECK(same);
        const auto is = [&](std::byte b) { return [b](std::byte x) { return x == b; }; };
        const std::size_t keys_end = used * f.record.key, values_end = f.value_offset + used * f.record.value;
        CHECK(std::all_of(page + keys_end, page + f.value_offset, is(fill)));
        CHECK(std::all_of(page + values_end, page + f.page_bytes, is(fill)));
        f.pad(page, used);
        CHECK(std::all_of(page + keys_end, page + f.value_offset, is(std::byte{0})));
        CHECK(std::all_of(page + values_end, page + f.page_bytes, is(std::byte{0})));
        CHECK(memory.intact());
        CHECK(*keys.record(0) == content(0, 1, 1)[0]);
        CHECK(*values.record(used - 1) == content(used - 1, 1, 120)[0]);
    });
}

TEST_CASE("ragged records: as many as fit, in order, each with its own size") {
    oracle::generator random(3);
    each_format(true, [&](const page_format& f, std::uint32_t device_page) {
        REQUIRE(f.rows >= 1);
        CHECK(f.page_bytes % device_page == 0);
        guarded_page memory(f.page_bytes);
        std::byte* page = memory.page;
        f.begin(page);
        CHECK(f.entries_in(page, 1000) == 0);
        std::vector<record_bytes> sizes;
        for (;;) {
            const record_bytes b{static_cast<std::uint32_t>(random.below(f.record.key + 1)),
                                 static_cast<std::uint32_t>(random.below(f.record.value + 1))};
            const auto n = static_cast<std::uint32_t>(sizes.size());
            if (!f.takes(page, n, b)) break;
            const auto k = content(n, b.key, 1), v = content(n, b.value, 120);
            f.put(page, n, {k.data(), v.data(), b});
            sizes.push_back(b);
        }
        CHECK(sizes.size() >= f.rows); // the format promises no more than records at their largest
        f.pad(page, 0);
        CHECK(memory.intact());
        const auto n = static_cast<std::uint32_t>(sizes.size());
        REQUIRE(f.entries_in(page, 1) == n);
        const auto keys = f.keys(page, 0, n), values = f.values(page, 0, n);
        bool same = true;
        for (std::uint32_t row = 0; row < n; ++row) {
            const auto k = content(row, sizes[row].key, 1), v = content(row, sizes[row].value, 120);
            const entry_record e = f.entry(page, row);
            same = same && e.bytes.key == sizes[row].key && e.bytes.value == sizes[row].value &&
                   std::equal(k.begin(), k.end(), e.key) && std::equal(v.begin(), v.end(), e.value) &&
                   keys.slice(row, 1).record(0) == e.key && values.record(row) == e.value;
        }
        CHECK(same);
    });
}

TEST_CASE("pages of keys and pages of values: twice the rows, an entry lies in one of each") {
    for (const std::uint32_t bytes : {128U, 160U, 2048U, 6000U}) {
        CAPTURE(bytes);
        const record_bytes b{bytes, bytes};
        const auto f = page_format::split(4096, b), values = page_format::values_only(4096, b);
        CHECK(f.page_bytes == values.page_bytes);
        CHECK(f.rows == values.rows);
        CHECK(f.bytes_of(1) == 2 * bytes);
        CHECK(values.bytes_of(1) == bytes);
        std::vector<std::uint64_t> memory(f.page_bytes / 8, ~std::uint64_t{0});
        auto* page = reinterpret_cast<std::byte*>(memory.data());
        CHECK(f.key(page, f.rows - 1) == f.value(page, f.rows - 1));
        f.pad(page, f.rows);
        const std::size_t used = std::size_t{f.rows} * bytes;
        CHECK(std::all_of(page, page + used, [](std::byte x) { return x == std::byte{0xff}; }));
        CHECK(std::all_of(page + used, page + f.page_bytes, [](std::byte x) { return x == std::byte{0}; }));
    }
}

TEST_CASE("keys and values of different sizes have pages of their own as well, padded behind each") {
    const record_bytes b{96, 160};
    const auto f = page_format::split(4096, b, 4);
    CHECK(f.rows == 4096 / 160 * 4);
    for (const bool of_keys : {true, false}) {
        std::vector<std::byte> page(f.page_bytes, std::byte{0xff});
        f.pad_field(page.data(), f.rows, of_keys);
        const std::size_t used = f.rows / 4 * std::size_t{of_keys ? b.key : b.value};
        CHECK(page[used - 1] == std::byte{0xff});
        CHECK(std::all_of(page.begin() + static_cast<std::ptrdiff_t>(used), page.end(),
                          [](std::byte x) { return x == std::byte{0}; }));
    }
}

TEST_CASE("where entries share a record rows are whole granules") {
    for (const std::uint32_t granule : {2U, 8U, 32U}) {
        CAPTURE(granule);
        const record_bytes b{100, 60};
        const auto one = page_format::make(4096, b), many = page_format::make(4096, b, false, granule);
        CHECK(many.page_bytes == one.page_bytes);
        CHECK(many.rows == one.rows * granule);
        CHECK(many.value_offset == one.value_offset);
        CHECK(many.bytes_of(3 * granule) == 3 * b.entry());
        CHECK(many.pages_for(many.rows + granule) == 2);
        std::vector<std::byte> page(many.page_bytes);
        const records_view keys = many.keys(page.data(), 2 * granule, 3 * granule);
        CHECK(keys.count == 3 * granule);
        CHECK(keys.record(1) == page.data() + 3 * b.key);
        CHECK(keys.slice(granule, granule).record(0) == keys.record(1));
        CHECK(keys.slice(granule, granule).count == granule);
        CHECK(many.value(page.data(), 5 * granule) == page.data() + many.value_offset + 5 * b.value);
        const auto packed = page_format::packed(b, 4 * granule, false, granule);
        CHECK(packed.value_offset == 448); // 4 * 100, to the next 64
        CHECK(packed.page_bytes == 448 + 256);
    }
}

TEST_CASE("known shapes") {
    const auto f = page_format::make(4096, {128, 128}); // sixteen keys, sixteen values, no gap
    CHECK(f.rows == 16);
    CHECK(f.value_offset == 2048);
    CHECK(f.pages_for(0) == 0);
    CHECK(f.pages_for(1) == 1);
    CHECK(f.pages_for(16) == 1);
    CHECK(f.pages_for(17) == 2);
    CHECK(page_format::make(4096, {2048, 2048}).rows == 1);
    CHECK(page_format::make(4096, {2050, 2050}).page_bytes == 8192);
    CHECK(page_format::make(4096, {68, 68}).rows == 30);
    CHECK(page_format::make(4096, {68, 68}, true).rows == 28); // a header of 8 bytes, 8 for each entry
}

} // namespace core_store_page_format_test
