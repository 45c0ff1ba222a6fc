// Units that are fixed groups of consecutive tokens: what is chosen for a current and for a predicted query,
// in lanes of one head and of a whole layer, against a naive choice from exact keys.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/policies/estimate_scored_mean.hpp>
#include <kvtl/policies/schedule_next_layer.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/full.hpp>

#include "support/cache_fixture.hpp"

#include <numeric>

namespace manager_groups_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape model{3, 4, 2, 64};

/// Scores every entry by its own key: an index as a user might write it.
struct own_keys {
    static constexpr std::string_view name = "own_keys";
    static constexpr bool needs_means = false, scores = true, summarises = true, per_entry = true;
    struct config {};
    struct state {
        state() = default;
        state(const config&, const kvtl::geometry&) noexcept {}
        static std::size_t unit_bytes(const kvtl::summary_shape& s) noexcept {
            return s.max_entries * s.width() * sizeof(float);
        }
        static std::size_t lane_bytes(const kvtl::summary_shape&) noexcept { return 0; }
        static void clear(const kvtl::summary_view&, std::uint32_t) noexcept {}
        static void absorb(const kvtl::summary_view& s, std::uint32_t u, std::uint32_t i, const float* key,
                           const float*) noexcept {
            std::copy_n(key, s.shape.width(), s.of<float>(u) + i * s.shape.width());
        }
        static void score(const float* q, std::uint32_t n, const kvtl::units_view& u,
                          std::span<float> out) noexcept {
            const std::size_t dim = u.summary.shape.dim, width = u.summary.shape.width();
            for (std::uint32_t g = 0; g < n; ++g)
                for (std::uint32_t e = 0; e < u.count * u.max_entries; ++e) {
                    const float* key =
                        u.summary.of<float>(e / u.max_entries) + e % u.max_entries * width + u.head * dim;
                    out[g * u.count * u.max_entries + e] =
                        static_cast<float>(oracle::dot(q + g * dim, key, dim));
                }
        }
    };
};

/// The same, and units 2 and 5 are chosen in any case.
struct own_keys_pinned : own_keys {
    static constexpr std::string_view name = "own_keys_pinned";
    static constexpr bool pins = true;
    struct state : own_keys::state {
        using own_keys::state::state;
        template <class Visit>
        static void pinned(const kvtl::units_view& u, std::uint32_t, std::uint32_t, Visit&& visit) noexcept {
            for (const std::uint32_t i : {2U, 5U})
                if (i < u.count) visit(i);
        }
    };
};

template <class Clusterer, kvtl::query Source = kvtl::query::current, class Reduce = kvtl::reduce::group_mean>
struct grouped : kvtl::presets::full {
    static constexpr std::string_view name = "grouped";
    static constexpr std::uint32_t window_tokens = 8, sink_tokens = 3;
    using clusterer = Clusterer;
    using index = own_keys;
    using selector = kvtl::topk<Reduce, Source>;
    using schedule = kvtl::next_layer;
    using compressor = kvtl::raw<float>;
    using io = kvtl::faulty<kvtl::in_memory>;
};
using token_cache = kvtl::kv_manager<grouped<kvtl::single_tokens>>;
using layer_cache = kvtl::kv_manager<grouped<kvtl::fixed_layer_groups>>;
using ahead_cache =
    kvtl::kv_manager<grouped<kvtl::fixed_layer_groups, kvtl::query::predicted, kvtl::reduce::softmax_sum>>;
using query_cache = kvtl::kv_manager<grouped<kvtl::fixed_groups, kvtl::query::current, kvtl::reduce::none>>;

/// Every query for itself, what overshoots cut off; every head of a layer-wide lane for itself.
struct cut : grouped<kvtl::fixed_groups, kvtl::query::current, kvtl::reduce::none> {
    using selector = kvtl::topk<kvtl::reduce::none, kvtl::query::current, kvtl::overshoot::cut_off>;
};
using cut_cache = kvtl::kv_manager<cut>;
/// And what nobody reads goes to the mean value, by scores that are exact.
struct with_mean : grouped<kvtl::fixed_groups, kvtl::query::current, kvtl::reduce::none> {
    using estimator = kvtl::scored_mean;
};
using mean_cache = kvtl::kv_manager<with_mean>;
using head_cache = kvtl::kv_manager<grouped<kvtl::fixed_layer_groups, kvtl::query::current,
                                            kvtl::reduce::by_head<kvtl::reduce::softmax_sum>>>;

struct pinning : grouped<kvtl::fixed_layer_groups, kvtl::query::current,
                         kvtl::reduce::by_head<kvtl::reduce::softmax_sum>> {
    using index = own_keys_pinned;
};
using pinning_cache = kvtl::kv_manager<pinning>;

template <class Cache> typename Cache::config config_for(std::size_t attend_tokens, std::uint32_t group) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = 400;
    c.attend_tokens = attend_tokens;
    c.clusterer.group_tokens = group;
    c.memory_bytes = std::size_t{8} << 20;
    return c;
}

/// What attention over the naive choice would be: out (HQ, D) and log-sum-exp (HQ) of token t.
struct naive {
    std::uint32_t group = 1, lane_heads = 1, window = 8, sinks = 3;
    std::size_t attend_tokens = 0;
    bool soft = false, per_query = false, per_head = false, truncates = false, mean_rest = false;
    bool pins = false;

    void operator()(const drift& data, std::size_t layer, std::size_t t, const float* guess,
                    std::vector<double>& out, std::vector<double>& lse) const {
        const std::size_t dim = 64, units = t > sinks + window ? (t - sinks - window) / group : 0;
        const std::size_t begin = sinks + units * group; // the window begins here
        out.assign(model.query_heads * dim, 0);
        lse.assign(model.query_heads, 0);
        std::vector<std::vector<double>> mean_value(model.kv_heads, std::vector<double>(dim, 0)); // of units
        for (std::size_t h = 0; h < model.kv_heads; ++h)
            for (std::size_t e = sinks; e < begin; ++e)
                for (std::size_t d = 0; d < dim; ++d)
                    mean_value[h][d] +=
                        static_cast<double>(data.value(layer, e, h)[d]) / static_cast<double>(begin - sinks);
        for (std::size_t lane = 0; lane < model.kv_heads / lane_heads; ++lane) {
            // Scores per entry, then the best entry of each unit.
            std::vector<std::vector<double>> of_query;
            std::vector<double> entry(units * group, 0);
            for (std::size_t h = lane * lane_heads; h < (lane + 1) * lane_heads; ++h)
                for (std::size_t g = 0; g < 2; ++g) {
                    std::vector<double> s(entry.size());
                    for (std::size_t e = 0; e < s.size(); ++e)
                        s[e] = oracle::dot(guess + (h * 2 + g) * dim, data.key(layer, sinks + e, h), dim) /
                               (soft ? 8.0 : 2.0);
                    if (soft && !s.empty()) {
                        const double largest = *std::max_element(s.begin(), s.end());
                        double sum = 0;
                        for (double& x : s) sum += x = std::exp(x - largest);
                        for (double& x : s) x /= sum;
                    }
                    for (std::size_t e = 0; e < s.size(); ++e) entry[e] += s[e];
                    of_query.push_back(s);
                }
            for (std::size_t h = lane * lane_heads; h < (lane + 1) * lane_heads; ++h)
                for (std::size_t g = 0; g < 2; ++g) {
                    const std::size_t first_query = (h - lane * lane_heads) * 2;
                    auto score = per_query ? of_query[first_query + g] : entry;
                    if (per_head)
                        for (std::size_t e = 0; e < score.size(); ++e)
                            score[e] = of_query[first_query][e] + of_query[first_query + 1][e];
                    std::vector<std::size_t> order(units);
                    std::iota(order.begin(), order.end(), 0U);
                    const auto best = [&](std::size_t u) {
                        if (pins && (u == 2 || u == 5)) return 1e30;
                        const auto first = score.begin() + static_cast<std::ptrdiff_t>(u * group);
                        return *std::max_element(first, first + group);
                    };
                    std::stable_sort(order.begin(), order.end(),
                                     [&](std::size_t a, std::size_t b) { return best(a) > best(b); });
                    std::vector<std::size_t> seen;
                    for (std::size_t i = 0; i < std::min<std::size_t>(sinks, t + 1); ++i) seen.push_back(i);
                    for (std::size_t i = begin; i <= t; ++i) seen.push_back(i);
                    const std::size_t left = attend_tokens > seen.size() ? attend_tokens - seen.size() : 0;
                    for (std::size_t i = 0; i < std::min(units, left / group); ++i)
                        for (std::size_t e = 0; e < group; ++e) seen.push_back(sinks + order[i] * group + e);
                    if (truncates && left / group < units)
                        for (std::size_t e = 0; e < left % group; ++e)
                            seen.push_back(sinks + order[left / group] * group + e);
                    double sum = 0;
                    const float* q = data.q(layer, t).data() + (h * 2 + g) * dim;
                    for (const std::size_t i : seen) {
                        const double w = std::exp(oracle::dot(q, data.key(layer, i, h), dim) / 8);
                        sum += w;
                        for (std::size_t d = 0; d < dim; ++d)
                            out[(h * 2 + g) * dim + d] += w * static_cast<double>(data.value(layer, i, h)[d]);
                    }
                    lse[h * 2 + g] = std::log(sum);
                    for (std::size_t i = sinks; mean_rest && i < begin; ++i) {
                        if (std::find(seen.begin(), seen.end(), i) != seen.end()) continue;
                        const double w = std::exp(oracle::dot(q, data.key(layer, i, h), dim) / 8);
                        sum += w;
                        for (std::size_t d = 0; d < dim; ++d)
                            out[(h * 2 + g) * dim + d] += w * mean_value[h][d];
                    }
                    for (std::size_t d = 0; d < dim; ++d) out[(h * 2 + g) * dim + d] /= sum;
                }
        }
    }
};

/// Prompts and steps; `guess(layer, token)` is the query that decides, handed over ahead when it is another. In the first
/// `own` layers the true query decides even so.
template <class Cache, class Guess>
void compare(typename Cache::config c, const naive& expected, Guess&& guess, std::size_t own = 0) {
    const drift data(model, 400, 31);
    auto cache = open_cache<Cache>(c);
    const auto seq = *cache.begin();
    std::size_t t = 0;
    for (const std::size_t chunk : {90U, 1U, 60U}) {
        for (std::size_t l = 0; l < model.layers; ++l) {
            auto in = data.input(l, t, chunk);
            for (unsigned s = 0; s < cache.shards(); ++s) require_ok(cache.prefill(seq, l, in, {}, s));
        }
        t += chunk;
    }
    oracle::largest_error error;
    std::vector<double> out, lse;
    for (int step = 0; step < 80; ++step, ++t)
        for (std::size_t l = 0; l < model.layers; ++l) {
            const float* q = guess(data, l, t);
            const bool ahead = q != data.q(l, t).data();
            std::vector<float> got(data.query_floats()), got_lse(model.query_heads, NAN);
            auto in = data.input(l, t);
            in.lse = got_lse;
            for (unsigned s = 0; s < cache.shards(); ++s) {
                if (ahead) require_ok(cache.prefetch(seq, l, {q, data.query_floats()}, s));
                require_ok(cache.attend(seq, l, in, got, s));
            }
            expected(data, l, t, l < own ? data.q(l, t).data() : q, out, lse);
            for (std::size_t i = 0; i < out.size(); ++i) error.see(static_cast<double>(got[i]) - out[i]);
            for (std::size_t i = 0; i < lse.size(); ++i) error.see(static_cast<double>(got_lse[i]) - lse[i]);
        }
    CHECK(error.value() < exact);
    CHECK(cache.stats().resident_bytes_peak <= c.memory_bytes);
    CHECK(cache.stats().read_bytes > 0);
}

const float* true_query(const drift& data, std::size_t layer, std::size_t t) {
    return data.q(layer, t).data();
}
const float* other_query(const drift& data, std::size_t layer, std::size_t t) {
    return layer == 0 ? true_query(data, layer, t) : data.q(layer, t - 1).data();
}
} // namespace

TEST_CASE("the best groups by exact scores are attended") {
    for (const unsigned shards : {1U, 2U})
        for (const std::uint32_t group : {1U, 4U, 7U}) {
            CAPTURE(group);
            auto c = config_for<token_cache>(60, group);
            c.shards = shards;
            for (const bool smallest : {false, true}) {
                if (smallest) c.memory_bytes = least_memory<token_cache>(c);
                compare<token_cache>(c, {.group = group, .attend_tokens = 60}, true_query);
            }
        }
}

TEST_CASE("a layer's heads choose together") {
    for (const std::uint32_t group : {1U, 4U})
        compare<layer_cache>(config_for<layer_cache>(60, group),
                             {.group = group, .lane_heads = 2, .attend_tokens = 60}, true_query);
}

TEST_CASE("a predicted query decides, whatever the true one is") {
    auto c = config_for<ahead_cache>(60, 4);
    for (const std::uint32_t own : {2U, 1U, 3U}) { // of three layers; two is what a cache opens with
        CAPTURE(own);
        CHECK((own != 2 || c.schedule.true_layers == own));
        c.schedule.true_layers = own;
        compare<ahead_cache>(c, {.group = 4, .lane_heads = 2, .attend_tokens = 60, .soft = true}, other_query,
                             own);
    }
    c.schedule.true_layers = 0;
    const auto refused = ahead_cache::open(c);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message ==
          "schedule.true_layers is 0; valid: 1 (no layer predicts the query of layer 0) or more");
}

TEST_CASE("every query chooses for itself") {
    compare<query_cache>(config_for<query_cache>(60, 4), {.group = 4, .attend_tokens = 60, .per_query = true},
                         true_query);
}

TEST_CASE("what would overshoot is cut off, for every query where its own budget ends") {
    for (const std::uint32_t group : {4U, 40U}) { // gathered, and attended page by page
        CAPTURE(group);
        auto c = config_for<cut_cache>(group == 4 ? 54 : 100, group);
        for (const bool smallest : {false, true}) {
            if (smallest) c.memory_bytes = least_memory<cut_cache>(c);
            compare<cut_cache>(
                c, {.group = group, .attend_tokens = c.attend_tokens, .per_query = true, .truncates = true},
                true_query);
        }
    }
}

TEST_CASE("what the index pins is chosen before what scores best") {
    const auto c = config_for<pinning_cache>(54, 4);
    compare<pinning_cache>(c,
                           {.group = 4,
                            .lane_heads = 2,
                            .attend_tokens = c.attend_tokens,
                            .soft = true,
                            .per_head = true,
                            .pins = true},
                           true_query);
}

TEST_CASE("what is not read goes to the mean value of all entries in units") {
    for (const std::uint32_t group : {1U, 7U}) {
        CAPTURE(group);
        auto c = config_for<mean_cache>(60, group);
        for (const bool smallest : {false, true}) {
            if (smallest) c.memory_bytes = least_memory<mean_cache>(c);
            compare<mean_cache>(
                c, {.group = group, .attend_tokens = 60, .per_query = true, .mean_rest = true}, true_query);
        }
    }
}

TEST_CASE("every head of a lane of several chooses for itself") {
    for (const std::uint32_t group : {4U, 40U}) {
        CAPTURE(group);
        auto c = config_for<head_cache>(group == 4 ? 54 : 100, group);
        for (const bool smallest : {false, true}) {
            if (smallest) c.memory_bytes = least_memory<head_cache>(c);
            compare<head_cache>(c,
                                {.group = group,
                                 .lane_heads = 2,
                                 .attend_tokens = c.attend_tokens,
                                 .soft = true,
                                 .per_head = true},
                                true_query);
        }
    }
}

TEST_CASE("without a prediction the true query decides, read on demand and counted") {
    compare<ahead_cache>(config_for<ahead_cache>(60, 4),
                         {.group = 4, .lane_heads = 2, .attend_tokens = 60, .soft = true}, true_query);
    const drift data(model, 400, 32);
    auto cache = open_cache<ahead_cache>(config_for<ahead_cache>(60, 4));
    reader<ahead_cache> one(cache, data, 0);
    one.prefill(200);
    one.decode(3);
    CHECK(cache.stats().unpredicted_choices == 3 * model.layers);
    one.step([&](std::size_t l) { require_ok(cache.prefetch(one.id(), l, data.q(l, 17))); });
    CHECK(cache.stats().unpredicted_choices == 3 * model.layers + 2); // layers 0 and 1 go by their own
    const auto read = cache.stats().read_bytes;
    require_ok(cache.prefetch(one.id(), 1, data.q(1, 17)));
    CHECK(cache.stats().read_bytes == read); // a guess of what layer 1 will not go by
}

TEST_CASE("a prompt whose first chunk fails leaves an empty sequence") {
    const drift data(model, 400, 33);
    auto c = config_for<layer_cache>(60, 4);
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto cache = open_cache<layer_cache>(c);
    const auto seq = *cache.begin();
    std::vector<float> out(150 * data.query_floats());
    c.io.faults->full_beyond = 0;
    CHECK_FALSE(cache.prefill(seq, 0, data.input(0, 0, 150), out).ok());
    CHECK(cache.tokens(seq, 0) == 0);
    c.io.faults->full_beyond = kvtl::io_faults::never;
    require_ok(cache.prefill(seq, 0, data.input(0, 0, 150), out));
    CHECK(cache.tokens(seq, 0) == 150);
    oracle::largest_error error;
    for (std::size_t t = 0; t < 150; t += 7) {
        const auto dense = dense_attention<float>(data, 0, t);
        for (std::size_t i = 0; i < dense.size(); ++i)
            error.see(static_cast<double>(out[t * data.query_floats() + i]) - dense[i]);
    }
    CHECK(error.value() < exact);
    for (std::size_t l = 1; l < model.layers; ++l)
        require_ok(cache.prefill(seq, l, data.input(l, 0, 150), {}));
    // A read that fails is an error of that call only.
    c.io.faults->reads = 0;
    c.io.faults->fail_read.first = 0;
    std::vector<float> step(data.query_floats());
    CHECK_FALSE(cache.attend(seq, 0, data.input(0, 150), step).ok());
    CHECK(cache.tokens(seq, 0) == 150);
    require_ok(cache.attend(seq, 0, data.input(0, 150), step));
    CHECK(cache.tokens(seq, 0) == 151);
}

TEST_CASE_TEMPLATE("a prompt has the same bits however it is cut, and a chunk reads what lies before it once",
                   Cache, token_cache, layer_cache, query_cache) {
    auto c = config_for<Cache>(1200, 4);
    c.max_tokens = 1200;
    const drift data(model, 1200, 34);
    const auto play = [&](std::size_t chunk, std::uint64_t& read) {
        auto cache = open_cache<Cache>(c);
        reader<Cache> one(cache, data);
        one.prefill(900, chunk);
        read = cache.stats().read_bytes;
        const std::vector<float> prompt = one.outputs();
        one.decode(2);
        one.prefill(130); // a further turn
        one.decode(2);
        CHECK(one.error() < exact);
        return prompt;
    };
    std::uint64_t whole = 0;
    const std::vector<float> expected = play(900, whole);
    CHECK(whole == 0);
    for (const std::size_t chunk : {std::size_t{300}, std::size_t{111}, std::size_t{17}}) {
        CAPTURE(chunk);
        std::uint64_t read = 0;
        const std::vector<float> cut = play(chunk, read);
        REQUIRE(cut.size() == expected.size());
        // Outputs come by chunk, layer and token.
        const std::size_t row = data.query_floats();
        std::size_t at = 0;
        for (std::size_t first = 0; first < 900; first += chunk)
            for (std::size_t l = 0; l < model.layers; ++l)
                for (std::size_t t = first; t < std::min(first + chunk, std::size_t{900}); ++t, at += row)
                    REQUIRE(std::memcmp(&cut[at], &expected[(l * 900 + t) * row], row * sizeof(float)) == 0);
        // Entries of 512 bytes a head; unfinished pages are in memory.
        std::uint64_t once = 0;
        for (std::size_t first = chunk; first < 900; first += chunk) once += first;
        CHECK(read <= once * model.layers * model.kv_heads * 512);
        CHECK(read > once * model.layers * model.kv_heads * 512 / 2);
    }
}

TEST_CASE("results of 16 bits are those of floats, also where a chunk's queries come in several passes") {
    auto c = config_for<query_cache>(1200, 4);
    c.max_tokens = 1200;
    const drift data(model, 900, 35);
    auto one = open_cache<query_cache>(c), two = open_cache<query_cache>(c);
    const auto a = *one.begin(), b = *two.begin();
    for (std::size_t first = 0; first < 900; first += 300) {
        std::vector<float> whole(300 * data.query_floats());
        std::vector<kvtl::f16> half(whole.size());
        auto in = data.input(0, first, 300);
        in.last_chunk = first == 600;
        require_ok(one.prefill(a, 0, in, whole));
        require_ok(two.prefill(b, 0, in, half));
        for (std::size_t i = 0; i < whole.size(); ++i)
            REQUIRE(kvtl::to_float(half[i]) == kvtl::to_float(kvtl::from_float<kvtl::f16>(whole[i])));
    }
}

TEST_CASE(
    "whichever read of a chunk fails, in either shard, the call may be repeated and gives the same bits") {
    auto c = config_for<query_cache>(400, 4);
    c.shards = 2;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto& f = *c.io.faults;
    const drift data(model, 400, 36);
    std::size_t failures = 0;
    const auto play = [&](bool failing) {
        auto cache = open_cache<query_cache>(c);
        const auto seq = *cache.begin();
        std::vector<float> outputs;
        for (std::size_t first = 0; first < 360; first += 120)
            for (std::size_t l = 0; l < model.layers; ++l) {
                std::vector<float> out(120 * data.query_floats(), NAN);
                auto in = data.input(l, first, 120);
                in.last_chunk = first == 240;
                for (std::uint64_t n = 0;;
                     ++n) { // the first read of the call fails, then the second, until none does
                    if (failing) f.fail_read.first = f.reads.load() + n;
                    const kvtl::status s = cache.prefill(seq, l, in, out);
                    f.fail_read.first = kvtl::io_faults::never;
                    if (s.ok()) break;
                    ++failures;
                    CHECK(s.code() == kvtl::errc::io_error);
                    for (unsigned i = 0; i < 2; ++i)
                        CHECK(kvtl::shard_access::of(cache, i).tokens(
                                  seq.slot, static_cast<std::uint32_t>(l)) == first);
                    REQUIRE(n < 50);
                }
                outputs.insert(outputs.end(), out.begin(), out.end());
            }
        for (std::size_t l = 0; l < model.layers; ++l) {
            std::vector<float> out(data.query_floats());
            require_ok(cache.attend(seq, l, data.input(l, 360), out));
            outputs.insert(outputs.end(), out.begin(), out.end());
        }
        return outputs;
    };
    const auto should = play(false);
    CHECK(same_bits(play(true), should));
    CHECK(failures > 8);
}

} // namespace manager_groups_test
