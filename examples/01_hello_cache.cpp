// A KV cache on flash in one page: append a prompt, decode, look at what it cost.
//
// Features: open, prefill, attend, stats. Prints memory, storage and bytes read per step; the memory can
// never be more than the bound given to open.
// SPDX-License-Identifier: MIT

// [readme]
#include <kvtl/presets/dynakv.hpp>

#include <cstdio>
#include <random>
#include <vector>

using cache_t = kvtl::dynakv; // the paper is the type

int main() {
    auto opened = cache_t::open({.shape = {.layers = 1, .query_heads = 8, .kv_heads = 2, .head_dim = 64},
                                 .max_tokens = 4096,
                                 .memory_bytes = 8 << 20, // everything the cache may hold in DRAM
                                 .attend_tokens = 256,    // entries each head attends per step
                                 .io = {.path = "hello.kv"}});
    if (!opened) return std::fprintf(stderr, "%s\n", opened.error().message.c_str()), 1;
    cache_t cache = std::move(*opened);
    const auto seq = cache.begin();

    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> q(3000 * 8 * 64), k(3000 * 2 * 64), v(k), out(q.size()); // (T,HQ,D) (T,H,D) (T,H,D)
    for (auto* tensor : {&q, &k, &v})
        for (float& x : *tensor) x = normal(random);
    if (auto s = cache.prefill(*seq, 0, {.q = q, .k = k, .v = v}, out); !s) return std::puts(s.what()), 1;
    for (std::size_t t = 0; t < 100; ++t) { // decode: append one token, attend to what its query selects
        const std::span<const float> query(&q[t * 512], 512), key(&k[t * 128], 128), value(&v[t * 128], 128);
        if (auto s = cache.attend(*seq, 0, {.q = query, .k = key, .v = value}, std::span(out).first(512)); !s)
            return std::puts(s.what()), 1;
    }
    const auto stats = cache.stats();
    std::printf("%.1f MiB in DRAM, %.1f MiB on flash, %.1f KiB read per step, hit rate %.2f\n",
                static_cast<double>(stats.resident_bytes_peak) / (1 << 20),
                static_cast<double>(stats.storage_bytes) / (1 << 20),
                static_cast<double>(stats.read_bytes) / 1024 / 100, stats.hit_rate());
}
// [readme]
