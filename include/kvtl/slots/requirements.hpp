// What a preset must satisfy, one named requirement at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/attention.hpp>
#include <kvtl/config.hpp>
#include <kvtl/element.hpp>
#include <kvtl/io/device.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/signals.hpp>
#include <kvtl/slots/compressor.hpp>
#include <kvtl/slots/layout.hpp>
#include <kvtl/slots/remainder.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

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
/// With or without scratch of its own (scratch_floats).
template <class P, class G>
concept index_scores = has_state<P, G> &&(
    requires(const typename P::template state<G>& s, const float* q, std::uint32_t n, const units_view& u,
             std::span<float> out) {
        { s.score(q, n, u, out) } -> std::same_as<void>;
    } ||
    requires(const typename P::template state<G>& s, const float* q, std::uint32_t n, const units_view& u,
             std::span<float> out) {
        { s.score(q, n, u, out, out) } -> std::same_as<void>;
    } ||
    (detail::streams_keys<P>() && requires(const typename P::template state<G>& s, const float* q,
                                           std::uint32_t n, rows_view<float> keys, float* out) {
        { s.score(q, n, keys, out, std::size_t{n}) } -> std::same_as<void>;
    }));
template <class P, class G>
concept index_score_is_noexcept =
    !index_scores<P, G> || requires(const typename P::template state<G>& s, const float* q, std::uint32_t n,
                                    const units_view& u, std::span<float> out) {
    { s.score(q, n, u, out) }
    noexcept;
}
|| requires(const typename P::template state<G>& s, const float* q, std::uint32_t n, const units_view& u,
            std::span<float> out) {
    { s.score(q, n, u, out, out) }
    noexcept;
}
|| requires(const typename P::template state<G>& s, const float* q, std::uint32_t n, rows_view<float> keys,
            float* out) {
    { s.score(q, n, keys, out, std::size_t{n}) }
    noexcept;
};
/// What a policy with summaries does with them (summary.hpp).
template <class P, class G>
concept keeps_summaries = has_state<P, G> &&
    requires(const typename P::template state<G>& s, const summary_shape& shape, const summary_view& view,
             const float* row) {
    { s.unit_bytes(shape) } -> std::same_as<std::size_t>;
    { s.lane_bytes(shape) } -> std::same_as<std::size_t>;
    { s.clear(view, 0U) }
    noexcept;
    { s.absorb(view, 0U, 0U, row, row) }
    noexcept;
};
template <class P, class G>
concept summaries_agree = !detail::summarises<P>() || keeps_summaries<P, G>;
template <class P, class G>
concept remainder_estimates = has_state<P, G> &&
    requires(const typename P::template state<G>& s, const summary_shape& shape, const remainder_input& in,
             const partial& into) {
    { s.scratch_floats(shape, 1U) } -> std::same_as<std::size_t>;
    { s.add(in, into) }
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
    (!P::scores || index_scores<P, G>)&&index_score_is_noexcept<P, G>&& summaries_agree<P, G>;
template <class P, class G>
concept remainder_for = policy_for<P, G, const G&> && summaries_agree<P, G> &&
    (!detail::estimates<P>() || remainder_estimates<P, G>);
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
/// Queries that choose for themselves share no unit across heads.
template <class T>
concept queries_agree = !requires {
    requires T::selector::reduction::per_query;
}
|| T::clusterer::unit_of == granularity::head;
/// A selector that chooses for predicted queries needs a schedule that asks the engine for them.
template <class T>
concept predictions_come = !detail::chooses_ahead<typename T::selector>() || requires {
    requires T::schedule::wants_prediction;
};
/// Presets whose retention gives entries up are served by core/eviction_manager.hpp.
template <class T>
concept drops_entries = requires {
    requires T::retention::drops;
};
/// Presets made of one that drops entries and one that retrieves are served by then.hpp.
template <class T>
concept composed = requires {
    requires T::composed;
};
template <class P>
concept shares_choices = (detail::layers_that_share<P>() > 1);
/// Layers share a choice as numbers of units, which say the same about each of them only when units are runs
/// of consecutive entries.
template <class T>
concept shared_units_agree =
    !shares_choices<typename T::selector> || detail::sequential_units<typename T::clusterer>();
/// Keys that are scored as they come from storage come in the order of units.
template <class T>
concept streamed_keys_in_order = !detail::streams_keys<typename T::index>() ||
                                 (detail::sequential_units<typename T::clusterer>() && T::layout::by_entry);
/// A choice travels to other layers without saying which query made it.
template <class T>
concept shared_queries_agree = !shares_choices<typename T::selector> || !requires {
    requires T::selector::reduction::per_query;
};
template <class T>
concept says_window = requires {
    { T::window_tokens } -> std::convertible_to<std::uint32_t>;
    { T::sink_tokens } -> std::convertible_to<std::uint32_t>;
};

template <class T, class G, class Supplied>
concept preset_for = has_all_slots<T> && says_window<T> && clusterer_for<typename T::clusterer, G> &&
    index_for<typename T::index, G> && selector_for<typename T::selector, G> &&
    layout_for<typename T::layout, G> && replacement_for<typename T::replacement, G> &&
    io_policy<typename T::io> && compressor_for<typename T::compressor, G> && stored_rows_agree<T> &&
    ragged_records_agree<T> && selector_has_its_scores<T> && mass_is_complete<T> && granularity_agrees<T> &&
    remainder_for<typename T::remainder, G> && queries_agree<T> && predictions_come<T> &&
    streamed_keys_in_order<T> && shared_units_agree<T> && shared_queries_agree<T> &&
    contains(Supplied::value, needed_signals<T>());

}} // namespace kvtl::v0
