// no_units: sinks and window are all that is attended.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_no_units.hpp>
#include <kvtl/presets/flexgen.hpp>

#include "contracts/selector.hpp"
#include "support/cache_fixture.hpp"

#include <doctest/doctest.h>

namespace select_no_units_test {

using namespace kvtl_test;

namespace {

struct window_alone : kvtl::presets::offloaded {
    static constexpr std::string_view name = "window_alone";
    static constexpr std::uint32_t window_tokens = 16;
    static constexpr std::uint32_t sink_tokens = 4;
    using clusterer = kvtl::head_groups<8>;
    using selector = kvtl::no_units;
    using compressor = kvtl::raw<float>;
    using io = kvtl::in_memory;
};
} // namespace

TEST_CASE("no_units: no choice, whatever the budget") {
    static_assert(kvtl::selector_for<kvtl::no_units>);
    static_assert(!kvtl::no_units::takes_everything && !kvtl::no_units::uses_scores);
    const kvtl::no_units::state s;
    std::vector<kvtl::chosen_unit> out(8, kvtl::chosen_unit{.unit = 77, .mask = 0});
    CHECK(s.choose({{}, {.count = 8, .max_entries = 1}, 1000}, out) == 0);
    CHECK(out[0].unit == 77);
}

TEST_CASE("no_units: a step attends sinks and window, and reads nothing") {
    const kvtl::shape small{1, 2, 1, 32};
    const drift data(small, 200, 3);
    using cache_type = kvtl::kv_manager<window_alone>;
    cache_type::config c;
    c.shape = small;
    c.max_tokens = 200;
    c.memory_bytes = std::size_t{4} << 20;
    c.attend_tokens = 64;
    auto cache = open_cache<cache_type>(c);
    const auto seq = *cache.begin();
    std::vector<float> out(100 * data.query_floats());
    require_ok(cache.prefill(seq, 0, data.input(0, 0, 100), out));
    const auto before = cache.stats();
    out.resize(data.query_floats());
    require_ok(cache.attend(seq, 0, data.input(0, 100), out));
    CHECK(cache.stats().read_bytes == before.read_bytes);
    // Tokens that are in memory: 4 sinks, the window, and those on their way into a group.
    std::vector<float> k, v;
    const auto add = [&](std::size_t t) {
        k.insert(k.end(), data.key(0, t, 0), data.key(0, t, 0) + 32);
        v.insert(v.end(), data.value(0, t, 0), data.value(0, t, 0) + 32);
    };
    double best = 1e9; // error, over all numbers of waiting tokens
    for (std::size_t waiting = 0; waiting <= 8; ++waiting) {
        k.clear(), v.clear();
        for (std::size_t t = 0; t < 4; ++t) add(t);
        for (std::size_t t = 101 - 16 - waiting; t <= 100; ++t) add(t);
        const std::size_t n = k.size() / 32;
        oracle::largest_error error;
        for (std::size_t hq = 0; hq < 2; ++hq) {
            const auto expected = oracle::attend(data.q(0, 100).data() + hq * 32, 1 / std::sqrt(32.0),
                                                 kvtl::rows_view<float>{k.data(), n, 32, 32},
                                                 kvtl::rows_view<float>{v.data(), n, 32, 32});
            for (std::size_t d = 0; d < 32; ++d)
                error.see(static_cast<double>(out[hq * 32 + d]) - expected[d]);
        }
        best = std::min(best, error.value());
    }
    CHECK(best < kvtl_test::exact);
}

} // namespace select_no_units_test
