// Opens a cache in memory; prints the version of the package. SPDX-License-Identifier: MIT
#include <kvtl/presets/full.hpp>

#include <cstdio>

int main() {
    const auto cache =
        kvtl::full::open({.shape = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 64},
                          .max_tokens = 16,
                          .memory_bytes = 1 << 20});
    if (!cache) return std::puts(cache.error().message.c_str()), 1;
    std::puts("kvtl " KVTL_VERSION_STRING);
    return 0;
}
