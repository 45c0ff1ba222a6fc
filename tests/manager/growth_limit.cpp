// How far decode may grow a sequence on storage is a matter of that sequence: neither other sequences of the shard, nor being
// a branch, nor a save in between change it.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace manager_growth_limit_test {

using namespace kvtl_test;

namespace {

using pools = kvtl::kv_manager<on_device<kvtl::presets::dynakv, kvtl::faulty<kvtl::in_memory>>>;
using runs =
    kvtl::kv_manager<on_device<kvtl::presets::dynakv_unit_contiguous, kvtl::faulty<kvtl::in_memory>>>;

constexpr kvtl::shape model{1, 2, 2, 64};
constexpr std::size_t prompt = 200, decoded = 480;

/// Sequences that soon have as many places as they may: a cluster has a page for itself, which would hold four.
template <class Cache> Cache open_small() {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = prompt + decoded;
    c.max_sequences = 3;
    c.attend_tokens = 128;
    c.clusterer.tokens_per_cluster = 4;
    c.clusterer.min_entries_to_cluster = 64;
    c.memory_bytes = std::size_t{16} << 20;
    return open_cache<Cache>(c);
}

template <class Cache> auto& store_of(Cache& cache) {
    return kvtl::shard_access::of(cache, 0).store();
}
/// Units of each lane, and whether it may have another.
template <class Cache>
[[nodiscard]] std::vector<std::uint32_t> growth_of(Cache& cache, kvtl::sequence_id seq) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t head = 0; head < model.kv_heads; ++head) {
        const std::uint32_t lane = seq.slot * model.kv_heads + head;
        all.push_back(store_of(cache).at(lane).state().units);
        all.push_back(store_of(cache).may_grow(lane) ? 1 : 0);
    }
    return all;
}
template <class Cache> [[nodiscard]] std::uint32_t units_of(Cache& cache, kvtl::sequence_id seq) {
    std::uint32_t n = 0;
    for (std::uint32_t head = 0; head < model.kv_heads; ++head)
        n += store_of(cache).at(seq.slot * model.kv_heads + head).state().units;
    return n;
}
/// Tables have room for more units, so it is storage that ends growth.
template <class Cache> [[nodiscard]] bool is_full(Cache& cache, kvtl::sequence_id seq) {
    const std::uint32_t lane = seq.slot * model.kv_heads;
    return store_of(cache).may_add_unit(lane) && !store_of(cache).may_grow(lane);
}

} // namespace

TEST_CASE_TEMPLATE("a sequence grows as far beside others as alone", Cache, pools, runs) {
    const drift data(model, prompt + decoded, 51), others(model, prompt + decoded, 52);
    auto quiet = open_small<Cache>(), busy = open_small<Cache>();
    reader<Cache> alone(quiet, data, 0);
    alone.prefill(prompt);
    alone.decode(decoded);
    REQUIRE(is_full(quiet, alone.id()));

    reader<Cache> first(busy, others, 0), second(busy, others, 0);
    for (reader<Cache>* other : {&first, &second}) {
        other->prefill(prompt);
        other->decode(decoded);
        REQUIRE(is_full(busy, other->id()));
    }
    second.end();
    reader<Cache> beside(busy, data, 0);
    beside.prefill(prompt);
    beside.decode(decoded);
    CHECK(growth_of(busy, beside.id()) == growth_of(quiet, alone.id()));
    CHECK(same_bits(beside.outputs(), alone.outputs()));
}

TEST_CASE("a branch grows as far as a sequence that shares nothing") {
    const drift data(model, prompt + decoded, 51);
    auto cache = open_small<pools>(), whole = open_small<pools>();
    reader<pools> alone(whole, data, 0), parent(cache, data, 0), branch(cache, data, 0);
    alone.prefill(prompt), parent.prefill(prompt);
    branch.end();
    const auto forked = cache.fork(parent.id());
    REQUIRE(forked.ok());
    branch.go_on_in(*forked);
    branch.advance(prompt);
    for (reader<pools>* one : {&alone, &parent, &branch}) one->decode(decoded);
    REQUIRE(is_full(whole, alone.id()));
    for (const reader<pools>* one : {&parent, &branch}) {
        CHECK(is_full(cache, one->id()));
        CHECK(units_of(cache, one->id()) == units_of(whole, alone.id())); // all places are of one size
    }
}

TEST_CASE_TEMPLATE("a loaded sequence has the places that the saved one had", Cache, pools, runs) {
    const drift data(model, prompt + decoded, 51);
    auto cache = open_small<Cache>(), next = open_small<Cache>();
    reader<Cache> one(cache, data, 0);
    one.prefill(prompt);
    one.decode(decoded);
    REQUIRE(is_full(cache, one.id()));
    const auto file =
        std::filesystem::temp_directory_path() / ("kvtl-" + std::to_string(::getpid()) + "-growth-limit");
    REQUIRE(cache.save(one.id(), file.string()).ok());
    const auto loaded = next.load(file.string());
    std::filesystem::remove(file);
    REQUIRE(loaded.ok());
    CHECK(growth_of(next, loaded->seq) == growth_of(cache, one.id()));
}

TEST_CASE_TEMPLATE("what a sequence had is given back when it ends", Cache, pools, runs) {
    const drift data(model, prompt + decoded, 51);
    auto cache = open_small<Cache>();
    std::vector<std::uint32_t> growth;
    for (int time = 0; time < 3; ++time) {
        reader<Cache> one(cache, data, 0);
        one.prefill(prompt);
        one.decode(decoded);
        if (time == 0) growth = growth_of(cache, one.id());
        CHECK(growth_of(cache, one.id()) == growth);
        CHECK(is_full(cache, one.id()));
        one.end();
        CHECK(store_of(cache).layout().used() == 0);
    }
}

} // namespace manager_growth_limit_test
