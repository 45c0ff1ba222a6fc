// latest_attention: what the latest query pays, and nothing before it.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_latest_attention.hpp>

#include "contracts/retention.hpp"

namespace retain_latest_attention_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

TEST_CASE("latest_attention: of a prompt the last query counts, averaged over the heads of the group") {
    ranks_prompts_contract<latest_attention>({}, 1e-5, [](const auto& lane) {
        numbers mean(lane.size().tokens, 0.0);
        for (std::uint32_t g = 0; g < lane.size().group; ++g) {
            const numbers p = lane.attention(lane.observed() - 1, g);
            for (std::size_t t = 0; t < p.size(); ++t) mean[t] += p[t] / lane.size().group;
        }
        return mean;
    });
    CHECK(latest_attention::decides_together);
}

TEST_CASE("latest_attention: in decode every step ranks anew") {
    struct latest {
        double last;
        void feed(std::uint32_t, double mass) { last = mass; }
        [[nodiscard]] double worth(std::uint32_t) const { return last; }
    };
    ranks_held_contract<latest_attention>({}, 0.0, [](std::uint32_t, double score) { return latest{score}; });
}

} // namespace retain_latest_attention_test
