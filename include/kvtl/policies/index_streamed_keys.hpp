// Index: the keys themselves, read from storage at every step. For caches whose keys do not fit in memory:
// scores are exact as those of exact_keys and sole_keys (index_exact_keys.hpp), and DRAM holds no key but
// those of the window, the resident units and the unfinished page.
//
//   score(q, entry) = q . k
//
// What:   the store gives keys pages of their own (group_store.hpp) and hands them over in runs, (rows, D)
// each,
//         in token order; values of units that are not chosen are never read.
// Bytes:  none in memory. Read per step and KV head: all stored keys, T D sizeof(E).
// Cost:   T D multiply-adds per query that scores, and the time that the device takes to read T keys.
// Limits: units of consecutive entries in token order, as only these are found without reading them. With a
//         reduction that is not linear the keys are read once for each KV head of the lane.
// Source: the baseline without clusters of DynaKV (Table 1), whose keys did not fit either.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/signals.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/views.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct streamed_keys {
    static constexpr std::string_view name = "streamed_keys";
    static constexpr signal needs = signal::q | signal::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool per_entry = true;
    static constexpr bool streams_keys = true;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    template <class Geometry> class state {
      public:
        state() = default;
        state(const config&, const Geometry&) noexcept {}

        /// Scores of one run of keys. q: (queries, keys.dim). out: (queries, keys.count), `stride` floats
        /// from query to query.
        template <element E>
        void score(const float* q, std::uint32_t queries, rows_view<E> keys, float* out,
                   std::size_t stride) const noexcept {
            simd::dot_group(q, queries, keys.dim, keys, out, stride);
        }
    };
};

}} // namespace kvtl::v0
