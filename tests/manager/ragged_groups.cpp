// Groups whose records differ in size are cached in slots of their own size. Whatever is read ahead, evicted, fails or
// comes late: the bits are those of a cache with room for everything, every frame is free or belongs to one resident
// group, and a call that failed works when it is made again.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/policies/replace_sieve.hpp>
#include <kvtl/presets/low_rank.hpp>

#include "support/cache_fixture.hpp"
#include "support/calibrated.hpp"
#include "support/scratch_folder.hpp"

#include <initializer_list>

namespace manager_ragged_groups_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{3, 4, 2, 64};
constexpr std::size_t max_tokens = 420, prompt = 200, steps = 100;

struct by_fifo : kvtl::presets::kvswap_lr {
    using io = kvtl::faulty<kvtl::in_memory>;
};
/// Evicts here and there, so that what is free lies in pieces.
struct by_sieve : by_fifo {
    static constexpr std::uint32_t window_tokens = 8;
    using clusterer = kvtl::layer_groups<8>;
    using replacement = kvtl::sieve;
};
template <class Preset> using cache_of = kvtl::kv_manager<Preset, kvtl::engine_inputs_for<Preset>>;

const std::string& bases() {
    static const scratch_folder folder;
    static const std::string path = [] {
        const std::string file = folder.path() + "/bases.cal";
        write_calibration(file, small, 32, 5);
        return file;
    }();
    return path;
}

template <class Cache> typename Cache::config config_for(std::size_t attend_tokens) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = attend_tokens;
    c.memory_bytes = std::size_t{8} << 20;
    c.calibration = bases();
    c.compressor.share = 0.5F;
    return c;
}

/// Every frame of the slots is free or lies in the run of exactly one resident group, whose records fit into it.
template <class Cache> std::size_t check_slots(Cache& cache, std::uint32_t lanes) {
    auto& store = kvtl::shard_access::of(cache, 0).store();
    const auto& slots = store.pools()[0];
    std::size_t used = 0, resident = 0;
    std::vector<bool> taken(slots.size(), false);
    for (std::uint32_t id = 0; id < lanes; ++id) {
        const auto l = store.at(id);
        for (std::uint32_t u = 0; u < l.state().units; ++u) {
            const std::uint32_t head = l.residency(u).frames();
            if (head == kvtl::none) continue;
            ++resident;
            const std::uint32_t run = slots[head].run;
            CHECK(slots[head].lane == id);
            CHECK(slots[head].unit == u);
            CHECK(std::size_t{run} * slots.frame_bytes() >= store.bytes_of(l, u));
            CHECK(std::size_t{run} * slots.frame_bytes() <
                  store.bytes_of(l, u) + 512); // headers, a frame cut off
            for (std::uint32_t i = head; i < head + run; ++i) {
                CHECK_FALSE(taken[i]);
                taken[i] = true;
            }
            used += run;
        }
    }
    CHECK(slots.free() + used == slots.size());
    return resident;
}

/// A prompt and some steps. `before(reader, layer)` comes ahead of every call of a step.
template <class Cache, class Before>
std::vector<float> run(Cache& cache, const drift& data, Before&& before) {
    reader<Cache> one(cache, data, 0);
    one.prefill(prompt, 90);
    for (std::size_t i = 0; i < steps; ++i) one.step([&](std::size_t layer) { before(one, layer); });
    one.check_tokens();
    return one.outputs();
}
template <class Cache> std::vector<float> with_room(std::size_t attend_tokens, const drift& data) {
    auto cache = open_cache<Cache>(config_for<Cache>(attend_tokens));
    return run(cache, data, [](auto&, std::size_t) {});
}
} // namespace

TEST_CASE_TEMPLATE("reading ahead into the least memory changes no bit", P, by_fifo, by_sieve) {
    using cache_type = cache_of<P>;
    const drift data(small, max_tokens, 61);
    for (const std::size_t attend : {std::size_t{64}, max_tokens}) {
        CAPTURE(attend);
        const auto should = with_room<cache_type>(attend, data);
        for (const std::size_t more : std::initializer_list<std::size_t>{0, 3000, 9000}) {
            CAPTURE(more);
            auto c = config_for<cache_type>(attend);
            c.memory_bytes = least_memory<cache_type>(c) + more;
            c.io.faults = std::make_shared<kvtl::io_faults>();
            c.io.faults->hold_percent = 60;
            auto cache = open_cache<cache_type>(c);
            std::size_t resident = 0;
            const auto outputs = run(cache, data, [&](auto& one, std::size_t layer) {
                resident = std::max(resident, check_slots(cache, small.layers));
                for (std::size_t l = layer; l < small.layers;
                     ++l) // right for this layer, wrong for those behind it
                    require_ok(
                        cache.prefetch(one.id(), l, data.q(l, l == layer ? one.tokens() : one.tokens() / 2)));
            });
            CHECK(same_bits(outputs, should));
            CHECK(resident > 0);
        }
    }
}

TEST_CASE("nothing leaves for what a sequence reads back, though what is free lies in pieces") {
    using cache_type = cache_of<by_sieve>;
    const drift data(small, max_tokens, 63);
    auto c = config_for<cache_type>(160);
    c.memory_bytes = least_memory<cache_type>(c) + 3000;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto cache = open_cache<cache_type>(c);
    auto& store = kvtl::shard_access::of(cache, 0).store();
    std::size_t came = 0, left = 0, pieces = 0;
    const auto resident = [&] {
        std::vector<bool> there;
        for (std::uint32_t id = 0; id < small.layers; ++id)
            for (std::uint32_t u = 0; u < store.at(id).state().units; ++u)
                there.push_back(store.at(id).residency(u).frames() != kvtl::none);
        return there;
    };
    static_cast<void>(run(cache, data, [&](auto& one, std::size_t layer) {
        if (layer > 0) return;
        const auto before = resident();
        require_ok(cache.prefetch(one.id()));
        const auto after = resident();
        for (std::size_t u = 0; u < before.size(); ++u)
            came += !before[u] && after[u] ? 1 : 0, left += before[u] && !after[u] ? 1 : 0;
        const auto& slots = store.pools()[0];
        for (std::uint32_t id = 0; id < small.layers; ++id)
            for (std::uint32_t u = 0; u < store.at(id).state().units; ++u)
                if (const auto l = store.at(id); l.residency(u).frames() == kvtl::none)
                    pieces += store.frames_of(l, u) <= slots.free() && !store.has_room(l, u, slots) ? 1 : 0;
    }));
    CHECK(came > 0);
    CHECK(pieces > 0);
    CHECK(left == 0);
}

TEST_CASE_TEMPLATE("a read that failed, or brought something else, is as if nobody had asked", P, by_fifo,
                   by_sieve) {
    using cache_type = cache_of<P>;
    const drift data(small, max_tokens, 62);
    const auto should = with_room<cache_type>(max_tokens, data);
    for (const std::uint64_t nth : std::initializer_list<std::uint64_t>{0, 2, 5}) {
        CAPTURE(nth);
        // A bit of what was read has changed: a codec never sees a record that is not what it wrote.
        const bool corrupt = nth == 2;
        auto c = config_for<cache_type>(max_tokens);
        c.memory_bytes = least_memory<cache_type>(c);
        c.io.faults = std::make_shared<kvtl::io_faults>();
        auto cache = open_cache<cache_type>(c);
        const auto seq = *cache.begin();
        auto& f = *c.io.faults;
        std::vector<float> outputs;
        std::size_t failures = 0;
        const auto call = [&](std::size_t layer, std::size_t token, std::size_t n, bool last) {
            std::vector<float> out(n * data.query_floats(), NAN);
            auto in = data.input(layer, token, n);
            in.last_chunk = last;
            const auto once = [&] {
                return n > 1 ? cache.prefill(seq, layer, in, out) : cache.attend(seq, layer, in, out);
            };
            if (n == 1 && layer + 1 < small.layers) // in vain where this fills the memory first
                require_ok(cache.prefetch(seq, layer + 1, data.q(layer + 1, token)));
            (corrupt ? f.corrupt_read : f.fail_read.first) = f.reads.load() + nth;
            const kvtl::status s = once();
            f.fail_read.first = kvtl::io_faults::never;
            f.corrupt_read = kvtl::io_faults::never;
            if (!s.ok()) {
                ++failures;
                CHECK_MESSAGE(s.code() == (corrupt ? kvtl::errc::corrupt : kvtl::errc::io_error),
                              std::string(s.what()));
                CHECK(cache.tokens(seq, layer) == token);
                check_slots(cache, small.layers);
                require_ok(once());
            }
            outputs.insert(outputs.end(), out.begin(), out.end());
        };
        for (const std::size_t token : {std::size_t{0}, std::size_t{90}, std::size_t{180}})
            for (std::size_t l = 0; l < small.layers; ++l)
                call(l, token, std::min<std::size_t>(90, prompt - token), token == 180);
        for (std::size_t i = 0; i < steps; ++i)
            for (std::size_t l = 0; l < small.layers; ++l) call(l, prompt + i, 1, true);
        check_slots(cache, small.layers);
        CHECK(failures > 50);
        CHECK(same_bits(outputs, should));
    }
}

} // namespace manager_ragged_groups_test
