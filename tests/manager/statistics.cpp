// What a cache counts is what happened: on the device, in memory, on storage.
// SPDX-License-Identifier: MIT
#include <kvtl/io/backends.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/sparq.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/size_knob.hpp"

#include <fstream>
#include <optional>

namespace manager_statistics_test {

using namespace kvtl_test;

namespace {

using cache_t = kvtl::kv_manager<on_device<kvtl::presets::dynakv, kvtl::any_io>>;
using kvtl::any_backend, kvtl::backend;

constexpr kvtl::shape model{2, 8, 4, 64};
constexpr std::uint64_t entry_bytes = 2 * 64 * 2;

cache_t::config config_for(std::size_t tokens, const kvtl::backend_config& io) {
    cache_t::config c;
    c.shape = model;
    c.max_tokens = tokens;
    c.attend_tokens = 160;
    c.io = any_backend(io);
    c.memory_bytes = least_memory<cache_t>(c);
    return c;
}

std::optional<std::uint64_t> proc_io(const std::string& field) {
    std::ifstream in("/proc/self/io");
    std::string name;
    std::uint64_t value = 0;
    while (in >> name >> value)
        if (name == field + ":") return value;
    return std::nullopt;
}

/// What must hold at any time.
void check_sums(const kvtl::statistics& s, const cache_t::config& c) {
    CHECK(s.bytes_by_part.total() == s.bytes_by_part.index + s.bytes_by_part.metadata +
                                         s.bytes_by_part.window + s.bytes_by_part.buffers +
                                         s.bytes_by_part.tails + s.bytes_by_part.scratch +
                                         s.bytes_by_part.frames);
    CHECK(s.bytes_by_part.total() <= c.memory_bytes);
    CHECK(s.bytes_by_part.raw_cache ==
          c.max_tokens * c.max_sequences * c.shape.layers * c.shape.kv_heads * c.shape.head_dim * 4);
    CHECK(s.resident_bytes_peak <= s.bytes_by_part.total());
    CHECK(s.resident_bytes_peak >= s.bytes_by_part.total() - s.bytes_by_part.frames - s.bytes_by_part.tails);
    CHECK(s.resident_chosen_bytes <= s.chosen_bytes);
    CHECK(s.useful_bytes + s.resident_chosen_bytes == s.chosen_bytes);
    CHECK(s.useful_bytes == s.read_entries * entry_bytes);
    CHECK(s.chosen_bytes % entry_bytes == 0);
    CHECK(s.written_bytes % 4096 == 0);
    CHECK(s.read_bytes % 4096 == 0);
    CHECK(s.reads <= s.read_bytes / 4096);
    CHECK(s.writes <= s.written_bytes / 4096);
}

} // namespace

TEST_CASE("counters agree with each other and with what was done") {
    const drift data(model, 1200, 51);
    auto c = config_for(1200, {.use = backend::memory});
    auto cache = open_cache<cache_t>(c);
    check_sums(cache.stats(), c);
    CHECK(cache.stats().hit_rate() == 1.0); // nothing chosen, nothing missed
    reader<cache_t> one(cache, data, 0);
    one.prefill(900, 400);
    const kvtl::statistics prompt = cache.stats();
    check_sums(prompt, c);
    CHECK(prompt.steps == 0);
    CHECK(prompt.chosen_bytes == 0);
    const std::uint64_t raw_prompt = std::uint64_t{900} * model.layers * model.kv_heads * entry_bytes;
    CHECK(prompt.written_bytes > raw_prompt);
    one.decode(200);
    const kvtl::statistics s = cache.stats();
    check_sums(s, c);
    CHECK(s.steps == 200 * model.layers);
    CHECK(s.decode_reads <= s.reads);
    CHECK(s.useful_bytes <= s.read_bytes - prompt.read_bytes);
    CHECK(s.hit_rate() > 0.05);
    CHECK(s.hit_rate() < 0.95);
    CHECK(s.mean_read_entries() > 1);
    CHECK(s.chosen_bytes <=
          std::uint64_t{200} * model.layers * model.kv_heads * (c.attend_tokens - 36) * entry_bytes);
    CHECK(s.choices == std::uint64_t{200} * model.layers * model.kv_heads);
    CHECK(s.chosen_bytes <= s.selectable_entries * entry_bytes);
    CHECK(s.mean_selectable_entries() <= static_cast<double>(c.attend_tokens - 36));
    CHECK(s.mean_selectable_entries() >= static_cast<double>(c.attend_tokens - 36 - 16)); // those that wait
    CHECK(s.empty_choices == 0);
    CHECK(s.splits > 0);
    CHECK(s.bytes_moved_by_updates > 0);
    CHECK(s.bytes_moved_by_updates <= s.written_bytes);
    const std::uint64_t raw = std::uint64_t{1200} * model.layers * model.kv_heads * entry_bytes;
    MESSAGE("storage " << static_cast<double>(s.storage_bytes) / static_cast<double>(raw)
                       << " times the raw entries, hit rate " << s.hit_rate() << ", useful "
                       << static_cast<double>(s.useful_bytes) /
                              static_cast<double>(s.read_bytes - prompt.read_bytes)
                       << " of the bytes read, " << s.mean_read_entries() << " entries per read");
    CHECK(s.storage_bytes >= raw * 1100 / 1200 / 2);
    CHECK(static_cast<double>(s.storage_bytes) <= 2.5 * static_cast<double>(raw));
    // A second sequence starts with counters that go on, and a peak that does not grow.
    one.end();
    reader<cache_t> two(cache, data, 0);
    two.prefill(900);
    CHECK(cache.stats().steps == s.steps);
    CHECK(cache.stats().written_bytes > s.written_bytes);
    CHECK(cache.stats().resident_bytes_peak <= c.memory_bytes);
}

TEST_CASE("bytes written: a page for each entry that joins a cluster, and the pages of clusters that split") {
    auto c = config_for(1200, {.use = backend::memory});
    SUBCASE("open pages as planned") {}
    SUBCASE("two open pages: nearly every entry has one written") {
        c.open_pages = 2;
    }
    const drift data(model, 1200, 51);
    auto cache = open_cache<cache_t>(c);
    reader<cache_t> one(cache, data, 0);
    one.prefill(900, 400);
    const kvtl::statistics prompt = cache.stats();
    one.decode(300);
    const kvtl::statistics s = cache.stats();
    constexpr std::uint64_t page = 4096, lanes = model.layers * model.kv_heads;
    const std::uint64_t splits = s.splits - prompt.splits, written = s.written_bytes - prompt.written_bytes,
                        moved = s.bytes_moved_by_updates - prompt.bytes_moved_by_updates;
    MESSAGE((written / page) << " pages of " << (300 * lanes) << " entries and " << splits << " splits");
    CHECK(splits > 0);
    CHECK(splits <= s.units - prompt.units);
    CHECK(moved <= splits * 2 * c.clusterer.tokens_per_cluster * entry_bytes); // of one full cluster each
    CHECK(written <= page * (300 * lanes + 2 * splits) + moved);
    if (c.open_pages == 2) CHECK(written > page * 300 * lanes * 2 / 3);
}

TEST_CASE("bytes written: groups write each page once") {
    using groups = kvtl::kv_manager<on_device<kvtl::presets::quest, kvtl::any_io>>;
    groups::config c;
    c.shape = model;
    c.max_tokens = 1200;
    c.attend_tokens = 160;
    c.io = any_backend({.use = backend::memory});
    c.memory_bytes = least_memory<groups>(c);
    const drift data(model, 1200, 51);
    auto cache = open_cache<groups>(c);
    reader<groups> one(cache, data, 0);
    one.prefill(900, 400);
    one.decode(300);
    const std::uint64_t written = cache.stats().written_bytes,
                        raw = std::uint64_t{1200} * model.layers * model.kv_heads * entry_bytes;
    CHECK(written <= raw);
    CHECK(written > raw * 9 / 10);
}

TEST_CASE("a budget that leaves nothing to choose is counted") {
    const drift data(model, 1000, 54);
    auto c = config_for(1000, {.use = backend::memory});
    c.attend_tokens =
        4 + 32 + 2; // sinks, window, what arrives, and no room for a cluster of more than one entry
    auto cache = open_cache<cache_t>(c);
    reader<cache_t> one(cache, data, 0);
    one.prefill(900);
    one.decode(50);
    const kvtl::statistics s = cache.stats();
    CHECK(s.choices == std::uint64_t{50} * model.layers * model.kv_heads);
    CHECK(s.mean_selectable_entries() <= 1.0);
    CHECK(s.empty_choices > s.choices * 9 / 10);
    CHECK(s.chosen_units == s.choices - s.empty_choices);
}

TEST_CASE_TEMPLATE("the least budget that open() takes lets something be chosen; less is refused", Preset,
                   kvtl::presets::quest, kvtl::presets::shared_boxes, kvtl::presets::sparq,
                   kvtl::presets::dynakv) {
    using cache = cache_of<Preset>;
    const drift data(model, 600, 54);
    typename cache::config c;
    c.shape = model;
    c.max_tokens = 600;
    std::uint32_t unit = 1;
    if constexpr (requires { c.clusterer.group_tokens; }) unit = c.clusterer.group_tokens;
    const std::size_t least = std::size_t{c.sink_tokens} + c.window_tokens + 1 + unit;
    c.attend_tokens = least - 1;
    const auto refused = cache::least_memory(c);
    REQUIRE(!refused);
    CHECK(refused.error().code == kvtl::errc::invalid_argument);
    const std::string why = refused.error().message;
    CAPTURE(why);
    CHECK(why.find("attend_tokens is " + std::to_string(least - 1)) == 0);
    CHECK(why.find("valid: " + std::to_string(least) + " and more") != std::string::npos);

    c.attend_tokens = least;
    c.memory_bytes = std::size_t{16} << 20;
    auto small = open_cache<cache>(c);
    reader<cache> one(small, data, 0);
    one.prefill(500);
    one.decode(32);
    CHECK(small.stats().choices > 0);
    if (unit > 1 || std::is_same_v<Preset, kvtl::presets::sparq>) // a cluster may have more entries
        CHECK(small.stats().chosen_units > 0);

    c.max_tokens = c.attend_tokens = c.window_tokens + c.sink_tokens + 1; // everything may be attended
    CHECK(cache::least_memory(c).ok());
}

namespace {
struct flat_boxes : kvtl::presets::shared_boxes {
    static constexpr std::string_view name = "flat_boxes";
    using selector = kvtl::topk<kvtl::reduce::group_max>;
};
} // namespace

TEST_CASE("what choices take: scores, comparisons, opened numbers") {
    using cache = cache_of<flat_boxes>;
    const drift data(model, 600, 55);
    typename cache::config c;
    c.shape = model;
    c.max_tokens = 600;
    c.attend_tokens = 100;
    c.memory_bytes = std::size_t{16} << 20;
    const auto run = [&](std::uint32_t per_block) {
        c.index.units_per_block = per_block;
        auto made = open_cache<cache>(c);
        reader<cache> one(made, data, 0);
        one.prefill(516);
        CHECK(made.stats().choosing.scored == 0);
        one.decode(4); // 516 - 36 = 60 groups of 8, and no further one yet
        return made.stats();
    };
    const std::uint64_t choices = 4 * model.layers * model.kv_heads, queries = 2;
    const kvtl::statistics flat = run(1);
    CHECK(flat.choices == choices);
    CHECK(flat.choosing.scored == choices * queries * 60);
    CHECK(flat.choosing.compared == choices * 60);
    CHECK(flat.choosing.opened == flat.chosen_units);
    const kvtl::statistics two = run(4); // 15 blocks; 63 to 60 entries may be chosen: twice that is 4 blocks
    CHECK(two.choosing.scored == choices * queries * (15 + 4 * 4));
    CHECK(two.choosing.compared == choices * (15 + 4 * 4));
    CHECK(two.choosing.opened == two.chosen_units + choices * 4);
    CHECK(two.chosen_units == flat.chosen_units);
}

TEST_CASE("more memory means more hits, and all of it when everything fits") {
    const drift data(model, 1000, 52);
    double before = -1;
    for (const std::size_t times : {1U, 3U, 12U}) {
        auto c = config_for(1000, {.use = backend::memory});
        c.memory_bytes *= times;
        auto cache = open_cache<cache_t>(c);
        reader<cache_t> one(cache, data, 0);
        one.prefill(800);
        one.decode(100); // what fits has been read
        const kvtl::statistics warm = cache.stats();
        one.decode(100);
        const kvtl::statistics s = cache.stats();
        const double rate = static_cast<double>(s.resident_chosen_bytes - warm.resident_chosen_bytes) /
                            static_cast<double>(s.chosen_bytes - warm.chosen_bytes);
        CHECK(rate >= before);
        before = rate;
    }
    CHECK(before > 0.8);
}

TEST_CASE("the device reads what is counted") {
    const scratch_folder folder;
    const drift data(model, 1000, 53);
    for (const auto& [b, gaps] : {std::pair(backend::posix, false),
                                  {backend::posix, true},
                                  {backend::uring, false},
                                  {backend::uring, true}}) {
#if !defined(KVTL_HAS_URING) || !KVTL_HAS_URING
        if (b == backend::uring) continue;
#endif
        auto c = config_for(1000, {.use = b, .path = folder.file("a.kv")});
        if (!gaps) c.read_through_pages = 0;
        auto cache = open_cache<cache_t>(c);
        CAPTURE(std::string(cache.device_info().name));
        REQUIRE(cache.device_info().direct);
        reader<cache_t> one(cache, data, 0);
        one.prefill(800);
        one.decode(40); // brings in the code, which the kernel counts as well
        const kvtl::statistics before = cache.stats();
        const auto device_before = proc_io("read_bytes");
        one.decode(100);
        const auto device_after = proc_io("read_bytes");
        const kvtl::statistics after = cache.stats();
        CHECK(after.read_bytes > before.read_bytes);
        if (!device_before) {
            MESSAGE("no /proc/self/io here: the comparison is impossible");
            continue;
        }
        // A gap that was never written is no work for the device: the kernel knows that it holds zeros.
        if (gaps)
            CHECK(*device_after - *device_before <= after.read_bytes - before.read_bytes);
        else
            CHECK(*device_after - *device_before == after.read_bytes - before.read_bytes);
    }
}

TEST_CASE("a prompt of max_tokens fits on storage, whatever its keys are like and in however many chunks") {
    // One layer, one head: nothing else on storage makes up for staged chunks, half-empty clusters or pieces
    // of large ones.
    for (const drift_config& kind : {drift_config{}, drift_config{.topics = 2, .noise = 0.01, .drift = 0.0},
                                     drift_config{.topics = 40, .noise = 0.05, .change = 0.02},
                                     drift_config{.noise = 0.0, .drift = 0.0}})
        for (const std::size_t chunk : {3000U, 700U}) {
            auto c = config_for(3020, {.use = backend::memory});
            c.shape = {1, 1, 1, 64};
            c.memory_bytes = least_memory<cache_t>(c);
            const drift data(c.shape, 3020, 54, kind);
            auto cache = open_cache<cache_t>(c);
            reader<cache_t> one(cache, data, 0);
            one.prefill(3000, chunk);
            one.decode(20);
            one.check_tokens();
        }
}

TEST_CASE("the calls of a sequence are counted for it, and all sequences together are the cache") {
    const drift data(model, 1000, 52);
    auto c = config_for(1000, {.use = backend::memory});
    c.max_sequences = 3;
    c.memory_bytes = least_memory<cache_t>(c);
    auto cache = open_cache<cache_t>(c), other = open_cache<cache_t>(c);
    reader<cache_t> one(cache, data, 0), two(cache, data, 0), alone(other, data, 0);
    const auto of = [](cache_t& in, kvtl::sequence_id seq) {
        auto s = in.stats(seq);
        REQUIRE(s.ok());
        return *s;
    };
    one.prefill(600);
    two.prefill(300, 100), alone.prefill(300, 100);
    for (int i = 0; i < 20; ++i) one.decode(5), two.decode(3), alone.decode(3);
    const auto a = of(cache, one.id()), b = of(cache, two.id()), by_itself = of(other, alone.id());
    const auto all = cache.stats();
    CHECK(a.tokens == 700);
    CHECK(b.tokens == 360);
    CHECK(a.steps == 100 * model.layers);
    CHECK(b.steps == 60 * model.layers);
    CHECK(a.reads + b.reads == all.reads);
    CHECK(a.read_bytes + b.read_bytes == all.read_bytes);
    CHECK(a.written_bytes + b.written_bytes == all.written_bytes);
    CHECK(a.useful_bytes + b.useful_bytes == all.useful_bytes);
    CHECK(a.chosen_bytes + b.chosen_bytes == all.chosen_bytes);
    CHECK(a.resident_chosen_bytes + b.resident_chosen_bytes == all.resident_chosen_bytes);
    CHECK(a.units + b.units == all.units);
    CHECK(a.kept_bytes + b.kept_bytes == all.kept_bytes);
    CHECK(a.moved_bytes + b.moved_bytes > 0);
    CHECK(b.read_bytes > 0);
    CHECK(b.chosen_bytes == by_itself.chosen_bytes); // its frames are its own
    CHECK(b.hit_rate() < 1);
    CHECK(b.moved_bytes == by_itself.moved_bytes);
    CHECK(b.kept_bytes == by_itself.kept_bytes);

    const auto branch = cache.fork(one.id()); // it holds what the parent holds, and has done nothing
    REQUIRE(branch.ok());
    const auto forked = of(cache, *branch);
    CHECK(forked.tokens == a.tokens);
    CHECK(forked.units == a.units);
    CHECK(forked.kept_bytes == a.kept_bytes);
    CHECK(forked.steps + forked.reads + forked.chosen_bytes == 0);
    const kvtl::sequence_id ended = two.id();
    two.end();
    const auto none = cache.stats(ended);
    REQUIRE_FALSE(none.ok());
    CHECK(none.error().code == kvtl::errc::not_open);
    CHECK(none.error().message.find("stats: sequence 1") != std::string::npos);
    const auto fresh = cache.begin(); // in its slot
    REQUIRE(fresh.ok());
    REQUIRE(fresh->slot == ended.slot);
    const auto empty = of(cache, *fresh);
    CHECK(empty.steps + empty.reads + empty.kept_bytes + empty.tokens == 0);
}

} // namespace manager_statistics_test
