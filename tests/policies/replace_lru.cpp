// lru against a list that is searched from the front.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_lru.hpp>

#include "contracts/replacement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace replace_lru_test {

using namespace kvtl;

namespace {

struct lru_model {
    std::vector<std::uint32_t> order; ///< least recent first

    void tick() {}
    void admit(std::uint32_t h, resident_facts) { order.push_back(h); }
    void remove(std::uint32_t h) { order.erase(std::find(order.begin(), order.end(), h)); }
    void touch(std::uint32_t h) {
        remove(h);
        order.push_back(h);
    }
    void refresh(std::uint32_t h, resident_facts) { touch(h); }
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const {
        const auto it = std::find_if_not(order.begin(), order.end(), pinned);
        return it == order.end() ? none : *it;
    }
};

} // namespace

TEST_CASE("lru") {
    kvtl_test::replacement_contract<lru>({}, [](std::uint32_t, std::uint32_t) { return lru_model{}; });
}

} // namespace replace_lru_test
