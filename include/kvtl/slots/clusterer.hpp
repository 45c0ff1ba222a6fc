// The clusterer slot: which entries form a unit, and how units change during decode.
//
// A policy declares `unit_of` (who shares a unit), `needs_means` and `updates_means` (the manager keeps the
// units' mean keys, and moves them with every entry), `adapts` (units may split), `clusters_prompt` (it groups a
// prompt at its end, segment_entries() of it at a time, or down to least_segment() where memory is
// small; until then units are sequential), a trivially copyable `lane` (what it remembers per
// lane) and, where its units are always runs of a fixed number of consecutive entries, `sequential`. With `among_some`
// its assign() may be shown some of the lane's units only (units_view::some), and answers in their numbers. With
// assign_near(), assign() for an entry whose nearest mean is known, that mean is looked for when units are scored anyway.
// group() may take a `const lent_threads&` behind its other arguments: threads of the engine that share it, without a bit of
// difference.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/lent_threads.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/slots/policy.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// A clusterer's answer: put the entry into `unit`, split `unit` with it, or open a new unit for it (whose
/// mean starts as that of `unit` unless that is none).
enum class growth : std::uint8_t { append, split, open };
struct assignment {
    std::uint32_t unit = none;
    growth how = growth::append;
};

namespace detail {
/// The clusterer's units are runs of a fixed number of consecutive entries.
template <class Clusterer> [[nodiscard]] consteval bool sequential_units() {
    if constexpr (requires { Clusterer::sequential; })
        return Clusterer::sequential;
    else
        return false;
}
/// assign() goes by the nearest mean, and may be told which that is: assign_near().
template <class State, class Lane>
concept assigns_near = requires(const State& s, Lane& l, const simd::neighbour& nearest, const float* key,
                                const units_view& u, std::span<float> distance) {
    { s.assign_near(l, nearest, key, u, distance) }
    noexcept->std::same_as<assignment>;
};
/// group() of a clusterer that lets threads of the engine share it, and of one that does not.
template <class State, class Element>
[[nodiscard]] std::uint32_t group(const State& s, rows_view<Element> keys, std::span<std::byte> scratch,
                                  std::uint32_t* label, const lent_threads& threads) noexcept {
    if constexpr (requires { s.group(keys, scratch, label, threads); })
        return s.group(keys, scratch, label, threads);
    else
        return static_cast<void>(threads), s.group(keys, scratch, label);
}
/// assign() may be shown some of the units.
template <class Clusterer> [[nodiscard]] consteval bool assigns_among_some() {
    if constexpr (requires { Clusterer::among_some; })
        return Clusterer::among_some;
    else
        return false;
}
} // namespace detail

template <class P>
concept clusterer_declares_units = requires {
    { P::unit_of } -> std::convertible_to<granularity>;
    { P::needs_means } -> std::convertible_to<bool>;
    { P::updates_means } -> std::convertible_to<bool>;
    { P::adapts } -> std::convertible_to<bool>;
    { P::clusters_prompt } -> std::convertible_to<bool>;
    typename P::lane;
    requires std::is_trivially_copyable_v<typename P::lane>;
};
template <class P>
concept clusterer_sizes_units = has_state<P> && requires(const typename P::state& s, std::uint32_t tokens) {
    { s.max_entries() }
    noexcept->std::same_as<std::uint32_t>;
    { s.max_units(tokens) }
    noexcept->std::same_as<std::uint32_t>;
    { s.sequential_entries() }
    noexcept->std::same_as<std::uint32_t>;
    { s.pending_entries() }
    noexcept->std::same_as<std::uint32_t>;
    { s.scratch_bytes(tokens, tokens) }
    noexcept->std::same_as<std::size_t>;
};
template <class P>
concept clusterer_checks_config = has_config<P> && has_state<P> && requires(const typename P::config& c) {
    { P::state::check(c) }
    noexcept->std::same_as<status>;
};
template <class P>
concept clusterer_groups = has_state<P> &&
    requires(const typename P::state& s, typename P::lane& lane, rows_view<float> keys,
             std::span<std::byte> scratch, std::uint32_t* label, const unit_record& unit,
             const units_view& units) {
    { s.ready(1U) }
    noexcept->std::same_as<bool>;
    { s.segment_entries() }
    noexcept->std::same_as<std::uint32_t>;
    { s.least_segment() }
    noexcept->std::same_as<std::uint32_t>;
    { s.group(keys, scratch, label) }
    noexcept->std::same_as<std::uint32_t>;
    { s.clustered(lane, units) }
    noexcept;
    { s.judge(lane, unit, 0.0F, units) }
    noexcept->std::same_as<growth>;
};
template <class P>
concept clusterer_assigns = has_state<P> &&
    requires(const typename P::state& s, typename P::lane& lane, const float* key, const units_view& units,
             std::span<float> scratch) {
    { s.assign(lane, key, units, scratch) } -> std::same_as<assignment>;
};
template <class P>
concept clusterer_assign_is_noexcept =
    !clusterer_assigns<P> || requires(const typename P::state& s, typename P::lane& lane, const float* key,
                                      const units_view& units, std::span<float> scratch) {
    { s.assign(lane, key, units, scratch) }
    noexcept;
};

template <class P>
concept clusterer_for = policy_for<P, const geometry&> && clusterer_declares_units<P> &&
    clusterer_checks_config<P> && clusterer_sizes_units<P> && clusterer_assigns<P> &&
    clusterer_assign_is_noexcept<P> &&(!P::clusters_prompt || clusterer_groups<P>);

template <class P> consteval void explain_clusterer() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] clusterer: add `static constexpr std::string_view name` and what "
                      "slots/clusterer.hpp lists");
    } else {
        static_assert(holds(has_config<P>), "[kvtl] clusterer: add an aggregate `struct config`");
        static_assert(holds(state_opens<P, const geometry&>),
                      "[kvtl] clusterer: add `class state` default-constructible and "
                      "constructible from (config, geometry)");
        static_assert(
            holds(state_is_relocatable<P>),
            "[kvtl] clusterer::state: it must be trivially copyable; what it remembers is in `lane`");
        static_assert(
            holds(clusterer_declares_units<P>),
            "[kvtl] clusterer: declare unit_of, needs_means, updates_means, adapts, clusters_prompt and a "
            "trivially copyable `struct lane`");
        static_assert(holds(clusterer_checks_config<P>),
                      "[kvtl] clusterer::state: add `static status check(const config&) noexcept`");
        static_assert(holds(clusterer_sizes_units<P>),
                      "[kvtl] clusterer::state: add noexcept max_entries(), max_units(tokens), "
                      "sequential_entries() and pending_entries(), each returning std::uint32_t, and "
                      "std::size_t scratch_bytes(entries, dim)");
        static_assert(holds(clusterer_assigns<P>),
                      "[kvtl] clusterer::state: add `assignment assign(lane&, const float* key, const "
                      "units_view&, std::span<float> scratch) const noexcept`");
        static_assert(holds(clusterer_assign_is_noexcept<P>),
                      "[kvtl] clusterer::state: assign() must be noexcept, it runs inside the decode loop");
        if constexpr (clusterer_declares_units<P>)
            static_assert(holds(!P::clusters_prompt || clusterer_groups<P>),
                          "[kvtl] clusterer: the state of one that clusters_prompt needs noexcept "
                          "ready(entries), segment_entries(), least_segment(), group(keys, "
                          "scratch, label), clustered(lane, units) and "
                          "judge(lane, unit, distance, units)");
    }
}

}} // namespace kvtl::v0
