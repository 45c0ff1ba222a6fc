// What a step finds in memory and has chosen stays there until it is attended: whatever the replacement
// policy would rather evict, the step's own loads take other frames.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/policies/index_exact_keys.hpp>
#include <kvtl/policies/replace_fifo.hpp>
#include <kvtl/policies/replace_fifo_by_lane.hpp>
#include <kvtl/policies/replace_s3_fifo.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/kvswap.hpp>

#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/recording_io.hpp"

#include <set>

namespace manager_residency_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape model{3, 4, 2, 64};

/// Groups of two whole pages, so that no page belongs to two groups.
template <class Replacement> struct grouped : kvtl::presets::offloaded {
    static constexpr std::string_view name = "grouped";
    using clusterer = kvtl::head_groups<16>;
    using index = kvtl::exact_keys;
    using selector = kvtl::topk<kvtl::reduce::group_mean>;
    using replacement = Replacement;
    using compressor = kvtl::raw<float>;
    using io = recording;
};
/// Clusters, whose pages lie where their layout says.
template <class Replacement> struct clustered : kvtl::presets::dynakv_static {
    static constexpr std::string_view name = "clustered";
    using layout = kvtl::unit_contiguous;
    using replacement = Replacement;
    using compressor = kvtl::raw<float>;
    using io = recording;
};
template <class Preset> using cache_of = kvtl::kv_manager<Preset>;

constexpr std::size_t prompt = 600, steps = 40, chosen_groups = 8;

/// Room for the units that one layer chooses and some more, but not for those of all layers.
template <class Cache> typename Cache::config config_for(std::size_t frames_more) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = prompt + steps + 8;
    c.attend_tokens = 36 + chosen_groups * 16 + 15; // 15: a group that is not complete
    c.memory_bytes = least_memory<Cache>(c) + frames_more * 4096;
    return c;
}

/// Offsets of the pages that a unit's entries are read from.
template <class Cache> std::set<std::uint64_t> pages_of(Cache& cache, std::uint32_t lane, std::uint32_t u) {
    auto& store = kvtl::shard_access::of(cache, 0).store();
    const auto l = store.at(lane);
    std::set<std::uint64_t> out;
    if constexpr (Cache::types::sequential)
        for (std::uint32_t i = u * 2; i < u * 2 + 2; ++i)
            out.insert(store.io().map().offset(store.stream_page(l, i)));
    else
        for (std::uint32_t i = 0; i < store.format().pages_for(l.unit(u).entries); ++i)
            out.insert(store.io().map().offset(store.layout().page(l.unit(u).where, i)));
    return out;
}

template <class Cache> void reads_only_what_is_missing(std::size_t frames_more) {
    CAPTURE(std::string(Cache::preset::replacement::name));
    auto c = config_for<Cache>(frames_more);
    auto log = std::make_shared<io_log>();
    c.io.log = log;
    const drift data(model, c.max_tokens, 81);
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data, 0);
    one.prefill(prompt);
    auto& store = kvtl::shard_access::of(cache, 0).store();
    std::size_t resident = 0, missing = 0, read_again = 0;
    struct unit_pages {
        std::uint32_t lane, unit;
        std::set<std::uint64_t> pages;
    };
    std::vector<unit_pages> there;
    const auto look_back = [&] { // at the layer that has just been attended
        std::set<std::uint64_t> read;
        for (const io_event& e : log->events)
            if (e.verb == kvtl::io_verb::read && e.wanted) read.insert(e.offset);
        missing += read.size();
        for (const unit_pages& u : there) {
            if ((store.at(u.lane).chosen_before()[u.unit / 64] >> (u.unit % 64) & 1) == 0) continue;
            ++resident;
            for (const std::uint64_t page : u.pages) read_again += read.count(page);
        }
    };
    for (std::size_t i = 0; i < steps; ++i) {
        one.step([&](std::size_t layer) {
            if (i + layer > 0) look_back();
            there.clear();
            log->clear_events();
            for (std::uint32_t lane = 0; lane < model.kv_heads; ++lane) {
                const std::uint32_t id = lane_id(model, 0, static_cast<std::uint32_t>(layer), lane);
                for (std::uint32_t u = 0; u < store.at(id).state().units; ++u)
                    if (store.at(id).residency(u).frames() != kvtl::none)
                        there.push_back({id, u, pages_of(cache, id, u)});
            }
        });
        std::size_t marked = 0;
        for (std::uint32_t f = 0; f < store.pools()[0].size(); ++f) marked += store.pools()[0][f].wanted;
        CHECK(marked == 0); // all of it was attended
    }
    CHECK(read_again == 0);
    CHECK(resident > 50);
    CHECK(missing > 100);
}

} // namespace

TEST_CASE("groups that are resident and chosen are not evicted by the loads of their step") {
    // One policy of each kind: what a visit changes, whom a victim belongs to, who was there before.
    // 8 groups of each of 2 heads are 32 frames; not all that three layers choose fits.
    reads_only_what_is_missing<cache_of<grouped<kvtl::fifo>>>(112);
    reads_only_what_is_missing<cache_of<grouped<kvtl::fifo_by_lane>>>(112);
    reads_only_what_is_missing<cache_of<grouped<kvtl::lru>>>(112);
    reads_only_what_is_missing<cache_of<grouped<kvtl::s3_fifo>>>(112);
}

TEST_CASE("neither are clusters") {
    reads_only_what_is_missing<cache_of<clustered<kvtl::lru>>>(48);
    reads_only_what_is_missing<cache_of<clustered<kvtl::cluster_aligned>>>(48);
}

TEST_CASE("how much stays in memory changes no bit of the result") {
    using cache_t = cache_of<grouped<kvtl::fifo>>;
    std::vector<float> expected;
    for (const std::size_t more : {4000U, 48U, 8U, 0U}) {
        const auto c = config_for<cache_t>(more);
        const drift data(model, c.max_tokens, 82);
        auto cache = open_cache<cache_t>(c);
        reader<cache_t> one(cache, data, 0);
        one.prefill(prompt);
        one.decode(steps);
        if (expected.empty()) expected = one.outputs();
        CHECK(same_bits(one.outputs(), expected));
    }
}

} // namespace manager_residency_test
