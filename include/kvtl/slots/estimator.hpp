// The estimator slot: estimates the contribution of units that are not read.
//
// A policy with `static constexpr bool estimates = true` has a state with
//
//   std::size_t scratch_floats(const summary_shape&, std::uint32_t max_units) const
//   void add(const estimator_input&, const partial& into) const noexcept
//   static status check(const config&) noexcept            optional: the errors that open() returns
//
// A policy may declare needs_means, needs_spread and summarises as an index does (slots/index.hpp). With
// `reads_scores = true` it gets the index's scores of every query; every query must then choose for itself.
//
// Two optional functions of the state serve estimators that know how wrong they are:
//
//   void price(const estimator_input&, const partial& kept, std::span<float> out) const noexcept
//       out[u] += expected squared error of the head's outputs (units of values squared, summed over its
//       queries) per entry of unit u, if the unit is estimated and not read. `kept`: what the queries attend
//       in any case. A selector that goes by errors (select_error_price.hpp) chooses by these numbers. Right
//       behind the choice, add() may take from scratch what price() has computed (estimator_input::priced)
//   void gather(const summary_view&, const joining_entry&) const noexcept
//       an entry joins a unit of the lane: what the estimator learns about the lane. Needs needs_spread. The
//       bytes of the lane (lane_bytes) are zeros when the lane has no units
// add() merges the estimated contribution of the other units into the softmax state. An estimated unit of n
// entries counts as n entries (a log-count bias), so n equal keys have the same weight estimated and read.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/simd/attention.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/slots/policy.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// The units that were not attended, for one KV head and step.
struct estimator_input {
    const float* q = nullptr; ///< (G, D) queries of the KV head
    std::uint32_t group = 1;  ///< G
    logit_rule logits{};
    units_view units;                        ///< means and summaries of this head
    std::span<const std::uint64_t> attended; ///< (U) bit g: query g of the lane attended the unit exactly
    std::span<float> scratch;                ///< scratch_floats()
    std::span<float> attend;                 ///< scratch of simd::attend_rows
    std::span<const float> score{};          ///< with reads_scores: (G, U), or (G, U, max_entries) per entry
    bool priced = false; ///< price() has seen this input last, and scratch is as it has left it

    /// True when query g of this head did not attend unit u.
    [[nodiscard]] bool missing(std::uint32_t u, std::uint32_t g) const noexcept {
        const std::uint32_t bit = units.head * group + g;
        return bit >= 64 ? attended[u] == 0 : (attended[u] >> bit & 1) == 0;
    }
};

/// An entry that joins a unit, for gather(). Rows have the width of the lane.
struct joining_entry {
    const float* key = nullptr;
    const float* value = nullptr;
    const float* mean = nullptr; ///< mean key of the unit
    /// Entries of which `mean` is the mean, without this one. 0: the unit is built as a whole, and `mean` is that
    /// of all its entries.
    std::uint32_t before = 0;

    /// Weight with which products of residuals to `mean` add up to those of the unit (Welford).
    [[nodiscard]] float weight() const noexcept {
        return before == 0 ? 1.0F : static_cast<float>(before) / static_cast<float>(before + 1);
    }
};

template <class P>
concept estimates = requires {
    requires P::estimates;
};
/// The estimator reads the scores of the index.
template <class P>
concept reads_scores = requires {
    requires P::reads_scores;
};

/// The estimator says what error the output has where a unit is not read.
template <class P>
concept prices_errors = has_state<P> && requires(const typename P::state& s, const estimator_input& in,
                                                 const partial& kept, std::span<float> out) {
    { s.price(in, kept, out) }
    noexcept;
};
/// The estimator learns from each entry that joins a unit.
template <class P>
concept gathers_entries = has_state<P> &&
    requires(const typename P::state& s, const summary_view& lane, const joining_entry& entry) {
    { s.gather(lane, entry) }
    noexcept;
};

template <class P>
concept estimator_estimates = has_state<P> && requires(const typename P::state& s, const summary_shape& shape,
                                                       const estimator_input& in, const partial& into) {
    { s.scratch_floats(shape, 1U) } -> std::same_as<std::size_t>;
    { s.add(in, into) }
    noexcept;
};

template <class P>
concept estimator_for = policy_for<P, const geometry&> && summaries_agree<P> &&
    (!estimates<P> || estimator_estimates<P>);

template <class P> consteval void explain_estimator() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] estimator: add `static constexpr std::string_view name` and what "
                      "slots/estimator.hpp lists");
    } else {
        static_assert(holds(state_opens<P, const geometry&>),
                      "[kvtl] estimator: add an aggregate config and `class state` "
                      "constructible from (config, geometry)");
        static_assert(holds(state_is_relocatable<P>),
                      "[kvtl] estimator::state: it must be trivially copyable; summaries hold what it keeps");
        static_assert(
            holds(summaries_agree<P>),
            "[kvtl] estimator::state: it declares summarises, so add unit_bytes(shape), lane_bytes(shape) "
            "returning std::size_t and noexcept clear(view, unit) and absorb(view, unit, i, key, value)");
        static_assert(
            holds(!estimates<P> || estimator_estimates<P>),
            "[kvtl] estimator::state: it declares estimates, so add `std::size_t scratch_floats(shape, "
            "units) const` and `void add(const estimator_input&, const partial&) const noexcept`");
    }
}

}} // namespace kvtl::v0
