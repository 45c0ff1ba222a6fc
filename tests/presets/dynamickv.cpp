// Presets that divide a budget among layers and heads: what every lane keeps, against a re-implementation in
// double precision (the exact division itself is tested in policies/support/budget_split.cpp).
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/writer.hpp>
#include <kvtl/presets/dynamickv.hpp>

#include "support/eviction.hpp"
#include "support/scratch_folder.hpp"

namespace dynamickv_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape model{6, 4, 2, 32}; // 6 layers: no multiple of DynamicKV's interval
constexpr std::size_t prompt = 160;

template <class Cache> typename Cache::config sized(std::size_t keep, std::uint32_t window) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = 400;
    c.prefill_tokens = 160;
    c.memory_bytes = std::size_t{32} << 20;
    c.keep_tokens = keep;
    c.window_tokens = window;
    return c;
}

/// scores[layer * 2 + head], each of `prompt` numbers.
using all_scores = std::vector<scores_t>;

all_scores every_lane(const std::function<scores_t(std::size_t layer, std::size_t head)>& f) {
    all_scores s;
    for (std::size_t l = 0; l < model.layers; ++l)
        for (std::size_t h = 0; h < model.kv_heads; ++h) s.push_back(f(l, h));
    return s;
}
/// The competing scores of a lane, best first.
scores_t ranked(const scores_t& s, std::size_t window, std::size_t most) {
    scores_t r(s.begin(), s.end() - static_cast<std::ptrdiff_t>(window));
    std::sort(r.begin(), r.end(), std::greater<>());
    r.resize(std::min(r.size(), most));
    return r;
}
/// How many of the n best of all `held` scores are in each of them.
std::vector<double> counts(const std::vector<scores_t>& held, std::size_t n) {
    std::vector<std::pair<double, std::size_t>> all;
    for (std::size_t i = 0; i < held.size(); ++i)
        for (const double s : held[i]) all.push_back({s, i});
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<double> count(held.size(), 0.0);
    for (std::size_t i = 0; i < std::min(n, all.size()); ++i) count[all[i].second] += 1.0;
    return count;
}
using numbers = std::vector<std::uint32_t>;
numbers split(std::vector<double> weight, const numbers& cap, std::uint64_t total) {
    numbers out(cap.size());
    kvtl::split_exactly(weight, cap, total, out);
    return out;
}
/// Per lane of two heads a layer, which compete for 24 entries each behind a window of 32 and keep `sure` of them in any case.
numbers heads_compete(const all_scores& scores, std::uint32_t sure) {
    numbers by_lane;
    for (std::size_t l = 0; l < model.layers; ++l) {
        const std::vector<scores_t> held = {ranked(scores[2 * l], 32, 48), ranked(scores[2 * l + 1], 32, 48)};
        for (const std::uint32_t n : split(counts(held, 48), numbers(2, 48 - sure), 48 - 2 * sure))
            by_lane.push_back(n + sure);
    }
    return by_lane;
}

/// Feeds the prompt, checks every lane, decodes a little, checks attention.
template <class Preset>
void check_preset(const drift& data, const typename precise<Preset>::config& c, const all_scores& scores,
                  const numbers& budget, std::size_t chunk, bool decode = true) {
    CAPTURE(std::string(Preset::name));
    auto cache = open_cache<precise<Preset>>(c);
    const auto seq = *cache.begin();
    const naive truth(data, 0, c.window_tokens);
    double error = 0;
    feed_prompt(cache, seq, data, prompt, chunk, {}, &error);
    CHECK(error < exact);
    const std::size_t per_layer = lanes_per_layer(cache);
    REQUIRE(scores.size() == per_layer * model.layers);
    for (std::size_t i = 0; i < scores.size(); ++i) {
        CAPTURE(i);
        CHECK(kept(cache, seq, i / per_layer, i % per_layer) == truth.best(scores[i], budget[i]));
    }
    CHECK(rows_held(cache, seq) == c.keep_tokens * scores.size());
    CHECK(cache.stats().resident_bytes_peak <= c.memory_bytes);
    for (std::size_t t = prompt; decode && t < prompt + 5; ++t)
        CHECK(decode_and_compare(cache, seq, data, t) < exact);
}

all_scores window_scores(const drift& data, std::size_t window, std::size_t pool, bool maximum) {
    const naive truth(data, 0, window);
    return every_lane([&](std::size_t l, std::size_t h) {
        const scores_t s =
            truth.group_mean(h, [&](std::size_t hq) { return truth.window_sum(l, hq, prompt); });
        return maximum ? naive::max_pool(s, pool) : naive::average_pool(s, pool);
    });
}

} // namespace

TEST_CASE("dynamickv: layers compete every four layers and at the last one") {
    const drift data(model, 400, 21);
    using cache_t = precise<kvtl::presets::dynamickv>;
    auto c = sized<cache_t>(24, 8);
    c.budget.r_max = 5.0F; // 80 of 152: provisional budgets bind
    const std::uint32_t base = 16;
    const all_scores scores = window_scores(data, 8, 7, false);
    std::vector<scores_t> held; // by layer: both heads
    numbers budget;
    for (std::size_t l = 0; l < model.layers; ++l) {
        budget.push_back(5 * base);
        if (l + 1 != 4 && l + 1 != 6) continue;
        held.clear();
        for (std::size_t i = 0; i <= l; ++i) {
            held.push_back(ranked(scores[2 * i], 8, budget[i]));
            const scores_t other = ranked(scores[2 * i + 1], 8, budget[i]);
            held.back().insert(held.back().end(), other.begin(), other.end());
        }
        budget = split(counts(held, base * 2 * (l + 1)), budget, base * model.layers);
    }
    CHECK(std::set(budget.begin(), budget.end()).size() > 2); // the division says something
    numbers by_lane;
    for (const std::uint32_t b : budget) by_lane.insert(by_lane.end(), {b, b});
    for (const std::size_t chunk : {160U, 43U})
        check_preset<kvtl::presets::dynamickv>(data, c, scores, by_lane, chunk);
}

TEST_CASE("dynamickv_qhead: the same with entries of every query head's own") {
    const drift data(model, 400, 28);
    auto c = sized<precise<kvtl::presets::dynamickv_qhead>>(24, 8);
    c.budget.r_max = 5.0F;
    const std::uint32_t base = 16;
    const naive truth(data, 0, 8);
    all_scores scores;
    for (std::size_t l = 0; l < model.layers; ++l)
        for (std::size_t hq = 0; hq < model.query_heads; ++hq)
            scores.push_back(naive::average_pool(truth.window_sum(l, hq, prompt), 7));
    numbers budget;
    for (std::size_t l = 0; l < model.layers; ++l) {
        budget.push_back(5 * base);
        if (l + 1 != 4 && l + 1 != 6) continue;
        std::vector<scores_t> held(l + 1);
        for (std::size_t i = 0; i <= l; ++i)
            for (std::size_t hq = 0; hq < model.query_heads; ++hq) {
                const scores_t one = ranked(scores[i * model.query_heads + hq], 8, budget[i]);
                held[i].insert(held[i].end(), one.begin(), one.end());
            }
        budget = split(counts(held, base * model.query_heads * (l + 1)), budget, base * model.layers);
    }
    CHECK(std::set(budget.begin(), budget.end()).size() > 2);
    numbers by_lane;
    for (const std::uint32_t b : budget) by_lane.insert(by_lane.end(), model.query_heads, b);
    for (const std::size_t chunk : {160U, 43U})
        check_preset<kvtl::presets::dynamickv_qhead>(data, c, scores, by_lane, chunk);
}

TEST_CASE("pyramidkv: less with every layer") {
    const drift data(model, 400, 22);
    using cache_t = precise<kvtl::presets::pyramidkv>;
    const auto c = sized<cache_t>(40, 8);
    numbers by_lane;
    std::vector<double> weight;
    for (int l = 0; l < 6; ++l) weight.push_back(62.4 - (62.4 - 1.6) / 5 * l); // mean 32, smallest 32 / 20
    for (const std::uint32_t b : split(weight, numbers(6, 152), 32 * 6))
        by_lane.insert(by_lane.end(), {b, b});
    check_preset<kvtl::presets::pyramidkv>(data, c, window_scores(data, 8, 5, false), by_lane, 160);
}

TEST_CASE("adakv: heads compete within their layer") {
    const drift data(model, 400, 23);
    using cache_t = precise<kvtl::presets::adakv>;
    const auto c = sized<cache_t>(56, 32);
    const std::uint32_t base = 24, sure = 4; // 0.2 * 24
    const all_scores scores = window_scores(data, 32, 7, true);
    const numbers by_lane = heads_compete(scores, sure);
    CHECK(base * 2 == by_lane[0] + by_lane[1]);
    CHECK(std::set(by_lane.begin(), by_lane.end()).size() > 2);
    check_preset<kvtl::presets::adakv>(data, c, scores, by_lane, 160);
    check_preset<kvtl::presets::adakv>(data, c, scores, by_lane, 50);
}

TEST_CASE("cake: mean and variance rank entries, entropy and variance divide among layers") {
    const drift data(model, 400, 24);
    using cache_t = precise<kvtl::presets::cake>;
    const auto c = sized<cache_t>(56, 32);
    const naive truth(data, 0, 32);
    std::vector<double> preference;
    all_scores scores;
    for (std::size_t l = 0; l < model.layers; ++l) {
        double entropy = 0, variance = 0;
        for (std::size_t h = 0; h < 2; ++h)
            scores.push_back(truth.group_mean(h, [&](std::size_t hq) {
                scores_t mean(prompt, 0.0), square(prompt, 0.0);
                for (std::size_t t = prompt - 32; t < prompt; ++t) {
                    const scores_t p = truth.attention(l, hq, t);
                    for (std::size_t i = 0; i < p.size(); ++i)
                        mean[i] += p[i] / 32, square[i] += p[i] * p[i] / 32;
                    for (std::size_t i = 0; i < prompt - 32; ++i) entropy -= p[i] * std::log(p[i]);
                }
                for (std::size_t i = 0; i < prompt; ++i) {
                    const double var = square[i] - mean[i] * mean[i];
                    if (i < prompt - 32) variance += var;
                    mean[i] += 200.0 * var;
                }
                std::fill(mean.end() - 32, mean.end(), 0.0); // the window's own
                return naive::average_pool(mean, 5);
            }));
        preference.push_back(entropy * variance);
    }
    const std::uint32_t base = 24;
    numbers budget;
    for (std::size_t l = 0; l < model.layers; ++l) {
        budget.push_back(128); // all that compete: less than the whole budget
        budget = split({preference.begin(), preference.begin() + static_cast<std::ptrdiff_t>(l) + 1}, budget,
                       base * model.layers);
    }
    numbers by_lane;
    for (const std::uint32_t b : budget) by_lane.insert(by_lane.end(), {b, b});
    CHECK(std::set(budget.begin(), budget.end()).size() > 2);
    check_preset<kvtl::presets::cake>(data, c, scores, by_lane, 160);
    check_preset<kvtl::presets::cake>(data, c, scores, by_lane, 33);
}

namespace {
/// DefensiveKV's score by definition; `budget` is what a head keeps on average beside the window. `norms`: (L, H, D, D)
/// factors of the sizes of values, or nothing.
all_scores defensive_scores(const drift& data, std::size_t window, std::size_t budget,
                            const std::vector<float>& norms = {}) {
    const naive truth(data, 0, window);
    const std::size_t end = prompt - window, dim = model.head_dim;
    const auto size_of = [&](std::size_t l, std::size_t t, std::size_t h) {
        double sum = 0;
        const float* v = data.value(l, t, h);
        for (std::size_t d = 0; d < dim && norms.empty(); ++d) sum += std::fabs(static_cast<double>(v[d]));
        for (std::size_t i = 0; i < dim && !norms.empty(); ++i) {
            double x = 0;
            for (std::size_t d = 0; d < dim; ++d)
                x += static_cast<double>(norms[((l * model.kv_heads + h) * dim + i) * dim + d]) *
                     static_cast<double>(v[d]);
            sum += x * x;
        }
        return norms.empty() ? sum : std::sqrt(sum);
    };
    const auto total = [](const scores_t& x) { return std::accumulate(x.begin(), x.end(), 0.0); };
    return every_lane([&](std::size_t l, std::size_t h) {
        scores_t worst(end, 0.0), mean(end, 0.0);
        for (std::size_t t = end; t < prompt; ++t)
            for (std::size_t g = 0; g < 2; ++g) {
                scores_t p = truth.attention(l, h * 2 + g, t);
                p.resize(end);
                const scores_t pooled = naive::average_pool(p, 5);
                for (std::size_t i = 0; i < end; ++i) {
                    worst[i] = std::max(worst[i], pooled[i] * total(p) / total(pooled));
                    mean[i] += p[i];
                }
            }
        const double middle = total(worst) / static_cast<double>(end);
        for (std::size_t t = 0; t < end; ++t)
            worst[t] = std::max(worst[t], middle) * size_of(l, t, h) / (size_of(l, t, 0) + size_of(l, t, 1));
        tokens_t by_mean = naive::first(end);
        std::stable_sort(by_mean.begin(), by_mean.end(), [&](auto a, auto b) { return mean[a] > mean[b]; });
        const double paid = static_cast<double>(2 * window), needed = 0.9 * paid - (paid - total(mean));
        double sum = 0;
        for (std::size_t i = 0; i < std::min(budget, end) && sum < needed; ++i) {
            sum += mean[by_mean[i]];
            worst[by_mean[i]] += 10.0; // before all others, in every head and layer
        }
        worst.resize(prompt, 0.0);
        return worst;
    });
}
} // namespace

TEST_CASE("defensivekv and layer_defensivekv: the worst case ranks, heads or layers and heads compete") {
    const drift data(model, 400, 25);
    const all_scores scores = defensive_scores(data, 32, 24);
    for (const bool some_are_sure : {true, false}) { // without them the worst case alone ranks
        using cache_t = precise<kvtl::presets::defensivekv>;
        auto c = sized<cache_t>(56, 32);
        CHECK(c.retention.sure == 0.0F);
        if (some_are_sure) c.retention.sure = 0.9F;
        const all_scores expected = some_are_sure ? scores : defensive_scores(data, 32, 0);
        const numbers by_lane = heads_compete(expected, 4);
        check_preset<kvtl::presets::defensivekv>(data, c, expected, by_lane, 160);
        check_preset<kvtl::presets::defensivekv>(data, c, expected, by_lane, 90);
    }
    {
        using cache_t = precise<kvtl::presets::layer_defensivekv>;
        auto c = sized<cache_t>(56, 32);
        c.budget.interval = 6; // one division, at the last layer
        c.retention.sure = 0.9F;
        std::vector<scores_t> held;
        for (const scores_t& s : scores) held.push_back(ranked(s, 32, 128));
        const numbers by_lane = split(counts(held, 24 * 12), numbers(12, 128), 24 * 12);
        check_preset<kvtl::presets::layer_defensivekv>(data, c, scores, by_lane, 160);
    }
}

TEST_CASE(
    "defensivekv: values count as what the output projection makes of them, from the calibration file") {
    const drift data(model, 400, 25);
    const auto norms = oracle::normal_values(
        std::size_t{model.layers} * model.kv_heads * model.head_dim * model.head_dim, 77);
    kvtl::calibration_writer out(model, 5);
    REQUIRE(out.add(kvtl::calibration_kind::value_norms, model.head_dim, norms));
    const scratch_folder here;
    REQUIRE(out.write(here.file("a.cal")));
    using cache_t = precise<kvtl::presets::defensivekv>;
    auto c = sized<cache_t>(56, 32);
    const auto before = cache_t::least_parts(c);
    c.calibration = here.file("a.cal"), c.calibration_model = 5;
    const auto parts = cache_t::least_parts(c);
    REQUIRE(before);
    REQUIRE(parts);
    CHECK(parts->calibration == norms.size() * sizeof(float)); // counted in the reservation
    CHECK(before->calibration == 0);
    const all_scores plain = defensive_scores(data, 32, 0), expected = defensive_scores(data, 32, 0, norms);
    const numbers by_lane = heads_compete(expected, 4);
    CHECK(heads_compete(plain, 4) != by_lane); // the factors say something
    check_preset<kvtl::presets::defensivekv>(data, c, expected, by_lane, 160);
    check_preset<kvtl::presets::defensivekv>(data, c, expected, by_lane, 90);
    c.calibration_model = 6;
    const auto refused = cache_t::open(c);
    REQUIRE(!refused);
    CHECK(refused.error().message.find("another model") != std::string::npos);
    // A file of before, without the section, changes nothing.
    kvtl::calibration_writer old(model, 5);
    REQUIRE(old.add(kvtl::calibration_kind::pca_basis, model.head_dim, norms));
    REQUIRE(old.write(here.file("old.cal")));
    c.calibration = here.file("old.cal"), c.calibration_model = 5;
    check_preset<kvtl::presets::defensivekv>(data, c, plain, heads_compete(plain, 4), 160);
}

TEST_CASE("the worst case is kept where the mean over the window loses it") {
    // One query of the window needs one entry badly; on average others are attended more.
    constexpr kvtl::shape one{1, 1, 1, 16};
    constexpr std::uint32_t tokens = 64, needle = 7, window = 16;
    const auto needle_held = [&]<class Preset>(Preset) {
        using cache_t = precise<Preset>;
        typename cache_t::config c;
        c.shape = one;
        c.max_tokens = tokens;
        c.keep_tokens = window + 12;
        c.window_tokens = window;
        c.memory_bytes = std::size_t{4} << 20;
        c.retention.pool_width = 1;
        if constexpr (requires { c.retention.sure; }) c.retention.sure = 0.5F; // the eight, and no others
        std::vector<float> q(tokens * 16, 0.0F), k(tokens * 16, 0.0F), v(tokens * 16, 1.0F), out(tokens * 16);
        for (std::uint32_t t = 0; t < tokens; ++t) {
            // Eight entries hold 8/10 of every query's attention, ten others the rest: 2 % each.
            const bool old = t < tokens - window, crowd = old && t % 6 == 3,
                       some = old && t % 5 == 4 && !crowd;
            k[t * 16 + (t == needle ? 1 : crowd ? 2 : some ? 4 : 3)] = 8.0F;
            q[t * 16 + 2] = 8.0F;
            q[t * 16 + 4] = 7.2F;
            if (t == tokens - 5) q[t * 16 + 1] = 8.68F; // 28 % for the needle, 1.75 % on average
        }
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        kvtl::layer_input in;
        in.q = q, in.k = k, in.v = v;
        require_ok(cache.prefill(seq, 0, in, out));
        const tokens_t held = kept(cache, seq, 0, 0);
        return std::find(held.begin(), held.end(), needle) != held.end();
    };
    CHECK_FALSE(needle_held(kvtl::presets::adakv{}));
    CHECK(needle_held(kvtl::presets::defensivekv{}));
}

TEST_CASE("compress_kv: voting heads decide for their layer, a table divides among layers") {
    const drift data(model, 400, 26);
    using cache_t = precise<kvtl::presets::compress_kv>;
    auto c = sized<cache_t>(48, 8);
    std::vector<std::uint8_t> votes(model.layers * 4, 0);
    for (std::size_t l = 0; l < model.layers; ++l) votes[l * 4 + l % 4] = votes[l * 4 + (l + 1) % 4] = 1;
    const std::vector<float> importance = {1, 2, 3, 4, 5, 6};
    c.retention.votes = votes;
    c.budget.importance = importance;
    c.budget.least = 10;
    const naive truth(data, 0, 8);
    const all_scores scores = every_lane([&](std::size_t l, std::size_t) {
        scores_t sum(prompt, 0.0);
        for (std::size_t hq = 0; hq < 4; ++hq)
            if (votes[l * 4 + hq] != 0) {
                const scores_t s = truth.window_sum(l, hq, prompt);
                for (std::size_t i = 0; i < prompt; ++i) sum[i] += s[i];
            }
        return naive::average_pool(sum, 5);
    });
    numbers by_lane;
    const std::uint32_t sure = 10 - 8, most = 3 * 48 - 8; // both count the window
    for (const std::uint32_t b : split({1, 2, 3, 4, 5, 6}, numbers(6, most - sure), (40 - sure) * 6))
        by_lane.insert(by_lane.end(), {b + sure, b + sure});
    check_preset<kvtl::presets::compress_kv>(data, c, scores, by_lane, 160);
}

TEST_CASE("duo_attention: heads that retrieve keep the prompt, the others sinks and the latest") {
    const drift data(model, 400, 28);
    using cache_t = precise<kvtl::presets::duo_attention>;
    auto c = sized<cache_t>(80, 8);
    c.sink_tokens = 4;
    c.retention.votes.assign(model.layers * model.query_heads, 0);
    for (const std::size_t head : {1U, 3U, 4U, 22U})
        c.retention.votes[head] = 1; // KV heads 0, 1, 2, 11 of 12
    auto cache = open_cache<cache_t>(c);
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, prompt, 70);
    for (std::size_t lane = 0; lane < 12; ++lane) {
        CAPTURE(lane);
        const bool retrieves = lane < 3 || lane == 11;
        tokens_t expected = naive::first(retrieves ? prompt : 4);
        // 12 heads * 80 entries, less 4 whole prompts: 40 for each of the other 8, sinks included.
        for (std::uint32_t t = prompt - 36; t < prompt && !retrieves; ++t) expected.push_back(t);
        CHECK(kept(cache, seq, lane / 2, lane % 2) == expected);
    }
    for (std::size_t t = prompt; t < prompt + 5; ++t) CHECK(decode_and_compare(cache, seq, data, t) < exact);
}

TEST_CASE("everything kept is dense attention") {
    const drift data(model, 400, 27);
    const auto run = [&]<class Preset>(Preset) {
        using cache_t = precise<Preset>;
        auto c = sized<cache_t>(400, 8);
        auto cache = open_cache<cache_t>(c);
        reader one(cache, data, 5);
        one.prefill(90, 40);
        one.decode(20);
        CHECK(one.error() < exact);
        one.check_tokens();
    };
    run(kvtl::presets::dynamickv{});
    run(kvtl::presets::cake{});
    run(kvtl::presets::adakv{});
    run(kvtl::presets::pyramidkv{});
    run(kvtl::presets::layer_defensivekv{});
    run(kvtl::presets::defensivekv_max{});
    run(kvtl::presets::layer_defensivekv_mean{});
    run(kvtl::presets::duo_attention{});
    run(kvtl::presets::expected_attention_heads{});
}

} // namespace dynamickv_test
