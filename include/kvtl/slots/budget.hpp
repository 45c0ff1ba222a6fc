// The budget slot: how many of a prompt's competing entries each head may keep.
//
// Sinks and window are pinned: they do not compete and are not part of a budget. The other entries are kept
// in score order. A budget gives a head a provisional number when the scores of its layer become known. After
// each layer it may revise the numbers of all layers seen so far. Two rules make revisions cheap and safe:
//
//   - A number never grows again. So every revision truncates rows that are in score order. The shard takes
//     the minimum of the number and what it holds, so a policy cannot break this rule.
//   - After the last layer the sum of all numbers is exact.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// The numbers that a budget divides. Pinned entries are not counted.
struct budget_limits {
    std::uint32_t layers = 0;
    std::uint32_t heads = 0;  ///< lanes of a layer in one shard; all heads with decides_together
    std::uint32_t base = 0;   ///< mean number of competing entries that a head may keep
    std::uint32_t pinned = 0; ///< entries that are kept in addition
    std::uint32_t most = 0;   ///< competing entries of the longest prompt

    [[nodiscard]] std::uint64_t total() const noexcept { return std::uint64_t{base} * layers * heads; }
};

/// A budget's view of a sequence of (layers, heads) lanes.
///
///   layers_seen()           number of first layers that have scores
///   competing()             entries of the prompt that compete in each lane
///   keep(layer, head)       entries of these that the lane still holds
///   visit(layer, head, f)   calls f(score) for each of them, best first
///   preference(layer)       weight of a layer that the retention computes; only with `reads_preference`
template <class T>
concept score_board = requires(const T& board, void (*f)(float)) {
    { board.layers_seen() }
    noexcept->std::same_as<std::uint32_t>;
    { board.competing() }
    noexcept->std::same_as<std::uint32_t>;
    { board.keep(0U, 0U) }
    noexcept->std::same_as<std::uint32_t>;
    board.visit(0U, 0U, f);
    { board.preference(0U) }
    noexcept->std::same_as<float>;
};

/// An empty board, for concepts that check whether a policy can read one.
struct empty_board {
    [[nodiscard]] std::uint32_t layers_seen() const noexcept { return 0; }
    [[nodiscard]] std::uint32_t competing() const noexcept { return 0; }
    [[nodiscard]] std::uint32_t keep(std::uint32_t, std::uint32_t) const noexcept { return 0; }
    template <class F> void visit(std::uint32_t, std::uint32_t, F&&) const noexcept {}
    [[nodiscard]] float preference(std::uint32_t) const noexcept { return 0; }
};

/// `late`: the numbers of a layer may change after the layer was seen. `decides_together`: the budget
/// compares the heads of a layer, so one shard has all of them. `reads_preference`: revise() calls
/// preference(layer).
template <class P>
concept budget_declares = requires {
    { P::late } -> std::convertible_to<bool>;
    { P::decides_together } -> std::convertible_to<bool>;
    { P::reads_preference } -> std::convertible_to<bool>;
};
template <class P>
concept budget_opens = state_constructs<P, const budget_limits&, std::span<std::byte>> &&
    requires(const typename P::config& c, const budget_limits& l) {
    { P::state::bytes(l) }
    noexcept->std::same_as<std::size_t>;
    { P::state::check(c, l) }
    noexcept->std::same_as<status>;
};
template <class P>
concept budget_divides = has_state<P> && requires(const typename P::state& s, std::span<std::uint32_t> keep) {
    { s.provisional(0U, 0U) }
    noexcept->std::same_as<std::uint32_t>;
    { s.peak() }
    noexcept->std::same_as<std::uint64_t>;
    { s.revise(0U, empty_board{}, keep) }
    noexcept;
};

template <class P>
concept budget_for =
    has_name<P> && budget_declares<P> && budget_opens<P> && budget_divides<P> && state_is_relocatable<P>;

template <class P> consteval void explain_budget() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] budget: add `static constexpr std::string_view name` and what "
                      "slots/budget.hpp lists");
    } else {
        static_assert(holds(budget_declares<P>),
                      "[kvtl] budget: declare the constants late, decides_together and reads_preference");
        static_assert(holds(budget_opens<P>),
                      "[kvtl] budget: add a config and `class state` with noexcept "
                      "static bytes(budget_limits) and check(config, budget_limits), constructible from "
                      "(config, budget_limits, std::span<std::byte>)");
        static_assert(holds(state_is_relocatable<P>),
                      "[kvtl] budget::state: it must be trivially copyable; use the memory it is handed");
        if constexpr (budget_opens<P>)
            static_assert(holds(budget_divides<P>),
                          "[kvtl] budget::state: add noexcept const provisional(layer, n), peak() and "
                          "revise(layer, board, keep)");
    }
}

}} // namespace kvtl::v0
