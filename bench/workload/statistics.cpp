// SPDX-License-Identifier: MIT
#include "statistics.hpp"

#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

namespace bench {

namespace {

constexpr std::size_t sinks = 4, recent = 32, best = 64;

/// Mean of what is added.
struct mean {
    double sum = 0;
    std::size_t count = 0;
    void add(double x) { sum += x, ++count; }
    [[nodiscard]] double value() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

/// Eigenvalues of a symmetric (n, n) matrix, largest first, by Jacobi's rotations.
std::vector<double> eigenvalues(std::vector<double> a, std::size_t n) {
    const auto at = [&](std::size_t i, std::size_t j) -> double& { return a[i * n + j]; };
    for (int sweep = 0; sweep < 12; ++sweep)
        for (std::size_t p = 0; p + 1 < n; ++p)
            for (std::size_t q = p + 1; q < n; ++q) {
                if (std::abs(at(p, q)) < 1e-12 * std::sqrt(std::abs(at(p, p) * at(q, q)))) continue;
                const double theta = (at(q, q) - at(p, p)) / (2 * at(p, q));
                const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
                const double c = 1 / std::sqrt(t * t + 1), s = t * c;
                for (std::size_t k = 0; k < n; ++k) {
                    const double x = at(k, p), y = at(k, q);
                    at(k, p) = c * x - s * y, at(k, q) = s * x + c * y;
                }
                for (std::size_t k = 0; k < n; ++k) {
                    const double x = at(p, k), y = at(q, k);
                    at(p, k) = c * x - s * y, at(q, k) = s * x + c * y;
                }
            }
    std::vector<double> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = at(i, i);
    std::sort(values.rbegin(), values.rend());
    return values;
}

struct attention_result {
    std::vector<double> weight;      ///< (T), sums to 1
    std::vector<std::uint32_t> best; ///< of the middle, sorted by number
};

attention_result attend(const float* q, const float* keys, std::size_t tokens, std::size_t stride,
                        std::size_t dim) {
    attention_result r;
    r.weight.resize(tokens);
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t i = 0; i < tokens; ++i) {
        r.weight[i] = scale * static_cast<double>(kvtl::simd::dot(q, keys + i * stride, dim));
        largest = std::max(largest, r.weight[i]);
    }
    for (double& w : r.weight) sum += w = std::exp(w - largest);
    for (double& w : r.weight) w /= sum;
    if (tokens > sinks + recent + best) {
        r.best.resize(tokens - sinks - recent);
        std::iota(r.best.begin(), r.best.end(), static_cast<std::uint32_t>(sinks));
        std::nth_element(r.best.begin(), r.best.begin() + best, r.best.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return r.weight[a] > r.weight[b]; });
        r.best.resize(best);
        std::sort(r.best.begin(), r.best.end());
    }
    return r;
}

double shared(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
    std::vector<std::uint32_t> both;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    return static_cast<double>(both.size()) / static_cast<double>(best);
}

/// Squared distance of each row to the nearest of the centroids.
double nearest(const float* row, const std::vector<float>& centroids, std::size_t dim, std::size_t& which) {
    float least = std::numeric_limits<float>::infinity();
    for (std::size_t c = 0; c * dim < centroids.size(); ++c) {
        const float d = kvtl::simd::l2sq(row, centroids.data() + c * dim, dim);
        if (d < least) least = d, which = c;
    }
    return static_cast<double>(least);
}

struct sums {
    mean sink, near, top, entropy, overlap, repeat, growth, ratio, spread, half, quarter, cosine;
};

/// Clusters of 32 of a head's prompt keys, and how far the keys that come later are from them.
void measure_clusters(const float* keys, std::size_t stride, std::size_t prompt, std::size_t tokens,
                      std::size_t dim, sums& s) {
    const std::size_t clusters = std::max<std::size_t>(prompt / 32, 1);
    std::vector<float> centroids(clusters * dim), total(clusters * dim);
    for (std::size_t c = 0; c < clusters; ++c)
        std::copy_n(keys + (c * prompt / clusters) * stride, dim,
                    centroids.begin() + static_cast<std::ptrdiff_t>(c * dim));
    mean own;
    for (int round = 0; round < 10; ++round) {
        std::fill(total.begin(), total.end(), 0.0F);
        std::vector<std::size_t> count(clusters);
        own = {};
        for (std::size_t t = 0; t < prompt; ++t) {
            std::size_t c = 0;
            own.add(nearest(keys + t * stride, centroids, dim, c));
            ++count[c];
            for (std::size_t d = 0; d < dim; ++d) total[c * dim + d] += keys[t * stride + d];
        }
        for (std::size_t c = 0; c < clusters; ++c)
            for (std::size_t d = 0; d < dim && count[c] > 0; ++d)
                centroids[c * dim + d] = total[c * dim + d] / static_cast<float>(count[c]);
    }
    mean first, last, all;
    for (std::size_t t = prompt; t < tokens; ++t) {
        std::size_t c = 0;
        const double d = nearest(keys + t * stride, centroids, dim, c);
        all.add(d);
        if (t < prompt + (tokens - prompt) / 4) first.add(d);
        if (t >= tokens - (tokens - prompt) / 4) last.add(d);
    }
    if (first.value() > 0) s.growth.add(last.value() / first.value());
    if (own.value() > 0) s.ratio.add(all.value() / own.value());
}

void measure_keys(const float* keys, std::size_t stride, std::size_t tokens, std::size_t dim, sums& s) {
    std::vector<double> gram(dim * dim);
    mean length, square;
    for (std::size_t t = sinks; t < tokens; ++t) {
        const float* k = keys + t * stride;
        double norm = 0;
        for (std::size_t i = 0; i < dim; ++i) {
            const auto a = static_cast<double>(k[i]);
            norm += a * a;
            for (std::size_t j = 0; j < dim; ++j) gram[i * dim + j] += a * static_cast<double>(k[j]);
        }
        length.add(std::sqrt(norm)), square.add(norm);
    }
    const double m = length.value();
    s.spread.add(std::sqrt(std::max(0.0, square.value() - m * m)) / m);
    const auto values = eigenvalues(std::move(gram), dim);
    const auto upto = [&](std::size_t n) {
        return std::accumulate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n), 0.0);
    };
    s.half.add(upto(dim / 2) / upto(dim));
    s.quarter.add(upto(dim / 4) / upto(dim));
}

} // namespace

std::vector<std::pair<std::string, double>> workload_statistics::list() const {
    return {{"sink_mass", sink_mass},
            {"recent_mass", recent_mass},
            {"top_mass", top_mass},
            {"entropy", entropy},
            {"step_overlap", step_overlap},
            {"repeat_16", repeat_16},
            {"variance_growth", variance_growth},
            {"variance_ratio", variance_ratio},
            {"key_norm_spread", key_norm_spread},
            {"energy_half", energy_half},
            {"energy_quarter", energy_quarter},
            {"prediction_cosine", prediction_cosine}};
}

workload_statistics measure_workload(workload& w, std::size_t tokens, std::size_t pairs) {
    const kvtl::shape& shape = w.shape();
    const std::size_t dim = shape.head_dim, stride = w.key_floats();
    const std::size_t group = shape.query_heads / shape.kv_heads;
    const std::size_t prompt = std::min(w.prompt_tokens(), tokens - 1);
    std::vector<float> keys(tokens * stride), q(w.query_floats()), guess(w.query_floats());
    sums s;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
        w.rows(0, layer, 0, tokens, {.k = keys});
        for (std::size_t h = 0; h < shape.kv_heads; ++h) {
            measure_keys(keys.data() + h * dim, stride, tokens, dim, s);
            measure_clusters(keys.data() + h * dim, stride, prompt, tokens, dim, s);
        }
        for (std::size_t pair = 0; pair < pairs; ++pair) {
            // Three steps: the earlier ones see the same tokens, so that only the query differs.
            const std::size_t room = tokens - 1 - std::min(tokens - 1, prompt + 16);
            const std::size_t step =
                std::min(tokens - 1, prompt + 16) + room * pair / std::max<std::size_t>(pairs - 1, 1);
            std::vector<std::vector<std::uint32_t>> now(shape.query_heads);
            for (const std::size_t back : {std::size_t{0}, std::size_t{1}, std::size_t{16}}) {
                if (back > step) continue;
                w.rows(0, layer, step - back, 1, {.q = q, .prediction = guess});
                const std::size_t length =
                    step - std::min<std::size_t>(step, 15); // what the earliest of them has
                for (std::size_t j = 0; j < shape.query_heads; ++j) {
                    const float* row = q.data() + j * dim;
                    if (back == 0) {
                        const auto full = attend(row, keys.data() + (j / group) * dim, step + 1, stride, dim);
                        double sink = 0, near = 0, entropy = 0, top = 0;
                        for (std::size_t i = 0; i <= step; ++i) {
                            const double p = full.weight[i];
                            if (i < sinks) sink += p;
                            if (i + recent > step) near += p;
                            if (p > 0) entropy -= p * std::log(p);
                        }
                        auto sorted = full.weight;
                        const std::size_t k = std::max<std::size_t>(sorted.size() / 20, 1);
                        std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(k),
                                         sorted.end(), std::greater<>{});
                        for (std::size_t i = 0; i < k; ++i) top += sorted[i];
                        s.sink.add(sink), s.near.add(near), s.top.add(top);
                        s.entropy.add(entropy / std::log(static_cast<double>(step + 1)));
                        if (layer > 0) {
                            const float* g = guess.data() + j * dim;
                            const double product = static_cast<double>(kvtl::simd::dot(row, g, dim));
                            const double lengths =
                                std::sqrt(static_cast<double>(kvtl::simd::dot(row, row, dim)) *
                                          static_cast<double>(kvtl::simd::dot(g, g, dim)));
                            if (lengths > 0) s.cosine.add(product / lengths);
                        }
                    }
                    const auto seen = attend(row, keys.data() + (j / group) * dim, length, stride, dim);
                    if (seen.best.empty()) continue;
                    if (back == 0)
                        now[j] = seen.best;
                    else
                        (back == 1 ? s.overlap : s.repeat).add(shared(now[j], seen.best));
                }
            }
        }
    }
    return {s.sink.value(),    s.near.value(),   s.top.value(),     s.entropy.value(),
            s.overlap.value(), s.repeat.value(), s.growth.value(),  s.ratio.value(),
            s.spread.value(),  s.half.value(),   s.quarter.value(), s.cosine.value()};
}

} // namespace bench
