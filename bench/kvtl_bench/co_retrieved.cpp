// SPDX-License-Identifier: MIT
#include "co_retrieved.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <unordered_map>
#include <vector>

namespace bench {

namespace {

using unit_set = std::vector<std::uint32_t>;

/// Of every lane the sets of units that one query asked for.
std::map<std::uint32_t, std::vector<unit_set>> sets_of(std::span<const decision_event> events) {
    std::map<std::uint32_t, std::vector<unit_set>> sets;
    std::map<std::uint32_t, unit_set> now;
    const auto end_call = [&] {
        for (auto& [lane, units] : now) {
            std::sort(units.begin(), units.end());
            units.erase(std::unique(units.begin(), units.end()), units.end());
            sets[lane].push_back(std::move(units));
        }
        now.clear();
    };
    for (const decision_event& e : events) {
        if (e.what == decision::call) end_call();
        if (e.what == decision::hit || e.what == decision::miss) now[e.lane].push_back(e.unit);
    }
    end_call();
    return sets;
}

/// How often each unit, and each pair of units, was asked for; units are numbered by `place`.
struct counts {
    std::vector<double> unit, pair; ///< (n) and (n (n - 1) / 2), row by row

    counts(const std::vector<unit_set>& sets, const std::unordered_map<std::uint32_t, std::uint32_t>& place)
        : unit(place.size(), 0.0), pair(place.size() * (place.size() - 1) / 2, 0.0) {
        std::vector<std::size_t> known;
        for (const unit_set& s : sets) {
            known.clear();
            for (const std::uint32_t u : s)
                if (const auto at = place.find(u); at != place.end()) known.push_back(at->second);
            std::sort(known.begin(), known.end());
            for (std::size_t i = 0; i < known.size(); ++i) {
                ++unit[known[i]];
                for (std::size_t j = i + 1; j < known.size(); ++j) ++pair[index(known[i], known[j])];
            }
        }
    }
    [[nodiscard]] static std::size_t index(std::size_t a, std::size_t b) {
        if (a > b) std::swap(a, b);
        return b * (b - 1) / 2 + a;
    }
};

/// Ranks from 0; equal numbers share their mean rank.
std::vector<double> ranks(const std::vector<double>& x) {
    std::vector<std::size_t> order(x.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] < x[b]; });
    std::vector<double> rank(x.size());
    for (std::size_t i = 0; i < order.size();) {
        std::size_t end = i;
        while (end < order.size() && x[order[end]] == x[order[i]]) ++end;
        for (std::size_t k = i; k < end; ++k) rank[order[k]] = static_cast<double>(i + end - 1) / 2;
        i = end;
    }
    return rank;
}

double correlation(const std::vector<double>& x, const std::vector<double>& y) {
    const auto n = static_cast<double>(x.size());
    const double mx = std::accumulate(x.begin(), x.end(), 0.0) / n,
                 my = std::accumulate(y.begin(), y.end(), 0.0) / n;
    double xx = 0, yy = 0, xy = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
        xx += (x[i] - mx) * (x[i] - mx), yy += (y[i] - my) * (y[i] - my), xy += (x[i] - mx) * (y[i] - my);
    return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0.0;
}

/// What `of` counts in the tenth of all pairs that `by` counts most.
double in_top_tenth(const std::vector<double>& of, const std::vector<double>& by) {
    std::vector<std::size_t> order(by.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return by[a] > by[b]; });
    order.resize((by.size() + 9) / 10);
    double sum = 0;
    for (const std::size_t i : order) sum += of[i];
    return sum;
}

} // namespace

co_retrieved compare_pairs(std::span<const decision_event> prompt, std::span<const decision_event> decode) {
    const auto before = sets_of(prompt), after = sets_of(decode);
    co_retrieved r;
    double counted = 0, asked = 0;
    for (const auto& [lane, sets] : before) {
        const auto later = after.find(lane);
        if (later == after.end()) continue;
        std::map<std::uint32_t, int> seen; // 1: by the prompt, 2: by decode
        for (const unit_set& s : sets)
            for (const std::uint32_t u : s) seen[u] |= 1;
        for (const unit_set& s : later->second)
            for (const std::uint32_t u : s) seen[u] |= 2;
        std::unordered_map<std::uint32_t, std::uint32_t> place;
        for (const auto& [unit, by] : seen)
            if (by == 3) place.emplace(unit, static_cast<std::uint32_t>(place.size()));
        const std::size_t n = place.size();
        if (n < 3) continue;
        const counts p(sets, place), d(later->second, place);
        ++r.lanes;
        r.pairs += p.pair.size();
        r.rank_correlation += correlation(ranks(p.pair), ranks(d.pair));
        counted += std::accumulate(d.pair.begin(), d.pair.end(), 0.0);
        r.concentration += in_top_tenth(d.pair, d.pair);
        r.foretold += in_top_tenth(d.pair, p.pair);
        for (std::size_t u = 0; u < n; ++u) {
            std::size_t told = u == 0 ? 1 : 0, best = told;
            double all = 0;
            for (std::size_t v = 0; v < n; ++v) {
                if (v == u) continue;
                const std::size_t at = counts::index(u, v);
                if (p.pair[at] > p.pair[counts::index(u, told)]) told = v;
                if (d.pair[at] > d.pair[counts::index(u, best)]) best = v;
                all += d.pair[at];
            }
            asked += d.unit[u]; // probabilities are over all times a unit was asked for
            r.partner_of_prompt += d.pair[counts::index(u, told)];
            r.partner_in_hindsight += d.pair[counts::index(u, best)];
            r.partner_by_chance += all / static_cast<double>(n - 1);
        }
    }
    if (r.lanes > 0) r.rank_correlation /= static_cast<double>(r.lanes);
    if (counted > 0) r.concentration /= counted, r.foretold /= counted;
    if (asked > 0)
        r.partner_of_prompt /= asked, r.partner_in_hindsight /= asked, r.partner_by_chance /= asked;
    return r;
}

} // namespace bench
