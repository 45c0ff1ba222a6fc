// Index: the keys themselves, in memory. Scores equal those of attention up to the rounding of E. It is the
// oracle of every other index, and token top-k without approximation.
//
//   score(q, entry) = q . k
//
// It keeps a second copy of keys that are also on storage; stored_keys scores the only copy.
//
// Bytes:  per entry and KV head D sizeof(E); with f16 that is half of an f16 cache.
// Cost:   absorb copies a row. score() reads every key once for all queries of its KV head.
// Limits: f16 keys beyond 65504 become infinite.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>

#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <element E> struct exact_keys_as {
    static constexpr std::string_view name = "exact_keys";
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
            return rows(shape).unit_bytes(shape);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape&) const noexcept { return 0; }
        void clear(const summary_view&, std::uint32_t) const noexcept {}
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            simd::encode(key, rows(view.shape).row(view, u, i), view.shape.width());
        }

        /// out: (queries, U, max_entries)
        void score(const float* q, std::uint32_t queries, const units_view& u,
                   std::span<float> out) const noexcept {
            const std::size_t dim = u.summary.shape.dim;
            simd::dot_group(q, queries, dim, rows(u.summary.shape).all(u, u.head * dim, dim), out.data(),
                            std::size_t{u.count} * u.max_entries);
            detail::hide_absent_entries(u, queries, out.data());
        }

      private:
        [[nodiscard]] static detail::entry_rows<E> rows(const summary_shape& shape) noexcept {
            return {shape.width()};
        }
    };
};

using exact_keys = exact_keys_as<f16>;

}} // namespace kvtl::v0
