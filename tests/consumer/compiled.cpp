// A cache in a program that compiles once what depends on no preset. SPDX-License-Identifier: MIT
#include <kvtl/presets/full.hpp>

#include <cstdio>
#include <vector>

#ifndef KVTL_COMPILED
#error "kvtl::compiled and kvtl-compiled.pc define KVTL_COMPILED"
#endif

int main() {
    auto cache = kvtl::full::open({.shape = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 64},
                                   .max_tokens = 8,
                                   .memory_bytes = 1 << 20});
    if (!cache) return std::puts(cache.error().message.c_str()), 1;
    const auto seq = cache->begin();
    const std::vector<float> q(4 * 2 * 64, 1.0F), k(4 * 64, 1.0F);
    std::vector<float> out(q.size());
    if (auto s = cache->prefill(*seq, 0, {.q = q, .k = k, .v = k}, out); !s) return std::puts(s.what()), 1;
    std::printf("%zu of 4 tokens, %g\n", cache->tokens(*seq, 0), static_cast<double>(out[0]));
    return 0;
}
