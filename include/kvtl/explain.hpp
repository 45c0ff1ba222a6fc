// What a preset must satisfy, one named requirement at a time, and one sentence for each that is broken.
//
// kv_manager's primary template calls explain_preset(), which is reached only by presets that do not satisfy
// preset_for; so correct presets pay nothing, and a wrong one prints sentences instead of a template's
// inside. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/element.hpp>
#include <kvtl/io/device.hpp>
#include <kvtl/layout/layout_limits.hpp>
#include <kvtl/policies/resident_lists.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/signals.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvtl::inline v0 {

// ------------------------------------------------------------------------------------------- requirements by
// slot
template <class P>
concept has_name = requires {
    { P::name } -> std::convertible_to<std::string_view>;
};
template <class P>
concept has_config = requires {
    typename P::config;
}
&&std::is_aggregate_v<typename P::config>;
template <class P, class G>
concept has_state = requires {
    typename P::template state<G>;
};
/// `Args` is what a slot's states are made from besides the policy's config.
template <class P, class G, class... Args>
concept state_opens =
    has_config<P> && has_state<P, G> && std::default_initializable<typename P::template state<G>> &&
    std::constructible_from < typename P::template state<G>,
const typename P::config&, Args... > ;
/// Structures that a policy keeps in memory it is handed: it says how many bytes.
template <class P, class G, class... Args>
concept state_is_sized = has_state<P, G> && requires(Args... args) {
    { P::template state<G>::bytes(args...) } -> std::same_as<std::size_t>;
};

template <class P, class G>
concept clusterer_declares_units = requires {
    { P::unit_of } -> std::convertible_to<granularity>;
    { P::needs_means } -> std::convertible_to<bool>;
    { P::updates_means } -> std::convertible_to<bool>;
    { P::adapts } -> std::convertible_to<bool>;
    { P::founds } -> std::convertible_to<bool>;
    typename P::lane;
    requires std::is_trivially_copyable_v<typename P::lane>;
};
template <class P, class G>
concept clusterer_sizes_units = has_state<P, G> &&
    requires(const typename P::template state<G>& s, std::uint32_t tokens) {
    { s.max_entries() }
    noexcept->std::same_as<std::uint32_t>;
    { s.max_units(tokens) }
    noexcept->std::same_as<std::uint32_t>;
    { s.sequential_entries() }
    noexcept->std::same_as<std::uint32_t>;
    { s.buffer_entries() }
    noexcept->std::same_as<std::uint32_t>;
    { s.scratch_bytes(tokens, tokens) }
    noexcept->std::same_as<std::size_t>;
};
template <class P, class G>
concept clusterer_checks_config = has_config<P> && has_state<P, G> && requires(const typename P::config& c) {
    { P::template state<G>::check(c) }
    noexcept->std::same_as<status>;
};
template <class P, class G>
concept clusterer_groups = has_state<P, G> &&
    requires(const typename P::template state<G>& s, typename P::lane& lane, rows_view<float> keys,
             std::span<std::byte> scratch, std::uint32_t* label, const unit_record& unit,
             const units_view& units) {
    { s.ready(1U) }
    noexcept->std::same_as<bool>;
    { s.group(keys, scratch, label) }
    noexcept->std::same_as<std::uint32_t>;
    { s.founded(lane, units) }
    noexcept;
    { s.judge(lane, unit, 0.0F, units) }
    noexcept->std::same_as<growth>;
};
template <class P, class G>
concept clusterer_assigns = has_state<P, G> &&
    requires(const typename P::template state<G>& s, typename P::lane& lane, const float* key,
             const units_view& units, std::span<float> scratch) {
    { s.assign(lane, key, units, scratch) } -> std::same_as<assignment>;
};
template <class P, class G>
concept clusterer_assign_is_noexcept =
    !clusterer_assigns<P, G> ||
    requires(const typename P::template state<G>& s, typename P::lane& lane, const float* key,
             const units_view& units, std::span<float> scratch) {
    { s.assign(lane, key, units, scratch) }
    noexcept;
};

template <class P, class G>
concept index_declares_scores = requires {
    { P::scores } -> std::convertible_to<bool>;
    { P::needs_means } -> std::convertible_to<bool>;
};
template <class P, class G>
concept index_scores = has_state<P, G> &&
    requires(const typename P::template state<G>& s, const float* q, std::uint32_t n, const units_view& u,
             std::span<float> out) {
    { s.score(q, n, u, out) } -> std::same_as<void>;
};
template <class P, class G>
concept index_score_is_noexcept =
    !index_scores<P, G> || requires(const typename P::template state<G>& s, const float* q, std::uint32_t n,
                                    const units_view& u, std::span<float> out) {
    { s.score(q, n, u, out) }
    noexcept;
};

template <class P, class G>
concept selector_declares_scores = requires {
    { P::takes_everything } -> std::convertible_to<bool>;
    { P::uses_scores } -> std::convertible_to<bool>;
};
template <class P, class G>
concept selector_chooses = has_state<P, G> &&
    requires(const typename P::template state<G>& s, const choice_input& in, std::span<chosen_unit> out) {
    { s.choose(in, out) } -> std::same_as<std::uint32_t>;
};
template <class P, class G>
concept selector_choose_is_noexcept =
    !selector_chooses<P, G> ||
    requires(const typename P::template state<G>& s, const choice_input& in, std::span<chosen_unit> out) {
    { s.choose(in, out) }
    noexcept;
};
template <class P>
concept selector_has_reduction = requires {
    { P::reduction::linear } -> std::convertible_to<bool>;
};

template <class P>
concept layout_declares_kind = requires {
    { P::by_entry } -> std::convertible_to<bool>;
    { P::wants_correlation } -> std::convertible_to<bool>;
};
template <class P, class G>
concept layout_has_runs = has_state<P, G> && requires(typename P::template state<G>& s, std::uint32_t first) {
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
    { s.may_place() }
    noexcept->std::same_as<bool>;
};
template <class P, class G>
concept layout_places_units = has_state<P, G> &&
    requires(typename P::template state<G>& s, const arrangement& a, std::uint32_t n, place& out,
             place where) {
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

template <class P, class G>
concept replacement_tracks = has_state<P, G> &&
    requires(typename P::template state<G>& s, std::uint32_t h, resident_facts facts) {
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
template <class P, class G>
concept replacement_finds_victims = has_state<P, G> &&
    requires(const typename P::template state<G>& s, bool (*pinned)(std::uint32_t)) {
    { s.victim(pinned) }
    noexcept->std::same_as<std::uint32_t>;
};

// ------------------------------------------------------------------------------------------------ one
// concept per slot
template <class P, class G, class... Args>
concept policy_for = has_name<P> && state_opens<P, G, Args...>;
template <class P, class G>
concept clusterer_for = policy_for<P, G, const G&> && clusterer_declares_units<P, G> &&
    clusterer_checks_config<P, G> && clusterer_sizes_units<P, G> && clusterer_assigns<P, G> &&
    clusterer_assign_is_noexcept<P, G> &&(!P::founds || clusterer_groups<P, G>);
template <class P, class G>
concept index_for = policy_for<P, G, const G&> && index_declares_scores<P, G> &&
    (!P::scores || index_scores<P, G>)&&index_score_is_noexcept<P, G>;
template <class P, class G>
concept selector_for = policy_for<P, G, const G&> && selector_declares_scores<P, G> &&
                       (P::takes_everything || selector_chooses<P, G>)&&selector_choose_is_noexcept<P, G> &&
                       (!P::uses_scores || selector_has_reduction<P>);
template <class P, class G>
concept layout_for = policy_for<P, G, layout_limits, std::span<std::byte>> &&
    state_is_sized<P, G, const layout_limits&> && layout_declares_kind<P> && layout_has_runs<P, G> &&
    (P::by_entry || layout_places_units<P, G>);
template <class P, class G>
concept replacement_for = policy_for<P, G, std::uint32_t, std::uint32_t, std::span<std::byte>> &&
    state_is_sized<P, G, std::uint32_t, std::uint32_t> && replacement_tracks<P, G> &&
    replacement_finds_victims<P, G>;

// --------------------------------------------------------------------------------------------------- whole
// presets
template <class T>
concept has_all_slots = requires {
    typename T::clusterer;
    typename T::index;
    typename T::selector;
    typename T::remainder;
    typename T::budget;
    typename T::retention;
    typename T::compressor;
    typename T::position;
    typename T::layout;
    typename T::replacement;
    typename T::schedule;
    typename T::io;
};

/// The union of what a preset's policies need from the engine. v is always needed: it is what attention
/// returns.
template <class T> [[nodiscard]] consteval signal needed_signals() {
    return signal::q | signal::k | signal::v | needs_of<typename T::clusterer>() |
           needs_of<typename T::index>() | needs_of<typename T::selector>() |
           needs_of<typename T::remainder>() | needs_of<typename T::budget>() |
           needs_of<typename T::retention>() | needs_of<typename T::compressor>() |
           needs_of<typename T::position>() | needs_of<typename T::schedule>();
}
[[nodiscard]] constexpr const char* missing_signal(signal needed, signal have) noexcept {
    constexpr std::pair<signal, const char*> names[] = {{signal::q, "q"},
                                                        {signal::k, "k"},
                                                        {signal::v, "v"},
                                                        {signal::k_pre, "k_pre"},
                                                        {signal::x, "x"},
                                                        {signal::probe, "probe"},
                                                        {signal::external, "external"},
                                                        {signal::calibration, "calibration"}};
    for (const auto& [s, name] : names)
        if (contains(needed, s) && !contains(have, s)) return name;
    return "";
}
template <class T> [[nodiscard]] consteval bool wants_full_mass() {
    return feedback_of<typename T::retention>() == feedback::full ||
           feedback_of<typename T::replacement>() == feedback::full ||
           feedback_of<typename T::clusterer>() == feedback::full ||
           feedback_of<typename T::budget>() == feedback::full;
}
template <class T> [[nodiscard]] consteval bool needs_layer_units() {
    return layer_wide_only<typename T::compressor>() || layer_wide_only<typename T::index>() ||
           layer_wide_only<typename T::selector>();
}
template <class T>
concept selector_has_its_scores = !T::selector::uses_scores || T::index::scores;
template <class T>
concept mass_is_complete = !wants_full_mass<T>() || T::selector::takes_everything;
template <class T>
concept granularity_agrees = !needs_layer_units<T>() || T::clusterer::unit_of == granularity::layer;
template <class T>
concept compressor_is_raw = requires {
    typename T::compressor::element_type;
}
&&element<typename T::compressor::element_type>;
template <class T>
concept says_window = requires {
    { T::window_tokens } -> std::convertible_to<std::uint32_t>;
    { T::sink_tokens } -> std::convertible_to<std::uint32_t>;
};

template <class T, class G, class Supplied>
concept preset_for = has_all_slots<T> && says_window<T> && clusterer_for<typename T::clusterer, G> &&
    index_for<typename T::index, G> && selector_for<typename T::selector, G> &&
    layout_for<typename T::layout, G> && replacement_for<typename T::replacement, G> &&
    io_policy<typename T::io> && compressor_is_raw<T> && selector_has_its_scores<T> && mass_is_complete<T> &&
    granularity_agrees<T> && contains(Supplied::value, needed_signals<T>());

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

template <class T, class G, class Supplied> consteval bool explain_preset() {
    explain_slots<T>();
    static_assert(says_window<T>,
                  "[kvtl] preset: declare window_tokens and sink_tokens, or inherit them from presets::full");
    if constexpr (has_all_slots<T>) {
        explain_clusterer<typename T::clusterer, G>();
        explain_index<typename T::index, G>();
        explain_selector<typename T::selector, G>();
        explain_layout<typename T::layout, G>();
        explain_replacement<typename T::replacement, G>();
        static_assert(
            io_policy<typename T::io>,
            "[kvtl] io: the policy needs name, config, device and open(config, io_plan); its device "
            "and queues need what io/device.hpp lists");
        static_assert(compressor_is_raw<T>, "[kvtl] compressor: declare element_type as float, f16 or bf16");
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
        explain_signals<T, Supplied>();
    }
    return true;
}

} // namespace kvtl::inline v0
