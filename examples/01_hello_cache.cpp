// A KV cache on flash in one page: append a prompt, decode, look at what it cost.
//
// Features: open, prefill, attend, stats. Prints memory, storage and bytes read per step; the memory can
// never be more than the bound given to open.
// SPDX-License-Identifier: MIT

// [readme]
#include <kvtl/presets/dynakv.hpp>

kvtl::result<kvtl::statistics> answer(kvtl::layer_input prompt, auto& tokens, std::span<float> out) {
    auto cache = kvtl::dynakv::open({.shape = {.layers = 1, .query_heads = 8, .kv_heads = 2, .head_dim = 64},
                                     .max_tokens = 4096,
                                     .memory_bytes = 8 << 20, // all DRAM that the cache may hold
                                     .io = {.path = "hello.kv"}});
    if (!cache) return cache.error();
    const auto seq = cache->begin();
    auto s = cache->prefill(*seq, 0, prompt, out); // exact causal attention over the prompt
    for (const kvtl::layer_input& token : tokens)  // append it; attend the window and what its query selects
        if (s) s = cache->attend(*seq, 0, token, out.first(8 * 64));
    if (!s) return s;
    return cache->stats();
}
// [readme]

#include <cstdio>
#include <random>
#include <vector>

int main() {
    constexpr std::size_t prompt = 3000, steps = 100, q_row = 8 * 64, k_row = 2 * 64;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;                                       // stands for the model
    std::vector<float> q(prompt * q_row), k(prompt * k_row), v(k), out(q.size()); // (T,HQ,D) (T,H,D) (T,H,D)
    for (auto* tensor : {&q, &k, &v})
        for (float& x : *tensor) x = normal(random);
    std::vector<kvtl::layer_input> tokens;
    for (std::size_t t = 0; t < steps; ++t)
        tokens.push_back({.q = std::span(q).subspan(t * q_row, q_row),
                          .k = std::span(k).subspan(t * k_row, k_row),
                          .v = std::span(v).subspan(t * k_row, k_row)});
    const auto stats = answer({.q = q, .k = k, .v = v}, tokens, out);
    if (!stats) return std::fprintf(stderr, "%s\n", stats.error().message.c_str()), 1;
    std::printf("%.1f MiB in DRAM, %.1f MiB on flash, %.1f KiB read per step, hit rate %.2f\n",
                static_cast<double>(stats->resident_bytes_peak) / (1 << 20),
                static_cast<double>(stats->storage_bytes) / (1 << 20),
                static_cast<double>(stats->read_bytes) / 1024 / steps, stats->hit_rate());
}
