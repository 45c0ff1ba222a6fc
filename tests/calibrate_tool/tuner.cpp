// The search on invented delays, against an exhaustive one.
// SPDX-License-Identifier: MIT
#include "tuner.hpp"

#include "error.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using namespace engine;

namespace {

constexpr kvtl::shape model{.layers = 16, .query_heads = 32, .kv_heads = 8, .head_dim = 64}; // H*D = 512
constexpr std::uint64_t mib = 1 << 20;

/// A device with a cost per read and per token, and a reuse rate that grows with the slots.
delays device(double us_per_read, double us_per_token, double layer_us) {
    delays d;
    d.read = [=](std::uint32_t group, double reads) { return reads * (us_per_read + group * us_per_token); };
    d.attend = [](std::uint32_t tokens) { return tokens * 0.1; };
    d.score = [](std::uint64_t context, std::uint32_t rank) {
        return static_cast<double>(context) * rank * 1e-4;
    };
    d.rest = [=](std::uint32_t) { return layer_us; };
    d.reuse = [](std::uint32_t, std::uint32_t groups, std::uint32_t slots) {
        return 0.8 * std::min(1.0, static_cast<double>(slots) / groups);
    };
    return d;
}

double total_us(const delays& d, const tuned_entry& e, std::uint32_t tokens) {
    const double missed = 1 - d.reuse(e.group_tokens, e.groups, e.reuse_slots);
    const double io = d.read(e.group_tokens, missed * e.groups * e.batch);
    const double compute = e.batch * (d.attend(tokens) + d.score(e.context, e.rank)) + d.rest(e.batch);
    return std::max(io, compute);
}

} // namespace

TEST_CASE("a table is linear between its points and beyond them") {
    const piecewise p({{4, 10}, {1, 1}, {2, 3}});
    CHECK(p.at(1) == doctest::Approx(1));
    CHECK(p.at(1.5) == doctest::Approx(2));
    CHECK(p.at(2) == doctest::Approx(3));
    CHECK(p.at(3) == doctest::Approx(6.5));
    CHECK(p.at(6) == doctest::Approx(17));
    CHECK(p.at(0) == doctest::Approx(-1));
    CHECK(piecewise({{3, 7}}).at(100) == doctest::Approx(7));
}

TEST_CASE("a fast device needs no groups, no reuse and no compression") {
    const tuned_entry e = tune(model, {.memory_bytes = 4096 * mib}, device(0.01, 0, 1000), 1, 8192);
    CHECK(e.hidden);
    CHECK(e.sigma == 1);
    CHECK(e.rank == 512);
    CHECK(e.group_tokens == 1);
    CHECK(e.groups == 400);
    CHECK(e.reuse_slots == 0);
}

TEST_CASE("sigma is the smallest that the memory allows") {
    const tuning_limits limits{.memory_bytes = 64 * mib};
    const tuned_entry e = tune(model, limits, device(0.01, 0, 1000), 1, 8192);
    CHECK(e.sigma > 1);
    CHECK(e.memory.total() <= 64 * mib);
    tuned_entry larger = e;
    larger.sigma = e.sigma - 1;
    larger.rank = 512 / larger.sigma;
    CHECK(memory_of(model, limits, larger).total() > 64 * mib);
}

TEST_CASE("the smallest group that hides the reads is taken") {
    // 100 us + G * 0.5 us per read, 400 tokens: G reads of ceil(400/G). 10 000 us of compute.
    const auto d = device(100, 0.5, 10'000);
    const tuning_limits limits{.memory_bytes = 4096 * mib};
    const tuned_entry e = tune(model, limits, d, 1, 1024);
    CHECK(e.hidden);
    CHECK(e.reuse_slots == 0);
    CHECK(e.groups == (400 + e.group_tokens - 1) / e.group_tokens);
    for (std::uint32_t g = 1; g < e.group_tokens; ++g)
        CHECK(0.9 * d.read(g, std::ceil(400.0 / g)) > e.model_us);
    CHECK(0.9 * d.read(e.group_tokens, e.groups) <= e.model_us);
    CHECK(e.group_tokens == 4); // 0.9 * 100 * 102 = 9180 us, and 0.9 * 134 * 101.5 at 3
    tuning_limits strict = limits;
    strict.alpha = 0; // everything must be hidden
    CHECK(tune(model, strict, device(100, 0.5, 9'900), 1, 1024).group_tokens == 5);
    CHECK(tune(model, limits, device(100, 0.5, 9'900), 1, 1024).group_tokens == 4);
}

TEST_CASE("when no group is large enough, slots are added and the search begins at 1 again") {
    // One read costs 100 us whatever its size: 25 reads of 16 tokens are 2500 us, and 600 us must do.
    const auto d = device(100, 0, 500);
    const tuning_limits limits{.memory_bytes = 4096 * mib};
    const tuned_entry e = tune(model, limits, d, 1, 1024);
    CHECK(e.hidden);
    CHECK(e.reuse_slots > 0);
    tuning_limits fewer = limits; // with one slot less, no group size does
    bool hides = false;
    for (std::uint32_t g = 1; g <= 16; ++g) {
        const double m = std::ceil(400.0 / g);
        const double missed = 1 - d.reuse(g, static_cast<std::uint32_t>(m), e.reuse_slots - 1);
        hides = hides || 0.9 * d.read(g, missed * m) <= e.model_us;
    }
    CHECK(!hides);
    fewer.delta = 7;
    CHECK(tune(model, fewer, d, 1, 1024).reuse_slots % 7 == 0);
}

TEST_CASE("slots compete with the index for memory") {
    const auto d = device(100, 0, 500);
    const tuned_entry rich = tune(model, {.memory_bytes = 4096 * mib}, d, 1, 8192);
    const tuned_entry poor = tune(model, {.memory_bytes = 48 * mib}, d, 1, 8192);
    CHECK(poor.memory.total() <= 48 * mib);
    CHECK(poor.sigma > rich.sigma);
}

TEST_CASE("when nothing hides the reads, the shortest step of all settings is returned") {
    const auto d = device(1000, 1, 0);
    tuning_limits limits{.memory_bytes = 24 * mib, .largest_sigma = 24};
    limits.largest_group = 6;
    const tuned_entry e = tune(model, limits, d, 1, 4096);
    CHECK(!e.hidden);
    CHECK(e.memory.total() <= limits.memory_bytes);
    double shortest = 1e300;
    for (std::uint32_t slots = 0; slots <= 4096; ++slots)
        for (std::uint32_t g = 1; g <= 6; ++g)
            for (std::uint32_t sigma = 1; sigma <= 24; ++sigma) {
                tuned_entry x{.batch = 1, .context = 4096, .sigma = sigma, .rank = 512 / sigma};
                x.group_tokens = g, x.groups = (400 + g - 1) / g, x.reuse_slots = slots;
                if (memory_of(model, limits, x).total() > limits.memory_bytes) continue;
                shortest = std::min(shortest, total_us(d, x, 400));
                break; // the smallest sigma that fits
            }
    CHECK(e.predicted_us == doctest::Approx(shortest));
}

TEST_CASE("a smaller batch gets its share of the memory") {
    const tuning_limits limits{.memory_bytes = 256 * mib, .largest_batch = 8};
    const auto d = device(0.01, 0, 1000);
    for (const std::uint32_t b : {1U, 2U, 8U}) {
        const tuned_entry e = tune(model, limits, d, b, 8192);
        CHECK(e.batch == b);
        CHECK(e.memory.total() <= 32 * mib * b);
    }
    CHECK(tune(model, limits, d, 1, 8192).sigma >= tune(model, limits, d, 8, 8192).sigma);
}

TEST_CASE("too little memory is refused with what would do") {
    const auto d = device(1, 0, 1);
    std::string message;
    try {
        static_cast<void>(tune(model, {.memory_bytes = mib, .largest_batch = 2}, d, 1, 8192));
    } catch (const bad_input& e) {
        message = e.what();
    }
    REQUIRE(message.find("batch 1 of 2 at context 8192 needs ") != std::string::npos);
    const std::uint64_t needed = std::stoull(message.substr(message.find("needs ") + 6));
    CHECK(tune(model, {.memory_bytes = needed, .largest_batch = 2}, d, 1, 8192).rank == 16);
    CHECK_THROWS_AS(
        static_cast<void>(tune(model, {.memory_bytes = needed - 2, .largest_batch = 2}, d, 1, 8192)),
        bad_input);
}

TEST_CASE("the parts of the memory") {
    tuned_entry e{.batch = 2, .context = 1000, .sigma = 16, .rank = 32};
    e.group_tokens = 4, e.groups = 100, e.reuse_slots = 10;
    const tuned_memory m = memory_of(model, {}, e);
    CHECK(m.index == 2ULL * 16 * 1000 * 32 * 2);
    CHECK(m.adapter == 16ULL * 512 * 32 * 4);
    CHECK(m.reuse == 2ULL * 16 * 10 * 4 * 2048);
    CHECK(m.transit == 2ULL * 2 * 100 * 4 * 2048);
    CHECK(m.rolling == 2ULL * 16 * 4 * 2048);
    CHECK(m.tables == 2ULL * 16 * 250 * 64);
    CHECK(m.total() == m.index + m.adapter + m.reuse + m.transit + m.rolling + m.tables);
}
