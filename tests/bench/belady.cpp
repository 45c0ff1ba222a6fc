// The bounds against every possible choice of victims on tiny sequences.
// SPDX-License-Identifier: MIT
#include "../../bench/belady.hpp"

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <array>

namespace {

/// The most frames that may be hit from access i on, when the units of `resident` (a bit each) are there:
/// tries every set of victims that makes room.
std::uint64_t best(std::span<const bench::access> sequence, std::uint64_t capacity, std::size_t i,
                   unsigned resident, const std::array<std::uint32_t, 5>& frames_of) {
    if (i == sequence.size()) return 0;
    const unsigned bit = 1U << sequence[i].unit;
    const auto frames = sequence[i].frames;
    if (sequence[i].written) { // it may stay, with any others that fit, or go at once
        std::uint64_t most = 0;
        for (unsigned kept = resident | bit;; kept = (kept - 1) & (resident | bit)) {
            std::uint64_t used = 0;
            for (std::size_t u = 0; u < frames_of.size(); ++u) used += (kept >> u & 1U) * frames_of[u];
            if (used <= capacity) most = std::max(most, best(sequence, capacity, i + 1, kept, frames_of));
            if (kept == 0) return most;
        }
    }
    if ((resident & bit) != 0) return frames + best(sequence, capacity, i + 1, resident, frames_of);
    if (frames > capacity) return best(sequence, capacity, i + 1, resident, frames_of);
    std::uint64_t most = 0;
    for (unsigned kept = resident;; kept = (kept - 1) & resident) { // all subsets
        std::uint64_t used = frames;
        for (std::size_t u = 0; u < frames_of.size(); ++u) used += (kept >> u & 1U) * frames_of[u];
        if (used <= capacity) most = std::max(most, best(sequence, capacity, i + 1, kept | bit, frames_of));
        if (kept == 0) return most;
    }
}

struct tiny {
    std::array<std::uint32_t, 5> frames_of{};
    std::vector<bench::access> sequence;

    tiny(std::uint64_t seed, std::uint32_t largest) {
        oracle::generator random(seed);
        for (auto& f : frames_of) f = 1 + static_cast<std::uint32_t>(random.below(largest));
        for (int i = 0; i < 9; ++i) {
            const std::uint64_t unit = random.below(frames_of.size());
            sequence.push_back({unit, frames_of[unit]});
        }
    }
};

} // namespace

TEST_CASE("with units of one frame both bounds are the optimum") {
    for (std::uint64_t seed = 1; seed <= 60; ++seed)
        for (std::uint64_t capacity = 1; capacity <= 4; ++capacity) {
            const tiny t(seed, 1);
            const auto exact = best(t.sequence, capacity, 0, 0, t.frames_of);
            const auto found = bench::belady(t.sequence, capacity);
            CAPTURE(seed);
            CAPTURE(capacity);
            CHECK(found.reached == exact);
            CHECK(found.bound == exact);
            CHECK(found.accessed == t.sequence.size());
        }
}

TEST_CASE("with larger units the optimum lies between them") {
    int between = 0;
    for (std::uint64_t seed = 1; seed <= 60; ++seed)
        for (std::uint64_t capacity = 1; capacity <= 7; ++capacity) {
            const tiny t(seed, 3);
            const auto exact = best(t.sequence, capacity, 0, 0, t.frames_of);
            const auto found = bench::belady(t.sequence, capacity);
            CAPTURE(seed);
            CAPTURE(capacity);
            CHECK(found.reached <= exact);
            CHECK(found.bound >= exact);
            between += found.reached < exact ? 1 : 0;
        }
    CHECK(between > 0); // the rule is not optimal here, or the sequences prove nothing
}

TEST_CASE("units that came into being in memory need no read, and may go at once") {
    std::size_t more = 0;
    for (std::uint64_t seed = 1; seed <= 60; ++seed)
        for (const std::uint32_t largest : {1U, 2U})
            for (std::uint64_t capacity = 1; capacity <= 4; ++capacity) {
                tiny t(seed, largest);
                const auto read = bench::belady(t.sequence, capacity);
                for (std::size_t i = 0; i < t.sequence.size(); ++i) { // the first event of units 0 to 2
                    bool first = t.sequence[i].unit < 3;
                    for (std::size_t j = 0; j < i; ++j) first &= t.sequence[j].unit != t.sequence[i].unit;
                    t.sequence[i].written = first;
                }
                const auto exact = best(t.sequence, capacity, 0, 0, t.frames_of);
                const auto found = bench::belady(t.sequence, capacity);
                CAPTURE(seed);
                CAPTURE(capacity);
                CHECK(found.reached <= exact);
                CHECK(found.bound >= exact);
                if (largest == 1) CHECK(found.reached == found.bound);
                more += found.bound > read.bound ? 1 : 0;
            }
    CHECK(more > 0); // not having to keep them leaves room for others
}

TEST_CASE("a unit that grows in memory is there as a whole, one that grew while it was away is not") {
    const std::vector<bench::access> grown = {{1, 1}, {1, 2, true}, {1, 2}};
    CHECK(bench::belady(grown, 2).bound == 2);
    CHECK(bench::belady(grown, 2).reached == 2);
    CHECK(bench::belady(grown, 2).accessed == 3);
    const std::vector<bench::access> away = {{1, 1}, {2, 2}, {1, 2, true}, {1, 2}};
    CHECK(bench::belady(away, 2).reached == 0);
    CHECK(bench::belady(away, 2).bound == 2); // frame by frame, 2 leaves room for half of 1
    const std::vector<bench::access> unseen = {{1, 1}, {1, 2}};
    CHECK(bench::belady(unseen, 2).reached == 1);
    CHECK(bench::belady(unseen, 2).bound == 1);
}

TEST_CASE("a loop over five units with room for four") {
    std::vector<bench::access> sequence;
    for (std::uint64_t i = 0; i < 21; ++i) sequence.push_back({i % 5, 1});
    // After the first round every fourth access misses: 16 accesses, 4 misses.
    CHECK(bench::belady(sequence, 4).bound == 12);
    CHECK(bench::belady(sequence, 4).bound_rate() == doctest::Approx(12.0 / 21));
    CHECK(bench::belady(sequence, 5).bound == 16);
    CHECK(bench::belady(sequence, 0).bound == 0);
    CHECK(bench::belady({}, 4).bound_rate() == 0);
}
