// A program whose only header of kvtl is the one that scripts/amalgamate wrote. With everything attended, clusters on a
// device in memory give what exact attention gives.
// SPDX-License-Identifier: MIT
#include "kvtl_one.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

struct in_memory_dynakv : kvtl::presets::dynakv {
    using io = kvtl::in_memory; // where no file may be written
};

namespace {
constexpr std::size_t prompt = 300, steps = 20, q_row = 4 * 32, k_row = 2 * 32;

template <class Cache> std::vector<float> outputs() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> q(prompt * q_row), k(prompt * k_row), v(k.size()), out(q.size()), all;
    for (auto* tensor : {&q, &k, &v})
        for (float& x : *tensor) x = normal(random);
    auto cache = Cache::open({.shape = {.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 32},
                              .max_tokens = 512,
                              .memory_bytes = 4 << 20,
                              .attend_tokens = 512});
    if (!cache) return std::fprintf(stderr, "%s\n", cache.error().message.c_str()), all;
    const auto seq = cache->begin();
    auto s = cache->prefill(*seq, 0, {.q = q, .k = k, .v = v}, out);
    for (std::size_t t = 0; s && t < steps; ++t) {
        s = cache->attend(*seq, 0,
                          {.q = std::span(q).subspan(t * q_row, q_row),
                           .k = std::span(k).subspan(t * k_row, k_row),
                           .v = std::span(v).subspan(t * k_row, k_row)},
                          std::span(out).first(q_row));
        all.insert(all.end(), out.begin(), out.begin() + q_row);
    }
    if (!s) std::fprintf(stderr, "%s\n", s.what()), all.clear();
    return all;
}
} // namespace

int main() {
    const auto exact = outputs<kvtl::full>();
    const auto clusters = outputs<kvtl::kv_manager<in_memory_dynakv>>();
    if (exact.size() != steps * q_row || clusters.size() != exact.size()) return 1;
    float most = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) most = std::max(most, std::abs(exact[i] - clusters[i]));
    std::printf("kvtl %s, largest difference %g\n", KVTL_VERSION_STRING, static_cast<double>(most));
    return most < 1e-4F ? 0 : 1;
}
