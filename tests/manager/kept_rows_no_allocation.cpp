// Nothing is allocated after open(), whatever the preset: every way to get memory is counted.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynamickv.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/int8.hpp>
#include <kvtl/presets/merging.hpp>
#include <kvtl/presets/streaming.hpp>

#include "support/count_allocations.hpp"
#include "support/eviction.hpp"

using namespace kvtl_test;

namespace {
/// Prompts in chunks, decode with eviction, a further turn, rewinding, refused calls.
template <class Cache> void busy() {
    constexpr kvtl::shape small{5, 4, 2, 32};
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 400;
    c.max_sequences = 2;
    if constexpr (kvtl::drops_entries<typename Cache::preset>) c.keep_tokens = 64;
    c.window_tokens = 8;
    c.memory_bytes = std::size_t{16} << 20;
    const drift data(small, 400, 81);
    auto cache = open_cache<Cache>(c);
    std::vector<float> out(100 * data.query_floats());
    const std::span<float> row = std::span(out).first(data.query_floats());
    const std::vector<float> bad(data.query_floats(), NAN);
    std::size_t refused = 0;
    kvtl::status trouble; // the first call that did not do what it should
    const auto fine = [&](const kvtl::status& s) {
        if (trouble.ok() && !s.ok()) trouble = s;
    };

    const std::uint64_t before = kvtl_test::allocations;
    for (int round = 0; round < 2; ++round) {
        const auto a = *cache.begin(), b = *cache.begin();
        for (std::size_t chunk = 0; chunk < 2; ++chunk)
            for (std::size_t l = 0; l < small.layers; ++l) {
                auto in = data.input(l, chunk * 100, 100);
                in.last_chunk = chunk == 1;
                fine(cache.prefill(a, l, in, out));
            }
        for (std::size_t t = 0; t < 100; ++t)
            for (std::size_t l = 0; l < small.layers; ++l) {
                fine(cache.attend(a, l, data.input(l, 200 + t), row));
                fine(cache.attend(b, l, data.input(l, t), row));
            }
        for (std::size_t l = 0; l < small.layers; ++l) {
            fine(cache.prefill(a, l, data.input(l, 300, 20), std::span(out).first(20 * data.query_floats())));
            auto in = data.input(l, 320);
            in.q = bad;
            refused += cache.attend(a, l, in, row).ok() ? 0U : 1U;
        }
        fine(cache.rewind(a, 3));
        refused += cache.rewind(a, 390).ok() ? 0U : 1U;
        fine(cache.end(a));
        fine(cache.end(b));
    }
    const std::uint64_t during = kvtl_test::allocations - before;
    CHECK(during == 0);
    CHECK_MESSAGE(trouble.ok(), std::string(trouble.what()));
    CHECK(refused == 12);
}
} // namespace

TEST_CASE("the counter counts") {
    const std::uint64_t before = kvtl_test::allocations;
    auto* volatile p = new int(1);
    delete p;
    CHECK(kvtl_test::allocations > before);
}

TEST_CASE("a manager that drops entries allocates nothing after open") {
    busy<kvtl::dynamickv>();
    busy<kvtl::defensivekv>();
    busy<kvtl::h2o>();
    busy<kvtl::streaming_llm>();
    busy<kvtl::d2o>();
}

TEST_CASE("neither does one that keeps everything in memory") {
    busy<kvtl::full>(); // the window is shorter than its own: older entries are 16-bit records
    busy<kvtl::full_int8>();
}
