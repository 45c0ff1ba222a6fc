// Estimator: the mean value gets the softmax mass that was not attended, as estimated by the index's own
// scores (SparQ Attention §3, steps 1 and 3).
//
//   out = sum over attended entries of exp(s_i) v_i + M mean of v,  M = sum over the others of exp(s'_i)
//   s: exact logits, s': logits from the index's scores; the whole is divided by the sum of all weights
//
// Deviation: the share of the mean combines the exact mass of attended entries with the approximate mass of
// the rest. SparQ takes both from approximate scores.
//
// The mean is the mean over all entries in units, summed as they arrive: two numbers per channel.
// `mean_value` keeps a mean value per unit, which for single tokens would be the whole cache. The estimate of
// the missing mass is as good as the scores. These must be logits except for the scale of the model
// (channel_subset: with its temperature).
//
// Bytes:  per lane and KV head 4 D, and 64 per lane.
// Cost:   a second call of the index, and an exponential per entry and query.
// Limits: every query must choose for itself (reduce::none), and units must be built once, in order: runs of
//         consecutive entries.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/slots/estimator.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct scored_mean {
    static constexpr std::string_view name = "scored_mean";
    static constexpr engine_input needs = engine_input::q | engine_input::v;
    static constexpr bool estimates = true;
    static constexpr bool summarises = true;
    static constexpr bool reads_scores = true;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}

        [[nodiscard]] std::size_t unit_bytes(const summary_shape&) const noexcept { return 0; }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape& shape) const noexcept {
            return sizeof(header) + shape.width() * sizeof(float);
        }
        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            if (u != 0) return; // a lane begins
            view.of_lane<header>()->entries = 0;
            std::fill_n(sum_of(view), view.shape.width(), 0.0F);
        }
        void absorb(const summary_view& view, std::uint32_t, std::uint32_t, const float*,
                    const float* value) const noexcept {
            ++view.of_lane<header>()->entries;
            simd::add(value, sum_of(view), view.shape.width());
        }

        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape, std::uint32_t) const noexcept {
            return shape.dim;
        }
        void add(const estimator_input& in, const partial& into) const noexcept {
            const std::uint32_t dim = in.units.dim;
            const std::size_t n = in.score.size() / in.group;
            const float count = static_cast<float>(in.units.summary.of_lane<header>()->entries);
            float* mean = in.scratch.data();
            std::copy_n(sum_of(in.units.summary) + std::size_t{in.units.head} * dim, dim, mean);
            simd::scale(1.0F / count, mean, dim);
            for (std::uint32_t g = 0; g < in.group; ++g) {
                const float mass = log_mass(in, g, in.score.subspan(g * n, n));
                if (mass == -std::numeric_limits<float>::infinity()) continue; // nothing is missing
                const float top = std::max(into.max[g], mass), before = std::exp(into.max[g] - top),
                            more = std::exp(mass - top);
                simd::scale(before, into.acc + std::size_t{g} * dim, dim);
                simd::axpy(more, mean, into.acc + std::size_t{g} * dim, dim);
                into.sum[g] = into.sum[g] * before + more;
                into.max[g] = top;
            }
        }

      private:
        struct alignas(64) header {
            std::uint64_t entries = 0; ///< in units
        };
        [[nodiscard]] static float* sum_of(const summary_view& view) noexcept {
            return reinterpret_cast<float*>(view.lane + sizeof(header));
        }
        /// log of the sum of exp(logit) over the entries that query g did not attend. score: (U, max_entries), -inf
        /// where there is none, or (U).
        [[nodiscard]] static float log_mass(const estimator_input& in, std::uint32_t g,
                                            std::span<const float> score) noexcept {
            constexpr float absent = -std::numeric_limits<float>::infinity();
            const std::size_t of_unit = score.size() / in.units.count;
            float top = absent, sum = 0.0F, logit[64];
            for (std::size_t first = 0; first < score.size(); first += std::size(logit)) {
                const std::size_t n = std::min(std::size(logit), score.size() - first);
                std::copy_n(&score[first], n, logit);
                to_logits(in.logits, logit, n);
                for (std::size_t i = 0; i < n; ++i)
                    if (!in.missing(static_cast<std::uint32_t>((first + i) / of_unit), g)) logit[i] = absent;
                const float largest = simd::max_of(logit, n);
                if (largest == absent) continue;
                if (largest > top) {
                    sum *= std::exp(top - largest);
                    top = largest;
                }
                sum += simd::exp_shifted_sum(logit, n, top);
            }
            return sum > 0.0F ? top + std::log(sum) : absent;
        }
    };
};

}} // namespace kvtl::v0
