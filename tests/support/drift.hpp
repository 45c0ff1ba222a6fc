// Keys, values and queries like those of a long conversation: a few sinks, then topics that come, drift away
// and come back. What caches of clusters live on, and what makes clusters that never change grow stale.
//
// Shapes: q (T, HQ, D), k and v (T, H, D) per layer, row-major. The first number of a value row can carry the
// token's number (`numbered`), so that a test can tell where an entry went. Equal seeds give equal numbers.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/views.hpp>

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
    drift(kvtl::shape shape, std::size_t tokens, std::uint64_t seed, const drift_config& config = {});

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

    /// From now on each layer has the keys and values of its owner.
    void share_layers(std::span<const std::uint32_t> owner) {
        for (std::size_t l = 0; l < owner.size(); ++l) k_[l] = k_[owner[l]], v_[l] = v_[owner[l]];
    }

  private:
    struct visit {
        std::uint32_t topic = 0;
        bool fresh = false; ///< the topic is new: its centre is drawn again
    };

    /// The topic of every token, the same for all layers and heads.
    [[nodiscard]] std::vector<visit> walk(std::uint64_t seed) const;
    void fill(std::uint32_t layer, const std::vector<visit>& path, std::uint64_t seed);

    kvtl::shape shape_;
    std::size_t tokens_;
    drift_config config_;
    std::vector<std::vector<float>> q_, k_, v_; ///< by layer
};

} // namespace kvtl_test
