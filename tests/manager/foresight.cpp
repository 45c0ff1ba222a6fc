// Where the entry that leaves the window belongs is looked for right after scoring: the choice is the one that would be made
// when it leaves, with one level of units and with two.
// SPDX-License-Identifier: MIT
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/two_level.hpp>

#include "support/cache_fixture.hpp"

namespace manager_foresight_test {

using namespace kvtl_test;

namespace {

constexpr kvtl::shape model{2, 4, 2, 64};

/// Looks for a unit when the entry leaves, not before.
struct late_split : kvtl::variance_split {
    class state : public kvtl::variance_split::state {
      public:
        using kvtl::variance_split::state::state;
        void assign_near() const = delete;
    };
};
template <class Preset, class Clusterer> struct with_clusterer : Preset {
    using clusterer = Clusterer;
    using io = kvtl::in_memory;
};
template <class Preset, class Clusterer> using cache_of = kvtl::kv_manager<with_clusterer<Preset, Clusterer>>;
template <class Cache> constexpr bool foresees = kvtl::growth_of<typename Cache::types>::foresees;

struct decoded {
    std::vector<float> outputs;
    kvtl::statistics stats;
};
/// Small units and a low threshold: units fill up, split and refuse to, and entries wait.
template <class Cache> decoded decode(float threshold_scale) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = 1000;
    c.attend_tokens = 96;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 12;
    c.clusterer.min_entries_to_cluster = 64;
    c.clusterer.pending_entries = 6;
    c.clusterer.threshold_scale = threshold_scale;
    if constexpr (requires { c.index.least_units; }) {
        c.index.least_units = 0;
        c.index.units_per_block = 4;
        c.index.near_blocks = 2;
    }
    c.memory_bytes = least_memory<Cache>(c) + 100 * 4096;
    const drift data(model, c.max_tokens, 23);
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data, 0);
    one.prefill(600);
    one.decode(300);
    return {one.outputs(), cache.stats()};
}

} // namespace

TEST_CASE_TEMPLATE("an entry joins the unit that it would join if nobody had looked ahead", Preset,
                   kvtl::presets::dynakv, kvtl::presets::dynakv_two_level) {
    using ahead = cache_of<Preset, kvtl::variance_split>;
    using late = cache_of<Preset, late_split>;
    static_assert(foresees<ahead> && !foresees<late>);
    for (const float scale :
         {1e-3F, .3F, 1.0F, 1e3F}) { // splits whatever comes .. fills units to the last entry
        CAPTURE(scale);
        const decoded a = decode<ahead>(scale), b = decode<late>(scale);
        CHECK(same_bits(a.outputs, b.outputs));
        CHECK(a.stats.splits == b.stats.splits);
        CHECK(a.stats.refused_splits == b.stats.refused_splits);
        CHECK(a.stats.forced_loads == b.stats.forced_loads);
        if (scale < 1.0F) CHECK(a.stats.splits > 50);
    }
}

} // namespace manager_foresight_test
