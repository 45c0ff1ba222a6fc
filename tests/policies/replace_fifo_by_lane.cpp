// fifo_by_lane against queues that are searched from end to end.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_fifo_by_lane.hpp>

#include "support/replacement_models.hpp"

namespace replace_fifo_by_lane_test {

using namespace kvtl;
using kvtl_test::guarded_bytes;

namespace {
using state = fifo_by_lane::state;

/// Queues of (handle, pages) by lane, oldest first.
struct model {
    std::uint32_t frames = 0;
    std::map<std::uint32_t, std::vector<std::pair<std::uint32_t, std::uint32_t>>> lanes{};

    [[nodiscard]] std::uint32_t held(std::uint32_t lane) const {
        std::uint32_t sum = 0;
        if (lanes.contains(lane))
            for (const auto& [h, pages] : lanes.at(lane)) sum += pages;
        return sum;
    }
    template <class Pinned> [[nodiscard]] std::uint32_t oldest(std::uint32_t lane, Pinned&& pinned) const {
        if (lanes.contains(lane))
            for (const auto& [h, pages] : lanes.at(lane))
                if (!pinned(h)) return h;
        return none;
    }
    template <class Pinned> [[nodiscard]] std::uint32_t victim(std::uint32_t lane, Pinned&& pinned) const {
        std::uint32_t active = held(lane) == 0 ? 1 : 0;
        for (const auto& [l, queue] : lanes) active += held(l) > 0 ? 1 : 0;
        if (held(lane) >= frames / active)
            if (const std::uint32_t h = oldest(lane, pinned); h != none) return h;
        std::uint32_t best = none, most = 0;
        for (const auto& [l, queue] : lanes)
            if (const std::uint32_t h = oldest(l, pinned); h != none && held(l) > most)
                best = h, most = held(l);
        return best;
    }
    void remove(std::uint32_t handle) {
        for (auto& [l, queue] : lanes) std::erase_if(queue, [&](const auto& r) { return r.first == handle; });
    }
};
} // namespace

TEST_CASE("one lane alone has a queue") {
    kvtl_test::replacement_contract<fifo_by_lane>(
        {}, [](std::uint32_t, std::uint32_t) { return kvtl_test::fifo_model{}; });
}

TEST_CASE("lanes have equal shares, whoever comes and goes") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        constexpr std::uint32_t handles = 48;
        guarded_bytes memory(state::bytes(handles, 4));
        state s({}, handles, 4, memory.memory());
        model m{handles};
        oracle::generator random(seed);
        std::vector<bool> used(handles, false);
        const std::uint64_t lanes = 1 + random.below(6);
        std::uint32_t left = handles, compared = 0;
        for (int i = 0; i < 3000; ++i) {
            const auto lane = static_cast<std::uint32_t>(random.below(i > 1500 ? lanes : 2 * lanes));
            const auto pages = static_cast<std::uint32_t>(1 + random.below(4));
            const std::uint64_t pins = random.bits();
            const auto pinned = [&](std::uint32_t h) { return (pins >> (h % 64) & 3U) == 0; };
            s.serve(lane);
            while (left < pages) {
                const std::uint32_t h = s.victim(pinned);
                REQUIRE(h == m.victim(lane, pinned));
                if (h == none) break;
                ++compared;
                for (const auto& [l, queue] : m.lanes)
                    for (const auto& [handle, n] : queue)
                        if (handle == h) left += n;
                s.remove(h), m.remove(h), used[h] = false;
            }
            if (left < pages) continue;
            const auto free =
                static_cast<std::uint32_t>(std::find(used.begin(), used.end(), false) - used.begin());
            s.admit(free, {pages, false, lane, 0});
            m.lanes[lane].emplace_back(free, pages);
            used[free] = true, left -= pages;
            if (random.below(8) == 0 && left > 0) { // a unit that grows keeps its place
                s.refresh(free, {pages + 1, true, lane, 0});
                ++m.lanes[lane].back().second, --left;
            }
        }
        CHECK(compared > 300);
        CHECK(memory.intact());
    }
}

TEST_CASE("layers in turn: what a layer chose last is there when its turn comes again") {
    constexpr std::uint32_t layers = 4, slots = 10, frames = layers * slots;
    guarded_bytes memory(state::bytes(frames, 1));
    state s({}, frames, 1, memory.memory());
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> resident; // (layer, unit) -> handle
    std::vector<std::uint32_t> free;
    for (std::uint32_t h = frames; h-- > 0;) free.push_back(h);
    std::uint32_t hits = 0, chosen = 0;
    for (std::uint32_t step = 0; step < 50; ++step)
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            std::vector<std::uint32_t> units; // eight of ten are those of the step before
            for (std::uint32_t i = 0; i < slots; ++i) units.push_back(step * 2 + i);
            const auto wanted = [&](std::uint32_t h) {
                for (const std::uint32_t u : units)
                    if (const auto it = resident.find({layer, u}); it != resident.end() && it->second == h)
                        return true;
                return false;
            };
            s.serve(layer);
            for (const std::uint32_t u : units) {
                ++chosen;
                if (resident.contains({layer, u})) {
                    ++hits;
                    continue;
                }
                if (free.empty()) {
                    const std::uint32_t h = s.victim(wanted);
                    REQUIRE(h != none);
                    s.remove(h);
                    std::erase_if(resident, [&](const auto& r) { return r.second == h; });
                    free.push_back(h);
                }
                resident[{layer, u}] = free.back();
                s.admit(free.back(), {1, false, layer, u});
                free.pop_back();
            }
        }
    CHECK(hits == (chosen - layers * slots) * 8 / 10);
}

TEST_CASE("more lanes than lists share them") {
    guarded_bytes memory(state::bytes(3, 1));
    state s({}, 3, 1, memory.memory());
    for (std::uint32_t h = 0; h < 3; ++h) s.admit(h, {1, false, 1000 + 3 * h, 0});
    s.serve(1000);
    const auto nothing = [](std::uint32_t) { return false; };
    CHECK(s.victim(nothing) == 0);
    s.remove(0), s.remove(1), s.remove(2);
    CHECK(s.victim(nothing) == none);
}

} // namespace replace_fifo_by_lane_test
