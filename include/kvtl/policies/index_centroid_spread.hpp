// Index: the weight that an entry of a unit may have, from the unit's mean key and the spread of its keys.
//
//   score(q, unit) = q . c + sqrt(D) rms_gain(sigma, n)
//
// c: mean key, n: entries, sigma: standard deviation of the unit's logits (spread_gain.hpp). If the logits
// were normal, exp(score / sqrt(D)) would be the root mean square of the weights exp(q . k / sqrt(D)) of the
// unit's entries. An estimate of the unit has the right mean weight with half of this gain
// (estimate_centroid.hpp). Only reading the unit supplies the rest. The gain is bounded where n entries do
// not support more: otherwise a long query would read wide units instead of near ones. The centroid without a
// gain underrates units that hold the one key that a query looks for among others. Units are ranked by the
// weight per entry, because the budget counts entries.
//
// Bytes: 4 D per lane, the spread of its keys by dimension, which the manager gathers. The clusterer
//        maintains means and variances. Units of a fixed size have no recorded variance and score as with
//        `centroid`.
// Cost:  as `centroid`; plus a logarithm and two roots per unit, and four operations per unit and query.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_centroid.hpp>
#include <kvtl/policies/support/spread_gain.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

struct centroid_spread {
    static constexpr std::string_view name = "centroid_spread";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = true;
    static constexpr bool needs_spread = true;
    static constexpr bool scores = true;
    static constexpr bool linear = false; ///< the second term grows with the length of the query
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, const geometry& g) noexcept : scale_(g.logit_scale()) {}
        [[nodiscard]] static std::size_t bytes_per_unit() noexcept { return 0; } // beyond the shared means

        /// out: (queries, U). q: (queries, u.dim).
        void score(const float* q, std::uint32_t queries, const units_view& u,
                   std::span<float> out) const noexcept {
            u.mean.score(q, queries, u.count, out.data());
            if (u.unit == nullptr) return;
            constexpr std::uint32_t block = 128;
            std::array<float, 64> along; // of a group's queries
            for (std::uint32_t g = 0; g < queries; ++g)
                along[g] = scale_ * detail::spread_along(q + std::size_t{g} * u.dim, u);
            float row[3][block];
            const simd::unit_spreads spreads{row[0], row[1], row[2]};
            for (std::uint32_t first = 0; first < u.count; first += block) {
                const std::uint32_t n = std::min(block, u.count - first);
                detail::get_spreads(u, first, n, spreads);
                for (std::uint32_t g = 0; g < queries; ++g)
                    simd::add_rms_gain(&out[std::size_t{g} * u.count + first], n, along[g], 1.0F / scale_,
                                       spreads);
            }
        }

      private:
        float scale_ = 1;
    };
};

}} // namespace kvtl::v0
