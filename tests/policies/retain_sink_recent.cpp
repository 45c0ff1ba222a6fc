// sink_recent: the later, the better.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_sink_recent.hpp>

#include "contracts/retention.hpp"

namespace retain_sink_recent_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

TEST_CASE("sink_recent: minus the age, in prompt and decode") {
    ranks_prompts_contract<sink_recent>({}, 0.0, [](const auto& lane) {
        numbers score;
        for (std::uint32_t t = 0; t < lane.size().tokens; ++t) score.push_back(t + 1.0 - lane.size().tokens);
        return score;
    });
    struct ages {
        std::uint32_t token;
        [[nodiscard]] double worth(std::uint32_t now) const { return -static_cast<double>(now - token); }
    };
    ranks_held_contract<sink_recent>({}, 0.0, [](std::uint32_t token, double) { return ages{token}; });
}

} // namespace retain_sink_recent_test
