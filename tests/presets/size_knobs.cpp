// The size knobs of presets whose index is made of clusters or codes: each turn makes the index smaller and
// the cache still works; fitted() turns them as far as it must and no further.
// SPDX-License-Identifier: MIT
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/clusterkv.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/pqcache.hpp>
#include <kvtl/presets/retroinfer.hpp>
#include <kvtl/presets/squeezed.hpp>

#include "support/cache_fixture.hpp"

#include <map>

using namespace kvtl_test;

namespace {
using any_model = kvtl::geometry<kvtl::shape{}>;

template <class Preset> struct in_ram : Preset { using io = kvtl::in_memory; };
template <class Preset> using cache_of = kvtl::kv_manager<in_ram<Preset>, any_model>;

template <class Cache> typename Cache::config long_context() {
    typename Cache::config c;
    c.shape = {32, 8, 4, 64}; // many lanes: the index outweighs what there is once
    c.max_tokens = 8192;
    c.attend_tokens = 256;
    c.memory_bytes = std::size_t{128} << 20;
    return c;
}

/// What a row of a program prints of a config: field by field.
template <class Config> std::map<std::string, double> listing(Config c) {
    std::map<std::string, double> out;
    const auto note = [&out](const char* name, const auto& x) { out[name] = static_cast<double>(x); };
    c.clusterer.fields(note);
    c.index.fields(note);
    return out;
}

template <class Cache> std::size_t index_bytes(const typename Cache::config& c) {
    return open_cache<Cache>(c).stats().bytes_by_part.index;
}

/// The knob from the paper's setting to its end; checks each turn and returns all settings.
template <class Preset, class Cache = cache_of<Preset>> std::vector<typename Cache::config> every_setting() {
    CAPTURE(std::string(Preset::name));
    std::vector all{long_context<Cache>()};
    std::size_t index = index_bytes<Cache>(all[0]);
    for (auto c = all[0]; Preset::shrink(c); all.push_back(c)) {
        REQUIRE(all.size() < 20);
        const std::size_t smaller = index_bytes<Cache>(c);
        CHECK(smaller < index);
        CHECK(listing(c) != listing(all.back()));
        index = smaller;
    }
    // A step that cannot be taken changes nothing.
    auto last = all.back();
    CHECK_FALSE(Preset::shrink(last));
    CHECK(listing(last) == listing(all.back()));
    return all;
}

template <class Cache>
void fits_with(typename Cache::config c, std::size_t memory, std::size_t turns,
               const std::vector<typename Cache::config>& all) {
    CAPTURE(memory);
    c.memory_bytes = memory;
    const auto fitted = Cache::fitted(c);
    REQUIRE(fitted.ok());
    CHECK(listing(*fitted) == listing(all.at(turns)));
    CHECK(index_bytes<Cache>(*fitted) <= memory / 2);
}

/// The setting before the last possible one is found when its index is exactly half, and no smaller.
template <class Preset, class Cache = cache_of<Preset>> void finds_the_largest_that_fits() {
    CAPTURE(std::string(Preset::name));
    const auto all = every_setting<Preset>();
    fits_with<Cache>(all[0], std::size_t{128} << 20, 0, all);
    REQUIRE(all.size() > 2);
    const std::size_t whole = 2 * index_bytes<Cache>(all[0]);
    fits_with<Cache>(all[0], whole, 0, all);
    fits_with<Cache>(all[0], whole - 1, 1, all);
}

/// Budget = everything stays exact at the coarsest setting.
template <class Preset, class Cache = cache_of<Preset>> void coarsest_equals_dense() {
    typename Cache::config base;
    while (Preset::shrink(base)) {
    }
    run_scenario<Cache>({.prompt = 600, .chunk = 250, .decode = 150, .smallest = true}, base);
}

} // namespace

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

TEST_CASE("an ablation whose clusterer has no such setting still compiles and keeps its config") {
    struct by_groups : in_ram<kvtl::presets::dynakv> {
        using clusterer = kvtl::single_tokens;
        using layout = kvtl::unit_contiguous;
    };
    using cache_t = kvtl::kv_manager<by_groups, any_model>;
    typename cache_t::config c;
    c.shape = {1, 2, 1, 64};
    c.max_tokens = 64;
    c.memory_bytes = 1;
    const auto fitted = cache_t::fitted(c);
    REQUIRE(fitted.ok());
    CHECK(fitted->clusterer.group_tokens == 1);
}
