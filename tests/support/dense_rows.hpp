// Attention by definition: of one token, in double precision, over every earlier one. Compiled once, with optimisations of
// its own: it is half of what the tests of managers do.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvtl_test {

/// What attention is asked for; zeros are the usual rule.
struct dense_rule {
    kvtl::shape shape;
    double scale = 0;             ///< of logits; 0: 1 / sqrt(D)
    double softcap = 0;           ///< above 0: logits are softcap tanh(logit / softcap)
    std::size_t reach = 0;        ///< above 0: only so many latest tokens are seen
    std::span<const float> sinks; ///< (HQ) logits that join the softmax without a value, or empty
};

/// Attention of token t over tokens 0 to t. q: (HQ, D), keys and values: (t + 1, H, D). Returns (HQ, D).
[[nodiscard]] std::vector<double> dense_rows(const dense_rule& rule, std::size_t t, const float* q,
                                             const float* keys, const float* values);

} // namespace kvtl_test
