// The manager of presets that drop entries: what it refuses, what it promises, and that nothing else moves.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/demoting.hpp>
#include <kvtl/presets/dynamickv.hpp>
#include <kvtl/presets/engine_decides.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/merging.hpp>
#include <kvtl/presets/query_free.hpp>
#include <kvtl/presets/streaming.hpp>

#include "support/eviction.hpp"

#include <string>

namespace manager_kept_rows_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{3, 4, 2, 32};
using snap = kvtl::snapkv_group;
using dynamic = kvtl::dynamickv;

template <class Cache> typename Cache::config sized(std::size_t keep = 48) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 300;
    c.prefill_tokens = 200;
    c.memory_bytes = std::size_t{8} << 20;
    c.keep_tokens = keep;
    return c;
}
template <class Cache>
void refuses(const typename Cache::config& c, kvtl::errc code, const std::vector<std::string>& words) {
    const auto opened = Cache::open(c);
    REQUIRE_FALSE(opened.ok());
    CAPTURE(opened.error().message);
    CHECK(opened.error().code == code);
    for (const std::string& word : words) {
        CAPTURE(word);
        CHECK(opened.error().message.find(word) != std::string::npos);
    }
}
void failed(const kvtl::status& s, kvtl::errc code, const std::string& word) {
    CAPTURE(std::string(s.what()));
    CAPTURE(word);
    CHECK(s.code() == code);
    CHECK(std::string(s.what()).find(word) != std::string::npos);
}

} // namespace

TEST_CASE_TEMPLATE("each layer says how many entries it keeps: together all that there are", Cache, snap,
                   dynamic, kvtl::h2o, kvtl::adakv) {
    auto c = sized<Cache>();
    c.max_sequences = 2;
    auto cache = open_cache<Cache>(c);
    const drift data(small, 300, 3);
    const auto seq = cache.begin(), other = cache.begin();
    std::vector<float> out(200 * data.query_floats());
    const auto all = [&] {
        std::size_t entries = 0;
        for (const auto s : {*seq, *other})
            for (std::size_t l = 0; l < small.layers; ++l) entries += cache.kept_entries(s, l);
        return entries;
    };
    CHECK(all() == 0);
    for (std::size_t l = 0; l < small.layers; ++l) {
        require_ok(cache.prefill(*seq, l, data.input(l, 0, 200), out));
        require_ok(cache.prefill(*other, l, data.input(l, 100, 150),
                                 std::span(out).first(150 * data.query_floats())));
        CHECK(cache.kept_entries(*seq, l) > 0);
        CHECK(all() == cache.stats().kept_entries);
    }
    CHECK(all() <= 2 * 48 * small.layers * small.kv_heads);
    for (std::size_t t = 200; t < 220; ++t)
        for (std::size_t l = 0; l < small.layers; ++l)
            require_ok(cache.attend(*seq, l, data.input(l, t), std::span(out).first(data.query_floats())));
    CHECK(all() == cache.stats().kept_entries);
    CHECK(cache.kept_entries(*seq, small.layers) == 0);
    require_ok(cache.end(*seq));
    CHECK(cache.kept_entries(*seq, 0) == 0);
    CHECK(all() == cache.stats().kept_entries);
}

TEST_CASE("open refuses what can never work, and says what would") {
    using kvtl::errc;
    auto c = sized<snap>();
    c.keep_tokens = 20; // the window is 32
    refuses<snap>(c, errc::invalid_argument, {"keep_tokens is 20", "sink_tokens + window_tokens = 0 + 32"});
    c = sized<snap>();
    c.retention.pool_width = 4;
    refuses<snap>(c, errc::invalid_argument, {"pool_width is 4", "odd"});
    c = sized<snap>();
    c.keep_tokens = 0, c.attend_tokens = 0;
    refuses<snap>(c, errc::invalid_argument, {"keep_tokens and attend_tokens"});
    c = sized<snap>();
    c.max_tokens = 0;
    refuses<snap>(c, errc::invalid_argument, {"max_tokens is 0"});
    c = sized<snap>();
    c.shards = 3;
    refuses<snap>(c, errc::invalid_argument, {"shards is 3"});
    c = sized<snap>();
    c.memory_bytes = 1000;
    refuses<snap>(c, errc::bound_too_small,
                  {"memory_bytes is 1000", "snapkv_group", "index", "metadata", "scratch", "frames"});
    c = sized<snap>();
    c.engine_inputs = kvtl::engine_input::k | kvtl::engine_input::v;
    refuses<snap>(c, errc::unsupported, {"snapkv_group", "needs q,"});

    auto d = sized<dynamic>();
    d.budget.interval = 0;
    refuses<dynamic>(d, errc::invalid_argument, {"budget.interval is 0"});
    d = sized<dynamic>();
    d.budget.r_max = 0.5F;
    refuses<dynamic>(d, errc::invalid_argument, {"budget.r_max is 0.5"});

    using compress = kvtl::compress_kv;
    auto table = sized<compress>();
    const std::vector<float> four(4, 1.0F);
    table.budget.importance = four;
    refuses<compress>(table, errc::invalid_argument, {"importance has 4 numbers", "(3)"});
    table = sized<compress>();
    std::vector<std::uint8_t> votes(12, 1);
    std::fill_n(votes.begin() + 4, 4, std::uint8_t{0});
    table.retention.votes = votes;
    refuses<compress>(table, errc::invalid_argument, {"no head of layer 1 votes"});

    struct same : kvtl::presets::mikv {
        using compressor = kvtl::int4_group<>;
        using retention = kvtl::demote<kvtl::heavy_hitters_after_prompt, kvtl::fp8_row<>>;
    };
    refuses<kvtl::kv_manager<same>>(sized<kvtl::kv_manager<same>>(), errc::unsupported,
                                    {"records have 40 bytes", "more than the 72 of fp8_row"});

    using streaming = kvtl::streaming_llm;
    auto s = sized<streaming>();
    s.position.dims = 33;
    refuses<streaming>(s, errc::invalid_argument, {"position.dims is 33", "head_dim = 32"});
}

TEST_CASE("calls refuse wrong input and change nothing") {
    using kvtl::errc;
    const drift data(small, 300, 71);
    auto cache = open_cache<dynamic>(sized<dynamic>());
    const auto seq = *cache.begin();
    std::vector<float> out(250 * data.query_floats());
    const auto room = [&](std::size_t n) { return std::span(out).first(n * data.query_floats()); };
    auto in = data.input(0, 0, 210);
    failed(cache.prefill(seq, 0, in, room(210)), errc::out_of_range, "prefill_tokens = 200");
    in = data.input(1, 0, 50);
    failed(cache.prefill(seq, 1, in, room(50)), errc::invalid_argument, "layer is 1; valid: 0");
    in = data.input(0, 0, 50);
    in.q = {};
    failed(cache.prefill(seq, 0, in, {}), errc::invalid_argument, "q is empty");
    in = data.input(0, 0, 50);
    in.last_chunk = false;
    require_ok(cache.prefill(seq, 0, in, room(50)));
    failed(cache.attend(seq, 0, data.input(0, 50), room(1)), errc::invalid_argument, "50 tokens wait");
    failed(cache.rewind(seq, 1), errc::invalid_argument, "not complete");
    require_ok(cache.prefill(seq, 0, data.input(0, 50, 50), room(50)));
    failed(cache.attend(seq, 0, data.input(0, 100), room(1)), errc::invalid_argument,
           "layer 1 is still to come");
    for (std::size_t l = 1; l < 3; ++l) require_ok(cache.prefill(seq, l, data.input(l, 0, 100), {}));
    const std::size_t rows = rows_held(cache, seq);
    CHECK(rows == 48 * 6);
    std::vector<float> bad(data.query_floats(), NAN);
    in = data.input(0, 100);
    in.q = bad;
    failed(cache.attend(seq, 0, in, room(1)), errc::invalid_argument, "q holds a NaN");
    in = data.input(0, 100);
    failed(cache.attend(seq, 0, in, {}), errc::invalid_argument, "out is empty");
    failed(cache.attend(seq, 3, in, room(1)), errc::out_of_range, "layer is 3");
    failed(cache.attend({9, 9}, 0, in, room(1)), errc::not_open, "sequence 9");
    std::vector<float> lse(3);
    in.lse = lse;
    failed(cache.attend(seq, 0, in, room(1)), errc::invalid_argument, "lse has 3");
    failed(cache.prefill(seq, 0, data.input(0, 50, 201), room(201)), errc::out_of_range, "max_tokens = 300");
    CHECK(rows_held(cache, seq) == rows);
    CHECK(cache.tokens(seq, 0) == 100);
    for (std::size_t t = 100; t < 103; ++t) CHECK(decode_and_compare(cache, seq, data, t) < 2e-2);

    using probe_t = kvtl::lookahead_probe;
    auto c = sized<probe_t>();
    auto probing = open_cache<probe_t>(c);
    const auto other = *probing.begin();
    in = data.input(0, 0, 50);
    in.probe = data.q(0, 60).first(100);
    failed(probing.prefill(other, 0, in, {}), errc::invalid_argument, "probe has 100 numbers");
    in.probe = bad;
    failed(probing.prefill(other, 0, in, {}), errc::invalid_argument, "probe holds a number");
    CHECK(probing.tokens(other, 0) == 0);
    in = data.input(0, 0, 50); // as two prompts of 25 tokens, which one probe cannot stand for
    in.probe = data.q(0, 60);
    kvtl::batch_part both[2] = {{other, 25, kvtl::part_kind::last_of_prompt},
                                {other, 25, kvtl::part_kind::last_of_prompt}};
    failed(probing.forward(both, 0, in, {}), errc::invalid_argument, "2 parts would be evicted by one probe");
    both[0].kind = kvtl::part_kind::prompt;
    CHECK(probing.forward(both, 0, in, {}).ok());

    using mask_t = kvtl::external_mask_cache;
    auto m = sized<mask_t>();
    m.sink_tokens = 4;
    auto masked = open_cache<mask_t>(m);
    const auto third = *masked.begin();
    std::vector<float> mask(100, 0.0F);
    in = data.input(0, 0, 50);
    in.external = mask;
    failed(masked.prefill(third, 0, in, {}), errc::invalid_argument, "keeps nothing of 50 tokens");
    CHECK(masked.tokens(third, 0) == 0);
    in.last_chunk = false; // the rest of the prompt may have something
    require_ok(masked.prefill(third, 0, in, {}));
    in = data.input(0, 50, 20);
    in.external = std::span(mask).first(40);
    failed(masked.prefill(third, 0, in, {}), errc::invalid_argument, "keeps nothing of 70 tokens");
    CHECK(masked.tokens(third, 0) == 50);
    CHECK(kept(masked, third, 0, 0).size() == 50);
    mask[17] = 1.0F; // token 58 of head 1
    require_ok(masked.prefill(third, 0, in, {}));
    CHECK(kept(masked, third, 0, 0) ==
          tokens_t{0, 1, 2, 3, 62, 63, 64, 65, 66, 67, 68, 69}); // the pinned ones
    CHECK(kept(masked, third, 0, 1) == tokens_t{0, 1, 2, 3, 58, 62, 63, 64, 65, 66, 67, 68, 69});
    require_ok(masked.end(third));
    const auto fourth = *masked.begin();
    mask[17] = 0.0F;
    mask[0] = 1.0F; // an earlier chunk's mark is enough
    in = data.input(0, 0, 50);
    in.external = mask;
    in.last_chunk = false;
    require_ok(masked.prefill(fourth, 0, in, {}));
    in = data.input(0, 50, 20);
    in.external = std::span(mask).subspan(40, 40);
    require_ok(masked.prefill(fourth, 0, in, {}));
    require_ok(masked.end(fourth));
    const auto fifth = *masked.begin();
    in = data.input(0, 0, 50);
    in.external = std::span(mask).first(99);
    failed(masked.prefill(fifth, 0, in, {}), errc::invalid_argument, "external has 99 numbers");
    in = data.input(0, 0);
    failed(masked.attend(fifth, 0, in, room(1)), errc::invalid_argument, "attend: external has 0 numbers");
    failed(masked.append(fifth, 0, in), errc::invalid_argument, "append: external has 0 numbers");
    CHECK(masked.tokens(fifth, 0) == 0);
}

TEST_CASE("the least memory that open accepts holds a whole prompt and what it promises of decode") {
    const drift data(small, 300, 72);
    const auto run = [&]<class Cache>(Cache*, std::size_t decode) {
        auto c = sized<Cache>();
        c.max_sequences = 2;
        c.memory_bytes = least_memory<Cache>(c);
        auto cache = open_cache<Cache>(c);
        const auto a = *cache.begin(), b = *cache.begin();
        CHECK_FALSE(cache.begin().ok());
        std::vector<float> out(200 * data.query_floats());
        for (std::size_t l = 0; l < 3; ++l)
            for (const auto seq : {a, b}) require_ok(cache.prefill(seq, l, data.input(l, 0, 200), out));
        const std::span<float> row = std::span(out).first(data.query_floats());
        for (std::size_t t = 200; t < 200 + decode; ++t)
            for (std::size_t l = 0; l < 3; ++l)
                for (const auto seq : {a, b}) require_ok(cache.attend(seq, l, data.input(l, t), row));
        CHECK(cache.stats().resident_bytes_peak <= c.memory_bytes);
        CHECK(cache.stats().kept_entries == rows_held(cache, a) + rows_held(cache, b));
        require_ok(cache.end(a));
        require_ok(cache.end(b));
        CHECK(cache.stats().kept_entries == 0);
        CHECK(kvtl::shard_access::of(cache, 0).kept().pool().free_blocks() ==
              kvtl::shard_access::of(cache, 0).kept().pool().size());
    };
    run(static_cast<snap*>(nullptr), 100); // max_tokens - prefill_tokens
    run(static_cast<dynamic*>(nullptr), 100);
    run(static_cast<kvtl::cake*>(nullptr), 100);
    run(static_cast<kvtl::adakv*>(nullptr), 100);
    run(static_cast<kvtl::h2o*>(nullptr), 100);
    run(static_cast<kvtl::mikv*>(nullptr), 100);
}

TEST_CASE("less memory: what is over the promise is refused, says so, and changes nothing") {
    const drift data(small, 300, 73);
    auto c = sized<snap>();
    c.prefill_tokens = 0; // prompts of up to max_tokens, so no decoded entry is promised
    c.memory_bytes = least_memory<snap>(c);
    auto cache = open_cache<snap>(c);
    const auto seq = *cache.begin();
    std::vector<float> out(250 * data.query_floats());
    kvtl::status refused;
    std::size_t layers = 0;
    for (; layers < 3 && refused.ok(); ++layers) {
        auto in = data.input(layers, 0, 100);
        in.last_chunk = false;
        refused = cache.prefill(seq, layers, in, std::span(out).first(100 * data.query_floats()));
    }
    failed(refused, kvtl::errc::bound_too_small, "give the prompt in one chunk");
    CHECK(layers == 2); // the first layer's chunk had room
    CHECK(cache.tokens(seq, 0) == 100);
    CHECK(cache.tokens(seq, 1) == 0);
    CHECK(cache.tokens(seq, 2) == 0);
    require_ok(cache.end(seq));
    const auto again = *cache.begin(); // in one chunk it fits
    feed_prompt(cache, again, data, 250);
    kvtl::status full;
    for (std::size_t t = 250; t < 300 && full.ok(); ++t)
        for (std::size_t l = 0; l < small.layers && full.ok(); ++l)
            full = cache.attend(again, l, data.input(l, t), std::span(out).first(data.query_floats()));
    failed(full, kvtl::errc::bound_too_small, "set prefill_tokens (300 of max_tokens = 300)");
}

TEST_CASE("ragged budgets save bytes: the pool holds what the budgets say, not heads times the largest") {
    const drift data(small, 300, 74);
    auto c = sized<kvtl::adakv>(80);
    c.budget.floor = 0.0F;
    auto cache = open_cache<kvtl::adakv>(c);
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 200);
    auto& pool = kvtl::shard_access::of(cache, 0).kept().pool();
    const std::size_t used = pool.size() - pool.free_blocks(), lanes = 6;
    CHECK(rows_held(cache, seq) == 80 * lanes);
    CHECK(used <= kvtl::blocks_for(80 * lanes) + lanes);
    std::set<std::size_t> sizes;
    for (std::size_t i = 0; i < lanes; ++i) sizes.insert(kept(cache, seq, i / 2, i % 2).size());
    CHECK(sizes.size() > 1);
}

TEST_CASE("rewind gives up tokens that are held, and says when they are not") {
    const drift data(small, 300, 75);
    auto cache = open_cache<snap>(sized<snap>());
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 150);
    const tokens_t before = kept(cache, seq, 2, 1);
    for (std::size_t t = 150; t < 160; ++t) static_cast<void>(decode_and_compare(cache, seq, data, t));
    require_ok(cache.rewind(seq, 10));
    CHECK(kept(cache, seq, 2, 1) == before);
    CHECK(cache.tokens(seq, 1) == 150);
    for (std::size_t t = 150; t < 155; ++t) CHECK(decode_and_compare(cache, seq, data, t) < 2e-2);
    failed(cache.rewind(seq, 100), kvtl::errc::out_of_range, "still held");
    CHECK(cache.tokens(seq, 1) == 155);
}

TEST_CASE("a sequence that was rewound to nothing takes a prompt again, as if it were new") {
    const drift data(small, 300, 80);
    const auto run = [&]<class Cache>(Cache*) {
        auto cache = open_cache<Cache>(sized<Cache>());
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, 40); // below keep_tokens, so everything is still held
        static_cast<void>(decode_and_compare(cache, seq, data, 40));
        require_ok(cache.rewind(seq, 41));
        CHECK(cache.tokens(seq, 2) == 0);
        CHECK(rows_held(cache, seq) == 0);
        feed_prompt(cache, seq, data, 150, 60);
        auto fresh = open_cache<Cache>(sized<Cache>());
        const auto other = *fresh.begin();
        feed_prompt(fresh, other, data, 150, 60);
        std::vector<float> again(data.query_floats()), once(again);
        for (std::size_t t = 150; t < 160; ++t)
            for (std::size_t l = 0; l < 3; ++l) {
                require_ok(cache.attend(seq, l, data.input(l, t), again));
                require_ok(fresh.attend(other, l, data.input(l, t), once));
                CHECK(again == once);
            }
        for (std::size_t i = 0; i < 6; ++i)
            CHECK(kept(cache, seq, i / 2, i % 2) == kept(fresh, other, i / 2, i % 2));
    };
    run(static_cast<dynamic*>(nullptr));
    run(static_cast<kvtl::adakv*>(nullptr));
    run(static_cast<kvtl::h2o*>(nullptr));
    run(static_cast<kvtl::d2o*>(nullptr));
}

TEST_CASE(
    "without prefill_tokens nothing is promised to decode; with it, at the least memory, all of it is") {
    const drift data(small, 300, 81);
    const auto run = [&]<class Cache>(Cache*) {
        auto c = sized<Cache>();
        c.prefill_tokens = 0;
        c.memory_bytes = least_memory<Cache>(c);
        std::vector<float> out(data.query_floats());
        for (const bool told : {false, true}) {
            if (told) {
                c.prefill_tokens = 150;
                c.memory_bytes = least_memory<Cache>(c);
            }
            auto cache = open_cache<Cache>(c);
            const auto seq = *cache.begin();
            feed_prompt(cache, seq, data, 150);
            kvtl::status s;
            std::size_t t = 150;
            for (; t < 300 && s.ok(); ++t)
                for (std::size_t l = 0; l < 3 && s.ok(); ++l) s = cache.attend(seq, l, data.input(l, t), out);
            if (told) {
                require_ok(s);
                CHECK(t == 300);
                failed(cache.attend(seq, 0, data.input(0, 0), out), kvtl::errc::out_of_range,
                       "max_tokens = 300");
            } else if (!s) {
                failed(s, kvtl::errc::bound_too_small,
                       "set prefill_tokens (300 of max_tokens = 300) to the longest prompt, so that open() "
                       "keeps "
                       "room for the rest");
            }
        }
    };
    run(static_cast<snap*>(nullptr));
    run(static_cast<dynamic*>(nullptr));
    run(static_cast<kvtl::cake*>(nullptr));
    run(static_cast<kvtl::adakv*>(nullptr));
    run(static_cast<kvtl::h2o_prefill_once*>(nullptr));
    run(static_cast<kvtl::kv_merger*>(nullptr));
    auto c = sized<snap>();
    c.memory_bytes = 1000;
    refuses<snap>(c, kvtl::errc::bound_too_small, {"prefill_tokens is 200 and max_tokens 300"});
}

TEST_CASE("held entries never exceed the declared peak, for 1 to 80 layers and intervals 1 to 7") {
    // At the least memory the pool is the declared peak: a block too few, and a call would be refused.
    constexpr std::size_t prompt = 40, keep = 12;
    const auto run = [&]<class Cache>(Cache*, std::uint32_t layers, auto&& vary) {
        const kvtl::shape deep{layers, 2, 2, 16};
        const drift data(deep, 64, layers);
        typename Cache::config c;
        c.shape = deep;
        c.max_tokens = 48;
        c.prefill_tokens = prompt;
        c.keep_tokens = keep;
        c.window_tokens = 4;
        vary(c);
        c.memory_bytes = least_memory<Cache>(c);
        CAPTURE(layers);
        auto cache = open_cache<Cache>(c);
        const auto seq = *cache.begin();
        const auto& plan = kvtl::shard_access::of(cache, 0).kept().plan();
        const auto& pool = kvtl::shard_access::of(cache, 0).kept().pool();
        std::size_t least = 0; // blocks that the rows held take at least
        bool within = true;
        for (std::uint32_t l = 0; l < layers; ++l) {
            require_ok(cache.prefill(seq, l, data.input(l, 0, prompt), {}));
            least = std::max(least, rows_held(cache, seq) / kvtl::rows_per_block);
            within = within && pool.used_peak() <= plan.guaranteed_blocks;
        }
        CHECK(rows_held(cache, seq) == keep * layers * 2);
        CHECK(within);
        CHECK(plan.guaranteed_blocks >= least);
        // No more than all lanes with all their tokens, however large r_max is.
        CHECK(plan.guaranteed_blocks <= layers * 2 * kvtl::blocks_for(48));
        std::vector<float> out(data.query_floats());
        for (std::size_t t = prompt; t < 48; ++t)
            for (std::uint32_t l = 0; l < layers; ++l)
                require_ok(cache.attend(seq, l, data.input(l, t), out));
        CHECK(pool.used_peak() <= plan.guaranteed_blocks);
    };
    for (std::uint32_t layers = 1; layers <= 80; layers += layers < 16 ? 1 : 16)
        for (std::uint32_t interval = 1; interval <= 7; ++interval)
            run(static_cast<dynamic*>(nullptr), layers, [&](auto& c) {
                c.budget.interval = interval;
                c.budget.r_max = static_cast<float>(1 + (layers + interval) % 10);
            });
    for (std::uint32_t layers = 1; layers <= 80; layers += layers < 8 ? 1 : 24) {
        run(static_cast<kvtl::cake*>(nullptr), layers, [](auto&) {});
        run(static_cast<kvtl::adakv*>(nullptr), layers, [](auto&) {});
        run(static_cast<kvtl::layer_defensivekv*>(nullptr), layers, [](auto&) {});
        run(static_cast<kvtl::pyramidkv*>(nullptr), layers, [](auto&) {});
        run(static_cast<kvtl::d2o*>(nullptr), layers, [](auto&) {});
    }
}

TEST_CASE("select shows what is held; presets whose attention needs more refuse it") {
    const drift data(small, 300, 76);
    auto cache = open_cache<snap>(sized<snap>());
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 100);
    auto in = data.input(0, 100);
    in.q = {};
    require_ok(cache.append(seq, 0, in));
    std::size_t rows[2] = {};
    require_ok(cache.select(seq, 0, data.q(0, 100), [&](std::size_t head, auto keys, auto values) {
        rows[head] += keys.count;
        CHECK(keys.count == values.count);
    }));
    CHECK(rows[0] == 49);
    CHECK(rows[1] == 49);
    require_ok(cache.prefetch(seq, 0, data.q(0, 100)));
    auto h2o = open_cache<kvtl::h2o>(sized<kvtl::h2o>());
    const auto other = *h2o.begin();
    failed(h2o.append(other, 0, in), kvtl::errc::unsupported, "attention mass");
    failed(h2o.select(other, 0, data.q(0, 100), [](std::size_t, auto, auto) {}), kvtl::errc::unsupported,
           "attention mass");
    auto rolling = open_cache<kvtl::streaming_llm>(sized<kvtl::streaming_llm>());
    failed(rolling.select(*rolling.begin(), 0, data.q(0, 100), [](std::size_t, auto, auto) {}),
           kvtl::errc::unsupported, "positions");
}

TEST_CASE("shards and sequences: the same bits as alone") {
    const drift first(small, 300, 77), second(small, 300, 78);
    const auto outputs = [&]<class Cache>(Cache*, unsigned shards, std::size_t sequences) {
        auto c = sized<Cache>();
        c.shards = shards;
        c.max_sequences = sequences;
        auto cache = open_cache<Cache>(c);
        reader<Cache> a(cache, first, 0);
        a.prefill(120, 50);
        if (sequences > 1) {
            reader<Cache> b(cache, second, 0);
            b.prefill(60);
            for (int i = 0; i < 30; ++i) a.decode(1), b.decode(1);
            b.end();
        } else {
            a.decode(30);
        }
        a.prefill(10);
        a.decode(5);
        return a.outputs();
    };
    const auto same = [&]<class Cache>(Cache* tag) {
        const auto alone = outputs(tag, 1, 1);
        CHECK(same_bits(alone, outputs(tag, 2, 1)));
        CHECK(same_bits(alone, outputs(tag, 1, 2)));
        CHECK(same_bits(alone, outputs(tag, 2, 2)));
    };
    same(static_cast<snap*>(nullptr));
    same(static_cast<dynamic*>(nullptr));
    same(static_cast<kvtl::h2o*>(nullptr));
    same(static_cast<kvtl::tova*>(nullptr));
}

TEST_CASE("the phases are timed when asked for, and only then") {
    const drift data(small, 300, 79);
    for (const bool timed : {false, true}) {
        auto c = sized<kvtl::h2o>();
        c.time_phases = timed;
        auto cache = open_cache<kvtl::h2o>(c);
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, 100);
        for (std::size_t t = 100; t < 110; ++t) static_cast<void>(decode_and_compare(cache, seq, data, t));
        const auto s = cache.stats();
        CHECK((s.phase_ns.evict > 0) == timed);
        CHECK((s.phase_ns.attend > 0) == timed);
        CHECK(s.steps == 30);
        CHECK(s.hit_rate() == 1.0);
    }
}

} // namespace manager_kept_rows_test
