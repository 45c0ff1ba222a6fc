// recurrence: an entry is worth less the longer it has been silent, in its own longest silences.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_recurrence.hpp>

#include "contracts/retention.hpp"

namespace retain_recurrence_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
struct recurs {
    std::uint32_t last, interval = 0;
    double activity;
    void feed(std::uint32_t now, double mass) {
        if (mass < activity) return;
        interval = std::max(interval, now - last);
        last = now;
    }
    [[nodiscard]] double worth(std::uint32_t now) const {
        return -static_cast<double>(now - last) / std::max(interval, 1U);
    }
};
} // namespace

TEST_CASE("recurrence: silence in units of the longest silence that ended") {
    for (const float activity : {1e-4F, 0.2F})
        ranks_held_contract<recurrence>({.activity = activity}, 1e-6, [&](std::uint32_t token, double) {
            return recurs{token, 0, static_cast<double>(activity)};
        });
}

TEST_CASE("recurrence: after a rewind the last activity may lie ahead, and counts as now") {
    const state_of<recurrence> s({.activity = 0.1F}, {}, {});
    recurrence::record r = recurrence::record::arrived(5);
    float score = 0;
    s.feed({0, 5, 40}, 0.5F, score, r); // a silence of 35 ends
    CHECK(s.worth({0, 5, 47}, r) == -7.0F / 35.0F);
    CHECK(s.worth({0, 5, 20}, r) == 0.0F);
    s.feed({0, 5, 20}, 0.5F, score, r);
    CHECK(r.last_active == 20);
    CHECK(r.interval == 35);
}

TEST_CASE("recurrence: eviction waits for a period, and settings that can never work are named") {
    using state = state_of<recurrence>;
    const score_limits large{.sinks = 4, .window = 8, .keep = 1000},
        small{.sinks = 4, .window = 8, .keep = 64};
    CHECK(state::slack() == 0); // never over the limit
    CHECK(state({.period = 175}, large, {}).headroom() == 174);
    CHECK(state({.period = 1}, large, {}).headroom() == 0);
    CHECK(state({.period = 175}, small, {}).headroom() == 13); // a quarter of what competes
    CHECK(state::check({}, {}).ok());
    check_refusal(state::check({.activity = 0.0F}, {}), "retention.activity is 0");
    check_refusal(state::check({.activity = 1.0F}, {}), "retention.activity is 1");
    check_refusal(state::check({.activity = NAN}, {}), "retention.activity is");
    check_refusal(state::check({.period = 0}, {}), "retention.period is 0");
}

} // namespace retain_recurrence_test
