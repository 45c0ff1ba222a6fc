// What the planner answers where numbers grow beyond what pages and blocks can be counted with: an error, and
// never a plan whose sizes wrapped around.
// SPDX-License-Identifier: MIT
#include <kvtl/core/plan/planner.hpp>
#include <kvtl/manager.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/shadowkv.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/presets/token_topk.hpp>

#include "support/planner_for.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

namespace core_plan_planner_test {

using kvtl_test::planner_for;

namespace {

template <class Preset>
kvtl::result<kvtl::sized_cache> planned(std::size_t max_tokens, std::size_t max_sequences,
                                        unsigned shards = 1) {
    kvtl::cache_config<Preset> c;
    c.shape = {64, 64, 8, 128};
    c.max_tokens = max_tokens;
    c.max_sequences = max_sequences;
    c.memory_bytes = std::size_t{1} << 50;
    c.shards = shards;
    c.prefill_tokens = 1024; // what comes after it is kept whole
    planner_for planner(c);
    if (const auto bytes = planner.plan(); !bytes) return bytes.error();
    return planner.sizes();
}

template <class Preset> void too_large(const std::string& what) {
    const auto answer = planned<Preset>(std::size_t{1} << 26, 256);
    REQUIRE_FALSE(answer.ok());
    const std::string& text = answer.error().message;
    CAPTURE(text);
    CHECK(answer.error().code == kvtl::errc::invalid_argument);
    for (const char* word : {"max_tokens is 67108864", "max_sequences 256", "valid: "})
        CHECK(text.find(word) != std::string::npos);
    CHECK(text.find(what) != std::string::npos);
}
} // namespace

TEST_CASE_TEMPLATE("more pages of storage than can be counted are refused", Preset, kvtl::presets::dynakv,
                   kvtl::presets::no_cluster) {
    too_large<Preset>("pages of storage a shard");
}

TEST_CASE("more blocks of rows than can be counted are refused") {
    too_large<kvtl::presets::snapkv_group>("blocks of rows a shard");
}

TEST_CASE("storage grows with tokens and sequences, and more shards divide it") {
    const auto one = planned<kvtl::presets::dynakv>(1U << 20, 1);
    const auto longer = planned<kvtl::presets::dynakv>(1U << 21, 1);
    const auto two = planned<kvtl::presets::dynakv>(1U << 20, 2);
    const auto divided = planned<kvtl::presets::dynakv>(1U << 21, 1, 2);
    REQUIRE((one.ok() && longer.ok() && two.ok() && divided.ok()));
    // Entries of 512 bytes for 64 x 8 heads, at least once.
    CHECK(one->plan.file_pages >= (std::size_t{1} << 20) * 512 / 4096 * 512);
    CHECK(longer->plan.file_pages > one->plan.file_pages);
    CHECK(two->plan.file_pages > one->plan.file_pages);
    CHECK(divided->plan.file_pages < longer->plan.file_pages);
}

TEST_CASE("tables of sequences that are divided among shards do not grow with the shards") {
    const auto metadata = [](unsigned shards) {
        kvtl::cache_config<kvtl::presets::snapkv_group> c;
        c.shape = {32, 32, 8, 128};
        c.max_tokens = c.keep_tokens = 256;
        c.prefill_tokens = 256;
        c.max_sequences = 256;
        c.memory_bytes = std::size_t{1} << 50;
        c.shards = shards;
        c.shard_by = kvtl::division::sequences;
        planner_for planner(c);
        REQUIRE(planner.plan().ok());
        return planner.sizes().parts.metadata - planner.rows().plan.blocks * sizeof(std::uint32_t) * shards;
    };
    CHECK(metadata(8) < metadata(1) + metadata(1) / 10);
}

TEST_CASE("a bound that is too small: the knob that is named leads where the error says") {
    kvtl::cache_config<kvtl::presets::snapkv_group> c;
    c.shape = {28, 12, 2, 128};
    c.max_tokens = 8192;
    c.attend_tokens = 256;
    c.memory_bytes = 1 << 20;
    const auto answer = planner_for(c).plan();
    REQUIRE_FALSE(answer.ok());
    const std::string& text = answer.error().message;
    CAPTURE(text);
    const std::string phrase = "what would help most: keep_tokens 128 instead of 256 (needs ";
    const std::size_t at = text.find(phrase);
    REQUIRE(at != std::string::npos);
    auto fewer = c;
    fewer.keep_tokens = 128;
    CHECK(std::stoull(text.substr(at + phrase.size())) == *planner_for(fewer).least());
    planner_for planner(c);
    const auto least_bytes = planner.least();
    REQUIRE(least_bytes.ok());
    const kvtl::sized_cache& least = planner.sizes();
    CHECK(least.least_bytes == *least_bytes);
    CHECK(text.find("needs at least " + std::to_string(least.least_bytes)) != std::string::npos);
    CHECK(least.parts.total() == least.least_bytes);
    CHECK(least.parts.raw_cache == std::size_t{8192} * 28 * 2 * 128 * 4);
    c.memory_bytes = least.least_bytes;
    CHECK(planner_for(c).plan().ok());
    --c.memory_bytes;
    CHECK_FALSE(planner_for(c).plan().ok());
}

namespace {
/// Index, unit tables, checksums and page tables of 32K tokens in percent of the raw entries.
template <class Preset> double percent_of_raw(std::uint32_t centroid_bits) {
    using cache_type = kvtl::kv_manager<Preset>;
    typename cache_type::config c;
    c.shape = {16, 32, 8, 64};
    c.max_tokens = 32768;
    c.attend_tokens = 512;
    c.centroid_bits = centroid_bits;
    const auto parts = cache_type::least_parts(c);
    REQUIRE(parts.ok());
    return 100.0 * static_cast<double>(parts->index + parts->metadata) / (32768.0 * 16 * 8 * 64 * 4);
}
} // namespace

TEST_CASE("what is known of units takes a small share of them, at the limit of live clusters") {
    CHECK(percent_of_raw<kvtl::presets::dynakv>(8) < 6.0);
    CHECK(percent_of_raw<kvtl::presets::dynakv_estimate>(8) < 10.0);
    CHECK(percent_of_raw<kvtl::presets::dynakv>(32) > 14.0); // the numbers above come from somewhere
}

TEST_CASE("a thirteenth and a thirty-fourth of the raw entries are enough to open with") {
    using cache_type = kvtl::kv_manager<kvtl::presets::dynakv>;
    for (const std::size_t tokens : {16384U, 32768U}) {
        cache_type::config c;
        c.shape = {16, 32, 8, 64};
        c.max_tokens = tokens;
        c.attend_tokens = 512;
        const std::size_t raw = tokens * 16 * 8 * 64 * 4;
        CHECK(*cache_type::least_memory(c) < raw / 13);
        c.clusterer.tokens_per_cluster = 64;
        CHECK(*cache_type::least_memory(c) < raw / 34);
    }
}

TEST_CASE("what query heads choose together, each for itself, does not wrap around") {
    kvtl::cache_config<kvtl::presets::quest> c;
    c.shape = {1, 64, 1, 64};
    c.max_tokens = std::size_t{1} << 26;
    c.memory_bytes = std::size_t{1} << 50;
    std::uint32_t fewer = 0;
    for (const std::size_t attended :
         {std::size_t{1} << 20, std::size_t{1} << 26}) { // 64 heads: 2^26 and 2^32
        c.attend_tokens = attended;
        planner_for planner(c);
        const auto bytes = planner.plan();
        REQUIRE_MESSAGE(bytes.ok(), bytes.error().message);
        CHECK(planner.sizes().plan.chosen_per_lane >= std::max(fewer, 1U << 20));
        fewer = planner.sizes().plan.chosen_per_lane;
    }
}

TEST_CASE("chunks whose keys stay exact are units: other numbers of theirs are refused") {
    kvtl::cache_config<kvtl::presets::shadowkv> c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = 4096;
    c.memory_bytes = std::size_t{1} << 30;
    const auto answer = [&] {
        const auto plan = planner_for(c).plan();
        return plan.ok() ? std::string() : plan.error().message;
    };
    CHECK(answer().empty());
    c.clusterer.group_tokens = 8;
    CHECK(answer() == "compressor.chunk is 4; valid, with outliers: the tokens of a group, 8");
    c.compressor.chunk = 8;
    CHECK(answer().empty());
    c.sink_tokens = 20;
    CHECK(answer() == "compressor.skip is 4; valid, with outliers: sink_tokens = 20");
    c.compressor.outliers = 0;
    CHECK(answer().empty());
}

} // namespace core_plan_planner_test
