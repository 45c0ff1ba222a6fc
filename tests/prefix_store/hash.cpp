// The hash of prefixes against its definition in wider integers, and the names of spaces.
// SPDX-License-Identifier: MIT
#include <kvtl/store/prefix_hash.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace prefix_hash_test {

TEST_CASE("the hash is two polynomials over 2^61 - 1") {
    __extension__ using wide = unsigned __int128;
    constexpr std::uint64_t prime = (std::uint64_t{1} << 61) - 1;
    std::mt19937_64 random(1);
    // bases: of the hash of one token behind a hash of 1
    const auto zero = kvtl::prefix_hash::next({0, 0}, 0);
    CHECK(zero == kvtl::hash128{1, 1});
    const kvtl::hash128 bases = {kvtl::prefix_hash::next({1, 0}, 0)[0] - 1,
                                 kvtl::prefix_hash::next({0, 1}, 0)[1] - 1};
    CHECK(bases[0] != bases[1]);
    kvtl::hash128 h{}, expected{};
    for (int i = 0; i < 100000; ++i) {
        const auto token = static_cast<std::uint32_t>(i % 7 == 0 ? 0xFFFFFFFF : random());
        h = kvtl::prefix_hash::next(h, token);
        for (std::size_t p = 0; p < 2; ++p)
            expected[p] = static_cast<std::uint64_t>((wide{expected[p]} * bases[p] + token + 1) % prime);
        REQUIRE(h == expected);
        if (i % 1000 == 0) h = expected = {prime - 1 - random() % 3, random() % prime}; // the largest, too
    }
}

TEST_CASE("models and spaces begin with hashes of their own") {
    std::set<kvtl::hash128> all;
    const std::vector<kvtl::prefix_space> spaces = {{},
                                                    {.tenant = "a"},
                                                    {.adapter = "a"},
                                                    {.input = "a"},
                                                    {.tenant = "a", .adapter = "a"},
                                                    {.tenant = "aa"},
                                                    {.tenant = std::string(1, '\0')}};
    for (const std::uint64_t model : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
        for (const auto& space : spaces) all.insert(kvtl::prefix_hash::begin(model, space));
    CHECK(all.size() == 3 * spaces.size());
}

} // namespace prefix_hash_test
