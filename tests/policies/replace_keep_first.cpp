// keep_first against a stack.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_keep_first.hpp>

#include "contracts/replacement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace replace_keep_first_test {

using namespace kvtl;

namespace {

struct stack_model {
    std::vector<std::uint32_t> order; ///< oldest first

    void tick() {}
    void admit(std::uint32_t h, resident_facts) { order.push_back(h); }
    void remove(std::uint32_t h) { order.erase(std::find(order.begin(), order.end(), h)); }
    void touch(std::uint32_t) {}
    void refresh(std::uint32_t, resident_facts) {}
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const {
        const auto it = std::find_if_not(order.rbegin(), order.rend(), pinned);
        return it == order.rend() ? none : *it;
    }
};

} // namespace

TEST_CASE("keep_first") {
    kvtl_test::replacement_contract<keep_first>({},
                                                [](std::uint32_t, std::uint32_t) { return stack_model{}; });
}

TEST_CASE("drop_after_use") {
    kvtl_test::replacement_contract<drop_after_use>(
        {}, [](std::uint32_t, std::uint32_t) { return stack_model{}; });
}

} // namespace replace_keep_first_test
