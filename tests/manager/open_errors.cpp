// What open() refuses, and in which words: the field, its value and what would be valid.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"

#include <fstream>
#include <functional>

namespace manager_open_errors_test {

using namespace kvtl_test;

namespace {
using cache_t = kvtl::dynakv;

struct groups : kvtl::presets::full {
    static constexpr std::uint32_t window_tokens = 16;
    using clusterer = kvtl::fixed_groups;
};
using groups_t = kvtl::kv_manager<groups>;

template <class Cache>
void refuses(const typename Cache::config& c, kvtl::errc code, const std::vector<std::string>& words) {
    CAPTURE(words.front());
    const auto opened = Cache::open(c);
    REQUIRE_FALSE(opened.ok());
    CAPTURE(opened.error().message);
    CHECK(opened.error().code == code);
    for (const std::string& word : words) {
        CAPTURE(word);
        CHECK(opened.error().message.find(word) != std::string::npos);
    }
}

cache_t::config good(const scratch_folder& folder) {
    cache_t::config c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = 1000;
    c.memory_bytes = std::size_t{16} << 20;
    c.io.path = folder.file("a.kv");
    return c;
}

std::size_t bytes_in(const std::string& message, const std::string& part) {
    const std::size_t at = message.find("\n  " + part + " ");
    REQUIRE_MESSAGE(at != std::string::npos, message);
    return std::stoull(message.substr(at + 3 + part.size()));
}

} // namespace

TEST_CASE("a bound that is too small is answered with one line per part, and the sum is enough") {
    const scratch_folder folder;
    auto c = good(folder);
    c.memory_bytes = 1000;
    const auto opened = cache_t::open(c);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().code == kvtl::errc::bound_too_small);
    const std::string& text = opened.error().message;
    CHECK(text.find("memory_bytes is 1000") != std::string::npos);
    CHECK(text.find("dynakv") != std::string::npos);
    std::size_t sum = 0;
    for (const char* part :
         {"index", "metadata", "window", "buffers", "tails", "scratch", "frames", "calibration"})
        sum += bytes_in(text, part);
    CHECK(std::count(text.begin(), text.end(), '\n') == 9);
    const std::size_t least = least_memory<cache_t>(c);
    CHECK(sum == least);
    CHECK(*cache_t::least_memory(c) == least);
    CHECK(cache_t::least_parts(c)->total() == least);
    CHECK(cache_t::least_parts(c)->scratch == bytes_in(text, "scratch"));
    CHECK_FALSE(std::filesystem::exists(c.io.path));
    // One byte less is too little, the named number is enough, and the parts of the cache add up to no more.
    c.memory_bytes = least - 1;
    CHECK_FALSE(cache_t::open(c).ok());
    c.memory_bytes = least;
    const auto cache = open_cache<cache_t>(c);
    CHECK(cache.stats().bytes_by_part.total() <= least);
    CHECK(bytes_in(text, "window") == cache.stats().bytes_by_part.window);
    CHECK(bytes_in(text, "index") == cache.stats().bytes_by_part.index);
    // Entries of (4 sinks, 32 window and 1 arriving row), K and V, f16, for 4 lanes.
    CHECK(cache.stats().bytes_by_part.window == std::size_t{37} * 2 * 64 * 2 * 4);
}

namespace {

/// The number before "bytes" in the knob sentence, after `phrase`.
std::size_t promised(const std::string& message, const std::string& phrase) {
    const std::size_t at = message.find(phrase + " (needs ");
    REQUIRE_MESSAGE(at != std::string::npos, message);
    return std::stoull(message.substr(at + phrase.size() + 8));
}

template <class Cache> std::string last_line(const typename Cache::config& c) {
    const auto opened = Cache::open(c);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().code == kvtl::errc::bound_too_small);
    const std::string& text = opened.error().message;
    return text.substr(text.rfind('\n') + 1);
}

} // namespace

TEST_CASE("the last line names the largest part, and the knob that helps most with what it leads to") {
    const scratch_folder folder;
    auto c = good(folder);
    c.max_tokens = 20000; // an index of centroids is what takes the memory
    c.memory_bytes = 1000;
    const std::string text = last_line<cache_t>(c);
    CAPTURE(text);
    const auto parts = *cache_t::least_parts(c);
    std::size_t largest = 0;
    std::string_view name;
    parts.each([&](std::string_view part, std::size_t bytes) {
        if (bytes > largest) largest = bytes, name = part;
    });
    CHECK(text.find("  largest: " + std::string(name) + ",") == 0);
    CHECK(text.find("what would help most: max_tokens 10000 instead of 20000") != std::string::npos);
    CHECK(text.find("to serve as much: clusterer.tokens_per_cluster ") != std::string::npos);

    // What is promised is what the changed config needs, and no other change of the same kind needs less.
    auto shorter = c;
    shorter.max_tokens = 10000;
    CHECK(promised(text, "max_tokens 10000 instead of 20000") == *cache_t::least_memory(shorter));
    auto coarser = c;
    REQUIRE(kvtl::presets::dynakv::shrink(coarser));
    const std::string turned = "clusterer.tokens_per_cluster " +
                               std::to_string(coarser.clusterer.tokens_per_cluster) + " instead of " +
                               std::to_string(c.clusterer.tokens_per_cluster);
    const std::size_t best = promised(text, turned);
    CHECK(best == *cache_t::least_memory(coarser));
    CHECK(best < *cache_t::least_memory(c));
    using config = cache_t::config;
    for (const std::function<void(config&)>& change :
         {std::function<void(config&)>([](config& o) { o.window_tokens = 16; }),
          std::function<void(config&)>([](config& o) { o.sink_tokens = 2; }),
          std::function<void(config&)>([](config& o) { o.attend_tokens = 128; }),
          std::function<void(config&)>([](config& o) { o.open_pages = 4; }),
          std::function<void(config&)>([](config& o) { o.clusterer.pending_entries /= 2; })}) {
        auto other = c;
        change(other);
        CHECK(best <= *cache_t::least_memory(other));
    }
    coarser.memory_bytes = best;
    CHECK(cache_t::open(coarser).ok());
}

TEST_CASE("another config has another knob") {
    const scratch_folder folder;
    auto c = good(folder);
    c.memory_bytes = 1000;
    SUBCASE("sequences") {
        c.max_sequences = 64;
        const std::string text = last_line<cache_t>(c);
        auto half = c;
        half.max_sequences = 32;
        CHECK(promised(text, "max_sequences 32 instead of 64") == *cache_t::least_memory(half));
    }
    SUBCASE("a window") {
        c.window_tokens = 900, c.attend_tokens = 1000, c.clusterer.tokens_per_cluster = 128;
        const std::string text = last_line<cache_t>(c);
        auto half = c;
        half.window_tokens = 450;
        CHECK(promised(text, "window_tokens 450 instead of 900") == *cache_t::least_memory(half));
    }
    SUBCASE("a buffer") {
        c.clusterer.pending_entries = 4096;
        const std::string text = last_line<cache_t>(c);
        auto half = c;
        half.clusterer.pending_entries = 2048;
        CHECK(promised(text, "clusterer.pending_entries 2048 instead of 4096") ==
              *cache_t::least_memory(half));
    }
}

TEST_CASE("what is beyond the numbers that count it is one clear error, for every preset and shape") {
    const scratch_folder folder;
    auto c = good(folder);
    const auto refused = [&](const std::string& word) {
        refuses<cache_t>(c, kvtl::errc::invalid_argument, {word, "valid: "});
        CHECK_FALSE(cache_t::least_memory(c).ok());
        using full_t = kvtl::full;
        full_t::config f;
        f.shape = c.shape, f.max_tokens = c.max_tokens, f.max_sequences = c.max_sequences;
        f.memory_bytes = SIZE_MAX / 2;
        return full_t::open(f);
    };
    SUBCASE("tokens") {
        c.max_tokens = (std::size_t{1} << 26) + 1;
        CHECK(refused("max_tokens is 67108865").error().message.find("max_tokens") == 0);
        c.max_tokens = SIZE_MAX;
        CHECK_FALSE(refused("max_tokens is ").ok());
    }
    SUBCASE("pages of storage") { // in memory alone it could be addressed
        c.max_tokens = 1U << 26, c.max_sequences = 4096;
        refuses<cache_t>(c, kvtl::errc::invalid_argument, {"max_tokens is 67108864", "pages of storage"});
    }
    SUBCASE("lanes") {
        c.shape = {65536, 65536, 65536, 1};
        c.max_tokens = 1;
        const auto full = refused("max_sequences is 1 with 65536 layers of 65536 KV heads");
        REQUIRE_FALSE(full.ok());
        CHECK(full.error().code == kvtl::errc::invalid_argument);
    }
    SUBCASE("bytes") {
        c.shape = {4096, 4096, 4096, 65536};
        c.max_tokens = 1U << 26;
        const auto full = refused("max_tokens is 67108864 with max_sequences 1 and this shape");
        REQUIRE_FALSE(full.ok());
        CHECK(full.error().code == kvtl::errc::invalid_argument);
        CHECK(full.error().message.find('\n') == std::string::npos);
    }
}

TEST_CASE("impossible numbers name the field and what is valid") {
    const scratch_folder folder;
    using config = cache_t::config;
    const auto bad = [&](const std::function<void(config&)>& change, const std::vector<std::string>& words) {
        auto c = good(folder);
        change(c);
        refuses<cache_t>(c, kvtl::errc::invalid_argument, words);
        CHECK_FALSE(std::filesystem::exists(c.io.path));
    };
    bad([](config& c) { c.shape.layers = 0; }, {"shape.layers is 0", "valid: 1 to"});
    bad([](config& c) { c.shape.head_dim = 0; }, {"shape.head_dim is 0"});
    bad([](config& c) { c.shape.query_heads = 5; },
        {"shape.query_heads is 5", "multiple of shape.kv_heads = 2"});
    bad([](config& c) { c.shape.query_heads = 256; },
        {"shape.query_heads / shape.kv_heads is 128", "1 to 64"});
    bad([](config& c) { c.max_tokens = 0; }, {"max_tokens is 0", "valid: 1 to"});
    bad([](config& c) { c.max_sequences = 0; }, {"max_sequences is 0", "valid: 1 to"});
    bad([](config& c) { c.max_sequences = 5000; }, {"max_sequences is 5000"});
    bad([](config& c) { c.memory_bytes = 0; }, {"memory_bytes is 0"});
    bad([](config& c) { c.attend_tokens = 0; }, {"attend_tokens is 0"});
    bad([](config& c) { c.shards = 0; }, {"shards is 0", "KV heads (2)"});
    bad([](config& c) { c.shards = 3; }, {"shards is 3"});
    bad([](config& c) { c.shards = 3, c.max_sequences = 2, c.shard_by = kvtl::division::sequences; },
        {"shards is 3", "max_sequences (2)"});
    bad([](config& c) { c.keep_tokens = 100; }, {"keep_tokens is 100", "dynakv keeps every entry"});
    bad([](config& c) { c.attend_tokens = 36; },
        {"attend_tokens is 36", "sink_tokens + window_tokens = 4 + 32"});
    bad([](config& c) { c.window_tokens = 1001; }, {"window_tokens is 1001", "1 to max_tokens (1000)"});
    bad([](config& c) { c.window_tokens = 0; }, {"window_tokens is 0"});
    bad([](config& c) { c.open_pages = 0; }, {"open_pages is 0"});
    bad([](config& c) { c.read_through_pages = 1000; }, {"read_through_pages is 1000", "0 to 128"});
    bad([](config& c) { c.clusterer.tokens_per_cluster = 3; },
        {"clusterer.tokens_per_cluster is 3", "4 to 4096"});
    bad([](config& c) { c.clusterer.tokens_per_cluster = 20, c.clusterer.min_entries_to_cluster = 39; },
        {"clusterer.min_entries_to_cluster is 39", "valid: 40 to"});
    bad([](config& c) { c.clusterer.pending_entries = 0; }, {"clusterer.pending_entries is 0", "1 to 4096"});
    bad([](config& c) { c.clusterer.threshold_scale = 0; }, {"clusterer.threshold_scale is 0", "above 0"});
    bad([](config& c) { c.clusterer.threshold_scale = NAN; }, {"clusterer.threshold_scale is"});
    groups_t::config g;
    g.shape = {2, 4, 2, 64};
    g.max_tokens = 100;
    g.memory_bytes = 4 << 20;
    g.clusterer.group_tokens = 0;
    refuses<groups_t>(g, kvtl::errc::invalid_argument, {"clusterer.group_tokens is 0", "1 to 4096"});
}

TEST_CASE("a preset's own window is cut to max_tokens; what fits in it needs no larger budget") {
    const scratch_folder folder;
    auto c = good(folder);
    c.max_tokens = 20;
    c.attend_tokens = 10;
    const auto cache = open_cache<cache_t>(c);
    CHECK(cache.stats().bytes_by_part.window == std::size_t{4 + 20 + 1} * 2 * 64 * 2 * 4);
}

TEST_CASE("an input that the engine does not supply is named") {
    const scratch_folder folder;
    auto c = good(folder);
    c.engine_inputs = kvtl::engine_input::k | kvtl::engine_input::v;
    refuses<cache_t>(c, kvtl::errc::unsupported, {"dynakv", "needs q,"});
}

TEST_CASE("paths that are not ours are refused and left alone") {
    const scratch_folder folder;
    auto c = good(folder);
    const auto named = [&](const std::string& path) {
        c.io.path = path;
        const auto opened = cache_t::open(c);
        REQUIRE_FALSE(opened.ok());
        CAPTURE(opened.error().message);
        CHECK(opened.error().code == kvtl::errc::file_refused);
        CHECK(opened.error().message.find(path) != std::string::npos);
    };
    { std::ofstream(folder.file("letter.txt")) << "not a cache"; }
    named(folder.file("letter.txt"));
    std::string text;
    std::getline(std::ifstream(folder.file("letter.txt")), text);
    CHECK(text == "not a cache");
    named(folder.path());
    named("/dev/null");
    c.io.path = folder.file("taken.kv");
    {
        const auto holder = open_cache<cache_t>(c);
        named(folder.file("taken.kv"));
        CHECK(std::filesystem::exists(folder.file("taken.kv")));
    }
    CHECK_FALSE(std::filesystem::exists(folder.file("taken.kv"))); // removed when it was closed
    const auto again = open_cache<cache_t>(c);
}

TEST_CASE("sequences are counted") {
    const scratch_folder folder;
    auto c = good(folder);
    c.max_sequences = 3;
    auto cache = open_cache<cache_t>(c);
    std::vector<kvtl::sequence_id> ids;
    for (int i = 0; i < 3; ++i) ids.push_back(*cache.begin());
    const auto more = cache.begin();
    REQUIRE_FALSE(more.ok());
    CHECK(more.error().code == kvtl::errc::out_of_range);
    CHECK(more.error().message.find("max_sequences") != std::string::npos);
    require_ok(cache.end(ids[1]));
    CHECK(cache.end(ids[1]).code() == kvtl::errc::not_open);
    const auto next = cache.begin();
    REQUIRE(next.ok());
    CHECK(next->slot == ids[1].slot);
    CHECK_FALSE(*next == ids[1]);
}

} // namespace manager_open_errors_test
