// Where keys live and how many entries share a record, through runs of consecutive entries: keys in memory or on
// storage choose and attend the same, and memory holds what storage then need not.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/policies/compress_keys_in_memory.hpp>
#include <kvtl/policies/index_stored_keys.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_window_attention.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

#include "support/cache_fixture.hpp"
#include "support/channel_codes.hpp"

namespace manager_homes_test {

using namespace kvtl_test;

namespace {

template <class Codec> struct groups : kvtl::presets::offloaded {
    static constexpr std::string_view name = "groups";
    using clusterer = kvtl::head_groups<8>;
    using index = kvtl::stored_keys;
    using selector = kvtl::topk<kvtl::reduce::softmax_sum>;
    using compressor = Codec;
    using io = kvtl::in_memory;
};
template <class Codec> struct wide : groups<Codec> { using clusterer = kvtl::layer_groups<8>; };
/// Rows of a head each, or records of a whole layer and several entries.
template <class Codec> using units_of = std::conditional_t<Codec::granule == 1, groups<Codec>, wide<Codec>>;

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::size_t max_tokens = 700;

struct outcome {
    std::vector<float> steps; ///< what decode returned; prompts and turns add up in another order
    kvtl::statistics stats;
    double error = 0;
};
/// A prompt in chunks, decode, a further turn, decode.
template <class Preset> outcome run(std::uint32_t attended, bool smallest) {
    using cache_type = kvtl::kv_manager<Preset>;
    typename cache_type::config c;
    if constexpr (kvtl::drops_entries<Preset>) c.keep_tokens = 250;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = attended;
    c.memory_bytes = smallest ? least_memory<cache_type>(c) : std::size_t{16} << 20;
    const std::size_t chunk = kvtl::drops_entries<Preset> ? 400 : 130; // chunks wait in rows
    const drift data(small, max_tokens, 71);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, attended < max_tokens ? 0 : 1);
    std::vector<float> steps;
    for (const std::size_t prompt : {400U, 70U}) {
        one.prefill(prompt, chunk);
        const auto before = static_cast<std::ptrdiff_t>(one.outputs().size());
        one.decode(100);
        steps.insert(steps.end(), one.outputs().begin() + before, one.outputs().end());
    }
    one.check_tokens();
    return {steps, cache.stats(), attended < max_tokens ? NAN : one.error()};
}
double difference(const outcome& a, const outcome& b) {
    REQUIRE(a.steps.size() == b.steps.size());
    oracle::largest_error e;
    for (std::size_t i = 0; i < a.steps.size(); ++i)
        e.see(static_cast<double>(a.steps[i]) - static_cast<double>(b.steps[i]));
    return e.value();
}
template <class Codec> using in_memory_keys = kvtl::keys_in_memory<Codec>;

} // namespace

TEST_CASE("raw keys in memory attend what they attend on storage, to the bit") {
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        const auto stored = run<groups<kvtl::raw<float>>>(120, smallest),
                   held = run<groups<in_memory_keys<kvtl::raw<float>>>>(120, smallest);
        CHECK(same_bits(stored.steps, held.steps));
        CHECK(held.stats.written_bytes * 19 < stored.stats.written_bytes * 10); // values alone
        CHECK(held.stats.read_bytes < stored.stats.read_bytes / 2);             // keys are scored from memory
    }
}

TEST_CASE_TEMPLATE("keys that are no rows are scored and attended as their codec says, wherever they live",
                   Codec, kvtl::int8_row<float>, channel_codes<4>) {
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        const auto stored = run<units_of<Codec>>(120, smallest),
                   held = run<units_of<in_memory_keys<Codec>>>(120, smallest);
        CHECK(difference(stored, held) < 2e-5); // decoded rows add up in another order
        CHECK(held.stats.chosen_units == stored.stats.chosen_units);
        CHECK(held.stats.read_bytes < stored.stats.read_bytes);
    }
    const auto all = run<units_of<Codec>>(max_tokens, false),
               held = run<units_of<in_memory_keys<Codec>>>(max_tokens, true);
    for (const double error : {all.error, held.error}) {
        CHECK(error < 2e-2);
        CHECK(error > 1e-6); // codes were attended, not rows
    }
}

TEST_CASE_TEMPLATE("what entries take is counted as they are stored", Codec, kvtl::int8_row<float>,
                   in_memory_keys<channel_codes<4>>) {
    const auto s = run<units_of<Codec>>(120, true).stats;
    const std::uint32_t heads = Codec::granule == 1 ? 1 : small.kv_heads; // of a record
    const typename Codec::state codec({}, {heads, small.head_dim});
    const std::uint64_t all = 670 * small.layers * small.kv_heads, stored = s.units * 8;
    CHECK(stored * heads > all / 2);
    CHECK(s.kept_bytes ==
          (all - stored * heads) * 2 * 64 * sizeof(float) + stored / Codec::granule * codec.bytes().entry());
}

namespace {
template <class Codec> struct kept_then_scored : groups<Codec> {
    using retention = kvtl::drop<kvtl::window_attention<kvtl::over::mean, kvtl::pooling::average, 5>>;
};
} // namespace

TEST_CASE("what a retention kept may have its keys in memory") {
    const auto stored = run<kept_then_scored<kvtl::raw<float>>>(120, true),
               held = run<kept_then_scored<in_memory_keys<kvtl::raw<float>>>>(120, true);
    CHECK(same_bits(stored.steps, held.steps));
    CHECK(held.stats.kept_entries < 550 * small.layers * small.kv_heads); // of 670 tokens
    CHECK(held.stats.chosen_units > 0);
}

namespace {
using layer_keys = wide<in_memory_keys<channel_codes<4>>>;
} // namespace

TEST_CASE("select shows keys in memory as rows") {
    using cache_type = kvtl::kv_manager<layer_keys>;
    cache_type::config c;
    c.shape = small;
    c.max_tokens = c.attend_tokens = 300;
    c.memory_bytes = std::size_t{16} << 20;
    const drift data(small, 300, 73);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(250);
    std::vector<std::size_t> rows(small.kv_heads, 0);
    double keys_apart = 0, values_apart = 0;
    require_ok(cache.select(one.id(), 1, data.q(1, 250), [&](std::size_t h, auto keys, auto values) {
        for (std::size_t i = 0; i < keys.count; ++i, ++rows[h]) {
            std::size_t token = 0; // whose value it is
            while (token < 249 && values.row(i)[0] != data.value(1, token, h)[0]) ++token;
            for (std::size_t d = 0; d < 64; ++d) {
                const auto apart = [d](const float* shown, const float* there) {
                    return std::fabs(static_cast<double>(shown[d]) - static_cast<double>(there[d]));
                };
                keys_apart = std::max(keys_apart, apart(keys.row(i), data.key(1, token, h)));
                values_apart = std::max(values_apart, apart(values.row(i), data.value(1, token, h)));
            }
        }
    }));
    for (const std::size_t n : rows) CHECK(n == 250);
    CHECK(values_apart == 0.0);
    CHECK(keys_apart < 0.05);
}

TEST_CASE("groups that are no whole granules are refused when the cache is opened") {
    using cache_type = kvtl::kv_manager<wide<channel_codes<4>>>;
    cache_type::config c;
    c.clusterer.group_tokens = 6;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = 100;
    c.memory_bytes = std::size_t{16} << 20;
    const auto opened = cache_type::open(c);
    REQUIRE(!opened.ok());
    CHECK(opened.error().code == kvtl::errc::invalid_argument);
    CHECK(opened.error().message ==
          "clusterer: groups of 6 entries; valid: multiples of 4, which the compressor encodes together");
}

} // namespace manager_homes_test
