// The bytes of a saved file: a checksum knows whose it is, and a table that cannot be is none.
// SPDX-License-Identifier: MIT
#include <kvtl/save/saved_format.hpp>

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string>

namespace save_saved_format_test {

using namespace kvtl;

TEST_CASE("a checksum tells files, kinds, indices, blocks, generations and bytes apart") {
    std::vector<std::byte> bytes(4096, std::byte{7});
    const auto sum = [&](std::uint64_t a, std::uint64_t b, saved_owner owner) {
        return saved_checksum({a, b}, owner, bytes);
    };
    std::set<std::uint64_t> seen;
    for (std::uint32_t i = 0; i < 50; ++i) {
        seen.insert(sum(i, 0, {}));
        seen.insert(sum(0, i + 1, {}));
        seen.insert(sum(0, 0, {section_kind::identity, i + 1, 0, 0}));
        seen.insert(sum(0, 0, {section_kind::identity, 0, i + 1, 0}));
        seen.insert(sum(0, 0, {section_kind::identity, 0, 0, i + 1}));
    }
    for (std::uint32_t kind = 1; kind <= static_cast<std::uint32_t>(section_kind::hot); ++kind)
        seen.insert(sum(0, 0, {static_cast<section_kind>(kind), 0, 0, 0}));
    CHECK(seen.size() == 250 + 7);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] ^= std::byte{16};
        seen.insert(sum(0, 0, {}));
        bytes[i] ^= std::byte{16};
    }
    CHECK(seen.size() == 250 + 7 + 4096);
}

TEST_CASE("the value of a checksum is part of the format") {
    std::vector<std::byte> bytes(4096);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
    CHECK(saved_checksum({1, 2}, {section_kind::lane, 3, 4, 5}, bytes) == 11512698162179664092U);
}

TEST_CASE("kinds have names") {
    for (std::uint32_t kind = 0; kind <= static_cast<std::uint32_t>(section_kind::hot); ++kind)
        CHECK(std::string(name_of(static_cast<section_kind>(kind))) != "unknown section");
    CHECK(std::string(name_of(section_kind::page_image)) == "page image");
    CHECK(std::string(name_of(static_cast<section_kind>(99))) == "unknown section");
}

TEST_CASE("a superblock stands in its own block") {
    saved_superblock s{.file_id = {1, 2}, .generation = 5, .page_bytes = 4096};
    s.checksum = superblock_checksum(s);
    CHECK(check_superblock(s, 1).ok());
    CHECK(check_superblock(s, 0).code() == errc::corrupt);
    s.tokens = 1;
    CHECK(check_superblock(s, 1).code() == errc::corrupt);
}

TEST_CASE("a table reads back, and one that says what cannot be does not") {
    saved_table table;
    table.sections = {{section_kind::lane, 0, 5000, 0, 2},
                      {section_kind::pages, 1, 32, 2, 1},
                      {section_kind::note, 0, 0, 3, 0}};
    table.pieces = {{2, 4096, 1, 1}, {9, 904, 1, 2}, {4, 32, 1, 3}};
    std::uint64_t used = 0;
    const auto parse = [&](const saved_table& t, std::uint32_t blocks = 10) {
        const auto bytes = root_bytes(t, 4096, used);
        CHECK(bytes.size() == 4096);
        return parse_root(std::span(bytes).first(used), 4096, blocks);
    };
    const auto good = parse(table);
    REQUIRE(good.has_value());
    CHECK(good->sections.size() == 3);
    CHECK(good->pieces[1].block == 9);
    CHECK_FALSE(parse(table, 9).has_value());
    const auto check_refused = [&](auto change) {
        saved_table bad = table;
        change(bad);
        CHECK_FALSE(parse(bad).has_value());
    };
    check_refused([](saved_table& t) { t.sections[0].kind = section_kind::page_image; });
    check_refused([](saved_table& t) { t.sections[0].kind = static_cast<section_kind>(77); });
    check_refused([](saved_table& t) { ++t.sections[0].bytes; });
    check_refused([](saved_table& t) { t.sections[1].first_piece = 1; });
    check_refused([](saved_table& t) { t.sections[1].pieces = 0xFFFFFFFFU; });
    check_refused([](saved_table& t) { t.sections.pop_back(), t.sections.pop_back(); });
    check_refused([](saved_table& t) { t.pieces[0].block = 1; });
    check_refused([](saved_table& t) { t.pieces[0].block = 0xFFFFFFFFU; });
    check_refused([](saved_table& t) { t.pieces[2].bytes = 0; });
    check_refused([](saved_table& t) { t.sections[1].bytes = t.pieces[2].bytes = 33; });
    check_refused([](saved_table& t) {
        t.pieces.assign(100, {2, 4096, 1, 1}); // more than the file has
        t.sections = {{section_kind::lane, 0, 409600, 0, 100}};
    });
    const auto bytes = root_bytes(table, 4096, used);
    for (std::size_t n = 0; n < used; ++n)
        CHECK_FALSE(parse_root(std::span(bytes).first(n), 4096, 10).has_value());
    CHECK_FALSE(parse_root(bytes, 4096, 10).has_value());
}

} // namespace save_saved_format_test
