// Wear of the device: the counter of bytes written is what the device saw, through prompts, decoding, turns, rewinds, branches
// and saves, and it is bounded.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/token_topk.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/recording_io.hpp"
#include "support/scratch_folder.hpp"

namespace manager_written_test {

using namespace kvtl_test;

namespace {

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::size_t prompt = 400, decoded = 200;

struct seen_bytes {
    std::uint64_t written = 0, read = 0;
};
seen_bytes seen_by(const io_log& log) {
    seen_bytes b;
    for (const io_event& e : log.events)
        (e.verb == kvtl::io_verb::write ? b.written : b.read) += io_log::page;
    return b;
}

/// Bytes that the device saw for each byte of keys and values in 32 bits: of the prompt, and of the steps behind it.
struct amplification {
    double of_prompt = 0, of_steps = 0;
};

template <class Preset> amplification measure() {
    using cache_type = kvtl::kv_manager<f32_on<Preset, recording>>;
    typename cache_type::config c;
    c.shape = small;
    c.max_tokens = prompt + decoded + 20;
    c.attend_tokens = 72;
    c.window_tokens = 8;
    c.max_sequences = 2;
    const auto log = c.io.log;
    c.memory_bytes = least_memory<cache_type>(c);
    const drift data(small, c.max_tokens, 12);
    cache_type cache = open_cache<cache_type>(c);
    const auto check = [&] {
        const kvtl::statistics s = cache.stats();
        const seen_bytes b = seen_by(*log);
        CHECK(s.written_bytes == b.written);
        CHECK(s.read_bytes == b.read);
        return static_cast<double>(b.written);
    };
    const double raw = small.layers * small.kv_heads * small.head_dim * 8;
    amplification a;
    reader<cache_type> one(cache, data, 0);
    one.prefill(prompt);
    const double first = check();
    a.of_prompt = first / (raw * prompt);
    for (std::size_t t = 0; t < decoded; t += 50) {
        one.decode(50);
        check();
    }
    a.of_steps = (check() - first) / (raw * decoded);
    const kvtl_test::scratch_folder folder;
    REQUIRE(cache.save(one.id(), folder.file("seq.kvs")).ok()); // whose bytes are not the device's
    check();
    const auto branch = cache.fork(one.id());
    REQUIRE(branch.ok());
    one.decode(10);
    check();
    one.end();
    const auto loaded = cache.load(folder.file("seq.kvs"));
    REQUIRE(loaded.ok());
    check();
    return a;
}

} // namespace

TEST_CASE("bytes written are what the device saw") {
    const auto quest = measure<kvtl::presets::quest>();
    const auto tokens = measure<kvtl::presets::no_cluster>();
    const auto dynakv = measure<kvtl::presets::dynakv>();
    const auto virtualised = measure<kvtl::presets::dynakv_virtualised>();
    // Groups of pages in token order: a page is written once, when it is full.
    for (const auto& a : {quest, tokens}) {
        CHECK(a.of_prompt <= 1);
        CHECK(a.of_steps <= 1);
        CHECK(a.of_steps > .9);
    }
    // Clusters with the least memory: an entry of 512 bytes may have its page of 4 KiB written when it comes.
    for (const auto& a : {dynakv, virtualised}) {
        CHECK(a.of_prompt <= 1.6);
        CHECK(a.of_steps <= 8);
        CHECK(a.of_steps > 1);
    }
}

} // namespace manager_written_test
