// Index: a unit is represented by the mean of its keys after RoPE, its landmark (ShadowKV, chunks of 8; block
// means of longer units are equivalent).
//
//   score(q, unit) = q . mean of the unit's keys
//
// The score equals that of `centroid`. It is for units whose means no clusterer maintains, and takes half of
// the bytes.
//
// Outliers: a mean represents keys badly that point in different directions. `outliers` units of each KV head
// are pinned: those whose keys agree least with their mean, by the smallest cosine of a key and the mean.
// They are chosen before all others, the worst first, up to the share `pinned` of the entries that a step may
// choose (ShadowKV: 24 chunks of 8 per 1,024 tokens of budget are 3/16). Later units compete for the list
// like the first ones. Pinning does not determine how exactly keys are kept: a codec may have its own
// outliers (compress_prompt_svd.hpp).
//
// Bytes:  per unit and KV head 2 D (f16); one sum of 4 D per open page and head. With outliers also 4 D per
//         entry of a unit for the open page, and 8 per outlier and head in the lane.
// Cost:   score() reads every mean once for all queries of its KV head; absorb O(D).
// Limits: a unit becomes a candidate when its last entry arrives, and only if it was built in one go.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/outliers.hpp>
#include <kvtl/policies/support/running_mean.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct landmark {
    static constexpr std::string_view name = "landmark";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool pins = true;
    struct config {
        std::uint32_t outliers = 0; ///< units per KV head of a lane that may be pinned
        float pinned = 0.1875F;     ///< of the entries that a step may choose; at most what all outliers have
        template <class Visit> void fields(Visit&& visit) {
            visit("outliers", outliers);
            visit("pinned", pinned);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept
            : c_{c.outliers, c.pinned >= 0.0F ? std::min(c.pinned, 1.0F) : 0.0F} {}

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return shape.width() * sizeof(f16);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape& shape) const noexcept {
            return c_.outliers == 0
                       ? 0
                       : shape.lane_heads * (c_.outliers + std::size_t{1}) * sizeof(detail::outlier);
        }
        [[nodiscard]] std::size_t running_bytes(const summary_shape& shape) const noexcept {
            const std::size_t sum = detail::running_sum::bytes(shape.width());
            return c_.outliers == 0 ? sum
                                    : (shape.max_entries + std::size_t{1}) * sum + sizeof(std::uint32_t);
        }
        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            std::fill_n(view.of<f16>(u), view.shape.width(), f16{});
        }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            auto* sum = view.of_running<float>();
            detail::running_sum::add(sum, i, key, view.shape.width());
            detail::running_sum::store(sum, i + 1, view.of<f16>(u), view.shape.width());
            if (c_.outliers != 0) judge(view, u, i, key);
        }
        void resume(const summary_view& view, std::uint32_t u, std::uint32_t entries) const noexcept {
            auto* sum = view.of_running<float>();
            simd::decode(view.of<f16>(u), sum, view.shape.width());
            simd::scale(static_cast<float>(entries), sum, view.shape.width());
            if (c_.outliers != 0) *seen_of(view) = 0; // its keys are gone
        }

        /// out: (queries, U)
        void score(const float* q, std::uint32_t queries, const units_view& u,
                   std::span<float> out) const noexcept {
            const std::size_t dim = u.summary.shape.dim;
            const rows_view<f16> means{u.summary.of<f16>(0) + u.head * dim, u.count, dim,
                                       u.summary.shape.width()};
            simd::dot_group(q, queries, dim, means, out.data(), u.count);
        }

        /// visit(unit): outliers of a KV head, the worst first, as far as their part of `budget` entries goes.
        template <class Visit>
        void pinned(const units_view& u, std::uint32_t head, std::uint32_t budget,
                    Visit&& visit) const noexcept {
            if (c_.outliers == 0 || u.count == 0) return;
            const auto worst = detail::listed(outliers_of(u.summary, head));
            const auto most =
                static_cast<std::size_t>(c_.pinned * static_cast<float>(budget)) / u.max_entries;
            for (const detail::outlier& o : worst.first(std::min(worst.size(), most)))
                if (o.unit < u.count) visit(o.unit);
        }

      private:
        using outlier = detail::outlier;
        [[nodiscard]] std::span<outlier> outliers_of(const summary_view& view,
                                                     std::uint32_t h) const noexcept {
            const std::size_t size = c_.outliers + std::size_t{1};
            return {view.of_lane<outlier>() + h * size, size};
        }
        /// Beside the sum: the unit's keys so far, (max_entries, width), and how many there are.
        [[nodiscard]] static float* keys_of(const summary_view& view) noexcept {
            return view.of_running<float>() + view.shape.width();
        }
        [[nodiscard]] static std::uint32_t* seen_of(const summary_view& view) noexcept {
            return reinterpret_cast<std::uint32_t*>(keys_of(view) +
                                                    view.shape.max_entries * view.shape.width());
        }

        void judge(const summary_view& view, std::uint32_t u, std::uint32_t i,
                   const float* key) const noexcept {
            const std::size_t width = view.shape.width(), dim = view.shape.dim;
            std::uint32_t& seen = *seen_of(view);
            if (i == 0) seen = 0;
            if (i == 0 && u == 0) // a new lane
                for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h) outliers_of(view, h)[0].unit = 0;
            if (seen != i) return;
            std::copy_n(key, width, keys_of(view) + seen++ * width);
            if (seen != view.shape.max_entries) return;
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h) {
                const float* sum = view.of_running<float>() + h * dim;
                detail::enlist(outliers_of(view, h),
                               {detail::agreement(keys_of(view) + h * dim, seen, width, sum, dim), u});
            }
        }
        config c_{};
    };
};

}} // namespace kvtl::v0
