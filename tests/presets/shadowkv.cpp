// ShadowKV: keys are rebuilt from codes, so that what is attended is exact but for these; values come from
// storage. SPDX-License-Identifier: MIT
#include <kvtl/presets/shadowkv.hpp>

#include "support/size_knob.hpp"

namespace shadowkv_test {

using namespace kvtl_test;

namespace {
using cache_type = cache_of<kvtl::presets::shadowkv>;
using joint_cache = cache_of<kvtl::presets::shadowkv_joint>;
constexpr kvtl::shape model{2, 4, 2, 64};

/// Largest error of a prompt in one piece and some steps, all attended, with `rank` numbers per key.
template <class Cache = cache_type> double error_at(std::uint32_t rank) {
    const drift data(model, 400, 4);
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = 400;
    c.attend_tokens = 400;
    c.memory_bytes = std::size_t{16} << 20;
    c.compressor.rank = rank;
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data);
    one.prefill(300);
    one.decode(60);
    one.check_tokens();
    return one.error();
}
} // namespace

TEST_CASE("shadowkv with everything attended is dense attention as far as its keys are") {
    const double full = error_at(128), half = error_at(64), least = error_at(8);
    CHECK(full < 5e-3); // codes are rounded to f16
    CHECK(half > full);
    CHECK(least > 2 * half);
    CHECK(error_at<joint_cache>(128) < 5e-3);
}

TEST_CASE("shadowkv_joint reads no chunk that not all heads chose, shadowkv up to a chunk for each") {
    const drift data(model, 1200, 4);
    const auto entries_read = [&]<class Cache>(Cache*) {
        typename Cache::config c;
        c.shape = model;
        c.max_tokens = 1200;
        c.attend_tokens = 128;
        c.memory_bytes = std::size_t{16} << 20;
        auto cache = open_cache<Cache>(c);
        reader<Cache> one(cache, data);
        one.prefill(1000);
        one.decode(40);
        const kvtl::statistics s = cache.stats();
        return static_cast<double>(s.chosen_bytes) / static_cast<double>(s.choices);
    };
    const double by_head = entries_read(static_cast<cache_type*>(nullptr)),
                 joint = entries_read(static_cast<joint_cache*>(nullptr));
    CHECK(joint * 1.05 < by_head);
    CHECK(by_head <= joint * 2.001); // two heads
}

TEST_CASE(
    "shadowkv: the size knob turns at what takes most, to longer chunks, fewer outliers and a smaller rank") {
    const auto all = every_setting<kvtl::presets::shadowkv>();
    CHECK(all.size() > 8);
    CHECK(all.front().clusterer.group_tokens == 4);
    CHECK(all.front().compressor.outliers == 48);
    CHECK(all.back().clusterer.group_tokens == 64);
    CHECK(all.back().compressor.rank >= 6);
    CHECK(all.back().compressor.rank <= 10);
    CHECK(all.back().compressor.outliers == 0);
    for (const auto& c : all) {
        CHECK(c.index.outliers == c.compressor.outliers);
        CHECK(c.compressor.chunk == c.clusterer.group_tokens);
    }
}

TEST_CASE(
    "shadowkv fits into a thirty-fourth of the cache of an 8B model, by longer chunks and a smaller rank") {
    cache_type::config c;
    c.shape = {32, 32, 8, 128};
    c.max_tokens = 16384;
    c.attend_tokens = 400;
    c.memory_bytes = c.max_tokens * 32 * 8 * 128 * 4 / 34;
    const auto fitted = cache_type::fitted(c);
    REQUIRE(fitted.ok());
    CHECK(fitted->clusterer.group_tokens == 64);
    CHECK(fitted->compressor.rank == 8);
    const auto least = cache_type::least_memory(*fitted);
    REQUIRE(least.ok());
    CHECK(*least <= c.memory_bytes);
}

} // namespace shadowkv_test
