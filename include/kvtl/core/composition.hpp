// Presets made of two: one that drops entries when a prompt ends, then one that keeps the rest on storage and
// chooses among them at every step.
//
//   struct mine : kvtl::presets::then<kvtl::presets::snapkv_group, kvtl::presets::dynakv> {};
//   using my_cache = kvtl::kv_manager<mine, geometry>;
//
// What:   such a preset is Second in every slot but `retention` and `budget`, which are First's; so one
//         config holds all knobs, and an ablation names a slot as in any other preset. First's window and
//         sinks are its own constants, as its paper has them; window_tokens and sink_tokens of the config are
//         Second's. Both keep entries as the preset's compressor says: nothing is rounded twice.
// Rules:  eviction decides once, when a layer's prompt ends, and hands over plain entries, in order, equally
//         many in each head of the layer; all else is refused below, each with a sentence.
// Source: methods that chain the two: MPCache (look-once eviction, then query-aware selection).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/budget_uniform.hpp>
#include <kvtl/policies/retain_keep_all.hpp>
#include <kvtl/slots/eviction_requirements.hpp>
#include <kvtl/slots/explain.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace kvtl { inline namespace v0 {

namespace presets {

template <class First, class Second> struct then : Second {
    static constexpr std::string_view name = "then";
    static constexpr bool composed = true;
    using first = First;
    using second = Second;
    using retention = typename First::retention;
    using budget = typename First::budget;
};

} // namespace presets

/// What a composed preset's two managers are made from.
template <class Preset> struct eviction_part : Preset::first {
    static constexpr bool composed = false;
    using retention = typename Preset::retention;
    using budget = typename Preset::budget;
    using compressor = typename Preset::compressor;
};
template <class Preset> struct retrieval_part : Preset {
    static constexpr bool composed = false;
    using retention = keep_all;
    using budget = uniform;
};

/// The configs of the two parts, from that of the whole.
template <class Preset> struct config_halves {
    using config = cache_config<Preset>;
    using first_config = cache_config<eviction_part<Preset>>;
    using second_config = cache_config<retrieval_part<Preset>>;
    /// Of attend_tokens, kept where keep_tokens says nothing.
    static constexpr std::size_t default_keep = 4;

    [[nodiscard]] static std::size_t prompt_tokens(const config& c) noexcept {
        return c.prefill_tokens == 0 ? c.max_tokens : std::min(c.prefill_tokens, c.max_tokens);
    }
    [[nodiscard]] static first_config first(const config& c) {
        first_config f;
        f.shape = c.shape;
        f.max_tokens = f.prefill_tokens = prompt_tokens(c); // it never decodes
        f.max_sequences = c.max_sequences;
        f.memory_bytes = c.memory_bytes;
        f.attend_tokens = c.attend_tokens;
        f.keep_tokens = c.keep_tokens != 0 ? c.keep_tokens : default_keep * c.attend_tokens;
        f.shards = c.shards;
        f.time_phases = c.time_phases;
        f.supplied = c.supplied;
        f.retention = c.retention;
        f.budget = c.budget;
        return f;
    }
    [[nodiscard]] static second_config second(const config& c) {
        second_config s;
        copy_shared(c, s);
        return s;
    }
    /// What the preset's config and Second's have in common, in either direction.
    template <class From, class To> static void copy_shared(const From& from, To& to) {
        to.shape = from.shape;
        to.max_tokens = from.max_tokens, to.max_sequences = from.max_sequences;
        to.memory_bytes = from.memory_bytes, to.attend_tokens = from.attend_tokens;
        to.shards = from.shards, to.share = from.share, to.adapt_prompt = from.adapt_prompt;
        to.window_tokens = from.window_tokens, to.sink_tokens = from.sink_tokens;
        to.tail_frames = from.tail_frames, to.read_through_pages = from.read_through_pages;
        to.time_phases = from.time_phases, to.calibration = from.calibration, to.supplied = from.supplied;
        to.clusterer = from.clusterer, to.index = from.index, to.selector = from.selector;
        to.remainder = from.remainder, to.position = from.position, to.layout = from.layout;
        to.replacement = from.replacement, to.io = from.io;
    }
};

template <class T>
concept composes_presets = requires {
    typename T::first;
    typename T::second;
    requires has_all_slots<typename T::first> && has_all_slots<T>;
};
template <class T>
concept first_drops = drops_entries<T> && !composed<typename T::first>;
template <class T>
concept second_keeps = !drops_entries<typename T::second>;
template <class T>
concept first_looks_once = !T::retention::score::evicts_in_decode && !requires {
    requires T::retention::score::evicts_in_prompt;
};
/// Second attends plain keys with plain weights.
template <class T>
concept first_hands_over_plainly = !T::retention::merges && !T::first::position::moves;
/// Second has one table per KV head.
template <class T>
concept first_keeps_by_kv_head = !T::retention::score::per_query_head;
/// Second takes a layer when its prompt ends, and as many entries from each head.
template <class T>
concept first_divides_at_once = !T::budget::late && !T::budget::decides_together && !requires {
    requires T::retention::score::drops_unwanted;
};
template <class T>
concept layer_wide_survivors_agree = (T::clusterer::unit_of != granularity::layer &&
                                      !needs_layer_units<T>()) ||
                                     T::retention::score::decides_together;
/// Where heads are decided together a sequence belongs to one shard, where they are not every head has its
/// own: both parts must say the same.
template <class T>
concept shards_agree = T::clusterer::unit_of == granularity::layer ||
                       (!T::retention::score::decides_together && !T::retention::score::reads_values);

template <class T, class G, class Supplied>
concept composed_preset_for = composed<T> && composes_presets<T> && first_drops<T> && second_keeps<T> &&
    eviction_preset_for<eviction_part<T>, G, Supplied> && preset_for<retrieval_part<T>, G, Supplied> &&
    first_looks_once<T> && first_hands_over_plainly<T> && first_keeps_by_kv_head<T> &&
    first_divides_at_once<T> && layer_wide_survivors_agree<T> && shards_agree<T>;

template <class T, class G, class Supplied> struct composition_sentences {
    static consteval void print() {
        static_assert(composes_presets<T>,
                      "[kvtl] then: a composed preset is then<First, Second> of two presets, or inherits it");
        if constexpr (composes_presets<T>) {
            static_assert(first_drops<T>,
                          "[kvtl] then: First must drop entries and be no composition itself; put the "
                          "preset that evicts first, such as snapkv_group");
            static_assert(second_keeps<T>,
                          "[kvtl] then: Second must keep all entries that it is given and choose among them "
                          "at every step; use a preset whose retention is keep_all, such as dynakv");
            if constexpr (first_drops<T> && second_keeps<T>) print_parts();
        }
    }

  private:
    static consteval void print_parts() {
        static_assert(explain_preset<retrieval_part<T>, G, Supplied>());
        static_assert(explain_preset<eviction_part<T>, G, Supplied>());
        if constexpr (eviction_preset_for<eviction_part<T>, G, Supplied> &&
                      clusterer_declares_units<typename T::clusterer, G>) {
            static_assert(first_looks_once<T>,
                          "[kvtl] then: First evicts in decode, which belongs to Second; use a score that "
                          "evicts at the prompt's end only, such as window_attention");
            static_assert(first_hands_over_plainly<T>,
                          "[kvtl] then: First merges entries or moves their positions, and Second would not "
                          "know their weights or angles; use drop<Score> and original positions");
            static_assert(first_keeps_by_kv_head<T>,
                          "[kvtl] then: First keeps entries for every query head, but Second has one table "
                          "per KV head; use a score without per_query_head");
            static_assert(first_divides_at_once<T>,
                          "[kvtl] then: First's heads must keep equally many entries, and the number must be "
                          "known when the layer's prompt ends; use a budget that is neither late nor divides "
                          "among heads, such as uniform or pyramid");
            static_assert(layer_wide_survivors_agree<T>,
                          "[kvtl] granularity: Second's units or codec span all KV heads of a layer, but "
                          "First lets every head keep tokens of its own; use units of one head, or a score "
                          "with decides_together");
            static_assert(shards_agree<T>,
                          "[kvtl] granularity: First decides all heads of a layer together, so a sequence "
                          "has one shard, but Second gives every head its own; use a score whose heads "
                          "decide alone, or units of the whole layer");
        }
    }
};

}} // namespace kvtl::v0
