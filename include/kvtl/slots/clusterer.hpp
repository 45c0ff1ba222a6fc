// The clusterer slot: which entries form a unit, and how units change during decode.
//
// A policy declares
//
//   unit_of          the owner of a unit: a KV head or a layer
//   needs_means      the manager keeps the mean keys of the units
//   updates_means    every entry that joins a unit moves its mean
//   adapts           units may split
//   clusters_prompt  it groups a prompt at its end, segment_entries() entries at a time, or fewer, down to
//                    least_segment(), if memory is small. Until then units are sequential
//   lane             a trivially copyable type: the data that it keeps for one lane
//   sequential       optional: units are always runs of a fixed number of consecutive entries
//   among_some       optional: assign() accepts a view of only some units (units_view::some) and returns a
//                    number of that view
//
// assign_near(), optional, is assign() for an entry whose nearest mean is known; the manager finds that mean
// when it scores the units. group() may take a `const lent_threads&` as its last argument: the engine's
// threads then share the work, and the result has the same bits.
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

/// The result of assign(): append the entry to `unit`, split `unit` with the entry in it, or open a new unit.
/// The mean of a new unit starts as the mean of `unit`, unless `unit` is none.
enum class growth : std::uint8_t { append, split, open };
struct assignment {
    std::uint32_t unit = none;
    growth how = growth::append;
};

/// Units are runs of a fixed number of consecutive entries.
template <class P>
concept sequential_units = requires {
    requires P::sequential;
};
/// assign() accepts a view of only some units.
template <class P>
concept assigns_among_some = requires {
    requires P::among_some;
};

namespace detail {
/// The clusterer has assign_near(): assign() for a known nearest mean.
template <class State, class Lane>
concept assigns_near = requires(const State& s, Lane& l, const simd::neighbour& nearest, const float* key,
                                const units_view& u, std::span<float> distance) {
    { s.assign_near(l, nearest, key, u, distance) }
    noexcept->std::same_as<assignment>;
};
/// Calls group() with the engine's threads if the clusterer can share the work, otherwise without.
template <class State, class Element>
[[nodiscard]] std::uint32_t group(const State& s, rows_view<Element> keys, std::span<std::byte> scratch,
                                  std::uint32_t* label, const lent_threads& threads) noexcept {
    if constexpr (requires { s.group(keys, scratch, label, threads); })
        return s.group(keys, scratch, label, threads);
    else
        return static_cast<void>(threads), s.group(keys, scratch, label);
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
