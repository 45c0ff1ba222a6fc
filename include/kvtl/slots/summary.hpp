// Summaries: the bytes that an index or a remainder keeps in DRAM for every unit of a lane, so that units can
// be scored (or stood in for) without being read.
//
// A policy with summaries declares `static constexpr bool summarises = true` and its state offers
//
//   std::size_t unit_bytes(const summary_shape&) const    bytes per unit, the same for all units
//   std::size_t lane_bytes(const summary_shape&) const    bytes per lane (codebooks, bases)
//   std::size_t tail_bytes(const summary_shape&) const    may be left out: bytes behind the last unit, for
//                                                         an index that lays entries out in blocks
//   void clear(const summary_view&, std::uint32_t unit)   the unit has no entries (again)
//   void absorb(const summary_view&, std::uint32_t unit, std::uint32_t i, const float* key, const float*
//   value)
//                                                         its i-th entry; key and value: (lane heads, D)
//
// Summaries lie in the lane's block: no pointers, trivially copyable. A unit is always built entry by entry,
// so an index has no second code path for prompts, splits or further turns.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// What sizes a policy's summaries, the same for every lane of a cache.
struct summary_shape {
    std::uint32_t lane_heads = 1;  ///< KV heads per lane
    std::uint32_t group = 1;       ///< query heads per KV head
    std::uint32_t dim = 0;         ///< D
    std::uint32_t max_entries = 1; ///< of a unit

    [[nodiscard]] constexpr std::size_t width() const noexcept { return std::size_t{lane_heads} * dim; }
};

/// One lane's summaries of one policy.
struct summary_view {
    std::byte* lane = nullptr; ///< lane_bytes(), aligned to 64
    std::byte* unit = nullptr; ///< unit_bytes() times units
    std::size_t stride = 0;    ///< bytes from unit to unit
    summary_shape shape{};
    std::uint32_t layer = 0;
    std::uint32_t first_head = 0; ///< KV head of the model that the lane's first head is

    template <class T> [[nodiscard]] T* of(std::uint32_t u) const noexcept {
        return reinterpret_cast<T*>(unit + u * stride);
    }
    template <class T> [[nodiscard]] T* of_lane() const noexcept { return reinterpret_cast<T*>(lane); }
};

namespace detail {

template <class Policy> [[nodiscard]] consteval bool summarises() {
    if constexpr (requires { Policy::summarises; })
        return Policy::summarises;
    else
        return false;
}
/// Scores come one per entry (U * max_entries of them) instead of one per unit.
template <class Index> [[nodiscard]] consteval bool scores_entries() {
    if constexpr (requires { Index::per_entry; })
        return Index::per_entry;
    else
        return false;
}
/// The index keeps nothing in DRAM and scores with the keys as they come from storage, run after run.
template <class Index> [[nodiscard]] consteval bool streams_keys() {
    if constexpr (requires { Index::streams_keys; })
        return Index::streams_keys;
    else
        return false;
}
/// The index fits something to a lane's first keys: state.fit(view, keys (T, D of the lane), scratch).
template <class Index> [[nodiscard]] consteval bool fits_lane() {
    if constexpr (requires { Index::fits; })
        return Index::fits;
    else
        return false;
}
/// A score of the mean query is the mean of the scores.
template <class Index> [[nodiscard]] consteval bool linear_in_query() {
    if constexpr (requires { Index::linear; })
        return Index::linear;
    else
        return true;
}
template <class Remainder> [[nodiscard]] consteval bool estimates() {
    if constexpr (requires { Remainder::estimates; })
        return Remainder::estimates;
    else
        return false;
}
/// The clusterer's units are runs of a fixed number of consecutive entries.
template <class Clusterer> [[nodiscard]] consteval bool sequential_units() {
    if constexpr (requires { Clusterer::sequential; })
        return Clusterer::sequential;
    else
        return false;
}
/// How many adjacent layers share what the selector chooses for the first of them.
template <class Selector> [[nodiscard]] consteval std::uint32_t layers_that_share() {
    if constexpr (requires { Selector::layers_that_share; })
        return Selector::layers_that_share;
    else
        return 1;
}
/// The selector chooses for a query that was predicted one layer ahead (query::predicted).
template <class Selector> [[nodiscard]] consteval bool chooses_ahead() {
    if constexpr (requires { Selector::source; })
        return static_cast<bool>(Selector::source);
    else
        return false;
}

} // namespace detail

}} // namespace kvtl::v0
