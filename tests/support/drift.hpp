// Keys, values and queries like those of a long conversation: a few sinks, then topics that come, drift away
// and come back. What caches of clusters live on, and what makes clusters that never change grow stale.
//
// Shapes: q (T, HQ, D), k and v (T, H, D) per layer, row-major. The first number of a value row can carry the
// token's number (`numbered`), so that a test can tell where an entry went. Equal seeds give equal numbers.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/views.hpp>

#include "support/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtl_test {

struct drift_config {
    std::uint32_t sinks = 4;
    std::uint32_t topics = 12; ///< known at a time
    double spread = 1.0;       ///< standard deviation of a topic's centre, per dimension
    double noise = 0.5;        ///< of a key around its topic
    double drift = 0.03;       ///< of a topic's centre, per token spent on it
    double change = 0.08;      ///< chance that the next token is about another topic
    double revisit =
        0.5; ///< chance that a change goes to a topic met before; otherwise a new one replaces the oldest
    double sharpness = 0.12; ///< length of a query's part along its topic
    double query_scale = 1;  ///< of whole queries: 4 makes all logits four times as large
    double positional = 0;   ///< above 0: of a key in the last quarter of its dimensions, where queries have
                             ///< no part along their topic; such a key says more about where than about what
    std::size_t calm = 0;    ///< no new topic before this token
    bool numbered = false;   ///< value row d = 0 is the token's number
    bool cut = false;        ///< rows of keys and values end in zeros, each from a place of its own on
};

class drift {
  public:
    drift(kvtl::shape shape, std::size_t tokens, std::uint64_t seed, const drift_config& config = {})
        : shape_(shape), tokens_(tokens), config_(config), q_(shape.layers), k_(shape.layers),
          v_(shape.layers) {
        const std::vector<visit> path = walk(seed);
        for (std::uint32_t l = 0; l < shape.layers; ++l) fill(l, path, seed * 1000 + l + 1);
    }

    [[nodiscard]] const kvtl::shape& shape() const { return shape_; }
    [[nodiscard]] std::size_t tokens() const { return tokens_; }
    [[nodiscard]] std::size_t query_floats() const {
        return std::size_t{shape_.query_heads} * shape_.head_dim;
    }
    [[nodiscard]] std::size_t key_floats() const { return std::size_t{shape_.kv_heads} * shape_.head_dim; }

    [[nodiscard]] std::span<const float> q(std::size_t layer, std::size_t first,
                                           std::size_t count = 1) const {
        return std::span(q_[layer]).subspan(first * query_floats(), count * query_floats());
    }
    [[nodiscard]] std::span<const float> k(std::size_t layer, std::size_t first,
                                           std::size_t count = 1) const {
        return std::span(k_[layer]).subspan(first * key_floats(), count * key_floats());
    }
    [[nodiscard]] std::span<const float> v(std::size_t layer, std::size_t first,
                                           std::size_t count = 1) const {
        return std::span(v_[layer]).subspan(first * key_floats(), count * key_floats());
    }
    /// Key row of one KV head.
    [[nodiscard]] const float* key(std::size_t layer, std::size_t token, std::size_t head) const {
        return k_[layer].data() + token * key_floats() + head * shape_.head_dim;
    }
    [[nodiscard]] const float* value(std::size_t layer, std::size_t token, std::size_t head) const {
        return v_[layer].data() + token * key_floats() + head * shape_.head_dim;
    }
    [[nodiscard]] kvtl::layer_input input(std::size_t layer, std::size_t first, std::size_t count = 1) const {
        kvtl::layer_input in;
        in.q = q(layer, first, count);
        in.k = k(layer, first, count);
        in.v = v(layer, first, count);
        return in;
    }

  private:
    struct visit {
        std::uint32_t topic = 0;
        bool fresh = false; ///< the topic is new: its centre is drawn again
    };

    /// The topic of every token, the same for all layers and heads.
    [[nodiscard]] std::vector<visit> walk(std::uint64_t seed) const {
        oracle::generator random(seed);
        std::vector<visit> path(tokens_);
        std::uint32_t now = 0, oldest = 0;
        for (std::size_t t = 0; t < tokens_; ++t) {
            visit& at = path[t];
            if (random.uniform() < config_.change) {
                const bool back = random.uniform() < config_.revisit || t < config_.calm;
                now = back ? static_cast<std::uint32_t>(random.below(config_.topics)) : oldest;
                at.fresh = !back;
                if (!back) oldest = (oldest + 1) % config_.topics;
            }
            at.topic = now;
        }
        return path;
    }

    void fill(std::uint32_t layer, const std::vector<visit>& path, std::uint64_t seed) {
        oracle::generator random(seed);
        const std::size_t dim = shape_.head_dim, heads = shape_.kv_heads, group = shape_.query_heads / heads;
        std::vector<double> centre(config_.topics * heads * dim), sink(heads * dim);
        for (double& x : centre) x = config_.spread * random.normal();
        for (double& x : sink) x = random.normal();
        q_[layer].resize(tokens_ * query_floats());
        k_[layer].resize(tokens_ * key_floats());
        v_[layer].resize(tokens_ * key_floats());
        for (std::size_t t = 0; t < tokens_; ++t)
            for (std::size_t h = 0; h < heads; ++h) {
                double* c = &centre[(path[t].topic * heads + h) * dim];
                const bool is_sink = t < config_.sinks;
                float* k = &k_[layer][t * key_floats() + h * dim];
                float* v = &v_[layer][t * key_floats() + h * dim];
                const std::size_t about = config_.positional > 0 ? dim - dim / 4 : dim;
                for (std::size_t d = 0; d < dim; ++d) {
                    c[d] = path[t].fresh ? config_.spread * random.normal()
                                         : c[d] + config_.drift * random.normal();
                    k[d] = static_cast<float>((is_sink ? 2 * sink[h * dim + d] : c[d]) +
                                              (d < about ? config_.noise : config_.positional) *
                                                  random.normal());
                    v[d] = static_cast<float>(random.normal());
                }
                if (config_.cut) {
                    std::fill(k + 1 + random.below(dim), k + dim, 0.0F);
                    std::fill(v + 1 + random.below(dim), v + dim, 0.0F);
                }
                if (config_.numbered) v[0] = static_cast<float>(t);
                for (std::size_t g = 0; g < group; ++g) {
                    float* q = &q_[layer][t * query_floats() + (h * group + g) * dim];
                    for (std::size_t d = 0; d < dim; ++d)
                        q[d] = static_cast<float>(
                            config_.query_scale * std::sqrt(static_cast<double>(dim)) *
                            ((d < about ? config_.sharpness : 0.0) * (c[d] + 0.3 * sink[h * dim + d]) +
                             0.1 * random.normal()));
                }
            }
    }

    kvtl::shape shape_;
    std::size_t tokens_;
    drift_config config_;
    std::vector<std::vector<float>> q_, k_, v_; ///< by layer
};

} // namespace kvtl_test
