// The replacement slot: which resident units are evicted first.
//
// A resident unit has a handle, a number below `handles`. A state keeps its lists in the memory that it is
// handed (policies/support/resident_lists.hpp).
//
// State is relocatable: everything that a call changes lies in that memory, also for victim() and resize(). A
// state attaches to a block that another state has filled (slots/state_block.hpp).
//
//   tick()                    a step begins
//   admit(handle, facts)      a unit became resident    remove(handle)           it was evicted
//   touch(handle)             it was chosen again       refresh(handle, facts)   it grew or was split
//   victim(pinned)            returns the handle to evict next, or none; never one for which pinned(handle)
//   resize(frames)            optional: the pool now has `frames` frames; for policies that divide them
//   serve(lane)               optional: the next victims make room for a unit of this lane
//
// Pools of different sizes share the memory of as many equal pools (core/store/pool_division.hpp). So
// bytes(handles, unit_pages) must be linear or concave in handles; up to 16 bytes more are allowed.
//
// A policy that keeps lane numbers in its memory defines `names_lanes`. With `keeps_nothing`, units that a step has
// read are evicted at its end. A policy defines `block_form`, a number, and changes it when the meaning of its memory
// changes while the size may stay. Older saves are then loaded without their units in memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>
#include <kvtl/slots/state_block.hpp>
#include <kvtl/unit.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// Facts about a resident unit, for replacement policies.
struct resident_facts {
    std::uint32_t pages = 1; ///< frames that it occupies
    bool updated = false;    ///< it has just received entries or was split
    std::uint32_t lane = 0;  ///< lane and number of the unit: for policies that remember evicted units
    std::uint32_t unit = 0;
};

template <class P>
concept replacement_tracks = has_state<P> &&
    requires(typename P::state& s, std::uint32_t h, resident_facts facts) {
    { s.tick() }
    noexcept;
    { s.admit(h, facts) }
    noexcept;
    { s.touch(h) }
    noexcept;
    { s.refresh(h, facts) }
    noexcept;
    { s.remove(h) }
    noexcept;
};
template <class P>
concept replacement_finds_victims = has_state<P> &&
    requires(const typename P::state& s, bool (*pinned)(std::uint32_t)) {
    { s.victim(pinned) }
    noexcept->std::same_as<std::uint32_t>;
};

template <class P>
concept replacement_for = policy_for<P, std::uint32_t, std::uint32_t, std::span<std::byte>> &&
    state_attaches<P, std::uint32_t, std::uint32_t, std::span<std::byte>> &&
    state_is_sized<P, std::uint32_t, std::uint32_t> && replacement_tracks<P> && replacement_finds_victims<P>;

template <class P> consteval void explain_replacement() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] replacement: add `static constexpr std::string_view name` and what "
                      "slots/replacement.hpp lists");
    } else {
        static_assert(holds(has_config<P>), "[kvtl] replacement: add an aggregate `struct config`");
        static_assert(holds(state_opens<P, std::uint32_t, std::uint32_t, std::span<std::byte>>),
                      "[kvtl] replacement: add `class state` default-constructible and "
                      "constructible from (config, handles, unit_pages, std::span<std::byte>)");
        static_assert(holds(state_is_relocatable<P>),
                      "[kvtl] replacement::state: it must be trivially copyable; use the memory it is handed "
                      "instead of memory of its own");
        if constexpr (state_opens<P, std::uint32_t, std::uint32_t, std::span<std::byte>>)
            static_assert(
                holds(state_attaches<P, std::uint32_t, std::uint32_t, std::span<std::byte>>),
                "[kvtl] replacement::state: let its constructor take a state_block behind the memory, "
                "fresh unless given; it goes on from a filled block as from its own");
        static_assert(holds(state_is_sized<P, std::uint32_t, std::uint32_t>),
                      "[kvtl] replacement::state: add `static std::size_t bytes(handles, unit_pages)`");
        static_assert(holds(replacement_tracks<P>),
                      "[kvtl] replacement::state: add noexcept tick(), admit(handle, facts), touch(handle), "
                      "refresh(handle, facts) and remove(handle)");
        static_assert(holds(replacement_finds_victims<P>),
                      "[kvtl] replacement::state: add `std::uint32_t victim(pinned) const noexcept`, which "
                      "returns a handle or none");
    }
}

}} // namespace kvtl::v0
