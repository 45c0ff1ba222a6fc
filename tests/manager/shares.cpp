// Sequences divide the frames of a cache by weight: no frame is lost, none has less than it needs, and what each holds is as
// before.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "contracts/io.hpp" // scratch_folder
#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <cmath>
#include <map>
#include <memory>

namespace manager_shares_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape model{2, 4, 2, 64};
constexpr std::size_t max_tokens = 1000;

template <class Preset>
using in_memory_cache = kvtl::kv_manager<without_file<Preset>, kvtl::engine_inputs_for<without_file<Preset>>>;

template <class Cache>
typename Cache::config roomy(std::uint32_t sequences, std::size_t more = std::size_t{1} << 20,
                             std::size_t attended = max_tokens + 1) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = max_tokens;
    c.attend_tokens = attended; // everything, so that nothing may be lost
    c.max_sequences = sequences;
    c.memory_bytes = least_memory<Cache>(c) + more;
    return c;
}

/// Frames of the pool of each sequence in a shard, in the order of their slots.
template <class Cache> std::vector<std::uint32_t> frames_of(Cache& cache, unsigned shard = 0) {
    std::vector<std::uint32_t> n;
    for (const auto& pool : kvtl::shard_access::of(cache, shard).store().pools()) n.push_back(pool.there());
    return n;
}
std::uint32_t sum(const std::vector<std::uint32_t>& of) {
    std::uint32_t n = 0;
    for (const std::uint32_t i : of) n += i;
    return n;
}
/// The fewest frames of a pool of clusters, and what it has when all have as many.
struct frame_counts {
    double least = 0, each = 0;
};
template <class Cache> frame_counts counts_of(Cache& cache) {
    const auto m = cache.memory();
    const auto pools = static_cast<std::size_t>(cache.shards()) * frames_of(cache).size();
    const double each = frames_of(cache)[0];
    return {each - static_cast<double>(m.now - m.least) / static_cast<double>(pools * 4096), each};
}
/// What weights make of `all` frames, by bisection: max(least, level * weight) each.
std::vector<double> parts_by_level(double all, double least, const std::vector<double>& weight) {
    double low = 0, high = 1e12;
    std::vector<double> part(weight.size());
    for (int i = 0; i < 200; ++i) {
        const double level = (low + high) / 2;
        double total = 0;
        for (std::size_t s = 0; s < weight.size(); ++s) {
            part[s] = weight[s] > 0 ? std::max(least, level * weight[s]) : 0;
            total += part[s];
        }
        (total > all ? high : low) = level;
    }
    return part;
}
} // namespace

TEST_CASE_TEMPLATE("frames follow weights, and every token is attended as before", Preset,
                   kvtl::presets::dynakv, kvtl::presets::quest) {
    using cache_type = in_memory_cache<Preset>;
    const drift data(model, max_tokens, 3);
    auto cache = open_cache<cache_type>(roomy<cache_type>(3));
    const auto at_first = frames_of(cache);
    reader<cache_type> one(cache, data, 5), two(cache, data, 5);
    one.prefill(400);
    two.decode(100);
    CHECK(frames_of(cache) == at_first); // nobody has asked for shares
    CHECK(cache.stats(one.id())->frame_bytes > 0);
    require_ok(cache.set_share(one.id(), 2));
    const auto now = frames_of(cache);
    CHECK(sum(now) + now.size() > sum(at_first)); // slots of groups are rounded
    CHECK(sum(now) <= sum(at_first));
    CHECK(now[2] == 0);
    CHECK(std::fabs(now[0] - 2.0 * now[1]) <= 4.0);
    CHECK(std::fabs(static_cast<double>(cache.stats(one.id())->frame_bytes) /
                        static_cast<double>(cache.stats(two.id())->frame_bytes) -
                    2) < 0.1);
    one.decode(20), two.decode(20);
    require_ok(cache.set_share(two.id(), 2));
    CHECK(std::fabs(static_cast<double>(frames_of(cache)[0]) - frames_of(cache)[1]) <= 1.0);
    one.decode(20), two.decode(20);
    reader<cache_type> three(cache, data, 5);
    CHECK(frames_of(cache)[2] > 0);
    three.prefill(300, 128);
    three.decode(20), one.decode(20), two.decode(20);
    two.end();
    CHECK(frames_of(cache)[1] == 0);
    CHECK(sum(frames_of(cache)) + 3 > sum(at_first));
    one.decode(20), three.decode(20);
    one.check_tokens(), three.check_tokens();
    CHECK(std::max({one.error(), two.error(), three.error()}) < exact);
}

TEST_CASE("slots that do not divide a page are never more than memory has") {
    using cache_type = in_memory_cache<kvtl::presets::quest>;
    auto c = roomy<cache_type>(3);
    c.shape.head_dim = 96;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(c.shape, max_tokens, 3);
    auto cache = open_cache<cache_type>(c);
    const auto at_first = frames_of(cache);
    REQUIRE(4096 % kvtl::shard_access::of(cache, 0).store().pools()[0].frame_bytes() != 0);
    std::vector<reader<cache_type>> readers;
    for (const std::size_t tokens : {400U, 300U, 200U}) {
        readers.emplace_back(cache, data, 5);
        readers.back().prefill(tokens);
        readers.back().decode(5);
    }
    for (int i = 0; i < 60; ++i) {
        const auto step = static_cast<float>(i);
        require_ok(cache.set_share(readers[0].id(), 1 + 0.02F * step));
        require_ok(cache.set_share(readers[1].id(), 1 + 0.011F * step));
        REQUIRE(sum(frames_of(cache)) <= sum(at_first));
        REQUIRE(sum(frames_of(cache)) + 3 > sum(at_first));
    }
    for (auto& r : readers) {
        r.decode(20);
        r.check_tokens();
        CHECK(r.error() < exact);
    }
}

TEST_CASE("sequences that come, go, fork, are saved and weighed at random have the frames that a model gives "
          "them") {
    using cache_type = in_memory_cache<kvtl::presets::dynakv>;
    const scratch_folder folder;
    constexpr std::uint32_t sequences = 4;
    for (const bool by_sequence : {false, true}) {
        auto c = roomy<cache_type>(sequences, std::size_t{3} << 20);
        c.shards = 2;
        c.shard_by = by_sequence ? kvtl::division::sequences : kvtl::division::heads;
        c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{3} << 20);
        const drift data(model, max_tokens, 8);
        auto cache = open_cache<cache_type>(c);
        frame_counts has = counts_of(cache);
        const double at_open = has.each;
        const kvtl::memory_range may = cache.memory();
        std::map<std::uint32_t, reader<cache_type>> open;
        std::vector<double> weight(sequences, 0.0);
        oracle::generator rng(3 + (by_sequence ? 1 : 0));
        double worst = 0;
        int refused = 0, taken = 0, forks = 0, loads = 0, resized = 0;
        const auto check_frames = [&] {
            for (unsigned shard = 0; shard < c.shards; ++shard) {
                const auto now = frames_of(cache, shard);
                std::vector<double> own(now.size());
                for (std::size_t i = 0; i < now.size(); ++i) own[i] = weight[by_sequence ? i * 2 + shard : i];
                const auto part = parts_by_level(has.each * static_cast<double>(now.size()), has.least, own);
                double total = 0;
                for (std::size_t i = 0; i < now.size(); ++i) {
                    CAPTURE(i);
                    REQUIRE(std::fabs(now[i] - part[i]) <= 1.01);
                    total += part[i];
                }
                if (total > 0)
                    REQUIRE(sum(now) == static_cast<std::uint32_t>(
                                            std::lround(has.each * static_cast<double>(now.size()))));
            }
        };
        const auto add = [&](reader<cache_type> r) {
            const std::uint32_t slot = r.id().slot;
            weight[slot] = 1;
            open.emplace(slot, std::move(r));
        };
        add(reader<cache_type>(cache, data, 17));
        open.at(0).prefill(200);
        require_ok(cache.set_share(open.at(0).id(), 1));
        check_frames();
        for (int step = 0; step < 200; ++step) {
            CAPTURE(step);
            if (open.empty()) add(reader<cache_type>(cache, data, 17));
            auto it = open.begin();
            std::advance(it, static_cast<std::ptrdiff_t>(rng.below(open.size())));
            auto& [slot, some] = *it;
            const bool room = some.tokens() + 60 < max_tokens;
            switch (rng.below(8)) {
            case 0: {
                const auto w = static_cast<float>(0.02 * std::exp2(static_cast<double>(rng.below(9))));
                double all = 0, pools = 0;
                for (std::uint32_t i = by_sequence ? slot % 2 : 0; i < sequences; i += by_sequence ? 2 : 1)
                    all += i == slot ? static_cast<double>(w) : weight[i], pools += 1;
                const bool valid = has.each * pools * static_cast<double>(w) / all >= has.least;
                const kvtl::status s = cache.set_share(some.id(), w);
                REQUIRE(s.ok() == valid);
                (valid ? taken : refused) += 1;
                if (valid) weight[slot] = static_cast<double>(w);
                break;
            }
            case 1:
                if (open.size() < sequences) add(reader<cache_type>(cache, data, 17));
                break;
            case 2:
                if (open.size() > 1 && rng.below(2) == 0) {
                    some.end();
                    worst = std::max(worst, some.tokens() > 17 ? some.error() : 0.0);
                    weight[slot] = 0;
                    open.erase(it);
                }
                break;
            case 3:
                if (const auto branch = cache.fork(some.id()); branch.ok()) {
                    reader<cache_type> copy = some;
                    copy.go_on_in(*branch);
                    add(std::move(copy));
                    ++forks;
                } else
                    CHECK(branch.error().code == kvtl::errc::out_of_range);
                break;
            case 4: {
                const std::string path = folder.file("s.kvs");
                REQUIRE(cache.save(some.id(), path).ok());
                reader<cache_type> copy = some;
                some.end();
                weight[slot] = 0;
                open.erase(it);
                check_frames();
                const auto loaded = cache.load(path);
                REQUIRE(loaded.ok());
                copy.go_on_in(loaded->seq);
                add(std::move(copy));
                ++loads;
                break;
            }
            case 5:
                require_ok(cache.prefetch(some.id()));
                break;
            case 6:
                if (rng.below(2) == 0) {
                    require_ok(cache.resize(may.least + rng.below(may.now - may.least + 1)));
                    const double gone = static_cast<double>(may.now - cache.memory().now) /
                                        static_cast<double>(c.shards * frames_of(cache).size() * 4096);
                    has.each = at_open - gone;
                    ++resized;
                } else if (room)
                    some.prefill(40, 16);
                break;
            default:
                if (room) some.decode(15);
            }
            check_frames();
            CHECK(cache.stats().resident_bytes_peak <= cache.memory().now);
        }
        for (auto& [slot, r] : open) {
            if (r.tokens() + 20 < max_tokens) r.decode(18);
            r.check_tokens();
            worst = std::max(worst, r.error());
        }
        CHECK(worst < exact);
        CHECK(std::min({refused, taken, forks, loads, resized}) > 1);
    }
}

TEST_CASE_TEMPLATE("what a sequence had chosen comes back, no bit changes, and frames bound it", Preset,
                   kvtl::presets::quest, kvtl::presets::dynakv) {
    using cache_type = in_memory_cache<Preset>;
    const drift data(model, max_tokens, 12);
    const auto c = roomy<cache_type>(2, std::size_t{2} << 20, 320);
    auto cache = open_cache<cache_type>(c), other = open_cache<cache_type>(c);
    reader<cache_type> idle(cache, data, 0), busy(cache, data, 0), same(other, data, 0);
    idle.prefill(700), same.prefill(700), busy.prefill(300);
    idle.decode(10), same.decode(10);
    require_ok(cache.set_share(idle.id(), 1));
    require_ok(cache.set_share(busy.id(), 1e6F)); // all but the least
    busy.decode(10);
    require_ok(cache.set_share(busy.id(), 1));
    const auto& pool = kvtl::shard_access::of(cache, 0).store().pools()[idle.id().slot];
    const auto in_use = pool.in_use();
    const auto before = *cache.stats(idle.id());
    require_ok(cache.prefetch(idle.id()));
    const auto after = *cache.stats(idle.id());
    CHECK(after.read_bytes > before.read_bytes);
    CHECK(after.units == before.units);
    CHECK(pool.in_use() > in_use);
    CHECK(pool.in_use() <= pool.there() + pool.borrowed());
    require_ok(cache.prefetch(idle.id())); // all of it is there
    CHECK(cache.stats(idle.id())->reads == after.reads);
    idle.decode(1), same.decode(1);
    const auto hits = *cache.stats(idle.id());
    const double rate = static_cast<double>(hits.resident_chosen_bytes - after.resident_chosen_bytes) /
                        static_cast<double>(hits.chosen_bytes - after.chosen_bytes);
    CHECK(rate > 0.5);
    idle.decode(30), same.decode(30);
    if (std::is_same_v<Preset, kvtl::presets::quest>) CHECK(same_bits(idle.outputs(), same.outputs()));
    idle.check_tokens();
}

TEST_CASE("what a query had read ahead lands before the rest comes back") {
    using cache_type = in_memory_cache<kvtl::presets::quest>;
    auto c = roomy<cache_type>(2, std::size_t{2} << 20, 400);
    c.shape.head_dim = 48; // pages in which groups begin and end
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{2} << 20);
    const drift data(c.shape, max_tokens, 3);
    auto cache = open_cache<cache_type>(c), other = open_cache<cache_type>(c);
    reader<cache_type> idle(cache, data, 0), same(other, data, 0);
    idle.prefill(700), same.prefill(700);
    idle.decode(5), same.decode(5);
    bool ahead = false;
    for (int i = 0; i < 10; ++i) {
        const auto busy = cache.begin();
        REQUIRE(busy.ok());
        require_ok(cache.set_share(*busy, 1e6F)); // all but the least
        require_ok(cache.end(*busy));
        const auto before = cache.stats().read_bytes;
        for (std::size_t l = 0; l < model.layers; ++l)
            require_ok(cache.prefetch(idle.id(), l, idle.input(l, idle.tokens(), 1).q));
        ahead = ahead || cache.stats().read_bytes > before;
        require_ok(cache.prefetch(idle.id()));
        idle.decode(1), same.decode(1);
        REQUIRE(same_bits(idle.outputs(), same.outputs()));
    }
    CHECK(ahead);
    idle.check_tokens();
}

TEST_CASE("what cannot be says why and what may be, and nothing has happened") {
    using cache_type = kvtl::kv_manager<f32_on<kvtl::presets::dynakv, kvtl::faulty<kvtl::in_memory>>>;
    auto c = roomy<cache_type>(2);
    c.io.faults = std::make_shared<kvtl::io_faults>();
    c.window_tokens = 8;
    c.shards = 2;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(model, max_tokens, 5);
    auto cache = open_cache<cache_type>(c);
    const auto at_first = frames_of(cache);
    reader<cache_type> one(cache, data, 3), two(cache, data, 3);
    one.prefill(400);
    one.decode(20), two.decode(50);
    const auto says = [&](const kvtl::status& s, kvtl::errc code, const std::string& what) {
        CHECK(s.code() == code);
        CHECK_MESSAGE(std::string(s.what()).find(what) != std::string::npos, std::string(s.what()));
        CHECK(frames_of(cache) == at_first);
    };
    for (const float w : {0.0F, -1.0F, NAN, INFINITY})
        says(cache.set_share(one.id(), w), kvtl::errc::invalid_argument, "valid: a positive number");
    says(cache.set_share({7, 1}, 1), kvtl::errc::not_open, "is not open");
    const kvtl::status small = cache.set_share(one.id(), 1e-3F);
    says(small, kvtl::errc::bound_too_small, "set_share: weight is 0.001, of 1.001 with the weights");
    REQUIRE_FALSE(kvtl::shard_access::of(cache, 1).busy.test_and_set());
    says(cache.set_share(one.id(), 1), kvtl::errc::busy, "shard 1");
    says(cache.prefetch(one.id()), kvtl::errc::busy, "shard 1");
    kvtl::shard_access::of(cache, 1).busy.clear();
    // The least valid weight is as good as it says.
    const std::string text = small.what();
    const auto least = std::stof(text.substr(text.find("from ") + 5));
    CHECK_FALSE(cache.set_share(one.id(), least - 0.002F).ok());
    const double fewest = counts_of(cache).least; // all pools still have as many
    require_ok(cache.set_share(one.id(), least));
    CHECK(std::fabs(frames_of(cache)[0] - fewest) <= 2);
    require_ok(cache.set_share(one.id(), 1));

    // A failed read leaves nothing behind but its units.
    auto& faults = *c.io.faults;
    faults.fail_read.count = kvtl::io_faults::never;
    faults.fail_read.first = faults.reads.load();
    require_ok(cache.set_share(two.id(), 1e6F));
    require_ok(cache.set_share(two.id(), 1));
    CHECK(cache.prefetch(one.id()).code() == kvtl::errc::io_error);
    faults.fail_read.first = kvtl::io_faults::never;
    require_ok(cache.prefetch(one.id()));
    one.decode(20), two.decode(20);

    // A failed write is waited for, and end() does not wait.
    faults.fail_write.count = kvtl::io_faults::never;
    faults.fail_write.first = faults.writes.load();
    std::size_t steps = 0;
    kvtl::status refused;
    for (; refused.ok() && steps < 200; ++steps)
        for (std::size_t l = 0; l < model.layers && refused.ok(); ++l) {
            std::vector<float> out(data.query_floats());
            refused = cache.attend(one.id(), l, one.input(l, one.tokens() + steps, 1), out);
        }
    REQUIRE(refused.code() == kvtl::errc::writes_pending);
    const auto now = frames_of(cache);
    CHECK(cache.set_share(two.id(), 2).code() == kvtl::errc::writes_pending);
    CHECK(frames_of(cache) == now);
    two.end();
    CHECK(frames_of(cache) == now);
    CHECK(cache.begin().error().code == kvtl::errc::writes_pending);
    faults.fail_write.first = kvtl::io_faults::never;
    require_ok(cache.retry_writes(one.id()));
    reader<cache_type> three(cache, data, 3);
    three.decode(40);
    require_ok(cache.rewind_to(one.id(), one.tokens() + steps - 1));
    one.advance(steps - 1);
    one.decode(40);
    CHECK(std::max({one.error(), two.error(), three.error()}) < exact);
}

template <class Preset> void refuses(const char* why, bool share) {
    using cache_type = in_memory_cache<Preset>;
    auto c = roomy<cache_type>(2);
    c.share = share;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    auto cache = open_cache<cache_type>(c);
    const drift data(model, max_tokens, 6);
    reader<cache_type> one(cache, data, 3);
    one.prefill(100);
    one.decode(3);
    const kvtl::status s = cache.set_share(one.id(), 1);
    CHECK(s.code() == kvtl::errc::unsupported);
    CHECK_MESSAGE(std::string(s.what()).find(why) != std::string::npos, std::string(s.what()));
    require_ok(cache.prefetch(one.id())); // which is no more than a hint
    one.decode(3);
    CHECK(one.error() < exact);
}
TEST_CASE("caches without frames of each sequence have no shares, and may be asked to prefetch") {
    refuses<kvtl::presets::full>("nothing of this cache lies on storage", false);
    refuses<kvtl::presets::dynakv_virtualised>("in turn", false);
    refuses<kvtl::presets::dynakv>("share = true", true);
}

} // namespace manager_shares_test
