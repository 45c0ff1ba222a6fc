// The selector slot: which units enter attention.
//
// A policy declares `takes_everything` (every unit, whatever the budget: its state needs no choose()) and
// `uses_scores`; with scores it names its `reduction`, which makes one score per unit of those of all queries
// that share the lane (policies/select_topk.hpp has them), and may name the `source` of the query and
// `layers_that_share` one choice. The choice is one for all queries of a lane, unless the reduction is
// `per_query` (every query chooses for itself) or `per_head` (every KV head of a lane of several does): then the step
// reads the union, and each attends what it chose. A selector that `truncates` may take the first entries only of
// what would overshoot its budget.
//
// A selector that calibrates names the `prompt_notes` that it takes of a layer's prompt, note()s what it would choose for
// each of its last queries, and settle()s what all layers' notes come to: one number, the bar of the sequence, which
// choose() finds in choice_input (-inf before). All heads of a sequence then have one shard.
// SPDX-License-Identifier: MIT
#pragma once

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

/// One chosen unit: `mask` bit g is set when query g of the lane attends it. Queries whose bit is set in `cut`, too,
/// attend its first `first` entries alone.
struct chosen_unit {
    std::uint32_t unit = none;
    std::uint16_t first = 0, cut = 0;
    std::uint64_t mask = ~std::uint64_t{0};

    /// The queries that attend entry i of the unit.
    [[nodiscard]] std::uint64_t queries_of(std::uint32_t i) const noexcept {
        return i < first ? mask : mask & ~std::uint64_t{cut};
    }
    /// Of a unit's n entries, from the first on, as many as any query attends.
    [[nodiscard]] std::uint32_t attended(std::uint32_t n) const noexcept {
        return (mask & ~std::uint64_t{cut}) == 0 ? std::min<std::uint32_t>(first, n) : n;
    }
};
/// By their numbers, in place. Cost: O(n) where they are in this order, else O(n log n).
inline void sort_by_unit(std::span<chosen_unit> chosen) noexcept {
    const auto before = [](const chosen_unit& a, const chosen_unit& b) { return a.unit < b.unit; };
    if (!std::is_sorted(chosen.begin(), chosen.end(), before))
        std::sort(chosen.begin(), chosen.end(), before);
}
/// Moves the units that score more than `bar` to the front, in the order they have, and returns how many these are.
/// score: (U). Cost: O(n).
[[nodiscard]] inline std::uint32_t keep_above(float bar, std::span<const float> score,
                                              std::span<chosen_unit> chosen) noexcept {
    const auto end = std::remove_if(chosen.begin(), chosen.end(), [&](const chosen_unit& c) {
        return !(score[c.unit] > bar); // nor NaN
    });
    return static_cast<std::uint32_t>(end - chosen.begin());
}
/// Whether `unit` is among them. Cost: O(n).
[[nodiscard]] inline bool contains_unit(std::span<const chosen_unit> chosen, std::uint32_t unit) noexcept {
    return std::any_of(chosen.begin(), chosen.end(), [unit](const chosen_unit& c) { return c.unit == unit; });
}

/// What a selector sees of a lane. `score` and the scratch are empty for a selector that uses no scores.
/// Units are asked for through units() and entries(), which know both forms of them: records of any size, and
/// groups of one size that have none.
class choice_input {
  public:
    choice_input(std::span<const float> scores, const units_view& lane, std::uint32_t entries_left,
                 std::span<std::uint32_t> orders = {}, std::span<std::uint64_t> spare = {}) noexcept
        : score(scores), budget(entries_left), order(orders), scratch(spare), unit_(lane.unit),
          some_(lane.some), units_(lane.count), fixed_(lane.entries_if_fixed()) {}

    std::span<const float> score;                        ///< (U) the greater, the better
    std::uint32_t budget = 0;                            ///< entries that may be chosen
    std::span<std::uint32_t> order;                      ///< (U) scratch
    std::span<std::uint64_t> scratch;                    ///< (U)
    float bar = -std::numeric_limits<float>::infinity(); ///< what a selector that calibrates has settled

    [[nodiscard]] std::uint32_t units() const noexcept { return units_; } ///< U
    /// Entries of unit u; 0 when none of them is in its pages yet.
    [[nodiscard]] std::uint32_t entries(std::uint32_t u) const noexcept {
        return unit_ != nullptr ? unit_[some_ != nullptr ? some_[u] : u].entries : fixed_;
    }
    /// The size that all units have, or 0 where they differ.
    [[nodiscard]] std::uint32_t fixed_entries() const noexcept { return fixed_; }

  private:
    const unit_record* unit_ = nullptr;
    const std::uint32_t* some_ = nullptr; ///< where not all units of the lane are seen
    std::uint32_t units_ = 0;
    std::uint32_t fixed_ = 0;
};

namespace detail {
/// How many adjacent layers share what the selector chooses for the first of them.
template <class Selector> [[nodiscard]] consteval std::uint32_t layers_that_share() {
    if constexpr (requires { Selector::layers_that_share; })
        return Selector::layers_that_share;
    else
        return 1;
}
/// The selector chooses for a query that was predicted one layer ahead (query::predicted).
template <class Selector> [[nodiscard]] consteval bool chooses_ahead() {
    if constexpr (requires { Selector::source; })
        return static_cast<bool>(Selector::source);
    else
        return false;
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
concept selector_has_reduction = requires {
    { P::reduction::linear } -> std::convertible_to<bool>;
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
/// The last unit may be taken in part.
template <class P>
concept truncates_units = requires {
    requires P::truncates;
};
/// The selector goes by what it would choose for the last queries of a prompt.
template <class P>
concept calibrates_on_prompts = requires {
    typename P::prompt_notes;
};
namespace detail {
struct no_notes {};
template <class P> struct prompt_notes_of { using type = no_notes; };
template <calibrates_on_prompts P> struct prompt_notes_of<P> { using type = typename P::prompt_notes; };
template <class P> using prompt_notes = typename prompt_notes_of<P>::type;
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
concept shares_choices = (detail::layers_that_share<P>() > 1);

template <class P>
concept selector_for = policy_for<P, const geometry&> && selector_declares_scores<P> &&
                       (P::takes_everything || selector_chooses<P>)&&selector_choose_is_noexcept<P> &&
                       (!P::uses_scores || selector_has_reduction<P>)&&selector_settles<P>;

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
            static_assert(holds(!P::uses_scores || selector_has_reduction<P>),
                          "[kvtl] selector: a selector that uses scores names its "
                          "`reduction` over the query group, e.g. reduce::group_mean");
        }
        static_assert(
            holds(selector_settles<P>),
            "[kvtl] selector: one with prompt_notes (trivially copyable, not with reduce::by_head) adds "
            "noexcept const `void note(const choice_input&, std::span<chosen_unit> spare, "
            "prompt_notes&)` and `float settle(std::span<const prompt_notes> layers)`");
        static_assert(holds(selector_choose_is_noexcept<P>),
                      "[kvtl] selector::state: choose() must be noexcept, it runs inside the decode loop");
    }
}

}} // namespace kvtl::v0
