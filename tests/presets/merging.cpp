// Presets that merge what they drop: counts, sinks, and the budget of d2o.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/retain_external.hpp>
#include <kvtl/presets/merging.hpp>

#include "support/eviction.hpp"

namespace merging_test {

using namespace kvtl_test;
using kvtl::engine_input;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};
using with_external =
    kvtl::engine_inputs<engine_input::q, engine_input::k, engine_input::v, engine_input::external>;

template <class Cache> typename Cache::config sized(std::size_t keep) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 600;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    return c;
}

/// A merging preset whose survivors the test chooses.
template <class Rule, class Budget = kvtl::uniform> struct chosen_merge : kvtl::presets::full {
    static constexpr std::string_view name = "chosen_merge";
    static constexpr std::uint32_t window_tokens = 2;
    static constexpr std::uint32_t sink_tokens = 2;
    using retention = kvtl::merge_into<kvtl::external_scores, Rule>;
    using budget = Budget;
};

/// Blocks of tokens with one key each; one entry of every block is marked to stay. Attention afterwards must
/// be that over all tokens.
template <class Rule, class Budget = kvtl::uniform>
void equal_keys_are_exact(std::size_t chunk, std::size_t steps) {
    constexpr std::size_t blocks = 6, size = 8, prompt = 2 + blocks * size + 2, dim = 32;
    const std::size_t end = prompt + steps;
    using cache_t = kvtl::kv_manager<in_f32<chosen_merge<Rule, Budget>>, with_external>;
    auto config = sized<cache_t>(2 + blocks + 2);
    config.engine_inputs = with_external::value;
    auto cache = open_cache<cache_t>(config);
    const auto seq = *cache.begin();
    const std::size_t token = 2 * dim;
    // The window continues the last block, decoded tokens repeat the blocks' keys.
    const auto key_of = [&](std::size_t t) {
        return t < 2 ? t : t < prompt ? 2 + std::min((t - 2) / size, blocks - 1) : 2 + t % blocks;
    };
    const auto directions = oracle::normal_values(200 * token, 51);
    std::vector<float> k, v = oracle::normal_values(end * token, 52), external;
    for (std::size_t t = 0; t < end; ++t) {
        const auto from = directions.begin() + static_cast<std::ptrdiff_t>(key_of(t) * token);
        k.insert(k.end(), from, from + static_cast<std::ptrdiff_t>(token));
        const float mark = t >= 2 && t < prompt - 2 && (t - 2) % size == 3 ? 1.0F : -static_cast<float>(t);
        external.insert(external.end(), {mark, mark});
    }
    const auto q = oracle::normal_values(end * 4 * dim, 53, 0.7);
    oracle::largest_error error;
    for (std::size_t t = 0; t < end;) {
        const std::size_t n = t < prompt ? std::min(chunk, prompt - t) : 1;
        for (std::size_t l = 0; l < 2; ++l) {
            kvtl::layer_input in;
            in.q = std::span(q).subspan(t * 4 * dim, n * 4 * dim);
            in.k = std::span(k).subspan(t * token, n * token);
            in.v = std::span(v).subspan(t * token, n * token);
            in.external = std::span(external).subspan(t * 2, n * 2);
            in.last_chunk = t + n == prompt;
            std::vector<float> out(n * 4 * dim);
            require_ok(t < prompt ? cache.prefill(seq, l, in, out) : cache.attend(seq, l, in, out));
            if (t < prompt) continue;
            for (std::size_t hq = 0; hq < 4; ++hq) {
                const kvtl::rows_view<float> keys{k.data() + hq / 2 * dim, t + 1, dim, token},
                    values{v.data() + hq / 2 * dim, t + 1, dim, token};
                const auto expected =
                    oracle::attend(q.data() + (t * 4 + hq) * dim, 1 / std::sqrt(32.0), keys, values);
                for (std::size_t d = 0; d < dim; ++d)
                    error.see(static_cast<double>(out[hq * dim + d]) - expected[d]);
            }
        }
        t += n;
    }
    CHECK(kept(cache, seq, 0, 0).size() == 2 + blocks + 2);
    CHECK(error.value() < exact);
}

} // namespace

TEST_CASE("equal keys, merged, are attended as if none had been dropped") {
    for (const std::size_t chunk : {100U, 9U}) {
        equal_keys_are_exact<kvtl::nearest_key>(chunk, 12);
        // Sets are made of a prompt: what leaves after the first step is dropped.
        equal_keys_are_exact<kvtl::similar_runs>(chunk, 1);
        // A budget that cuts a second time, when all layers are known, merges what it cuts off.
        equal_keys_are_exact<kvtl::nearest_key, kvtl::progressive>(chunk, 12);
    }
}

TEST_CASE("merged entries carry counts; sinks are never changed") {
    const drift data(small, 600, 54);
    const auto run = [&]<class Preset>(Preset, double least_merged) {
        using cache_t = precise<Preset>;
        auto c = sized<cache_t>(40);
        if constexpr (requires { c.retention.rule.similarity; }) c.retention.rule.similarity = -1.0F;
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, 200, 70);
        std::vector<float> out(data.query_floats());
        for (std::size_t t = 200; t < 260; ++t)
            for (std::size_t l = 0; l < 2; ++l) require_ok(cache.attend(seq, l, data.input(l, t), out));
        double merged = 0;
        std::size_t keys = 0, values = 0; // that are no longer those of a token
        for (std::uint32_t l = 0; l < 2; ++l)
            for (std::uint32_t h = 0; h < 2; ++h) {
                auto& shard = kvtl::shard_access::of(cache, 0).kept();
                const auto held = shard.open(shard.lanes_of(0, l)[h]);
                for (std::uint32_t i = 0; i < held.size(); ++i) {
                    const std::uint32_t t = held.token(i);
                    const bool key = std::equal(held.key(i), held.key(i) + 32, data.key(l, t, h)),
                               value = std::equal(held.value(i), held.value(i) + 32, data.value(l, t, h));
                    merged += std::exp(static_cast<double>(held.log_weight(i))) - 1.0;
                    keys += key ? 0 : 1;
                    values += value ? 0 : 1;
                    if (t >= shard.plan().sinks) continue;
                    CHECK(held.log_weight(i) == 0.0F);
                    CHECK((key && value));
                }
            }
        CHECK(merged / 4 >= least_merged); // of about 160 that left each lane
        CHECK(merged / 4 < 221);
        CHECK((keys > 0) == (least_merged > 0));
        CHECK(values > 0);
        CHECK(std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }));
    };
    run(kvtl::presets::d2o{}, 30.0);
    run(kvtl::presets::kv_merger{}, 159.9); // all of them: the similarity does not matter
    run(kvtl::presets::cam{}, 0.0);         // values only
}

TEST_CASE("d2o: layers share by how unevenly their sums vary; the first two and the last keep the mean") {
    constexpr kvtl::shape deep{7, 4, 2, 32};
    constexpr std::size_t tokens = 110, base = 18, n = tokens - 4 - 22;
    const drift data(deep, 200, 64);
    const naive truth(data, 4, 22);
    using cache_t = precise<kvtl::presets::d2o>;
    auto c = sized<cache_t>(4 + 2 * base + 4); // half of 40 is the window: 20
    c.shape = deep;
    c.window_tokens = 22;
    c.max_tokens = 200;
    for (const std::size_t chunk : {tokens, std::size_t{40}}) {
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, tokens, chunk);
        std::vector<scores_t> sums;
        std::vector<double> weight;
        for (std::size_t l = 0; l < 7; ++l) {
            double variance[2];
            for (std::size_t h = 0; h < 2; ++h) {
                scores_t sum(tokens, 0.0);
                for (std::size_t t = 0; t < tokens; ++t) {
                    const scores_t p =
                        truth.group_mean(h, [&](std::size_t hq) { return truth.attention(l, hq, t); });
                    for (std::size_t i = 0; i <= t; ++i) sum[i] += p[i];
                }
                const double mean = std::accumulate(sum.begin(), sum.end(), 0.0) / tokens;
                variance[h] = 0;
                for (const double s : sum) variance[h] += (s - mean) * (s - mean) / tokens;
                sums.push_back(sum);
            }
            // With two lanes the mean lies half way between the least and the most.
            const double low = std::min(variance[0], variance[1]), high = std::max(variance[0], variance[1]);
            weight.push_back(std::exp(-((variance[0] + variance[1]) / 2 - low) / (high - low + 1e-6)));
        }
        std::vector<std::uint32_t> keep;
        for (std::size_t seen = 1; seen <= 7; ++seen) {
            const std::size_t l = seen - 1;
            const bool in = l >= 2 && l < 6;
            keep.push_back(static_cast<std::uint32_t>(in ? std::min(n, 7 * base) : base));
            std::uint64_t left = 7 * base - std::min<std::size_t>(seen, 2) * base - (seen == 7 ? base : 0);
            const std::size_t parts = std::min<std::size_t>(seen, 6) - std::min<std::size_t>(seen, 2);
            std::vector<double> w(weight.begin() + 2,
                                  weight.begin() + 2 + static_cast<std::ptrdiff_t>(parts));
            const std::span<std::uint32_t> share(keep.data() + (parts > 0 ? 2 : 0), parts);
            kvtl::split_exactly(w, share, left, share);
        }
        CHECK(std::accumulate(keep.begin(), keep.end(), 0U) == 7 * base);
        for (std::size_t l = 0; l < 7; ++l)
            for (std::size_t h = 0; h < 2; ++h)
                CHECK(kept(cache, seq, l, h) == truth.best(sums[2 * l + h], keep[l]));
        std::vector<float> out(data.query_floats());
        for (std::size_t t = tokens; t < 140; ++t)
            for (std::size_t l = 0; l < 7; ++l) require_ok(cache.attend(seq, l, data.input(l, t), out));
        CHECK(rows_held(cache, seq) == 7 * 2 * (26 + base)); // decode keeps every layer's share
    }
}

TEST_CASE("everything kept is dense attention, merging or not") {
    const drift data(small, 600, 55);
    const auto run = [&]<class Preset>(Preset) {
        auto cache = open_cache<precise<Preset>>(sized<precise<Preset>>(600));
        reader one(cache, data);
        one.prefill(60, 25);
        one.decode(20);
        CHECK(one.error() < exact);
    };
    run(kvtl::presets::d2o{});
    run(kvtl::presets::kv_merger{});
    run(kvtl::presets::cam{});
}

} // namespace merging_test
