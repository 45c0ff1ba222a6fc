// The position slot: the position that a kept key is rotated to, in presets that keep entries in memory.
//
// A policy declares `moves`. A policy that moves attends entries at positions inside the cache. Its state has
//
//   void turn_back(const float* q, std::uint32_t heads, std::uint32_t positions, float* out) noexcept
//
// which writes q (heads, D) rotated back by `positions` positions. check() checks the config before open()
// reserves memory. bytes(dim) returns the bytes of memory that the state needs.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

template <class P>
concept position_declares = requires {
    { P::moves } -> std::convertible_to<bool>;
};
template <class P>
concept position_opens = state_constructs<P, std::uint32_t, std::span<std::byte>> &&
    requires(const typename P::config& c, std::uint32_t dim) {
    { P::state::bytes(dim) }
    noexcept->std::same_as<std::size_t>;
    { P::state::check(c, dim) }
    noexcept->std::same_as<status>;
};
template <class P>
concept position_turns =
    !P::moves || requires(typename P::state & s, const float* q, std::uint32_t n, float* out) {
    { s.turn_back(q, n, n, out) }
    noexcept;
};

template <class P>
concept position_for =
    has_name<P> && position_declares<P> && position_opens<P> && position_turns<P> && state_is_relocatable<P>;

template <class P> consteval void explain_position() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] position: add `static constexpr std::string_view name` and what "
                      "slots/position.hpp lists");
    } else {
        static_assert(
            holds(position_declares<P> && position_opens<P>),
            "[kvtl] position: declare moves, a config and a state with bytes(dim) and check(config, "
            "dim), constructible from (config, dim, std::span<std::byte>); see "
            "policies/position_original.hpp");
        if constexpr (position_declares<P>)
            static_assert(
                holds(position_turns<P>),
                "[kvtl] position::state: it moves keys; add noexcept turn_back(q, heads, positions, out)");
        static_assert(holds(state_is_relocatable<P>),
                      "[kvtl] position::state: it must be trivially copyable; use the memory it is handed");
    }
}

}} // namespace kvtl::v0
