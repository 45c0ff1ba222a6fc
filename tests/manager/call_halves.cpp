// A call without a shard happens in all shards or in none: whichever read or write of it fails, in whichever of two shards, the
// sequence is as it was, and the same call made again gives the bits of a run in which nothing ever failed.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <optional>

namespace manager_call_halves_test {

using namespace kvtl_test;

namespace {

template <class Preset> using failing = f32_on<Preset, kvtl::faulty<kvtl::in_memory>>;
using clusters = kvtl::kv_manager<failing<kvtl::presets::dynakv>>;
using groups = kvtl::kv_manager<failing<kvtl::presets::quest>>;

/// Two lanes in each shard of fixed groups. One of clusters: in the least memory nothing of it is resident between two calls, and
/// what is resident decides how clusters grow.
template <class Cache> constexpr kvtl::shape small{2, 4, std::is_same_v<Cache, groups> ? 4 : 2, 64};
constexpr std::size_t max_tokens = 320;

template <class Cache> typename Cache::config two_shards() {
    typename Cache::config c;
    c.shape = small<Cache>;
    c.max_tokens = max_tokens;
    c.attend_tokens = 96;
    c.window_tokens = 8;
    c.shards = 2;
    if constexpr (requires { c.clusterer.tokens_per_cluster; }) {
        c.clusterer.tokens_per_cluster = 8;
        c.clusterer.min_entries_to_cluster = 64;
        c.clusterer.pending_entries = 6;
    }
    if constexpr (requires { c.io.faults; }) c.io.faults = std::make_shared<kvtl::io_faults>();
    // Who is resident is not part of "as it was": clusters grow by it, so that all is cold in little memory.
    c.memory_bytes = least_memory<Cache>(c);
    return c;
}

enum class kind { chunk, last_chunk, turn, attend, draft, append, select };

/// What a call does not change if it fails. Hashes are of complete prompts only.
struct state {
    std::size_t tokens[2] = {}; ///< by shard
    std::optional<std::uint64_t> hash;
    std::vector<std::uint64_t> counters;
    friend bool operator==(const state&, const state&) = default;
};

template <class Cache> class run {
  public:
    run(const typename Cache::config& c, const drift& data, bool fails)
        : faults_(*c.io.faults), data_(data), fails_(fails), owner_(c.owner), cache_(open_cache<Cache>(c)),
          seq_(*cache_.begin()) {}

    /// In every layer; the tokens count if the call takes any.
    void operator()(kind what, std::size_t n) {
        for (std::size_t l = 0; l < data_.shape().layers; ++l) {
            // Reads in one layer, writes in the other, where a call waits for them: as many as it makes.
            const bool prompt = what == kind::chunk || what == kind::last_chunk;
            const bool writes = std::is_same_v<Cache, clusters> && prompt && store_of(l) == 1;
            auto& nth = writes ? faults_.fail_write.first : faults_.fail_read.first;
            const auto& so_far = writes ? faults_.writes : faults_.reads;
            for (std::uint64_t i = 0;; ++i) {
                REQUIRE(i < 200);
                const state before = fails_ ? now(l, what) : state{};
                const std::uint64_t reads = requests(1);
                if (fails_) nth = so_far.load() + i;
                const std::size_t shown = shown_.size();
                const kvtl::status s = call(what, l, n);
                nth = kvtl::io_faults::never;
                if (s.ok()) break;
                REQUIRE_MESSAGE(fails_, std::string(s.what()));
                CAPTURE(static_cast<int>(what));
                CHECK_MESSAGE(s.code() == kvtl::errc::io_error, std::string(s.what()));
                CHECK(shown_.size() == shown);
                ++failures;
                if (!completes(l)) ++in_shared;
                in_second_shard += requests(1) > reads ? 1U : 0U;
                CHECK(now(l, what) == before);
            }
            outputs.insert(outputs.end(), out_.begin(), out_.end());
            outputs.insert(outputs.end(), shown_.begin(), shown_.end());
            shown_.clear();
        }
        if (what != kind::select) tokens_ += n;
    }
    void steps(std::size_t n) {
        while (n-- > 0) (*this)(kind::attend, 1);
    }

    std::vector<float> outputs;
    std::size_t failures = 0, in_second_shard = 0;
    std::size_t in_shared = 0; ///< of the failures, in layers that leave the store as it is

  private:
    /// Two neighbours share a store, or none do.
    [[nodiscard]] std::size_t store_of(std::size_t l) const { return owner_.empty() ? l : l / 2; }
    [[nodiscard]] bool completes(std::size_t l) const { return owner_.empty() || l % 2 == 1; }
    kvtl::status call(kind what, std::size_t l, std::size_t n) {
        auto in = data_.input(l, tokens_, n);
        in.last_chunk = what != kind::chunk;
        out_.assign(n * data_.query_floats(), 0.0F);
        switch (what) {
        case kind::append:
            return cache_.append(seq_, l, in);
        case kind::select:
            return cache_.select(seq_, l, in.q, [&](std::size_t, auto keys, auto values) {
                for (std::size_t i = 0; i < keys.count; ++i) {
                    shown_.push_back(keys.row(i)[0]);
                    shown_.push_back(values.row(i)[0]);
                }
            });
        case kind::attend:
        case kind::draft:
            return cache_.attend(seq_, l, in, out_);
        default:
            return cache_.prefill(seq_, l, in, out_);
        }
    }
    std::uint64_t requests(unsigned shard) {
        const kvtl::statistics s = kvtl::shard_access::of(cache_, shard).retrieved().counted();
        return s.reads + s.writes;
    }
    state now(std::size_t l, kind what) {
        state s;
        for (unsigned i = 0; i < 2; ++i)
            s.tokens[i] =
                kvtl::shard_access::of(cache_, i).tokens(seq_.slot, static_cast<std::uint32_t>(store_of(l)));
        // What left the window for a draft does not return to it.
        if (what != kind::draft)
            if (auto hash = kvtl::shard_access::identity_hash(cache_, seq_)) s.hash = *hash;
        const kvtl::statistics t = cache_.stats();
        const kvtl::sequence_statistics own = *cache_.stats(seq_);
        s.counters = {
            t.steps,        t.useful_bytes,  t.chosen_bytes, t.resident_chosen_bytes, t.chosen_units,
            t.read_entries, t.splits,        t.choices,      t.selectable_entries,    t.decode_reads,
            own.steps,      own.chosen_bytes};
        return s;
    }

    kvtl::io_faults& faults_;
    const drift& data_;
    bool fails_;
    std::vector<std::uint32_t> owner_;
    Cache cache_;
    kvtl::sequence_id seq_;
    std::size_t tokens_ = 0;
    std::vector<float> out_, shown_;
};

} // namespace

TEST_CASE_TEMPLATE("whichever operation fails, in either of two shards, both are as they were", Cache,
                   clusters, groups) {
    const drift data(small<Cache>, max_tokens, 71);
    const auto c = two_shards<Cache>();
    const auto play = [&](bool fails) {
        run<Cache> r(c, data, fails);
        r(kind::chunk, 90);
        r(kind::last_chunk, 60);
        r.steps(20);
        for (int i = 0; i < 5; ++i) {
            r(kind::append, 1);
            if (std::is_same_v<Cache, clusters>)
                r(kind::select, 1); // heads of quest attend units of their own
        }
        r(kind::turn, 20);
        r.steps(20);
        return r;
    };
    const auto should = play(false), is = play(true);
    CHECK(same_bits(is.outputs, should.outputs));
    CHECK(is.failures > 50);
    CHECK(is.in_second_shard > 10);
    CHECK(is.in_second_shard + 10 < is.failures);
}

TEST_CASE_TEMPLATE("layers that share a store leave it as it was in both shards, whichever operation fails",
                   Cache, clusters, groups) {
    auto c = two_shards<Cache>();
    c.shape.layers = 4;
    c.owner = {0, 0, 2, 2};
    c.memory_bytes = least_memory<Cache>(c);
    drift data(c.shape, max_tokens, 76);
    data.share_layers(c.owner);
    const auto play = [&](bool fails) {
        run<Cache> r(c, data, fails);
        r(kind::chunk, 90);
        r(kind::last_chunk, 60);
        r.steps(20);
        r(kind::turn, 20); // of which two layers in four attend only
        r(kind::turn, 5);
        r.steps(20);
        return r;
    };
    const auto should = play(false), is = play(true);
    CHECK(same_bits(is.outputs, should.outputs));
    CHECK(is.in_shared > 20);
    CHECK(is.failures > is.in_shared);
    CHECK(is.in_second_shard > 10);
}

TEST_CASE("a draft that fails in either of two shards is taken back in both") {
    const drift data(small<clusters>, max_tokens, 72);
    const auto c = two_shards<clusters>();
    run<clusters> r(c, data, true);
    r(kind::last_chunk, 150);
    r.failures = r.in_second_shard = 0;
    for (std::size_t i = 0; i < 10; ++i) r(kind::draft, 2 + i % 3);
    CHECK(r.failures > 20);
    CHECK(r.in_second_shard > 5);
}

TEST_CASE("a call that one shard has had alone is not made in the others again") {
    const drift data(small<clusters>, max_tokens, 73);
    auto cache = open_cache<clusters>(two_shards<clusters>());
    reader<clusters> one(cache, data, 0);
    one.prefill(150);
    std::vector<float> out(data.query_floats());
    require_ok(cache.shard(1).attend(one.id(), 0, data.input(0, 150), out));
    const kvtl::status s = cache.attend(one.id(), 0, data.input(0, 150), out);
    CHECK(s.code() == kvtl::errc::invalid_argument);
    CHECK(std::string(s.what()).find("the first shard has 150 tokens of layer 0 and shard 1 has 151") !=
          std::string::npos);
    require_ok(cache.shard(0).attend(one.id(), 0, data.input(0, 150), out));
    require_ok(cache.attend(one.id(), 1, data.input(1, 150), out));
}

TEST_CASE("writes of fixed groups that fail in one shard: a first chunk may come again, a later one ends the "
          "sequence") {
    const drift data(small<groups>, max_tokens, 74);
    const auto c = two_shards<groups>();
    auto& f = *c.io.faults;
    std::size_t firsts = 0, later = 0, cut_short = 0;
    for (std::uint64_t nth = 0; nth < 12; ++nth) {
        auto cache = open_cache<groups>(c);
        const auto seq = *cache.begin();
        std::vector<float> out(150 * data.query_floats());
        const auto fails = [&](std::size_t from, std::size_t n) {
            f.fail_write.first = f.writes.load() + nth;
            f.fail_write.count = 1U << 30;
            auto in = data.input(0, from, n);
            kvtl::status s = cache.prefill(seq, 0, in, std::span(out).first(n * data.query_floats()));
            f.fail_write.first = kvtl::io_faults::never;
            static_cast<void>(cache.retry_writes(seq));
            return s;
        };
        const auto mended = [&](std::size_t layer) { // writes that fail are said to the next call
            kvtl::status done;
            for (int i = 0; i < 5; ++i) {
                done = cache.prefill(seq, layer, data.input(layer, 0, 150), out);
                if (done.code() != kvtl::errc::writes_pending) break;
                require_ok(cache.retry_writes(seq));
            }
            require_ok(done);
        };
        if (!fails(0, 150)) {
            ++firsts;
            for (unsigned i = 0; i < 2; ++i) CHECK(kvtl::shard_access::of(cache, i).tokens(seq.slot, 0) == 0);
            mended(0);
        }
        mended(1);
        const kvtl::status turn = fails(150, 150);
        if (turn.ok()) continue;
        ++later;
        CHECK_MESSAGE(turn.code() == kvtl::errc::writes_pending, std::string(turn.what()));
        if (cache.tokens(seq, 0) == 150) continue; // it failed before a token was taken
        const auto one = std::span(out).first(data.query_floats());
        for (unsigned i = 0; i < 2; ++i) {
            const kvtl::status s = cache.shard(i).attend(seq, 0, data.input(0, 300), one);
            CHECK(std::string(s.what()).find("was cut short by a device error; end it") != std::string::npos);
        }
        require_ok(cache.end(seq));
        ++cut_short;
    }
    CHECK(firsts > 1);
    CHECK(later > 1);
    CHECK(cut_short > 1);
}

TEST_CASE("a shard that has no room for a chunk keeps the other one from taking its part") {
    using evicting =
        kvtl::kv_manager<kvtl::presets::snapkv_group>; // reads and writes nothing: only room can be short
    const drift data(small<evicting>, max_tokens, 75);
    auto c = two_shards<evicting>();
    c.max_sequences = 2;
    c.keep_tokens = 48;
    c.memory_bytes = least_memory<evicting>(c) + (std::size_t{64} << 10); // for chunks that wait
    auto cache = open_cache<evicting>(c), fresh = open_cache<evicting>(c);
    const auto first = *cache.begin(), other = *cache.begin(), alone = *fresh.begin();
    constexpr std::size_t some = 16;
    std::vector<float> out(some * data.query_floats()), expected(out.size());
    const auto chunk = [&](std::size_t layer, std::size_t from, bool last) {
        auto in = data.input(layer, from, some);
        in.last_chunk = last;
        return in;
    };
    // Rows of the second shard go to chunks of another sequence, so that it is the one that has no room.
    for (std::size_t from = 0; cache.shard(1).prefill(other, 0, chunk(0, from, false), {}).ok();)
        from += some;
    std::size_t taken = 0;
    kvtl::status full;
    while ((full = cache.prefill(first, 0, chunk(0, taken, false), out)).ok()) taken += some;
    REQUIRE(full.code() == kvtl::errc::bound_too_small);
    REQUIRE(taken > 0);
    for (unsigned i = 0; i < 2; ++i) CHECK(kvtl::shard_access::of(cache, i).tokens(first.slot, 0) == taken);
    require_ok(cache.end(other));
    for (std::size_t l = 0; l < small<evicting>.layers; ++l)
        for (std::size_t from = 0; from <= taken; from += some) {
            if (l > 0 || from == taken)
                require_ok(cache.prefill(first, l, chunk(l, from, from == taken), out));
            require_ok(fresh.prefill(alone, l, chunk(l, from, from == taken), expected));
            if (l > 0 || from == taken) CHECK(same_bits(out, expected));
        }
    out.resize(data.query_floats()), expected.resize(out.size());
    for (std::size_t t = taken + some; t < taken + 2 * some; ++t)
        for (std::size_t l = 0; l < small<evicting>.layers; ++l) {
            require_ok(cache.attend(first, l, data.input(l, t), out));
            require_ok(fresh.attend(alone, l, data.input(l, t), expected));
            CHECK(same_bits(out, expected));
        }
}

} // namespace manager_call_halves_test
