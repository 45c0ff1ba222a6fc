// Who finds a shard taken does not wait; all shards of a sequence are taken together or not at all.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_lock.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace core_shard_lock_test {

namespace {

/// Shards 0, 2, 3, 5 have parts of sequence 0; 1 and 4 of sequence 1.
struct six_shards {
    struct {
        unsigned shards = 6;
    } calls;
    struct shard {
        std::atomic_flag busy;
    };
    std::array<shard, 6> own{};
    std::array<shard*, 6> shards{&own[0], &own[1], &own[2], &own[3], &own[4], &own[5]};
    [[nodiscard]] static bool owns(std::uint32_t slot, unsigned s) {
        return (s == 1 || s == 4) == (slot == 1);
    }
    [[nodiscard]] bool held(unsigned s) const { return shards[s]->busy.test(); }
};
using sequence_lock_type = kvtl::sequence_lock<six_shards>;

} // namespace

TEST_CASE("a turn ends with its scope, and who did not get one ends nobody's") {
    std::atomic_flag busy;
    {
        kvtl::shard_lock first;
        REQUIRE(first.take(busy));
        {
            kvtl::shard_lock second;
            CHECK_FALSE(second.take(busy));
        }
        CHECK(busy.test());
    }
    CHECK_FALSE(busy.test());
}

TEST_CASE("all shards of a sequence are held, and no other one") {
    six_shards core;
    {
        const sequence_lock_type turn(core, 0);
        CHECK(turn.taken());
        for (unsigned s = 0; s < 6; ++s) CHECK(core.held(s) == core.owns(0, s));
        const sequence_lock_type other(core, 1); // has shards of its own
        CHECK(other.taken());
    }
    for (unsigned s = 0; s < 6; ++s) CHECK_FALSE(core.held(s));
}

TEST_CASE("where one shard is taken, none is held, and the one is named") {
    six_shards core;
    kvtl::shard_lock elsewhere;
    REQUIRE(elsewhere.take(core.own[3].busy));
    {
        const sequence_lock_type turn(core, 0);
        CHECK_FALSE(turn.taken());
        CHECK(turn.blocked() == 3);
    }
    for (unsigned s = 0; s < 6; ++s) CHECK(core.held(s) == (s == 3));
}

TEST_CASE("two threads are never in a shard at once") {
    six_shards core;
    std::array<int, 6> inside{}; // written under the turns only
    std::atomic<int> twice{0}, calls{0};
    const auto work = [&] {
        for (int got = 0; got < 2000;) {
            const sequence_lock_type turn(core, 0);
            if (!turn.taken()) {
                std::this_thread::yield();
                continue;
            }
            for (unsigned s = 0; s < 6; ++s)
                if (core.owns(0, s) && ++inside[s] != 1) ++twice;
            for (unsigned s = 0; s < 6; ++s)
                if (core.owns(0, s)) --inside[s];
            ++got, ++calls;
        }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back(work);
    for (std::thread& t : threads) t.join();
    CHECK(calls == 6000);
    CHECK(twice == 0);
}

} // namespace core_shard_lock_test
