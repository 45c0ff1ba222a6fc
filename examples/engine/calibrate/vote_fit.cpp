// SPDX-License-Identifier: MIT
#include "vote_fit.hpp"

#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/softmax.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace engine {

vote_fit::vote_fit(const kvtl::shape& shape, const vote_options& options)
    : shape_(shape), options_(options), found_(std::size_t{shape.layers} * shape.query_heads),
      looks_(shape.layers), evictions_(shape.layers), error_(shape.layers),
      votes_(found_.size(), std::uint8_t{1}) {
    if (options_.voters == 0) options_.voters = std::max<std::uint32_t>(1, shape.query_heads / 8);
}

std::size_t vote_fit::tokens_of(const kvtl::layer_input& in) const noexcept {
    return in.k.size() / (std::size_t{shape_.kv_heads} * shape_.head_dim);
}

void vote_fit::attend(const kvtl::layer_input& in, std::size_t i, std::size_t h,
                      std::span<const std::uint8_t> present, std::vector<float>& weights) const {
    const std::size_t dim = shape_.head_dim, kv = h / (shape_.query_heads / shape_.kv_heads);
    const float* q = in.q.floats().data() + (i * shape_.query_heads + h) * dim;
    weights.assign(i + 1, -std::numeric_limits<float>::infinity());
    for (std::size_t t = 0; t <= i; ++t)
        if (present.empty() || present[t] != 0)
            weights[t] = kvtl::simd::dot(q, in.k.floats().data() + (t * shape_.kv_heads + kv) * dim, dim);
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim)),
                top = kvtl::simd::max_of(weights.data(), weights.size());
    const float sum = kvtl::simd::exp_shifted_sum(weights.data(), weights.size(), top, scale);
    for (float& w : weights) w /= sum;
}

void vote_fit::look(std::uint32_t layer, const kvtl::layer_input& in, std::size_t copied) {
    const std::size_t tokens = tokens_of(in), repeated = tokens - options_.span;
    const std::size_t first = copied - std::min(copied, options_.around),
                      last = std::min(copied + options_.span + options_.around, repeated);
    std::vector<float> p;
    for (std::size_t h = 0; h < shape_.query_heads; ++h) {
        double found = 0;
        for (std::size_t i = repeated + options_.window; i < tokens; ++i) {
            attend(in, i, h, {}, p);
            for (std::size_t t = first; t < last; ++t) found += static_cast<double>(p[t]);
        }
        found_[layer * shape_.query_heads + h] +=
            found / static_cast<double>(options_.span - options_.window);
    }
    ++looks_[layer];
}

std::vector<double> vote_fit::scores() const {
    std::vector<double> s = found_;
    for (std::size_t i = 0; i < s.size(); ++i)
        s[i] /= static_cast<double>(std::max<std::size_t>(1, looks_[i / shape_.query_heads]));
    return s;
}

void vote_fit::settle() {
    const std::size_t heads = shape_.query_heads;
    std::fill(votes_.begin(), votes_.end(), std::uint8_t{0});
    for (std::size_t l = 0; l < shape_.layers; ++l) {
        std::vector<std::size_t> order(heads);
        std::iota(order.begin(), order.end(), l * heads);
        std::stable_sort(order.begin(), order.end(),
                         [this](std::size_t a, std::size_t b) { return found_[a] > found_[b]; });
        for (std::size_t i = 0; i < std::min<std::size_t>(options_.voters, heads); ++i) votes_[order[i]] = 1;
    }
}

std::vector<std::uint8_t> vote_fit::kept(std::uint32_t layer, const kvtl::layer_input& in,
                                         std::size_t tokens) const {
    const std::size_t before = tokens - options_.span, heads = shape_.query_heads;
    std::vector<float> p, sum(before), pooled(before);
    for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t i = before; votes_[layer * heads + h] != 0 && i < before + options_.window; ++i) {
            attend(in, i, h, {}, p);
            for (std::size_t t = 0; t < before; ++t) sum[t] += p[t];
        }
    const std::size_t half = options_.pool_width / 2;
    for (std::size_t t = 0; t < before; ++t) // beyond the ends there is nothing: only the order matters
        for (std::size_t u = t - std::min(t, half); u < std::min(t + half + 1, before); ++u)
            pooled[t] += sum[u];
    std::vector<std::size_t> order(before);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&pooled](std::size_t a, std::size_t b) { return pooled[a] > pooled[b]; });
    std::vector<std::uint8_t> present(tokens,
                                      std::uint8_t{1}); // the repetition is the window, and what follows it
    std::fill_n(present.begin(), before, std::uint8_t{0});
    const std::size_t keep = std::max(tokens / options_.keep_share, options_.window) - options_.window;
    for (std::size_t i = 0; i < std::min(keep, before); ++i) present[order[i]] = 1;
    return present;
}

void vote_fit::evict(std::uint32_t layer, const kvtl::layer_input& in) {
    const std::size_t tokens = tokens_of(in), dim = shape_.head_dim,
                      group = shape_.query_heads / shape_.kv_heads;
    const auto present = kept(layer, in, tokens);
    std::vector<float> all, some;
    double error = 0;
    for (std::size_t i = tokens - options_.span + options_.window; i < tokens; ++i) {
        double whole = 0, lost = 0; // squares of o and of o - o', all heads together
        for (std::size_t h = 0; h < shape_.query_heads; ++h) {
            attend(in, i, h, {}, all);
            attend(in, i, h, present, some);
            for (std::size_t d = 0; d < dim; ++d) {
                double o = 0, less = 0;
                for (std::size_t t = 0; t <= i; ++t) {
                    const float value = in.v.floats()[(t * shape_.kv_heads + h / group) * dim + d];
                    o += static_cast<double>(all[t] * value);
                    less += static_cast<double>(some[t] * value);
                }
                whole += o * o;
                lost += (o - less) * (o - less);
            }
        }
        error += whole > 0 ? std::sqrt(lost / whole) : 0;
    }
    error_[layer] += error / static_cast<double>(options_.span - options_.window);
    ++evictions_[layer];
}

head_votes vote_fit::finish() const {
    head_votes v{.votes = votes_, .importance = {}};
    for (std::size_t l = 0; l < shape_.layers; ++l)
        v.importance.push_back(
            static_cast<float>(error_[l] / static_cast<double>(std::max<std::size_t>(1, evictions_[l]))));
    return v;
}

} // namespace engine
