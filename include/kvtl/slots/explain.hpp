// One sentence for each requirement that a preset breaks.
//
// kv_manager's primary template calls explain_preset(), which is reached only by presets that do not satisfy
// preset_for; so correct presets pay nothing, and a wrong one prints sentences instead of a template's
// inside.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/requirements.hpp>

#include <cstdint>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <class T> [[nodiscard]] constexpr std::string_view preset_name() noexcept {
    if constexpr (has_name<T>)
        return T::name;
    else
        return "(unnamed)";
}

/// FNV-1a over the names of a preset's policies: what shapes a file's bytes.
template <class T> [[nodiscard]] consteval std::uint64_t preset_fingerprint() {
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (const std::string_view part :
         {std::string_view(T::clusterer::name), std::string_view(T::layout::name),
          std::string_view(T::compressor::name)})
        for (const char c : part) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
    return hash;
}

// ------------------------------------------------------------------------------------------------------ the
// sentences
template <class P, class G> consteval void explain_clusterer() {
    static_assert(has_name<P>, "[kvtl] clusterer: add `static constexpr std::string_view name`");
    static_assert(has_config<P>, "[kvtl] clusterer: add an aggregate `struct config`");
    static_assert(state_opens<P, G, const G&>,
                  "[kvtl] clusterer: add `template <class Geometry> class state` default-constructible and "
                  "constructible from (config, Geometry)");
    static_assert(clusterer_declares_units<P, G>,
                  "[kvtl] clusterer: declare unit_of, needs_means, updates_means, adapts, founds and a "
                  "trivially copyable `struct lane`");
    static_assert(clusterer_checks_config<P, G>,
                  "[kvtl] clusterer::state: add `static status check(const config&) noexcept`");
    static_assert(clusterer_sizes_units<P, G>,
                  "[kvtl] clusterer::state: add noexcept max_entries(), max_units(tokens), "
                  "sequential_entries() and buffer_entries(), each returning std::uint32_t, and "
                  "std::size_t scratch_bytes(entries, dim)");
    static_assert(clusterer_assigns<P, G>,
                  "[kvtl] clusterer::state: add `assignment assign(lane&, const float* key, const "
                  "units_view&, std::span<float> scratch) const noexcept`");
    static_assert(clusterer_assign_is_noexcept<P, G>,
                  "[kvtl] clusterer::state: assign() must be noexcept, it runs inside the decode loop");
    if constexpr (clusterer_declares_units<P, G>)
        static_assert(!P::founds || clusterer_groups<P, G>,
                      "[kvtl] clusterer: the state of one that founds needs noexcept "
                      "ready(entries), group(keys, scratch, label), founded(lane, units) and "
                      "judge(lane, unit, distance, units)");
}
template <class P, class G> consteval void explain_index() {
    static_assert(has_name<P>, "[kvtl] index: add `static constexpr std::string_view name`");
    static_assert(has_config<P>, "[kvtl] index: add an aggregate `struct config`");
    static_assert(state_opens<P, G, const G&>,
                  "[kvtl] index: add `template <class Geometry> class state` default-constructible and "
                  "constructible from (config, Geometry)");
    static_assert(index_declares_scores<P, G>, "[kvtl] index: declare the constants scores and needs_means");
    if constexpr (index_declares_scores<P, G>)
        static_assert(!P::scores || index_scores<P, G>,
                      "[kvtl] index::state: add `void score(const float* q, std::uint32_t queries, "
                      "const units_view&, std::span<float> out) const noexcept`");
    static_assert(index_score_is_noexcept<P, G>,
                  "[kvtl] index::state: score() must be noexcept, it runs inside the decode loop");
    static_assert(
        summaries_agree<P, G>,
        "[kvtl] index::state: it declares summarises, so add unit_bytes(shape), lane_bytes(shape) "
        "returning std::size_t and noexcept clear(view, unit) and absorb(view, unit, i, key, value)");
}
template <class P, class G> consteval void explain_remainder() {
    static_assert(
        policy_for<P, G, const G&>,
        "[kvtl] remainder: add name, an aggregate config and `template <class Geometry> class state` "
        "constructible from (config, Geometry)");
    static_assert(
        summaries_agree<P, G>,
        "[kvtl] remainder::state: it declares summarises, so add unit_bytes(shape), lane_bytes(shape) "
        "returning std::size_t and noexcept clear(view, unit) and absorb(view, unit, i, key, value)");
    static_assert(!detail::estimates<P>() || remainder_estimates<P, G>,
                  "[kvtl] remainder::state: it declares estimates, so add `std::size_t scratch_floats(shape, "
                  "units) const` and `void add(const remainder_input&, const partial&) const noexcept`");
}
template <class P, class G> consteval void explain_selector() {
    static_assert(has_name<P>, "[kvtl] selector: add `static constexpr std::string_view name`");
    static_assert(has_config<P>, "[kvtl] selector: add an aggregate `struct config`");
    static_assert(state_opens<P, G, const G&>,
                  "[kvtl] selector: add `template <class Geometry> class state` default-constructible and "
                  "constructible from (config, Geometry)");
    static_assert(selector_declares_scores<P, G>,
                  "[kvtl] selector: declare the constants takes_everything and uses_scores");
    if constexpr (selector_declares_scores<P, G>) {
        static_assert(P::takes_everything || selector_chooses<P, G>,
                      "[kvtl] selector::state: add `std::uint32_t choose(const choice_input&, "
                      "std::span<chosen_unit> out) const "
                      "noexcept`, which returns how many units it chose");
        static_assert(!P::uses_scores || selector_has_reduction<P>,
                      "[kvtl] selector: a selector that uses scores names its "
                      "`reduction` over the query group, e.g. reduce::group_mean");
    }
    static_assert(selector_choose_is_noexcept<P, G>,
                  "[kvtl] selector::state: choose() must be noexcept, it runs inside the decode loop");
}
template <class P, class G> consteval void explain_layout() {
    static_assert(has_name<P>, "[kvtl] layout: add `static constexpr std::string_view name`");
    static_assert(has_config<P>, "[kvtl] layout: add an aggregate `struct config`");
    static_assert(state_opens<P, G, layout_limits, std::span<std::byte>>,
                  "[kvtl] layout: add `template <class Geometry> class state` default-constructible and "
                  "constructible from (config, layout_limits, std::span<std::byte>)");
    static_assert(state_is_sized<P, G, const layout_limits&>,
                  "[kvtl] layout::state: add `static std::size_t bytes(const layout_limits&)`");
    static_assert(layout_declares_kind<P>,
                  "[kvtl] layout: declare the constants by_entry and wants_correlation");
    static_assert(layout_has_runs<P, G>, "[kvtl] layout::state: add noexcept run_pages(), allocate_run(), "
                                         "release_run(first), top(), used() and may_place()");
    if constexpr (layout_declares_kind<P>)
        static_assert(P::by_entry || layout_places_units<P, G>,
                      "[kvtl] layout::state: a page-wise layout needs noexcept arrange(arrangement), "
                      "place_unit(pages, place&), page(place, i), capacity(place) and release(place)");
}
template <class P, class G> consteval void explain_replacement() {
    static_assert(has_name<P>, "[kvtl] replacement: add `static constexpr std::string_view name`");
    static_assert(has_config<P>, "[kvtl] replacement: add an aggregate `struct config`");
    static_assert(state_opens<P, G, std::uint32_t, std::uint32_t, std::span<std::byte>>,
                  "[kvtl] replacement: add `template <class Geometry> class state` default-constructible and "
                  "constructible from (config, handles, unit_pages, std::span<std::byte>)");
    static_assert(state_is_sized<P, G, std::uint32_t, std::uint32_t>,
                  "[kvtl] replacement::state: add `static std::size_t bytes(handles, unit_pages)`");
    static_assert(replacement_tracks<P, G>,
                  "[kvtl] replacement::state: add noexcept tick(), admit(handle, facts), touch(handle), "
                  "refresh(handle, facts) and remove(handle)");
    static_assert(replacement_finds_victims<P, G>,
                  "[kvtl] replacement::state: add `std::uint32_t victim(pinned) const noexcept`, which "
                  "returns a handle or none");
}

template <class T> consteval void explain_slots() {
    static_assert(
        requires { typename T::clusterer; },
        "[kvtl] preset: the slot `clusterer` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::index; },
        "[kvtl] preset: the slot `index` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::selector; },
        "[kvtl] preset: the slot `selector` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::remainder; },
        "[kvtl] preset: the slot `remainder` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::budget; },
        "[kvtl] preset: the slot `budget` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::retention; },
        "[kvtl] preset: the slot `retention` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::compressor; },
        "[kvtl] preset: the slot `compressor` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::position; },
        "[kvtl] preset: the slot `position` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::layout; },
        "[kvtl] preset: the slot `layout` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::replacement; },
        "[kvtl] preset: the slot `replacement` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::schedule; },
        "[kvtl] preset: the slot `schedule` is missing; name a policy or inherit one from presets::full");
    static_assert(
        requires { typename T::io; },
        "[kvtl] preset: the slot `io` is missing; name a policy or inherit one from presets::full");
}
template <class T, class Supplied> consteval void explain_signals() {
    constexpr signal missing = without(needed_signals<T>(), Supplied::value);
    static_assert(!contains(missing, signal::q),
                  "[kvtl] signals: a policy needs q (post-RoPE queries), which this engine does not supply; "
                  "add signal::q to supplied<...>, or change the policy");
    static_assert(!contains(missing, signal::k),
                  "[kvtl] signals: a policy needs k (post-RoPE keys), which this engine does not supply; add "
                  "signal::k to supplied<...>, or change the policy");
    static_assert(!contains(missing, signal::v),
                  "[kvtl] signals: a policy needs v (values), which this engine does not supply; add "
                  "signal::v to supplied<...>, or change the policy");
    static_assert(!contains(missing, signal::k_pre),
                  "[kvtl] signals: a policy needs k_pre (keys before RoPE), which this engine does not "
                  "supply; add signal::k_pre to supplied<...>, or change the policy");
    static_assert(!contains(missing, signal::x),
                  "[kvtl] signals: a policy needs x (the input of the layer), which this engine does not "
                  "supply; add signal::x to supplied<...>, or change the policy");
    static_assert(!contains(missing, signal::probe),
                  "[kvtl] signals: a policy needs probe (queries that stand for the future), which this "
                  "engine does not supply; add signal::probe to supplied<...>, or change the policy");
    static_assert(!contains(missing, signal::external),
                  "[kvtl] signals: a policy needs external (scores computed outside), which this engine does "
                  "not supply; add signal::external to supplied<...>, or change the policy");
    static_assert(!contains(missing, signal::calibration),
                  "[kvtl] signals: a policy needs calibration (a blob fitted offline), which this engine "
                  "does not supply; add signal::calibration to supplied<...>, or change the policy");
}

/// Sentences about presets that drop entries; defined in slots/eviction_requirements.hpp.
template <class T, class G> struct eviction_sentences;
template <class T, class G>
concept eviction_is_included = requires {
    sizeof(eviction_sentences<T, G>);
};

/// Sentences about presets made of two; defined in composition.hpp.
template <class T, class G, class Supplied> struct composition_sentences;

template <class T, class G, class Supplied> consteval bool explain_preset() {
    if constexpr (composed<T>) {
        composition_sentences<T, G, Supplied>::print();
        return true;
    }
    explain_slots<T>();
    static_assert(says_window<T>,
                  "[kvtl] preset: declare window_tokens and sink_tokens, or inherit them from presets::full");
    if constexpr (has_all_slots<T> && drops_entries<T>) {
        static_assert(eviction_is_included<T, G>, "[kvtl] retention: this preset drops entries; include "
                                                  "<kvtl/core/eviction_manager.hpp>");
        if constexpr (eviction_is_included<T, G>) eviction_sentences<T, G>::print();
        explain_signals<T, Supplied>();
    } else if constexpr (has_all_slots<T>) {
        explain_clusterer<typename T::clusterer, G>();
        explain_index<typename T::index, G>();
        explain_selector<typename T::selector, G>();
        explain_remainder<typename T::remainder, G>();
        explain_layout<typename T::layout, G>();
        explain_replacement<typename T::replacement, G>();
        static_assert(
            io_policy<typename T::io>,
            "[kvtl] io: the policy needs name, config, device and open(config, io_plan); its device "
            "and queues need what io/device.hpp lists");
        explain_compressor<typename T::compressor, G>();
        explain_stored_rows<T>();
        explain_ragged_records<T>();
        if constexpr (selector_declares_scores<typename T::selector, G> &&
                      index_declares_scores<typename T::index, G>) {
            static_assert(selector_has_its_scores<T>, "[kvtl] selector: it chooses by score, but this index "
                                                      "keeps none; use an index such as centroid");
            static_assert(
                mass_is_complete<T>,
                "[kvtl] feedback: a policy reads the full attention mass, but the selector does not read "
                "everything; declare feedback::estimated or use all_units");
        }
        if constexpr (clusterer_declares_units<typename T::clusterer, G>)
            static_assert(
                granularity_agrees<T>,
                "[kvtl] granularity: a policy works on all KV heads of a layer together, but the clusterer's "
                "units belong to one head; use a layer-wide clusterer such as fixed_layer_groups");
        if constexpr (clusterer_declares_units<typename T::clusterer, G>)
            static_assert(
                queries_agree<T>,
                "[kvtl] selector: with reduce::none every query chooses for itself, which needs units "
                "of one KV head; use another reduction with layer-wide units");
        if constexpr (clusterer_declares_units<typename T::clusterer, G>) {
            static_assert(
                streamed_keys_in_order<T>,
                "[kvtl] index: it scores keys as they come from storage, which needs units that are "
                "runs of consecutive entries in token order; use a clusterer such as single_tokens "
                "and the sequence_order layout");
            static_assert(shared_units_agree<T>,
                          "[kvtl] selector: layers share its choice, which needs units that are runs of "
                          "consecutive entries; use a clusterer such as fixed_groups");
            static_assert(shared_queries_agree<T>,
                          "[kvtl] selector: layers share its choice, which is then one for all queries; use "
                          "a reduction other than reduce::none");
        }
        static_assert(predictions_come<T>,
                      "[kvtl] selector: it chooses for predicted queries; use the schedule "
                      "next_layer, which asks the engine for them");
        explain_signals<T, Supplied>();
    }
    return true;
}

}} // namespace kvtl::v0
