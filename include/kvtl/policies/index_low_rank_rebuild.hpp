// Index: keys as a few coefficients from which they are rebuilt, so that storage holds values only
// (ShadowKV).
//
//   k_pre(entry) = RoPE^-1(k)           flat over the lane's heads: (lane heads * D)
//   c(entry)     = B k_pre              B: (r, lane heads * D), orthonormal, fitted to a lane's first keys
//   k(entry)    ~= RoPE(B^T c)          rebuild(), at the entry's position
//   score(q, unit) = q . mean of the unit's keys after RoPE
//
// Keys before RoPE are of lower rank than after, which is why they are rotated back first. fit()
// finds B by subspace iteration on the Gram matrix of an even sample, in float; the paper runs an SVD per
// sequence, too. With r = lane heads * D keys come back exactly, but for rounding. Not here: the paper's
// outlier chunks, whose exact keys it keeps; and its decoded tokens, which it keeps whole: ours are coded
// with the prompt's basis.
//
// Bytes:  per unit 2 lane heads D, and 2 r per entry; per lane 2 r lane heads D for B and 8 lane heads D of
//         sums (f16).
// Cost:   absorb and rebuild: r lane heads D multiply-adds and D sines. fit: W^2 (sample + iterations r)
//         multiply-adds with W = lane heads D, and W^2 + 2 W r floats of borrowed memory.
// Limits: plain RoPE only, at consecutive positions: entry i of unit u is token first_position + u G + i.
//         Models that scale frequencies or normalise keys after RoPE need another description.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/policies/support/kmeans.hpp>
#include <kvtl/policies/support/rotary.hpp>
#include <kvtl/policies/support/running_mean.hpp>
#include <kvtl/signals.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

namespace detail {

/// Makes the rows of y (n, width) orthonormal (Gram and Schmidt; twice is enough). A row that the earlier
/// ones span is replaced by the part of a coordinate direction that they do not: the result is always a
/// basis. n <= width.
inline void orthonormalise(float* y, std::size_t n, std::size_t width) noexcept {
    std::size_t coordinate = 0;
    for (std::size_t j = 0; j < n; ++j) {
        float* row = y + j * width;
        float before = simd::dot(row, row, width);
        for (;;) {
            for (int pass = 0; pass < 2; ++pass)
                for (std::size_t i = 0; i < j; ++i)
                    simd::axpy(-simd::dot(row, y + i * width, width), y + i * width, row, width);
            const float left = simd::dot(row, row, width);
            if (left > 1e-8F * before) { // above what rounding leaves of nothing
                simd::scale(1.0F / std::sqrt(left), row, width);
                break;
            }
            std::fill_n(row, width, 0.0F);
            row[coordinate++ % width] = before = 1.0F;
        }
    }
}

} // namespace detail

template <element E> struct low_rank_rebuild_as {
    static constexpr std::string_view name = "low_rank_rebuild";
    static constexpr signal needs = signal::q | signal::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool fits = true;
    static constexpr bool rebuilds_keys = true;
    static constexpr bool needs_positions = true; ///< keys are turned to them
    struct config {
        std::uint32_t rank = 160;         ///< r, at most lane heads * D
        std::uint32_t sample = 1024;      ///< keys that fit() looks at
        std::uint32_t iterations = 8;     ///< of the subspace
        std::uint32_t first_position = 0; ///< of the first unit's first entry: the number of sinks
        kvtl::rope rope{};
        template <class Visit> void fields(Visit&& visit) {
            visit("rank", rank);
            visit("sample", sample);
            visit("iterations", iterations);
            visit("rope_theta", rope.theta);
            visit("rope_dims", rope.dims);
            visit("rope_neighbours", rope.neighbours);
        }
    };

    template <class Geometry> class state {
      public:
        state() = default;
        state(const config& c, const Geometry& g) noexcept : config_(c), rotation_(c.rope, g.head_dim()) {
            config_.sample = std::max(c.sample, 1U);
        }

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return unit_numbers(shape) * sizeof(E);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape& shape) const noexcept {
            return memory(shape, nullptr).bytes;
        }
        [[nodiscard]] std::size_t fit_scratch_bytes(const summary_shape& shape, std::size_t) const noexcept {
            carver c;
            static_cast<void>(fit_memory::take(c, shape.width(), rank(shape)));
            return c.used();
        }

        /// keys: (T, lane heads * D), the lane's first, at positions 0 to T - 1
        void fit(const summary_view& view, rows_view<float> keys,
                 std::span<std::byte> scratch) const noexcept {
            const std::size_t width = view.shape.width(), r = rank(view.shape);
            carver c(scratch);
            fit_memory m = fit_memory::take(c, width, r);
            std::fill(m.gram.begin(), m.gram.end(), 0.0F);
            const std::size_t step = (keys.count + config_.sample - 1) / config_.sample;
            for (std::size_t t = 0; t < keys.count; t += step) {
                std::copy_n(keys.row(t), width, m.key.data());
                turn(view.shape, m.key.data(), -static_cast<double>(t));
                for (std::size_t i = 0; i < width; ++i)
                    simd::axpy(m.key[i], m.key.data(), &m.gram[i * width], width);
            }
            // From random directions: each product with the Gram matrix turns them towards the greatest
            // energy.
            for (std::size_t i = 0; i < r * width; ++i)
                m.basis[i] = static_cast<float>(detail::random_unit(1, i) - 0.5);
            const rows_view<float> gram{m.gram.data(), width, width, width};
            for (std::uint32_t i = 0; i < std::max(config_.iterations, 1U); ++i) {
                detail::orthonormalise(m.basis.data(), r, width);
                simd::dot_group(m.basis.data(), r, width, gram, m.next.data(), width);
                std::swap(m.basis, m.next);
            }
            detail::orthonormalise(m.basis.data(), r, width);
            const parts lane = memory(view.shape, view.lane);
            simd::encode(m.basis.data(), lane.basis, r * width);
            lane.state->fitted = 1;
        }

        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            std::fill_n(view.of<E>(u), unit_numbers(view.shape), E{});
        }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            const std::size_t width = view.shape.width(), r = rank(view.shape);
            const parts lane = memory(view.shape, view.lane);
            if (lane.state->fitted == 0) use_coordinates(view.shape, lane);
            lane.mean->absorb(u, i, key, view.of<E>(u), width);
            std::copy_n(key, width, lane.key);
            turn(view.shape, lane.key, -position(view.shape, u, i));
            detail::encode_products(lane.key, rows_view<E>{lane.basis, r, width, width},
                                    coefficients(view, u, i));
        }
        /// key: (lane heads, D), after RoPE
        void rebuild(const summary_view& view, std::uint32_t u, std::uint32_t i, float* key) const noexcept {
            const std::size_t width = view.shape.width();
            const E* basis = memory(view.shape, view.lane).basis;
            const E* c = coefficients(view, u, i);
            std::fill_n(key, width, 0.0F);
            for (std::size_t j = 0; j < rank(view.shape); ++j)
                simd::axpy(to_float(c[j]), basis + j * width, key, width);
            turn(view.shape, key, position(view.shape, u, i));
        }

        /// out: (queries, U)
        void score(const float* q, std::uint32_t queries, const units_view& u,
                   std::span<float> out) const noexcept {
            const std::size_t dim = u.summary.shape.dim;
            const rows_view<E> means{u.summary.of<E>(0) + u.head * dim, u.count, dim,
                                     unit_numbers(u.summary.shape)};
            simd::dot_group(q, queries, dim, means, out.data(), u.count);
        }

      private:
        struct alignas(64) header {
            std::uint32_t fitted = 0;
        };
        /// A lane's memory.
        struct parts {
            header* state = nullptr;
            detail::running_mean* mean = nullptr;
            float* key = nullptr; ///< (width) an entry's key while it is coded
            E* basis = nullptr;   ///< (r, width)
            std::size_t bytes = 0;
        };
        struct fit_memory {
            std::span<float> gram;        ///< (width, width)
            std::span<float> basis, next; ///< (r, width)
            std::span<float> key;         ///< (width)
            [[nodiscard]] static fit_memory take(carver& c, std::size_t width, std::size_t r) noexcept {
                return {c.take<float>(width * width), c.take<float>(r * width), c.take<float>(r * width),
                        c.take<float>(width)};
            }
        };

        [[nodiscard]] std::size_t rank(const summary_shape& shape) const noexcept {
            return std::min<std::size_t>(config_.rank, shape.width());
        }
        /// A unit: its mean (width), then its entries' coefficients (max_entries, r).
        [[nodiscard]] std::size_t unit_numbers(const summary_shape& shape) const noexcept {
            return shape.width() + shape.max_entries * rank(shape);
        }
        [[nodiscard]] E* coefficients(const summary_view& view, std::uint32_t u,
                                      std::uint32_t i) const noexcept {
            return view.of<E>(u) + view.shape.width() + i * rank(view.shape);
        }
        [[nodiscard]] parts memory(const summary_shape& shape, std::byte* lane) const noexcept {
            const std::size_t width = shape.width(),
                              key = sizeof(header) + detail::running_mean::bytes(width),
                              basis = key + (width * sizeof(float) + 63) / 64 * 64;
            parts p;
            p.bytes = basis + rank(shape) * width * sizeof(E);
            if (lane == nullptr) return p;
            p.state = reinterpret_cast<header*>(lane);
            p.mean = reinterpret_cast<detail::running_mean*>(lane + sizeof(header));
            p.key = reinterpret_cast<float*>(lane + key);
            p.basis = reinterpret_cast<E*>(lane + basis);
            return p;
        }
        /// A lane without a prompt has nothing to fit: it keeps r channels, evenly spaced.
        void use_coordinates(const summary_shape& shape, const parts& lane) const noexcept {
            const std::size_t width = shape.width(), r = rank(shape);
            std::fill_n(lane.basis, r * width, E{});
            for (std::size_t j = 0; j < r; ++j) lane.basis[j * width + j * width / r] = from_float<E>(1.0F);
            lane.state->fitted = 1;
        }
        [[nodiscard]] double position(const summary_shape& shape, std::uint32_t u,
                                      std::uint32_t i) const noexcept {
            return static_cast<double>(std::uint64_t{u} * shape.max_entries + i + config_.first_position);
        }
        void turn(const summary_shape& shape, float* key, double positions) const noexcept {
            rotation_.turn(key, shape.lane_heads, shape.dim, positions);
        }

        config config_{};
        rotation rotation_;
    };
};

using low_rank_rebuild = low_rank_rebuild_as<f16>;

}} // namespace kvtl::v0
