// KV-Direct with an engine of its own, which has multi-head attention: outputs have the bits of a cache with the same rows
// in the same places, whatever happens to the sequence; bytes as declared; what is refused.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_raw.hpp>
#include <kvtl/presets/kv_direct.hpp>

#include "support/oracle.hpp"
#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

namespace kv_direct_test {

using kvtl::kv_direct, kvtl::kv_direct_f16, kvtl::kv_manager, kvtl::layer_input, kvtl::recompute_rows,
    kvtl::sequence_id, kvtl::status;

namespace {

constexpr kvtl::shape model{.layers = 2, .query_heads = 4, .kv_heads = 4, .head_dim = 16};
constexpr std::uint32_t width = 64; // H * D, as in multi-head attention
constexpr std::size_t longest = 260;

/// k = rope(W_k x), v = W_v x. The order of the sums does not depend on how many tokens come together.
struct toy_engine {
    std::vector<float> weights = oracle::normal_values<float>(model.layers * 2 * width * width, 1, 0.1);
    std::vector<float> x = oracle::normal_values<float>(model.layers * longest * width, 2);
    std::vector<float> q = oracle::normal_values<float>(model.layers * longest * width, 3);
    std::vector<float> k, v;

    toy_engine() : k(x.size()), v(x.size()) {
        for (std::uint32_t l = 0; l < model.layers; ++l)
            for (std::uint32_t t = 0; t < longest; ++t)
                for (std::uint32_t h = 0; h < model.kv_heads; ++h) {
                    const std::size_t row = (l * longest + t) * width;
                    head(l, h, false, t, &x[row], &k[row + h * model.head_dim]);
                    head(l, h, true, t, &x[row], &v[row + h * model.head_dim]);
                }
    }
    /// Not inlined, so that it has the same bits wherever it is called.
    [[gnu::noinline]] void head(std::uint32_t layer, std::uint32_t h, bool values, std::uint32_t position,
                                const float* in, float* out) const {
        for (std::uint32_t d = 0; d < model.head_dim; ++d) {
            const float* w =
                &weights[((layer * 2 + (values ? 1U : 0U)) * width + h * model.head_dim + d) * width];
            out[d] = 0;
            for (std::uint32_t i = 0; i < width; ++i) out[d] += w[i] * in[i];
        }
        for (std::uint32_t d = 0; !values && d < model.head_dim; d += 2) {
            const float angle = static_cast<float>(position) / static_cast<float>(1 + d), a = out[d];
            out[d] = a * std::cos(angle) - out[d + 1] * std::sin(angle);
            out[d + 1] = a * std::sin(angle) + out[d + 1] * std::cos(angle);
        }
    }
    static void recompute(void* engine, const recompute_rows& r) noexcept {
        for (std::size_t i = 0; i < r.count; ++i)
            static_cast<const toy_engine*>(engine)->head(r.layer, r.head, r.values, r.positions[i],
                                                         r.x + i * width, r.out + i * model.head_dim);
    }
    [[nodiscard]] layer_input input(std::uint32_t layer, std::size_t first, std::size_t n) const {
        const auto rows = [&](const std::vector<float>& all) {
            return std::span(all).subspan((layer * longest + first) * width, n * width);
        };
        return {.q = rows(q), .k = rows(k), .v = rows(v), .x = rows(x)};
    }
};

/// The same places with plain rows.
struct plain : kvtl::presets::full {
    static constexpr std::string_view name = "plain";
    static constexpr std::uint32_t window_tokens = 32;
};
using plain_cache = kv_manager<plain>;

template <class Cache> typename Cache::config sized(toy_engine& engine) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = longest;
    c.max_sequences = 2;
    c.memory_bytes = 4 << 20;
    if constexpr (requires { c.compressor.recompute; }) {
        c.compressor.recompute = &toy_engine::recompute;
        c.compressor.engine = &engine;
        c.compressor.width = width;
    }
    return c;
}

/// A cache and what its calls returned.
template <class Cache> struct reader {
    const toy_engine& engine;
    Cache cache;
    sequence_id seq;
    std::size_t tokens = 0;
    std::vector<float> out{};

    explicit reader(toy_engine& e, const typename Cache::config& c)
        : engine(e), cache(*Cache::open(c)), seq(*cache.begin()) {}
    void prompt(std::size_t n) {
        take(n, [&](auto... a) { return cache.prefill(seq, a...); });
    }
    void decode(std::size_t n, std::size_t draft = 1) {
        for (; n >= draft; n -= draft) take(draft, [&](auto... a) { return cache.attend(seq, a...); });
    }
    template <class Call> void take(std::size_t n, Call&& call) {
        for (std::uint32_t l = 0; l < model.layers; ++l) {
            out.resize(out.size() + n * width);
            const status s = call(l, engine.input(l, tokens, n), std::span<float>(out).last(n * width));
            REQUIRE_MESSAGE(s.ok(), s.what());
        }
        tokens += n;
    }
    void give_up(std::size_t n) {
        REQUIRE(cache.rewind(seq, n).ok());
        tokens -= n;
    }
};

/// A prompt in two chunks of which one is longer than the window, steps, a draft, a rewind, a turn.
template <class Reader> void play(Reader& r) {
    r.prompt(90);
    r.prompt(7);
    r.decode(40);
    r.decode(6, 3);
    r.give_up(11);
    r.decode(20);
    r.prompt(70); // of which some leave at once
    r.decode(5);
}

} // namespace

TEST_CASE("records of floats give the bits of plain rows, through turns, branches and a saved file") {
    toy_engine engine;
    reader<plain_cache> rows(engine, sized<plain_cache>(engine));
    reader<kv_direct> direct(engine, sized<kv_direct>(engine));
    play(rows), play(direct);
    CHECK(direct.out == rows.out);
    rows.out.clear(), direct.out.clear();

    const kvtl_test::scratch_folder folder;
    const std::string file = folder.path() + "/sequence.kvs";
    REQUIRE(direct.cache.save(direct.seq, file).ok());
    const auto branch = direct.cache.fork(direct.seq);
    REQUIRE(branch.ok());
    const std::size_t at = direct.tokens;
    rows.decode(30);
    direct.decode(30);
    CHECK(direct.out == rows.out);
    const auto play_on = [&](sequence_id seq) {
        direct.seq = seq, direct.tokens = at;
        direct.out.clear();
        direct.decode(30);
        CHECK(direct.out == rows.out);
        REQUIRE(direct.cache.end(seq).ok());
    };
    REQUIRE(direct.cache.end(direct.seq).ok());
    play_on(*branch);
    const auto loaded = direct.cache.load(file);
    REQUIRE(loaded.ok());
    play_on(loaded->seq);
}

TEST_CASE("so they do with sinks, two shards, sliding layers and the least memory") {
    toy_engine engine;
    for (const std::vector<std::uint32_t>& windows : {std::vector<std::uint32_t>{}, {0, 24}, {24, 0}}) {
        const auto with = [&]<class Cache>(std::type_identity<Cache>) {
            typename Cache::config c = sized<Cache>(engine);
            c.sink_tokens = 5;
            c.window_tokens = 20;
            c.shards = 2;
            c.max_sequences = 1;
            c.attention.windows = windows;
            c.memory_bytes = *Cache::least_memory(c);
            return c;
        };
        reader<plain_cache> rows(engine, with(std::type_identity<plain_cache>{}));
        reader<kv_direct> direct(engine, with(std::type_identity<kv_direct>{}));
        play(rows), play(direct);
        CHECK(direct.out == rows.out);
    }
}

TEST_CASE(
    "an entry takes 4 bytes and its input, in either precision, beside the window's rows; f16 is close") {
    toy_engine engine;
    reader<plain_cache> rows(engine, sized<plain_cache>(engine));
    reader<kv_direct> direct(engine, sized<kv_direct>(engine));
    reader<kv_direct_f16> half(engine, sized<kv_direct_f16>(engine));
    play(rows), play(direct), play(half);
    // Every token has a record, and those of the window are rows of keys and values in f16 as well.
    const std::uint64_t held = direct.cache.stats().kept_bytes, of_half = half.cache.stats().kept_bytes,
                        records = model.layers * direct.tokens * (4 + 4 * width),
                        plain_rows = (held - records) / (model.layers * 4 * width);
    CHECK(plain_rows >= 32);
    CHECK(plain_rows < 48);
    CHECK(held == records + model.layers * plain_rows * 4 * width);
    CHECK(of_half == held - model.layers * direct.tokens * 2 * width);
    double error = 0;
    for (std::size_t i = 0; i < half.out.size(); ++i)
        error =
            std::max(error, std::fabs(static_cast<double>(half.out[i]) - static_cast<double>(rows.out[i])));
    CHECK(error > 0);
    CHECK(error < 2e-3);
}

TEST_CASE("kv_direct refuses an engine without a function, inputs of another width, and layers that share") {
    toy_engine engine;
    const auto refused = [](const kv_direct::config& c) {
        const auto cache = kv_direct::open(c);
        REQUIRE_FALSE(cache.ok());
        return cache.error().message;
    };
    auto c = sized<kv_direct>(engine);
    c.compressor.recompute = nullptr;
    CHECK(refused(c).starts_with("compressor.recompute is null; valid: "));
    c = sized<kv_direct>(engine);
    c.owner = {0, 0};
    CHECK(refused(c) ==
          "owner: preset kv_direct keeps the inputs of layers, and layers that share a cache have "
          "different ones; valid: every layer its own");

    reader<kv_direct> direct(engine, sized<kv_direct>(engine));
    direct.prompt(50);
    std::vector<float> out(width);
    auto in = engine.input(0, 50, 1);
    in.x = in.x.first(60);
    for (const status& s :
         {direct.cache.attend(direct.seq, 0, in, out), direct.cache.append(direct.seq, 0, in),
          direct.cache.prefill(direct.seq, 0, in, out)})
        CHECK(std::string(s.what()) == "x has 60 numbers; valid: tokens * 64 = 64");
    direct.decode(1); // nothing has changed
}

TEST_CASE("layers that slide keep plain rows; the others ask for the model's numbers") {
    toy_engine engine;
    auto c = sized<kv_direct>(engine);
    auto of_rows = sized<plain_cache>(engine);
    c.attention.windows = of_rows.attention.windows = {20, 0};
    reader<plain_cache> rows(engine, of_rows);
    reader<kv_direct> direct(engine, c);
    for (const std::size_t turn : {80U, 40U}) {
        rows.prompt(turn), direct.prompt(turn);
        rows.decode(20), direct.decode(20);
    }
    CHECK(direct.out == rows.out);
}

} // namespace kv_direct_test
