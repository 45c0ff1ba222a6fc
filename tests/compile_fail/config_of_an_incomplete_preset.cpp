// The config of a preset that lacks a slot takes what every config takes: the sentence is the only error.
// expect-error: \[kvtl\] preset: the slot `io` is missing; name a policy or inherit one from presets::full
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/full.hpp>

struct bad {
    static constexpr std::uint32_t window_tokens = 8, sink_tokens = 0;
    using clusterer = kvtl::single_tokens;
    using index = kvtl::no_index;
    using selector = kvtl::all_units;
    using estimator = kvtl::nothing;
    using budget = kvtl::uniform;
    using retention = kvtl::keep_all;
    using compressor = kvtl::raw<kvtl::f16>;
    using position = kvtl::original;
    using layout = kvtl::sequence_order;
    using replacement = kvtl::lru;
    using schedule = kvtl::on_demand;
};
using cache_t = kvtl::kv_manager<bad>;

int main() {
    cache_t::config c{.shape = {.layers = 1, .query_heads = 8, .kv_heads = 2, .head_dim = 64},
                      .max_tokens = 4096,
                      .memory_bytes = 8 << 20,
                      .io = {.path = "hello.kv"}};
    c.attend_tokens = 100;
    return cache_t::open(c).ok() ? 0 : 1;
}
