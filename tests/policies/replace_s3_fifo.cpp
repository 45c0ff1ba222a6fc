// s3_fifo against three queues, and the decisions of its paper one by one.
// SPDX-License-Identifier: MIT
#include <kvtl/core/save/identity.hpp>
#include <kvtl/policies/replace_s3_fifo.hpp>

#include "support/replacement_models.hpp"

namespace replace_s3_fifo_test {

using namespace kvtl;

namespace {

kvtl_test::s3_fifo_model model_of(const s3_fifo::config& c, std::uint32_t frames) {
    const std::uint32_t small = c.small_percent == 0 ? 0 : std::max(1U, frames * c.small_percent / 100);
    return {small, frames - small, static_cast<int>(c.promote_above)};
}

/// What a save knows of the policy as it was.
struct of_before {
    static constexpr std::string_view name = s3_fifo::name;
    using config = s3_fifo::config;
};

constexpr auto nothing_pinned = [](std::uint32_t) { return false; };

/// 20 frames: two are the small queue's share.
struct small_cache {
    using state = s3_fifo::state;
    kvtl_test::guarded_bytes memory{state::bytes(20, 1)};
    state s{s3_fifo::config{}, 20, 1, memory.memory()};

    void admit(std::uint32_t h, std::uint32_t unit) { s.admit(h, {1, false, 0, unit}); }
    std::uint32_t evict() {
        const std::uint32_t h = s.victim(nothing_pinned);
        if (h != none) s.remove(h);
        return h;
    }
};

} // namespace

TEST_CASE("s3_fifo") {
    for (const s3_fifo::config config :
         {s3_fifo::config{}, s3_fifo::config{30, 0}, s3_fifo::config{0, 1}, s3_fifo::config{100, 1}}) {
        CAPTURE(config.small_percent);
        kvtl_test::replacement_contract<s3_fifo>(
            config, [&](std::uint32_t handles, std::uint32_t) { return model_of(config, handles); });
    }
}

TEST_CASE("s3_fifo with units that come back") {
    for (const s3_fifo::config config : {s3_fifo::config{}, s3_fifo::config{30, 0}})
        kvtl_test::same_on_all_traces<s3_fifo>(
            config, [&](std::uint32_t frames) { return model_of(config, frames); });
}

TEST_CASE("a unit used twice on probation moves to main, one used once does not") {
    small_cache c;
    for (std::uint32_t h = 0; h < 4; ++h) c.admit(h, h);
    c.s.touch(0);
    c.s.touch(0);
    c.s.touch(1);
    CHECK(c.evict() == 1);
    CHECK(c.evict() == 2);
    CHECK(c.evict() == 0); // one left on probation, fewer than its share: main's turn
    CHECK(c.evict() == 3);
    CHECK(c.evict() == none);
}

TEST_CASE("a unit that the ghost remembers enters main") {
    small_cache c;
    for (std::uint32_t h = 0; h < 3; ++h) c.admit(h, 100 + h);
    CHECK(c.evict() == 0);
    c.admit(7, 100); // back under another handle
    CHECK(c.evict() == 1);
    CHECK(c.evict() == 7); // main's oldest, since 2 alone is below the share
    c.admit(8, 100);       // main's victims are not remembered: back on probation
    CHECK(c.evict() == 2);
}

TEST_CASE("what is taken out without being a victim is not remembered") {
    small_cache c;
    for (std::uint32_t h = 0; h < 3; ++h) c.admit(h, h);
    c.s.remove(0);
    c.admit(0, 0); // on probation again: 1, 2, 0
    CHECK(c.evict() == 1);
    CHECK(c.evict() == 2);
    CHECK(c.evict() == 0);
}

TEST_CASE("the ghost holds as many as main and forgets the oldest") {
    small_cache c; // main: 18 frames
    for (std::uint32_t i = 0; i < 21; ++i) {
        c.admit(i % 20, i);
        if (i >= 2) CHECK(c.evict() == (i - 2) % 20); // units 0 to 18 leave
    }
    c.admit(19, 1); // remembered: into main
    c.admit(0, 0);  // forgotten when 18 left: behind 19 and 20 on probation
    CHECK(c.evict() == 19 % 20);
}

TEST_CASE("a save whose ghost has other buckets is told apart, even where its block is as large") {
    CHECK(fingerprint_of_replacement<s3_fifo>({}) != fingerprint_of_replacement<of_before>({}));
}

TEST_CASE("with fewer frames the ghost forgets what main would not hold either") {
    small_cache c;
    for (std::uint32_t h = 0; h < 9; ++h) c.admit(h, h);
    for (std::uint32_t h = 0; h < 7; ++h) REQUIRE(c.evict() == h);
    c.s.resize(5);  // main: 4
    c.admit(11, 3); // one of the last four that left: into main
    c.admit(10, 2); // forgotten: behind 7 and 8 on probation
    for (const std::uint32_t h : {7U, 8U, 10U, 11U}) CHECK(c.evict() == h);
}

} // namespace replace_s3_fifo_test
