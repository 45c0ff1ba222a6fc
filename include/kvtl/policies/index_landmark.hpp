// Index: a unit is represented by the mean of its keys after RoPE, its landmark (ShadowKV, chunks of 8;
// block means of longer units are the same).
//
//   score(q, unit) = q . mean of the unit's keys
//
// The same score as `centroid`'s, for units whose means no clusterer maintains, and at half the bytes.
//
// Bytes:  per unit and KV head 2 D (f16); one sum of 4 D per unfinished page and head.
// Cost:   score() reads every mean once for all queries of its KV head; absorb O(D).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/running_mean.hpp>
#include <kvtl/signals.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct landmark {
    static constexpr std::string_view name = "landmark";
    static constexpr signal needs = signal::q | signal::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    template <class Geometry> class state {
      public:
        state() = default;
        state(const config&, const Geometry&) noexcept {}

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return shape.width() * sizeof(f16);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape& shape) const noexcept {
            static_cast<void>(shape);
            return 0;
        }
        [[nodiscard]] std::size_t running_bytes(const summary_shape& shape) const noexcept {
            return detail::running_sum::bytes(shape.width());
        }
        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            std::fill_n(view.of<f16>(u), view.shape.width(), f16{});
        }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            auto* sum = view.of_running<float>();
            detail::running_sum::add(sum, i, key, view.shape.width());
            detail::running_sum::store(sum, i + 1, view.of<f16>(u), view.shape.width());
        }
        void resume(const summary_view& view, std::uint32_t u, std::uint32_t entries) const noexcept {
            auto* sum = view.of_running<float>();
            simd::decode(view.of<f16>(u), sum, view.shape.width());
            simd::scale(static_cast<float>(entries), sum, view.shape.width());
        }

        /// out: (queries, U)
        void score(const float* q, std::uint32_t queries, const units_view& u,
                   std::span<float> out) const noexcept {
            const std::size_t dim = u.summary.shape.dim;
            const rows_view<f16> means{u.summary.of<f16>(0) + u.head * dim, u.count, dim,
                                       u.summary.shape.width()};
            simd::dot_group(q, queries, dim, means, out.data(), u.count);
        }
    };
};

}} // namespace kvtl::v0
