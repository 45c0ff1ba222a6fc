// What tests of presets share: a preset with its storage in memory, everything attended, and its size knob
// turned to the end. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/in_memory.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <map>
#include <string>
#include <vector>

namespace kvtl_test {

template <class Preset> using in_ram = on_device<Preset, kvtl::in_memory>;
template <class Preset, class Supplied = kvtl::default_engine_inputs>
using cache_of = kvtl::kv_manager<in_ram<Preset>, Supplied>;

template <class Cache> typename Cache::config long_context() {
    typename Cache::config c;
    c.shape = {32, 8, 4, 64}; // many lanes: the index outweighs what there is once
    c.max_tokens = 8192;
    c.attend_tokens = 256;
    c.memory_bytes = std::size_t{256} << 20;
    return c;
}

/// What a row of a program prints of a config: field by field.
template <class Config> std::map<std::string, double> listing(Config c) {
    std::map<std::string, double> out;
    const auto note = [&out](const char* name, const auto& x) { out[name] = static_cast<double>(x); };
    c.clusterer.fields(note);
    c.index.fields(note);
    c.compressor.fields(note);
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

/// The first setting is found when its index is exactly half and the rest fits too, and no smaller.
template <class Preset, class Cache = cache_of<Preset>> void finds_the_largest_that_fits() {
    CAPTURE(std::string(Preset::name));
    const auto all = every_setting<Preset>();
    fits_with<Cache>(all[0], std::size_t{128} << 20, 0, all);
    REQUIRE(all.size() > 2);
    const std::size_t whole = std::max(2 * index_bytes<Cache>(all[0]), least_memory<Cache>(all[0]));
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

/// The part of equals_dense that depends on a preset's policies: a prompt in chunks, decode, a further turn;
/// odd sizes and two shards; decode from nothing.
template <class Cache> void equals_dense_in_short(const typename Cache::config& base = {}) {
    run_scenario<Cache>(
        {.prompt = 500, .chunk = 170, .decode = 40, .turn = 60, .turn_decode = 20, .smallest = true}, base);
    run_scenario<Cache>({.shape = {1, 14, 2, 80}, .prompt = 300, .decode = 30, .shards = 2}, base);
    run_scenario<Cache>({.prompt = 0, .decode = 150}, base);
}

} // namespace kvtl_test
