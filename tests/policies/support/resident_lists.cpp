// Lists over resident handles against plain vectors; the share of frames that a percentage is.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/resident_lists.hpp>

#include "support/guarded_bytes.hpp"
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace resident_lists_test {

using kvtl::none, kvtl::resident_lists;

namespace {
/// From the least recent on.
std::vector<std::uint32_t> walk(const resident_lists& lists, std::uint32_t list) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t h = lists.back(list); h != none; h = lists.towards_front(list, h)) all.push_back(h);
    return all;
}
} // namespace

TEST_CASE("random operations on three lists are those on three vectors") {
    constexpr std::uint32_t handles = 40;
    kvtl_test::guarded_bytes memory(resident_lists::bytes(handles, 3));
    resident_lists lists(handles, 3, memory.memory());
    std::vector<std::vector<std::uint32_t>> model(3); // least recent first
    std::vector<std::uint32_t> in(handles, none);
    oracle::generator random(6);
    const auto take_out = [&](std::uint32_t h) {
        auto& from = model[in[h]];
        from.erase(std::find(from.begin(), from.end(), h));
        in[h] = none;
    };
    for (int i = 0; i < 4000; ++i) {
        const auto h = static_cast<std::uint32_t>(random.below(handles)),
                   list = static_cast<std::uint32_t>(random.below(3));
        if (in[h] == none) {
            const bool front = random.below(2) == 0;
            auto& to = model[list];
            if (!front && !to.empty() && random.below(2) == 0) { // beside another, towards the front
                const std::uint32_t at = to[random.below(to.size())];
                lists.push_before(at, h);
                to.insert(std::find(to.begin(), to.end(), at) + 1, h);
            } else if (front) {
                lists.push_front(list, h);
                to.push_back(h);
            } else {
                lists.push_back(list, h);
                to.insert(to.begin(), h);
            }
            in[h] = list;
        } else if (random.below(3) == 0) {
            const std::uint32_t own = in[h];
            take_out(h);
            lists.move_front(own, h);
            model[own].push_back(h);
            in[h] = own;
        } else {
            take_out(h);
            lists.remove(h);
        }
        for (std::uint32_t l = 0; l < 3; ++l) REQUIRE(walk(lists, l) == model[l]);
    }
    CHECK(memory.intact());
}

TEST_CASE("lists hold numbers, no addresses: a copy of their memory is a copy of them") {
    std::vector<std::byte> memory(resident_lists::bytes(5, 2)), elsewhere(memory.size());
    resident_lists lists(5, 2, memory), other(5, 2, elsewhere);
    for (const std::uint32_t h : {3U, 1U, 4U}) lists.push_front(1, h);
    std::memcpy(elsewhere.data(), memory.data(), memory.size());
    CHECK(walk(other, 1) == std::vector<std::uint32_t>{3, 1, 4});
    CHECK(walk(other, 0).empty());
}

TEST_CASE("share_of: a percentage of the frames, at least one unless it is none") {
    CHECK(kvtl::share_of(200, 10) == 20);
    CHECK(kvtl::share_of(5, 10) == 1);
    CHECK(kvtl::share_of(5, 0) == 0);
    CHECK(kvtl::share_of(0, 10) == 0);
    CHECK(kvtl::share_of(5, 250) == 5);
    CHECK(kvtl::share_of(4'000'000'000U, 100) == 4'000'000'000U);
}

} // namespace resident_lists_test
