// Index: keys in a few joint dimensions of all KV heads of a layer (KVSwap §3.2, Eq. 1).
//
//   k_lr = A^T flat(k)                     flat(k): (H D), the keys of a token's heads side by side
//   score(q_h, entry) = (q_h A_g(h)) . k_lr     A_g(h): the rows of A that belong to query head h's KV head
//
// A (H D, r) holds the top right singular vectors of keys that were recorded offline (calibration kind
// joint_adapter). The paper's compression ratio is sigma = H D / r. One k_lr serves all heads; the queries
// are projected to its dimensions instead. The sum of all heads' scores is (sum of A_h q_h) . k_lr. So if
// queries are averaged before they are scored, one product of r numbers per token serves all heads. With r =
// H D the scores are exact up to the rounding of A to f16. The paper does not say whether A is fitted before
// or after RoPE; the calibration decides it. Keys are projected after RoPE.
//
// Bytes:  per entry and layer r sizeof(E); the adapter 2 r H D per layer, once for all sequences. The adapter
//         is f16, as in the authors' code; a calibration file has f32.
// Cost:   absorb H D r multiply-adds; score() r D per query, then r per entry and query.
// Limits: units of a whole layer only; calibration must be bound before the first key. If the calibration has
//         a lower rank than configured, the difference stays unused.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/entry_columns.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>

#include <algorithm>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <element E> struct low_rank_keys_as {
    static constexpr std::string_view name = "low_rank_keys";
    static constexpr engine_input needs = engine_input::q | engine_input::k | engine_input::calibration;
    static constexpr calibration_kind calibrated = calibration_kind::joint_adapter;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool per_entry = true;
    static constexpr bool layer_wide_only = true;
    static constexpr bool scores_lanes = true;
    struct config {
        std::uint32_t rank = 32; ///< r; sigma = 32, the paper's strongest, for H D = 1024
        template <class Visit> void fields(Visit&& visit) { visit("rank", rank); }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : rank_(c.rank) {}

        /// The view's memory outlives the state.
        void bind(const calibration_view& calibration) noexcept { calibration_ = calibration; }

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return rows(shape).unit_bytes(shape);
        }
        [[nodiscard]] std::size_t tail_bytes(const summary_shape& shape) const noexcept {
            return rows(shape).tail_bytes();
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape&) const noexcept { return 0; }
        /// The queries in r dimensions.
        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape, std::uint32_t) const noexcept {
            return shape.group * rows(shape).width;
        }
        void clear(const summary_view&, std::uint32_t) const noexcept {}
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            rows(view.shape).set_products(view, u, i, 0, key, adapter(view, 0, view.shape.width()));
        }

        /// out: (queries, U, max_entries). q: (queries, u.dim), of one head or of all.
        void score(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            const rows_view<f16> a = adapter(u.summary, std::size_t{u.head} * u.summary.shape.dim, u.dim);
            simd::dot_group(q, queries, u.dim, a, scratch.data(), a.count);
            rows(u.summary.shape).score(scratch.data(), queries, a.count, u, 0, a.count, out.data());
        }

      private:
        [[nodiscard]] detail::entry_columns<E> rows(const summary_shape& shape) const noexcept {
            return {std::min<std::size_t>(rank_, shape.width())};
        }
        /// The adapter's directions that are in use; of each, `columns` numbers from the lane's `first` on.
        [[nodiscard]] rows_view<f16> adapter(const summary_view& view, std::size_t first,
                                             std::size_t columns) const noexcept {
            const rows_view<f16> a = calibration_.adapter(view.layer);
            return {a.data + std::size_t{view.first_head} * view.shape.dim + first,
                    std::min(a.count, rows(view.shape).width), columns, a.stride};
        }

        std::uint32_t rank_ = config{}.rank;
        calibration_view calibration_;
    };
};

using low_rank_keys = low_rank_keys_as<f16>;

}} // namespace kvtl::v0
