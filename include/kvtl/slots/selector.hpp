// The selector slot: which units enter attention.
//
// A policy declares `takes_everything` (every unit, whatever the budget: its state needs no choose()) and
// `uses_scores`. With scores it names its `reduction`, whose apply(scores, queries, units, scale of logits) turns
// the scores of all queries of the lane into one score per unit (policies/select_topk.hpp has the reductions).
// It may name the `source` of the query, and `layers_that_share` one choice. One choice serves all queries of
// a lane, with two exceptions: with a `per_query` reduction every query chooses for itself, and with a
// `per_head` reduction every KV head of a lane with several heads does. The step then reads the union, and
// each query attends its own choice. A selector that `truncates` may take only the first entries of a unit
// that would exceed the budget.
//
// A selector that calibrates itself declares the type `prompt_notes`. note() records what the selector would
// choose for each of the last queries of a layer's prompt. settle() turns the notes of all layers into one
// number: the bar of the sequence, a threshold for scores. choose() finds it in choice_input::bar (-inf
// before). All heads of a sequence then belong to one shard.
//
// A selector with `by_errors = true` uses no scores of an index. choice_input::score has the errors that the
// estimator expects (its price(): expected squared error per entry of each unit). It may choose up to
// `most_of_budget` times the budget in a step. A price, the bar, keeps the mean at the budget. It declares the
// type `step_notes`. After each step of a layer, note_step(facts, step_notes) records what the step chose. After
// the last layer of a token, settle(notes of all layers, bar) returns the next bar. worth(entries, fetched) is a
// factor on the error of a unit. It depends on where the unit is, and is at most most_worth(max_entries). A unit is
// chosen only if its error times this factor exceeds least_worth(choice_input). If even most_worth() cannot reach
// that, the step does not look up where the unit is.
//
// A selector that needs engine_input::chosen finds the numbers of units that the engine names for the lane in
// choice_input::named.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/slots/policy.hpp>
#include <kvtl/slots/schedule.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// One chosen unit. Bit g of `mask` is set if query g of the lane attends it. Queries whose bit is also set
/// in `cut` attend only its first `first` entries.
struct chosen_unit {
    std::uint32_t unit = none;
    std::uint16_t first = 0, cut = 0;
    std::uint64_t mask = ~std::uint64_t{0};

    /// The queries that attend entry i of the unit.
    [[nodiscard]] std::uint64_t queries_of(std::uint32_t i) const noexcept {
        return i < first ? mask : mask & ~std::uint64_t{cut};
    }
    /// Number of first entries of the unit, of n, that at least one query attends.
    [[nodiscard]] std::uint32_t attended(std::uint32_t n) const noexcept {
        return (mask & ~std::uint64_t{cut}) == 0 ? std::min<std::uint32_t>(first, n) : n;
    }
};
/// Sorts by unit number, in place. Cost: O(n) if the order is already right, otherwise O(n log n).
inline void sort_by_unit(std::span<chosen_unit> chosen) noexcept {
    const auto before = [](const chosen_unit& a, const chosen_unit& b) { return a.unit < b.unit; };
    if (!std::is_sorted(chosen.begin(), chosen.end(), before))
        std::sort(chosen.begin(), chosen.end(), before);
}
/// Moves the units that score above `bar` to the front, in their present order, and returns their number.
/// score: (U). Cost: O(n).
[[nodiscard]] inline std::uint32_t keep_above(float bar, std::span<const float> score,
                                              std::span<chosen_unit> chosen) noexcept {
    const auto end = std::remove_if(chosen.begin(), chosen.end(), [&](const chosen_unit& c) {
        return !(score[c.unit] > bar); // also removes NaN
    });
    return static_cast<std::uint32_t>(end - chosen.begin());
}
/// True if `unit` is chosen. Cost: O(n).
[[nodiscard]] inline bool contains_unit(std::span<const chosen_unit> chosen, std::uint32_t unit) noexcept {
    return std::any_of(chosen.begin(), chosen.end(), [unit](const chosen_unit& c) { return c.unit == unit; });
}

/// A selector's view of a lane. `score` and the scratch are empty for a selector that uses no scores. units()
/// and entries() work with units of any size, which have records, and with groups of one size, which have
/// none.
class choice_input {
  public:
    choice_input(std::span<const float> scores, const units_view& lane, std::uint32_t entries_left,
                 std::span<std::uint32_t> orders = {}, std::span<std::uint64_t> spare = {}) noexcept
        : score(scores), budget(entries_left), order(orders), scratch(spare), unit_(lane.unit),
          some_(lane.some), units_(lane.count), fixed_(lane.entries_if_fixed()) {}

    std::span<const float> score;                        ///< (U) larger is better
    std::uint32_t budget = 0;                            ///< entries that may be chosen
    std::span<std::uint32_t> order;                      ///< (U) scratch
    std::span<std::uint64_t> scratch;                    ///< (U)
    float bar = -std::numeric_limits<float>::infinity(); ///< result of settle(), for selectors that have one
    std::span<const std::uint32_t> named; ///< units that the engine names; checked, `none` among them
    float output = 0; ///< by_errors: squared length of the layer's output at its last step; 0 before

    [[nodiscard]] std::uint32_t units() const noexcept { return units_; } ///< U
    /// Entries of unit u; 0 while its pages have none.
    [[nodiscard]] std::uint32_t entries(std::uint32_t u) const noexcept {
        return unit_ != nullptr ? unit_[some_ != nullptr ? some_[u] : u].entries : fixed_;
    }
    /// The size of all units, or 0 if sizes differ.
    [[nodiscard]] std::uint32_t fixed_entries() const noexcept { return fixed_; }

  private:
    const unit_record* unit_ = nullptr;
    const std::uint32_t* some_ = nullptr; ///< units of the view, if it hides some of the lane
    std::uint32_t units_ = 0;
    std::uint32_t fixed_ = 0;
};

/// The engine names the units.
template <class P>
concept engine_names_units = contains(needs_of<P>(), engine_input::chosen);
/// The selector chooses for a query that was predicted one layer ahead.
template <class P>
concept chooses_ahead = requires {
    requires P::source == query::predicted;
};

namespace detail {
/// Number of adjacent layers that share the choice of the first of them.
template <class Selector> [[nodiscard]] consteval std::uint32_t layers_that_share() {
    if constexpr (requires { Selector::layers_that_share; })
        return Selector::layers_that_share;
    else
        return 1;
}
} // namespace detail

template <class P>
concept selector_declares_scores = requires {
    { P::takes_everything } -> std::convertible_to<bool>;
    { P::uses_scores } -> std::convertible_to<bool>;
};
template <class P>
concept selector_chooses = has_state<P> &&
    requires(const typename P::state& s, const choice_input& in, std::span<chosen_unit> out) {
    { s.choose(in, out) } -> std::same_as<std::uint32_t>;
};
template <class P>
concept selector_choose_is_noexcept =
    !selector_chooses<P> ||
    requires(const typename P::state& s, const choice_input& in, std::span<chosen_unit> out) {
    { s.choose(in, out) }
    noexcept;
};
template <class P>
concept selector_has_reduction = requires(std::span<float> scores) {
    { P::reduction::linear } -> std::convertible_to<bool>;
    P::reduction::apply(scores, 1U, 1U, 1.0F);
};
/// The score of the mean query stands for those of all queries.
template <class P>
concept reduces_linearly = requires {
    requires P::reduction::linear;
};
/// Every query of a lane chooses for itself.
template <class P>
concept chooses_per_query = requires {
    requires P::reduction::per_query;
};
/// Every KV head of a lane chooses for itself.
template <class P>
concept chooses_per_head = requires {
    requires P::reduction::per_head;
};
/// The last unit may be truncated.
template <class P>
concept truncates_units = requires {
    requires P::truncates;
};
/// The selector goes by the errors that the estimator expects.
template <class P>
concept goes_by_errors = requires {
    requires P::by_errors;
};
/// What a step of one layer chose, in all lanes of a sequence.
struct step_facts {
    std::uint64_t entries = 0;   ///< chosen
    std::uint64_t budget = 0;    ///< of the lanes' budgets, as far as their units have entries
    double log_marginal = 0;     ///< sum of the logs of the lowest chosen score of each lane
    std::uint32_t marginals = 0; ///< lanes in that sum: those that could not choose everything
    float output = 0;            ///< squared length of the layer's output
};
/// The selector calibrates itself on the last queries of a prompt.
template <class P>
concept calibrates_on_prompts = requires {
    typename P::prompt_notes;
};
namespace detail {
struct no_notes {};
template <class P> struct prompt_notes_of { using type = no_notes; };
template <calibrates_on_prompts P> struct prompt_notes_of<P> { using type = typename P::prompt_notes; };
template <goes_by_errors P> struct prompt_notes_of<P> { using type = typename P::step_notes; };
/// What a selector with a bar keeps per layer of a sequence.
template <class P> using bar_notes = typename prompt_notes_of<P>::type;
template <class P> using prompt_notes = bar_notes<P>;

/// How many times the budget may be chosen in one lane and step.
template <class Selector> [[nodiscard]] consteval std::uint32_t most_of_budget() {
    if constexpr (goes_by_errors<Selector>)
        return Selector::most_of_budget;
    else
        return 1;
}
} // namespace detail
template <class P>
concept selector_settles =
    !calibrates_on_prompts<P> ||
    (std::is_trivially_copyable_v<detail::prompt_notes<P>> && !chooses_per_head<P> &&
     requires(const typename P::state& s, const choice_input& in, std::span<chosen_unit> spare,
              detail::prompt_notes<P>& notes, std::span<const detail::prompt_notes<P>> layers) {
         { s.note(in, spare, notes) }
         noexcept;
         { s.settle(layers) }
         noexcept->std::same_as<float>;
     });
template <class P>
concept selector_steers =
    !goes_by_errors<P> ||
    (!P::uses_scores && !P::takes_everything && has_state<P> &&
     std::is_trivially_copyable_v<detail::bar_notes<P>> &&
     requires(const typename P::state& s, const step_facts& facts, detail::bar_notes<P>& notes,
              std::span<const detail::bar_notes<P>> layers, const choice_input& in) {
         { s.worth(1U, 1U) } -> std::convertible_to<float>;
         { s.most_worth(1U) } -> std::convertible_to<float>;
         { s.least_worth(in) } -> std::convertible_to<float>;
         { P::most_of_budget } -> std::convertible_to<std::uint32_t>;
         { s.note_step(facts, notes) }
         noexcept;
         { s.settle(layers, 0.0F) }
         noexcept->std::same_as<float>;
     });
template <class P>
concept shares_choices = (detail::layers_that_share<P>() > 1);

template <class P>
concept selector_for = policy_for<P, const geometry&> && selector_declares_scores<P> &&
                       (P::takes_everything || selector_chooses<P>)&&selector_choose_is_noexcept<P> &&
                       (!P::uses_scores ||
                        selector_has_reduction<P>)&&selector_settles<P>&& selector_steers<P>;

template <class P> consteval void explain_selector() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] selector: add `static constexpr std::string_view name` and what "
                      "slots/selector.hpp lists");
    } else {
        static_assert(holds(has_config<P>), "[kvtl] selector: add an aggregate `struct config`");
        static_assert(holds(state_opens<P, const geometry&>),
                      "[kvtl] selector: add `class state` default-constructible and "
                      "constructible from (config, geometry)");
        static_assert(
            holds(state_is_relocatable<P>),
            "[kvtl] selector::state: it must be trivially copyable; choice_input has scratch for it");
        static_assert(holds(selector_declares_scores<P>),
                      "[kvtl] selector: declare the constants takes_everything and uses_scores");
        if constexpr (selector_declares_scores<P>) {
            static_assert(holds(P::takes_everything || selector_chooses<P>),
                          "[kvtl] selector::state: add `std::uint32_t choose(const choice_input&, "
                          "std::span<chosen_unit> out) const "
                          "noexcept`, which returns how many units it chose");
            static_assert(
                holds(!P::uses_scores || selector_has_reduction<P>),
                "[kvtl] selector: a selector that uses scores names its "
                "`reduction` over the query group, e.g. reduce::group_mean, with `linear` and static void "
                "apply(std::span<float> scores, std::uint32_t queries, std::uint32_t units, float scale)");
        }
        static_assert(
            holds(selector_settles<P>),
            "[kvtl] selector: one with prompt_notes (trivially copyable, not with reduce::by_head) adds "
            "noexcept const `void note(const choice_input&, std::span<chosen_unit> spare, "
            "prompt_notes&)` and `float settle(std::span<const prompt_notes> layers)`");
        static_assert(holds(selector_steers<P>),
                      "[kvtl] selector: one that goes by_errors uses no scores of an index, declares "
                      "most_of_budget and a trivially copyable step_notes, and has noexcept const `void "
                      "note_step(const step_facts&, step_notes&)`, `float settle(std::span<const "
                      "step_notes> layers, float bar)`, `float worth(entries, fetched)`, `float "
                      "most_worth(max_entries)` and `float least_worth(const choice_input&)`");
        static_assert(holds(selector_choose_is_noexcept<P>),
                      "[kvtl] selector::state: choose() must be noexcept, it runs inside the decode loop");
    }
}

}} // namespace kvtl::v0
