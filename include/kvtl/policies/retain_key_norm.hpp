// Score: the negative norm of the key. Keys with a small norm tend to get more attention ("A Simple and
// Effective L2 Norm-Based Strategy"). The score is known when the entry arrives, so decode can also evict by
// it.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <cmath>

namespace kvtl { inline namespace v0 {

struct key_norm : score_defaults {
    static constexpr std::string_view name = "key_norm";
    static constexpr score_source source = score_source::arrival;
    static constexpr bool evicts_in_decode = true;
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        void arrive(const arriving& a, std::span<float> out) const noexcept {
            const std::size_t dim = this->limits_.dim;
            for (std::size_t i = 0; i < out.size(); ++i) {
                const float* k = &a.k[(a.first_head + i * a.head_step) * dim];
                out[i] = -std::sqrt(simd::dot(k, k, dim));
            }
        }
    };
};

}} // namespace kvtl::v0
