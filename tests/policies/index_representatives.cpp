// representatives: scores are products with chosen keys of the unit; each rule chooses what it says.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_representatives.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

#include <numeric>

namespace index_representatives_test {

using namespace kvtl;

namespace {

template <class P> using state_of = typename P::state;

/// The entries that a rule chooses among a complete unit's, from their definitions; the first r of others.
std::vector<std::uint32_t> chosen(const auto& x, std::uint32_t h, std::uint32_t u, std::uint32_t r,
                                  representative rule) {
    const std::uint32_t n = x.entries(u), dim = x.shape().dim;
    r = std::min(r, n);
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    if (n < x.shape().max_entries) {
        order.resize(std::min(std::min(r, x.shape().max_entries), n));
        return order;
    }
    std::vector<float> rounded; // as the index holds them while it chooses
    for (std::uint32_t i = 0; i < n; ++i)
        for (std::uint32_t c = 0; c < dim; ++c)
            rounded.push_back(to_float(from_float<f16>(x.key(u, i, h)[c])));
    const rows_view<float> keys{rounded.data(), n, dim, dim};
    const auto mean = oracle::moments_of(keys).mean;
    std::vector<double> merit(n);
    for (std::uint32_t i = 0; i < n; ++i) {
        double from_mean = 0;
        for (std::uint32_t c = 0; c < dim; ++c) {
            const double d = static_cast<double>(keys.row(i)[c]) - mean[c];
            from_mean += d * d;
        }
        merit[i] = rule == representative::largest   ? oracle::dot(keys.row(i), keys.row(i), dim)
                   : rule == representative::nearest ? -from_mean
                                                     : from_mean;
    }
    std::vector<std::uint32_t> taken;
    while (taken.size() < r) {
        const auto best =
            static_cast<std::uint32_t>(std::max_element(merit.begin(), merit.end()) - merit.begin());
        taken.push_back(best);
        if (rule == representative::spread)
            for (std::uint32_t i = 0; i < n; ++i) {
                const double apart = oracle::l2sq(keys.row(i), keys.row(best), dim);
                merit[i] = taken.size() == 1 ? apart : std::min(merit[i], apart);
            }
        merit[best] = -1e300;
    }
    return taken;
}

template <class P> void check(std::uint32_t r, representative rule) {
    constexpr bool best = !P::linear;
    kvtl_test::summarising_index_contract<P>(
        [&](const summary_shape&) {
            return state_of<P>({r, rule}, {});
        },
        0x1p-10 * r, [&](const summary_shape& s) { return 2 * std::min(r, s.max_entries) * s.width(); },
        [&](const auto& x, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t) {
            double sum = 0, largest = -1e300;
            for (const std::uint32_t i : chosen(x, h, u, r, rule)) {
                const double product = oracle::dot(q, x.key(u, i, h), x.shape().dim);
                sum += product;
                largest = std::max(largest, product);
            }
            return best ? largest : sum;
        });
}

} // namespace

TEST_CASE("representatives") {
    static_assert(scores_linearly<representatives> && !scores_linearly<best_representative>);
    for (const representative rule :
         {representative::spread, representative::nearest, representative::largest}) {
        check<representatives>(3, rule);
        check<best_representative>(3, rule);
        check<best_representative>(1, rule);
    }
}

TEST_CASE("as many representatives as entries find the unit's best key") {
    check<best_representative>(100, representative::spread);
    const state_of<best_representative> s({8}, {});
    kvtl_test::index_suite::lane<best_representative> x(s, {{1, 1, 16, 8}, 20, true}, 3);
    x.absorb_all();
    const auto q = oracle::normal_values<float>(16, 4);
    const auto got = x.score(q, 1, 0);
    for (std::uint32_t u = 0; u < 20; ++u) {
        double best = -1e300;
        for (std::uint32_t i = 0; i < 8; ++i) best = std::max(best, oracle::dot(q.data(), x.key(u, i), 16));
        CHECK(static_cast<double>(got[u]) == doctest::Approx(best).epsilon(0.01));
    }
}

} // namespace index_representatives_test
