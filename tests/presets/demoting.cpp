// Presets that demote entries, step by step against a re-implementation in double precision: which entries are in
// which form, what attention over both is, and how layers divide memory.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/policies/budget_head_adaptive.hpp>
#include <kvtl/policies/budget_pyramid.hpp>
#include <kvtl/policies/retain_external.hpp>
#include <kvtl/policies/retain_key_norm.hpp>
#include <kvtl/policies/support/budget_split.hpp>
#include <kvtl/presets/demoting.hpp>

#include "support/eviction.hpp"

#include <cmath>
#include <map>

namespace presets_demoting_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};
constexpr std::uint32_t prompt = 150, window = 8;

/// The papers' presets over rows of floats, so that only demoted entries are approximate.
struct mikv : kvtl::presets::mikv {
    using compressor = kvtl::raw<float>;
    using retention =
        kvtl::demote<kvtl::heavy_hitters_after_prompt, kvtl::int2_group<float>, kvtl::channels::balanced>;
};
struct arkv : kvtl::presets::arkv {
    using compressor = kvtl::raw<float>;
    using retention = kvtl::demote<kvtl::running_moments, kvtl::int8_row<float>>;
};

/// A budget that gives the first layer more than keep_tokens, and a score that needs no queries.
struct norm_pyramid : kvtl::presets::mikv {
    using retention = kvtl::demote<kvtl::key_norm, kvtl::int2_group<>, kvtl::channels::balanced>;
    using budget = kvtl::pyramid;
};

/// Neither what drops entries for which there is room nor budgets that compare scores: a second chain has no place in these.
struct masked : mikv {
    using retention = kvtl::demote<kvtl::external_mask, kvtl::int2_group<float>>;
};
struct compared : mikv {
    using budget = kvtl::head_adaptive<>;
};
static_assert(kvtl::demotion_agrees<mikv> && kvtl::demotion_agrees<arkv> &&
              kvtl::demotion_agrees<norm_pyramid>);
static_assert(!kvtl::demotion_agrees<masked> && !kvtl::demotion_agrees<compared>);

template <class Cache> typename Cache::config sized(std::uint32_t keep) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 400;
    c.prefill_tokens = prompt;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    c.window_tokens = window;
    return c;
}

template <class Cache> auto& lane_of(Cache& cache, kvtl::sequence_id seq, std::size_t l, std::size_t h) {
    const auto at = find_lane(cache, seq, h);
    return kvtl::shard_access::of(cache, at.shard)
        .kept()
        .lanes_of(seq.slot, static_cast<std::uint32_t>(l))[at.index];
}
template <class Cache> tokens_t demoted(Cache& cache, kvtl::sequence_id seq, std::size_t l, std::size_t h) {
    auto& shard = kvtl::shard_access::of(cache, find_lane(cache, seq, h).shard).kept();
    const auto rows = shard.open_demoted(lane_of(cache, seq, l, h));
    tokens_t t;
    for (std::uint32_t i = 0; i < rows.size(); ++i) t.push_back(rows.token(i));
    std::sort(t.begin(), t.end());
    return t;
}

/// A lane by definition. `key(t)`, `value(t)`: a demoted entry as attention sees it.
struct lane_model {
    std::map<std::uint32_t, double> full, demoted; // token, score
    std::map<std::uint32_t, std::vector<double>> key, value;

    /// Demotes and drops one entry at a time until the memory suffices; `rows` demoted ones take that of 16.
    template <class Demote>
    void shrink(std::uint32_t limit, std::uint32_t rows, std::uint32_t now, Demote&& encode) {
        const auto cost = [&] { return full.size() + (16 * demoted.size() + rows - 1) / rows; };
        const auto lowest = [&](auto& of) {
            auto found = of.end();
            for (auto i = of.begin(); i != of.end(); ++i)
                if (i->first + window <= now && (found == of.end() || i->second <= found->second)) found = i;
            return found;
        };
        while (cost() > limit && full.size() > window) {
            const auto leaves = lowest(full);
            demoted[leaves->first] = leaves->second;
            encode(leaves->first);
            full.erase(leaves);
        }
        while (cost() > limit) demoted.erase(lowest(demoted));
    }
};
tokens_t tokens_of(const std::map<std::uint32_t, double>& m) {
    tokens_t t;
    for (const auto& [token, score] : m) t.push_back(token);
    return t;
}
} // namespace

TEST_CASE(
    "mikv: the lowest by mass move to 2 bits with balanced channels, then leave; one softmax over both") {
    const drift data(small, 400, 31);
    using cache_t = kvtl::kv_manager<mikv>;
    const auto codec = kvtl::int2_group<float>::state({}, {1, small.head_dim});
    // Limits under which all entries stay, and under which some of the prompt are dropped at once.
    for (const bool drops : {false, true}) {
        const std::uint32_t keep = drops ? 16 : 60, chunk = drops ? 47 : 150;
        CAPTURE(keep);
        auto cache = open_cache<cache_t>(sized<cache_t>(keep));
        const auto seq = *cache.begin();
        double prompt_error = 0;
        feed_prompt(cache, seq, data, prompt, chunk, {}, &prompt_error);
        CHECK(prompt_error < exact);
        const std::uint32_t rows = kvtl::shard_access::of(cache, 0).kept().plan().demotion.per_block;
        const naive truth(data, 0, window);
        std::map<std::pair<std::size_t, std::size_t>, lane_model> model;
        std::map<std::pair<std::size_t, std::size_t>, std::vector<float>> balance;
        const auto encode = [&](std::size_t l, std::size_t h, std::uint32_t t) {
            const auto& b = balance[{l, h}];
            std::vector<float> k(b.size()), v(b.size());
            std::vector<std::byte> record(codec.bytes().key);
            for (std::size_t d = 0; d < b.size(); ++d) k[d] = data.key(l, t, h)[d] * b[d];
            codec.encode_key(k.data(), 0, record.data());
            codec.decode_keys({record.data(), 1, codec.bytes().key}, k.data());
            codec.encode_value(data.value(l, t, h), record.data());
            codec.decode_values({record.data(), 1, codec.bytes().value}, v.data());
            lane_model& lane = model[{l, h}];
            lane.key[t].clear(), lane.value[t].clear();
            for (std::size_t d = 0; d < b.size(); ++d) {
                lane.key[t].push_back(static_cast<double>(k[d]) / static_cast<double>(b[d]));
                lane.value[t].push_back(static_cast<double>(v[d]));
            }
        };
        for (std::size_t l = 0; l < small.layers; ++l)
            for (std::size_t h = 0; h < small.kv_heads; ++h) {
                lane_model& lane = model[{l, h}];
                std::vector<double> most_q(small.head_dim, 0.0), most_k(small.head_dim, 0.0);
                for (std::uint32_t t = 0; t < prompt; ++t) {
                    for (std::size_t d = 0; d < small.head_dim; ++d) {
                        most_k[d] = std::max(most_k[d], std::fabs(oracle::value(data.key(l, t, h)[d])));
                        for (std::size_t hq = 2 * h; hq < 2 * h + 2; ++hq)
                            most_q[d] = std::max(
                                most_q[d], std::fabs(oracle::value(data.q(l, t)[hq * small.head_dim + d])));
                    }
                    const scores_t p =
                        truth.group_mean(h, [&](std::size_t hq) { return truth.attention(l, hq, t); });
                    for (std::uint32_t i = 0; i <= t; ++i) lane.full[i] += p[i];
                }
                for (std::size_t d = 0; d < small.head_dim; ++d)
                    balance[{l, h}].push_back(static_cast<float>(std::sqrt(most_q[d] / most_k[d])));
                lane.shrink(keep, rows, prompt - 1, [&](std::uint32_t t) { encode(l, h, t); });
            }
        std::size_t seen_demoted = 0, seen_dropped = 0;
        oracle::largest_error error;
        for (std::uint32_t t = prompt; t < 190; ++t)
            for (std::size_t l = 0; l < small.layers; ++l) {
                for (std::size_t h = 0; h < small.kv_heads; ++h) {
                    const lane_model& lane = model[{l, h}];
                    CHECK(demoted(cache, seq, l, h) == tokens_of(lane.demoted));
                    tokens_t all = tokens_of(lane.full), more = tokens_of(lane.demoted);
                    all.insert(all.end(), more.begin(), more.end());
                    std::sort(all.begin(), all.end());
                    CHECK(kept(cache, seq, l, h) == all);
                    seen_demoted += more.size();
                    seen_dropped += t - all.size();
                }
                std::vector<float> out(data.query_floats());
                require_ok(cache.attend(seq, l, data.input(l, t), out));
                for (std::size_t h = 0; h < small.kv_heads; ++h) {
                    lane_model& lane = model[{l, h}];
                    lane.full[t] = 0;
                    for (std::size_t hq = 2 * h; hq < 2 * h + 2; ++hq) {
                        const float* q = data.q(l, t).data() + hq * small.head_dim;
                        std::vector<std::pair<double*, double>> weight;
                        std::vector<double> expected(small.head_dim, 0.0);
                        double sum = 0;
                        const auto logit = [&](auto&& key) {
                            double s = 0;
                            for (std::size_t d = 0; d < small.head_dim; ++d)
                                s += oracle::value(q[d]) * key(d);
                            return std::exp(s / std::sqrt(static_cast<double>(small.head_dim)));
                        };
                        const auto add = [&](double& score, double w, auto&& value) {
                            weight.push_back({&score, w});
                            sum += w;
                            for (std::size_t d = 0; d < small.head_dim; ++d) expected[d] += w * value(d);
                        };
                        for (auto& [token, score] : lane.full) {
                            const float *k = data.key(l, token, h), *v = data.value(l, token, h);
                            add(score, logit([k](std::size_t d) { return oracle::value(k[d]); }),
                                [v](std::size_t d) { return oracle::value(v[d]); });
                        }
                        for (auto& [token, score] : lane.demoted) {
                            const auto &k = lane.key[token], &v = lane.value[token];
                            add(score, logit([&k](std::size_t d) { return k[d]; }),
                                [&v](std::size_t d) { return v[d]; });
                        }
                        for (auto& [score, w] : weight) *score += w / sum / 2;
                        for (std::size_t d = 0; d < small.head_dim; ++d)
                            error.see(static_cast<double>(out[hq * small.head_dim + d]) - expected[d] / sum);
                    }
                    lane.shrink(keep, rows, t, [&](std::uint32_t gone) { encode(l, h, gone); });
                }
            }
        CHECK(error.value() < 1e-4);
        CHECK(seen_demoted > 0);
        CHECK((seen_dropped > 0) == (keep < 60));
        // All that attention covered is counted, each entry with the bytes of its record.
        const auto& plan = kvtl::shard_access::of(cache, 0).kept().plan();
        std::size_t bytes = 0, entries = 0;
        for (const auto& [at, lane] : model) {
            bytes += lane.full.size() * plan.record.entry() + lane.demoted.size() * codec.bytes().entry();
            entries += lane.full.size() + lane.demoted.size();
        }
        CHECK(cache.stats().kept_bytes == bytes);
        CHECK(cache.stats().kept_entries == entries);
    }
}

TEST_CASE(
    "a sequence that fits has no demoted entry and equals dense attention; a rewind finds both chains") {
    const drift data(small, 400, 32);
    const auto run = [&]<class Preset>(Preset*) {
        using cache_t = kvtl::kv_manager<Preset>;
        auto dense = open_cache<cache_t>(sized<cache_t>(300));
        const auto seq = *dense.begin();
        feed_prompt(dense, seq, data, prompt, 60);
        for (std::uint32_t t = prompt; t < prompt + 10; ++t)
            CHECK(decode_and_compare(dense, seq, data, t) < exact);
        CHECK(kept(dense, seq, 1, 1).size() == prompt + 10);
        CHECK(demoted(dense, seq, 1, 1).empty());

        auto c = sized<cache_t>(50);
        c.window_tokens = 4;
        c.memory_bytes = least_memory<cache_t>(c);
        auto cache = open_cache<cache_t>(c);
        const auto other = *cache.begin();
        feed_prompt(cache, other, data, prompt);
        std::vector<float> out(data.query_floats());
        for (std::uint32_t t = prompt; t < 380; ++t)
            for (std::size_t l = 0; l < small.layers; ++l)
                require_ok(cache.attend(other, l, data.input(l, t), out));
        const auto& pool = kvtl::shard_access::of(cache, 0).kept().pool();
        CHECK(pool.used_peak() <= kvtl::shard_access::of(cache, 0).kept().plan().guaranteed_blocks);
        CHECK(cache.stats().kept_entries == rows_held(cache, other));
        require_ok(cache.end(other));
        CHECK(pool.free_blocks() == pool.size());

        // Until the first entry is dropped: then every lane has all of the latest tokens, also behind the window.
        const auto again = *cache.begin();
        feed_prompt(cache, again, data, prompt);
        std::uint32_t t = prompt;
        for (; t < 380 && rows_held(cache, again) == std::size_t{4} * t; ++t)
            for (std::size_t l = 0; l < small.layers; ++l)
                require_ok(cache.attend(again, l, data.input(l, t), out));
        tokens_t moved[4];
        std::uint32_t n = t;
        for (std::uint32_t i = 0; i < 4; ++i) {
            const tokens_t all = kept(cache, again, i / 2, i % 2);
            std::uint32_t found = 0;
            while (found < all.size() && all[all.size() - 1 - found] + found + 1 == t) ++found;
            n = std::min(n, found);
            moved[i] = demoted(cache, again, i / 2, i % 2);
        }
        CAPTURE(t);
        REQUIRE(n > 5);
        REQUIRE(n < t);
        const auto left = [&](std::uint32_t token) { return token + n >= t; };
        const kvtl::status refused = cache.rewind(again, n + 1);
        CHECK(refused.code() == kvtl::errc::out_of_range);
        CHECK(std::string(refused.what()).find("only " + std::to_string(n) + " are") != std::string::npos);
        const std::size_t before = rows_held(cache, again);
        require_ok(cache.rewind(again, n));
        CHECK(rows_held(cache, again) == before - std::size_t{4} * n);
        for (std::uint32_t i = 0; i < 4; ++i) {
            CHECK(std::erase_if(moved[i], left) > 0);
            CHECK(demoted(cache, again, i / 2, i % 2) == moved[i]);
            for (const std::uint32_t token : kept(cache, again, i / 2, i % 2)) CHECK(!left(token));
        }
    };
    run(static_cast<mikv*>(nullptr));
    run(static_cast<arkv*>(nullptr));
}

TEST_CASE(
    "arkv: layers divide the memory by entropy, variance and kurtosis; the best of each stay as they are") {
    const kvtl::shape model{4, 4, 2, 32};
    const drift data(model, 400, 33);
    using cache_t = kvtl::kv_manager<arkv>;
    auto c = sized<cache_t>(40);
    c.shape = model;
    const double taus[3] = {7.8, 5.4, 5.5}, observed = window;
    c.retention.tau_entropy = 7.8F, c.retention.tau_variance = 5.4F, c.retention.tau_kurtosis = 5.5F;
    const naive truth(data, 0, window);
    const std::uint32_t competing = prompt - window, base = 40 - window;
    std::vector<double> preference;
    std::vector<scores_t> scores;
    for (std::size_t l = 0; l < model.layers; ++l) {
        double entropy = 0, variance = 0, kurtosis = 0;
        for (std::size_t h = 0; h < 2; ++h)
            scores.push_back(truth.group_mean(h, [&](std::size_t hq) {
                scores_t mean(prompt, 0.0), square(prompt, 0.0);
                for (std::size_t t = competing; t < prompt; ++t) {
                    const scores_t p = truth.attention(l, hq, t);
                    for (std::size_t i = 0; i < p.size(); ++i)
                        mean[i] += p[i] / observed, square[i] += p[i] * p[i] / observed;
                    for (std::size_t i = 0; i < competing; ++i) entropy -= p[i] * std::log(p[i]) / observed;
                }
                double centre = 0, second = 0, fourth = 0;
                for (std::size_t i = 0; i < competing; ++i) centre += mean[i] / competing;
                for (std::size_t i = 0; i < competing; ++i) {
                    second += std::pow(mean[i] - centre, 2) / competing;
                    fourth += std::pow(mean[i] - centre, 4) / competing;
                }
                kurtosis += fourth / (second * second);
                for (std::size_t i = 0; i < prompt; ++i) {
                    const double of = square[i] - mean[i] * mean[i];
                    if (i < competing) variance += of;
                    mean[i] += 200.0 * of;
                }
                std::fill(mean.end() - window, mean.end(), 0.0); // the window's own
                return naive::average_pool(mean, 5);
            }));
        preference.push_back(std::pow(entropy / 4, 1 / taus[0]) * std::pow(variance / 4, 1 / taus[1]) *
                             std::pow(kurtosis / 4, 1 / taus[2]));
    }
    std::vector<std::uint32_t> budget(model.layers, 0), cap;
    for (std::size_t l = 0; l < model.layers; ++l) { // what a layer gave up does not come back
        cap.push_back(std::min<std::uint32_t>(competing, base * model.layers));
        budget.assign(cap.size(), 0);
        std::vector<double> weight(preference.begin(),
                                   preference.begin() + static_cast<std::ptrdiff_t>(l) + 1);
        kvtl::split_exactly(weight, cap, std::uint64_t{base} * model.layers, budget);
        cap = budget;
    }
    CHECK(std::set(budget.begin(), budget.end()).size() > 1);
    for (const std::size_t chunk : {150U, 64U}) {
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, prompt, chunk);
        const auto& plan = kvtl::shard_access::of(cache, 0).kept().plan();
        for (std::size_t l = 0; l < model.layers; ++l)
            for (std::size_t h = 0; h < 2; ++h) {
                lane_model lane;
                for (std::uint32_t t = 0; t < prompt; ++t) lane.full[t] = scores[2 * l + h][t];
                lane.shrink(budget[l] + window, plan.demotion.per_block, prompt - 1, [](std::uint32_t) {});
                CAPTURE(l);
                CHECK(demoted(cache, seq, l, h) == tokens_of(lane.demoted));
                CHECK(kept(cache, seq, l, h).size() == lane.full.size() + lane.demoted.size());
            }
        // E4M3 would err more; codes of 8 bits have half a percent of a row's largest number.
        for (std::uint32_t t = prompt; t < prompt + 30; ++t)
            CHECK(decode_and_compare(cache, seq, data, t) < 5e-2);
    }
}

TEST_CASE("a layer may hold more than keep_tokens; large keys are balanced, and queries are asked for") {
    const drift data(small, 400, 34);
    using cache_t = kvtl::kv_manager<norm_pyramid>;
    auto cache = open_cache<cache_t>(sized<cache_t>(40));
    const auto seq = *cache.begin();
    auto in = data.input(0, 0, prompt);
    in.q = {};
    const kvtl::status refused = cache.prefill(seq, 0, in, {});
    CHECK(refused.code() == kvtl::errc::invalid_argument);
    CHECK(std::string(refused.what()).find("q is empty") != std::string::npos);
    feed_prompt(cache, seq, data, prompt);
    const auto& plan = kvtl::shard_access::of(cache, 0).kept().plan();
    std::vector<float> out(data.query_floats());
    for (std::uint32_t t = prompt; t < 280; ++t)
        for (std::size_t l = 0; l < small.layers; ++l) {
            auto step = data.input(l, t);
            std::vector<float> large(data.k(l, t).begin(), data.k(l, t).end());
            std::fill_n(large.begin(), 8, 60000.0F); // what multiplies it takes it beyond f16
            if (t == prompt) step.k = std::span<const float>(large);
            require_ok(cache.attend(seq, l, step, out));
            CHECK(std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }));
            for (std::size_t h = 0; h < 2; ++h) CHECK(kept(cache, seq, l, h).size() <= plan.most_rows);
            const auto moved = demoted(cache, seq, 0, 0);
            if (t == prompt + window) CHECK(std::binary_search(moved.begin(), moved.end(), prompt));
        }
    CHECK(kept(cache, seq, 0, 0).size() > plan.demotion.room(plan.keep));
}

} // namespace presets_demoting_test
