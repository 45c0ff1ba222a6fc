// Index: a copy of the keys in 2 or 4 bits, in memory (SpeCache).
//
//   score(q, entry) = q . k~          k~: the key from its codes, with a step and a middle per group of 32 numbers
//
// Scores are computed from the codes in registers (simd/packed.hpp). Entries on storage keep their full precision.
//
// Bytes:  per entry and KV head 4 for each group of 32 numbers, and D bits / 8 of codes: 24 with D = 64 and 2 bits, where the
//         key itself has 128.
// Cost:   absorb takes some ten passes over a key. score() reads every code once for four queries of its KV head.
// Source: "SpeCache: Speculative Key-Value Caching for Efficient Generation of LLMs" (Jie et al. 2025, section 3): a copy of low
//         precision chooses which entries are fetched. Its copy has values too, and attends them where nothing is fetched.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/simd/packed.hpp>
#include <kvtl/slots/index.hpp>

#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <std::size_t Bits> struct low_bit_keys {
    static constexpr std::string_view name = Bits == 4 ? "int4_keys" : "int2_keys";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool per_entry = true;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return shape.max_entries * entry_bytes(shape);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape&) const noexcept { return 0; }
        void clear(const summary_view&, std::uint32_t) const noexcept {}
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            const auto row = rows(view.shape);
            std::byte* out = view.of<std::byte>(u) + i * entry_bytes(view.shape);
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h, out += row.row_bytes())
                simd::pack_row(key + std::size_t{h} * view.shape.dim, row, out);
        }

        /// out: (queries, U, max_entries)
        void score(const float* q, std::uint32_t queries, const units_view& u,
                   std::span<float> out) const noexcept {
            const summary_shape& shape = u.summary.shape;
            auto all = rows(shape);
            all.data = u.summary.of<std::byte>(0) + u.head * all.row_bytes();
            all.count = std::size_t{u.count} * u.max_entries;
            simd::score_packed<simd::default_arch>(q, queries, shape.dim, all, out.data(), all.count);
            detail::hide_absent_entries(u, queries, out.data());
        }

      private:
        /// Keys of one head; of a table, every entry_bytes().
        [[nodiscard]] static simd::packed_rows<Bits, true> rows(const summary_shape& shape) noexcept {
            return {nullptr, 1, shape.dim, entry_bytes(shape)};
        }
        [[nodiscard]] static std::size_t entry_bytes(const summary_shape& shape) noexcept {
            return shape.lane_heads * simd::packed_rows<Bits, true>{nullptr, 1, shape.dim, 0}.row_bytes();
        }
    };
};

using int2_keys = low_bit_keys<2>;
using int4_keys = low_bit_keys<4>;

}} // namespace kvtl::v0
