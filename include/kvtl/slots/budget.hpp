// The budget slot: how many of a prompt's competing entries each head may keep.
//
// Entries that are pinned (sinks and window) do not compete and have no part in a budget; the others are kept
// in score order. A budget names a provisional number that a head keeps when its layer's scores become known,
// and may revise the numbers of all layers seen so far after each layer. Two promises make that cheap and
// safe: a number never grows again, so that every revision is a truncation of rows in score order, and after
// the last layer the sum is exact. The shard takes the minimum with what is held, so the first promise cannot
// be broken.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// What a budget divides. Entries are counted without the pinned ones.
struct budget_limits {
    std::uint32_t layers = 0;
    std::uint32_t heads = 0;  ///< of a layer, as far as they are decided together
    std::uint32_t base = 0;   ///< mean number of competing entries that a head may keep
    std::uint32_t pinned = 0; ///< entries that are kept beside them
    std::uint32_t most = 0;   ///< competing entries of the longest prompt

    [[nodiscard]] std::uint64_t total() const noexcept { return std::uint64_t{base} * layers * heads; }
};

/// What a budget sees of a sequence: (layers, heads) lanes, of which the first `layers_seen` layers have
/// scores. competing() is how many entries of the prompt compete in each lane, keep(layer, head) how many of
/// them a lane still holds; visit(layer, head, f) calls f(score) for each, best first; preference(layer) is
/// what the retention says about a layer (only for budgets that declare `reads_preference`).
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

/// A board without anything, to ask a policy whether it can read one.
struct empty_board {
    [[nodiscard]] std::uint32_t layers_seen() const noexcept { return 0; }
    [[nodiscard]] std::uint32_t competing() const noexcept { return 0; }
    [[nodiscard]] std::uint32_t keep(std::uint32_t, std::uint32_t) const noexcept { return 0; }
    template <class F> void visit(std::uint32_t, std::uint32_t, F&&) const noexcept {}
    [[nodiscard]] float preference(std::uint32_t) const noexcept { return 0; }
};

/// `late`: a layer's numbers may change after it was seen. `decides_together`: all heads of a layer belong
/// together. `reads_preference`: it asks the board for preference(layer).
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
