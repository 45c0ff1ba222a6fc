// kmeans_static: frozen centroids, and siblings for clusters that are full.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_kmeans_static.hpp>

#include "contracts/clusterer.hpp"

#include <doctest/doctest.h>

#include <string>

namespace cluster_kmeans_static_test {

using namespace kvtl;

namespace {

constexpr kmeans_static::config config{
    .tokens_per_cluster = 4, .min_entries_to_cluster = 8, .pending_entries = 2, .seed = 3};
using lane_model = kvtl_test::lane_model<kmeans_static>;

/// Units at 0, 10 and 20 on a line, with two, two and one entries; at most eight fit.
lane_model three_units() {
    lane_model lane(config, 1);
    lane.found({{-1.0F}, {1.0F}, {9.0F}, {11.0F}, {20.0F}}, {0, 0, 1, 1, 2}, 3);
    return lane;
}

bool is(assignment a, std::uint32_t unit, growth how) {
    return a.unit == unit && a.how == how;
}

} // namespace

TEST_CASE("kmeans_static") {
    kvtl_test::clusterer_contract<kmeans_static>(config);
}

TEST_CASE("kmeans_static with larger clusters") {
    kvtl_test::clusterer_contract<kmeans_static>({.tokens_per_cluster = 9, .min_entries_to_cluster = 30});
}

TEST_CASE("an entry goes to the nearest centroid, ties to the lower index") {
    auto lane = three_units();
    CHECK(is(lane.assign({4.9F}), 0, growth::append));
    CHECK(is(lane.assign({5.0F}), 0, growth::append));
    CHECK(is(lane.assign({5.1F}), 1, growth::append));
    CHECK(is(lane.assign({900.0F}), 2, growth::append));
}

TEST_CASE("a full cluster continues in a sibling with the same centroid") {
    auto lane = three_units();
    for (int i = 0; i < 6; ++i) {
        REQUIRE(is(lane.assign({8.0F}), 1, growth::append));
        lane.append(1, {8.0F});
    }
    CHECK(lane.mean(1)[0] == 10.0F); // frozen
    const assignment a = lane.assign({8.0F});
    CHECK(is(a, 1, growth::open)); // open a unit like 1
    lane.open({8.0F}, a.unit);
    CHECK(lane.mean(3)[0] == 10.0F);
    CHECK(is(lane.assign({8.0F}), 3, growth::append));
    CHECK(is(lane.assign({1.0F}), 0, growth::append));
    lane.record(3).entries = 7;
    lane.record(3).buffered = 1; // full with what waits for it
    CHECK(lane.assign({8.0F}).how == growth::open);
}

TEST_CASE("without room for another unit the nearest one that has room takes the entry") {
    auto lane = three_units();
    lane.record(1).entries = 8;
    CHECK(is(lane.assign({14.0F}, false), 2, growth::append));
    CHECK(is(lane.assign({6.0F}, false), 0, growth::append));
    CHECK(is(lane.assign({6.0F}, true), 1, growth::open));
}

TEST_CASE("groups follow the data and the seed") {
    const lane_model lane(config, 2);
    std::vector<std::vector<float>> rows;
    for (std::uint32_t i = 0; i < 16; ++i) // four tight blobs of four
        rows.push_back({100.0F * static_cast<float>(i % 4), 0.25F * static_cast<float>(i / 4)});
    std::uint32_t units = 0;
    const auto label = kvtl_test::clusterer_suite::group<kmeans_static, float>(lane, rows, units);
    for (std::uint32_t i = 4; i < 16; ++i) CHECK(label[i] == label[i % 4]);
    CHECK(units == 4);
}

TEST_CASE("a lane is clustered at min_entries_to_cluster") {
    const lane_model lane(config, 1);
    CHECK_FALSE(lane.clusterer().ready(7));
    CHECK(lane.clusterer().ready(8));
}

TEST_CASE("values that cannot work are refused by name") {
    using state = kmeans_static::state;
    const auto says = [](kmeans_static::config c, const char* text) {
        const status s = state::check(c);
        return s.code() == errc::invalid_argument && std::string(s.what()).find(text) == 0;
    };
    CHECK(says({.tokens_per_cluster = 3}, "clusterer.tokens_per_cluster is 3"));
    CHECK(says({.tokens_per_cluster = 4097, .min_entries_to_cluster = 9000},
               "clusterer.tokens_per_cluster is 4097"));
    CHECK(says({.tokens_per_cluster = 8, .min_entries_to_cluster = 15},
               "clusterer.min_entries_to_cluster is 15; valid: 16"));
    CHECK(says({.pending_entries = 0}, "clusterer.pending_entries is 0"));
    CHECK(state::check({}).ok());
}

} // namespace cluster_kmeans_static_test
