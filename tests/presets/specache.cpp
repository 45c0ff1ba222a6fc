// SpeCache: with the budget for everything it is dense attention; its copy of the keys takes 24 bytes per entry and head.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/specache.hpp>

#include "support/cache_fixture.hpp"

namespace specache_test {

namespace {
using namespace kvtl_test;
struct in_ram : kvtl::presets::specache {
    using io = kvtl::in_memory;
};
using cache_type = kvtl::kv_manager<in_ram>;
constexpr kvtl::shape model{2, 4, 2, 64};
} // namespace

TEST_CASE("specache with the budget for everything is dense attention") {
    for (const bool smallest : {false, true})
        run_scenario<cache_type>({.shape = model,
                                  .prompt = 500,
                                  .chunk = 170,
                                  .decode = 40,
                                  .turn = 60,
                                  .turn_decode = 20,
                                  .smallest = smallest});
}

TEST_CASE("specache finds what matters by keys of 2 bits in memory") {
    const drift data(model, 700, 3);
    cache_type::config c;
    c.shape = model;
    c.max_tokens = 700;
    c.attend_tokens = 100;
    c.memory_bytes = least_memory<cache_type>(c) + (64 << 10);
    const auto run = [&](std::size_t attended) {
        c.attend_tokens = attended;
        auto cache = open_cache<cache_type>(c);
        reader<cache_type> one(cache, data, 0);
        one.prefill(600);
        const std::size_t before = one.outputs().size();
        one.decode(40);
        double error = 0;
        dense_reference<cache_type::element_type> dense(data);
        for (std::size_t i = 0; i < 80; ++i) {
            const auto& expected = dense.attention(i % 2, 600 + i / 2);
            for (std::size_t j = 0; j < expected.size(); ++j)
                error += std::fabs(static_cast<double>(one.outputs()[before + i * expected.size() + j]) -
                                   expected[j]);
        }
        return std::pair(error, cache.stats());
    };
    const auto [blind, nothing] = run(38); // sinks, window and what arrives, and one more
    const auto [found, stats] = run(100);
    CHECK(found < 0.5 * blind);
    CHECK(stats.read_bytes > nothing.read_bytes);
    // 24 bytes for each token that is not a sink or surely in the window, per layer and head.
    const std::size_t index = stats.bytes_by_part.index;
    CHECK(index >= 4 * (700 - 36) * 24);
    CHECK(index <= 4 * (700 + 64) * 24);
}

} // namespace specache_test
