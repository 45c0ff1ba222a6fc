// Presets that drop at the prompt's end and then retrieve: what reaches storage is what retention keeps,
// everything after is retrieval, and both live within one bound. SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/posix_file.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynamickv.hpp>
#include <kvtl/presets/merging.hpp>
#include <kvtl/presets/pqcache.hpp>

#include "support/eviction.hpp"
#include "support/on_device.hpp"
#include "support/scratch_folder.hpp"

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>

namespace manager_drop_then_retrieve_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};

template <class Preset> using in_memory = on_device<Preset, kvtl::in_memory>;
template <class Preset> using exactly = f32_on<Preset, kvtl::in_memory>;
template <class Preset> using failing = f32_on<Preset, kvtl::faulty<kvtl::in_memory>>;
template <class Preset> using cache_of = kvtl::kv_manager<exactly<Preset>>;

using kvtl::presets::mpcache_shared;
using kvtl::presets::snapkv_then_dynakv;
struct pyramid_then_quantised : kvtl::presets::pqcache {
    static constexpr std::string_view name = "pyramid_then_quantised";
    using retention = kvtl::presets::pyramidkv::retention;
    using budget = kvtl::presets::pyramidkv::budget;
};
/// Heads that decide together, then units of all heads.
struct voted_then_streamed : kvtl::presets::flexgen {
    static constexpr std::string_view name = "voted_then_streamed";
    using retention = kvtl::presets::compress_kv::retention;
    using budget = kvtl::presets::compress_kv::budget;
};

drift numbered(std::size_t tokens, std::uint64_t seed) {
    return {small, tokens, seed, {.numbered = true}};
}
template <class Cache> typename Cache::config sized(std::size_t keep, unsigned shards = 1) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 400;
    c.prefill_tokens = 200;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    c.attend_tokens = 400;
    c.window_tokens = 32;
    c.shards = shards;
    return c;
}
void failed(const kvtl::status& s, kvtl::errc code, const std::string& word) {
    CAPTURE(std::string(s.what()));
    CAPTURE(word);
    CHECK(s.code() == code);
    CHECK(std::string(s.what()).find(word) != std::string::npos);
}

/// The tokens that every KV head attends, in order: of numbered data, with the budget for everything.
template <class Cache>
std::vector<tokens_t> attended(Cache& cache, kvtl::sequence_id seq, std::size_t layer) {
    std::vector<tokens_t> heads(small.kv_heads);
    const std::vector<float> q(std::size_t{small.query_heads} * small.head_dim, 1.0F);
    for (unsigned s = 0; s < cache.shards(); ++s)
        require_ok(cache.select(
            seq, layer, q,
            [&](std::size_t head, kvtl::rows_view<float>, kvtl::rows_view<float> values) {
                for (std::size_t i = 0; i < values.count; ++i)
                    heads[head].push_back(static_cast<std::uint32_t>(values.row(i)[0]));
            },
            s));
    for (tokens_t& t : heads) std::sort(t.begin(), t.end());
    return heads;
}
/// One decode step of every layer, compared with attention over exactly the tokens that were held.
template <class Cache> double decode(Cache& cache, kvtl::sequence_id seq, const drift& data, std::size_t t) {
    oracle::largest_error error;
    const naive truth(data, 0, 0);
    for (std::size_t l = 0; l < small.layers; ++l) {
        auto held = attended(cache, seq, l);
        std::vector<float> out(data.query_floats(), NAN);
        for (unsigned s = 0; s < cache.shards(); ++s)
            require_ok(cache.attend(seq, l, data.input(l, t), out, s));
        for (std::size_t hq = 0; hq < small.query_heads; ++hq) {
            tokens_t& all = held[hq * small.kv_heads / small.query_heads];
            if (all.empty() || all.back() != t) all.push_back(static_cast<std::uint32_t>(t));
            const scores_t expected = truth.output(l, hq, t, all);
            for (std::size_t d = 0; d < small.head_dim; ++d)
                error.see((static_cast<double>(out[hq * small.head_dim + d]) - expected[d]) /
                          std::max(1.0, std::abs(expected[d]))); // token numbers are large
        }
    }
    return error.value();
}
template <class Cache> std::size_t blocks_in_use(Cache& cache) {
    std::size_t n = 0;
    for (unsigned s = 0; s < cache.shards(); ++s) {
        const auto& pool = kvtl::shard_access::of(cache, s).kept().pool();
        n += pool.size() - pool.free_blocks();
    }
    return n;
}

} // namespace

TEST_CASE_TEMPLATE("with everything kept and attended it is dense attention", Preset, snapkv_then_dynakv,
                   mpcache_shared, pyramid_then_quantised, voted_then_streamed) {
    using cache_t = kvtl::kv_manager<in_memory<Preset>>;
    for (const std::size_t prompt : {0U, 1U, 3U, 60U})
        run_scenario<cache_t>({.prompt = prompt, .decode = 60});
    for (const bool smallest : {false, true})
        run_scenario<cache_t>({.prompt = 600,
                               .chunk = smallest ? SIZE_MAX : 170,
                               .decode = 40,
                               .turn = 50,
                               .turn_decode = 8,
                               .smallest = smallest});
    run_scenario<cache_t>({.shape = {1, 14, 2, 128}, .prompt = 300, .decode = 20, .smallest = true});
    run_scenario<cache_t>({.prompt = 0, .decode = 3, .turn = 200, .turn_decode = 20});
    run_scenario<cache_t>(
        {.shape = {2, 6, 3, 64}, .prompt = 300, .decode = 30, .shards = 2, .smallest = true});
}

TEST_CASE_TEMPLATE("storage gets what the definition keeps, however the prompt is cut", Preset,
                   snapkv_then_dynakv, mpcache_shared) {
    using cache_t = cache_of<Preset>;
    const drift data = numbered(400, 3);
    const naive truth(data, 4, 32);
    for (const std::size_t chunk : {150U, 64U, 7U})
        for (const unsigned shards : {1U, 2U}) {
            CAPTURE(chunk);
            CAPTURE(shards);
            auto cache = open_cache<cache_t>(sized<cache_t>(48, shards));
            const auto seq = *cache.begin();
            double error = 0;
            feed_prompt(cache, seq, data, 150, chunk, {}, &error);
            CHECK(error < 150 * 1e-6); // values are as large as token numbers
            CHECK(blocks_in_use(cache) == 0);
            CHECK(cache.stats().kept_entries == 48 * 2 * 2);
            for (std::size_t l = 0; l < small.layers; ++l) {
                CHECK(cache.tokens(seq, l) == 150);
                const auto held = attended(cache, seq, l);
                for (std::size_t h = 0; h < small.kv_heads; ++h) {
                    const scores_t raw =
                        truth.group_mean(h, [&](std::size_t hq) { return truth.window_sum(l, hq, 150); });
                    CHECK(held[h] == truth.best(naive::average_pool(raw, 5), 12));
                }
            }
            for (std::size_t t = 150; t < 190; ++t) CHECK(decode(cache, seq, data, t) < exact);
            CHECK(cache.tokens(seq, 1) == 190);
            CHECK(cache.stats().kept_entries == 88 * 2 * 2);
        }
}

TEST_CASE("retention alone keeps the same, also with other numbers in each layer") {
    const drift data = numbered(400, 5);
    using alone_t = precise<kvtl::presets::pyramidkv>;
    struct preset : kvtl::presets::dynakv {
        using retention = kvtl::presets::pyramidkv::retention;
        using budget = kvtl::presets::pyramidkv::budget;
    };
    using cache_t = cache_of<preset>;
    auto c = sized<alone_t>(64);
    c.sink_tokens = kvtl::presets::dynakv::sink_tokens;
    auto alone = open_cache<alone_t>(c);
    auto cache = open_cache<cache_t>(sized<cache_t>(64));
    const auto one = *alone.begin(), both = *cache.begin();
    feed_prompt(alone, one, data, 180);
    feed_prompt(cache, both, data, 180);
    std::vector<std::size_t> numbers;
    for (std::size_t l = 0; l < small.layers; ++l) {
        const auto held = attended(cache, both, l);
        numbers.push_back(held[0].size());
        for (std::size_t h = 0; h < small.kv_heads; ++h) CHECK(held[h] == kept(alone, one, l, h));
    }
    CHECK(numbers[0] > numbers[1]);
    CHECK(cache.tokens(both, 0) == 180);
    CHECK(cache.tokens(both, 1) == 180);
}

TEST_CASE("a late budget moves all layers once the last one has come") {
    using alone_t = precise<kvtl::presets::dynamickv>;
    struct preset : kvtl::presets::dynakv {
        using retention = kvtl::presets::dynamickv::retention;
        using budget = kvtl::presets::dynamickv::budget;
    };
    using cache_t = cache_of<preset>;
    const drift data = numbered(400, 14);
    auto c = sized<alone_t>(64);
    c.sink_tokens = kvtl::presets::dynakv::sink_tokens;
    auto alone = open_cache<alone_t>(c);
    auto d = sized<cache_t>(64);
    d.memory_bytes = *cache_t::least_memory(d);
    auto cache = open_cache<cache_t>(d);
    for (int round = 0; round < 2; ++round) {
        const auto one = *alone.begin(), both = *cache.begin();
        feed_prompt(alone, one, data, 180);
        require_ok(cache.prefill(both, 0, data.input(0, 0, 180), {}));
        CHECK(cache.tokens(both, 0) == 180);
        const std::vector<float> q(data.query_floats(), 1.0F);
        std::vector<float> one_out(data.query_floats());
        failed(cache.attend(both, 1, data.input(1, 180), one_out), kvtl::errc::invalid_argument,
               "layer 1 is still to come");
        failed(cache.prefetch(both, 0, q), kvtl::errc::invalid_argument, "layer 1 is still to come");
        failed(cache.append(both, 0, data.input(0, 180)), kvtl::errc::invalid_argument,
               "layer 1 is still to come");
        require_ok(cache.prefill(both, 1, data.input(1, 0, 180), {}));
        CHECK(blocks_in_use(cache) == 0);
        std::size_t kept_by_all = 0;
        for (std::size_t l = 0; l < small.layers; ++l) {
            const auto held = attended(cache, both, l);
            for (std::size_t h = 0; h < small.kv_heads; ++h) {
                CHECK(held[h] == kept(alone, one, l, h));
                kept_by_all += held[h].size();
            }
        }
        CHECK(kept_by_all == 64 * small.layers * small.kv_heads);
        for (std::size_t t = 180; t < 200; ++t) CHECK(decode(cache, both, data, t) < exact);
        require_ok(cache.end(both));
        require_ok(alone.end(one));
    }
}

TEST_CASE("heads may keep different numbers") {
    using alone_t = precise<kvtl::presets::adakv>;
    struct clustered : kvtl::presets::dynakv {
        using retention = kvtl::presets::adakv::retention;
        using budget = kvtl::presets::adakv::budget;
    };
    struct grouped : kvtl::presets::shared_boxes {
        using retention = kvtl::presets::adakv::retention;
        using budget = kvtl::presets::adakv::budget;
    };
    const drift data = numbered(400, 15);
    auto c = sized<alone_t>(64);
    c.sink_tokens = 4;
    c.budget.floor = 0.0F;
    auto alone = open_cache<alone_t>(c);
    const auto one = *alone.begin();
    feed_prompt(alone, one, data, 180);
    const auto same = [&](auto& cache) {
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, 180, 70);
        bool differ = false;
        for (std::size_t l = 0; l < small.layers; ++l) {
            const auto held = attended(cache, seq, l);
            for (std::size_t h = 0; h < small.kv_heads; ++h) CHECK(held[h] == kept(alone, one, l, h));
            differ = differ || held[0].size() != held[1].size();
            CHECK(cache.tokens(seq, l) == 180);
        }
        CHECK(differ);
        CHECK(cache.stats().kept_entries == 64 * small.layers * small.kv_heads);
        for (std::size_t t = 180; t < 200; ++t) CHECK(decode(cache, seq, data, t) < exact);
        CHECK(cache.tokens(seq, 1) == 200);
        require_ok(cache.rewind(seq, 10));
        for (std::size_t t = 190; t < 195; ++t) CHECK(decode(cache, seq, data, t) < exact);
    };
    using clusters_t = cache_of<clustered>;
    using groups_t = cache_of<grouped>;
    for (const unsigned shards : {1U, 2U}) {
        auto a = sized<clusters_t>(64, shards);
        a.budget.floor = 0.0F;
        auto clusters = open_cache<clusters_t>(a);
        same(clusters);
        auto b = sized<groups_t>(64, shards);
        b.budget.floor = 0.0F;
        auto groups = open_cache<groups_t>(b);
        same(groups);
    }
}

TEST_CASE("merged entries keep their weights in clusters and in groups") {
    using alone_t = precise<kvtl::presets::kv_merger>;
    struct clustered : kvtl::presets::dynakv {
        using retention = kvtl::presets::kv_merger::retention;
    };
    struct grouped : kvtl::presets::shared_boxes {
        using retention = kvtl::presets::kv_merger::retention;
    };
    const drift data(small, 400, 17);
    const auto heavy = [](auto& c) {
        c.sink_tokens = 4;
        c.window_tokens = 8;
        c.retention.rule.similarity = 0.2F;
    };
    auto c = sized<alone_t>(48);
    heavy(c);
    auto alone = open_cache<alone_t>(c);
    const auto one = *alone.begin();
    feed_prompt(alone, one, data, 180);
    double merged = 0;
    for (std::uint32_t h = 0; h < small.kv_heads; ++h) {
        auto& stage = kvtl::shard_access::of(alone, 0).kept();
        const auto held = stage.open(stage.lanes_of(one.slot, 1)[h]);
        for (std::uint32_t i = 0; i < held.size(); ++i)
            merged += std::exp(static_cast<double>(held.log_weight(i))) - 1.0;
    }
    REQUIRE(merged > 20);
    std::vector<std::vector<float>> truth;
    for (std::size_t t = 180; t < 260; ++t) // long enough for the prompt's window to move to units
        for (std::size_t l = 0; l < small.layers; ++l) {
            truth.emplace_back(data.query_floats());
            require_ok(alone.attend(one, l, data.input(l, t), truth.back()));
        }
    const auto same = [&](auto& cache) {
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, 180, 70);
        oracle::largest_error error;
        auto expected = truth.begin();
        std::vector<float> out(data.query_floats());
        for (std::size_t t = 180; t < 260; ++t)
            for (std::size_t l = 0; l < small.layers; ++l, ++expected) {
                require_ok(cache.attend(seq, l, data.input(l, t), out));
                for (std::size_t i = 0; i < out.size(); ++i)
                    error.see(static_cast<double>(out[i]) - static_cast<double>((*expected)[i]));
            }
        CHECK(error.value() < exact);
        failed(cache.select(seq, 0, data.q(0, 260), [](auto&&...) {}), kvtl::errc::unsupported,
               "carry weights");
    };
    using clusters_t = cache_of<clustered>;
    using groups_t = cache_of<grouped>;
    auto a = sized<clusters_t>(48);
    heavy(a);
    auto clusters = open_cache<clusters_t>(a);
    same(clusters);
    auto b = sized<groups_t>(48);
    heavy(b);
    auto groups = open_cache<groups_t>(b);
    same(groups);
}

TEST_CASE("what was kept lies on storage as a prompt of just these entries would") {
    struct kept_first : in_f32<snapkv_then_dynakv> {
        using io = kvtl::posix_file;
    };
    struct direct : in_f32<kvtl::presets::dynakv> {
        using io = kvtl::posix_file;
    };
    using cache_t = kvtl::kv_manager<kept_first>;
    using direct_t = kvtl::kv_manager<direct>;
    const drift data = numbered(800, 16);
    const scratch_folder folder;
    const auto bytes_of = [](const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        file.seekg(4096); // behind the superblock, which tells the two caches apart
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    constexpr std::size_t prompt = 600, keep = 200;
    std::vector<std::vector<tokens_t>> held;
    {
        auto c = sized<cache_t>(keep);
        c.max_tokens = 800, c.prefill_tokens = prompt, c.attend_tokens = 800;
        c.io.path = folder.file("kept.kv"), c.io.keep_file = true;
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        for (std::size_t l = 0; l < small.layers; ++l) {
            require_ok(cache.prefill(seq, l, data.input(l, 0, prompt), {}));
            held.push_back(attended(cache, seq, l));
        }
    }
    {
        typename direct_t::config d;
        d.shape = small, d.max_tokens = 800, d.attend_tokens = 800, d.window_tokens = 32;
        d.memory_bytes = std::size_t{16} << 20;
        d.io.path = folder.file("direct.kv"), d.io.keep_file = true;
        auto cache = open_cache<direct_t>(d);
        const auto seq = *cache.begin();
        const std::size_t dim = small.head_dim, token = small.kv_heads * dim;
        for (std::size_t l = 0; l < small.layers; ++l) {
            std::vector<float> q, k(keep * token), v(keep * token);
            for (std::size_t t = prompt - keep; t < prompt; ++t) {
                const auto row = data.q(l, t);
                q.insert(q.end(), row.begin(), row.end());
            }
            for (std::size_t h = 0; h < small.kv_heads; ++h)
                for (std::size_t i = 0; i < keep; ++i) {
                    std::copy_n(data.key(l, held[l][h][i], h), dim, &k[i * token + h * dim]);
                    std::copy_n(data.value(l, held[l][h][i], h), dim, &v[i * token + h * dim]);
                }
            require_ok(cache.prefill(seq, l, {.q = q, .k = k, .v = v}, {}));
        }
    }
    const std::string kept_bytes = bytes_of(folder.file("kept.kv")),
                      direct_bytes = bytes_of(folder.file("direct.kv"));
    REQUIRE(kept_bytes.size() > 100000);
    CHECK(kept_bytes == direct_bytes);
}

TEST_CASE("heads that decide together hand over to units of all heads") {
    const drift data = numbered(400, 6);
    using cache_t = cache_of<voted_then_streamed>;
    for (const unsigned shards : {1U, 2U}) {
        auto c = sized<cache_t>(48, shards);
        c.max_sequences = 2;
        auto cache = open_cache<cache_t>(c);
        for (const auto seq : {*cache.begin(), *cache.begin()}) {
            feed_prompt(cache, seq, data, 150, 60);
            const auto held = attended(cache, seq, 1);
            CHECK(held[0].size() == 48);
            CHECK(held[0] == held[1]);
            for (std::size_t t = 150; t < 170; ++t) CHECK(decode(cache, seq, data, t) < exact);
            CHECK(cache.tokens(seq, 1) == 170);
        }
        CHECK(cache.stats().kept_entries == std::uint64_t{2} * 68 * 2 * 2);
    }
}

TEST_CASE_TEMPLATE("decode reads from storage within the bound", Preset, snapkv_then_dynakv, mpcache_shared) {
    using cache_t = cache_of<Preset>;
    const drift data = numbered(800, 7);
    auto c = sized<cache_t>(200);
    c.max_tokens = 800, c.prefill_tokens = 600, c.attend_tokens = 48;
    const std::size_t least = *cache_t::least_memory(c);
    c.memory_bytes = least - 1;
    CHECK_FALSE(cache_t::open(c).ok());
    c.memory_bytes = least;
    auto cache = open_cache<cache_t>(c);
    reader<cache_t> one(cache, data, 0);
    one.prefill(600);
    one.decode(150);
    one.prefill(20);
    one.decode(10);
    one.check_tokens();
    const auto s = cache.stats();
    CHECK(s.kept_entries == std::uint64_t{380} * 2 * 2);
    CHECK(s.read_bytes > 0);
    CHECK(s.bytes_by_part.total() <= least);
    CHECK(s.resident_bytes_peak <= least);
    CHECK(std::all_of(one.outputs().begin(), one.outputs().end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("memory goes to frames, but for what prompts in chunks take") {
    using cache_t = cache_of<snapkv_then_dynakv>;
    const drift data(small, 400, 8);
    auto c = sized<cache_t>(48);
    const std::size_t least = *cache_t::least_memory(c);
    const auto blocks = [&](std::size_t bytes) {
        c.memory_bytes = bytes;
        auto cache = open_cache<cache_t>(c);
        CHECK(cache.stats().bytes_by_part.total() <= bytes);
        return kvtl::shard_access::of(cache, 0).kept().pool().size();
    };
    const std::uint32_t tight = blocks(least), ample = blocks(std::size_t{16} << 20);
    CHECK(tight < ample);
    CHECK(ample == blocks(std::size_t{64} << 20)); // no more than it can use
    for (const bool enough : {false, true}) {
        c.memory_bytes = enough ? std::size_t{16} << 20 : least;
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        auto in = data.input(0, 0, 100);
        in.last_chunk = false;
        const kvtl::status chunk = cache.prefill(seq, 0, in, {});
        CHECK(chunk.ok() == enough);
        if (!enough) failed(chunk, kvtl::errc::bound_too_small, "give the prompt in one chunk");
        CHECK(cache.tokens(seq, 0) == (enough ? 100 : 0));
        require_ok(cache.end(seq));
        feed_prompt(cache, *cache.begin(), data, 200);
    }
}

TEST_CASE("when nothing is dropped retrieval is what it is alone, placement included") {
    using cache_t = kvtl::kv_manager<in_memory<snapkv_then_dynakv>>;
    using alone_t = kvtl::kv_manager<in_memory<kvtl::presets::dynakv>>;
    const drift data(small, 800, 12);
    auto c = sized<cache_t>(600);
    c.max_tokens = 800, c.prefill_tokens = 600, c.attend_tokens = 64;
    c.lend_tables = false; // tables differ in size, and so would the frames that they lend
    c.memory_bytes = *cache_t::least_memory(c) + 40000;
    auto cache = open_cache<cache_t>(c);
    typename alone_t::config d;
    d.lend_tables = false;
    d.shape = c.shape, d.max_tokens = c.max_tokens;
    d.attend_tokens = c.attend_tokens, d.window_tokens = c.window_tokens;
    const auto frames = [](auto& any) { return kvtl::shard_access::of(any, 0).store().pool_of(0).size(); };
    d.memory_bytes = *alone_t::least_memory(d);
    while (frames(*std::make_unique<alone_t>(open_cache<alone_t>(d))) < frames(cache)) d.memory_bytes += 1024;
    auto alone = open_cache<alone_t>(d);
    REQUIRE(frames(alone) == frames(cache));
    reader<cache_t> both(cache, data, 0);
    reader<alone_t> one(alone, data, 0);
    both.prefill(600), one.prefill(600);
    const auto x0 = cache.stats(), y0 = alone.stats(); // a prompt in pieces is staged, then read again
    both.decode(60), one.decode(60);
    CHECK(std::equal(one.outputs().end() - 100, one.outputs().end(), both.outputs().end() - 100));
    const auto x = cache.stats(), y = alone.stats();
    CHECK(y.reads > y0.reads);
    CHECK(x.read_bytes - x0.read_bytes == y.read_bytes - y0.read_bytes);
    CHECK(x.reads - x0.reads == y.reads - y0.reads); // units that are wanted together lie together in both
    CHECK(x.chosen_units == y.chosen_units);
    CHECK(x.units == y.units);
}

TEST_CASE("rewind goes back over the window, decoded tokens and those of the prompt") {
    using cache_t = cache_of<snapkv_then_dynakv>;
    const drift data = numbered(400, 9);
    auto c = sized<cache_t>(48);
    c.window_tokens = 40;
    auto cache = open_cache<cache_t>(c);
    const auto seq = *cache.begin();
    require_ok(cache.rewind(seq, 0));
    feed_prompt(cache, seq, data, 150);
    for (std::size_t t = 150; t < 155; ++t) CHECK(decode(cache, seq, data, t) < exact);
    failed(cache.rewind(seq, 41), kvtl::errc::out_of_range, "can give up 40");
    const auto before = attended(cache, seq, 1);
    require_ok(cache.rewind(seq, 37));
    CHECK(cache.tokens(seq, 1) == 118);
    auto after = attended(cache, seq, 1);
    for (std::size_t h = 0; h < small.kv_heads; ++h)
        CHECK(after[h] == tokens_t(before[h].begin(), before[h].end() - 37));
    require_ok(cache.rewind(seq, 3));
    failed(cache.rewind(seq, 1), kvtl::errc::out_of_range, "can give up 0");
    for (std::size_t t = 115; t < 140; ++t) CHECK(decode(cache, seq, data, t) < exact);
    // Nothing was dropped.
    require_ok(cache.end(seq));
    const auto next = *cache.begin();
    feed_prompt(cache, next, data, 45);
    require_ok(cache.rewind(next, 40));
    CHECK(cache.tokens(next, 0) == 5);
    CHECK(decode(cache, next, data, 5) < exact);
}

TEST_CASE("sequences in turn and side by side are strangers to each other") {
    using cache_t = cache_of<mpcache_shared>;
    const drift first = numbered(400, 1), second = numbered(400, 2);
    auto c = sized<cache_t>(48, 2);
    c.max_sequences = 2;
    c.attend_tokens = 48;
    c.memory_bytes = *cache_t::least_memory(c);
    const auto play = [&](auto& a) {
        a.prefill(150);
        a.decode(30);
        a.prefill(20);
        a.decode(5);
    };
    std::vector<float> alone[2];
    for (const int i : {0, 1}) {
        auto cache = open_cache<cache_t>(c);
        reader<cache_t> one(cache, i == 0 ? first : second, 0);
        play(one);
        alone[i] = one.outputs();
    }
    auto cache = open_cache<cache_t>(c);
    for (int round = 0; round < 2; ++round) {
        reader<cache_t> a(cache, first, 0), b(cache, second, 0);
        CHECK_FALSE(cache.begin().ok());
        a.prefill(150);
        b.prefill(150);
        for (int i = 0; i < 30; ++i) a.decode(1), b.decode(1);
        a.prefill(20), b.prefill(20);
        a.decode(5), b.decode(5);
        CHECK(same_bits(a.outputs(), alone[0]));
        CHECK(same_bits(b.outputs(), alone[1]));
        a.end();
        failed(cache.attend(a.id(), 0, first.input(0, 9), {}), kvtl::errc::not_open, "is not open");
        b.end();
        CHECK(cache.stats().kept_entries == 0);
    }
}

TEST_CASE("open says what it needs and what is impossible") {
    using cache_t = cache_of<snapkv_then_dynakv>;
    const auto refuses = [](const typename cache_t::config& c, kvtl::errc code,
                            const std::vector<std::string>& words) {
        const auto opened = cache_t::open(c);
        REQUIRE_FALSE(opened.ok());
        CAPTURE(opened.error().message);
        CHECK(opened.error().code == code);
        for (const std::string& word : words) {
            CAPTURE(word);
            CHECK(opened.error().message.find(word) != std::string::npos);
        }
    };
    using kvtl::errc;
    auto c = sized<cache_t>(48);
    c.memory_bytes = 1000;
    refuses(c, errc::bound_too_small,
            {"memory_bytes is 1000", "snapkv_then_dynakv", "keep_tokens and prefill_tokens", "\n  index ",
             "\n  scratch ", "\n  frames "});
    CHECK(least_memory<cache_t>(c) == *cache_t::least_memory(c));
    c = sized<cache_t>(20);
    refuses(c, errc::invalid_argument, {"keep_tokens is 20", "4 + 32"});
    c = sized<cache_t>(48);
    c.retention.pool_width = 4;
    refuses(c, errc::invalid_argument, {"pool_width is 4"});
    c = sized<cache_t>(48);
    c.attend_tokens = 0;
    refuses(c, errc::invalid_argument, {"attend_tokens is 0"});
    c = sized<cache_t>(48);
    c.max_tokens = 0;
    refuses(c, errc::invalid_argument, {"max_tokens is 0"});
    c = sized<cache_t>(48, 3);
    refuses(c, errc::invalid_argument, {"shards is 3"});
    c = sized<cache_t>(48);
    c.adapt_prompt = true;
    refuses(c, errc::invalid_argument, {"adapt_prompt is true", "snapkv_then_dynakv"});
    c = sized<cache_t>(48);
    c.attend_tokens = 36;
    refuses(c, errc::invalid_argument, {"attend_tokens is 36", "4 + 32"});
    c = sized<cache_t>(48);
    c.memory_bytes = *cache_t::least_memory(c);
    CHECK(cache_t::open(c).ok());

    // keep_tokens 0: four times attend_tokens.
    c = sized<cache_t>(0);
    c.attend_tokens = 40;
    auto cache = open_cache<cache_t>(c);
    const drift data = numbered(400, 4);
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 180);
    CHECK(cache.stats().kept_entries == 160 * 2 * 2);
}

TEST_CASE("calls refuse wrong input and change nothing") {
    using kvtl::errc;
    using cache_t = cache_of<snapkv_then_dynakv>;
    const drift data = numbered(600, 10);
    auto cache = open_cache<cache_t>(sized<cache_t>(48));
    const auto seq = *cache.begin();
    std::vector<float> out(210 * data.query_floats());
    const auto one = std::span(out).first(data.query_floats());
    failed(cache.prefill(seq, 2, data.input(0, 0, 10), out), errc::out_of_range, "layer is 2");
    failed(cache.prefill(seq, 0, data.input(0, 0, 210), out), errc::out_of_range, "prefill_tokens = 200");
    auto in = data.input(0, 0, 60);
    in.last_chunk = false;
    require_ok(cache.prefill(seq, 0, in, std::span(out).first(60 * data.query_floats())));
    failed(cache.attend(seq, 0, data.input(0, 60), one), errc::invalid_argument, "60 tokens wait");
    failed(cache.append(seq, 0, data.input(0, 60)), errc::invalid_argument, "60 tokens wait");
    failed(cache.prefetch(seq, 0, data.q(0, 60)), errc::invalid_argument, "60 tokens wait");
    failed(cache.rewind(seq, 1), errc::invalid_argument, "60 tokens wait");
    failed(cache.prefill(seq, 0, data.input(0, 60, 150), {}), errc::out_of_range, "210 tokens");
    std::vector<float> bad(data.k(0, 60).begin(), data.k(0, 60).end());
    bad[3] = NAN;
    auto broken = data.input(0, 60);
    broken.k = bad;
    failed(cache.prefill(seq, 0, broken, one), errc::invalid_argument, "k holds a NaN");
    CHECK(cache.tokens(seq, 0) == 60);
    require_ok(cache.prefill(seq, 0, data.input(0, 60, 90), std::span(out).first(90 * data.query_floats())));
    require_ok(cache.prefill(seq, 1, data.input(1, 0, 150), std::span(out).first(150 * data.query_floats())));
    for (std::size_t t = 150; t < 400; ++t)
        for (std::size_t l = 0; l < small.layers; ++l)
            require_ok(cache.attend(seq, l, data.input(l, t), one));
    failed(cache.attend(seq, 0, data.input(0, 400), one), errc::out_of_range, "400 tokens are held");
    CHECK(cache.tokens(seq, 0) == 400);
}

TEST_CASE("a device error while kept entries move: the same call again moves them") {
    using cache_t = kvtl::kv_manager<failing<snapkv_then_dynakv>>;
    const drift data = numbered(400, 11);
    auto c = sized<cache_t>(128);
    c.max_sequences = 2;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    c.memory_bytes = *cache_t::least_memory(c) + 200000;
    auto cache = open_cache<cache_t>(c);
    const auto seq = *cache.begin(), other = *cache.begin();
    feed_prompt(cache, other, data, 150);
    std::vector<float> out(190 * data.query_floats());
    const auto one = std::span(out).first(data.query_floats());
    const auto prompt = [&](std::size_t l) { return cache.prefill(seq, l, data.input(l, 0, 190), out); };
    require_ok(prompt(0));
    c.io.faults->fail_write.first = 0;
    c.io.faults->fail_write.count = UINT64_MAX;
    for (int attempt = 0; attempt < 2; ++attempt) {
        CHECK_FALSE(prompt(1).ok());
        CHECK(cache.tokens(seq, 1) == 190); // they wait
    }
    failed(cache.attend(seq, 1, data.input(1, 190), one), kvtl::errc::io_error, "repeat its prefill");
    failed(cache.append(seq, 1, data.input(1, 190)), kvtl::errc::io_error, "repeat its prefill");
    failed(cache.prefetch(seq, 1, data.q(1, 190)), kvtl::errc::io_error, "repeat its prefill");
    failed(cache.rewind(seq, 1), kvtl::errc::io_error, "repeat its prefill");
    c.io.faults->fail_write.first = kvtl::io_faults::never;
    require_ok(cache.retry_writes(seq));
    auto chunk = data.input(1, 0, 190);
    chunk.last_chunk = false;
    failed(cache.prefill(seq, 1, chunk, out), kvtl::errc::io_error, "repeat its prefill");
    require_ok(prompt(1));
    for (std::size_t l = 0; l < small.layers; ++l)
        for (const tokens_t& held : attended(cache, seq, l)) CHECK(held.size() == 128);
    for (std::size_t t = 190; t < 200; ++t) CHECK(decode(cache, seq, data, t) < exact);
    for (std::size_t t = 150; t < 160; ++t) CHECK(decode(cache, other, data, t) < exact);
    require_ok(cache.end(seq));
    const auto again = *cache.begin();
    feed_prompt(cache, again, data, 150);
    for (std::size_t t = 150; t < 160; ++t) CHECK(decode(cache, again, data, t) < exact);
}

TEST_CASE_TEMPLATE("a full disk while kept entries move: they wait, and move when there is room", Preset,
                   snapkv_then_dynakv, mpcache_shared) {
    using cache_t = kvtl::kv_manager<failing<Preset>>;
    const drift data = numbered(400, 13);
    auto c = sized<cache_t>(128);
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto cache = open_cache<cache_t>(c);
    const auto seq = *cache.begin();
    std::vector<float> out(190 * data.query_floats());
    c.io.faults->full_beyond = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
        CHECK_FALSE(cache.prefill(seq, 0, data.input(0, 0, 190), out).ok());
        CHECK(cache.tokens(seq, 0) == 190);
    }
    c.io.faults->full_beyond = kvtl::io_faults::never;
    for (std::size_t l = 0; l < small.layers; ++l)
        require_ok(cache.prefill(seq, l, data.input(l, 0, 190), out));
    for (std::size_t t = 190; t < 200; ++t) CHECK(decode(cache, seq, data, t) < exact);
}

TEST_CASE("whichever shard could not move its part, the same call again moves it, and only it") {
    using cache_t = kvtl::kv_manager<failing<snapkv_then_dynakv>>;
    const drift data = numbered(400, 18);
    auto c = sized<cache_t>(128, 2);
    c.prefill_tokens = 300; // more than half of max_tokens: a repeated call is no second prompt
    bool moved[2] = {}, failed_first = false, failed_second = false;
    for (std::uint64_t failing = 0; failing < 6; ++failing) {
        c.io.faults = std::make_shared<kvtl::io_faults>();
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        std::vector<float> out(300 * data.query_floats());
        const auto prompt = [&](std::size_t l) { return cache.prefill(seq, l, data.input(l, 0, 300), out); };
        require_ok(prompt(0));
        c.io.faults->writes = 0;
        c.io.faults->fail_write.first = failing;
        c.io.faults->fail_write.count = 1;
        const kvtl::status s = prompt(1);
        c.io.faults->fail_write.first = kvtl::io_faults::never;
        if (!s) {
            for (unsigned i = 0; i < 2; ++i)
                moved[i] = kvtl::shard_access::of(cache, i).retrieved().tokens(seq.slot, 1) == 300;
            failed_first = failed_first || !moved[0];
            failed_second = failed_second || (moved[0] && !moved[1]);
            require_ok(cache.retry_writes(seq));
            require_ok(prompt(1));
        }
        for (std::size_t l = 0; l < small.layers; ++l) {
            CHECK(cache.tokens(seq, l) == 300);
            for (const tokens_t& held : attended(cache, seq, l)) CHECK(held.size() == 128);
        }
        for (std::size_t t = 300; t < 310; ++t) CHECK(decode(cache, seq, data, t) < exact);
    }
    CHECK(failed_first);
    CHECK(failed_second);
}

TEST_CASE("a window that holds everything, and prompts shorter than window and sinks") {
    using cache_t = cache_of<snapkv_then_dynakv>;
    const drift data = numbered(400, 19);
    auto c = sized<cache_t>(400);
    c.sink_tokens = 0;
    c.window_tokens = kvtl::whole_sequence;
    auto cache = open_cache<cache_t>(c);
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 150, 60);
    for (std::size_t t = 150; t < 160; ++t) CHECK(decode(cache, seq, data, t) < exact);
    auto d = sized<cache_t>(48);
    auto other = open_cache<cache_t>(d);
    const auto brief = *other.begin();
    feed_prompt(other, brief, data, 20, 7);
    for (std::size_t t = 20; t < 90; ++t) CHECK(decode(other, brief, data, t) < exact);
}

TEST_CASE("size knobs are those of retrieval") {
    using cache_t = cache_of<mpcache_shared>;
    auto c = sized<cache_t>(200);
    c.memory_bytes = 120000;
    const auto fitted = cache_t::fitted(c);
    REQUIRE(fitted.ok());
    CHECK(fitted->clusterer.group_tokens > c.clusterer.group_tokens);
    CHECK(fitted->keep_tokens == 200);
    CHECK(fitted->memory_bytes == c.memory_bytes);
}

} // namespace manager_drop_then_retrieve_test
