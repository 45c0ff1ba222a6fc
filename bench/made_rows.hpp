// What kvtl-checkpoint, kvtl-fork and kvtl-prompt have in common: a shape, and numbers that stand for the weights of a model.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include "error.hpp"
#include "kv_cache.hpp"
#include "program.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace kvtl_bench {

/// llama3.2-1b.
inline constexpr kvtl::shape one_billion{.layers = 16, .query_heads = 32, .kv_heads = 8, .head_dim = 64};

/// Numbers of a token in a layer: its queries, and its keys or values.
constexpr std::size_t q_row(const kvtl::shape& s) {
    return std::size_t{s.query_heads} * s.head_dim;
}
constexpr std::size_t k_row(const kvtl::shape& s) {
    return std::size_t{s.kv_heads} * s.head_dim;
}

/// A cache of which the steps attend 512 tokens. memory: of one that has storage; others get what their entries take beside
/// the least of the policy. Throws engine::bad_input.
inline std::unique_ptr<engine::kv_cache> open(const std::string& policy, const kvtl::shape& s,
                                              std::size_t tokens, std::size_t sequences, std::size_t memory,
                                              const std::string& path) {
    engine::require_policy(policy, "POLICY");
    engine::cache_options o;
    o.policy = policy;
    o.shape = s;
    o.max_tokens = tokens;
    o.max_sequences = sequences;
    o.attend_tokens = 512;
    o.io = "uring";
    o.path = path;
    o.memory_bytes = memory;
    if (!engine::policy_wants(policy).retrieves)
        o.memory_bytes = engine::insist(engine::least_memory(o)).total() +
                         sequences * tokens * s.layers * 2 * k_row(s) * sizeof(float);
    return engine::insist(engine::open_cache(o));
}

inline double median(std::vector<double> of) {
    std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
    return of[of.size() / 2];
}

/// Normal numbers around a centre that moves, so that clusters grow.
class made_rows {
  public:
    explicit made_rows(const kvtl::shape& s) : q_row_(q_row(s)), k_row_(k_row(s)) {}

    kvtl::layer_input next(std::size_t tokens) {
        if (made_++ % 1024 == 0)
            for (float& x : centre_) x = normal_(random_);
        fill(q_, tokens * q_row_, q_row_), fill(k_, tokens * k_row_, k_row_),
            fill(v_, tokens * k_row_, k_row_);
        return {.q = q_, .k = k_, .v = v_};
    }

  private:
    void fill(std::vector<float>& to, std::size_t n, std::size_t row) {
        to.resize(n);
        for (std::size_t i = 0; i < n; ++i) {
            if (next_ == noise_.size()) next_ = random_() % 64;
            to[i] = noise_[next_++] + centre_[i % row % centre_.size()];
        }
    }

    std::size_t q_row_, k_row_;
    std::mt19937 random_{1};
    std::normal_distribution<float> normal_;
    std::vector<float> q_, k_, v_, centre_ = std::vector<float>(64), noise_ = [this] {
        std::vector<float> n(1U << 20);
        for (float& x : n) x = normal_(random_);
        return n;
    }();
    std::size_t made_ = 0, next_ = 0;
};

} // namespace kvtl_bench
