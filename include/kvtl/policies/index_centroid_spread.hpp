// Index: what an entry of a unit may weigh, from the unit's mean key and how far its keys spread.
//
//   score(q, unit) = q . c + 2 sqrt(D) gain(|q| s / sqrt(D), n)
//
// c: mean key, s^2: variance of the keys, per dimension, n: entries. Were a unit's keys normal around c with
// variance s^2 in every direction, the weight exp(q . k / sqrt(D)) of its entries would have this root mean
// square: exp(score / sqrt(D)), with a gain of half the variance of the logits. Its mean, with one gain
// instead of two, is what an estimate of the unit gets right (remain_centroid_estimate.hpp); the rest is what
// the estimate misses and only reading brings. The gain is bounded as it is there (spread_gain.hpp): without
// that long queries would read what is wide instead of what is near. The centroid alone underrates units that
// hold the one key a query looks for among others. What ranks is the weight per entry, because the budget
// counts entries.
//
// Means and variances are those that the clusterer maintains; nothing beyond. Units of a
// fixed size have no variance on record and score as with `centroid`.
// Cost: as `centroid`, and per unit a logarithm and two roots, per unit and query three operations.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_centroid.hpp>
#include <kvtl/policies/support/spread_gain.hpp>
#include <kvtl/simd/dot.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

struct centroid_spread {
    static constexpr std::string_view name = "centroid_spread";
    static constexpr signal needs = signal::q | signal::k;
    static constexpr bool needs_means = true;
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
            constexpr std::uint32_t block = 64;
            float spread
                [block]; // of logits of a query of length 1: of the keys, in every direction, times the scale
            float bend[block];
            for (std::uint32_t first = 0; first < u.count; first += block) {
                const std::uint32_t n = std::min(block, u.count - first);
                for (std::uint32_t i = 0; i < n; ++i) {
                    const unit_record& unit = u.unit[first + i];
                    const auto entries = static_cast<float>(std::max(1U, unit.entries));
                    spread[i] = scale_ * std::sqrt(unit.m2 / (entries * static_cast<float>(u.dim)));
                    bend[i] = detail::spread_bend(unit.entries);
                }
                for (std::uint32_t g = 0; g < queries; ++g) {
                    const float* query = q + std::size_t{g} * u.dim;
                    const float length = std::sqrt(simd::dot(query, query, u.dim));
                    float* score = &out[std::size_t{g} * u.count + first];
                    for (std::uint32_t i = 0; i < n; ++i)
                        score[i] += 2.0F / scale_ * detail::spread_gain(length * spread[i], bend[i]);
                }
            }
        }

      private:
        float scale_ = 1;
    };
};

}} // namespace kvtl::v0
