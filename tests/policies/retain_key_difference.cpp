// key_difference: minus the cosine to the mean of all keys' directions.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_key_difference.hpp>

#include "contracts/retention.hpp"

namespace retain_key_difference_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

TEST_CASE("key_difference") {
    ranks_prompts_contract<key_difference>({}, 2e-5, [](const auto& lane) {
        const auto [tokens, dim, group, sinks, window] = lane.size();
        numbers mean(dim, 0.0), score(tokens, 0.0);
        for (std::uint32_t t = 0; t < tokens; ++t)
            for (std::uint32_t d = 0; d < dim; ++d) mean[d] += lane.key(t, d) / lane.key_norm(t);
        double length = 0;
        for (const double x : mean) length += x * x;
        for (std::uint32_t t = 0; t < tokens; ++t)
            for (std::uint32_t d = 0; d < dim; ++d)
                score[t] -= mean[d] * lane.key(t, d) / std::sqrt(length) / lane.key_norm(t);
        return score;
    });
}

} // namespace retain_key_difference_test
