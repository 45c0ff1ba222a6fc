// A path for an io policy that is none: the sentence is the only error.
// expect-error: \[kvtl\] io: the policy needs name, config, device and open\(config, io_plan\)
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct named {
    static constexpr std::string_view name = "named";
};
struct bad : kvtl::presets::dynakv {
    using io = named;
};
using cache_t = kvtl::kv_manager<bad>;

int main() {
    cache_t::config c{.max_tokens = 4096, .io = {.path = "hello.kv", .keep_file = true}};
    c.clusterer.tokens_per_cluster = 32; // the other policies have theirs
    return cache_t::open(c).ok() ? 0 : 1;
}
