// Index: `minmax_box` with a coarse level above it. Each block of units_per_block consecutive units also has
// a box around all its keys. Only units of the blocks with the best boxes are scored (MPCache: boxes of 32
// tokens, then boxes of 8).
//
//   score(q, block) = sum over channels c of max(q_c low_c, q_c high_c)      low, high: of all units of the
//                                                                            block
//
// No unit scores above its block. The number of probed blocks is such that they hold probe_entries times the
// entries that may be chosen, if all units have one size. If that is every block, or units_per_block is 1,
// nothing is narrowed, and the choice is `minmax_box`'s, bit for bit.
//
// Bytes:  per unit and KV head 4 D for its box, and 4 D / units_per_block for the box of its block, which
//         lies in pieces behind the boxes of the block's units.
// Cost:   scores: U / units_per_block blocks and the units of probed blocks, instead of U units. The box of a
//         block whose units changed is rebuilt when it is next needed.
// Limits: units of one KV head; others are scored without narrowing. Queries that choose for themselves share
//         the blocks that are probed for one choice. The bound holds in exact arithmetic.
// Source: "MPCache: MPC-Friendly KV Cache Eviction for Efficient Private LLM Inference", hierarchical
//         clusters.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_minmax_box.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/topk.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct two_level_box : minmax_box {
    static constexpr std::string_view name = "two_level_box";
    static constexpr bool narrows = true;

    struct config {
        std::uint32_t units_per_block = 4; ///< 1: one level
        std::uint32_t probe_entries = 2;   ///< what probed blocks hold, as a multiple of what may be chosen
        template <class Visit> void fields(Visit&& visit) {
            visit("units_per_block", units_per_block);
            visit("probe_entries", probe_entries);
        }
    };

    class state : public minmax_box::state {
        using flat = minmax_box::state;

      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : c_(c) {}

        [[nodiscard]] static status check(const config& c) noexcept {
            if (c.units_per_block != 1 && (c.units_per_block < 4 || c.units_per_block > 64))
                return status::failure(errc::invalid_argument,
                                       "index.units_per_block is %u; valid: 1, and 4 to 64",
                                       c.units_per_block);
            if (c.probe_entries < 1 || c.probe_entries > 1024)
                return status::failure(errc::invalid_argument, "index.probe_entries is %u; valid: 1 to 1024",
                                       c.probe_entries);
            return {};
        }

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return flat::unit_bytes(shape) + (two_levels(shape) ? piece(shape) * sizeof(f16) : 0);
        }
        /// For the pieces of a last block that has few units.
        [[nodiscard]] std::size_t tail_bytes(const summary_shape& shape) const noexcept {
            return two_levels(shape) ? (c_.units_per_block - 1) * unit_bytes(shape) : 0;
        }

        // Whatever changes a unit changes the box of its block.
        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            flat::clear(view, u);
            forget(view, u);
        }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float* value) const noexcept {
            flat::absorb(view, u, i, key, value);
            forget(view, u);
        }

        /// out: (queries, units seen)
        void score(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            if (u.some == nullptr) return flat::score(q, queries, u, out, scratch);
            flat::split_signs(q, queries, u.summary.shape.dim, scratch.data());
            for (std::uint32_t i = 0, n = 0; i < u.count; i += n) { // runs of units side by side
                for (n = 1; i + n < u.count && u.some[i + n] == u.some[i] + n;) ++n;
                flat::score_run(scratch.data(), queries, u, u.some[i], n, &out[i]);
            }
        }

        /// The units of the blocks whose boxes have the greatest scores with any of the queries (queries, D).
        [[nodiscard]] std::uint32_t narrow(const float* q, std::uint32_t queries, const units_view& u,
                                           std::uint32_t budget, const narrowing& x) const noexcept {
            const std::uint32_t per_block = c_.units_per_block,
                                blocks = (u.count + per_block - 1) / per_block;
            if (u.hidden != 0 || u.count == 0 || !two_levels(u.summary.shape) ||
                3 * std::size_t{blocks} > x.score.size())
                return 0;
            const std::uint64_t wanted = std::uint64_t{budget} * c_.probe_entries,
                                held = std::max<std::uint64_t>(1, per_block * entries_of(u) / u.count),
                                probed = std::max<std::uint64_t>(1, (wanted + held - 1) / held);
            if (probed >= blocks) return 0;
            for (std::uint32_t b = 0; b < blocks; ++b) refresh(u, b);
            float *const best = x.score.data(), *const next = best + blocks;
            for (std::uint32_t g = 0; g < queries; ++g) {
                score_blocks(q + std::size_t{g} * u.dim, u, blocks, g == 0 ? best : next, next + blocks,
                             x.mean.data());
                for (std::uint32_t b = 0; g > 0 && b < blocks; ++b) best[b] = std::max(best[b], next[b]);
            }
            const auto n = static_cast<std::uint32_t>(
                simd::top_k_by_index(best, blocks, static_cast<std::size_t>(probed), x.order.data(), x.keys));
            x.note(std::uint64_t{queries} * blocks, blocks, n);
            std::uint32_t units = 0;
            for (std::uint32_t i = 0; i < n; ++i)
                for (std::uint32_t at = x.order[i] * per_block, end = std::min(u.count, at + per_block);
                     at < end; ++at)
                    x.unit[units++] = at;
            return units;
        }
        /// Groups are not looked for.
        [[nodiscard]] static std::uint32_t near(const float*, const units_view&, const narrowing&) noexcept {
            return 0;
        }

      private:
        [[nodiscard]] static std::uint64_t entries_of(const units_view& u) noexcept {
            if (const std::uint32_t each = u.entries_if_fixed(); each != 0)
                return std::uint64_t{each} * u.count;
            std::uint64_t all = 0;
            for (std::uint32_t i = 0; i < u.count; ++i) all += u.entries(i);
            return all;
        }
        [[nodiscard]] bool two_levels(const summary_shape& shape) const noexcept {
            return c_.units_per_block > 1 && shape.lane_heads == 1;
        }
        /// Numbers of a block's box, (high, low), that each of its units keeps.
        [[nodiscard]] std::size_t piece(const summary_shape& shape) const noexcept {
            return (2 * std::size_t{shape.dim} + c_.units_per_block - 1) / c_.units_per_block;
        }
        [[nodiscard]] f16* piece_of(const summary_view& view, std::uint32_t u) const noexcept {
            return view.of<f16>(u) + 2 * std::size_t{view.shape.dim};
        }

        /// A block whose first number is a NaN is put together before it is used.
        void forget(const summary_view& view, std::uint32_t u) const noexcept {
            if (two_levels(view.shape)) *piece_of(view, u - u % c_.units_per_block) = f16{0x7E00};
        }
        void refresh(const units_view& u, std::uint32_t b) const noexcept {
            const std::uint32_t first = b * c_.units_per_block,
                                end = std::min(u.count, first + c_.units_per_block);
            if (!std::isnan(to_float(*piece_of(u.summary, first)))) return;
            const std::size_t dim = u.summary.shape.dim, per_unit = piece(u.summary.shape);
            for (std::size_t from = 0; from < 2 * dim;) { // some numbers at a time, of (high, low)
                std::int16_t bound[64];
                const std::size_t n = std::min(std::size(bound), (from < dim ? dim : 2 * dim) - from);
                for (std::uint32_t i = first; i < end; ++i) {
                    const f16* of = u.summary.of<f16>(i) + from;
                    for (std::size_t c = 0; c < n; ++c) {
                        const std::int16_t x = ordered(of[c].bits), y = i == first ? x : bound[c];
                        bound[c] = from < dim ? std::max(x, y) : std::min(x, y);
                    }
                }
                for (std::size_t c = 0; c < n; ++c) {
                    const std::size_t at = from + c;
                    piece_of(u.summary, first + static_cast<std::uint32_t>(at / per_unit))[at % per_unit]
                        .bits = static_cast<std::uint16_t>(ordered(static_cast<std::uint16_t>(bound[c])));
                }
                from += n;
            }
        }
        /// Integers in the order of the numbers whose bits these are, and back again.
        [[nodiscard]] static constexpr std::int16_t ordered(std::uint16_t bits) noexcept {
            return static_cast<std::int16_t>((bits & 0x8000U) != 0 ? bits ^ 0x7FFFU : bits);
        }
        /// out: (blocks) scores of one query, the sum over the pieces of their boxes; part: (blocks), signs: (2 D)
        void score_blocks(const float* q, const units_view& u, std::uint32_t blocks, float* out, float* part,
                          float* signs) const noexcept {
            const summary_view& view = u.summary;
            const std::size_t all = 2 * std::size_t{view.shape.dim}, n = piece(view.shape);
            flat::split_signs(q, 1, view.shape.dim, signs);
            for (std::uint32_t p = 0; p * n < all; ++p) {
                const rows_view<f16> rows{piece_of(view, p), blocks, std::min(n, all - p * n),
                                          c_.units_per_block * view.stride / sizeof(f16)};
                simd::dot_rows(signs + p * n, rows, p == 0 ? out : part);
                if (p > 0) simd::add(part, out, blocks);
            }
        }

        config c_{};
    };
};

}} // namespace kvtl::v0
