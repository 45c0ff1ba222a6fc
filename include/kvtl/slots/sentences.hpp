// The messages of a wrong preset: the sentences of its slots, then the sentences about several slots
// (slots/preset.hpp).
//
// A rule about two slots is checked only if each of the two declares what the rule reads. The slots' own
// sentences come first.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/preset.hpp>

namespace kvtl { inline namespace v0 {

template <class T> consteval void explain_missing_slots() {
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
        requires { typename T::estimator; },
        "[kvtl] preset: the slot `estimator` is missing; name a policy or inherit one from presets::full");
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

template <class T> consteval void explain_each_slot() {
    explain_clusterer<typename T::clusterer>();
    explain_index<typename T::index>();
    explain_selector<typename T::selector>();
    explain_estimator<typename T::estimator>();
    explain_budget<typename T::budget>();
    explain_retention<typename T::retention>();
    explain_compressor<typename T::compressor>();
    explain_position<typename T::position>();
    explain_layout<typename T::layout>();
    explain_replacement<typename T::replacement>();
    explain_schedule<typename T::schedule>();
    explain_io<typename T::io>();
}

template <class T> consteval void explain_unread_slots() {
    if constexpr (!retrieves<T>) {
        static_assert(
            holds(!has_name<typename T::layout> || std::same_as<typename T::layout, sequence_order>),
            "[kvtl] layout: nothing reads it, as all entries of this preset stay in memory; "
            "leave sequence_order, or name a clusterer, index or selector to retrieve");
        static_assert(holds(!has_name<typename T::replacement> || std::same_as<typename T::replacement, lru>),
                      "[kvtl] replacement: nothing reads it, as all entries of this preset stay in memory; "
                      "leave lru, or name a clusterer, index or selector to retrieve");
        static_assert(holds(!has_name<typename T::schedule> || std::same_as<typename T::schedule, on_demand>),
                      "[kvtl] schedule: nothing reads it, as all entries of this preset stay in memory; "
                      "leave on_demand, or name a clusterer, index or selector to retrieve");
        static_assert(holds(!has_name<typename T::io> || std::same_as<typename T::io, in_memory>),
                      "[kvtl] io: nothing reads it, as all entries of this preset stay in memory; "
                      "leave in_memory, or name a clusterer, index or selector to retrieve");
    }
    if constexpr (retention_declares<typename T::retention>) {
        static_assert(holds(retention_is_read<T>),
                      "[kvtl] retention: nothing reads it, as it drops no entries; use keep_all");
        static_assert(holds(!has_name<typename T::budget> || budget_is_read<T>),
                      "[kvtl] budget: nothing reads it, as no entry is dropped; leave uniform, or use a "
                      "retention that drops");
    }
    if constexpr (position_declares<typename T::position>)
        static_assert(
            holds(position_is_read<T> || (hands_over<T> && T::position::moves)),
            "[kvtl] position: nothing reads it, as entries that are not dropped keep their positions; "
            "leave original, or keep entries in memory with a retention that drops");
    if constexpr (selector_declares_scores<typename T::selector>) {
        static_assert(holds(!has_name<typename T::index> || index_is_read<T>),
                      "[kvtl] index: nothing reads it, as the selector chooses without scores; leave "
                      "no_index, or use a selector such as topk");
        static_assert(holds(!has_name<typename T::estimator> || estimator_is_read<T>),
                      "[kvtl] estimator: nothing reads it, as the selector takes every unit; leave nothing, "
                      "or use a selector that chooses");
    }
    if constexpr (compressor_declares_records<typename T::compressor>) {
        static_assert(
            holds(ragged_records_agree<T>),
            "[kvtl] compressor: ragged records cannot be found one by one, nor without their keys; use "
            "a layout that places units, or a clusterer whose units are runs of consecutive entries with "
            "keys and values side by side on storage");
        static_assert(holds(stored_rows_agree<T>),
                      "[kvtl] compressor: the retention merges kept rows, which in memory must be "
                      "rows_are_records and on storage records of one size; use raw");
        static_assert(
            holds(codec_has_its_runs<T>),
            "[kvtl] compressor: keys that are kept apart from values, records that several entries share, "
            "and "
            "codecs that are fitted to a prompt need units that are runs of consecutive entries, and no "
            "merging; use a clusterer such as fixed_groups with the layout sequence_order");
        static_assert(holds(inputs_are_kept<T>),
                      "[kvtl] compressor: records of a layer's input are made when a token arrives, and only "
                      "presets that keep every entry in memory hold them; inherit from full, or use a codec "
                      "of keys and values");
    }
    static_assert(holds(mass_is_fed<T>),
                  "[kvtl] feedback: nothing feeds attention mass back to a clusterer, budget or replacement; "
                  "only a retention may declare reads_mass");
}

template <class T> consteval void explain_retrieval() {
    using selector = typename T::selector;
    if constexpr (selector_declares_scores<selector> && index_declares_scores<typename T::index>)
        static_assert(holds(selector_has_its_scores<T>),
                      "[kvtl] selector: it chooses by score, but this index keeps none; use an index such as "
                      "centroid");
    if constexpr (selector_declares_scores<selector>)
        static_assert(
            holds(mass_is_complete<T>),
            "[kvtl] feedback: a policy reads the full attention mass, but the selector does not read "
            "everything; use all_units, or a retention that reads no mass");
    if constexpr (clusterer_declares_units<typename T::clusterer>) {
        static_assert(
            holds(granularity_agrees<T>),
            "[kvtl] granularity: a policy works on all KV heads of a layer together, but the clusterer's "
            "units belong to one head; use a layer-wide clusterer such as fixed_layer_groups");
        static_assert(holds(queries_agree<T>),
                      "[kvtl] selector: with reduce::none every query chooses for itself, which needs units "
                      "of one KV head; use another reduction with layer-wide units");
        static_assert(holds(stored_keys_in_order<T>),
                      "[kvtl] index: it scores keys where they are stored, which needs units that are "
                      "runs of consecutive entries in token order; use a clusterer such as single_tokens "
                      "and the sequence_order layout");
        static_assert(holds(shared_units_agree<T>),
                      "[kvtl] selector: layers share its choice, which needs units that are runs of "
                      "consecutive entries; use a clusterer such as fixed_groups");
        static_assert(holds(shared_queries_agree<T>),
                      "[kvtl] selector: layers share its choice, which is then one for all queries; use "
                      "a reduction other than reduce::none and reduce::by_head");
        static_assert(
            holds(estimator_sees_choice<T>),
            "[kvtl] estimator: the selector cuts units off, which what stands in for the others would not "
            "know; use nothing, or overshoot::skipped");
        static_assert(
            holds(estimator_has_its_scores<T>),
            "[kvtl] estimator: it goes by the index's scores of every query, which needs a selector with "
            "reduce::none and an index that keeps in memory what it scores");
        static_assert(holds(errors_are_priced<T>),
                      "[kvtl] selector: it goes by_errors, which needs an estimator with price() such as "
                      "moment_estimate, clusters, and a layout without wants_correlation");
        static_assert(holds(named_units_agree<T>),
                      "[kvtl] selector: the engine names its units by number, which needs units that are "
                      "runs of consecutive entries and a retention that drops nothing; use a clusterer such "
                      "as fixed_groups, the sequence_order layout and keep_all");
    }
    if constexpr (clusterer_declares_units<typename T::clusterer> && layout_declares_kind<typename T::layout>)
        static_assert(holds(streams_hold_runs<T>),
                      "[kvtl] layout: entries lie in token order, which needs units that are runs of "
                      "consecutive entries; use a clusterer such as fixed_groups, or a layout that places "
                      "units such as unit_contiguous");
    static_assert(holds(predictions_come<T>), "[kvtl] selector: it chooses for predicted queries; use the "
                                              "schedule next_layer, which asks the engine for them");
    static_assert(
        holds(layers_can_take_turns<T>),
        "[kvtl] schedule: layers have their memory in turn, so what is resident must be whole pages of "
        "units, and stay from step to step; use a clusterer and layout that place units (such as "
        "unit_contiguous) and a replacement that keeps some, or leave on_demand");
}

template <class T> consteval void explain_dropping() {
    using score = typename T::retention::score;
    static_assert(holds(survivors_agree<T>),
                  "[kvtl] granularity: a policy works on all KV heads of a layer together, but this "
                  "retention lets every head keep tokens of its own; use a score with decides_together");
    static_assert(
        holds(streaming_agrees<T>),
        "[kvtl] retention: this score evicts while the prompt comes in, so it needs a budget that is "
        "not late, and drop<..> or a rule of merge_into<..> without counts; one that evicts after each "
        "chunk needs drop<..>, raw entries, and a score that leaves no room unused");
    static_assert(
        holds(demotion_agrees<T>),
        "[kvtl] retention: demoted entries stay in rows in memory, at their positions; use a score that does "
        "not evict while the prompt comes in and drops nothing below the limit, such as "
        "heavy_hitters_after_prompt, the position original, and a budget that does not compare scores, such "
        "as uniform or cascade");
    static_assert(holds(demoted_codec_agrees<T>),
                  "[kvtl] retention: it demotes to a codec of single entries of one head after RoPE, with "
                  "the compressor's plain_type, records of one size and no tables, such as int4_group<>");
    if constexpr (score_opens<score>)
        static_assert(holds(preference_is_known<T>),
                      "[kvtl] budget: it divides by preference, which this score does not measure; "
                      "use a score with preference(notes), such as mean_and_variance");
    static_assert(
        holds(thins_out_once<T>),
        "[kvtl] retention: this score evicts while tokens come in, or has tokens pass behind a prompt, but "
        "what it keeps of a prompt moves on to units, or to records of a layer; use a score that decides "
        "when the "
        "prompt ends, such as "
        "window_attention");
    static_assert(holds(keeps_by_kv_head<T>),
                  "[kvtl] retention: this score keeps entries for every query head, but units and records "
                  "belong to KV heads; use a score without per_query_head");
    static_assert(
        holds(keeps_positions<T>),
        "[kvtl] position: it moves keys, but entries in units or records keep their positions; use original");
    static_assert(holds(weights_are_attended<T>),
                  "[kvtl] estimator: it does not know the weights of entries that a retention merged; use "
                  "nothing behind a merging retention");
    static_assert(
        holds(codec_bears_gaps<T>),
        "[kvtl] compressor: it is fitted to the keys of a whole prompt before RoPE, but a retention "
        "that drops leaves gaps; use another compressor, or keep_all");
    static_assert(
        holds(layer_units_stay_even<T>),
        "[kvtl] granularity: units or records span all KV heads of a layer, so the heads must keep "
        "equally many plain entries; use those of one head, or drop<..> with a budget that is neither late "
        "nor divides among heads, such as uniform or pyramid");
}

template <class T, class Supplied> consteval void explain_signals() {
    constexpr engine_input missing = without(needed_inputs<T>(), Supplied::value);
    static_assert(
        !contains(missing, engine_input::q),
        "[kvtl] engine_inputs: a policy needs q (post-RoPE queries), which this engine does not supply; "
        "add engine_input::q to engine_inputs<...>, or change the policy");
    static_assert(
        !contains(missing, engine_input::k),
        "[kvtl] engine_inputs: a policy needs k (post-RoPE keys), which this engine does not supply; add "
        "engine_input::k to engine_inputs<...>, or change the policy");
    static_assert(!contains(missing, engine_input::v),
                  "[kvtl] engine_inputs: a policy needs v (values), which this engine does not supply; add "
                  "engine_input::v to engine_inputs<...>, or change the policy");
    static_assert(!contains(missing, engine_input::k_pre),
                  "[kvtl] engine_inputs: a policy needs k_pre (keys before RoPE), which this engine does not "
                  "supply; add engine_input::k_pre to engine_inputs<...>, or change the policy");
    static_assert(
        !contains(missing, engine_input::x),
        "[kvtl] engine_inputs: a policy needs x (the input of the layer), which this engine does not "
        "supply; add engine_input::x to engine_inputs<...>, or change the policy");
    static_assert(
        !contains(missing, engine_input::probe),
        "[kvtl] engine_inputs: a policy needs probe (queries that stand for the future), which this "
        "engine does not supply; add engine_input::probe to engine_inputs<...>, or change the policy");
    static_assert(
        !contains(missing, engine_input::external),
        "[kvtl] engine_inputs: a policy needs external (scores computed outside), which this engine does "
        "not supply; add engine_input::external to engine_inputs<...>, or change the policy");
    static_assert(
        !contains(missing, engine_input::calibration),
        "[kvtl] engine_inputs: a policy needs calibration (a blob fitted offline), which this engine "
        "does not supply; add engine_input::calibration to engine_inputs<...>, or change the policy");
    static_assert(
        !contains(missing, engine_input::chosen),
        "[kvtl] engine_inputs: a policy needs chosen (units that the engine chose), which this engine does "
        "not supply; add engine_input::chosen to engine_inputs<...>, or change the policy");
}

template <class Supplied>
concept lists_signals = requires {
    { Supplied::value } -> std::convertible_to<engine_input>;
};

/// Prints a sentence for every rule that T breaks. Returns true, so that a static_assert may call it.
template <class T, class Supplied> consteval bool explain_preset() {
    static_assert(
        holds(!std::same_as<Supplied, geometry>),
        "[kvtl] kv_manager: a cache type has no geometry any more; write kv_manager<Preset>, or kvtl::dynakv "
        "for kvtl::dynakv<geometry>, and give the whole shape in config.shape");
    static_assert(
        holds(lists_signals<Supplied> || std::same_as<Supplied, geometry>),
        "[kvtl] kv_manager: the second argument says what the engine supplies; use engine_inputs<...>");
    explain_missing_slots<T>();
    static_assert(holds(says_window<T>),
                  "[kvtl] preset: declare window_tokens and sink_tokens, or inherit them from presets::full");
    if constexpr (has_all_slots<T>) {
        explain_each_slot<T>();
        explain_unread_slots<T>();
        if constexpr (says_window<T> && slots_are_filled<T>)
            static_assert(
                holds(window_is_left<T>),
                "[kvtl] preset: nothing reads its clusterer, index, selector and codec, as its window holds "
                "the whole sequence; declare window_tokens");
        explain_retrieval<T>();
        if constexpr (drops_entries<T> && retention_names_score<typename T::retention> &&
                      budget_declares<typename T::budget> && position_declares<typename T::position> &&
                      clusterer_declares_units<typename T::clusterer>)
            if constexpr (score_declares<typename T::retention::score>) explain_dropping<T>();
        if constexpr (lists_signals<Supplied>) explain_signals<T, Supplied>();
    }
    return true;
}

}} // namespace kvtl::v0
