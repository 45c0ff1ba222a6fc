// The page checksum: its value is part of the file format, and it must see what flash does to pages.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/checksum.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <set>

namespace simd_checksum_test {

namespace simd = kvtl::simd;

namespace {

/// The definition, one word at a time; `kept` lanes are left.
std::uint64_t plain_fold(const std::byte* page, std::size_t bytes, std::size_t kept) {
    const auto step = [](std::uint32_t h, std::uint32_t word) {
        return (((h << 13) | (h >> 19)) ^ word) * 2654435761U;
    };
    std::uint32_t lane[64];
    for (std::uint32_t i = 0; i < 64; ++i)
        lane[i] = 0x85EBCA77U * (i + 1) + static_cast<std::uint32_t>(bytes);
    for (std::size_t i = 0; i < bytes / 4; ++i) {
        std::uint32_t word = 0;
        std::memcpy(&word, page + 4 * i, 4);
        lane[i % 64] = step(lane[i % 64], word);
    }
    for (std::size_t half = 32; half >= kept; half /= 2)
        for (std::size_t i = 0; i < half; ++i) lane[i] = step(lane[i], lane[i + half]);
    std::uint64_t sum = 0;
    for (std::size_t i = kept; i-- > 0;) sum = sum << 32 | (lane[i] ^ (lane[i] >> 15));
    return sum;
}
std::uint32_t plain_checksum(const std::byte* page, std::size_t bytes) {
    return static_cast<std::uint32_t>(plain_fold(page, bytes, 1));
}

std::vector<std::byte> random_page(std::size_t bytes, std::uint64_t seed) {
    oracle::generator random(seed);
    std::vector<std::byte> page(bytes);
    for (std::byte& b : page) b = static_cast<std::byte>(random.bits());
    return page;
}

} // namespace

TEST_CASE("the value is the definition's, at any length and alignment") {
    for (std::size_t bytes = 0; bytes <= 2048; bytes += 64)
        for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{7}}) {
            const auto page = random_page(bytes + offset, bytes);
            CHECK(simd::page_checksum(page.data() + offset, bytes) ==
                  plain_checksum(page.data() + offset, bytes));
            CHECK(simd::page_checksum64(page.data() + offset, bytes) ==
                  plain_fold(page.data() + offset, bytes, 2));
        }
}

TEST_CASE("the values in files stay what they are") {
    std::vector<std::byte> page(4096);
    CHECK(simd::page_checksum(page.data(), 4096) == 0xD241EF53U);
    for (std::size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(i * 7 + i / 256);
    CHECK(simd::page_checksum(page.data(), 4096) == 0x4C6BAD3DU);
}

TEST_CASE("every changed bit is seen") {
    auto page = random_page(4096, 1);
    const std::uint32_t good = simd::page_checksum(page.data(), 4096);
    for (std::size_t bit = 0; bit < 4096 * 8; ++bit) {
        page[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
        REQUIRE(simd::page_checksum(page.data(), 4096) != good);
        page[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
    CHECK(simd::page_checksum(page.data(), 4096) == good);
}

TEST_CASE("swapped words are seen, also when they differ in one bit only") {
    oracle::generator random(2);
    const auto swap_is_seen = [](std::vector<std::uint32_t>& words, std::size_t a, std::size_t b) {
        const auto sum = [&] {
            return simd::page_checksum(reinterpret_cast<const std::byte*>(words.data()), 4096);
        };
        const std::uint32_t before = sum();
        std::swap(words[a], words[b]);
        return sum() != before;
    };
    std::vector<std::uint32_t> words(1024);
    for (int round = 0; round < 20000; ++round) {
        const std::size_t a = random.below(1024);
        const std::size_t b =
            round % 2 == 0 ? (a + 64 * (1 + random.below(15))) % 1024 : (a + 1) % 1024; // same lane, next
        words[a] = static_cast<std::uint32_t>(random.bits());
        words[b] = words[a] ^ (1U << random.below(32)); // often the sign of a float
        REQUIRE(swap_is_seen(words, a, b));
    }
}

TEST_CASE("what flash does to pages: zeros, another page, shifted sectors, another length") {
    std::set<std::uint32_t> seen;
    const auto page = random_page(16384, 3);
    const std::vector<std::byte> zeros(16384), ones(16384, std::byte{0xFF});
    std::size_t sums = 0;
    const auto add = [&](const std::vector<std::byte>& bytes, std::size_t n) {
        seen.insert(simd::page_checksum(bytes.data(), n));
        ++sums;
    };
    for (std::size_t n = 64; n <= 16384; n += 64) {
        add(page, n);
        add(zeros, n);
        add(ones, n);
    }
    for (std::size_t sector = 0; sector < 32; ++sector) {
        auto damaged = page;
        std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(sector * 512), 512, std::byte{0});
        add(damaged, 16384);
        std::rotate(damaged.begin(), damaged.begin() + 512, damaged.end());
        add(damaged, 16384);
    }
    CHECK(seen.size() == sums);
}

} // namespace simd_checksum_test
