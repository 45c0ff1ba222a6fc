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

#include <kvtl/config.hpp>
#include <kvtl/slots/preset.hpp>

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

/// Presets made of two.
template <class T>
concept composed = requires {
    requires T::composed;
    requires has_all_slots<typename T::first> && has_all_slots<T>;
};
/// Second takes a layer when its prompt ends, and as many plain entries from each head; and both must say the
/// same about who decides: where heads are decided together a sequence belongs to one shard, where they are
/// not every head has its own.
template <class T>
concept hands_over_evenly =
    !T::retention::merges && !T::first::position::moves && !T::budget::late && !T::budget::decides_together &&
    (T::clusterer::unit_of == granularity::layer ||
     (!T::retention::score::decides_together && !T::retention::score::reads_values));

template <class T, class G, class Supplied>
concept composed_preset_for = composed<T> && preset_for<T, G, Supplied> && drops_entries<T> &&
    preset_for<eviction_part<T>, G, Supplied> && preset_for<retrieval_part<T>, G, Supplied> &&
    hands_over_evenly<T>;

}} // namespace kvtl::v0
