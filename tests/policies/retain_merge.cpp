// merge_into: what leaves goes into what stays, by two rules; counts add up, and equal keys stay what they
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
    };
    std::vector<one>* row;

    [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(row->size()); }
    [[nodiscard]] std::uint32_t token(std::uint32_t i) const { return (*row)[i].token; }
    [[nodiscard]] float* key(std::uint32_t i) const { return (*row)[i].k.data(); }
    [[nodiscard]] float* value(std::uint32_t i) const { return (*row)[i].v.data(); }
    [[nodiscard]] float& log_weight(std::uint32_t i) const { return (*row)[i].weight; }
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
        state.merge(row_set{&rows}, entry.token, entry.k.data(), entry.v.data(), entry.weight, sinks, bar);
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
    declares<merge_into<external_scores, similar_neighbour>::score>();
    CHECK(setting_names(slot::config{}) == std::vector<std::string>{"smoothing"});
    CHECK(setting_names(merge_into<external_scores, similar_neighbour>::config{}) ==
          std::vector<std::string>{"similarity", "width"});
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

TEST_CASE("similar_neighbour: the token next to it, the earlier of two, where the keys are alike; counts by "
          "distance") {
    const similar_neighbour::config c{.similarity = 0.8F, .width = 4.0F};
    const table start = random_rows({0, 10, 14, 20}, 3);
    const auto like = [&](std::size_t r, std::uint32_t token, float away) {
        row_set::one e{token, start[r].k, oracle::normal_values(dim, 5)};
        e.k[0] += away;
        return e;
    };
    // The token that changed; the order of rows means nothing.
    const auto changed = [&](const row_set::one& entry) {
        std::vector<std::uint32_t> which;
        for (const bool reversed : {false, true}) {
            merger<similar_neighbour> m(c, 1);
            table rows = start;
            if (reversed) std::reverse(rows.begin(), rows.end());
            const table before = rows;
            m.leave(rows, entry);
            std::vector<std::uint32_t> here;
            for (std::size_t r = 0; r < rows.size(); ++r)
                if (!same({rows[r]}, {before[r]})) here.push_back(rows[r].token);
            if (reversed) CHECK(here == which);
            which = here;
        }
        return which;
    };
    using token = std::vector<std::uint32_t>;
    CHECK(changed(like(1, 11, 0.5F)) == token{10});
    CHECK(changed(like(1, 12, 0.5F)) == token{10}); // 10 and 14 are as near: the earlier
    CHECK(changed(like(2, 12, 0.5F)).empty());      // which is not like it
    CHECK(changed(like(2, 13, 0.5F)) == token{14});
    CHECK(changed(like(0, 1, 0.5F)).empty()); // the sink is the nearest, but sinks take nobody
    CHECK(changed(like(3, 90, 0.5F)) == token{20});
    merger<similar_neighbour> m(c, 1);
    table rows = start;
    const row_set::one entry = like(1, 11, 2.0F);
    m.leave(rows, entry);
    const double weight = std::exp(-4.0 / 32.0), share = weight / (1 + weight);
    CHECK(std::fabs(static_cast<double>(rows[1].k[0] - start[1].k[0]) - 2 * share) < 1e-5);
    CHECK(std::fabs(std::exp(static_cast<double>(rows[1].weight)) - 2) < 1e-5);
}

TEST_CASE_TEMPLATE("entries with equal keys, merged in any order, count and mean as many", Rule, nearest_key,
                   similar_neighbour) {
    const auto key = oracle::normal_values(dim, 1);
    for (const bool already_merged : {false, true}) {
        merger<Rule> m({}, 0);
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
                   nearest_key, similar_neighbour) {
    merger<Rule> m({}, 2);
    table rows = random_rows({0, 1, 9}, 4);
    const table before = rows;
    m.leave(rows, rows[2]);
    CHECK(same(rows, before));
    table nobody;
    m.leave(nobody, before[2]);
    CHECK(nobody.empty());
}

TEST_CASE("settings that can never work are named, the rule's and the score's") {
    using nearest = merger<nearest_key>;
    using neighbour = merger<similar_neighbour>;
    const auto check = []<class M>(M*, const auto& rule) {
        return state_of<typename M::score>::check(M::configured(rule), M::limits());
    };
    nearest* const a = nullptr;
    neighbour* const b = nullptr;
    check_refusal(check(a, nearest_key::config{.smoothing = 1.5F}), "retention.smoothing is 1.5");
    check_refusal(check(a, nearest_key::config{.smoothing = NAN}), "retention.smoothing is");
    check_refusal(check(b, similar_neighbour::config{.similarity = 2.0F}),
                  "retention.similarity and width are 2 and 4");
    check_refusal(check(b, similar_neighbour::config{.width = 0.0F}),
                  "retention.similarity and width are 0.8 and 0");
}

} // namespace retain_merge_test
