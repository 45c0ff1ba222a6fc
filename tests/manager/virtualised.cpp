// Layers that have the memory of their cache in turn: the same bits as caches of one layer each that never share.
// SPDX-License-Identifier: MIT
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "support/cache_fixture.hpp"
#include "support/planner_for.hpp"

namespace manager_virtualised_test {

using namespace kvtl_test;

namespace {

/// All that is resident comes back, however long nobody asked for it.
struct whole_cache : kvtl::layer_virtualised {
    struct config {
        std::uint32_t hot_steps = kvtl::none;
        template <class Visit> void fields(Visit&& visit) { visit("hot_steps", hot_steps); }
    };
};
template <class Preset, class Schedule> struct testing : Preset {
    using schedule = Schedule;
    using io = kvtl::faulty<kvtl::in_memory>;
};
template <class Preset, class Schedule = whole_cache>
using cache_of = kvtl::kv_manager<testing<Preset, Schedule>>;

using dynakv = kvtl::presets::dynakv_virtualised;
using estimate = kvtl::presets::dynakv_estimate_virtualised;
using clusterkv = kvtl::presets::clusterkv_virtualised;
/// Not over bytes, as the preset is: clusters as small as here would use up the pages that layers share in the file.
struct two_level : kvtl::presets::dynakv_two_level {
    using schedule = kvtl::layer_virtualised;
};

/// So many heads that a layer's least frames hold a part of its units only.
constexpr kvtl::shape five{5, 8, 8, 64};
constexpr std::size_t prompt = 400, steps = 40;

template <class Cache> typename Cache::config config_for(const kvtl::shape& shape, std::size_t attend) {
    typename Cache::config c;
    c.shape = shape;
    c.max_tokens = prompt + steps + 80;
    c.attend_tokens = attend;
    c.window_tokens = 8;
    if constexpr (requires { c.clusterer.min_entries_to_cluster; }) {
        c.clusterer.tokens_per_cluster = 8;
        c.clusterer.min_entries_to_cluster = 64;
        c.clusterer.pending_entries = 6;
    }
    // A prompt falls into the same segments whatever memory it is lent.
    if constexpr (requires { c.clusterer.min_entries_to_cluster; })
        c.clusterer.segment = c.clusterer.min_entries_to_cluster;
    else
        c.clusterer.segment = 512;
    if constexpr (requires { c.index.probe_percent; }) { // few clusters already have a coarse level
        c.index.least_units = 8;
        c.index.units_per_block = 4;
        c.index.probe_percent = 20;
        c.index.probe_entries = 1;
        c.index.near_blocks = 1;
    }
    return c;
}

template <class Cache> kvtl::cache_plan plan_of(const typename Cache::config& c) {
    planner_for planner(c);
    const auto bytes = planner.plan();
    REQUIRE_MESSAGE(bytes.ok(), (bytes.ok() ? std::string() : bytes.error().message));
    return planner.sizes().plan;
}
/// memory_bytes with which every pool gets so many frames.
template <class Cache> std::size_t memory_for(typename Cache::config c, std::uint32_t frames) {
    std::size_t low = *Cache::least_memory(c), high = std::size_t{1} << 30;
    while (low < high) {
        c.memory_bytes = low + (high - low) / 2;
        if (plan_of<Cache>(c).frames < frames)
            low = c.memory_bytes + 1;
        else
            high = c.memory_bytes;
    }
    c.memory_bytes = low;
    REQUIRE(plan_of<Cache>(c).frames == frames);
    return low;
}

enum class hook { never, before_each, one_ahead, wrong };

/// Feeds sequences through all layers, all shards of a layer one after the other; returns the outputs of each layer.
template <class Cache>
std::vector<std::vector<float>> run(Cache& cache, std::span<const drift* const> data,
                                    std::span<const std::size_t> layers, hook when,
                                    std::size_t decode = steps) {
    std::vector<std::vector<float>> out(layers.size());
    std::vector<kvtl::sequence_id> seqs;
    for (std::size_t s = 0; s < data.size(); ++s) seqs.push_back(*cache.begin());
    const auto keep = [&](std::size_t l, const std::vector<float>& rows) {
        out[l].insert(out[l].end(), rows.begin(), rows.end());
    };
    const auto feed = [&](std::size_t first, std::size_t n, bool last) {
        for (std::size_t s = 0; s < seqs.size(); ++s)
            for (std::size_t l = 0; l < layers.size(); ++l) {
                auto in = data[s]->input(layers[l], first, n);
                in.last_chunk = last;
                std::vector<float> rows(n * data[s]->query_floats());
                require_ok(cache.prefill(seqs[s], l, in, rows));
                keep(l, rows);
            }
    };
    const auto decode_some = [&](std::size_t first, std::size_t n) {
        for (std::size_t t = first; t < first + n; ++t)
            for (std::size_t l = 0; l < layers.size(); ++l) {
                for (const auto seq : seqs) {
                    if (when == hook::before_each) require_ok(cache.before_query(seq, l));
                    if (when == hook::one_ahead) require_ok(cache.before_query(seq, (l + 1) % layers.size()));
                    if (when == hook::wrong) require_ok(cache.before_query(seq, (l * 3 + t) % layers.size()));
                }
                for (std::size_t s = 0; s < seqs.size(); ++s) {
                    std::vector<float> row(data[s]->query_floats());
                    require_ok(cache.attend(seqs[s], l, data[s]->input(layers[l], t, 1), row));
                    keep(l, row);
                }
            }
    };
    feed(0, prompt / 2, false);
    feed(prompt / 2, prompt / 2, true);
    decode_some(prompt, decode);
    feed(prompt + decode, 40, true);
    decode_some(prompt + decode + 40, 20);
    for (const auto seq : seqs) require_ok(cache.end(seq));
    return out;
}

/// All layers in turn in one virtualised cache against each layer in a cache of its own with as many frames.
template <class Preset>
void same_bits_as_one_cache_per_layer(std::size_t sequences, unsigned shards, bool share) {
    using together = cache_of<Preset>;
    using alone = cache_of<Preset, kvtl::on_demand>;
    const drift a(five, prompt + steps + 80, 31), b(five, prompt + steps + 80, 32);
    const std::array<const drift*, 2> both{&a, &b};
    const auto data = std::span(both).first(sequences);
    std::array<std::size_t, 5> all{0, 1, 2, 3, 4};
    auto c = config_for<together>(five, 96);
    auto one = config_for<alone>({1, 8, 8, 64}, 96);
    c.max_sequences = one.max_sequences = sequences;
    c.shards = one.shards = shards;
    c.share = one.share = share;
    one.lend_tables = false; // the others do not
    one.memory_bytes = *alone::least_memory(one);
    c.memory_bytes = std::size_t{1} << 30;
    const std::uint32_t least = plan_of<alone>(one).frames, roomy = plan_of<together>(c).frames;
    REQUIRE(least < roomy);
    for (const std::uint32_t frames : {least, roomy}) {
        CAPTURE(frames);
        one.memory_bytes = memory_for<alone>(one, frames);
        c.memory_bytes = memory_for<together>(c, frames);
        std::vector<std::vector<float>> expected;
        std::uint64_t chosen = 0, resident = 0;
        for (std::size_t l = 0; l < five.layers; ++l) {
            auto cache = open_cache<alone>(one);
            expected.push_back(run(cache, data, std::span(all).subspan(l, 1), hook::never)[0]);
            const auto s = cache.stats();
            chosen += s.chosen_bytes, resident += s.resident_chosen_bytes;
            CHECK(s.hot_set_bytes == 0);
        }
        CHECK(resident > 0);
        if (frames == least) CHECK(resident < chosen);
        for (const hook when : {hook::never, hook::before_each, hook::one_ahead, hook::wrong}) {
            CAPTURE(static_cast<int>(when));
            c.io.faults = std::make_shared<kvtl::io_faults>(); // completions come late and in another order
            c.io.faults->hold_percent = when == hook::never ? 0 : 60;
            auto cache = open_cache<together>(c);
            const auto got = run(cache, data, all, when);
            for (std::size_t l = 0; l < five.layers; ++l) {
                CAPTURE(l);
                CHECK(same_bits(got[l], expected[l]));
            }
            const auto s = cache.stats();
            CHECK(s.chosen_bytes == chosen);
            CHECK(s.resident_chosen_bytes == resident); // each layer's cache is what it would be by itself
            CHECK(s.hot_set_bytes > 0);
            CHECK(s.hot_set_reads > 0);
            CHECK(s.read_bytes >= s.hot_set_bytes);
            CHECK(s.resident_bytes_peak <= c.memory_bytes);
            const std::uint64_t calls = s.steps;
            if (when == hook::never) CHECK(s.unannounced_layers == calls);
            if (when == hook::before_each) CHECK(s.unannounced_layers == 0);
            if (when == hook::wrong) CHECK(s.late_hot_sets > 0);
        }
    }
}

TEST_CASE("a layer's cache is what it would be if its memory had never been lent") {
    SUBCASE("clusterkv: units that do not grow") {
        same_bits_as_one_cache_per_layer<clusterkv>(2, 2, false);
    }
    SUBCASE("dynakv: units that grow and split where they are resident") {
        same_bits_as_one_cache_per_layer<dynakv>(1, 1, false);
    }
    SUBCASE("sequences that share their frames") {
        same_bits_as_one_cache_per_layer<dynakv>(2, 1, true);
    }
    SUBCASE("dynakv_estimate, shards") {
        same_bits_as_one_cache_per_layer<estimate>(1, 2, false);
    }
    SUBCASE("dynakv_two_level: means of blocks go and come with those of their units") {
        same_bits_as_one_cache_per_layer<two_level>(1, 1, false);
        // Some of the blocks are not looked at: as a whole the lanes choose otherwise.
        const drift data(five, prompt + steps + 80, 31);
        const std::array<const drift*, 1> one{&data};
        const std::array<std::size_t, 5> all{0, 1, 2, 3, 4};
        auto c = config_for<cache_of<two_level>>(five, 96);
        c.memory_bytes = std::size_t{8} << 20;
        auto narrows = open_cache<cache_of<two_level>>(c);
        c.index.least_units = 4096;
        auto looks_at_all = open_cache<cache_of<two_level>>(c);
        CHECK_FALSE(
            same_bits(run(narrows, one, all, hook::never)[0], run(looks_at_all, one, all, hook::never)[0]));
    }
}
} // namespace

} // namespace manager_virtualised_test
