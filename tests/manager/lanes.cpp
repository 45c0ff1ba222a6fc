// What stores tell a codec: whose lane it encodes for, at which position each entry is, and when a lane's prompt is there
// to be fitted to; through clusters that split, entries that wait, and groups of a whole layer.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/marked_rows.hpp"
#include "support/recording_io.hpp"

#include <memory>

using namespace kvtl_test;

namespace {
using model = kvtl::geometry<kvtl::shape{}>;

struct clusters : kvtl::presets::dynakv {
    using compressor = marked_rows;
    using io = recording;
};
using cache_type = kvtl::kv_manager<clusters, model>;

std::uint32_t rows_fitted(cache_type& cache, std::uint32_t id) {
    std::uint32_t rows = 0;
    std::memcpy(&rows, cache.inspect(0).store().at(id).codec(), sizeof rows);
    return rows;
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
            cache.inspect(0).store().io().poll(false);
            for (std::uint32_t layer = 0; layer < c.shape.layers; ++layer)
                for (std::uint32_t head = 0; head < c.shape.kv_heads; ++head) {
                    const lane_content found = look_at(cache, *log, data, layer, head);
                    REQUIRE(found.complete());
                    REQUIRE(found.keys_fit);
                    REQUIRE(found.frames_agree);
                    REQUIRE(found.counts_agree);
                    CHECK(rows_fitted(cache, lane_id(c.shape, 0, layer, head)) == rows);
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
        CHECK(rows_fitted(cache, lane_id(c.shape, 0, 1, 1)) == 0);
        if (!smallest) CHECK(two.error() < exact);
    }
}
