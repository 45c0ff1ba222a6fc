// keep_all: nothing is dropped, nothing is needed, nothing can be set.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_keep_all.hpp>
#include <kvtl/policies/retain_key_norm.hpp>
#include <kvtl/presets/full.hpp>

#include <doctest/doctest.h>

namespace retain_keep_all_test {

using namespace kvtl;

namespace {
struct dropping : presets::full {
    using retention = drop<key_norm>;
};
} // namespace

TEST_CASE("keep_all asks for nothing, and a preset with it is one that keeps") {
    CHECK_FALSE(keep_all::drops);
    CHECK(needs_of<keep_all>() == engine_input::nothing);
    CHECK(feedback_of<keep_all>() == feedback::unused);
    CHECK(std::is_same_v<presets::full::retention, keep_all>);
    CHECK_FALSE(drops_entries<presets::full>);
    CHECK(drops_entries<dropping>);
}

} // namespace retain_keep_all_test
