// kvtl-bench compare: which rows belong together, what their ratios are, and how well those are known.
// SPDX-License-Identifier: MIT
#include "compare.hpp"

#include "error.hpp"
#include "median_interval.hpp"
#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <vector>

using json = nlohmann::ordered_json;

TEST_CASE("the interval of a median has the ranks that tables give for it") {
    std::vector<double> samples;
    const auto ranks = [&](std::size_t n) {
        samples.resize(n);
        for (std::size_t i = 0; i < n; ++i) samples[i] = static_cast<double>(i + 1);
        return bench::median_interval95(samples);
    };
    for (const std::size_t n : {0U, 1U, 5U}) CHECK_FALSE(ranks(n).has_value());
    // Sign test, 2.5 % at each side: Conover, Practical Nonparametric Statistics.
    const struct {
        std::size_t n;
        double low, high;
    } known[] = {{6, 1, 6}, {10, 2, 9}, {20, 6, 15}, {25, 8, 18}, {50, 18, 33}, {100, 40, 61}};
    for (const auto& k : known) {
        CAPTURE(k.n);
        const auto i = ranks(k.n);
        REQUIRE(i.has_value());
        CHECK(i->low == k.low);
        CHECK(i->high == k.high);
    }
}

TEST_CASE("the interval of a ratio of medians has the true ratio in it as often as it says") {
    std::mt19937 random(7);
    std::lognormal_distribution<double> first(0, .3), second(.2, .5);
    int inside = 0;
    constexpr int trials = 1000;
    for (int t = 0; t < trials; ++t) {
        std::vector<double> a(40), b(60);
        for (double& x : a) x = first(random);
        for (double& x : b) x = second(random);
        std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
        const auto of_a = bench::median_interval95(a), of_b = bench::median_interval95(b);
        const auto ratio = bench::ratio_interval(a[20], *of_a, b[30], *of_b);
        REQUIRE(ratio.has_value());
        const double truth = std::exp(.2); // medians 1 and exp(.2)
        inside += ratio->low <= truth && truth <= ratio->high;
    }
    CHECK(inside >= 940); // a little above 95 %, as ranks are whole
    CHECK(inside < 995);  // and not because it says nothing
    CHECK_FALSE(bench::ratio_interval(0, {0, 1}, 1, {1, 1}).has_value());
}

namespace {

json row(const char* policy, int attended, double ms) {
    return {{"policy", policy},
            {"shape", "tiny-2k"},
            {"context", 1024},
            {"batch", 1},
            {"device", "native"},
            {"config", {{"attend_tokens", attended}, {"keep_tokens", 0}, {"memory_mib", 4.0}}},
            {"step_ms_median", ms},
            {"step_ms_low", ms * .9},
            {"step_ms_high", ms * 1.25},
            {"tokens_per_s", 1000 / ms},
            {"read_bytes_per_step", 0},
            {"hit_rate", nullptr}};
}

} // namespace

TEST_CASE("rows are matched by what identifies them, and compared as the second to the first") {
    const json a = {row("dynakv", 64, 2), row("dynakv", 128, 4), row("quest", 64, 1)};
    const json b = {row("dynakv", 128, 2), row("dynakv", 64, 3), row("full", 64, 1)};
    const json out = bench::compare_rows(a, b);
    REQUIRE(out["rows"].size() == 2);
    CHECK(out["rows"][0]["row"] == "dynakv, tiny-2k, context 1024, batch 1, native, 64 attended, 4.0 MiB");
    const json& m = out["rows"][0]["metrics"];
    CHECK(m["step_ms_median"]["a"] == 2);
    CHECK(m["step_ms_median"]["b"] == 3);
    CHECK(m["step_ms_median"]["ratio"] == 1.5);
    // Distances on the log scale add as squares: log(10 / 9) below b and log(1.25) above a.
    const double down = std::hypot(std::log(10.0 / 9), std::log(1.25));
    CHECK(m["step_ms_median"]["ratio_low"].get<double>() == doctest::Approx(1.5 * std::exp(-down)));
    CHECK(m["step_ms_median"]["ratio_high"].get<double>() == doctest::Approx(1.5 * std::exp(down)));
    CHECK(m["tokens_per_s"]["ratio"].get<double>() == doctest::Approx(2.0 / 3));
    CHECK(m["tokens_per_s"]["ratio_low"].get<double>() == doctest::Approx(std::exp(-down) / 1.5));
    CHECK(m["read_bytes_per_step"]["ratio"].is_null()); // nothing to divide by
    CHECK(m["read_bytes_per_step"]["ratio_low"].is_null());
    CHECK_FALSE(m.contains("hit_rate")); // null in the rows
    CHECK(out["rows"][1]["metrics"]["step_ms_median"]["ratio"] == .5);
    CHECK(out["only_a"] == json{"quest, tiny-2k, context 1024, batch 1, native, 64 attended, 4.0 MiB"});
    CHECK(out["only_b"] == json{"full, tiny-2k, context 1024, batch 1, native, 64 attended, 4.0 MiB"});
}

TEST_CASE("several rows of one kind: the first with the first") {
    const json out = bench::compare_rows({row("dynakv", 64, 1), row("dynakv", 64, 2)},
                                         {row("dynakv", 64, 3), row("dynakv", 64, 8), row("dynakv", 64, 9)});
    REQUIRE(out["rows"].size() == 2);
    CHECK(out["rows"][0]["metrics"]["step_ms_median"]["ratio"] == 3);
    CHECK(out["rows"][1]["metrics"]["step_ms_median"]["ratio"] == 4);
    CHECK(out["only_b"].size() == 1);
}

TEST_CASE("one thread is what a row without a number of threads had; others are rows of their own") {
    json one = row("dynakv", 64, 2), two = row("dynakv", 64, 1);
    one["threads"] = 1, two["threads"] = 2;
    const json out = bench::compare_rows(json::array({row("dynakv", 64, 4)}), json::array({two, one}));
    REQUIRE(out["rows"].size() == 1);
    CHECK(out["rows"][0]["metrics"]["step_ms_median"]["b"] == 2);
    CHECK(out["only_b"] ==
          json{"dynakv, tiny-2k, context 1024, batch 1, threads 2, native, 64 attended, 4.0 MiB"});
}

TEST_CASE("shards beyond threads and another text are rows of their own") {
    json usual = row("dynakv", 64, 2), shards = usual, knobs = usual;
    usual["threads"] = shards["threads"] = knobs["threads"] = 1;
    usual["shards"] = knobs["shards"] = 1, shards["shards"] = 2;
    usual["config"]["workload"] = "drift:1", knobs["config"]["workload"] = "drift:1,dwell=9";
    const json out =
        bench::compare_rows(json::array({row("dynakv", 64, 4)}), json::array({shards, knobs, usual}));
    REQUIRE(out["rows"].size() == 1);
    CHECK(out["rows"][0]["metrics"]["step_ms_median"]["b"] == 2);
    CHECK(out["only_b"] ==
          json{"dynakv, tiny-2k, context 1024, batch 1, shards 2, native, 64 attended, 4.0 MiB",
               "dynakv, tiny-2k, context 1024, batch 1, drift:1,dwell=9, native, 64 attended, 4.0 MiB"});
}

TEST_CASE("what identifies a row may be anything: it is compared, not read") {
    json odd = row("dynakv", 64, 2);
    odd["threads"] = "two", odd["shards"] = 2, odd["config"]["workload"] = 7;
    const json out = bench::compare_rows(json::array({odd}), json::array({odd}));
    REQUIRE(out["rows"].size() == 1);
    CHECK(out["rows"][0]["metrics"]["step_ms_median"]["ratio"] == 1);
}

TEST_CASE("times without an interval have a ratio without one") {
    json short_run = row("dynakv", 64, 1);
    short_run["step_ms_low"] = nullptr;
    const json out = bench::compare_rows(json::array({short_run}), json::array({row("dynakv", 64, 2)}));
    CHECK(out["rows"][0]["metrics"]["step_ms_median"]["ratio"] == 2);
    CHECK(out["rows"][0]["metrics"]["step_ms_median"]["ratio_low"].is_null());
}

TEST_CASE("what cannot be compared is refused") {
    CHECK_THROWS_AS(static_cast<void>(bench::compare_rows(json::array({row("dynakv", 64, 1)}),
                                                          json::array({row("dynakv", 65, 1)}))),
                    engine::bad_input);
    const kvtl_test::scratch_folder folder;
    for (const char* text : {"", "{}", "[]", "[1]", "[{\"shape\": 1}]", "[{\"policy\": "}) {
        CAPTURE(std::string(text));
        std::ofstream(folder.file("rows.json")) << text;
        CHECK_THROWS_AS(static_cast<void>(bench::read_rows(folder.file("rows.json"))), engine::bad_input);
    }
    CHECK_THROWS_AS(static_cast<void>(bench::read_rows(folder.file("missing.json"))), engine::bad_input);
    CHECK_THROWS_AS(static_cast<void>(bench::read_rows(folder.file(""))), engine::bad_input);
    std::ofstream(folder.file("rows.json")) << json::array({row("dynakv", 64, 1)}).dump();
    CHECK(bench::read_rows(folder.file("rows.json")).size() == 1);
}
