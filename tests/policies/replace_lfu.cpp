// lfu against a search for the smallest count.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_lfu.hpp>

#include "support/replacement_models.hpp"

namespace replace_lfu_test {

using namespace kvtl;

namespace {
constexpr auto nothing_pinned = [](std::uint32_t) { return false; };
}

TEST_CASE("lfu") {
    kvtl_test::replacement_contract<lfu>({},
                                         [](std::uint32_t, std::uint32_t) { return kvtl_test::lfu_model{}; });
}

TEST_CASE("lfu with units that come back") {
    kvtl_test::same_on_all_traces<lfu>({}, [](std::uint32_t) { return kvtl_test::lfu_model{}; });
}

TEST_CASE("as many frequencies as there are units") {
    using state = lfu::state;
    constexpr std::uint32_t handles = 12;
    kvtl_test::guarded_bytes memory(state::bytes(handles, 1));
    state s({}, handles, 1, memory.memory());
    for (std::uint32_t h = 0; h < handles; ++h) {
        s.admit(h, {});
        for (std::uint32_t i = 0; i < handles - h; ++i) s.touch(h);
    }
    for (std::uint32_t h = handles; h-- > 0;) { // the last one was used least
        CHECK(s.victim(nothing_pinned) == h);
        s.remove(h);
    }
    CHECK(memory.intact());
}

TEST_CASE("a count does not survive leaving, and equals leave in the order of their last use") {
    using state = lfu::state;
    kvtl_test::guarded_bytes memory(state::bytes(4, 1));
    state s({}, 4, 1, memory.memory());
    s.admit(0, {});
    for (int i = 0; i < 9; ++i) s.touch(0);
    s.admit(1, {});
    s.admit(2, {});
    s.touch(1);
    s.touch(2);
    s.remove(0);
    s.admit(0, {});
    CHECK(s.victim(nothing_pinned) == 0);
    s.touch(0);
    CHECK(s.victim(nothing_pinned) == 1);
}

} // namespace replace_lfu_test
