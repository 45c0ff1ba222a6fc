// lifo against a stack.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_lifo.hpp>

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

TEST_CASE("lifo") {
    kvtl_test::replacement_contract<lifo>({}, [](std::uint32_t, std::uint32_t) { return stack_model{}; });
}

TEST_CASE("no_caching") {
    kvtl_test::replacement_contract<no_caching>({},
                                                [](std::uint32_t, std::uint32_t) { return stack_model{}; });
}

} // namespace replace_keep_first_test
