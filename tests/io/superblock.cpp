// SPDX-License-Identifier: MIT
#include <kvtl/io/superblock.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace io_superblock_test {

using namespace kvtl;

namespace {

std::vector<std::byte> bytes_of(const superblock& s) {
    const auto view = superblock_bytes(s);
    return {view.begin(), view.end()};
}

} // namespace

TEST_CASE("a superblock reads back") {
    const superblock s = make_superblock({16, 32, 8, 64}, 2, 0x1234567890ABCDEFU, 4096);
    auto bytes = bytes_of(s);
    bytes.resize(4096); // as it stands in a file
    const auto found = parse_superblock(bytes);
    REQUIRE(found.ok());
    CHECK(found->shape == s.shape);
    CHECK(found->element_bytes == 2);
    CHECK(found->page == 4096);
    CHECK(found->fingerprint == 0x1234567890ABCDEFU);
    CHECK(found->format == file_format_version);
    CHECK(validate_superblock(*found, s).ok());
}

TEST_CASE("every damaged bit is noticed") {
    const auto good = bytes_of(make_superblock({16, 32, 8, 64}, 2, 99, 4096));
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
        auto bad = good;
        bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
        CHECK_MESSAGE(!parse_superblock(bad).ok(), "bit ", bit);
    }
}

TEST_CASE("foreign, short and newer files say what they are") {
    const superblock s = make_superblock({16, 32, 8, 64}, 2, 99, 4096);
    const std::vector<std::byte> zeros(4096);
    CHECK(parse_superblock(zeros).error().code == errc::file_refused);
    CHECK(parse_superblock({}).error().code == errc::file_refused);
    CHECK(parse_superblock(zeros).error().message == "not a kvtl cache file; name another file");

    auto bytes = bytes_of(s);
    bytes.resize(20);
    CHECK(parse_superblock(bytes).error().code == errc::corrupt);

    superblock damaged = s;
    damaged.fingerprint = 1;
    CHECK(parse_superblock(bytes_of(damaged)).error().code == errc::corrupt);

    superblock newer = s;
    newer.format = file_format_version + 1;
    newer.checksum = superblock_checksum(newer);
    const auto refused = parse_superblock(bytes_of(newer));
    CHECK(refused.error().code == errc::file_refused);
    CHECK(refused.error().message.find("format 2") != std::string::npos);
}

TEST_CASE("a file of another model is told by the first field that differs") {
    const superblock here = make_superblock({16, 32, 8, 64}, 2, 99, 0);
    const auto why = [&](const superblock& there) {
        return std::string(validate_superblock(there, here).what());
    };
    CHECK(why(make_superblock({17, 32, 8, 64}, 2, 99)).find("layers is 17 there and 16 here") !=
          std::string::npos);
    CHECK(why(make_superblock({16, 40, 8, 64}, 2, 99)).find("query_heads is 40") != std::string::npos);
    CHECK(why(make_superblock({16, 32, 4, 64}, 2, 99)).find("kv_heads is 4") != std::string::npos);
    CHECK(why(make_superblock({16, 32, 8, 128}, 2, 99)).find("head_dim is 128") != std::string::npos);
    CHECK(why(make_superblock({16, 32, 8, 64}, 4, 99)).find("element_bytes is 4") != std::string::npos);
    CHECK(why(make_superblock({16, 32, 8, 64}, 2, 98)).find("another preset") != std::string::npos);
    CHECK(why(make_superblock({16, 32, 8, 64}, 2, 99, 16384)).empty()); // any page fits a zero page
    CHECK(validate_superblock(make_superblock({16, 32, 8, 64}, 2, 99, 4096),
                              make_superblock({16, 32, 8, 64}, 2, 99, 8192))
              .code() == errc::file_refused);
}

} // namespace io_superblock_test
