// The borders of every number of a config: the last valid value on each side is taken, the next one is refused by the name
// of its field and with its own value.
// SPDX-License-Identifier: MIT
#include <kvtl/core/plan/config_checks.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <string>

namespace core_plan_config_checks_test {

namespace {

using kvtl::common_settings;
using kvtl::policy_facts;

/// Of a preset that chooses among units of 8 entries; everything in it is valid.
const policy_facts chooses{.retrieves = true, .chooses = true};
constexpr std::uint32_t kv_heads = 8, unit_tokens = 8;
const common_settings good{.preset = "tried",
                           .preset_window = 16,
                           .max_tokens = 1000,
                           .max_sequences = 4,
                           .memory_bytes = 1,
                           .attend_tokens = 100,
                           .shards = 1,
                           .window_tokens = 16,
                           .sink_tokens = 4,
                           .centroid_bits = 8,
                           .open_pages = 1,
                           .read_through_pages = 0};

using change = std::function<void(common_settings&)>;

void taken(const change& set, const policy_facts& limits = chooses) {
    common_settings c = good;
    set(c);
    const kvtl::status s = kvtl::check_numbers(c, limits, kv_heads, unit_tokens);
    CHECK_MESSAGE(s.ok(), std::string(s.what()));
}

void refused(const change& set, const std::string& begins, const std::string& valid,
             const policy_facts& limits = chooses) {
    common_settings c = good;
    set(c);
    const kvtl::status s = kvtl::check_numbers(c, limits, kv_heads, unit_tokens);
    CHECK(s.code() == kvtl::errc::invalid_argument);
    const std::string what(s.what());
    CAPTURE(what);
    CHECK(what.rfind(begins, 0) == 0);
    CHECK(what.find("; valid") != std::string::npos);
    CHECK(what.find(valid) != std::string::npos);
}

} // namespace

TEST_CASE("tokens and sequences") {
    taken([](auto& c) { c.max_tokens = std::size_t{1} << 26; });
    refused([](auto& c) { c.max_tokens = (std::size_t{1} << 26) + 1; }, "max_tokens is 67108865",
            "1 to 67108864");
    refused([](auto& c) { c.max_tokens = 0; }, "max_tokens is 0", "1 to 67108864");
    taken([](auto& c) { c.max_sequences = 4096; });
    refused([](auto& c) { c.max_sequences = 4097; }, "max_sequences is 4097", "1 to 4096");
    refused([](auto& c) { c.max_sequences = 0; }, "max_sequences is 0", "1 to 4096");
}

TEST_CASE("sinks: as many as the tokens, or as the preset has") {
    policy_facts any = chooses;
    any.chooses = false;
    taken([](auto& c) { c.sink_tokens = 1000; }, any);
    refused([](auto& c) { c.sink_tokens = 1001; }, "sink_tokens is 1001", "0 to max_tokens (1000)", any);
    refused([](auto& c) { c.sink_tokens = 1001; }, "sink_tokens is 1001", "0 to max_tokens (1000)");
    taken([](auto& c) { c.sink_tokens = c.preset_sinks = 2000; }, any);
}

TEST_CASE("shards: of heads up to these, of sequences up to those, of neither up to 256") {
    taken([](auto& c) { c.shards = 8; });
    refused([](auto& c) { c.shards = 9; }, "shards is 9", "1 to the number of KV heads (8)");
    refused([](auto& c) { c.shards = 0; }, "shards is 0", "1 to the number of KV heads (8)");
    const auto divided = [](unsigned shards) {
        return [shards](common_settings& c) {
            c.shard_by = kvtl::division::sequences, c.max_sequences = 12, c.shards = shards;
        };
    };
    taken(divided(12));
    refused(divided(13), "shards is 13", "1 to max_sequences (12)");
    refused(divided(0), "shards is 0", "1 to max_sequences (12)");
    policy_facts whole = chooses;
    whole.one_shard = true;
    taken([](auto& c) { c.shards = 256; }, whole);
    refused([](auto& c) { c.shards = 257; }, "shards is 257", "1 to 256", whole);
    refused([](auto& c) { c.shard_by = kvtl::division::sequences, c.max_sequences = 1000, c.shards = 257; },
            "shards is 257", "1 to 256");
}

TEST_CASE("what is attended leaves a unit to choose, or is everything") {
    // 4 sinks, a window of 16, the arriving token, a unit of 8.
    CHECK(kvtl::least_attended(4, 16, 8) == 29);
    taken([](auto& c) { c.attend_tokens = 29; });
    refused([](auto& c) { c.attend_tokens = 28; }, "attend_tokens is 28", "29 and more");
    refused([](auto& c) { c.attend_tokens = 0; }, "attend_tokens is 0", "1 and more");
    taken([](auto& c) { c.attend_tokens = c.max_tokens = 28; });    // the whole context
    taken([](auto& c) { c.max_tokens = 27, c.attend_tokens = 5; }); // no unit comes about
    policy_facts everything = chooses;
    everything.chooses = false;
    taken([](auto& c) { c.attend_tokens = 1; }, everything);
}

TEST_CASE("the window, and the pages that are kept or read through") {
    taken([](auto& c) { c.window_tokens = 1; });
    refused([](auto& c) { c.window_tokens = 0; }, "window_tokens is 0", "1 and more");
    policy_facts everything = chooses;
    everything.chooses = false;
    taken([](auto& c) { c.window_tokens = 1000; }, everything);
    refused([](auto& c) { c.window_tokens = 1001; }, "window_tokens is 1001", "max_tokens (1000)",
            everything);
    taken([](auto& c) { c.window_tokens = kvtl::whole_sequence; }, everything);
    taken([](auto& c) { c.max_tokens = 10, c.attend_tokens = 10; },
          everything); // the preset's own window is longer
    refused([](auto& c) { c.open_pages = 0; }, "open_pages is 0", "1 and more");
    taken([](auto& c) { c.read_through_pages = kvtl::most_read_through_pages; });
    refused([](auto& c) { c.read_through_pages = kvtl::most_read_through_pages + 1; },
            "read_through_pages is 129", "0 to 128");
}

TEST_CASE("bits of a mean, and memory") {
    for (const std::uint32_t bits : {8U, 16U, 32U}) taken([bits](auto& c) { c.centroid_bits = bits; });
    for (const std::uint32_t bits : {0U, 4U, 24U})
        refused([bits](auto& c) { c.centroid_bits = bits; }, "centroid_bits is " + std::to_string(bits),
                "8, 16 and 32");
    refused([](auto& c) { c.memory_bytes = 0; }, "memory_bytes is 0", "least_memory(config) and more");
}

TEST_CASE("what a preset does not do cannot be asked for") {
    refused([](auto& c) { c.keep_tokens = 5; }, "keep_tokens is 5", "preset tried keeps every entry");
    policy_facts drops = chooses;
    drops.drops = true;
    taken([](auto& c) { c.keep_tokens = 5; }, drops);
    refused([](auto& c) { c.adapt_prompt = true; }, "adapt_prompt is true", "preset tried", drops);
    policy_facts only_drops = drops;
    only_drops.retrieves = only_drops.chooses = false;
    taken([](auto& c) { c.attend_tokens = 0, c.keep_tokens = 5; }, only_drops);
    refused([](auto& c) { c.attend_tokens = 0; }, "keep_tokens and attend_tokens are 0", "one of them",
            only_drops);
    policy_facts in_order = chooses;
    in_order.sequential = true;
    refused([](auto& c) { c.share = true; }, "share is true", "false", in_order);
    taken([](auto& c) { c.share = true, c.max_sequences = 1; }, in_order);
}

TEST_CASE("attention's numbers are finite and not negative") {
    const auto code = [](float scale, float softcap) {
        return kvtl::check_attention({.scale = scale, .softcap = softcap}).code();
    };
    constexpr float infinite = std::numeric_limits<float>::infinity(),
                    nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(kvtl::check_attention({.scale = 0, .softcap = 0}).ok());
    CHECK(kvtl::check_attention({.scale = 0.125F, .softcap = 30}).ok());
    for (const float bad : {-1.0F, infinite, nan}) {
        CHECK(code(bad, 0) == kvtl::errc::invalid_argument);
        CHECK(code(0, bad) == kvtl::errc::invalid_argument);
    }
}

TEST_CASE("lanes and bytes stay within what indices and products hold") {
    const kvtl::shape s{.layers = 16, .query_heads = 16, .kv_heads = 16, .head_dim = 64};
    CHECK(kvtl::check_extents(1000, std::size_t{1} << 20, s).ok()); // 2^28 lanes
    const kvtl::status lanes = kvtl::check_extents(1000, (std::size_t{1} << 20) + 1, s);
    CHECK(std::string(lanes.what()).rfind("max_sequences is 1048577", 0) == 0);
    const kvtl::status bytes = kvtl::check_extents(std::size_t{1} << 26, std::size_t{1} << 20, s);
    CHECK(std::string(bytes.what()).rfind("max_tokens is 67108864", 0) == 0);
}

} // namespace core_plan_config_checks_test
