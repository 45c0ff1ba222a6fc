// What stores tell a codec: whose lane it encodes for, at which position each entry is, and when a lane's prompt is there
// to be fitted to; through clusters that split, entries that wait, runs of entries, and gaps that a retention left.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_window_attention.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>

#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/marked_rows.hpp"
#include "support/recording_io.hpp"

#include <memory>

namespace manager_lanes_test {

using namespace kvtl_test;

namespace {

struct clusters : kvtl::presets::dynakv {
    using compressor = marked_rows;
    using io = recording;
};
using cache_type = kvtl::kv_manager<clusters>;

marked_rows::fit_marks fitted(cache_type& cache, std::uint32_t id) {
    marked_rows::fit_marks m;
    std::memcpy(&m, kvtl::shard_access::of(cache, 0).store().at(id).codec(), sizeof m);
    return m;
}
} // namespace

TEST_CASE("records know their lane and position wherever they have been, and lanes are fitted once, to their "
          "prompt") {
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        const auto log = std::make_shared<io_log>();
        cache_type::config c;
        c.shape = {2, 4, 2, 64};
        c.max_tokens = 1300;
        c.attend_tokens = smallest ? 200 : c.max_tokens;
        c.io.log = log;
        c.memory_bytes = std::size_t{64} << 20;
        if (smallest) c.memory_bytes = least_memory<cache_type>(c);
        drift_config numbered;
        numbered.numbered = true;
        const drift data(c.shape, c.max_tokens, 11, numbered);
        auto cache = open_cache<cache_type>(c);
        reader<cache_type> one(cache, data, smallest ? 0 : 1);
        const auto look = [&](std::uint32_t rows) {
            kvtl::shard_access::of(cache, 0).store().io().poll(false);
            for (std::uint32_t layer = 0; layer < c.shape.layers; ++layer)
                for (std::uint32_t head = 0; head < c.shape.kv_heads; ++head) {
                    const lane_content found = look_at(cache, *log, data, layer, head);
                    REQUIRE(found.complete());
                    REQUIRE(found.keys_fit);
                    REQUIRE(found.frames_agree);
                    REQUIRE(found.counts_agree);
                    const auto marks = fitted(cache, lane_id(c.shape, 0, layer, head));
                    CHECK(marks.rows == rows);
                    CHECK(marks.queries == 200); // of the prompt's last chunk, and of the lane's heads
                    CHECK(marks.first_query == data.q(layer, 500)[2 * head * c.shape.head_dim]);
                }
        };
        const auto pinned = clusters::sink_tokens + clusters::window_tokens;
        one.prefill(700, 250);
        look(700 - pinned);
        for (int i = 0; i < 8; ++i) {
            one.decode(50);
            look(700 - pinned);
        }
        one.prefill(100); // a further turn changes nothing of what was fitted
        look(700 - pinned);
        CHECK(cache.stats().splits > 20);
        if (!smallest) CHECK(one.error() < exact * 1300); // values are numbers of tokens
        one.end();
        reader<cache_type> two(cache, data,
                               smallest ? 0 : 1); // the next sequence is not fitted to the last one's prompt
        two.decode(60);
        CHECK(fitted(cache, lane_id(c.shape, 0, 1, 1)).rows == 0);
        if (!smallest) CHECK(two.error() < exact);
    }
}

namespace {
struct failing : clusters {
    using io = kvtl::faulty<kvtl::in_memory>;
};
} // namespace

TEST_CASE("a prompt that failed leaves nothing behind that was fitted to it") {
    using failing_cache = kvtl::kv_manager<failing>;
    failing_cache::config c;
    c.shape = {1, 2, 2, 64};
    c.max_tokens = 600;
    c.attend_tokens = 600;
    c.memory_bytes = std::size_t{16} << 20;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    const drift data(c.shape, c.max_tokens, 12);
    auto cache = open_cache<failing_cache>(c);
    const auto seq = cache.begin();
    REQUIRE(seq.ok());
    std::vector<float> out(400 * data.query_floats());
    c.io.faults->fail_write.first = c.io.faults->writes.load() + 3;
    CHECK(cache.prefill(*seq, 0, data.input(0, 0, 400), out).code() == kvtl::errc::io_error);
    for (std::uint32_t head = 0; head < 2; ++head) {
        std::uint32_t rows = 1;
        std::memcpy(&rows, kvtl::shard_access::of(cache, 0).store().at(head).codec(), sizeof rows);
        CHECK(rows == 0);
    }
}

namespace {
using snap = kvtl::drop<kvtl::window_attention<kvtl::over::mean, kvtl::pooling::average, 5>>;
struct thinned_clusters : kvtl::presets::dynakv {
    using compressor = marked_rows_as<false>;
    using retention = snap;
    using io = recording;
};
struct thinned_groups : kvtl::presets::offloaded {
    using clusterer = kvtl::head_groups<4>;
    using compressor = marked_rows_as<false>;
    using retention = snap;
    using io = recording;
};
} // namespace

TEST_CASE_TEMPLATE("behind a retention records have the positions that their tokens had", P, thinned_clusters,
                   thinned_groups) {
    using thinned_cache = kvtl::kv_manager<P>;
    const auto log = std::make_shared<io_log>();
    typename thinned_cache::config c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = 900;
    c.attend_tokens = 900;
    c.keep_tokens = 200;
    c.window_tokens = 24;
    c.io.log = log;
    c.memory_bytes = std::size_t{32} << 20;
    drift_config numbered;
    numbered.numbered = true;
    const drift data(c.shape, c.max_tokens, 13, numbered);
    auto cache = open_cache<thinned_cache>(c);
    reader<thinned_cache> one(cache, data, 0);
    const auto look = [&] {
        auto& store = kvtl::shard_access::of(cache, 0).store();
        store.flush_writes();
        std::size_t seen = 0, gaps = 0;
        for (std::uint32_t layer = 0; layer < c.shape.layers; ++layer)
            for (std::uint32_t head = 0; head < c.shape.kv_heads; ++head) {
                if constexpr (std::same_as<P, thinned_clusters>) {
                    store.io().poll(false);
                    const lane_content found = look_at(cache, *log, data, layer, head);
                    CHECK(found.keys_fit);
                    CHECK(found.counts_agree);
                    for (const auto& unit : found.units) seen += unit.size();
                    gaps += found.tokens != one.tokens() ? 1 : 0;
                } else {
                    const std::uint32_t id = lane_id(c.shape, 0, layer, head);
                    gaps += store.at(id).state().tokens != one.tokens() ? 1 : 0;
                    require_ok(
                        store.scan(id, [&](const kvtl::records_view& keys, const kvtl::records_view& values) {
                            for (std::size_t i = 0; i < keys.count; ++i, ++seen) {
                                typename P::compressor::marks m;
                                float token = 0;
                                std::memcpy(&m, keys.record(i), sizeof m);
                                std::memcpy(&token, values.record(i) + sizeof m, sizeof token);
                                REQUIRE(m.position == static_cast<std::uint32_t>(token));
                            }
                        }));
                }
            }
        CHECK(gaps == c.shape.layers * c.shape.kv_heads);
        return seen;
    };
    one.prefill(600, 250);
    const std::size_t kept = look();
    CHECK(kept > 4 * 100);
    one.decode(100);
    CHECK(look() > kept);
    one.prefill(50);
    one.decode(20);
    CHECK(look() > kept + 4 * 100);
}

} // namespace manager_lanes_test
