// merge_into: what leaves goes into what stays, by three rules; counts add up, and equal keys stay what they
// were. SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_external.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/policies/retain_merge.hpp>

#include "contracts/retention.hpp"

namespace retain_merge_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {

constexpr std::uint32_t dim = 24;

/// Rows of a lane as the shard shows them.
struct row_set {
    struct one {
        std::uint32_t token;
        std::vector<float> k, v;
        float weight = 0; ///< logarithm of the count
        float score = 0;
    };
    std::vector<one>* row;

    [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(row->size()); }
    [[nodiscard]] std::uint32_t token(std::uint32_t i) const { return (*row)[i].token; }
    [[nodiscard]] float* key(std::uint32_t i) const { return (*row)[i].k.data(); }
    [[nodiscard]] float* value(std::uint32_t i) const { return (*row)[i].v.data(); }
    [[nodiscard]] float& log_weight(std::uint32_t i) const { return (*row)[i].weight; }
    [[nodiscard]] float score(std::uint32_t i) const { return (*row)[i].score; }
};
using table = std::vector<row_set::one>;

table random_rows(const std::vector<std::uint32_t>& tokens, std::uint64_t seed) {
    table t;
    for (const std::uint32_t token : tokens)
        t.push_back({token, oracle::normal_values(dim, seed + token),
                     oracle::normal_values(dim, seed + 1000 + token)});
    return t;
}
double cosine(const std::vector<float>& a, const std::vector<float>& b) {
    return oracle::dot(a.data(), b.data(), dim) /
           std::sqrt(oracle::dot(a.data(), a.data(), dim) * oracle::dot(b.data(), b.data(), dim));
}
bool same(const table& a, const table& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
        return x.token == y.token && x.k == y.k && x.v == y.v && x.weight == y.weight;
    });
}

template <class Rule> struct merger {
    using score = merging_score<external_scores, Rule>;
    explicit merger(const typename Rule::config& rule = {}, std::uint32_t first = 2)
        : memory(state_of<score>::bytes({}, limits())), state(configured(rule), limits(), memory.memory()),
          sinks(first) {}
    static score_limits limits() { return retention_suite::extents{100, dim}.limits(); }
    static typename score::config configured(const typename Rule::config& rule) {
        typename score::config c;
        c.rule = rule;
        return c;
    }
    void leave(table& rows, const row_set::one& entry) {
        const leaving_entry<float> leaving{entry.token, entry.k.data(), entry.v.data(), entry.weight,
                                           entry.score};
        state.merge(row_set{&rows}, leaving, sinks, bar);
        CHECK(memory.intact());
    }
    guarded_bytes memory;
    state_of<score> state;
    std::uint32_t sinks;
    float bar = 0;
};

} // namespace

TEST_CASE("merge_into hands on what score and rule declare") {
    using slot = merge_into<heavy_hitters_after_prompt, nearest_key>;
    CHECK((slot::drops && slot::merges));
    CHECK(slot::name == nearest_key::name);
    CHECK(slot::needs == heavy_hitters_after_prompt::needs);
    CHECK(slot::reads_mass == feedback::full);
    declares<slot::score>();
    CHECK((!slot::joins && merge_into<external_scores, similar_runs>::joins));
    declares<merge_into<external_scores, next_values>::score>();
    declares<merge_into<external_scores, similar_runs>::score>();
    CHECK(setting_names(slot::config{}) == std::vector<std::string>{"smoothing"});
    CHECK(setting_names(merge_into<external_scores, next_values>::config{}) ==
          std::vector<std::string>{"spread", "seed"});
    CHECK(setting_names(merge_into<external_scores, similar_runs>::config{}) ==
          std::vector<std::string>{"similarity", "unmerged", "counted"});
}

TEST_CASE(
    "nearest_key: the largest cosine takes part as often as it reaches the running mean of such cosines") {
    merger<nearest_key> m({.smoothing = 0.25F});
    table rows = random_rows({0, 1, 5, 9, 12, 20, 33}, 7);
    double bar = 0;
    std::size_t merged = 0, left = 0;
    for (std::uint32_t i = 0; i < 60; ++i) {
        const table before = rows;
        const row_set::one entry = random_rows({100 + i}, 900)[0];
        std::size_t best = 2; // of all but the sinks, tokens 0 and 1
        for (std::size_t r = 2; r < rows.size(); ++r)
            if (cosine(entry.k, rows[r].k) > cosine(entry.k, rows[best].k)) best = r;
        const double c = cosine(entry.k, rows[best].k);
        bar = i == 0 ? c : 0.25 * bar + 0.75 * c;
        m.leave(rows, entry);
        CHECK(std::fabs(static_cast<double>(m.bar) - bar) < 1e-5);
        if (c < bar || c <= 0) {
            CHECK(same(rows, before));
            ++left;
            continue;
        }
        ++merged;
        const double stays = std::exp(static_cast<double>(before[best].weight)), share = c / (stays + c);
        CHECK(std::fabs(std::exp(static_cast<double>(rows[best].weight)) - (stays + 1)) < 1e-4);
        for (std::uint32_t d = 0; d < dim; ++d) {
            const auto blend = [&](const auto& from, const auto& to) {
                return (1 - share) * static_cast<double>(from[d]) + share * static_cast<double>(to[d]);
            };
            CHECK(std::fabs(static_cast<double>(rows[best].k[d]) - blend(before[best].k, entry.k)) < 1e-5);
            CHECK(std::fabs(static_cast<double>(rows[best].v[d]) - blend(before[best].v, entry.v)) < 1e-5);
        }
        table others = before;
        others[best] = rows[best];
        CHECK(same(rows, others)); // one row changed, sinks never
    }
    CHECK(merged > 10);
    CHECK(left > 10);
}

TEST_CASE("next_values: a value goes into those of the next kept tokens, as often as its score says") {
    merger<next_values> m({.spread = 3, .seed = 9});
    table rows = random_rows({30, 0, 7, 12, 1, 21}, 7); // in any order
    const float scores[] = {0.5F, 8.0F, 1.0F, 2.0F, 0.0F, 0.3F};
    for (std::size_t r = 0; r < rows.size(); ++r) rows[r].score = scores[r];
    const table start = rows;
    std::vector<std::vector<double>> value;
    for (const auto& r : rows) value.emplace_back(r.v.begin(), r.v.end());
    std::size_t merged = 0;
    for (std::uint32_t i = 0; i < 200; ++i) {
        row_set::one entry = random_rows({i % 40}, 900 + i)[0];
        entry.score = static_cast<float>(i % 10);
        const table before = rows;
        m.leave(rows, entry);
        // The three tokens behind it, and of these only values: a third of the entry's.
        std::vector<std::size_t> next;
        for (std::size_t r = 0; r < rows.size(); ++r)
            if (rows[r].token > entry.token) next.push_back(r);
        std::sort(next.begin(), next.end(),
                  [&](std::size_t a, std::size_t b) { return rows[a].token < rows[b].token; });
        if (next.size() > 3) next.resize(3);
        const bool changed = !same(rows, before);
        if (entry.score >= 8.0F) CHECK(changed == !next.empty()); // the largest of those held, or more
        if (entry.score <= 0.0F) CHECK_FALSE(changed);
        if (!changed) continue;
        ++merged;
        for (const std::size_t r : next)
            for (std::uint32_t d = 0; d < dim; ++d) value[r][d] += static_cast<double>(entry.v[d]) / 3;
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
        CHECK(rows[r].k == start[r].k);
        CHECK(rows[r].weight == 0.0F);
        for (std::uint32_t d = 0; d < dim; ++d)
            CHECK(std::fabs(static_cast<double>(rows[r].v[d]) - value[r][d]) < 1e-4);
    }
    CHECK(merged > 60);
    for (const float part : {0.25F, 0.75F}) { // of the largest score: 2,000 draws, within four deviations
        table one = {start[0], start[1]};
        one[1].score = 4.0F;
        int drawn = 0;
        for (std::uint32_t i = 0; i < 2000; ++i) {
            row_set::one entry = random_rows({i % 30}, 3000 + i)[0];
            entry.score = part * 4.0F;
            const table before = one;
            m.leave(one, entry);
            drawn += same(one, before) ? 0 : 1;
        }
        CHECK(std::fabs(static_cast<double>(drawn) - 2000.0 * static_cast<double>(part)) < 78);
    }
    merger<next_values> again({.spread = 3, .seed = 9}), other({.spread = 3, .seed = 10});
    table a = start, b = start;
    for (std::uint32_t i = 0; i < 20; ++i) {
        row_set::one entry = random_rows({i}, 900 + i)[0];
        entry.score = static_cast<float>(i % 10);
        again.leave(a, entry);
        other.leave(b, entry);
    }
    CHECK_FALSE(same(a, b)); // another seed, other draws
}

namespace {

/// A prompt of keys that wander, what similar_runs makes of it, and what it should make of it.
struct runs_model {
    static constexpr std::uint32_t tokens = 120, sinks = 3, end = tokens - 5;
    std::vector<float> keys, values, score;
    std::vector<float> rank, joined;
    merger<similar_runs> m;

    runs_model(const similar_runs::config& c, std::uint32_t allowed, std::uint64_t seed)
        : values(oracle::normal_values(std::size_t{tokens} * dim, seed + 1)),
          score(oracle::normal_values(tokens, seed + 2)), rank(score), joined(tokens, -7.0F), m(c) {
        const auto step = oracle::normal_values(std::size_t{tokens} * dim, seed);
        for (std::uint32_t t = 0; t < tokens; ++t)
            for (std::uint32_t d = 0; d < dim; ++d) {
                const float stays = t == 0 ? 0.0F : static_cast<float>(t * 7 % 5) / 5.0F;
                keys.push_back((t == 0 ? 0.0F : stays * keys[keys.size() - dim]) + step[t * dim + d]);
            }
        std::vector<std::uint32_t> order(tokens);
        m.state.join(view(keys), sinks, end, allowed, std::span(rank), std::span(joined), std::span(order));
        CHECK(m.memory.intact());
    }
    [[nodiscard]] static rows_view<float> view(const std::vector<float>& rows) {
        return {rows.data(), tokens, dim, dim};
    }
    [[nodiscard]] double cosine_before(std::uint32_t t) const {
        const float *a = &keys[(t - 1) * dim], *b = a + dim;
        return oracle::dot(a, b, dim) / std::sqrt(oracle::dot(a, a, dim) * oracle::dot(b, b, dim));
    }
    /// Sets as lists of tokens, from the definition: the pairs with the largest cosines are joined.
    [[nodiscard]] std::vector<std::vector<std::uint32_t>> expected(const similar_runs::config& c,
                                                                   std::uint32_t allowed) const {
        std::vector<std::uint32_t> best;
        for (std::uint32_t t = sinks; t < end; ++t) best.push_back(t);
        std::stable_sort(best.begin(), best.end(), [&](auto a, auto b) { return score[a] > score[b]; });
        best.resize(static_cast<std::size_t>(c.unmerged * static_cast<float>(allowed)));
        const auto apart = [&](std::uint32_t t) {
            return std::find(best.begin(), best.end(), t) != best.end();
        };
        std::vector<std::uint32_t> pairs;
        for (std::uint32_t t = sinks + 1; t < end; ++t)
            if (cosine_before(t) > static_cast<double>(c.similarity) && !apart(t) && !apart(t - 1))
                pairs.push_back(t);
        std::sort(pairs.begin(), pairs.end(),
                  [&](auto a, auto b) { return cosine_before(a) > cosine_before(b); });
        pairs.resize(std::min<std::size_t>(pairs.size(), end - sinks - allowed));
        std::vector<std::vector<std::uint32_t>> sets;
        for (std::uint32_t t = sinks; t < end; ++t) {
            if (std::find(pairs.begin(), pairs.end(), t) == pairs.end()) sets.emplace_back();
            sets.back().push_back(t);
        }
        return sets;
    }
};

} // namespace

TEST_CASE("similar_runs: sets of neighbours, the highest score is the pivot, rows are Gaussian means") {
    for (const bool counted : {true, false})
        for (const float unmerged : {0.0F, 0.3F})
            for (const float similarity : {-1.0F, 0.5F})
                for (const std::uint32_t allowed : {1U, 20U, 60U, 111U}) {
                    const similar_runs::config c{similarity, unmerged, counted};
                    runs_model r(c, allowed, 40 + allowed);
                    const auto sets = r.expected(c, allowed);
                    CHECK(sets.size() >= allowed);
                    if (similarity < 0 && unmerged <= 0) CHECK(sets.size() == allowed);
                    for (std::uint32_t t = 0; t < r.tokens; ++t) { // pinned tokens are left as they are
                        if (t >= r.sinks && t < r.end) continue;
                        CHECK(r.joined[t] == 0.0F);
                        CHECK(r.rank[t] == r.score[t]);
                    }
                    for (const auto& set : sets) {
                        std::uint32_t pivot = set[0];
                        for (const std::uint32_t t : set)
                            if (r.score[t] > r.score[pivot]) pivot = t;
                        double spread = 0, total = 0;
                        const auto square = [&](std::uint32_t t) {
                            double sum = 0;
                            for (std::uint32_t d = 0; d < dim; ++d)
                                sum += std::pow(static_cast<double>(r.keys[t * dim + d]) -
                                                    static_cast<double>(r.keys[pivot * dim + d]),
                                                2.0);
                            return sum;
                        };
                        for (const std::uint32_t t : set) {
                            CHECK(r.joined[t] == (t == set[0] ? 0.0F : 1.0F));
                            CHECK(r.rank[t] == (t == pivot ? r.score[t] : -INFINITY));
                            spread += square(t);
                        }
                        if (set.size() == 1) continue;
                        spread /= static_cast<double>(set.size() - 1);
                        std::vector<double> k(dim), v(dim);
                        for (const std::uint32_t t : set) {
                            const double weight = std::exp(-square(t) / (2 * spread));
                            total += weight;
                            for (std::uint32_t d = 0; d < dim; ++d) {
                                k[d] += weight * static_cast<double>(r.keys[t * dim + d]);
                                v[d] += weight * static_cast<double>(r.values[t * dim + d]);
                            }
                        }
                        std::vector<float> key(dim), value(dim);
                        const float count =
                            r.m.state.mean(r.view(r.keys), r.view(r.values), std::span<const float>(r.joined),
                                           pivot, key.data(), value.data());
                        CHECK(std::fabs(std::exp(static_cast<double>(count)) -
                                        (counted ? static_cast<double>(set.size()) : 1.0)) < 1e-4);
                        double off = 0;
                        for (std::uint32_t d = 0; d < dim; ++d)
                            off = std::max({off, std::fabs(static_cast<double>(key[d]) - k[d] / total),
                                            std::fabs(static_cast<double>(value[d]) - v[d] / total)});
                        CHECK(off < 1e-5);
                    }
                }
    const runs_model all({}, runs_model::end - runs_model::sinks, 3); // room for everything
    CHECK(all.rank == all.score);
    CHECK(std::count(all.joined.begin(), all.joined.end(), 0.0F) == runs_model::tokens);
}

TEST_CASE("nearest_key: entries with equal keys, merged in any order, count and mean as many") {
    const auto key = oracle::normal_values(dim, 1);
    for (const bool already_merged : {false, true}) {
        merger<nearest_key> m({}, 0);
        table rows = {{7, key, oracle::normal_values(dim, 2)}};
        std::vector<double> sum(dim);
        for (std::uint32_t d = 0; d < dim; ++d) sum[d] = static_cast<double>(rows[0].v[d]);
        double count = 1;
        for (std::uint32_t t = 8; t < 20; ++t) {
            row_set::one entry{t, key, oracle::normal_values(dim, 100 + t)};
            const double n = already_merged ? t % 3 + 1 : 1; // it may stand for several itself
            entry.weight = static_cast<float>(std::log(n));
            for (std::uint32_t d = 0; d < dim; ++d) sum[d] += n * static_cast<double>(entry.v[d]);
            count += n;
            m.leave(rows, entry);
        }
        CHECK(std::fabs(std::exp(static_cast<double>(rows[0].weight)) - count) < 1e-3);
        for (std::uint32_t d = 0; d < dim; ++d) {
            CHECK(std::fabs(static_cast<double>(rows[0].k[d] - key[d])) < 1e-5);
            CHECK(std::fabs(static_cast<double>(rows[0].v[d]) - sum[d] / count) < 1e-5);
        }
    }
}

TEST_CASE_TEMPLATE("an entry that is still a row does not go into itself, and nobody is no target", Rule,
                   nearest_key, next_values) {
    merger<Rule> m({}, 2);
    table rows = random_rows({0, 1, 9}, 4);
    rows[2].score = 1.0F;
    const table before = rows;
    m.leave(rows, rows[2]);
    CHECK(same(rows, before));
    table nobody;
    m.leave(nobody, before[2]);
    CHECK(nobody.empty());
}

TEST_CASE("settings that can never work are named, the rule's and the score's") {
    using nearest = merger<nearest_key>;
    using next = merger<next_values>;
    using runs = merger<similar_runs>;
    const auto check = []<class M>(M*, const auto& rule) {
        return state_of<typename M::score>::check(M::configured(rule), M::limits());
    };
    nearest* const a = nullptr;
    next* const b = nullptr;
    runs* const r = nullptr;
    check_refusal(check(a, nearest_key::config{.smoothing = 1.5F}), "retention.smoothing is 1.5");
    check_refusal(check(a, nearest_key::config{.smoothing = NAN}), "retention.smoothing is");
    check_refusal(check(b, next_values::config{.spread = 0}), "retention.spread is 0");
    check_refusal(check(r, similar_runs::config{.similarity = 2.0F}),
                  "retention.similarity and unmerged are 2 and 0");
    check_refusal(check(r, similar_runs::config{.unmerged = NAN}), "retention.similarity and unmerged are 0");
}

} // namespace retain_merge_test
