// Index: a unit is represented by the box around its keys (Quest).
//
//   score(q, unit) = sum over channels c of max(q_c low_c, q_c high_c)
//
// No key in the box can have a larger product with q. With q+ = max(q, 0) and q- = min(q, 0) the sum is
// q+ . high + q- . low: an inner product of (q+, q-) with the row (high, low), which is how boxes are stored.
//
// Bytes:  per unit and KV head 4 D: two rows of f16, rounded outwards so that the bound holds.
// Cost:   score() reads every box once for all queries of its KV head, twice the work of a mean. absorb O(D).
// Limits: the bound holds in exact arithmetic; the score is a float sum. Keys beyond +-65504, the range of
//         f16, are clamped. Not linear in the query: the box score of a mean query is not the mean of the
//         bounds.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

namespace detail {

/// The largest f16 that is not above x.
[[nodiscard]] constexpr f16 round_down(float x) noexcept {
    x = std::clamp(x, -65504.0F, 65504.0F);
    f16 y = from_float<f16>(x);
    if (!(to_float(y) > x)) return y;
    // A step towards -inf: the magnitude shrinks when positive, grows when negative. Zero stands above a
    // negative number that was too small to keep.
    if ((y.bits & 0x7FFFU) == 0) return f16{0x8001};
    y.bits = static_cast<std::uint16_t>((y.bits & 0x8000U) != 0 ? y.bits + 1 : y.bits - 1);
    return y;
}
/// The smallest f16 that is not below x.
[[nodiscard]] constexpr f16 round_up(float x) noexcept {
    const f16 y = round_down(-x);
    return f16{static_cast<std::uint16_t>(y.bits ^ 0x8000U)};
}

} // namespace detail

struct minmax_box {
    static constexpr std::string_view name = "minmax_box";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool linear = false;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return 2 * shape.width() * sizeof(f16);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape&) const noexcept { return 0; }
        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape, std::uint32_t) const noexcept {
            return 2 * std::size_t{shape.group} * shape.dim;
        }
        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            std::fill_n(view.of<f16>(u), 2 * view.shape.width(), f16{});
        }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            const std::size_t dim = view.shape.dim;
            f16* high = view.of<f16>(u);
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h, key += dim, high += 2 * dim) {
                f16* low = high + dim;
                for (std::size_t c = 0; c < dim; ++c) { // bounds are rarely moved: compare before rounding
                    if (i == 0 || key[c] > to_float(high[c])) high[c] = detail::round_up(key[c]);
                    if (i == 0 || key[c] < to_float(low[c])) low[c] = detail::round_down(key[c]);
                }
            }
        }

        /// out: (queries, U)
        void score(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            split_signs(q, queries, u.summary.shape.dim, scratch.data());
            score_run(scratch.data(), queries, u, 0, u.count, out.data());
        }

      protected:
        /// out: (queries, 2, D), the positive and the negative numbers of each query
        static void split_signs(const float* q, std::uint32_t queries, std::size_t dim, float* out) noexcept {
            for (std::uint32_t g = 0; g < queries; ++g)
                for (std::size_t c = 0; c < dim; ++c) {
                    const float x = q[g * dim + c];
                    out[2 * g * dim + c] = std::max(x, 0.0F);
                    out[(2 * g + 1) * dim + c] = std::min(x, 0.0F);
                }
        }
        /// Of `n` units from `first` on; out: (queries, units seen), from that of unit `first`.
        static void score_run(const float* signs, std::uint32_t queries, const units_view& u,
                              std::uint32_t first, std::uint32_t n, float* out) noexcept {
            const std::size_t dim = u.summary.shape.dim;
            const rows_view<f16> boxes{u.summary.of<f16>(first) + 2 * u.head * dim, n, 2 * dim,
                                       u.summary.stride / sizeof(f16)};
            simd::dot_group(signs, queries, 2 * dim, boxes, out, u.count);
        }
    };
};

}} // namespace kvtl::v0
