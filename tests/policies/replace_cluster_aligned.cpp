// cluster_aligned against a naive model of what its header says, and the two principles one by one.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_cluster_aligned.hpp>

#include "contracts/replacement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

namespace replace_cluster_aligned_test {

using namespace kvtl;

namespace {

/// Everything is looked up by searching; a stamp stands for the place in a list.
struct aligned_model {
    struct resident {
        std::uint32_t pages, used, updated;
        std::uint64_t stamp;
        bool is_protected;
    };
    std::uint32_t reserved, steps, largest;
    double access;
    std::map<std::uint32_t, resident> all{};
    std::uint32_t now = 0, requests = 0;
    std::uint64_t stamps = 0;

    aligned_model(const cluster_aligned::config& c, std::uint32_t handles, std::uint32_t unit_pages)
        : reserved(handles * c.updated_percent / 100), steps(c.updated_steps), largest(unit_pages),
          access(c.access_percent * 0.01) {}

    [[nodiscard]] std::uint32_t oldest_protected() const {
        std::uint32_t best = none;
        for (const auto& [h, r] : all)
            if (r.is_protected && (best == none || r.stamp < all.at(best).stamp)) best = h;
        return best;
    }
    void unprotect(std::uint32_t h) {
        all.at(h).is_protected = false;
        all.at(h).used = ++requests;
        all.at(h).stamp = ++stamps;
    }
    void tick() {
        ++now;
        for (std::uint32_t h = oldest_protected(); h != none && now - all.at(h).updated > steps;
             h = oldest_protected())
            unprotect(h);
    }
    void admit(std::uint32_t h, resident_facts facts) {
        all[h] = {facts.pages, ++requests, now, ++stamps, facts.updated};
        for (;;) {
            std::uint32_t pages = 0;
            for (const auto& [i, r] : all) pages += r.is_protected ? r.pages : 0;
            if (pages <= reserved) return;
            unprotect(oldest_protected());
        }
    }
    void remove(std::uint32_t h) { all.erase(h); }
    void refresh(std::uint32_t h, resident_facts facts) { admit(h, facts); }
    void touch(std::uint32_t h) {
        all.at(h).used = ++requests;
        if (!all.at(h).is_protected) all.at(h).stamp = ++stamps;
    }
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const {
        std::uint32_t best = none;
        double best_weight = 0;
        for (std::uint32_t size = largest; size > 0;
             --size) { // the end of each size's list; ties to the larger
            std::uint32_t end = none;
            for (const auto& [h, r] : all)
                if (!r.is_protected && std::min(r.pages, largest) == size && !pinned(h) &&
                    (end == none || r.stamp < all.at(end).stamp))
                    end = h;
            if (end == none) continue;
            const double idle = requests - all.at(end).used + 1;
            const double weight = idle * size / (size + access);
            if (weight > best_weight) {
                best = end;
                best_weight = weight;
            }
        }
        if (best != none) return best;
        for (const auto& [h, r] : all)
            if (!pinned(h) && (best == none || r.stamp < all.at(best).stamp)) best = h;
        return best;
    }
};

using state = cluster_aligned::state;
constexpr auto nothing_pinned = [](std::uint32_t) { return false; };

/// 16 handles, units of up to 4 pages: 4 pages are reserved for updated ones.
struct small_cache {
    kvtl_test::guarded_bytes memory{state::bytes(16, 4)};
    state s{cluster_aligned::config{}, 16, 4, memory.memory()};
    void ticks(int n) {
        for (int i = 0; i < n; ++i) s.tick();
    }
    std::uint32_t evict() {
        const std::uint32_t h = s.victim(nothing_pinned);
        if (h != none) s.remove(h);
        return h;
    }
};

} // namespace

TEST_CASE("cluster_aligned") {
    const cluster_aligned::config config;
    kvtl_test::replacement_contract<cluster_aligned>(config, [&](std::uint32_t handles, std::uint32_t pages) {
        return aligned_model(config, handles, pages);
    });
}

TEST_CASE("without a reserve every unit ages by its size") {
    const cluster_aligned::config config{.updated_percent = 0, .updated_steps = 16, .access_percent = 400};
    kvtl_test::replacement_contract<cluster_aligned>(config, [&](std::uint32_t handles, std::uint32_t pages) {
        return aligned_model(config, handles, pages);
    });
}

TEST_CASE("a cluster of four pages leaves after three quarters of the idle time of one page") {
    small_cache c;
    c.s.admit(0, {.pages = 1}); // weighs 1 / 1.5 per request
    c.s.admit(1, {.pages = 4}); // 4 / 4.5
    c.s.admit(2, {.pages = 1});
    c.s.touch(2); // ages 4, 3: 2.67 each, and the larger one goes
    CHECK(c.s.victim(nothing_pinned) == 1);
    c.s.touch(1); // ages 5, 1
    CHECK(c.s.victim(nothing_pinned) == 0);
    c.s.touch(2); // ages 6, 2: 4 against 1.78
    CHECK(c.s.victim(nothing_pinned) == 0);
    c.s.touch(0); // 0 is the youngest, 1 is older than 2
    CHECK(c.evict() == 1);
    CHECK(c.evict() == 2);
}

TEST_CASE("the dearer an access the earlier a large cluster leaves") {
    const auto victim = [](std::uint32_t access_percent) {
        kvtl_test::guarded_bytes memory(state::bytes(16, 4));
        state s({.updated_percent = 25, .updated_steps = 16, .access_percent = access_percent}, 16, 4,
                memory.memory());
        s.admit(0, {.pages = 1}); // age 3
        s.admit(1, {.pages = 4}); // age 2
        s.admit(2, {.pages = 1});
        return s.victim(nothing_pinned);
    };
    CHECK(victim(0) == 0);   // LRU
    CHECK(victim(50) == 0);  // 3 / 1.5 against 2 x 4 / 4.5
    CHECK(victim(100) == 1); // 3 / 2 against 2 x 4 / 5
}

TEST_CASE("a quarter of the frames protects updated clusters, the one updated longest ago loses first") {
    small_cache c;
    for (std::uint32_t h = 0; h < 4; ++h) { // exactly the reserve of four pages
        c.s.admit(h, {.pages = 1, .updated = true});
        c.ticks(1);
    }
    c.s.admit(9, {.pages = 1});
    CHECK(c.s.victim(nothing_pinned) == 9);
    c.s.refresh(0, {.pages = 1, .updated = true}); // now 1 is the oldest update
    c.s.admit(4, {.pages = 1, .updated = true});   // a fifth page: one of them has to go
    c.s.remove(9);
    CHECK(c.s.victim(nothing_pinned) == 1);
    CHECK(c.s.victim([](std::uint32_t h) { return h == 1; }) ==
          2); // only protected ones are left: oldest first
}

TEST_CASE("with fewer frames fewer clusters are protected") {
    small_cache c;
    for (std::uint32_t h = 0; h < 4; ++h) {
        c.s.admit(h, {.pages = 1, .updated = true});
        c.ticks(1);
    }
    c.s.admit(9, {.pages = 1});
    c.s.resize(8); // a quarter of eight: 0 and 1 lose protection, and were used after 9
    CHECK(c.s.victim(nothing_pinned) == 9);
    c.s.remove(9);
    CHECK(c.s.victim(nothing_pinned) == 0);
    c.s.remove(0);
    CHECK(c.s.victim(nothing_pinned) == 1);
    c.s.remove(1);
    c.s.resize(16);
    c.s.admit(5, {.pages = 1, .updated = true});
    c.s.admit(6, {.pages = 1, .updated = true}); // four pages again
    c.s.admit(7, {.pages = 1});
    CHECK(c.s.victim(nothing_pinned) == 7);
}

TEST_CASE("protection ends after 16 steps") {
    small_cache c;
    c.s.admit(0, {.pages = 1, .updated = true});
    c.s.admit(1, {.pages = 1});
    c.ticks(16);
    c.s.touch(1);
    CHECK(c.s.victim(nothing_pinned) == 1);
    c.ticks(1);
    CHECK(c.s.victim([](std::uint32_t h) { return h == 1; }) == 0);
    c.s.touch(0);
    c.ticks(3);
    c.s.touch(0); // an ordinary resident now: 1 has been idle for longer
    CHECK(c.evict() == 1);
    CHECK(c.evict() == 0);
    CHECK(c.evict() == none);
}

} // namespace replace_cluster_aligned_test
