// A preset: one policy per slot. This header has the rules for a whole preset, the place of its entries, and
// one concept for each rule.
//
// The place of the entries follows from the slots (store_of_preset):
//
//   rows     clusterer, index and selector are null objects: every kept entry is attended, and so entries
//            stay in memory, as rows or as records
//   groups   units are runs of a fixed number of consecutive entries in token order on storage: they need no
//            records beyond residency
//   units    units with records, on storage
//
// Every slot is read or refused. A slot that a preset's path does not read must hold its null object:
//
//   slot          rows       groups, units                      groups, units behind a retention that drops
//   clusterer     (null)     read                               read
//   index         (null)     read by selectors with scores      read by selectors with scores
//   selector      (null)     read                               read
//   estimator     unread     read, unless all_units leaves no rest
//   budget        read       unread                             read
//   retention     read       keep_all                           read, once, when a prompt ends
//   compressor    read       read                               read
//   position      read where kept rows stay rows   unread       unread: entries keep their positions
//   layout        unread     read                               read
//   replacement   unread     read                               read
//   schedule      unread     read (by the engine and prefetch)  read
//   io            unread     read                               read
//
// If the window holds the whole sequence (only in `full`), every entry stays a plain row, and the compressor
// is unread as well.
//
// A preset that drops and retrieves is an ordinary preset. The retention drops entries when the prompt ends;
// the survivors go to storage and are retrieved from there:
//
//   struct snapkv_then_dynakv : dynakv { using retention = drop<window_attention<..>>; };
//
// Its score decides once, when the prompt ends, and for KV heads, not query heads. Entries keep their
// positions. If units, index or codec span all heads of a layer, the heads decide together. If units span all
// heads, every head keeps the same number of plain entries. All of this also holds for survivors that stay in
// memory in records which only the chain of a lane can hold (core/store/record_chain.hpp): records of all
// heads of a layer, records with positions, or records in bases of a layer.
//
// The primary template of kv_manager calls explain_preset() of slots/sentences.hpp. Only presets that do not
// satisfy preset_for reach it. So correct presets pay nothing, and a wrong preset prints sentences instead of
// the inside of a template.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/slots/budget.hpp>
#include <kvtl/slots/clusterer.hpp>
#include <kvtl/slots/compressor.hpp>
#include <kvtl/slots/estimator.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/slots/layout.hpp>
#include <kvtl/slots/position.hpp>
#include <kvtl/slots/replacement.hpp>
#include <kvtl/slots/retention.hpp>
#include <kvtl/slots/schedule.hpp>
#include <kvtl/slots/selector.hpp>

#include <concepts>
#include <cstdint>
#include <string_view>
#include <utility>

namespace kvtl { inline namespace v0 {

// The null object of each slot (presets::full). The rules need only their names.
struct single_tokens;
struct no_index;
struct all_units;
struct nothing;
struct uniform;
struct keep_all;
struct original;
struct sequence_order;
struct lru;
struct on_demand;
struct in_memory;

/// The place of a preset's entries.
enum class store_kind : std::uint8_t { rows, groups, units };

/// The retention drops entries.
template <class T>
concept drops_entries = retention_drops<typename T::retention>;

template <class Preset> [[nodiscard]] consteval store_kind store_of_preset() {
    if constexpr (std::same_as<typename Preset::clusterer, single_tokens> &&
                  std::same_as<typename Preset::index, no_index> &&
                  std::same_as<typename Preset::selector, all_units>)
        return store_kind::rows;
    else if constexpr (requires { requires Preset::layout::by_entry; })
        return sequential_units<typename Preset::clusterer> ? store_kind::groups : store_kind::units;
    else
        return store_kind::units;
}
/// Entries are on storage, and a step chooses among them.
template <class T>
concept retrieves = store_of_preset<T>()
!= store_kind::rows;

/// Only chains can hold its records: they span a whole layer, use bases of a lane, or have positions.
template <class Compressor>
concept needs_chains =
    codec_per_lane<Compressor> || layer_wide_only<Compressor> || Compressor::domain == key_domain::pre_rope;
/// Entries stay in memory, as rows and, in a chain per lane, as records. These are all entries, or the
/// survivors of a prompt. Exception: records of one head stay with a retention that drops, which evicts from
/// them.
template <class T>
concept keeps_in_chains = !retrieves<T> && (!drops_entries<T> || needs_chains<typename T::compressor>);
/// When a prompt is complete, its survivors move to units or to chains.
template <class T>
concept hands_over = drops_entries<T> &&(retrieves<T> || keeps_in_chains<T>);

// ---------------------------------------------------------------------------------- all slots are there
template <class T>
concept has_all_slots = requires {
    typename T::clusterer;
    typename T::index;
    typename T::selector;
    typename T::estimator;
    typename T::budget;
    typename T::retention;
    typename T::compressor;
    typename T::position;
    typename T::layout;
    typename T::replacement;
    typename T::schedule;
    typename T::io;
};
template <class T>
concept says_window = requires {
    { T::window_tokens } -> std::convertible_to<std::uint32_t>;
    { T::sink_tokens } -> std::convertible_to<std::uint32_t>;
};
template <class T>
concept slots_are_filled = clusterer_for<typename T::clusterer> && index_for<typename T::index> &&
    selector_for<typename T::selector> && estimator_for<typename T::estimator> &&
    budget_for<typename T::budget> && retention_for<typename T::retention> &&
    compressor_for<typename T::compressor> && position_for<typename T::position> &&
    layout_for<typename T::layout> && replacement_for<typename T::replacement> &&
    schedule_for<typename T::schedule> && io_policy<typename T::io>;

// ---------------------------------------------------------------------------------- every slot is read
template <class T>
concept storage_is_read = retrieves<T> ||
    (std::same_as<typename T::layout, sequence_order>&& std::same_as<typename T::replacement, lru>&&
         std::same_as<typename T::schedule, on_demand>&& std::same_as<typename T::io, in_memory>);
/// If the window holds the whole sequence (`full`), no entry leaves it to be grouped, chosen or encoded.
template <class T>
concept window_is_left = T::window_tokens != whole_sequence ||
                         (!retrieves<T> &&
                          (T::compressor::rows_are_records || (drops_entries<T> && !hands_over<T>)));
template <class T>
concept index_is_read = std::same_as<typename T::index, no_index> || T::selector::uses_scores;
template <class T>
concept estimator_is_read = std::same_as<typename T::estimator, nothing> || !T::selector::takes_everything;
template <class T>
concept retention_is_read = drops_entries<T> || std::same_as<typename T::retention, keep_all>;
template <class T>
concept budget_is_read = drops_entries<T> || std::same_as<typename T::budget, uniform>;
template <class T>
concept position_is_read =
    (drops_entries<T> && !hands_over<T>) || std::same_as<typename T::position, original>;
/// Only retentions get the attention mass.
template <class T>
concept mass_is_fed = feedback_of<typename T::clusterer>()
== feedback::unused&& feedback_of<typename T::replacement>() ==
    feedback::unused&& feedback_of<typename T::budget>() == feedback::unused;

// ------------------------------------------------------------------------------------ slots that agree
template <class T>
concept needs_layer_units = layer_wide_only<typename T::compressor> || layer_wide_only<typename T::index> ||
    layer_wide_only<typename T::selector>;
template <class T>
concept selector_has_its_scores = !T::selector::uses_scores || T::index::scores;
template <class T>
concept mass_is_complete = feedback_of<typename T::retention>()
!= feedback::full || T::selector::takes_everything;
template <class T>
concept granularity_agrees =
    !retrieves<T> || !needs_layer_units<T> || T::clusterer::unit_of == granularity::layer;
/// If every query chooses for itself, units belong to one head.
template <class T>
concept queries_agree =
    !chooses_per_query<typename T::selector> || T::clusterer::unit_of == granularity::head;
/// In a stream of entries in token order, the number of a unit determines its place.
template <class T>
concept streams_hold_runs = !retrieves<T> || !T::layout::by_entry || sequential_units<typename T::clusterer>;
/// A selector that chooses for predicted queries needs a schedule that asks the engine for them.
template <class T>
concept predictions_come = !chooses_ahead<typename T::selector> || asks_for_predictions<typename T::schedule>;
/// Virtualised layers need units that own whole pages, and a replacement policy that keeps units resident.
template <class T>
concept layers_can_take_turns =
    !virtualises<typename T::schedule> ||
    (store_of_preset<T>() == store_kind::units && !requires { requires T::replacement::keeps_nothing; });
/// Layers share a choice as numbers of units. These mean the same entries in every layer only if units are
/// runs of consecutive entries.
template <class T>
concept shared_units_agree = !shares_choices<typename T::selector> || sequential_units<typename T::clusterer>;
/// The engine names units by number: the place of their tokens has to follow from it.
template <class T>
concept named_units_agree =
    !engine_names_units<typename T::selector> ||
    (store_of_preset<T>() == store_kind::groups && !drops_entries<T> && !T::layout::wants_correlation);
/// Stored keys that are scored in place must lie in the order of units.
template <class T>
concept stored_keys_in_order =
    !scores_stored_keys<typename T::index> || store_of_preset<T>() == store_kind::groups;
/// A choice that layers share does not record which query made it.
template <class T>
concept shared_queries_agree =
    !shares_choices<typename T::selector> ||
    (!chooses_per_query<typename T::selector> && !chooses_per_head<typename T::selector>);
/// Estimators work with whole units, so a selector must not truncate one.
template <class T>
concept estimator_sees_choice =
    !truncates_units<typename T::selector> || std::same_as<typename T::estimator, nothing>;
/// Scores of every query exist only if every query chooses by them, and if the index scores from memory.
template <class T>
concept estimator_has_its_scores =
    !reads_scores<typename T::estimator> ||
    (chooses_per_query<typename T::selector> && !scores_stored_keys<typename T::index>);
/// Errors are known of units that have records, in any order, and without a choice before the first entry is in place.
template <class T>
concept errors_are_priced =
    !goes_by_errors<typename T::selector> ||
    (prices_errors<typename T::estimator> && store_of_preset<T>() == store_kind::units &&
     !T::layout::wants_correlation && !shares_choices<typename T::selector>);
/// A retention that merges changes kept rows and gives them weights. Weights are stored behind records of one
/// size.
template <class T>
concept stored_rows_agree = T::compressor::rows_are_records || !retention_merges<typename T::retention> ||
                            (retrieves<T> && !T::compressor::ragged);
/// Ragged records are found through their unit, or in runs of consecutive entries.
template <class T>
concept ragged_records_agree =
    !T::compressor::ragged || !retrieves<T> ||
    (store_of_preset<T>() == store_kind::groups && !codec_keeps_keys<typename T::compressor> &&
     !scores_stored_keys<typename T::index>) ||
    store_of_preset<T>() == store_kind::units;
/// Records that several entries share, and keys that are kept apart from values, need units of consecutive
/// entries. A codec that is fitted to a prompt needs entries that become units.
template <class T>
concept codec_has_its_runs = (T::compressor::granule == 1 && !codec_keeps_keys<typename T::compressor> &&
                              (retrieves<T> || !codec_fits_lanes<typename T::compressor>)) ||
                             (store_of_preset<T>() == store_kind::groups &&
                              !retention_merges<typename T::retention>);
/// Records of inputs wait beside the rows of a window, and only entries that stay in memory have both.
template <class T>
concept inputs_are_kept =
    !codec_encodes_input<typename T::compressor> || (!retrieves<T> && !drops_entries<T>);
template <class T>
concept retrieval_agrees = selector_has_its_scores<T> && granularity_agrees<T> && queries_agree<T> &&
    streams_hold_runs<T> && predictions_come<T> && layers_can_take_turns<T> && stored_keys_in_order<T> &&
    shared_units_agree<T> && shared_queries_agree<T> && estimator_sees_choice<T> &&
    estimator_has_its_scores<T> && errors_are_priced<T> && named_units_agree<T>;

// ------------------------------------------------------------------------------------- retentions that drop
template <class T>
concept layer_wide = needs_layer_units<T> ||(retrieves<T>&& T::clusterer::unit_of == granularity::layer);
/// If units, codec or index span all heads of a token, the heads must keep the same tokens.
template <class T>
concept survivors_agree = !layer_wide<T> || T::retention::score::decides_together;
/// The retention evicts after each chunk of a prompt, by all that is left and the chunk, and not in decode.
template <class T>
concept evicts_by_chunk =
    drops_entries<T> && T::retention::score::evicts_in_prompt && !T::retention::score::evicts_in_decode;
/// The retention scores a prompt by probes that come with any of its chunks, and whose tokens may pass behind it.
template <class T>
concept replays_prompts = drops_entries<T> && requires {
    requires T::retention::score::replays;
};
/// With eviction during the prompt, the prompt is never held as a whole. So budgets must be final at once,
/// and chunks attend rows without counts. What is left of earlier chunks is stored anew with every chunk and must not change
/// by that.
template <class T>
concept streaming_agrees =
    !T::retention::score::evicts_in_prompt ||
    (!T::budget::late && !requires { requires T::retention::counts; } &&
     (!evicts_by_chunk<T> || (!T::retention::merges && T::compressor::rows_are_records &&
                              !drops_unwanted<typename T::retention::score>)));
template <class T>
concept preference_is_known =
    !T::budget::reads_preference ||
    requires(const typename T::retention::score::state& s, const layer_notes& notes) {
    { s.preference(notes) }
    noexcept->std::same_as<float>;
};
/// Survivors that moved to units or chains are retrieved or all attended, but no longer evicted. All of a chunk moves on,
/// so no token passes.
template <class T>
concept thins_out_once = !hands_over<T> || (!T::retention::score::evicts_in_decode &&
                                            !T::retention::score::evicts_in_prompt && !replays_prompts<T>);
template <class T>
concept keeps_by_kv_head = !hands_over<T> || !T::retention::score::per_query_head;
template <class T>
concept keeps_positions = !hands_over<T> || !T::position::moves;
/// Estimators count entries, not their weights.
template <class T>
concept weights_are_attended =
    !retrieves<T> || !T::retention::merges || std::same_as<typename T::estimator, nothing>;
/// Demoted entries lie in rows beside those that were not: prompts must come whole, and positions stay. What a lane holds
/// is no longer in one order of scores, so late budgets go by a preference.
template <class T>
concept demotion_agrees =
    !retention_demotes<typename T::retention> ||
    (!hands_over<T> && !T::retention::score::evicts_in_prompt && !T::position::moves &&
     !drops_unwanted<typename T::retention::score> && (!T::budget::late || T::budget::reads_preference));
/// The second codec encodes single entries of one head, rows like those of the first.
template <class T>
concept demoted_codec_agrees =
    !retention_demotes<typename T::retention> ||
    (compressor_for<typename T::retention::codec> && codec_is_plain<typename T::retention::codec> &&
     !layer_wide_only<typename T::retention::codec> &&
     std::same_as<typename T::retention::codec::plain_type, typename T::compressor::plain_type>);
/// A fit to keys before RoPE needs all tokens 0, 1, ... without gaps.
template <class T>
concept codec_bears_gaps = !retrieves<T> || !codec_fits_lanes<typename T::compressor> ||
                           T::compressor::domain == key_domain::post_rope;
template <class T>
concept layer_units_stay_even = !hands_over<T> || !layer_wide<T> ||
                                (!T::budget::late && !T::budget::decides_together && !T::retention::merges);
template <class T>
concept dropping_agrees =
    !drops_entries<T> ||
    (survivors_agree<T> && streaming_agrees<T> && preference_is_known<T> && thins_out_once<T> &&
     keeps_by_kv_head<T> && keeps_positions<T> && weights_are_attended<T> && codec_bears_gaps<T> &&
     layer_units_stay_even<T> && demotion_agrees<T> && demoted_codec_agrees<T>);

// --------------------------------------------------------------------------------------------- whole presets
/// The union of the inputs that a preset's policies need from the engine. v is always needed: attention
/// returns sums of values.
template <class T> [[nodiscard]] consteval engine_input needed_inputs() {
    return engine_input::q | engine_input::k | engine_input::v | needs_of<typename T::clusterer>() |
           needs_of<typename T::index>() | needs_of<typename T::selector>() |
           needs_of<typename T::estimator>() | needs_of<typename T::budget>() |
           needs_of<typename T::retention>() | needs_of<typename T::compressor>() |
           (calibrated_kinds<typename T::compressor>() != 0 ? engine_input::calibration : engine_input{}) |
           needs_of<typename T::position>() | needs_of<typename T::schedule>();
}
[[nodiscard]] constexpr const char* missing_input(engine_input needed, engine_input have) noexcept {
    constexpr std::pair<engine_input, const char*> names[] = {{engine_input::q, "q"},
                                                              {engine_input::k, "k"},
                                                              {engine_input::v, "v"},
                                                              {engine_input::k_pre, "k_pre"},
                                                              {engine_input::x, "x"},
                                                              {engine_input::probe, "probe"},
                                                              {engine_input::external, "external"},
                                                              {engine_input::calibration, "calibration"},
                                                              {engine_input::chosen, "chosen"}};
    for (const auto& [s, name] : names)
        if (contains(needed, s) && !contains(have, s)) return name;
    return "";
}

template <class T, class Supplied = default_engine_inputs>
concept preset_for = has_all_slots<T> && says_window<T> && slots_are_filled<T> && storage_is_read<T> &&
    window_is_left<T> && index_is_read<T> && estimator_is_read<T> && retention_is_read<T> &&
    budget_is_read<T> && position_is_read<T> && stored_rows_agree<T> && ragged_records_agree<T> &&
    codec_has_its_runs<T> && inputs_are_kept<T> && mass_is_fed<T> && mass_is_complete<T> &&
    retrieval_agrees<T> && dropping_agrees<T> && contains(Supplied::value, needed_inputs<T>());

template <class T> [[nodiscard]] constexpr std::string_view preset_name() noexcept {
    if constexpr (has_name<T>)
        return T::name;
    else
        return "(unnamed)";
}

}} // namespace kvtl::v0
