// Who calls a cache of a wrong preset reads the sentence, and no further error.
// expect-error: \[kvtl\] selector: it chooses by score, but this index keeps none; use an index such as centroid
// expect-errors: 1
// expect-lines: 20
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include <cstdio>

struct bad : kvtl::presets::dynakv {
    using index = kvtl::no_index;
};
using cache_t = kvtl::kv_manager<bad>;

int main() {
    auto opened = cache_t::open({.shape = {.layers = 1, .query_heads = 8, .kv_heads = 2, .head_dim = 64},
                                 .max_tokens = 4096,
                                 .memory_bytes = 8 << 20,
                                 .io = {.path = "hello.kv"}});
    if (!opened) return std::fprintf(stderr, "%s\n", opened.error().message.c_str()), 1;
    cache_t cache = std::move(*opened);
    const auto seq = cache.begin();
    const std::span<const float> q, k, v;
    const std::span<float> out;
    if (auto s = cache.prefill(*seq, 0, {.q = q, .k = k, .v = v}, out); !s) return std::puts(s.what()), 1;
    if (auto s = cache.append(*seq, 0, {.k = k, .v = v}); !s) return std::puts(s.what()), 1;
    if (auto s = cache.prefetch(*seq, 0, q); !s) return std::puts(s.what()), 1;
    if (auto s = cache.prefetch({&*seq, 1}, 0, q); !s) return std::puts(s.what()), 1;
    if (auto s = cache.attend(*seq, 0, {.q = q, .k = k, .v = v}, out); !s) return std::puts(s.what()), 1;
    if (auto s = cache.select(*seq, 0, q, [](auto...) {}); !s) return std::puts(s.what()), 1;
    if (auto s = cache.rewind(*seq, 1); !s) return std::puts(s.what()), 1;
    if (auto s = cache.rewind_to(*seq, 1); !s) return std::puts(s.what()), 1;
    const kvtl::batch_part part{.seq = *seq};
    if (auto s = cache.forward({&part, 1}, 0, {.q = q, .k = k, .v = v}, out); !s)
        return std::puts(s.what()), 1;
    if (auto s = cache.before_query(*seq, 0); !s) return std::puts(s.what()), 1;
    const cache_t::shard_handle shard = cache.shard(cache.shard_of(*seq));
    if (auto s = shard.before_query(*seq, 0); !s) return std::puts(s.what()), 1;
    if (auto s = shard.attend(*seq, 0, {.q = q, .k = k, .v = v}, out); !s) return std::puts(s.what()), 1;
    std::printf("shard %u\n", shard.index());
    std::printf("%f\n", cache.stats().hit_rate());
    return cache.end(*seq).ok() ? 0 : 1;
}
