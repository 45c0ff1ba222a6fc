// Presets to which the engine says what will matter: what they keep is what it said, and in nothing else do
// they differ from the presets that they are compared with. SPDX-License-Identifier: MIT
#include <kvtl/calibration/writer.hpp>
#include <kvtl/presets/dynamickv.hpp>
#include <kvtl/presets/engine_decides.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "support/eviction.hpp"
#include "support/scratch_folder.hpp"
#include "support/size_knob.hpp"

#include <functional>

namespace engine_decides_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};
constexpr std::size_t prompt = 140;
template <class Preset, kvtl::engine_input More>
using cache_with =
    kvtl::kv_manager<in_f32<Preset>, kvtl::engine_inputs<kvtl::engine_input::q, kvtl::engine_input::k,
                                                         kvtl::engine_input::v, More>>;

template <class Cache> typename Cache::config sized(std::size_t keep, kvtl::engine_input more) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 300;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    c.engine_inputs = kvtl::engine_input::q | kvtl::engine_input::k | kvtl::engine_input::v | more;
    return c;
}
} // namespace

TEST_CASE("lookahead_probe: the last queries as a probe keep what snapkv_group keeps of entries that all of "
          "them see") {
    const drift data(small, 300, 71);
    using probed = cache_with<kvtl::presets::lookahead_probe, kvtl::engine_input::probe>;
    using looking_back = precise<kvtl::presets::snapkv_group>;
    // A window of one: its only query sees the whole prompt, as a probe does.
    auto a = sized<probed>(40, kvtl::engine_input::probe);
    auto b = sized<looking_back>(40, kvtl::engine_input::nothing);
    CHECK(a.window_tokens == b.window_tokens);
    a.window_tokens = b.window_tokens = 1;
    auto first = open_cache<probed>(a);
    auto second = open_cache<looking_back>(b);
    const auto one = *first.begin(), other = *second.begin();
    feed_prompt(first, one, data, prompt, 60,
                [&](kvtl::layer_input& in, std::size_t l, std::size_t, std::size_t) {
                    in.probe = data.q(l, prompt - 1);
                });
    feed_prompt(second, other, data, prompt, 60);
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t h = 0; h < 2; ++h) {
            CHECK(kept(first, one, l, h).size() == 40);
            CHECK(kept(first, one, l, h) == kept(second, other, l, h));
        }
}

namespace {

using block_cache = cache_with<kvtl::presets::epicache, kvtl::engine_input::probe>;
/// Tokens [probe_at, probe_at + probe_tokens) of a stream are the probe behind every chunk.
constexpr std::size_t probe_at = 320, probe_tokens = 6;

/// A chunk with the probe behind it, as a model passes both through a layer.
struct probed_chunk {
    std::vector<float> q, k, v;
    kvtl::layer_input in;

    probed_chunk(const drift& data, std::size_t l, std::size_t first, std::size_t n, bool last) {
        const auto add = [](std::vector<float>& to, std::span<const float> rows) {
            to.insert(to.end(), rows.begin(), rows.end());
        };
        add(q, data.q(l, first, n)), add(q, data.q(l, probe_at, probe_tokens));
        add(k, data.k(l, first, n)), add(k, data.k(l, probe_at, probe_tokens));
        add(v, data.v(l, first, n)), add(v, data.v(l, probe_at, probe_tokens));
        in.q = q, in.k = k, in.v = v;
        in.probe = data.q(l, probe_at, probe_tokens);
        in.passing = probe_tokens;
        in.last_chunk = last;
    }
};

template <class Cache = block_cache>
typename Cache::config blocks_of(std::size_t keep, std::size_t chunk, std::size_t max_tokens = 400) {
    auto c = sized<Cache>(keep, kvtl::engine_input::probe);
    c.max_tokens = max_tokens;
    c.prefill_tokens = keep + chunk + probe_tokens;
    c.window_tokens = 8, c.sink_tokens = 4;
    return c;
}

/// A prompt of n tokens in chunks; seen(layer, first, tokens, outputs) after each chunk of a layer.
template <class Cache, class Seen>
void feed_blocks(Cache& cache, kvtl::sequence_id seq, const drift& data, std::size_t n, std::size_t chunk,
                 Seen&& seen) {
    for (std::size_t done = 0; done < n;) {
        const std::size_t some = std::min(chunk, n - done);
        for (std::size_t l = 0; l < data.shape().layers; ++l) {
            const probed_chunk block(data, l, done, some, done + some == n);
            std::vector<float> out(block.q.size(), NAN);
            for (unsigned s = 0; s < cache.shards(); ++s) require_ok(cache.prefill(seq, l, block.in, out, s));
            seen(l, done, some, out);
        }
        done += some;
    }
}

/// Block prefill by definition: what each lane holds, token by token.
class naive_blocks {
  public:
    naive_blocks(const drift& data, std::size_t competing) : data_(data), competing_(competing) {
        held_.resize(data.shape().layers * data.shape().kv_heads);
    }
    [[nodiscard]] const tokens_t& held(std::size_t l, std::size_t h) const {
        return held_[l * data_.shape().kv_heads + h];
    }
    /// Largest error of the outputs of a chunk; then its eviction.
    double take(std::size_t l, std::size_t first, std::size_t n, const std::vector<float>& out) {
        const std::size_t dim = data_.shape().head_dim, heads = data_.shape().query_heads;
        const naive all(data_, 4, 8);
        oracle::largest_error error;
        const auto compare = [&](std::size_t row, std::size_t token, std::size_t hq, const tokens_t& seen) {
            const scores_t expected = all.output(l, hq, token, seen);
            for (std::size_t d = 0; d < dim; ++d)
                error.see(static_cast<double>(out[(row * heads + hq) * dim + d]) - expected[d]);
        };
        for (std::size_t h = 0; h < data_.shape().kv_heads; ++h) {
            tokens_t& mine = held_[l * data_.shape().kv_heads + h];
            tokens_t seen = mine;
            for (std::size_t t = 0; t < n; ++t) {
                seen.push_back(static_cast<std::uint32_t>(first + t));
                for (std::size_t g = 0; g < all.group(); ++g)
                    compare(t, first + t, h * all.group() + g, seen);
            }
            const tokens_t candidates = seen;
            scores_t most(candidates.size(), 0.0);
            for (std::size_t w = 0; w < probe_tokens; ++w) {
                seen.push_back(static_cast<std::uint32_t>(probe_at + w));
                for (std::size_t g = 0; g < all.group(); ++g) {
                    const std::size_t hq = h * all.group() + g;
                    compare(n + w, probe_at + w, hq, seen);
                    const scores_t p = all.attention(l, hq, probe_at + w, candidates);
                    for (std::size_t i = 0; i < p.size(); ++i) most[i] = std::max(most[i], p[i]);
                }
            }
            mine.clear();
            for (const std::uint32_t i : all.best(most, competing_)) mine.push_back(candidates[i]);
        }
        return error.value();
    }

  private:
    const drift& data_;
    std::size_t competing_;
    std::vector<tokens_t> held_;
};

} // namespace

TEST_CASE("epicache: after each chunk, every head keeps what the probe attends most of what is left and the "
          "chunk") {
    const drift data(small, 400, 73);
    for (const std::size_t chunk : {64U, 37U, 150U}) {
        CAPTURE(chunk);
        auto c = blocks_of(52, chunk);
        c.shards = chunk == 37 ? 2 : 1;
        auto cache = open_cache<block_cache>(c);
        const auto seq = *cache.begin();
        naive_blocks truth(data, 40);
        feed_blocks(cache, seq, data, 150, chunk,
                    [&](std::size_t l, std::size_t first, std::size_t n, const std::vector<float>& out) {
                        CHECK(truth.take(l, first, n, out) < exact);
                        for (std::size_t h = 0; h < 2; ++h) CHECK(kept(cache, seq, l, h) == truth.held(l, h));
                        CHECK(cache.tokens(seq, l) == first + n); // the probe has passed
                    });
        for (std::size_t t = 150; t < 160; ++t) CHECK(decode_and_compare(cache, seq, data, t) < exact);
        const std::vector<float> question(data.q(0, 160, 5).begin(), data.q(0, 160, 5).end());
        std::vector<float> out(question.size());
        for (std::size_t l = 0; l < 2; ++l) // a question: nothing leaves for it
            require_ok(cache.prefill(seq, l, data.input(l, 160, 5), out));
        CHECK(kept(cache, seq, 1, 1).size() == 52 + 15);
    }
}

TEST_CASE("epicache: a cache that has room for everything attends everything") {
    const drift data(small, 400, 74);
    auto cache = open_cache<block_cache>(blocks_of(200, 40));
    const auto seq = *cache.begin();
    naive_blocks truth(data, 400);
    feed_blocks(cache, seq, data, 150, 40,
                [&](std::size_t l, std::size_t first, std::size_t n, const std::vector<float>& out) {
                    CHECK(truth.take(l, first, n, out) < exact);
                    CHECK(kept(cache, seq, l, 0) == naive::first(first + n));
                });
    dense_reference<float> reference(data);
    std::vector<float> out(data.query_floats());
    for (std::size_t l = 0; l < 2; ++l) {
        require_ok(cache.attend(seq, l, data.input(l, 150), out));
        oracle::largest_error error;
        const auto& dense = reference.attention(l, 150);
        for (std::size_t i = 0; i < dense.size(); ++i)
            error.see(static_cast<double>(out[i]) - static_cast<double>(dense[i]));
        CHECK(error.value() < exact);
    }
}

TEST_CASE("epicache: memory does not grow with the prompt") {
    const drift data(small, 400, 75);
    const auto run = [&](std::size_t n) {
        auto c = blocks_of(48, 32);
        c.memory_bytes = least_memory<block_cache>(c); // the prompt takes no more than what is promised
        auto cache = open_cache<block_cache>(c);
        const auto seq = *cache.begin();
        feed_blocks(cache, seq, data, n, 32,
                    [&](std::size_t l, std::size_t first, std::size_t some, const std::vector<float>&) {
                        for (std::size_t h = 0; h < 2; ++h)
                            CHECK(kept(cache, seq, l, h).size() == std::min<std::size_t>(first + some, 48));
                    });
        return cache.stats();
    };
    const auto brief = run(64), lengthy = run(320);
    CHECK(brief.resident_bytes_peak == lengthy.resident_bytes_peak);
    CHECK(brief.kept_entries == 48 * 4);
    CHECK(lengthy.kept_entries == 48 * 4);
    // What open() asks for does not depend on the prompt either, but for the table of blocks: 4 bytes for 16 rows.
    const std::size_t near = least_memory<block_cache>(blocks_of(48, 32, 400)),
                      far = least_memory<block_cache>(blocks_of(48, 32, 40000));
    CHECK(far >= near);
    CHECK(far - near <= 39600 / 16 * 4 + 64);
}

namespace {
struct by_layers : kvtl::presets::epicache {
    using budget = kvtl::presets::pyramidkv::budget;
};
} // namespace

TEST_CASE("epicache with a budget that divides by layers keeps it after each chunk, in its least memory") {
    using cache_type = cache_with<by_layers, kvtl::engine_input::probe>;
    const drift data(small, 400, 77);
    auto c = blocks_of<cache_type>(40, 90);
    c.prefill_tokens += 40; // a layer may keep more than the mean
    c.memory_bytes = least_memory<cache_type>(c);
    auto cache = open_cache<cache_type>(c);
    const auto seq = *cache.begin();
    std::vector<std::size_t> held(small.layers, 0);
    feed_blocks(cache, seq, data, 300, 90,
                [&](std::size_t l, std::size_t first, std::size_t, const std::vector<float>&) {
                    const std::size_t now = kept(cache, seq, l, 0).size();
                    if (first >= 90) CHECK(now == held[l]);
                    held[l] = now;
                });
    CHECK(held[0] > held[1]);
    CHECK(held[0] + held[1] == 80);
}

TEST_CASE("epicache: a layer that is more important keeps more after each chunk") {
    const drift data(small, 400, 81);
    auto c = blocks_of(40, 90);
    c.prefill_tokens += 10;
    c.budget.importance = {1, 3};
    auto cache = open_cache<block_cache>(c);
    const auto seq = *cache.begin();
    // Each keeps 32 with the 12 that are pinned, and the 16 that are left are divided by 1 : 3.
    naive_blocks truth[] = {{data, 20 + 4}, {data, 20 + 12}};
    feed_blocks(cache, seq, data, 300, 90,
                [&](std::size_t l, std::size_t first, std::size_t n, const std::vector<float>& out) {
                    CHECK(truth[l].take(l, first, n, out) < exact);
                    for (std::size_t h = 0; h < 2; ++h) CHECK(kept(cache, seq, l, h) == truth[l].held(l, h));
                });
    CHECK(kept(cache, seq, 0, 1).size() == 36);
    CHECK(kept(cache, seq, 1, 1).size() == 44);
}

TEST_CASE("epicache: bad input is refused, and the cache is as it was") {
    const drift data(small, 400, 76);
    auto cache = open_cache<block_cache>(blocks_of(52, 40));
    const auto seq = *cache.begin();
    naive_blocks truth(data, 40);
    std::vector<float> out(110 * data.query_floats());
    const auto refused = [&](const kvtl::layer_input& in, std::size_t rows, const char* words) {
        const auto s = cache.prefill(seq, 0, in, std::span(out).first(rows * data.query_floats()));
        CHECK_FALSE(s.ok());
        CHECK_MESSAGE(std::string(s.what()).find(words) != std::string::npos, std::string(s.what()));
    };
    feed_blocks(
        cache, seq, data, 120, 40,
        [&](std::size_t l, std::size_t first, std::size_t n, const std::vector<float>& o) {
            CHECK(truth.take(l, first, n, o) < exact);
            if (l == 0 || first + n == 120) return;
            probed_chunk next(data, 0, first + n, 40, false);
            kvtl::layer_input in = next.in;
            in.probe = {};
            refused(in, 46, "probe has 0 numbers; valid: a positive multiple of");
            in.probe = next.in.probe.first(130);
            refused(in, 46, "probe has 130 numbers; valid: a positive multiple of");
            in = next.in, in.passing = 46;
            refused(in, 46, "passing is 46 of 46 tokens; valid: 0 to 45");
            const probed_chunk longer(data, 0, first + n, 60, false);
            refused(longer.in, 66, "the chunk has 66 tokens beside");
            const kvtl::batch_part part{seq, 46, kvtl::part_kind::prompt};
            const auto s = cache.forward(std::span(&part, 1), 0, next.in,
                                         std::span(out).first(46 * data.query_floats()));
            CHECK(std::string(s.what()).find("passing is 6; valid: 0, except in a chunk of a prompt") !=
                  std::string::npos);
            const kvtl::batch_part halves[] = {{seq, 20, kvtl::part_kind::prompt},
                                               {seq, 26, kvtl::part_kind::prompt}};
            in = next.in, in.passing = 0;
            const auto two = cache.forward(halves, 0, in, std::span(out).first(46 * data.query_floats()));
            CHECK(
                std::string(two.what()).find("2 parts would be evicted by one probe; valid: one such part") !=
                std::string::npos);
        });
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t h = 0; h < 2; ++h) CHECK(kept(cache, seq, l, h) == truth.held(l, h));
    refused(probed_chunk(data, 0, 120, 40, true).in, 46, "valid: 0 behind a prompt that is complete");
    auto draft = data.input(0, 120, 3);
    draft.passing = 2;
    const auto stayed = cache.attend(seq, 0, draft, std::span(out).first(3 * data.query_floats()));
    CHECK(std::string(stayed.what()).find("passing is 2; valid: 0, except in a chunk of a prompt") !=
          std::string::npos);

    using whole = cache_with<kvtl::presets::lookahead_probe, kvtl::engine_input::probe>;
    auto other = open_cache<whole>(sized<whole>(52, kvtl::engine_input::probe));
    const auto s = other.prefill(*other.begin(), 0, probed_chunk(data, 0, 0, 40, true).in,
                                 std::span(out).first(46 * data.query_floats()));
    CHECK(std::string(s.what()).find(
              "passing is 6; valid: 0, except in a preset that evicts after each chunk") !=
          std::string::npos);
}

namespace {

using replaying = cache_with<kvtl::presets::kvzip, kvtl::engine_input::probe>;
constexpr std::size_t replay_at = 300; ///< tokens of a stream from here on are what a model replays

replaying::config replayed_in(std::size_t keep, std::size_t most_replayed) {
    auto c = sized<replaying>(keep, kvtl::engine_input::probe);
    c.max_tokens = 400;
    c.prefill_tokens = prompt + most_replayed;
    return c;
}
/// Tokens that pass behind a prompt, as a model has them in a layer.
kvtl::layer_input replay_of(const drift& data, std::size_t l, std::size_t at, std::size_t n, bool last) {
    kvtl::layer_input in = data.input(l, at, n);
    in.probe = data.q(l, at, n);
    in.passing = static_cast<std::uint32_t>(n);
    in.last_chunk = last;
    return in;
}
const decorate goes_on = [](kvtl::layer_input& in, std::size_t, std::size_t, std::size_t) {
    in.last_chunk = false;
};

/// KVzip by definition; with weigh(layer, KV head, entry, replayed token), by attention times that.
class naive_replay {
  public:
    using weight = std::function<double(std::size_t, std::size_t, std::size_t, std::size_t)>;
    explicit naive_replay(const drift& data, weight weigh = {}) : all_(data, 4, 1), weigh_(std::move(weigh)) {
        most_.assign(small.layers * small.kv_heads, scores_t(prompt, 0.0));
    }
    /// A layer reads tokens [at, at + n) behind the prompt. Returns the largest error of the outputs.
    double read(std::size_t l, std::size_t at, std::size_t n, const std::vector<float>& out) {
        oracle::largest_error error;
        tokens_t seen = naive::first(prompt);
        for (std::size_t w = 0; w < n; ++w) {
            seen.push_back(static_cast<std::uint32_t>(at + w));
            for (std::size_t hq = 0; hq < small.query_heads; ++hq) {
                const scores_t p = all_.attention(l, hq, at + w, seen);
                scores_t& most = most_[l * small.kv_heads + hq / all_.group()];
                for (std::size_t t = 0; t < prompt; ++t)
                    most[t] =
                        std::max(most[t], p[t] * (weigh_ ? weigh_(l, hq / all_.group(), t, at + w) : 1.0));
                const scores_t expected = all_.output(l, hq, at + w, seen);
                for (std::size_t d = 0; d < small.head_dim; ++d)
                    error.see(static_cast<double>(out[(w * small.query_heads + hq) * small.head_dim + d]) -
                              expected[d]);
            }
        }
        return error.value();
    }
    /// What a lane keeps if `keep` entries are the mean of all.
    [[nodiscard]] tokens_t kept(std::size_t l, std::size_t h, std::size_t keep) const {
        scores_t all;
        for (const scores_t& lane : most_) all.insert(all.end(), lane.begin() + 4, lane.end() - 1);
        const std::size_t n = std::min((keep - 5) * most_.size(), all.size());
        std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n - 1), all.end(),
                         std::greater<>());
        const scores_t& mine = most_[l * small.kv_heads + h];
        const auto passes = [&](double x) { return x >= all[n - 1]; };
        return all_.best(mine,
                         static_cast<std::size_t>(std::count_if(mine.begin() + 4, mine.end() - 1, passes)));
    }

  private:
    naive all_;
    weight weigh_;
    std::vector<scores_t> most_;
};

} // namespace

TEST_CASE("kvzip: the heads of all layers keep what the replayed tokens attend most, and these pass") {
    const drift data(small, 400, 78);
    for (const bool least : {false, true}) {
        CAPTURE(least);
        auto c = replayed_in(40, 34);
        if (least)
            c.memory_bytes = least_memory<replaying>(c); // it holds the prompt and a chunk of the replay
        auto cache = open_cache<replaying>(c);
        const auto seq = *cache.begin();
        double prompt_error = 1;
        feed_prompt(cache, seq, data, prompt, least ? SIZE_MAX : 60, goes_on, &prompt_error);
        CHECK(prompt_error < exact);
        naive_replay truth(data);
        std::size_t at = replay_at;
        for (const std::size_t n : {34U, 20U, 11U}) {
            const bool last = n == 11;
            for (std::size_t l = 0; l < small.layers; ++l) {
                std::vector<float> out(n * data.query_floats(), NAN);
                require_ok(cache.prefill(seq, l, replay_of(data, l, at, n, last), out));
                CHECK(truth.read(l, at, n, out) < exact);
                CHECK(cache.tokens(seq, l) == prompt);
            }
            at += n;
        }
        std::set<std::size_t> sizes;
        for (std::size_t l = 0; l < small.layers; ++l)
            for (std::size_t h = 0; h < small.kv_heads; ++h) {
                CHECK(kept(cache, seq, l, h) == truth.kept(l, h, 40));
                sizes.insert(kept(cache, seq, l, h).size());
            }
        CHECK(sizes.size() > 1);
        CHECK(rows_held(cache, seq) == 40 * 4);
        for (std::size_t t = prompt; t < prompt + 8; ++t)
            CHECK(decode_and_compare(cache, seq, data, t) < exact);
    }
}

TEST_CASE(
    "kvzip: a replay may come with the prompt's last tokens, and a cache with room for everything attends "
    "everything") {
    const drift data(small, 400, 79);
    auto cache = open_cache<replaying>(replayed_in(prompt, 30));
    const auto seq = *cache.begin();
    dense_reference<float> reference(data);
    for (std::size_t l = 0; l < small.layers; ++l) {
        std::vector<float> q, k, v;
        const auto add = [](std::vector<float>& to, std::span<const float> rows) {
            to.insert(to.end(), rows.begin(), rows.end());
        };
        add(q, data.q(l, 0, prompt)), add(q, data.q(l, replay_at, 30));
        add(k, data.k(l, 0, prompt)), add(k, data.k(l, replay_at, 30));
        add(v, data.v(l, 0, prompt)), add(v, data.v(l, replay_at, 30));
        kvtl::layer_input in{.q = q, .k = k, .v = v, .probe = data.q(l, replay_at, 30)};
        in.passing = 30;
        std::vector<float> out(q.size());
        require_ok(cache.prefill(seq, l, in, out));
        CHECK(kept(cache, seq, l, 1) == naive::first(prompt));
    }
    std::vector<float> out(data.query_floats());
    for (std::size_t l = 0; l < small.layers; ++l) {
        require_ok(cache.attend(seq, l, data.input(l, prompt), out));
        oracle::largest_error error;
        const auto& dense = reference.attention(l, prompt);
        for (std::size_t i = 0; i < dense.size(); ++i)
            error.see(static_cast<double>(out[i]) - static_cast<double>(dense[i]));
        CHECK(error.value() < exact);
    }
}

TEST_CASE("kvzip: bad input is refused, and the replay goes on") {
    const drift data(small, 400, 80);
    auto cache = open_cache<replaying>(replayed_in(40, 30));
    const auto seq = *cache.begin();
    std::vector<float> out(40 * data.query_floats());
    const auto refused = [&](const kvtl::layer_input& in, const char* words) {
        const auto s = cache.prefill(seq, 0, in, std::span(out).first(in.q.size()));
        CHECK_FALSE(s.ok());
        CHECK_MESSAGE(std::string(s.what()).find(words) != std::string::npos, std::string(s.what()));
    };
    refused(replay_of(data, 0, replay_at, 6, false), "all 6 tokens pass, and no token came before them");
    feed_prompt(cache, seq, data, prompt, 50, goes_on);
    auto in = replay_of(data, 0, replay_at, 6, true);
    in.passing = 7;
    refused(in, "passing is 7 of 6 tokens; valid: 0 to 6");
    in.passing = 5;
    refused(in, "probe has 768 numbers and passing is 5; valid: passing * query_heads * head_dim = 640");
    in = replay_of(data, 0, replay_at, 6, true), in.probe = {};
    refused(in, "probe has 0 numbers; valid: a positive multiple of");
    for (const std::size_t n : {127U, 200U}) { // nothing passes, and the prompt goes on
        in = data.input(0, prompt, 6), in.last_chunk = false;
        in.probe = data.q(0, replay_at, 6).first(n);
        refused(in, n == 127 ? "probe has 127 numbers; valid: a positive multiple of"
                             : "probe has 200 numbers; valid: a positive multiple of");
    }
    refused(replay_of(data, 0, replay_at, 31, true), "up to prefill_tokens = 170");
    const auto early = cache.attend(seq, 0, data.input(0, prompt), std::span(out).first(data.query_floats()));
    CHECK(std::string(early.what()).find("the prompt is not complete") != std::string::npos);
    naive_replay truth(data);
    for (std::size_t l = 0; l < small.layers; ++l) {
        std::vector<float> some(30 * data.query_floats(), NAN);
        require_ok(cache.prefill(seq, l, replay_of(data, l, replay_at, 30, true), some));
        CHECK(truth.read(l, replay_at, 30, some) < exact);
    }
    for (std::size_t l = 0; l < small.layers; ++l)
        for (std::size_t h = 0; h < small.kv_heads; ++h)
            CHECK(kept(cache, seq, l, h) == truth.kept(l, h, 40));
    refused(replay_of(data, 0, replay_at, 6, true), "valid: 0 behind a prompt that is complete");

    auto sliding = replayed_in(40, 30);
    sliding.attention.windows = {64, 0};
    const auto none = replaying::open(sliding);
    REQUIRE_FALSE(none);
    CHECK(none.error().code == kvtl::errc::unsupported);
    CHECK(none.error().message.find("attention.windows: 1 of 2 layers slide") != std::string::npos);
    sliding.attention.windows = {400, 0}; // reaches over everything
    CHECK(replaying::open(sliding));
}

TEST_CASE("kvzip_plus: attention counts by the value's size and the input of the token that attends") {
    using cache_type =
        cache_with<kvtl::presets::kvzip_plus, kvtl::engine_input::probe | kvtl::engine_input::x>;
    const drift data(small, 400, 82);
    constexpr std::size_t width = 24, dim = small.head_dim, stay = 30, pass = 20;
    std::vector<float> inputs =
        oracle::normal_values(400 * width, 83); // (tokens, width), alike in all layers
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] *= static_cast<float>(1 + i / width % 7);
    const auto norms = oracle::normal_values(small.layers * small.kv_heads * dim * dim, 84);
    const scratch_folder here;
    kvtl::calibration_writer out_file(small, 5);
    REQUIRE(out_file.add(kvtl::calibration_kind::value_norms, dim, norms));
    REQUIRE(out_file.write(here.file("norms.cal")));
    const auto length = [&](std::size_t token) {
        const float* x = &inputs[token * width];
        return std::sqrt(oracle::dot(x, x, width));
    };
    for (const bool calibrated : {false, true}) {
        CAPTURE(calibrated);
        const auto size_of = [&](std::size_t l, std::size_t h, std::size_t t) {
            const float* v = data.value(l, static_cast<std::uint32_t>(t), h);
            double sum = 0, squares = 0;
            for (std::size_t d = 0; d < dim; ++d) {
                const float* row = &norms[((l * small.kv_heads + h) * dim + d) * dim];
                sum += std::fabs(static_cast<double>(v[d]));
                squares += std::pow(oracle::dot(row, v, dim), 2);
            }
            return calibrated ? std::sqrt(squares) : sum;
        };
        auto c = sized<cache_type>(40, kvtl::engine_input::probe | kvtl::engine_input::x);
        c.max_tokens = 400;
        c.prefill_tokens = prompt + pass;
        if (calibrated) c.calibration = here.file("norms.cal"), c.calibration_model = 5;
        auto cache = open_cache<cache_type>(c);
        const auto seq = *cache.begin();
        naive_replay truth(data, [&](std::size_t l, std::size_t h, std::size_t t, std::size_t by) {
            return size_of(l, h, t) / length(by);
        });
        feed_prompt(cache, seq, data, prompt - stay, SIZE_MAX, goes_on);
        // The prompt's last tokens stay, and those behind them pass.
        for (std::size_t l = 0; l < small.layers; ++l) {
            std::vector<float> q, k, v, x;
            const auto add = [](std::vector<float>& to, std::span<const float> rows) {
                to.insert(to.end(), rows.begin(), rows.end());
            };
            add(q, data.q(l, prompt - stay, stay)), add(q, data.q(l, replay_at, pass));
            add(k, data.k(l, prompt - stay, stay)), add(k, data.k(l, replay_at, pass));
            add(v, data.v(l, prompt - stay, stay)), add(v, data.v(l, replay_at, pass));
            add(x, std::span(inputs).subspan((prompt - stay) * width, stay * width));
            add(x, std::span(inputs).subspan(replay_at * width, pass * width));
            kvtl::layer_input in{.q = q, .k = k, .v = v, .probe = data.q(l, replay_at, pass)};
            in.passing = pass, in.last_chunk = false;
            std::vector<float> out(q.size());
            for (const std::size_t n : {std::size_t{0}, stay + pass + 1}) {
                in.x = std::span(x).first(n);
                const auto refused = cache.prefill(seq, l, in, out);
                const std::string words =
                    "x has " + std::to_string(n) + " numbers; valid: a positive multiple of tokens = 50";
                CHECK_MESSAGE(std::string(refused.what()).find(words) != std::string::npos,
                              std::string(refused.what()));
            }
            in.x = x;
            require_ok(cache.prefill(seq, l, in, out));
            out.erase(out.begin(), out.end() - static_cast<std::ptrdiff_t>(pass * data.query_floats()));
            CHECK(truth.read(l, replay_at, pass, out) < exact);
        }
        for (std::size_t l = 0; l < small.layers; ++l) {
            auto in = replay_of(data, l, replay_at + pass, 11, true);
            in.x = std::span(inputs).subspan((replay_at + pass) * width, 11 * width);
            std::vector<float> out(11 * data.query_floats());
            require_ok(cache.prefill(seq, l, in, out));
            CHECK(truth.read(l, replay_at + pass, 11, out) < exact);
        }
        for (std::size_t l = 0; l < small.layers; ++l)
            for (std::size_t h = 0; h < small.kv_heads; ++h)
                CHECK(kept(cache, seq, l, h) == truth.kept(l, h, 40));
    }
}

TEST_CASE("external_mask: what the engine does not want leaves, in prompt and decode; the window stays") {
    const drift data(small, 300, 72);
    using cache_type = cache_with<kvtl::presets::external_mask, kvtl::engine_input::external>;
    auto c = sized<cache_type>(250, kvtl::engine_input::external); // room for everything
    auto cache = open_cache<cache_type>(c);
    const auto seq = *cache.begin();
    const auto wanted = [](std::size_t l, std::size_t t, std::size_t h) {
        return (t * 7 + l * 3 + h) % 3 != 0;
    };
    std::vector<float> given;
    const decorate say = [&](kvtl::layer_input& in, std::size_t l, std::size_t first, std::size_t n) {
        given.clear();
        for (std::size_t t = first; t < first + n; ++t)
            for (std::size_t h = 0; h < 2; ++h) given.push_back(wanted(l, t, h) ? 1.0F : -1.0F);
        in.external = given;
    };
    feed_prompt(cache, seq, data, prompt, 50, say);
    const auto check = [&](std::size_t tokens) {
        for (std::size_t l = 0; l < 2; ++l)
            for (std::size_t h = 0; h < 2; ++h) {
                tokens_t expected;
                for (std::uint32_t t = 0; t < tokens; ++t)
                    if (t + c.window_tokens >= tokens || wanted(l, t, h)) expected.push_back(t);
                CHECK(kept(cache, seq, l, h) == expected);
            }
    };
    CHECK(c.window_tokens == 8);
    check(prompt);
    for (std::size_t t = prompt; t < 180; ++t) CHECK(decode_and_compare(cache, seq, data, t, say) < exact);
    check(180);
}

TEST_CASE("external_scores: numbers below 0 are scores as others are") {
    const drift data(small, 120, 73);
    using cache_type = cache_with<kvtl::presets::external_scores, kvtl::engine_input::external>;
    for (const std::size_t keep : {100U, 40U}) {
        auto c = sized<cache_type>(keep, kvtl::engine_input::external);
        auto cache = open_cache<cache_type>(c);
        const auto seq = *cache.begin();
        std::vector<float> given;
        const decorate say = [&](kvtl::layer_input& in, std::size_t, std::size_t first, std::size_t n) {
            given.clear();
            for (std::size_t t = first; t < first + n; ++t)
                given.insert(given.end(), 2, -0.5F - static_cast<float>(t));
            in.external = given;
        };
        feed_prompt(cache, seq, data, 100, 50, say);
        tokens_t expected; // earlier tokens have larger scores
        for (std::uint32_t t = 0; t < 100; ++t)
            if (t < keep - c.window_tokens || t + c.window_tokens >= 100) expected.push_back(t);
        for (std::size_t l = 0; l < 2; ++l)
            for (std::size_t h = 0; h < 2; ++h) CHECK(kept(cache, seq, l, h) == expected);
    }
}

namespace {

using kvtl::engine_input;
using blocks_cache = kvtl::kv_manager<
    in_ram<kvtl::presets::chosen_blocks>,
    kvtl::engine_inputs<engine_input::q, engine_input::k, engine_input::v, engine_input::chosen>>;
constexpr std::uint32_t block = 16;

blocks_cache::config blocks(std::uint32_t sinks, unsigned shards) {
    blocks_cache::config c;
    c.shape = small;
    c.max_tokens = 300;
    c.memory_bytes = std::size_t{16} << 20;
    c.attend_tokens = 300;
    c.sink_tokens = sinks;
    c.window_tokens = 10;
    c.shards = shards;
    c.clusterer.group_tokens = block;
    c.engine_inputs = engine_input::q | engine_input::k | engine_input::v | engine_input::chosen;
    return c;
}
/// Attention of query head hq of token t over `tokens`, by definition; keys and values are kept as f16.
std::vector<double> attention_over(const drift& data, std::size_t l, std::size_t t, std::size_t hq,
                                   const tokens_t& tokens) {
    const std::size_t dim = small.head_dim, head = hq / 2;
    const auto stored = [](float x) {
        return static_cast<double>(kvtl::to_float(kvtl::from_float<kvtl::f16>(x)));
    };
    std::vector<double> p, out(dim, 0.0);
    double largest = -1e300, sum = 0;
    for (const std::uint32_t i : tokens) {
        double dot = 0;
        for (std::size_t d = 0; d < dim; ++d)
            dot += static_cast<double>(data.q(l, t)[hq * dim + d]) * stored(data.key(l, i, head)[d]);
        p.push_back(dot / std::sqrt(static_cast<double>(dim)));
        largest = std::max(largest, p.back());
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    for (std::size_t i = 0; i < tokens.size(); ++i)
        for (std::size_t d = 0; d < dim; ++d)
            out[d] += p[i] / sum * stored(data.value(l, tokens[i], head)[d]);
    return out;
}

} // namespace

TEST_CASE("chosen_blocks: every KV head attends the blocks that the engine names, and the window") {
    const drift data(small, 300, 91);
    for (const std::uint32_t sinks : {0U, 3U})
        for (const unsigned shards : {1U, 2U}) {
            auto cache = open_cache<blocks_cache>(blocks(sinks, shards));
            const auto seq = *cache.begin();
            feed_prompt(cache, seq, data, prompt, 50);
            oracle::generator random(7);
            oracle::largest_error error;
            std::size_t left_out = 0;
            for (std::size_t t = prompt; t < 220; ++t) {
                const auto now = static_cast<std::uint32_t>(t + 1), complete = (now - sinks) / block;
                std::vector<std::uint32_t> named; // (heads, 3), one of them perhaps none
                for (std::uint32_t h = 0; h < 2; ++h) {
                    const auto first = static_cast<std::uint32_t>(random.below(complete - 2));
                    named.insert(named.end(),
                                 {first + 2, random.below(2) == 0 ? first : kvtl::none, first + 1});
                }
                for (std::size_t l = 0; l < 2; ++l) {
                    auto in = data.input(l, t, 1);
                    in.chosen = named;
                    std::vector<float> out(data.query_floats());
                    require_ok(cache.attend(seq, l, in, out));
                    // The oldest block of the window leaves it once the window holds a block more than it should.
                    std::uint32_t units = 0;
                    while (t - sinks - std::size_t{units} * block >= 10 + block) ++units;
                    for (std::size_t hq = 0; hq < 4; ++hq) {
                        tokens_t tokens;
                        for (std::uint32_t i = 0; i < now; ++i) {
                            const std::uint32_t u = i < sinks ? kvtl::none : (i - sinks) / block;
                            const auto own = std::span(named).subspan(hq / 2 * 3, 3);
                            if (i < sinks || u >= units || std::find(own.begin(), own.end(), u) != own.end())
                                tokens.push_back(i);
                        }
                        left_out += now - tokens.size();
                        const auto exact_one = attention_over(data, l, t, hq, tokens);
                        for (std::size_t d = 0; d < small.head_dim; ++d)
                            error.see(static_cast<double>(out[hq * small.head_dim + d]) - exact_one[d]);
                    }
                }
            }
            CHECK(error.value() < exact);
            CHECK(left_out > 10000);
        }
}

TEST_CASE("chosen_blocks: a draft of several tokens names blocks for each") {
    const drift data(small, 300, 92);
    auto one = open_cache<blocks_cache>(blocks(0, 1)), other = open_cache<blocks_cache>(blocks(0, 1));
    const auto a = *one.begin(), b = *other.begin();
    feed_prompt(one, a, data, prompt);
    feed_prompt(other, b, data, prompt);
    const std::vector<std::uint32_t> named = {0, 3, 1, 2, 5, 4, kvtl::none, 6}; // (tokens, heads, 2)
    std::vector<std::vector<float>> together;
    for (std::size_t l = 0; l < 2; ++l) {
        auto both = data.input(l, prompt, 2);
        both.chosen = named;
        together.emplace_back(2 * data.query_floats());
        require_ok(one.attend(a, l, both, together.back()));
    }
    for (std::size_t t = 0; t < 2; ++t)
        for (std::size_t l = 0; l < 2; ++l) {
            auto in = data.input(l, prompt + t, 1);
            in.chosen = std::span(named).subspan(t * 4, 4);
            std::vector<float> out(data.query_floats());
            require_ok(other.attend(b, l, in, out));
            CHECK(std::equal(out.begin(), out.end(), &together[l][t * data.query_floats()]));
        }
}

TEST_CASE("chosen_blocks: rows of a batch name blocks for each sequence") {
    const drift data(small, 300, 94);
    auto one = open_cache<blocks_cache>([] {
        auto c = blocks(0, 1);
        c.max_sequences = 2;
        return c;
    }());
    auto other = open_cache<blocks_cache>(blocks(0, 1));
    const auto a = *one.begin(), b = *one.begin(), single = *other.begin();
    for (const auto seq : {a, b}) feed_prompt(one, seq, data, prompt);
    feed_prompt(other, single, data, prompt);
    const auto in = data.input(0, prompt, 1);
    const auto twice = [](const auto& x) {
        std::vector<float> both(x.floats().begin(), x.floats().end());
        both.insert(both.end(), x.floats().begin(), x.floats().end());
        return both;
    };
    const auto q = twice(in.q), k = twice(in.k), v = twice(in.v);
    const std::vector<std::uint32_t> named = {6, 5, 2, 3}; // (sequences, heads, 1)
    const kvtl::batch_part parts[] = {{.seq = a}, {.seq = b}};
    std::vector<float> out(2 * data.query_floats()), exact_one(data.query_floats());
    kvtl::layer_input batch{.q = q, .k = k, .v = v};
    batch.chosen = std::span(named).first(3);
    const kvtl::status refused = one.forward(parts, 0, batch, out);
    CHECK(refused.code() == kvtl::errc::invalid_argument);
    CHECK(std::string(refused.what()).find("chosen has 3 numbers") != std::string::npos);
    CHECK(one.tokens(a, 0) == prompt);
    batch.chosen = named;
    require_ok(one.forward(parts, 0, batch, out));
    auto alone = in;
    alone.chosen = std::span(named).subspan(2);
    require_ok(other.attend(single, 0, alone, exact_one));
    CHECK(std::equal(exact_one.begin(), exact_one.end(), &out[data.query_floats()]));
    CHECK_FALSE(std::equal(exact_one.begin(), exact_one.end(), out.begin()));
}

TEST_CASE("chosen_blocks: numbers that cannot be are refused, and the cache stays as it was") {
    const drift data(small, 300, 93);
    auto cache = open_cache<blocks_cache>(blocks(0, 2));
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, prompt);
    std::vector<float> out(data.query_floats()), again(data.query_floats());
    const auto attend = [&](const std::vector<std::uint32_t>& named) {
        auto in = data.input(0, prompt, 1);
        in.chosen = named;
        return cache.attend(seq, 0, in, out);
    };
    const auto refused = [&](const std::vector<std::uint32_t>& named, const char* words) {
        const kvtl::status s = attend(named);
        CHECK(s.code() == kvtl::errc::invalid_argument);
        CHECK_MESSAGE(std::string(s.what()).find(words) != std::string::npos, s.what());
        CHECK(cache.tokens(seq, 0) == prompt);
    };
    refused({}, "chosen has 0 numbers; valid: a positive multiple of 2");
    refused({1, 2, 3}, "chosen has 3 numbers; valid: a positive multiple of 2");
    refused({1, 2, 3, 9}, "chosen has unit 9 for KV head 1; valid: below 9, or none"); // 141 tokens
    refused({1, 1, 3, 4}, "chosen has unit 1 twice for KV head 0; valid: once");
    require_ok(attend({1, 2, 3, 8}));
    CHECK(cache.tokens(seq, 0) == prompt + 1);
    const kvtl::status shown = cache.select(seq, 0, data.q(0, prompt), [](auto, auto, auto) {});
    CHECK(shown.code() == kvtl::errc::unsupported);
    CHECK(std::string(shown.what()).find("the engine names its units") != std::string::npos);
    require_ok(cache.prefetch(seq, 0, data.q(0, prompt))); // a hint that reads nothing
    CHECK(cache.stats().wasted_bytes == 0);
}

} // namespace engine_decides_test
