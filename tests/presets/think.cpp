// ThinK: attention with everything attended is that over keys without the pruned channels, but for the latest keys; entries take
// the bytes of what is left; and behind SnapKV the survivors lose channels.
// SPDX-License-Identifier: MIT
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/think.hpp>

#include "support/cache_fixture.hpp"

namespace think_test {

namespace {
using namespace kvtl_test;

template <class Preset> struct in_ram : Preset { using io = kvtl::in_memory; };
using think = kvtl::kv_manager<in_ram<kvtl::presets::think>>;
struct snapkv_that_fails : kvtl::presets::snapkv_think {
    using io = kvtl::faulty<kvtl::in_memory>;
};
using snapkv_think = kvtl::kv_manager<snapkv_that_fails>;
constexpr kvtl::shape model{2, 4, 2, 64};
constexpr std::size_t prompt = 300, steps = 40, kept_channels = 38;

template <class Cache> typename Cache::config settings(double pruned = 0.4) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = prompt + steps + 8;
    c.attend_tokens = c.max_tokens;
    c.memory_bytes = std::size_t{16} << 20;
    c.compressor.pruned = pruned;
    return c;
}

/// Keys of a layer as the cache attends them at token t, when the first `stored` have left the window: (t + 1, H, D).
std::vector<float> pruned_keys(const drift& data, std::size_t layer, std::size_t t, std::size_t stored) {
    const std::size_t dim = model.head_dim, width = model.kv_heads * dim,
                      group = model.query_heads / model.kv_heads;
    std::vector<float> keys;
    for (const float x : data.k(layer, 0, t + 1))
        keys.push_back(kvtl::to_float(kvtl::from_float<kvtl::f16>(x)));
    const auto square = [](float x) { return static_cast<double>(x) * static_cast<double>(x); };
    for (std::size_t h = 0; h < model.kv_heads; ++h) {
        std::vector<std::pair<double, std::size_t>> score;
        for (std::size_t d = 0; d < dim; ++d) {
            double of_keys = 0, of_queries = 0;
            for (std::size_t i = 0; i < prompt; ++i) of_keys += square(data.k(layer, i, 1)[h * dim + d]);
            for (std::size_t g = 0; g < group; ++g) {
                double sum = 0;
                for (std::size_t i = prompt - 32; i < prompt; ++i)
                    sum += square(data.q(layer, i)[(h * group + g) * dim + d]);
                of_queries += std::sqrt(sum);
            }
            score.emplace_back(std::sqrt(of_keys) * of_queries, d);
        }
        std::sort(score.begin(), score.end());
        for (std::size_t j = 0; j < dim - kept_channels; ++j)
            for (std::size_t i = 0; i < stored; ++i) keys[i * width + h * dim + score[j].second] = 0.0F;
    }
    return keys;
}

/// Largest error of the steps against that.
template <class Cache> double pruned_error(const typename Cache::config& c, bool whole = false) {
    const drift data(model, c.max_tokens, 3);
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data, 0);
    one.prefill(prompt);
    const std::size_t before = one.outputs().size();
    one.decode(steps);
    one.check_tokens();
    oracle::largest_error error;
    for (std::size_t i = 0; i < steps; ++i)
        for (std::size_t l = 0; l < model.layers; ++l) {
            const std::size_t t = prompt + i, stored = whole ? 0 : (t - 32) / 16 * 16; // before this step
            std::vector<float> values;
            for (const float x : data.v(l, 0, t + 1))
                values.push_back(kvtl::to_float(kvtl::from_float<kvtl::f16>(x)));
            const auto expected = dense_rows({.shape = model, .sinks = {}}, t, data.q(l, t).data(),
                                             pruned_keys(data, l, t, stored).data(), values.data());
            const float* out = &one.outputs()[before + (i * model.layers + l) * data.query_floats()];
            for (std::size_t j = 0; j < expected.size(); ++j)
                error.see(static_cast<double>(out[j]) - expected[j]);
        }
    return error.value();
}
} // namespace

TEST_CASE("think attends keys without the pruned channels, and the latest keys as they are") {
    CHECK(pruned_error<think>(settings<think>()) < exact);
    CHECK(pruned_error<think>(settings<think>(), true) > 100 * exact); // channels were pruned
    CHECK(pruned_error<think>(settings<think>(0), true) < exact);
}

TEST_CASE("think reads the same from storage, in as many bytes as kept channels take") {
    const drift data(model, 400, 3);
    const auto run = [&](double pruned, std::size_t memory_kib) {
        auto c = settings<think>(pruned);
        if (memory_kib != 0) c.memory_bytes = memory_kib << 10;
        auto cache = open_cache<think>(c);
        reader<think> one(cache, data, 0);
        one.prefill(prompt);
        one.decode(steps);
        return std::pair(one.outputs(), cache.stats());
    };
    const auto [held, stats] = run(0.4, 0);
    const auto [read, reading] = run(0.4, least_memory<think>(settings<think>()) / 1024 + 8);
    CHECK(held == read);
    CHECK(reading.read_bytes > 2 * stats.read_bytes);
    const auto whole = run(0, 0).second;
    CHECK(stats.chosen_bytes * 256 == whole.chosen_bytes * (2 * kept_channels + 128));
    // Units, and rows of the window.
    const std::size_t units = (prompt + steps - 32) / 16 * 16, rows = prompt + steps - units;
    CHECK(stats.kept_bytes == 4 * (units * (2 * kept_channels + 128) + rows * 256));
}

TEST_CASE("snapkv_think prunes channels of what SnapKV keeps") {
    auto c = settings<snapkv_think>();
    c.keep_tokens = prompt;
    CHECK(pruned_error<snapkv_think>(c) < exact); // of everything, as think does
    c.keep_tokens = 100;
    const drift data(model, c.max_tokens, 3);
    const auto entries = [&](double pruned) {
        c.compressor.pruned = pruned;
        auto cache = open_cache<snapkv_think>(c);
        reader<snapkv_think> one(cache, data, 0);
        one.prefill(prompt);
        return cache.stats();
    };
    const auto some = entries(0.4), all = entries(0);
    CHECK(some.kept_entries == 4 * 100);
    CHECK(all.kept_entries == 4 * 100);
    CHECK(all.kept_bytes == 4 * 100 * 256);
    const std::size_t units = (100 - 32) / 16 * 16;
    CHECK(some.kept_bytes == 4 * (units * (2 * kept_channels + 128) + (100 - units) * 256));
}

TEST_CASE("a prefill that is repeated after a failed write prunes the same channels") {
    auto c = settings<snapkv_think>();
    c.keep_tokens = 100;
    const drift data(model, c.max_tokens, 3);
    std::vector<float> seen[2];
    for (const bool fails : {false, true}) {
        c.io.faults = std::make_shared<kvtl::io_faults>();
        auto cache = open_cache<snapkv_think>(c);
        const auto seq = *cache.begin();
        std::vector<float> out(prompt * data.query_floats());
        const auto prefill = [&](std::size_t l) {
            return cache.prefill(seq, l, data.input(l, 0, prompt), out);
        };
        if (fails) c.io.faults->full_beyond = 0;
        CHECK(prefill(0).ok() == !fails);
        c.io.faults->full_beyond = kvtl::io_faults::never;
        if (fails) require_ok(prefill(0));
        require_ok(prefill(1));
        seen[fails].resize(data.query_floats());
        require_ok(cache.attend(seq, 0, data.input(0, prompt), seen[fails]));
    }
    CHECK(seen[0] == seen[1]);
}

TEST_CASE("a layer that shares a cache does not attend a prompt again that could not be moved") {
    auto c = settings<snapkv_think>();
    c.keep_tokens = 100;
    c.owner = {0, 0};
    c.io.faults = std::make_shared<kvtl::io_faults>();
    const drift data(model, c.max_tokens, 3);
    auto cache = open_cache<snapkv_think>(c);
    const auto seq = *cache.begin();
    std::vector<float> out(prompt * data.query_floats());
    const auto prefill = [&](std::size_t l) {
        auto in = data.input(0, 0, prompt); // keys and values of the owner
        in.q = data.input(l, 0, prompt).q;
        return cache.prefill(seq, l, in, out);
    };
    require_ok(prefill(0));
    c.io.faults->full_beyond = 0;
    CHECK(!prefill(1).ok());
    c.io.faults->full_beyond = kvtl::io_faults::never;
    const auto again = prefill(0);
    CHECK_MESSAGE(std::string(again.what()).find("could not be written; repeat its prefill") !=
                      std::string::npos,
                  std::string(again.what()));
    require_ok(prefill(1));
    CHECK(cache.tokens(seq, 0) == prompt);
}

TEST_CASE("a prompt without queries and a share of all channels are refused") {
    const drift data(model, 400, 3);
    auto cache = open_cache<think>(settings<think>());
    const auto seq = cache.begin();
    REQUIRE(seq.ok());
    auto in = data.input(0, 0, 60);
    in.q = {};
    const auto refused = cache.prefill(*seq, 0, in, std::span<float>());
    REQUIRE(!refused.ok());
    CHECK(
        std::string(refused.what()) ==
        "prefill: q is empty; valid: the queries of the chunk, to which compressor channel_pruned is fitted");
    const auto opened = think::open(settings<think>(1));
    REQUIRE(!opened);
    CHECK(opened.error().message == "compressor.pruned is 1; valid: 0 or more, less than 1");
}

} // namespace think_test
