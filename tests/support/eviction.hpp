// What presets that drop entries are measured against: every score computed by definition, in double
// precision, and attention over exactly the entries that should be held.
//
//   naive truth{data, config};                             // data: a drift stream
//   feed_prompt(cache, seq, data, 150);
//   CHECK(kept(cache, seq, layer, lane) == truth.best(scores, 150, budget));
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/shard_access.hpp>
#include <kvtl/manager.hpp>

#include "support/cache_fixture.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

namespace kvtl_test {

/// The preset with entries of full precision: what is left is the method.
template <class Preset> struct in_f32 : Preset { using compressor = kvtl::raw<float>; };
template <class Preset> using precise = kvtl::kv_manager<in_f32<Preset>>;

using tokens_t = std::vector<std::uint32_t>;
using scores_t = std::vector<double>;

/// A lane of a cache: which shard it is in and where.
template <class Cache> struct lane_place {
    unsigned shard = 0;
    std::uint32_t index = 0;
};
template <class Cache> lane_place<Cache> find_lane(Cache& cache, kvtl::sequence_id seq, std::size_t lane) {
    auto& first = kvtl::shard_access::of(cache, 0).kept();
    const auto& p = first.plan();
    const std::uint32_t shards = p.division.shards;
    if (p.division.by_sequence) return {seq.slot % shards, static_cast<std::uint32_t>(lane)};
    const auto head = static_cast<std::uint32_t>(lane) / p.lanes_per_head;
    return {head % shards,
            head / shards * p.lanes_per_head + static_cast<std::uint32_t>(lane) % p.lanes_per_head};
}
/// The tokens that a lane holds, in order.
template <class Cache>
tokens_t kept(Cache& cache, kvtl::sequence_id seq, std::size_t layer, std::size_t lane) {
    const auto at = find_lane(cache, seq, lane);
    auto& shard = kvtl::shard_access::of(cache, at.shard).kept();
    auto& chains = shard.lanes_of(seq.slot, static_cast<std::uint32_t>(layer))[at.index];
    tokens_t tokens;
    const auto take = [&tokens](const auto& held) {
        for (std::uint32_t i = 0; i < held.size(); ++i) tokens.push_back(held.token(i));
    };
    take(shard.open(chains));
    take(shard.open_demoted(chains));
    std::sort(tokens.begin(), tokens.end());
    return tokens;
}
template <class Cache> std::size_t lanes_per_layer(Cache& cache) {
    const auto& p = kvtl::shard_access::of(cache, 0).kept().plan();
    return std::size_t{p.kv_heads} * p.lanes_per_head;
}
template <class Cache> std::size_t rows_held(Cache& cache, kvtl::sequence_id seq) {
    std::size_t n = 0;
    const auto& p = kvtl::shard_access::of(cache, 0).kept().plan();
    for (std::size_t l = 0; l < p.layers; ++l)
        for (std::size_t h = 0; h < lanes_per_layer(cache); ++h) n += kept(cache, seq, l, h).size();
    return n;
}

/// Something to hand over beside q, k and v.
using decorate = std::function<void(kvtl::layer_input&, std::size_t layer, std::size_t first, std::size_t n)>;

/// Tokens [0, n) as a prompt in chunks; exact attention is checked on the way where `exact_error` is given.
template <class Cache>
void feed_prompt(Cache& cache, kvtl::sequence_id seq, const drift& data, std::size_t n,
                 std::size_t chunk = SIZE_MAX, const decorate& more = {}, double* exact_error = nullptr) {
    oracle::largest_error error;
    dense_reference<typename Cache::element_type> reference(data);
    for (std::size_t done = 0; done < n;) {
        const std::size_t some = std::min(chunk, n - done);
        for (std::size_t l = 0; l < data.shape().layers; ++l) {
            auto in = data.input(l, done, some);
            in.last_chunk = done + some == n;
            if (more) more(in, l, done, some);
            std::vector<float> out(some * data.query_floats(), NAN);
            for (unsigned s = 0; s < cache.shards(); ++s) require_ok(cache.prefill(seq, l, in, out, s));
            if (exact_error == nullptr) continue;
            for (std::size_t t = 0; t < some; t += 3) {
                const auto& dense = reference.attention(l, done + t);
                for (std::size_t i = 0; i < dense.size(); ++i)
                    error.see(static_cast<double>(out[t * data.query_floats() + i]) - dense[i]);
            }
        }
        done += some;
    }
    if (exact_error != nullptr) *exact_error = error.value();
}

/// The methods' quantities by definition.
class naive {
  public:
    naive(const drift& data, std::size_t sinks, std::size_t window)
        : data_(&data), sinks_(sinks), window_(window) {}

    [[nodiscard]] std::size_t group() const { return data_->shape().query_heads / data_->shape().kv_heads; }

    /// Attention of query head `hq` of token t over `tokens` (all of [0, t] when empty).
    [[nodiscard]] scores_t attention(std::size_t layer, std::size_t hq, std::size_t t,
                                     const tokens_t& tokens = {}) const {
        const std::size_t dim = data_->shape().head_dim;
        const float* q = data_->q(layer, t).data() + hq * dim;
        return softmax_over(layer, hq / group(), q, tokens.empty() ? first(t + 1) : tokens);
    }
    [[nodiscard]] scores_t softmax_over(std::size_t layer, std::size_t head, const float* q,
                                        const tokens_t& tokens) const {
        const std::size_t dim = data_->shape().head_dim;
        scores_t p(tokens.size());
        for (std::size_t i = 0; i < p.size(); ++i)
            p[i] =
                oracle::dot(q, data_->key(layer, tokens[i], head), dim) / std::sqrt(static_cast<double>(dim));
        const double largest = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& x : p) sum += x = std::exp(x - largest);
        for (double& x : p) x /= sum;
        return p;
    }
    /// The output of that attention.
    [[nodiscard]] scores_t output(std::size_t layer, std::size_t hq, std::size_t t,
                                  const tokens_t& tokens) const {
        const scores_t p = attention(layer, hq, t, tokens);
        const std::size_t dim = data_->shape().head_dim;
        scores_t out(dim, 0.0);
        for (std::size_t i = 0; i < tokens.size(); ++i)
            for (std::size_t d = 0; d < dim; ++d)
                out[d] += p[i] * static_cast<double>(data_->value(layer, tokens[i], hq / group())[d]);
        return out;
    }
    /// SnapKV's sum over the window for one query head.
    [[nodiscard]] scores_t window_sum(std::size_t layer, std::size_t hq, std::size_t n) const {
        scores_t sum(n, 0.0);
        for (std::size_t t = n - std::min(n, window_); t < n; ++t) {
            const scores_t p = attention(layer, hq, t);
            for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i];
        }
        std::fill(sum.end() - static_cast<std::ptrdiff_t>(std::min(n, window_)), sum.end(), 0.0); // its own
        return sum;
    }
    [[nodiscard]] scores_t group_mean(std::size_t head,
                                      const std::function<scores_t(std::size_t)>& of) const {
        scores_t mean;
        for (std::size_t g = 0; g < group(); ++g) {
            const scores_t s = of(head * group() + g);
            mean.resize(s.size(), 0.0);
            for (std::size_t i = 0; i < s.size(); ++i) mean[i] += s[i] / static_cast<double>(group());
        }
        return mean;
    }
    [[nodiscard]] static scores_t average_pool(const scores_t& in, std::size_t width) {
        scores_t out(in.size(), 0.0);
        for (std::size_t t = 0; t < in.size(); ++t)
            for (std::size_t j = 0; j < width; ++j)
                if (t + j >= width / 2 && t + j - width / 2 < in.size())
                    out[t] += in[t + j - width / 2] / static_cast<double>(width);
        return out;
    }
    [[nodiscard]] static scores_t max_pool(const scores_t& in, std::size_t width) {
        scores_t out(in.size(), -1e300);
        for (std::size_t t = 0; t < in.size(); ++t)
            for (std::size_t j = 0; j < width; ++j)
                if (t + j >= width / 2 && t + j - width / 2 < in.size())
                    out[t] = std::max(out[t], in[t + j - width / 2]);
        return out;
    }

    /// Sinks, window, and the `budget` best of the others; ties to the lower token.
    [[nodiscard]] tokens_t best(const scores_t& score, std::size_t budget) const {
        const std::size_t n = score.size(), sinks = std::min(n, sinks_),
                          window = std::min(n - sinks, window_);
        tokens_t between;
        for (std::size_t t = sinks; t < n - window; ++t) between.push_back(static_cast<std::uint32_t>(t));
        std::stable_sort(between.begin(), between.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return score[a] > score[b]; });
        between.resize(std::min(between.size(), budget));
        for (std::size_t t = 0; t < sinks; ++t) between.push_back(static_cast<std::uint32_t>(t));
        for (std::size_t t = n - window; t < n; ++t) between.push_back(static_cast<std::uint32_t>(t));
        std::sort(between.begin(), between.end());
        return between;
    }
    [[nodiscard]] static tokens_t first(std::size_t n) {
        tokens_t t(n);
        std::iota(t.begin(), t.end(), 0U);
        return t;
    }

  private:
    const drift* data_;
    std::size_t sinks_, window_;
};

/// One decode step of every layer. The attention must be that over what was held before and the new token.
/// Returns the largest error.
template <class Cache>
double decode_and_compare(Cache& cache, kvtl::sequence_id seq, const drift& data, std::size_t t,
                          const decorate& more = {}) {
    oracle::largest_error error;
    const naive truth(data, 0, 0);
    const std::size_t dim = data.shape().head_dim, lanes = lanes_per_layer(cache);
    for (std::size_t l = 0; l < data.shape().layers; ++l) {
        std::vector<tokens_t> held;
        for (std::size_t i = 0; i < lanes; ++i) held.push_back(kept(cache, seq, l, i));
        auto in = data.input(l, t);
        if (more) more(in, l, t, 1);
        std::vector<float> out(data.query_floats(), NAN), lse(data.shape().query_heads, NAN);
        in.lse = lse;
        for (unsigned s = 0; s < cache.shards(); ++s) require_ok(cache.attend(seq, l, in, out, s));
        for (std::size_t hq = 0; hq < data.shape().query_heads; ++hq) {
            tokens_t& all = held[hq * lanes / data.shape().query_heads];
            if (all.empty() || all.back() != t) all.push_back(static_cast<std::uint32_t>(t));
            const scores_t expected = truth.output(l, hq, t, all);
            for (std::size_t d = 0; d < dim; ++d)
                error.see(static_cast<double>(out[hq * dim + d]) - expected[d]);
        }
        CHECK(std::all_of(lse.begin(), lse.end(), [](float x) { return std::isfinite(x); }));
    }
    return error.value();
}

} // namespace kvtl_test
