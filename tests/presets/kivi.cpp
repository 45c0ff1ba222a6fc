// KIVI: with everything attended it is dense attention within the codec's error, it stores records of 32 tokens, and groups
// that are no multiple of 32 tokens are refused. GEAR, which corrects these records, is between 2 and 4 bits.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/gear.hpp>
#include <kvtl/presets/kivi.hpp>

#include "support/cache_fixture.hpp"
#include "support/scratch_folder.hpp"

namespace kivi_test {

namespace {
using namespace kvtl_test;

template <class Preset> struct in_ram : Preset { using io = kvtl::in_memory; };
template <class Preset> struct plain : in_ram<Preset> { using compressor = kvtl::raw<kvtl::f16>; };

struct outcome {
    double error;
    kvtl::statistics stats;
};
template <class Preset> outcome run(std::size_t prompt, std::size_t decode, std::size_t memory_kib = 16384) {
    using cache_type = kvtl::kv_manager<Preset>;
    typename cache_type::config c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = prompt + decode + 8;
    c.attend_tokens = c.max_tokens;
    c.memory_bytes = memory_kib << 10;
    const drift data(c.shape, c.max_tokens, 3);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 5);
    one.prefill(prompt, 300);
    one.decode(decode);
    one.check_tokens();
    return {one.error(), cache.stats()};
}
} // namespace

TEST_CASE("kivi is dense attention within the codec's error, and exact while nothing has left the window") {
    const double four = run<in_ram<kvtl::presets::kivi_4>>(400, 100).error,
                 two = run<in_ram<kvtl::presets::kivi_2>>(400, 100).error,
                 corrected = run<in_ram<kvtl::presets::gear>>(400, 100).error;
    CHECK(four < 1.5);
    CHECK(two < 4.0);
    CHECK(four > exact); // codes were attended, not rows
    CHECK(two > four);
    CHECK(corrected < two);
    CHECK(corrected > four);
    CHECK(run<in_ram<kvtl::presets::kivi_2>>(20, 11).error < exact);
}

TEST_CASE("a cache that must read gives the same results as one that holds everything") {
    const outcome held = run<in_ram<kvtl::presets::kivi_4>>(600, 70),
                  read = run<in_ram<kvtl::presets::kivi_4>>(600, 70, 396);
    CHECK(held.error == read.error);
    CHECK(read.stats.read_bytes > 2 * held.stats.read_bytes);
}

TEST_CASE("entries are counted as their share of a record of 32 tokens") {
    const auto check = [](const outcome& codes, const outcome& rows, std::size_t bytes) {
        CHECK(codes.stats.chosen_bytes * 256 == rows.stats.chosen_bytes * bytes);
    };
    const outcome rows = run<plain<kvtl::presets::kivi_4>>(600, 100);
    check(run<in_ram<kvtl::presets::kivi_4>>(600, 100), rows, 40 + 40);
    check(run<in_ram<kvtl::presets::kivi_2>>(600, 100), rows, 24 + 24);
    // GEAR: as many codes, 2 pairs of vectors and 41 numbers of 4 bytes for 32 keys, and for 32 values.
    const outcome gear = run<in_ram<kvtl::presets::gear>>(600, 100);
    CHECK(gear.stats.chosen_bytes * 256 * 32 ==
          rows.stats.chosen_bytes * 2 * (24 * 32 + 2 * (32 + 64) * 2 + 41 * 4));
}

TEST_CASE("a sequence is saved whose pages are no power of two bytes long") {
    using cache_type = kvtl::kv_manager<in_ram<kvtl::presets::kivi_4>>;
    const scratch_folder folder;
    typename cache_type::config c;
    c.shape = {1, 8, 8, 64};
    c.max_tokens = 400;
    c.max_sequences = 2;
    c.attend_tokens = 200;
    c.memory_bytes = std::size_t{16} << 20;
    const drift data(c.shape, c.max_tokens, 3);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(300);
    const auto saved = cache.save(one.id(), folder.file("seq"));
    REQUIRE_MESSAGE(saved.ok(), (saved.ok() ? std::string() : saved.error().message));
    const auto loaded = cache.load(folder.file("seq"));
    REQUIRE_MESSAGE(loaded.ok(), (loaded.ok() ? std::string() : loaded.error().message));
    CHECK(kvtl::saved_file::open(folder.file("seq"))->facts().page_bytes == 20480);
    for (std::size_t t = 300; t < 320; ++t) {
        std::vector<float> a(data.query_floats()), b(a.size());
        require_ok(cache.attend(one.id(), 0, data.input(0, t), a));
        require_ok(cache.attend(loaded->seq, 0, data.input(0, t), b));
        CHECK(same_bits(a, b));
    }
}

TEST_CASE("groups that cut a record are refused, with the valid sizes") {
    using cache_type = kvtl::kv_manager<in_ram<kvtl::presets::kivi_4>>;
    typename cache_type::config c;
    c.shape = {1, 4, 2, 64};
    c.max_tokens = 256;
    c.memory_bytes = std::size_t{16} << 20;
    c.clusterer.group_tokens = 48;
    const auto opened = cache_type::open(c);
    REQUIRE(!opened);
    CHECK(opened.error().message ==
          "clusterer: groups of 48 entries; valid: multiples of 32, which the compressor encodes together");
}

} // namespace kivi_test
