// slru against two queues.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_slru.hpp>

#include "support/replacement_models.hpp"

namespace replace_slru_test {

using namespace kvtl;

TEST_CASE("slru") {
    for (const std::uint32_t percent : {0U, 20U, 80U, 100U}) {
        CAPTURE(percent);
        const auto quota = [percent](std::uint32_t handles) {
            return percent == 0 ? 0 : std::max(1U, handles * percent / 100);
        };
        kvtl_test::replacement_contract<slru>(
            {.protected_percent = percent},
            [&](std::uint32_t handles, std::uint32_t) { return kvtl_test::slru_model{quota(handles)}; });
    }
}

TEST_CASE("slru with units that come back") {
    kvtl_test::same_on_all_traces<slru>(
        {.protected_percent = 50}, [](std::uint32_t frames) { return kvtl_test::slru_model{frames / 2}; });
}

TEST_CASE("a sweep does not reach units that were used twice") {
    using state = slru::state;
    kvtl_test::guarded_bytes memory(state::bytes(10, 1));
    state s({}, 10, 1, memory.memory());
    const auto nothing_pinned = [](std::uint32_t) { return false; };
    for (std::uint32_t h = 0; h < 10; ++h) {
        s.admit(h, {});
        if (h < 8) s.touch(h);
    }
    for (int i = 0; i < 30; ++i) {
        const std::uint32_t h = s.victim(nothing_pinned);
        CHECK(h >= 8);
        s.remove(h);
        s.admit(h, {});
    }
    s.touch(8); // a ninth one does not fit the share of eight: 0 goes back to probation
    s.remove(9);
    CHECK(s.victim(nothing_pinned) == 0);
    CHECK(s.victim([](std::uint32_t h) { return h == 0; }) == 1); // nothing else on probation
}

} // namespace replace_slru_test
