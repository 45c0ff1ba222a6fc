// error_price against its definition: what passes the price, what the limits hold back, and how the price
// follows what was read. SPDX-License-Identifier: MIT
#include <kvtl/policies/select_error_price.hpp>
#include <kvtl/presets/best.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/random_layer.hpp"
#include "support/units_above_bar.hpp"

#include <cmath>
#include <limits>

namespace select_error_price_test {

using namespace kvtl;
using namespace kvtl_test::selector_suite::bar;

namespace {
using state = error_price::state;

units random_errors(std::size_t n, std::uint64_t seed) {
    units x = random_units_of(n, seed);
    for (float& s : x.score) s = std::exp(s / 4); // errors are positive, and differ by powers of ten
    return x;
}
std::vector<std::uint32_t> choose(const units& x, std::uint32_t budget, float bar, float output,
                                  std::size_t room = 1000) {
    std::vector<std::uint32_t> order(x.score.size()), chosen;
    std::vector<std::uint64_t> scratch(x.score.size());
    std::vector<chosen_unit> out(std::min(room, x.score.size()));
    choice_input in(x.score, x.lane(), budget, order, scratch);
    in.bar = bar;
    in.output = output;
    for (const chosen_unit& c : std::span(out).first(state({}, model()).choose(in, out)))
        chosen.push_back(c.unit);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}
constexpr float no_price = -std::numeric_limits<float>::infinity();
constexpr auto any = [](std::uint32_t) { return true; };
} // namespace

TEST_CASE("error_price: a unit is read if its error relative to the output exceeds the price") {
    const units x = random_errors(300, 3);
    const float output = 7.0F, bar = std::log(2.0F);
    const auto passes = [&](std::uint32_t u) { return x.score[u] > 14.0F; };
    const auto all = naive(x, 1U << 20, passes);
    std::uint32_t entries = 0;
    for (const std::uint32_t u : all) entries += x.unit[u].entries;
    REQUIRE(all.size() > 20);
    CHECK(choose(x, entries, bar, output) == all);
    CHECK(choose(x, (entries + 3) / 4, bar, output) == all); // four times the budget may be chosen
    const std::uint32_t less = entries / 4 - 10;
    CHECK(choose(x, less, bar, output) == naive(x, 4 * less, passes));
    CHECK(choose(x, 100, 60.0F, output).empty());
}

TEST_CASE("error_price: before there is a price each head keeps to its budget") {
    const units x = random_errors(200, 4);
    for (const std::uint32_t budget : {1U, 50U, 400U}) {
        CHECK(choose(x, budget, no_price, 7.0F) == naive(x, budget, any));
        CHECK(choose(x, budget, 0.0F, 0.0F) == naive(x, budget, any)); // nor an output
    }
}

TEST_CASE("error_price: the first price is the mean of what heads could not read") {
    const state s({}, model());
    std::vector<error_price::step_notes> notes(3);
    s.note_step(
        {.entries = 90, .budget = 100, .log_marginal = 2 * std::log(0.5), .marginals = 2, .output = 2},
        notes[0]);
    s.note_step({.entries = 90, .budget = 100, .log_marginal = std::log(8.0), .marginals = 1, .output = 4},
                notes[1]);
    s.note_step({.entries = 10, .budget = 10, .output = 4}, notes[2]); // read everything
    CHECK(static_cast<double>(s.settle(notes, no_price)) ==
          doctest::Approx((2 * std::log(0.25) + std::log(2.0)) / 3));
    std::vector<error_price::step_notes> nothing(3);
    CHECK(s.settle(nothing, no_price) == no_price);
    CHECK(s.settle(nothing, 0.5F) == 0.5F);
}

TEST_CASE("error_price: the price rises by the rate times what was read too much, within bounds") {
    const state s({.rate = 0.5F}, model());
    std::vector<error_price::step_notes> notes(2);
    const auto next = [&](std::uint64_t a, std::uint64_t b, float price) {
        s.note_step({.entries = a, .budget = 100, .output = 1}, notes[0]);
        s.note_step({.entries = b, .budget = 300, .output = 1}, notes[1]);
        return static_cast<double>(s.settle(notes, price));
    };
    CHECK(next(500, 300, -3.0F) == doctest::Approx(-3.0 + 0.5 * 1.0));
    CHECK(next(100, 0, -3.0F) == doctest::Approx(-3.0 - 0.5 * 0.75));
    CHECK(next(0, 0, -3.0F) == doctest::Approx(-3.0 - 0.5));
    CHECK(next(1'600, 0, -3.0F) == doctest::Approx(-3.0 + 0.5 * 3.0));
    CHECK(next(0, 0, -20.0F) == -20.0); // a price that lost itself would come back too late
    CHECK(next(90'000, 0, 4.0F) == 5.0);
}

TEST_CASE("error_price: settings that cannot be are refused") {
    CHECK(state::check({.rate = 1.0F, .resident_share = 1.0F}).ok());
    CHECK(std::string(state::check({.rate = 0.0F}).what()) == "selector.rate is 0; valid: above 0, to 1");
    CHECK_FALSE(state::check({.rate = std::nanf("")}).ok());
    CHECK(std::string(state::check({.resident_share = 0.0F}).what()) ==
          "selector.resident_share is 0; valid: above 0, to 1");
    CHECK_FALSE(state::check({.resident_share = 1.5F}).ok());
    CHECK_FALSE(state::check({.resident_share = std::nanf("")}).ok());
}

TEST_CASE("error_price: a unit's worth is its error for the bytes that it costs") {
    const state s({.resident_share = 0.25F}, model());
    const float error = 3.0F; // per entry
    // 7 entries in a page for 28: the page is paid. Twice the pages for as many entries: half the worth.
    CHECK(error * s.worth(7, 28) == doctest::Approx(7 * 3.0 / 28));
    CHECK(s.worth(7, 56) == doctest::Approx(0.5 * static_cast<double>(s.worth(7, 28))));
    CHECK(s.worth(28, 28) == 1.0F);
    CHECK(s.worth(7, 0) == 4.0F); // resident: entries at the share, whatever their number
    CHECK(s.worth(1, 0) == 4.0F);
}

TEST_CASE(
    "error_price: no worth is above most_worth(), and least_worth() is the error that choose() asks for") {
    for (const float share : {0.05F, 0.25F, 1.0F}) {
        const state s({.resident_share = share}, model());
        for (std::uint32_t entries = 1; entries <= 24; ++entries)
            for (const std::uint32_t fetched : {0U, 1U, 24U, 96U}) // 1: the other pages are in memory
                CHECK(s.worth(entries, fetched) <= s.most_worth(24));
    }
    units_view units;
    units.count = 2, units.max_entries = 8;
    for (const float error : {1.0F, 3.0F}) {
        const std::vector<float> score{error, 2.0F};
        std::vector<std::uint32_t> order(2);
        std::vector<std::uint64_t> keys(2);
        choice_input in(score, units, 100, order, keys);
        CHECK(state::least_worth(in) < 0.0F); // no price yet
        in.bar = std::log(0.5F), in.output = 4.0F;
        CHECK(state::least_worth(in) == doctest::Approx(2.0));
        std::vector<chosen_unit> out(2);
        CHECK(state({}, model()).choose(in, out) == (error > 2.0F ? 1 : 0));
    }
}

namespace {
/// What kvtl_best reads and errs, per step, over 300 steps with memory for a part of the cache.
struct with_share {
    double error = 0, read = 0, chosen = 0, may = 0;
};
with_share play(const kvtl_test::drift& data, float share) {
    const kvtl_test::scratch_folder folder;
    kvtl_best::config c;
    c.shape = data.shape();
    c.max_tokens = 1200;
    c.attend_tokens = 128;
    c.memory_bytes = std::size_t{1600} << 10;
    c.io.path = folder.file("c.kv");
    c.selector.resident_share = share;
    auto cache = kvtl_test::open_cache<kvtl_best>(c);
    kvtl_test::reader<kvtl_best> one(cache, data, 10);
    one.prefill(500);
    one.decode(200);
    const auto before = cache.stats();
    one.decode(300);
    const auto after = cache.stats();
    const auto choices = static_cast<double>(after.choices - before.choices);
    return {one.error(), static_cast<double>(after.read_bytes - before.read_bytes) / choices,
            static_cast<double>(after.chosen_bytes - before.chosen_bytes) / choices / (2 * (64 + 4)),
            static_cast<double>(after.selectable_entries - before.selectable_entries) / choices};
}
} // namespace

TEST_CASE("kvtl_best: a low price of what is resident saves reads at an equal number of entries") {
    const kvtl_test::drift data({2, 4, 2, 64}, 1200, 12);
    const with_share all = play(data, 1.0F), low = play(data, 0.05F);
    MESSAGE("read " << all.read << " and " << low.read << " bytes a choice, error " << all.error << " and "
                    << low.error);
    CHECK(low.read < 0.7 * all.read);
    CHECK(low.chosen == doctest::Approx(low.may).epsilon(0.1));
    CHECK(all.chosen == doctest::Approx(all.may).epsilon(0.1));
}

TEST_CASE("kvtl_best: after a while it reads what it may, in the mean over heads and layers") {
    const kvtl_test::scratch_folder folder;
    const kvtl_test::drift data({2, 4, 2, 64}, 1200, 12);
    kvtl_best::config c;
    c.shape = data.shape();
    c.max_tokens = 1200;
    c.attend_tokens = 128;
    c.memory_bytes = std::size_t{16} << 20;
    c.io.path = folder.file("b.kv");
    auto cache = kvtl_test::open_cache<kvtl_best>(c);
    kvtl_test::reader<kvtl_best> one(cache, data, 0);
    one.prefill(500);
    one.decode(200);
    const auto before = cache.stats();
    one.decode(400);
    const auto after = cache.stats();
    const auto per_choice = [&](auto member) {
        return static_cast<double>(after.*member - before.*member) /
               static_cast<double>(after.choices - before.choices);
    };
    const double bytes = 2 * (64 + 4);
    const double read = per_choice(&statistics::chosen_bytes) / bytes,
                 may = per_choice(&statistics::selectable_entries);
    MESSAGE("chosen " << read << " of " << may << " entries");
    CHECK(read == doctest::Approx(may).epsilon(0.1));
}

} // namespace select_error_price_test
