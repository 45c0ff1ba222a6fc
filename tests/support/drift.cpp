// The streams of drift.hpp. SPDX-License-Identifier: MIT
#include "support/drift.hpp"

#include "support/oracle.hpp"

#include <algorithm>
#include <cmath>

namespace kvtl_test {

drift::drift(kvtl::shape shape, std::size_t tokens, std::uint64_t seed, const drift_config& config)
    : shape_(shape), tokens_(tokens), config_(config), q_(shape.layers), k_(shape.layers), v_(shape.layers) {
    const std::vector<visit> path = walk(seed);
    for (std::uint32_t l = 0; l < shape.layers; ++l) fill(l, path, seed * 1000 + l + 1);
}

std::vector<drift::visit> drift::walk(std::uint64_t seed) const {
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

void drift::fill(std::uint32_t layer, const std::vector<visit>& path, std::uint64_t seed) {
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
                c[d] =
                    path[t].fresh ? config_.spread * random.normal() : c[d] + config_.drift * random.normal();
                k[d] = static_cast<float>((is_sink ? 2 * sink[h * dim + d] : c[d]) +
                                          (d < about ? config_.noise : config_.positional) * random.normal());
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

} // namespace kvtl_test
