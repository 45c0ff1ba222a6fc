// The size knobs of presets whose index is made of clusters or codes: each turn makes the index smaller and
// the cache still works; fitted() turns them as far as it must and no further.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/clusterkv.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/pqcache.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/retroinfer.hpp>
#include <kvtl/presets/squeezed.hpp>

#include "support/size_knob.hpp"

namespace size_knobs_test {

using namespace kvtl_test;

TEST_CASE("DynaKV and what is built on it take larger clusters") {
    finds_the_largest_that_fits<kvtl::presets::dynakv>();
    finds_the_largest_that_fits<kvtl::presets::dynakv_static>();
    finds_the_largest_that_fits<kvtl::presets::dynakv_estimate>();
    finds_the_largest_that_fits<kvtl::presets::squeezed>();
    coarsest_equals_dense<kvtl::presets::dynakv>();
    coarsest_equals_dense<kvtl::presets::dynakv_estimate>();
    CHECK(listing(every_setting<kvtl::presets::dynakv>().back()).at("tokens_per_cluster") == 128);
    CHECK(listing(every_setting<kvtl::presets::dynakv_estimate>().back()).at("tokens_per_cluster") == 64);
}

TEST_CASE("ClusterKV and RetroInfer take larger clusters, of the prompt and of decoded entries") {
    finds_the_largest_that_fits<kvtl::presets::clusterkv>();
    finds_the_largest_that_fits<kvtl::presets::retroinfer>();
    coarsest_equals_dense<kvtl::presets::clusterkv>();
    coarsest_equals_dense<kvtl::presets::retroinfer>();
    const auto last = listing(every_setting<kvtl::presets::retroinfer>().back());
    CHECK(last.at("tokens_per_cluster") == 128);
    CHECK(last.at("window_clusters") == 8); // 1024 / 8 = 128
    CHECK(last.at("smallest_batch") == 128);
}

TEST_CASE("PQCache takes smaller codebooks, then fewer parts") {
    using cache_t = cache_of<kvtl::presets::pqcache>;
    const auto all = every_setting<kvtl::presets::pqcache>();
    CHECK(listing(all.back()).at("bits") == 4);
    CHECK(listing(all.back()).at("parts") == 1);
    CHECK(all.size() == 4);
    fits_with<cache_t>(all[0], std::size_t{128} << 20, 0, all);
    // Its index is small: tables and window need more. The knob turns when they leave it too little.
    const std::size_t least = least_memory<cache_t>(all[0]);
    fits_with<cache_t>(all[0], least, 0, all);
    fits_with<cache_t>(all[0], least - 1, 1, all);
    coarsest_equals_dense<kvtl::presets::pqcache>();
}

TEST_CASE("the knob stops before units of which none could be chosen, and open() says what is missing") {
    using cache_t = kvtl::kv_manager<in_ram<kvtl::presets::quest>>;
    typename cache_t::config c;
    c.shape = {1, 2, 1, 64};
    c.max_tokens = 1024;
    c.attend_tokens =
        c.sink_tokens + c.window_tokens + 1 + 40; // a group of 32 can be chosen, one of 64 cannot
    c.memory_bytes = 4096;
    const auto fitted = cache_t::fitted(c);
    REQUIRE(fitted.ok());
    CHECK(fitted->clusterer.group_tokens == 32);
    const auto opened = cache_t::open(*fitted);
    REQUIRE(!opened.ok());
    CHECK(opened.error().code == kvtl::errc::bound_too_small);
    c.attend_tokens = c.sink_tokens + c.window_tokens; // not the knob's doing
    CHECK(cache_t::fitted(c).error().code == kvtl::errc::invalid_argument);
}

TEST_CASE("an ablation whose clusterer has no such setting still compiles and keeps its config") {
    struct by_groups : in_ram<kvtl::presets::dynakv> {
        using clusterer = kvtl::single_tokens;
        using layout = kvtl::unit_contiguous;
    };
    using cache_t = kvtl::kv_manager<by_groups>;
    typename cache_t::config c;
    c.shape = {1, 2, 1, 64};
    c.max_tokens = 64;
    c.memory_bytes = 1;
    const auto fitted = cache_t::fitted(c);
    REQUIRE(fitted.ok());
    CHECK(fitted->clusterer.group_tokens == 1);
}

} // namespace size_knobs_test
