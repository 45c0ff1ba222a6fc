// lane_table: lanes of a region keep what they hold while the tables of all of them become longer and shorter, and what
// lies behind them is untouched memory.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/lane_table.hpp>

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <vector>

namespace core_store_lane_table_test {

using namespace kvtl;

namespace {

struct clusterer_lane {
    std::uint32_t refused = 0;
};
using lane = lane_view<float, clusterer_lane>;
using region = lane_region<lane>;

constexpr lane_sizes sizes{.width = 8,
                           .max_tokens = 4000,
                           .max_units = 500,
                           .sinks = 2,
                           .window = 4,
                           .buffer = 3,
                           .centroid_bits = 32,
                           .index_unit = 20,
                           .index_lane = 16};

/// Two sequences of three layers of four lanes in two shards, which have every other lane.
struct fixture {
    lane_sizes sizes = core_store_lane_table_test::sizes;
    static constexpr std::uint32_t slots = 2, layers = 3, of_layer = 4, shards = 2;
    static constexpr std::uint32_t lanes = slots * layers * of_layer;
    reservation memory;
    std::vector<lane_place<lane>> places{lanes};
    std::vector<region> regions{slots * shards};
    lane_table<lane> table;

    explicit fixture(std::size_t lent_page,
                     std::uint32_t max_units = core_store_lane_table_test::sizes.max_units) {
        sizes.max_units = max_units;
        table.sizes = sizes;
        table.longest = lane::offsets::make(sizes);
        table.places = places;
        table.regions = regions;
        table.lanes_per_layer = of_layer;
        table.lanes_per_slot = layers * of_layer;
        const std::size_t bytes = lanes / regions.size() * region::stride(table.longest, false);
        auto made = reservation::make(regions.size() * bytes);
        REQUIRE(made.ok());
        memory = std::move(*made);
        reservation::in_small_pages(memory.memory());
        for (std::uint32_t r = 0; r < regions.size(); ++r)
            table.begin_region(regions[r], memory.memory().subspan(r * bytes, bytes),
                               {.first = r / shards * table.lanes_per_slot + r % shards,
                                .layers = layers,
                                .of_layer = of_layer / shards,
                                .apart = shards,
                                .layer_apart = of_layer},
                               lent_page);
        for (std::uint32_t id = 0; id < lanes; ++id) write(id, 0);
    }
    void write(std::uint32_t id, std::uint32_t units) {
        const lane l = table.at(id);
        l.state().units = units;
        l.clusterer().refused = id;
        l.window_k(0)[3] = static_cast<float>(id);
        for (std::uint32_t u = 0; u < units; ++u) {
            l.begin_unit(u, {});
            l.unit(u).entries = id + u;
            l.residency(u).set_frames(2 * u);
            const std::vector<float> mean(sizes.width, static_cast<float>(id * 1000 + u));
            l.means().set(u, mean.data());
        }
    }
    void check(std::uint32_t id, std::uint32_t units) const {
        const lane l = table.at(id);
        REQUIRE(l.state().units == units);
        REQUIRE(l.clusterer().refused == id);
        REQUIRE(l.window_k(0)[3] == static_cast<float>(id));
        std::vector<float> mean(sizes.width);
        for (std::uint32_t u = 0; u < units; ++u) {
            REQUIRE(l.unit(u).entries == id + u);
            REQUIRE(l.residency(u).frames() == 2 * u);
            l.means().get(u, mean.data());
            REQUIRE(mean[7] == static_cast<float>(id * 1000 + u));
        }
    }
};

} // namespace

TEST_CASE("each lane is in one region, and blocks are apart") {
    fixture f(system_page());
    std::vector<int> seen(fixture::lanes, 0);
    for (const region& r : f.regions)
        for (std::uint32_t i = 0; i < r.lanes.count(); ++i) {
            const std::uint32_t id = r.lanes[i];
            ++seen[id];
            CHECK(&f.table.region_of(id) == &r);
            CHECK(f.table.in_layer(id) % fixture::shards ==
                  static_cast<std::uint32_t>(&r - f.regions.data()) % fixture::shards);
            CHECK(f.places[id].block == r.memory.data() + i * region::stride(r.at, false));
        }
    for (const int n : seen) CHECK(n == 1);
}

TEST_CASE("what lanes hold stays, and what is spare has no memory") {
    fixture f(system_page());
    std::mt19937 random(3);
    std::vector<std::uint32_t> units(fixture::lanes, 0);
    region& r = f.regions[2];
    const std::size_t all = r.spare();
    CHECK(all > r.memory.size() * 9 / 10); // no tables yet
    CHECK(r.spare(sizes, 0) == all);
    for (std::uint32_t rows : {10U, 11U, 200U, 60U, 500U, 499U, 130U}) {
        CAPTURE(rows);
        const bool longer = rows > r.at.rows;
        const std::size_t before = r.spare(), spare = r.spare(sizes, rows);
        r.resize(sizes, f.places, rows);
        if (longer)
            CHECK(r.spare() == spare);
        else
            CHECK((spare == before && r.spare() >= before)); // before it had happened nothing was spare
        for (std::uint32_t i = 0; i < r.lanes.count(); ++i) {
            const std::uint32_t id = r.lanes[i];
            CHECK(f.table.at(id).table_rows() == rows);
            f.check(id, units[id]);
            units[id] =
                std::min(rows, 60 - static_cast<std::uint32_t>(random() % 5)); // the next are no shorter
            f.write(id, units[id]);
        }
        const std::size_t page = system_page(), whole = r.spare();
        if (whole == 0) continue;
        const auto end = (reinterpret_cast<std::uintptr_t>(r.memory.data()) + r.memory.size()) / page * page;
        std::vector<unsigned char> there(whole / page);
        REQUIRE(mincore(reinterpret_cast<void*>(end - whole), whole, there.data()) == 0);
        for (const unsigned char t : there) REQUIRE((t & 1) == 0);
    }
    for (const std::uint32_t id : {0U, 1U, 13U}) { // of other regions
        f.check(id, 0);
        CHECK(f.table.at(id).table_rows() == 0);
    }
}

TEST_CASE("large pages are lent whole, wherever a region begins and ends") {
    constexpr std::size_t large = reservation::large_page;
    fixture f(large, 50'000);
    for (region& r : f.regions) {
        const auto begin = reinterpret_cast<std::uintptr_t>(r.memory.data()), end = begin + r.memory.size();
        REQUIRE(r.memory.size() > 8 * large);
        for (const std::uint32_t rows : {1U, 20'000U, 49'999U, 50'000U, 30'000U, 1U}) {
            r.resize(f.sizes, f.places, rows);
            const std::uintptr_t behind = begin + r.lanes.count() * region::stride(r.at, false),
                                 first = (behind + large - 1) / large * large, last = end / large * large;
            CHECK(r.spare() == (first < last ? last - first : 0));
        }
    }
}

TEST_CASE("a region that does not lend has tables for all units from the beginning") {
    const fixture f(0);
    for (const region& r : f.regions) {
        CHECK(r.at.rows == sizes.max_units);
        CHECK(r.spare() == 0);
        CHECK(r.lanes.count() * region::stride(r.at, false) == r.memory.size());
    }
    CHECK(region::page_for(4 * reservation::large_page) == system_page());
    if (system_page() == 4096)
        CHECK(region::page_for(64 * reservation::large_page) == reservation::large_page);
}

} // namespace core_store_lane_table_test
