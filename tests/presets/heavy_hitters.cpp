// Presets that watch where attention goes, step by step against a re-implementation in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/streaming.hpp>

#include "support/eviction.hpp"

#include <map>

namespace heavy_hitters_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};

template <class Cache> typename Cache::config sized(std::size_t keep, std::uint32_t window) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 600;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    c.window_tokens = window;
    return c;
}

/// A lane as the definitions see it: held tokens and a state for each.
struct lane_model {
    struct state {
        double score = 0;
        std::uint32_t last = 0, interval = 0;
    };
    std::map<std::uint32_t, state> held;

    [[nodiscard]] tokens_t tokens() const {
        tokens_t t;
        for (const auto& [token, s] : held) t.push_back(token);
        return t;
    }
    /// Drops the least by `worth` until `limit` are left, the later one of equals; the last `window` are
    /// safe.
    template <class Worth>
    void evict(std::size_t limit, std::uint32_t now, std::uint32_t window, Worth worth) {
        while (held.size() > limit) {
            auto least = held.end();
            for (auto i = held.begin(); i != held.end(); ++i)
                if (i->first + window <= now &&
                    (least == held.end() || worth(i->second) <= worth(least->second)))
                    least = i;
            held.erase(least);
        }
    }
};

/// Mean over the query group of the attention that token t pays to `tokens`.
scores_t mass(const naive& truth, std::size_t layer, std::size_t head, std::size_t t,
              const tokens_t& tokens) {
    return truth.group_mean(head, [&](std::size_t hq) { return truth.attention(layer, hq, t, tokens); });
}

} // namespace

TEST_CASE("h2o: accumulated in prompt and decode, the least leaves at every query of both") {
    const drift data(small, 600, 11);
    const naive truth(data, 0, 20);
    using cache_t = precise<kvtl::presets::h2o>;
    for (const std::size_t chunk : {120U, 50U, 7U}) {
        auto config = sized<cache_t>(40, kvtl::automatic);
        config.prefill_tokens = chunk == 120 ? 120 : 40 + chunk; // a chunk and what was kept, not the prompt
        auto cache = open_cache<cache_t>(config);
        const auto seq = *cache.begin();
        std::map<std::pair<std::size_t, std::size_t>, lane_model> model;
        const auto take = [&](std::size_t l, std::size_t h, std::uint32_t t) {
            lane_model& lane = model[{l, h}];
            lane.held[t] = {};
            const tokens_t tokens = lane.tokens();
            const scores_t p = mass(truth, l, h, t, tokens);
            for (std::size_t i = 0; i < p.size(); ++i) lane.held[tokens[i]].score += p[i];
            lane.evict(40, t, 20, [](const auto& s) { return s.score; });
            return tokens;
        };
        oracle::largest_error error;
        for (std::uint32_t first = 0; first < 120;) {
            const auto n = static_cast<std::uint32_t>(std::min<std::size_t>(chunk, 120 - first));
            for (std::size_t l = 0; l < 2; ++l) {
                auto in = data.input(l, first, n);
                in.last_chunk = first + n == 120;
                std::vector<float> out(n * data.query_floats());
                require_ok(cache.prefill(seq, l, in, out));
                for (std::size_t h = 0; h < 2; ++h) {
                    tokens_t seen = model[{l, h}].tokens(); // what earlier chunks left, then the chunk itself
                    for (std::uint32_t t = first; t < first + n; ++t) {
                        seen.push_back(t);
                        for (std::size_t hq = 2 * h; hq < 2 * h + 2; ++hq) {
                            const scores_t expected = truth.output(l, hq, t, seen);
                            for (std::size_t d = 0; d < 32; ++d)
                                error.see(static_cast<double>(out[((t - first) * 4 + hq) * 32 + d]) -
                                          expected[d]);
                        }
                        static_cast<void>(take(l, h, t));
                    }
                    CHECK(kept(cache, seq, l, h) == model[{l, h}].tokens());
                }
            }
            first += n;
        }
        CHECK(error.value() < exact);
        CHECK(kvtl::shard_access::of(cache, 0).kept().pool().used_peak() <= 4 * kvtl::blocks_for(41));
        for (std::uint32_t t = 120; t < 200; ++t) {
            CHECK(decode_and_compare(cache, seq, data, t) < exact);
            for (auto& [at, lane] : model) {
                static_cast<void>(take(at.first, at.second, t));
                CHECK(kept(cache, seq, at.first, at.second) == lane.tokens());
            }
        }
        CHECK(cache.stats().resident_bytes_peak <= config.memory_bytes);
    }
}

TEST_CASE("h2o: a prompt is its decode, whatever is asked of its output") {
    const drift data(small, 600, 17);
    using cache_t = precise<kvtl::presets::h2o>;
    auto a = open_cache<cache_t>(sized<cache_t>(24, kvtl::automatic)),
         b = open_cache<cache_t>(sized<cache_t>(24, kvtl::automatic));
    const auto one = *a.begin(), other = *b.begin();
    for (std::size_t l = 0; l < 2; ++l) require_ok(a.prefill(one, l, data.input(l, 0, 90), {}));
    std::vector<float> out(data.query_floats());
    for (std::size_t t = 0; t < 90; ++t)
        for (std::size_t l = 0; l < 2; ++l) require_ok(b.attend(other, l, data.input(l, t), out));
    for (std::size_t i = 0; i < 4; ++i) CHECK(kept(a, one, i / 2, i % 2) == kept(b, other, i / 2, i % 2));
    CHECK(a.stats().chosen_bytes == 0); // of decode alone
    CHECK(b.stats().chosen_bytes > 0);
}

TEST_CASE("h2o_prefill_once keeps what the prompt attended to, and all that decode adds") {
    const drift data(small, 600, 12);
    const naive truth(data, 0, 8);
    using cache_t = precise<kvtl::presets::h2o_prefill_once>;
    auto cache = open_cache<cache_t>(sized<cache_t>(30, 8));
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 100, 33);
    scores_t sum(100, 0.0);
    for (std::size_t t = 0; t < 100; ++t) {
        const scores_t p = mass(truth, 1, 0, t, naive::first(t + 1));
        for (std::size_t i = 0; i <= t; ++i) sum[i] += p[i];
    }
    CHECK(kept(cache, seq, 1, 0) == truth.best(sum, 22));
    for (std::uint32_t t = 100; t < 110; ++t) CHECK(decode_and_compare(cache, seq, data, t) < exact);
    CHECK(kept(cache, seq, 1, 0).size() == 40);
}

TEST_CASE("tova: the latest query decides, for all heads of a layer") {
    const drift data(small, 600, 13);
    const naive truth(data, 0, 1);
    using cache_t = precise<kvtl::presets::tova>;
    auto config = sized<cache_t>(30, 1);
    config.shards = 2; // a sequence belongs to one of them
    auto cache = open_cache<cache_t>(config);
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 100, 40);
    const auto over_all = [&](std::size_t layer, std::size_t t, const tokens_t& tokens) {
        scores_t sum = mass(truth, layer, 0, t, tokens);
        const scores_t other = mass(truth, layer, 1, t, tokens);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
        return sum;
    };
    std::vector<lane_model> model(2);
    for (std::size_t l = 0; l < 2; ++l)
        for (const std::uint32_t t : truth.best(over_all(l, 99, naive::first(100)), 29))
            model[l].held[t] = {};
    for (std::uint32_t t = 100; t < 160; ++t) {
        for (std::size_t l = 0; l < 2; ++l)
            for (std::size_t h = 0; h < 2; ++h) CHECK(kept(cache, seq, l, h) == model[l].tokens());
        CHECK(decode_and_compare(cache, seq, data, t) < exact);
        for (std::size_t l = 0; l < 2; ++l) {
            model[l].held[t] = {};
            const tokens_t tokens = model[l].tokens();
            const scores_t p = over_all(l, t, tokens);
            for (std::size_t i = 0; i < p.size(); ++i) model[l].held[tokens[i]].score = p[i];
            model[l].evict(30, t, 1, [](const auto& s) { return s.score; });
        }
    }
}

TEST_CASE("lazy_eviction: recurrence intervals, evicted every period, never more than the limit") {
    const drift data(small, 600, 14);
    const naive truth(data, 0, 8);
    using cache_t = precise<kvtl::presets::lazy_eviction>;
    auto config = sized<cache_t>(40, 8);
    config.retention.activity = 0.02F;
    config.retention.period = 10;
    auto cache = open_cache<cache_t>(config);
    const auto seq = *cache.begin();
    std::map<std::pair<std::size_t, std::size_t>, lane_model> model;
    for (std::uint32_t t = 0; t < 200; ++t) {
        CHECK(decode_and_compare(cache, seq, data, t) < exact);
        for (std::size_t l = 0; l < 2; ++l)
            for (std::size_t h = 0; h < 2; ++h) {
                lane_model& lane = model[{l, h}];
                lane.held[t] = {0, t, 0};
                const tokens_t tokens = lane.tokens();
                const scores_t p = mass(truth, l, h, t, tokens);
                for (std::size_t i = 0; i < p.size(); ++i) {
                    auto& s = lane.held[tokens[i]];
                    if (p[i] < 0.02) continue;
                    s.interval = std::max(s.interval, t - s.last);
                    s.last = t;
                }
                if (lane.held.size() > 40)
                    lane.evict(32, t, 8, [&](const auto& s) {
                        return -static_cast<double>(t - s.last) / std::max(s.interval, 1U);
                    });
                CHECK(kept(cache, seq, l, h) == lane.tokens());
            }
    }
}

TEST_CASE("tokens that recur survive under lazy_eviction and are lost under h2o") {
    // One token gets a tenth of the attention every 12 steps; each step attends its like and itself.
    constexpr kvtl::shape one{1, 1, 1, 16};
    constexpr std::uint32_t steps = 240, special = 5, every = 12;
    const auto held_to_the_end = [&]<class Cache>(typename Cache::config c, std::uint32_t prompt) {
        c.shape = one;
        c.max_tokens = steps;
        c.memory_bytes = std::size_t{4} << 20;
        c.keep_tokens = 16;
        c.window_tokens = 4;
        auto cache = open_cache<Cache>(c);
        const auto seq = *cache.begin();
        std::vector<float> q(std::size_t{steps} * 16, 0.0F), k = q, v(q.size(), 1.0F), out(16);
        for (std::uint32_t t = 0; t < steps; ++t) {
            k[t * 16 + (t == special ? 0 : 1 + t % 14)] = 8.0F; // neighbours in direction are 14 tokens apart
            q[t * 16 + 1 + t % 14] = 8.0F;
            if (t > special && t % every == 0) q[t * 16] = 6.9F; // a tenth of the attention
        }
        for (std::uint32_t t = 0; t < steps;) {
            const std::uint32_t n = t < prompt ? prompt : 1;
            kvtl::layer_input in;
            in.q = std::span(q).subspan(t * 16, n * 16);
            in.k = std::span(k).subspan(t * 16, n * 16);
            in.v = std::span(v).subspan(t * 16, n * 16);
            require_ok(t < prompt ? cache.prefill(seq, 0, in, {}) : cache.attend(seq, 0, in, out));
            t += n;
        }
        const tokens_t tokens = kept(cache, seq, 0, 0);
        return std::find(tokens.begin(), tokens.end(), special) != tokens.end();
    };
    using lazy = precise<kvtl::presets::lazy_eviction>;
    using greedy = precise<kvtl::presets::h2o>;
    lazy::config c;
    c.retention.activity = 0.05F;
    c.retention.period = 4;
    CHECK(held_to_the_end.template operator()<lazy>(c, 0));
    CHECK_FALSE(held_to_the_end.template operator()<greedy>({}, 0));
    for (const std::uint32_t prompt : {16U, 100U, steps}) { // seen to recur in the prompt, lost within it
        CHECK(held_to_the_end.template operator()<lazy>(c, prompt));
        CHECK_FALSE(held_to_the_end.template operator()<greedy>({}, prompt));
    }
}

TEST_CASE("endless generation: memory and the work of a step stay bounded") {
    constexpr kvtl::shape tiny{1, 2, 1, 16};
    const drift data(tiny, 512, 16);
    const auto run = [&]<class Cache>(typename Cache::config c, std::size_t most) {
        c.shape = tiny;
        c.max_tokens = 200'000;
        c.prefill_tokens = 64;
        c.keep_tokens = 48;
        c.memory_bytes = std::size_t{1} << 19;
        auto cache = open_cache<Cache>(c);
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, 64);
        std::vector<float> out(data.query_floats());
        kvtl::status trouble;
        std::size_t rows = 0;
        for (std::size_t t = 64; t < 100'064; ++t) {
            if (auto s = cache.attend(seq, 0, data.input(0, t % 512), out); !s) trouble = s;
            rows = std::max(rows, cache.stats().kept_entries);
        }
        CHECK_MESSAGE(trouble.ok(), std::string(trouble.what()));
        CHECK(rows <= most);
        CHECK(cache.tokens(seq, 0) == 100'064);
        CHECK(cache.stats().resident_bytes_peak <= c.memory_bytes);
        CHECK(std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }));
    };
    run.template operator()<precise<kvtl::presets::streaming_llm>>({}, 48);
    run.template operator()<precise<kvtl::presets::h2o>>({}, 48);
    run.template operator()<precise<kvtl::presets::lazy_eviction>>({}, 48);
}

} // namespace heavy_hitters_test
