// What a preset that drops entries must satisfy, and one sentence for each requirement that is broken (see
// explain.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/budget.hpp>
#include <kvtl/slots/explain.hpp>
#include <kvtl/slots/retention.hpp>

namespace kvtl { inline namespace v0 {

/// Which way a kept key is turned: original or rolling.
template <class P, class G>
concept position_for = requires(const typename P::config& c, std::uint32_t dim) {
    { P::moves } -> std::convertible_to<bool>;
    typename P::template state<G>;
    { P::template state<G>::bytes(dim) }
    noexcept->std::same_as<std::size_t>;
    { P::template state<G>::check(c, dim) }
    noexcept->std::same_as<status>;
};
template <class T>
concept retention_names_score = requires {
    typename T::retention::score;
    typename T::retention::config;
    { T::retention::merges } -> std::convertible_to<bool>;
};
/// A codec or index over all heads of a token needs the heads to keep the same tokens.
template <class T>
concept layer_wide_agrees = !needs_layer_units<T>() || T::retention::score::decides_together;
/// A prompt that is evicted from as it comes is never there as a whole: numbers must be final at once, and
/// its chunks attend plain rows.
template <class T>
concept streaming_agrees =
    !T::retention::score::evicts_in_prompt || (!T::budget::late && !T::retention::merges);
template <class T, class G>
concept preference_is_known =
    !T::budget::reads_preference ||
    requires(const typename T::retention::score::template state<G>& s, const layer_notes& notes) {
    { s.preference(notes) }
    noexcept->std::same_as<float>;
};

template <class T, class G, class Supplied>
concept eviction_preset_for =
    drops_entries<T> && !composed<T> && has_all_slots<T> && says_window<T> &&
    compressor_for<typename T::compressor, G> && stored_rows_agree<T> && retention_names_score<T> &&
    score_for<typename T::retention::score, G> && budget_for<typename T::budget, G> &&
    position_for<typename T::position, G> && layer_wide_agrees<T> && streaming_agrees<T> &&
    preference_is_known<T, G> && contains(Supplied::value, needed_signals<T>());

template <class T, class G> struct eviction_sentences {
    static consteval void print() {
        explain_compressor<typename T::compressor, G>();
        explain_stored_rows<T>();
        static_assert(retention_names_score<T>, "[kvtl] retention: one that drops names its score, config "
                                                "and merges; use drop<Score> or merge_into<Score, Rule>");
        static_assert(position_for<typename T::position, G>,
                      "[kvtl] position: declare moves and a state with bytes(dim) and check(config, dim); "
                      "see policies/position_original.hpp");
        explain_budget<typename T::budget>();
        if constexpr (retention_names_score<T>) explain_score<typename T::retention::score>();
        if constexpr (retention_names_score<T> && budget_declares<typename T::budget>) {
            static_assert(layer_wide_agrees<T>,
                          "[kvtl] granularity: a policy works on all KV heads of a layer together, but this "
                          "retention lets every head keep tokens of its own; use a score with "
                          "decides_together");
            static_assert(streaming_agrees<T>,
                          "[kvtl] retention: this score evicts while the prompt comes in, so it goes with "
                          "drop<..> and a budget that is not late only");
            if constexpr (score_opens<typename T::retention::score, G>)
                static_assert(preference_is_known<T, G>,
                              "[kvtl] budget: it divides by preference, which this score does not measure; "
                              "use a score with preference(notes), such as mean_and_variance");
        }
    }

  private:
    template <class P> static consteval void explain_budget() {
        static_assert(budget_declares<P>,
                      "[kvtl] budget: declare the constants late, decides_together and reads_preference");
        static_assert(budget_opens<P, G>,
                      "[kvtl] budget: add a config and `template <class Geometry> class state` with noexcept "
                      "static bytes(budget_limits) and check(config, budget_limits), constructible from "
                      "(config, budget_limits, std::span<std::byte>)");
        if constexpr (budget_opens<P, G>)
            static_assert(budget_divides<P, G>,
                          "[kvtl] budget::state: add noexcept const provisional(layer, n), peak() and "
                          "revise(layer, board, keep)");
    }
    template <class P> static consteval void explain_score() {
        static_assert(score_declares<P>,
                      "[kvtl] score: declare name, source, record, config and the constants of "
                      "score_defaults, or inherit it");
        static_assert(score_opens<P, G>,
                      "[kvtl] score: add `template <class Geometry> class state` with noexcept static "
                      "bytes(config, score_limits) and check(config, score_limits), constructible from "
                      "(config, score_limits, std::span<std::byte>)");
        if constexpr (score_declares<P> && score_opens<P, G>) {
            static_assert(score_ranks_prompts<P, G>,
                          "[kvtl] score::state: add `void score(const prompt_lane<E>&, std::span<float> out) "
                          "const noexcept`");
            static_assert(score_ranks_arrivals<P, G>,
                          "[kvtl] score::state: its source is arrival; add `void arrive(const arriving&, "
                          "std::span<float> out) const noexcept`");
            static_assert(score_ranks_held<P, G>,
                          "[kvtl] score::state: it evicts in decode; add noexcept const `float "
                          "worth(held_entry, record)` and `std::uint32_t slack()`");
            static_assert(score_remembers_mass<P, G>,
                          "[kvtl] score::state: it reads attention mass; add `void feed(held_entry, float "
                          "mass, float& score, record&) const noexcept`");
        }
    }
};

}} // namespace kvtl::v0
