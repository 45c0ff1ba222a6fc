// sieve against a queue with a place for the hand.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_sieve.hpp>

#include "support/replacement_models.hpp"

namespace replace_sieve_test {

using namespace kvtl;

TEST_CASE("sieve") {
    kvtl_test::replacement_contract<sieve>(
        {}, [](std::uint32_t, std::uint32_t) { return kvtl_test::sieve_model{}; });
}

TEST_CASE("sieve with units that come back") {
    kvtl_test::same_on_all_traces<sieve>({}, [](std::uint32_t) { return kvtl_test::sieve_model{}; });
}

TEST_CASE("the hand goes on where it stopped and spares what was visited, once") {
    using state = sieve::state;
    kvtl_test::guarded_bytes memory(state::bytes(8, 1));
    state s({}, 8, 1, memory.memory());
    const auto nothing_pinned = [](std::uint32_t) { return false; };
    const auto evict = [&] {
        const std::uint32_t h = s.victim(nothing_pinned);
        CHECK(s.victim(nothing_pinned) == h); // asking again changes nothing
        s.remove(h);
        return h;
    };
    for (std::uint32_t h = 0; h < 5; ++h) s.admit(h, {});
    for (const std::uint32_t h : {0U, 1U, 3U}) s.touch(h);
    CHECK(evict() == 2); // 0 and 1 lose their bits
    s.touch(0);
    CHECK(evict() == 4); // past 3, which loses its bit
    s.admit(5, {});      // a hand that went off the newest begins again at the oldest
    CHECK(evict() == 1); // past 0
    CHECK(s.victim([](std::uint32_t h) { return h == 3; }) == 5);
    CHECK(evict() == 5); // the hand has passed 3
    CHECK(evict() == 0);
    CHECK(evict() == 3);
}

} // namespace replace_sieve_test
