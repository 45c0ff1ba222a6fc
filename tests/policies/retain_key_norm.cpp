// key_norm: minus the length of the key.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_key_norm.hpp>

#include "contracts/retention.hpp"

namespace retain_key_norm_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

TEST_CASE("key_norm") {
    ranks_arrivals_contract<key_norm>({}, 1e-6, [](const arriving& a, std::uint32_t head) {
        const float* k = &a.k[head * arrivals::dim];
        return -std::sqrt(oracle::dot(k, k, arrivals::dim));
    });
    struct stays {
        double score;
        [[nodiscard]] double worth(std::uint32_t) const { return score; }
    };
    ranks_held_contract<key_norm>({}, 0.0, [](std::uint32_t, double score) { return stays{score}; });
}

} // namespace retain_key_norm_test
