// What every schedule promises: it needs nothing of its own from the engine, and it goes with the selectors
// whose queries it makes the engine hand over. One that wants predictions serves selectors that choose a
// layer ahead and all others; one that does not serves only those that choose for the current query.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_all_units.hpp>
#include <kvtl/policies/select_max_minus_alpha.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/full.hpp>

#include <doctest/doctest.h>

namespace kvtl_test {

namespace schedule_suite {

template <class Schedule, class Selector> struct composed : kvtl::presets::full {
    using selector = Selector;
    using schedule = Schedule;
};
template <class Schedule, class Selector>
inline constexpr bool serves = kvtl::predictions_come<composed<Schedule, Selector>>;

} // namespace schedule_suite

/// `ahead`: the engine is to hand over predictions.
template <class Schedule> void schedule_contract(bool ahead) {
    using namespace kvtl;
    using schedule_suite::serves;
    CHECK(!std::string_view(Schedule::name).empty());
    CHECK(needs_of<Schedule>() == engine_input::nothing);
    CHECK(serves<Schedule, all_units>);
    CHECK(serves<Schedule, topk<reduce::group_mean>>);
    CHECK(serves<Schedule, max_minus_alpha<reduce::group_max>>);
    CHECK(serves<Schedule, topk<reduce::softmax_sum, query::predicted>> == ahead);
    CHECK(serves<Schedule, max_minus_alpha<reduce::group_mean, query::predicted>> == ahead);
}

} // namespace kvtl_test
