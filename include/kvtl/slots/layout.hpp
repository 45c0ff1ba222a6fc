// The layout slot: where a unit's bytes are on storage, and how the unit grows.
//
// A policy declares
//
//   by_entry            true: pages belong to the lane's stream of entries in token order, and units are runs
//                       of it. false: pages belong to units
//   wants_correlation   a prompt's units are passed in the order in which they are retrieved together
//   decode_fills_file   optional, true: decode may fill the sequence's part of the file. Else it adds no unit beyond 2.5
//                       raw caches of the sequence
//
// Pages are numbers below layout_limits::file_pages, of one shard. Every layout hands out runs of run_pages()
// adjacent pages, for streams and for staged prompts. A page-wise layout also places units, and
// the capacity(place) of a unit stays the same until its release(place).
//
// State is relocatable: everything that a call changes lies in the block. A state attaches to a block that
// another state has filled (slots/state_block.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>
#include <kvtl/slots/state_block.hpp>
#include <kvtl/unit.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// Limits of a layout, fixed when the cache is opened.
struct layout_limits {
    std::uint32_t file_pages = 0; ///< pages that a shard may use; the units of a prompt always fit
    std::uint32_t unit_pages = 1; ///< pages of the largest unit
};

/// The units of one prompt, in the order in which a layout places them. `strength[i]` counts how often units
/// order[i] and order[i+1] were retrieved together (0: a chain ends at i).
struct arrangement {
    std::span<const std::uint32_t> order;
    std::span<const std::uint32_t> strength;
    std::span<unit_record> unit; ///< in: entries; out: where
    std::uint32_t rows_per_page = 1;
    std::span<const std::uint32_t> page_count{}; ///< pages of each unit, if entries differ in size; or empty

    [[nodiscard]] std::uint32_t pages(std::uint32_t u) const noexcept {
        return page_count.empty() ? (unit[u].entries + rows_per_page - 1) / rows_per_page : page_count[u];
    }
};

/// Decode may fill the sequence's part of the file.
template <class P>
concept fills_file = requires {
    requires P::decode_fills_file;
};
template <class P>
concept layout_declares_kind = requires {
    { P::by_entry } -> std::convertible_to<bool>;
    { P::wants_correlation } -> std::convertible_to<bool>;
};
template <class P>
concept layout_has_runs = has_state<P> && requires(typename P::state& s, std::uint32_t first) {
    { s.run_pages() }
    noexcept->std::same_as<std::uint32_t>;
    { s.allocate_run() }
    noexcept->std::same_as<std::uint32_t>;
    { s.release_run(first) }
    noexcept;
    { s.top() }
    noexcept->std::same_as<std::uint32_t>;
    { s.used() }
    noexcept->std::same_as<std::uint32_t>;
};
template <class P>
concept layout_places_units = has_state<P> &&
    requires(typename P::state& s, const arrangement& a, std::uint32_t n, place& out, place where) {
    { s.arrange(a) }
    noexcept->std::same_as<bool>;
    { s.place_unit(n, out) }
    noexcept->std::same_as<bool>;
    { s.page(where, n) }
    noexcept->std::same_as<std::uint32_t>;
    { s.capacity(where) }
    noexcept->std::same_as<std::uint32_t>;
    { s.release(where) }
    noexcept;
};

template <class P>
concept layout_for = policy_for<P, layout_limits, std::span<std::byte>> &&
    state_attaches<P, layout_limits, std::span<std::byte>> && state_is_sized<P, const layout_limits&> &&
    layout_declares_kind<P> && layout_has_runs<P> &&(P::by_entry || layout_places_units<P>);

template <class P> consteval void explain_layout() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] layout: add `static constexpr std::string_view name` and what "
                      "slots/layout.hpp lists");
    } else {
        static_assert(holds(has_config<P>), "[kvtl] layout: add an aggregate `struct config`");
        static_assert(holds(state_opens<P, layout_limits, std::span<std::byte>>),
                      "[kvtl] layout: add `class state` default-constructible and "
                      "constructible from (config, layout_limits, std::span<std::byte>)");
        static_assert(holds(state_is_relocatable<P>),
                      "[kvtl] layout::state: it must be trivially copyable; use the memory it is handed");
        if constexpr (state_opens<P, layout_limits, std::span<std::byte>>)
            static_assert(
                holds(state_attaches<P, layout_limits, std::span<std::byte>>),
                "[kvtl] layout::state: let its constructor take a state_block behind the memory, fresh "
                "unless given; it goes on from a filled block as from its own");
        static_assert(holds(state_is_sized<P, const layout_limits&>),
                      "[kvtl] layout::state: add `static std::size_t bytes(const layout_limits&)`");
        static_assert(holds(layout_declares_kind<P>),
                      "[kvtl] layout: declare the constants by_entry and wants_correlation");
        static_assert(holds(layout_has_runs<P>),
                      "[kvtl] layout::state: add noexcept run_pages(), allocate_run(), "
                      "release_run(first), top() and used()");
        if constexpr (layout_declares_kind<P>)
            static_assert(holds(P::by_entry || layout_places_units<P>),
                          "[kvtl] layout::state: a page-wise layout needs noexcept arrange(arrangement), "
                          "place_unit(pages, place&), page(place, i), capacity(place) and release(place)");
    }
}

}} // namespace kvtl::v0
