// The reuse buffer by hand, and its replay on a trace whose choices are known.
// SPDX-License-Identifier: MIT
#include "reuse.hpp"

#include <kvtl/calibration/trace_writer.hpp>

#include "error.hpp"
#include "support/oracle.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>

using namespace engine;

namespace {
std::size_t take(reuse_buffer& b, std::vector<std::uint32_t> chosen) {
    return b.step(chosen);
}
} // namespace

TEST_CASE("first in, first out, and a hit does not move anything") {
    reuse_buffer b(3, 10);
    CHECK(take(b, {1, 2}) == 0);
    CHECK(take(b, {1, 3}) == 1);
    CHECK(take(b, {4}) == 0); // 1 leaves, though it was used after 2
    CHECK(take(b, {2, 3, 4}) == 3);
    CHECK(take(b, {1}) == 0);       // 2 leaves
    CHECK(take(b, {2, 3, 4}) == 2); // looked up before 2 takes the place of 3
    CHECK(take(b, {3}) == 0);
}

TEST_CASE("no slots, no hits; fewer slots than a step chooses keep the last ones") {
    reuse_buffer nothing(0, 10);
    CHECK(take(nothing, {1}) == 0);
    CHECK(take(nothing, {1}) == 0);
    reuse_buffer two(2, 10);
    CHECK(take(two, {1, 2, 3, 4}) == 0);
    CHECK(take(two, {1, 2, 3, 4}) == 2);
}

TEST_CASE("a trace whose queries alternate between two places") {
    // 64 tokens of one layer and head; 16 groups of 4. The key of token t points in direction t / 16 (four
    // directions), so a query along one of them chooses its four groups.
    constexpr kvtl::shape one{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4};
    const std::string path = "reuse-" + std::to_string(::getpid()) + ".trace";
    const auto along = [](std::size_t d, float size) {
        std::vector<float> v(4, 0.0F);
        v[d] = size;
        return v;
    };
    {
        auto out = insist(kvtl::trace_writer::create(path, {.shape = one}));
        const std::vector<float> zeros(4, 0.0F);
        for (std::uint64_t t = 0; t < 64; ++t) {
            const auto q = along(0, 1), k = along(t / 16, 4);
            out.write(t, 0, {.q = q, .k = k, .v = zeros});
        }
        for (std::uint64_t t = 64; t < 84; ++t) { // decoded tokens are like nothing else
            const auto q = along(t % 2, 4);
            out.write(t, 0, {.q = q, .k = zeros, .v = zeros});
        }
        insist(out.close(64, 84));
    }
    kvtl::trace_reader trace = insist(kvtl::trace_reader::open(path));
    std::remove(path.c_str());
    const std::vector<std::uint32_t> slots = {0, 4, 7, 8, 100};
    const auto rates = reuse_rates(trace, 4, 16, slots);
    REQUIRE(rates.size() == 5);
    CHECK(rates[0] == 0);
    CHECK(rates[1] == 0); // four slots always hold the other place
    CHECK(rates[2] < 0.9);
    CHECK(rates[3] == doctest::Approx(18.0 / 20)); // all but the first visit of each place
    CHECK(rates[4] == doctest::Approx(18.0 / 20));
    CHECK_THROWS_AS(static_cast<void>(reuse_rates(trace, 4, 400, slots)), bad_input);
}
