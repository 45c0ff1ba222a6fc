// variance_split: Welford's bookkeeping, the head's threshold, and when a split is refused.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_variance_split.hpp>

#include "contracts/clusterer.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

namespace cluster_variance_split_test {

using namespace kvtl;

namespace {

constexpr variance_split::config config{.tokens_per_cluster = 4,
                                        .threshold_scale = 1.0F,
                                        .pending_entries = 2,
                                        .min_entries_to_cluster = 8,
                                        .seed = 3};
using lane_model = kvtl_test::lane_model<variance_split>;
using state = variance_split::state;

bool is(assignment a, std::uint32_t unit, growth how) {
    return a.unit == unit && a.how == how;
}

/// A unit that knows only its numbers, and a table of `count` units in which there is room.
unit_record unit_of(std::uint32_t entries, float m2) {
    unit_record u;
    u.entries = entries;
    u.m2 = m2;
    return u;
}
units_view table_of(std::uint32_t count, std::uint32_t tokens, bool may_add = true) {
    units_view u;
    u.count = count;
    u.max_entries = 8;
    u.tokens = tokens;
    u.may_add = may_add;
    return u;
}

} // namespace

TEST_CASE("variance_split") {
    kvtl_test::clusterer_contract<variance_split>(config);
}

TEST_CASE("variance_split with larger clusters and a lower threshold") {
    kvtl_test::clusterer_contract<variance_split>(
        {.tokens_per_cluster = 9, .threshold_scale = 0.3F, .min_entries_to_cluster = 30});
}

TEST_CASE("the threshold is the scaled, size-weighted mean variance of the first clusters") {
    for (const float scale : {1.0F, 0.25F, 3.0F}) {
        const auto rows =
            kvtl_test::clusterer_suite::make_keys(kvtl_test::clusterer_suite::keys::topics, 150, 6, 5);
        auto c = config;
        c.threshold_scale = scale;
        auto lane = kvtl_test::clusterer_suite::founded_lane<variance_split>(c, rows);
        double m2 = 0;
        for (std::uint32_t u = 0; u < lane.count(); ++u) {
            std::vector<float> flat;
            for (const auto& key : lane.keys(u)) flat.insert(flat.end(), key.begin(), key.end());
            m2 += oracle::moments_of(rows_view<float>{flat.data(), lane.keys(u).size(), 6, 6}).m2;
        }
        CHECK(static_cast<double>(lane.lane().threshold) ==
              doctest::Approx(static_cast<double>(scale) * m2 / 150).epsilon(1e-5));
        CHECK(lane.lane().refused == 0);
    }
}

TEST_CASE("a threshold that is given is every head's") {
    auto c = config;
    c.threshold = 2.5F;
    for (const std::uint64_t seed : {5U, 6U}) {
        const auto rows =
            kvtl_test::clusterer_suite::make_keys(kvtl_test::clusterer_suite::keys::topics, 150, 6, seed);
        CHECK(kvtl_test::clusterer_suite::founded_lane<variance_split>(c, rows).lane().threshold == 2.5F);
    }
}

TEST_CASE("a split is asked for exactly when the variance with the new entry exceeds the threshold") {
    oracle::generator random(11);
    int splits = 0, appends = 0;
    for (int round = 0; round < 2000; ++round) {
        const std::uint32_t dim = 1 + static_cast<std::uint32_t>(random.below(20));
        const std::size_t n = 3 + random.below(5); // with the new one 4 to 8: neither too few nor too many
        std::vector<float> rows((n + 1) * dim);
        for (float& x : rows) x = static_cast<float>(random.normal());
        for (std::uint32_t d = 0; d < dim; ++d) rows[n * dim + d] *= static_cast<float>(random.uniform(0, 3));
        const auto before = oracle::moments_of(rows_view<float>{rows.data(), n, dim, dim});
        const auto after = oracle::moments_of(rows_view<float>{rows.data(), n + 1, dim, dim});
        double distance = 0;
        for (std::uint32_t d = 0; d < dim; ++d) {
            const double difference = static_cast<double>(rows[n * dim + d]) - before.mean[d];
            distance += difference * difference;
        }
        const double variance = after.m2 / static_cast<double>(n + 1);
        variance_split::lane lane{static_cast<float>(variance * random.uniform(0.5, 1.5)), 0};
        if (std::fabs(static_cast<double>(lane.threshold) / variance - 1.0) < 1e-4)
            continue; // too close for float
        const state s(config, {});
        const growth how =
            s.judge(lane, unit_of(static_cast<std::uint32_t>(n), static_cast<float>(before.m2)),
                    static_cast<float>(distance), table_of(1, 1000));
        CHECK(how == (variance > static_cast<double>(lane.threshold) ? growth::split : growth::append));
        (how == growth::split ? splits : appends) += 1;
    }
    CHECK(splits > 300);
    CHECK(appends > 300);
}

TEST_CASE("clusters of fewer than four entries never split") {
    const state s(config, {});
    variance_split::lane lane{1.0F, 0};
    for (std::uint32_t entries = 1; entries <= 2; ++entries)
        CHECK(s.judge(lane, unit_of(entries, 0), 1e9F, table_of(1, 1000)) == growth::append);
    CHECK(s.judge(lane, unit_of(3, 0), 1e9F, table_of(1, 1000)) == growth::split);
    CHECK(lane.refused == 0);
    CHECK(lane.threshold == 1.0F);
}

TEST_CASE("a full cluster splits as if its variance were exceeded") {
    const state s(config, {});
    variance_split::lane lane{100.0F, 0};
    CHECK(s.judge(lane, unit_of(7, 0), 0, table_of(1, 1000)) == growth::append);
    CHECK(s.judge(lane, unit_of(8, 0), 0, table_of(1, 1000)) == growth::split);
}

TEST_CASE("a refused split raises the threshold by a tenth") {
    const state s(config, {});
    SUBCASE("at 2 T / tokens_per_cluster clusters") {
        CHECK(s.unit_limit(100) == 50);
        variance_split::lane lane{1.0F, 0};
        CHECK(s.judge(lane, unit_of(5, 0), 1e6F, table_of(49, 100)) == growth::split);
        CHECK(lane.threshold == 1.0F);
        CHECK(s.judge(lane, unit_of(5, 0), 1e6F, table_of(50, 100)) == growth::append);
        CHECK(lane.threshold == doctest::Approx(1.1F));
        CHECK(s.judge(lane, unit_of(5, 0), 1e6F, table_of(50, 100)) == growth::append);
        CHECK(lane.threshold == doctest::Approx(1.21F));
        CHECK(lane.refused == 2);
    }
    SUBCASE("without room on storage") {
        variance_split::lane lane{1.0F, 0};
        CHECK(s.judge(lane, unit_of(5, 0), 1e6F, table_of(1, 100, false)) == growth::append);
        CHECK(lane.refused == 1);
    }
    SUBCASE("until the variance is within it again") {
        variance_split::lane lane{1.0F, 0};
        for (int i = 0; i < 20; ++i) // the variance with the entry is 2
            CHECK(s.judge(lane, unit_of(4, 6), 5.0F, table_of(50, 100)) == growth::append);
        CHECK(lane.refused == 8); // 1.1^8 = 2.14 is the first power above 2
    }
    SUBCASE("a full cluster sends the entry elsewhere") {
        variance_split::lane lane{1.0F, 0};
        CHECK(s.judge(lane, unit_of(8, 0), 0, table_of(50, 100)) == growth::open);
    }
}

TEST_CASE("the nearest cluster decides; a full one that may not split passes the entry on") {
    lane_model lane(config, 1);
    lane.found({{-1.0F}, {1.0F}, {9.0F}, {11.0F}, {20.0F}}, {0, 0, 1, 1, 2}, 3);
    for (int i = 0; i < 100; ++i) lane.count_token(); // enough for more units
    lane.lane().threshold = 5.0F;
    CHECK(is(lane.assign({5.0F}), 0,
             growth::append)); // a tie goes to the lower index; three entries never split
    lane.append(1, {10.0F});
    CHECK(is(lane.assign({14.8F}), 1, growth::append)); // (2 + 3/4 4.8^2) / 4 = 4.82
    CHECK(is(lane.assign({14.95F}), 1, growth::split)); // 5.09
    lane.record(1).entries = 8;
    CHECK(is(lane.assign({10.0F}), 1, growth::split));
    CHECK(is(lane.assign({12.0F}, false), 2, growth::append));
    CHECK(is(lane.assign({8.0F}, false), 0, growth::append));
    lane.record(2).buffered = 7; // full with what waits for it
    CHECK(is(lane.assign({12.0F}, false), 0, growth::append));
    lane.record(0).entries = 8;
    CHECK(is(lane.assign({12.0F}, false), 1, growth::open)); // nowhere: it waits for its cluster
}

TEST_CASE("values that cannot work are refused by name") {
    const auto says = [](variance_split::config c, const char* text) {
        const status s = state::check(c);
        return s.code() == errc::invalid_argument && std::string(s.what()).find(text) == 0;
    };
    CHECK(says({.threshold_scale = 0.0F}, "clusterer.threshold_scale is 0"));
    CHECK(says({.threshold_scale = -1.0F}, "clusterer.threshold_scale is -1"));
    CHECK(says({.threshold_scale = std::nanf("")}, "clusterer.threshold_scale is nan"));
    CHECK(says({.threshold = -1.0F}, "clusterer.threshold is -1"));
    CHECK(says({.threshold = std::nanf("")}, "clusterer.threshold is nan"));
    CHECK(says({.pending_entries = 5000}, "clusterer.pending_entries is 5000"));
    CHECK(says({.tokens_per_cluster = 1}, "clusterer.tokens_per_cluster is 1"));
    CHECK(state::check({}).ok());
}

} // namespace cluster_variance_split_test
