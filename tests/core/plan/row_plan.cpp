// Which layers slide, what the others are called, and how many rows each of the former keeps.
// SPDX-License-Identifier: MIT
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/plan/planner.hpp>
#include <kvtl/core/plan/row_plan.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/full.hpp>

#include "support/planner_for.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

namespace core_plan_row_plan_test {

using namespace kvtl;
using kvtl_test::planner_for;

namespace {
row_plan plan_of(const std::vector<std::uint32_t>& windows, std::uint32_t max_tokens, std::uint32_t spare) {
    auto made = row_plan::make(windows, static_cast<std::uint32_t>(windows.size()), max_tokens, spare, false);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? std::string() : made.error().message));
    return *std::move(made);
}
void refused(const result<row_plan>& made, const char* why) {
    REQUIRE_FALSE(made.ok());
    CHECK_MESSAGE(made.error().message.find(why) != std::string::npos, made.error().message);
}
} // namespace

TEST_CASE("layers are numbered by kind, and the others remember what the model calls them") {
    const row_plan p = plan_of({0, 40, 0, 130, 40}, 1000, 32);
    REQUIRE(p.places.size() == 5);
    const bool slides[] = {false, true, false, true, true};
    const std::uint32_t index[] = {0, 0, 1, 1, 2};
    for (std::size_t l = 0; l < 5; ++l) {
        CHECK(p.places[l].slides == slides[l]);
        CHECK(p.places[l].index == index[l]);
    }
    const layer_numbers names{p.others};
    CHECK(names.of(0) == 0);
    CHECK(names.of(1) == 2);
    CHECK(layer_numbers{}.of(7) == 7);
    CHECK(p.layers[1].number == 3);
    CHECK(p.layers[2].offset == p.layers[0].capacity + std::size_t{p.layers[1].capacity});
    CHECK(p.rows() == p.layers[2].offset + p.layers[2].capacity);
}

TEST_CASE("a lane has room for what is seen, what may be rewound, and a block that arrives anywhere; no more "
          "than needed") {
    for (const std::uint32_t reach : {1U, 2U, 63U, 64U, 65U, 200U, 4096U})
        for (const std::uint32_t spare : {1U, 32U, 500U}) {
            const auto capacity = plan_of({0, reach}, 1U << 26, spare).layers[0].capacity;
            CHECK(capacity % row_plan::block == 0);
            // What stays behind whole blocks that leave: up to a block less one beyond what is needed.
            CHECK(capacity >= reach - 1 + spare + (row_plan::block - 1) + row_plan::block);
            CHECK(capacity < reach + spare + 3 * row_plan::block);
        }
    CHECK(plan_of({0, 90}, 100, 32).layers[0].capacity == 128); // never more than all tokens
}

TEST_CASE("rows leave in whole blocks of 64, and what a query or a rewind may need stays") {
    for (const std::uint32_t reach : {1U, 64U, 65U, 200U})
        for (const std::uint32_t spare : {1U, 32U}) {
            const row_layer l = plan_of({0, reach}, 1U << 26, spare).layers[0];
            std::uint32_t held = 0;
            for (const std::uint32_t n : {64U, 1U, 64U, 63U, 7U, 64U, 1U, 1U, 64U, 64U, 64U, 64U, 2U}) {
                const std::uint32_t leave = l.leaving(held, n);
                CHECK(leave % row_plan::block == 0);
                CHECK(held - leave + n <= l.capacity);
                if (leave > 0) CHECK(held - leave >= reach - 1 + spare);
                held += n - leave;
            }
        }
}

TEST_CASE("layers that keep everything come first, and keep sinks and window as rows") {
    row_plan p = plan_of({0, 40, 0, 130}, 1000, 32);
    p.keep_all(2, 4, 32, 1000);
    REQUIRE(p.layers.size() == 4);
    CHECK(p.recorded() == 2);
    CHECK(p.most_records == 1000 - 36);
    for (const std::uint32_t l : {0U, 1U}) {
        CHECK_FALSE(p.layers[l].slides());
        CHECK(p.layers[l].capacity == 36 + row_plan::at_once);
        // A step makes room for 16 others; a prompt leaves the window, and what is less than 16 rows beyond it.
        CHECK(p.layers[l].leaving(51, 1) == 0);
        CHECK(p.layers[l].leaving(52, 1) == 16);
        CHECK(p.layers[l].leaving(0, 500) == 464);
        CHECK(p.layers[l].leaving(0, 499) == 448);
    }
    CHECK(p.layers[2].slides());
    CHECK(p.places[1].index == 2);
    CHECK(p.places[3].index == 3);
    CHECK(p.layers[3].offset == 2 * (36 + row_plan::at_once) + std::size_t{p.layers[2].capacity});

    row_plan whole; // `full`
    whole.keep_all(3, 0, 1000, 1000);
    CHECK(whole.recorded() == 0);
    CHECK(whole.layers[0].capacity == 1000);
    CHECK(whole.layers[0].leaving(0, 1000) == 0);
}

TEST_CASE("a window that holds every token is none, and wrong windows are named") {
    CHECK(plan_of({100, 200}, 100, 32).layers.empty());
    CHECK(plan_of({100, 200}, 100, 32).places.empty());
    CHECK(plan_of({0, 0}, 100, 32).rows() == 0);
    CHECK(plan_of({}, 100, 32).rows() == 0);
    const std::vector<std::uint32_t> windows{0, 9};
    refused(row_plan::make(windows, 3, 100, 32, false),
            "attention.windows has 2 numbers; valid: one per layer, 3");
    refused(row_plan::make(windows, 2, 100, 32, true), "this preset reads a calibration");
    const std::vector<std::uint32_t> all{9, 9};
    refused(row_plan::make(all, 2, 100, 32, false), "all 2 layers slide");
}

TEST_CASE("the planner refuses windows beside a calibration, and rows beyond what can be counted") {
    cache_config<presets::dynakv> c;
    c.shape = {2, 4, 2, 64};
    c.attention.windows = {0, 40};
    c.max_tokens = 1000;
    c.memory_bytes = std::size_t{64} << 20;
    CHECK(planner_for(c).plan().ok());
    const auto beside = planner_for(c, 100).plan(); // bytes of a calibration that is there
    REQUIRE_FALSE(beside.ok());
    CHECK(beside.error().message.find("attention.windows: this preset reads a calibration") !=
          std::string::npos);

    cache_config<presets::full> huge;
    huge.shape = {1000, 65536, 65536, 65536};
    huge.attention.windows.assign(1000, 1U << 25);
    huge.attention.windows[0] = 0;
    huge.max_tokens = 1U << 26;
    huge.max_sequences = 4096;
    huge.memory_bytes = std::numeric_limits<std::size_t>::max() / 2;
    const auto counted = planner_for(huge).plan();
    REQUIRE_FALSE(counted.ok());
    CHECK(counted.error().message.find("max_sequences is 4096 with 1000 layers of 65536 KV heads") !=
          std::string::npos);
}

} // namespace core_plan_row_plan_test
