// Index: keys in memory, scored in the r channels where the query is largest (SparQ).
//
//   score(q, entry) = f(q) sum over c in R(q) of q_c k_c   R(q): the r channels with the largest |q_c|
//   f(q) = sqrt(sum |q_c| / sum over R(q) of |q_c|)
//
// f is the paper's temperature and equal for all entries. It does not change the order, but it turns the
// scores into logits for a softmax.
//
// The paper keeps a second copy of the keys, ordered by channel, in the memory of the cache, and saves
// transfers: r of D channels. Here the cache is on storage and the second copy in DRAM, as f16 or, for half
// the memory, in 8 bits with one scale per key. It saves every read of a key that is not chosen. The copy is
// ordered by entry, because the entries of a unit arrive together; channels outside R(q) are multiplied by
// zeros. The other half of SparQ, the mean value for unread entries, is `scored_mean`.
//
// Bytes:  per entry and KV head 2 D, or D (rounded up to a multiple of 4) + 4.
// Cost:   a partial sort of D numbers per query, D multiply-adds per entry and query.
// Limits: not linear in the query. 8 bits: errors up to half of max |k_c| / 127 per channel.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/policies/support/largest_magnitudes.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct channel_subset {
    static constexpr std::string_view name = "channel_subset";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool per_entry = true;
    static constexpr bool linear = false;
    struct config {
        std::uint32_t read = 32; ///< r
        std::uint32_t bits = 16; ///< per number of the copy: 8 or 16
        template <class Visit> void fields(Visit&& visit) {
            visit("read", read);
            visit("bits", bits);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : read_(c.read), codes_(c.bits <= 8) {}

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return shape.max_entries * (codes_ ? shape.lane_heads * code_row(shape) : 2 * shape.width());
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape&) const noexcept { return 0; }
        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape, std::uint32_t) const noexcept {
            return (std::size_t{shape.group} + 1) * shape.dim; // reduced queries, and room to rank one
        }
        void clear(const summary_view&, std::uint32_t) const noexcept {}
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            const summary_shape& shape = view.shape;
            if (!codes_) {
                simd::encode(key, rows(shape).row(view, u, i), shape.width());
                return;
            }
            std::byte* row = view.of<std::byte>(u) + i * shape.lane_heads * code_row(shape);
            for (std::uint32_t h = 0; h < shape.lane_heads; ++h, key += shape.dim, row += code_row(shape)) {
                float largest = 0;
                for (std::uint32_t c = 0; c < shape.dim; ++c) largest = std::max(largest, std::fabs(key[c]));
                const float scale = largest > 0 ? largest / 127.0F : 1.0F;
                *reinterpret_cast<float*>(row) = scale;
                auto* code = reinterpret_cast<std::int8_t*>(row + sizeof(float));
                for (std::uint32_t c = 0; c < shape.dim; ++c)
                    code[c] = static_cast<std::int8_t>(std::lrint(key[c] / scale));
            }
        }

        /// out: (queries, U, max_entries)
        void score(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            const summary_shape& shape = u.summary.shape;
            const std::size_t dim = shape.dim, entries = std::size_t{u.count} * u.max_entries;
            std::copy_n(q, queries * dim, scratch.data());
            for (std::uint32_t g = 0; g < queries; ++g) {
                const std::span<float> some = scratch.subspan(g * dim, dim);
                const float all = sum_of_magnitudes(some);
                detail::keep_largest_magnitudes(some, read_, scratch.subspan(queries * dim, dim));
                if (const float left = sum_of_magnitudes(some); left > 0.0F)
                    simd::scale(std::sqrt(all / left), some.data(), dim);
            }
            if (!codes_) {
                simd::dot_group(scratch.data(), queries, dim, rows(shape).all(u, u.head * dim, dim),
                                out.data(), entries);
            } else {
                const std::byte* row = u.summary.of<std::byte>(0) + u.head * code_row(shape);
                for (std::size_t e = 0; e < entries; ++e, row += shape.lane_heads * code_row(shape)) {
                    const float scale = *reinterpret_cast<const float*>(row);
                    const auto* code = reinterpret_cast<const std::int8_t*>(row + sizeof(float));
                    for (std::uint32_t g = 0; g < queries; ++g)
                        out[g * entries + e] = scale * simd::dot(&scratch[g * dim], code, dim);
                }
            }
            detail::hide_absent_entries(u, queries, out.data());
        }

      private:
        [[nodiscard]] static float sum_of_magnitudes(std::span<const float> x) noexcept {
            return std::accumulate(x.begin(), x.end(), 0.0F,
                                   [](float sum, float y) { return sum + std::fabs(y); });
        }
        [[nodiscard]] static detail::entry_rows<f16> rows(const summary_shape& shape) noexcept {
            return {shape.width()};
        }
        /// Bytes of one head's key in 8 bits: its scale, then its codes.
        [[nodiscard]] static std::size_t code_row(const summary_shape& shape) noexcept {
            return sizeof(float) + (shape.dim + 3) / 4 * 4;
        }

        std::uint32_t read_ = config{}.read;
        bool codes_ = false;
    };
};

}} // namespace kvtl::v0
