// expected_weight against its definition, with the covariance of the queries written out.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_expected_weight.hpp>

#include "contracts/retention.hpp"

namespace retain_expected_weight_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

TEST_CASE("expected_weight: softmax of mu . k + k' Sigma k / 2, times the length of the value") {
    ranks_prompts_contract<expected_weight>({}, 5e-5, [](const auto& lane) {
        const std::uint32_t dim = lane.size().dim, seen = lane.observed();
        const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
        numbers score(lane.size().tokens, 0.0);
        for (std::uint32_t g = 0; g < lane.size().group; ++g) {
            numbers mean(dim, 0.0), covariance(std::size_t{dim} * dim, 0.0);
            for (std::uint32_t w = 0; w < seen; ++w)
                for (std::uint32_t d = 0; d < dim; ++d) mean[d] += lane.query(w, g, d) / seen;
            for (std::uint32_t w = 0; w < seen; ++w)
                for (std::uint32_t i = 0; i < dim; ++i)
                    for (std::uint32_t j = 0; j < dim; ++j)
                        covariance[i * dim + j] +=
                            (lane.query(w, g, i) - mean[i]) * (lane.query(w, g, j) - mean[j]) / seen;
            numbers logit(score.size(), 0.0);
            double largest = -1e300, sum = 0;
            for (std::uint32_t t = lane.begin(); t < lane.end(); ++t) {
                for (std::uint32_t i = 0; i < dim; ++i) {
                    logit[t] += scale * mean[i] * lane.key(t, i);
                    double row = 0;
                    for (std::uint32_t j = 0; j < dim; ++j) row += covariance[i * dim + j] * lane.key(t, j);
                    logit[t] += scale * scale / 2 * lane.key(t, i) * row;
                }
                largest = std::max(largest, logit[t]);
            }
            for (std::uint32_t t = lane.begin(); t < lane.end(); ++t) sum += std::exp(logit[t] - largest);
            for (std::uint32_t t = lane.begin(); t < lane.end(); ++t)
                score[t] += std::exp(logit[t] - largest) / sum / lane.size().group;
        }
        for (std::uint32_t t = lane.begin(); t < lane.end(); ++t) {
            double square = 0;
            for (std::uint32_t d = 0; d < dim; ++d) square += lane.value(t, d) * lane.value(t, d);
            score[t] *= std::sqrt(square);
        }
        return score;
    });
}

} // namespace retain_expected_weight_test
