// Index: keys in a few of RoPE's frequency pairs: those that order a head's keys as all pairs do (FASA).
//
//   score(q, entry) = sum over pairs p of the head of (q_a k_a + q_b k_b)        (a, b): channels of pair p
//
// The dominant pairs are a property of the head, and calibration names them (kind channels). Without
// calibration fit() takes the pairs in which a lane's first keys vary most: a part that all keys share adds
// the same to every score and does not change the order. Stored pairs are exact, so all pairs together give
// exact scores.
//
// Bytes:  per entry and KV head 4 n (n pairs, f16); per lane and KV head 4 n for the numbers of the pairs.
// Cost:   2 n multiply-adds per entry and query; fit() makes two passes over the keys.
// Limits: a lane that begins without a prompt uses evenly spaced pairs.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/entry_columns.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct frequency_pairs {
    static constexpr std::string_view name = "frequency_pairs";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr calibration_kind calibrated = calibration_kind::channels; ///< optional
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool per_entry = true;
    static constexpr bool fits = true;
    struct config {
        std::uint32_t pairs = 16;        ///< n per KV head, at most D / 2
        std::uint32_t pair_distance = 0; ///< channels of a pair lie this far apart: 1, or D / 2 (0)
        template <class Visit> void fields(Visit&& visit) {
            visit("pairs", pairs);
            visit("pair_distance", pair_distance);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : config_(c) {}

        /// The view's memory outlives the state. A calibration without channels changes nothing.
        void bind(const calibration_view& calibration) noexcept { calibration_ = calibration; }

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return rows(shape).unit_bytes(shape);
        }
        [[nodiscard]] std::size_t tail_bytes(const summary_shape& shape) const noexcept {
            return rows(shape).tail_bytes();
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape& shape) const noexcept {
            return sizeof(header) + std::size_t{shape.lane_heads} * pairs(shape) * sizeof(std::uint32_t);
        }
        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape, std::uint32_t) const noexcept {
            return std::size_t{shape.group} * 2 * pairs(shape);
        }
        [[nodiscard]] std::size_t fit_scratch_bytes(const summary_shape& shape, std::size_t) const noexcept {
            return 3 * shape.dim * sizeof(float) + shape.dim * sizeof(std::uint32_t);
        }

        /// keys: (T, lane heads * D), the lane's first
        template <element E>
        void fit(const summary_view& view, rows_view<E> keys, std::span<std::byte> scratch) const noexcept {
            if (keys.count == 0 || is_calibrated()) return;
            const std::uint32_t dim = view.shape.dim, n = pairs(view.shape);
            float* mean = reinterpret_cast<float*>(scratch.data());
            float* energy = mean + dim;
            float* of_pair = energy + dim;
            auto* order = reinterpret_cast<std::uint32_t*>(of_pair + dim);
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h) {
                const rows_view<E> k{keys.data + std::size_t{h} * dim, keys.count, dim, keys.stride};
                std::fill_n(mean, 2 * dim, 0.0F);
                for (std::size_t t = 0; t < k.count; ++t)
                    for (std::uint32_t c = 0; c < dim; ++c) mean[c] += to_float(k.row(t)[c]);
                simd::scale(1.0F / static_cast<float>(k.count), mean, dim);
                for (std::size_t t = 0; t < k.count; ++t)
                    for (std::uint32_t c = 0; c < dim; ++c) {
                        const float off = to_float(k.row(t)[c]) - mean[c];
                        energy[c] += off * off;
                    }
                for (std::uint32_t p = 0; p < dim / 2; ++p) {
                    const auto [a, b] = pair_elements(p, distance(view.shape));
                    of_pair[p] = energy[a] + energy[b];
                }
                std::iota(order, order + dim / 2, 0U);
                std::partial_sort(order, order + n, order + dim / 2, [of_pair](auto x, auto y) {
                    return of_pair[x] != of_pair[y] ? of_pair[x] > of_pair[y] : x < y;
                });
                std::copy_n(order, n, chosen(view, h));
            }
            view.of_lane<header>()->fitted = 1;
        }

        void clear(const summary_view&, std::uint32_t) const noexcept {}
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            if (!is_calibrated() && view.of_lane<header>()->fitted == 0) spread(view);
            const std::size_t width = 2 * std::size_t{pairs(view.shape)};
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h, key += view.shape.dim) {
                float some[2];
                std::size_t column = h * width;
                for (const std::uint32_t p : pairs_of(view, h)) {
                    pick(key, p, view.shape, some);
                    for (const float x : some) rows(view.shape).set(view, u, i, column++, x);
                }
            }
        }

        /// out: (queries, U, max_entries)
        void score(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            const summary_shape& shape = u.summary.shape;
            const auto chosen_pairs = pairs_of(u.summary, u.head);
            const std::size_t columns = 2 * chosen_pairs.size();
            float* to = scratch.data();
            for (std::uint32_t g = 0; g < queries; ++g)
                for (const std::uint32_t p : chosen_pairs) {
                    pick(q + std::size_t{g} * shape.dim, p, shape, to);
                    to += 2;
                }
            rows(shape).score(scratch.data(), queries, columns, u, u.head * 2 * std::size_t{pairs(shape)},
                              columns, out.data());
        }
        /// The pairs that are kept of a lane's head.
        [[nodiscard]] std::span<const std::uint32_t> pairs_of(const summary_view& view,
                                                              std::uint32_t h) const noexcept {
            const std::uint32_t n = pairs(view.shape);
            if (!is_calibrated()) return {chosen(view, h), n};
            const auto named = calibration_.channels(view.layer, view.first_head + h);
            return named.first(std::min<std::size_t>(n, named.size()));
        }

      private:
        struct alignas(64) header {
            std::uint32_t fitted = 0;
        };

        [[nodiscard]] bool is_calibrated() const noexcept { return calibration_.has(calibrated); }
        [[nodiscard]] std::uint32_t pairs(const summary_shape& shape) const noexcept {
            return std::min(config_.pairs, shape.dim / 2);
        }
        [[nodiscard]] std::uint32_t distance(const summary_shape& shape) const noexcept {
            if (is_calibrated()) return calibration_.pair_distance();
            return config_.pair_distance != 0 ? config_.pair_distance : shape.dim / 2;
        }
        [[nodiscard]] detail::entry_columns<f16> rows(const summary_shape& shape) const noexcept {
            return {2 * std::size_t{shape.lane_heads} * pairs(shape)};
        }
        [[nodiscard]] std::uint32_t* chosen(const summary_view& view, std::uint32_t h) const noexcept {
            return reinterpret_cast<std::uint32_t*>(view.lane + sizeof(header)) +
                   std::size_t{h} * pairs(view.shape);
        }
        void spread(const summary_view& view) const noexcept {
            const std::uint32_t n = pairs(view.shape);
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h)
                for (std::uint32_t j = 0; j < n; ++j) chosen(view, h)[j] = j * (view.shape.dim / 2) / n;
            view.of_lane<header>()->fitted = 1;
        }
        void pick(const float* x, std::uint32_t pair, const summary_shape& shape, float* out) const noexcept {
            const auto [a, b] = pair_elements(pair, distance(shape));
            out[0] = x[a];
            out[1] = x[b];
        }

        config config_{};
        calibration_view calibration_;
    };
};

}} // namespace kvtl::v0
