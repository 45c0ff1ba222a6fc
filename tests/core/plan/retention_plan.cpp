// Memory of retention: what is counted is what is laid out, and every policy finds its scratch.
// SPDX-License-Identifier: MIT
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/retention_plan.hpp>
#include <kvtl/presets/demoting.hpp>
#include <kvtl/presets/dynamickv.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/streaming.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace core_plan_retention_plan_test {

namespace {

kvtl::retention_plan plan() {
    kvtl::retention_plan p;
    p.layers = 3, p.kv_heads = 2, p.group = 4, p.dim = 24;
    p.lane_group = 4, p.shard_lanes = 2, p.shard_sequences = 2;
    p.sinks = 4, p.window = 16, p.keep = 50, p.slack = 3;
    p.max_tokens = 300, p.prefill_tokens = 200, p.most_rows = 205, p.blocks = 90;
    p.demotion = {80};
    return p;
}

/// All pieces as ranges of addresses.
class ranges {
  public:
    template <class T> void add(std::span<T> x) {
        const auto* at = reinterpret_cast<const std::byte*>(x.data());
        if (!x.empty()) all_.push_back({at, at + x.size_bytes()});
    }
    void check_apart(std::span<const std::byte> block) {
        std::sort(all_.begin(), all_.end());
        for (std::size_t i = 0; i < all_.size(); ++i) {
            CHECK(all_[i].first >= block.data());
            CHECK(all_[i].second <= block.data() + block.size());
            if (i > 0) CHECK(all_[i - 1].second <= all_[i].first);
        }
    }

  private:
    std::vector<std::pair<const std::byte*, const std::byte*>> all_;
};

template <class Preset> auto check() {
    using types = kvtl::cache_types<Preset>;
    using memory = kvtl::retention_memory<types>;
    const kvtl::retention_plan p = plan();
    const kvtl::score_limits scores{p.layers, p.kv_heads, p.group, p.dim,
                                    p.sinks,  p.window,   p.keep,  p.prefill_tokens};
    const kvtl::budget_limits budgets{p.layers, p.shard_lanes, p.keep - 20, 20, p.prefill_tokens - 20};
    const typename types::score_config config{};
    kvtl::carver metadata, index, scratch;
    static_cast<void>(memory::take(p, config, scores, budgets, metadata, index, scratch));
    // As a stage does it: everything from one block.
    const std::size_t counted = metadata.used() + index.used() + scratch.used() + 3 * 64;
    std::vector<std::byte> block(counted + 64);
    kvtl::carver all(std::span<std::byte>(block).first(counted));
    const memory m = memory::take(p, config, scores, budgets, all, all, all);
    CHECK(all.used() <= counted);
    ranges r;
    r.add(m.lanes), r.add(m.keep), r.add(m.preference), r.add(m.sequence_budgets), r.add(m.links);
    r.add(m.score), r.add(m.budget), r.add(m.position);
    r.add(m.work_k), r.add(m.work_v), r.add(m.row_k), r.add(m.row_v);
    r.add(m.board), r.add(m.value_sizes), r.add(m.logits), r.add(m.rank), r.add(m.spare), r.add(m.observed);
    r.add(m.causal), r.add(m.order), r.add(m.table), r.add(m.ranking), r.add(m.partial), r.add(m.attend);
    r.add(m.turned), r.add(m.mass), r.add(m.worth), r.add(m.arrival), r.add(m.query), r.add(m.arrived);
    r.add(m.runs), r.add(m.balance), r.add(m.demoted_table);
    r.check_apart(block);
    CHECK(m.lanes.size() == 2 * 3 * 2);
    CHECK(m.board.size() == 2 * 200); // the scores of all lanes of a layer
    CHECK(m.work_k.size() == 200 * 24);
    return m;
}

} // namespace

TEST_CASE("what is counted is what is laid out, piece beside piece") {
    check<kvtl::presets::streaming_llm>();
    check<kvtl::presets::dynamickv>();
    check<kvtl::presets::layer_defensivekv>();
    check<kvtl::presets::h2o>();
    check<kvtl::presets::mikv>();
}

TEST_CASE("every kind of score has the scratch that it reads, and no more") {
    const auto worst = check<kvtl::presets::defensivekv>(); // values, two rows to spare, a window's queries
    CHECK(worst.value_sizes.size() == 200);
    CHECK(worst.spare.size() == 2 * 200);
    CHECK(worst.observed.size() == 2 * 16 * 4 * 24);
    CHECK(worst.logits.size() == 4 * 200);
    CHECK(worst.mass.empty());
    const auto heavy = check<kvtl::presets::h2o>(); // every query's attention, also in decode
    CHECK(heavy.value_sizes.empty());
    CHECK(heavy.observed.empty());
    CHECK(heavy.logits.size() == 4 * 205); // rows in decode are more than a prompt's
    CHECK(heavy.mass.size() == 2 * 205);
    CHECK(heavy.worth.size() == 205);
    const auto recent = check<kvtl::presets::streaming_llm>(); // positions move, no query is looked at
    CHECK(recent.observed.empty());
    CHECK(recent.turned.size() == 4 * 24);
    CHECK(recent.runs.size() == 205);
    CHECK(worst.turned.empty());
    CHECK(worst.runs.empty());
    const auto demoting = check<kvtl::presets::mikv>(); // a factor per channel of each lane
    CHECK(demoting.balance.size() == 2 * 3 * 2 * 24);
    CHECK(demoting.turned.size() == 4 * 24);
    CHECK(demoting.demoted_table.size() == 4); // 205 rows, 80 of a block
    CHECK(heavy.balance.empty());
    CHECK(heavy.demoted_table.empty());
}

TEST_CASE("demotion: as many entries as they are as the limit allows, found by taking away one at a time") {
    std::size_t demoted = 0, dropped = 0;
    for (const std::uint32_t rows : {17U, 28U, 82U})
        for (std::uint32_t limit = 1; limit <= 40; ++limit)
            for (std::uint32_t n = 0; n <= 220; n += 7)
                for (const std::uint32_t pinned : {0U, limit / 2, limit}) {
                    if (pinned > n) continue;
                    const kvtl::demotion_plan plan{rows};
                    const auto cost = [&](std::uint32_t full, std::uint32_t rest) {
                        return full + (16 * rest + rows - 1) / rows;
                    };
                    std::uint32_t full = n, rest = 0;
                    while (cost(full, rest) > limit && full > pinned) --full, ++rest;
                    while (cost(full, rest) > limit && rest > 0) --rest;
                    const auto got = plan.divide(limit, n, pinned);
                    if (got.full != full || got.demoted != rest) {
                        CAPTURE(limit);
                        CAPTURE(n);
                        CHECK(got.full == full);
                        CHECK(got.demoted == rest);
                    }
                    demoted += rest, dropped += n - full - rest;
                }
    CHECK(demoted > 0);
    CHECK(dropped > 0);
    const auto none = kvtl::demotion_plan{}.divide(10, 30, 4);
    CHECK(none.full == 10);
    CHECK(none.demoted == 0);
}

} // namespace core_plan_retention_plan_test
