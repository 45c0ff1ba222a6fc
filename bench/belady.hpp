// What no replacement policy can beat: bounds on the hits of a recorded access sequence, from its future.
//
// An access names a unit and its size in frames. A unit must be brought in when it is asked for and whole.
// With units of one frame the farthest-next-use rule (Belady 1966) is optimal. With units of several frames
// the optimum is NP-hard, but it lies between two numbers that are equal when all sizes are 1:
//
//   reached  hits of the rule applied to whole units: a cache that knew the future could have these
//   bound    hits of the optimum that may keep parts of units: every frame is an item of its own
//
// Both count frames that did not have to be read. Caches that are written to also see units come into being
// or change their size in memory (`written`): that needs no read, is no hit, and the unit need not be kept.
// A unit that has grown while it was away is read whole.
//
// Cost: O(n log n) for n accessed frames.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bench {

struct access {
    std::uint64_t unit = 0;
    std::uint32_t frames = 1;
    bool written = false; ///< the unit has this size from here on; its first event: it is new
};

struct hit_bounds {
    std::uint64_t accessed = 0; ///< frames, over the whole sequence
    std::uint64_t reached = 0;
    std::uint64_t bound = 0;

    [[nodiscard]] double bound_rate() const { return rate(bound); }
    [[nodiscard]] double reached_rate() const { return rate(reached); }

  private:
    [[nodiscard]] double rate(std::uint64_t hits) const {
        return accessed == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(accessed);
    }
};

/// Frames that the farthest-next-use rule does not have to read. Units larger than the cache are read
/// through.
[[nodiscard]] inline std::uint64_t farthest_next_use(std::span<const access> sequence,
                                                     std::uint64_t capacity) {
    constexpr std::size_t never = std::numeric_limits<std::size_t>::max();
    std::vector<std::size_t> next(sequence.size(), never); // access that asks for the unit again
    std::unordered_map<std::uint64_t, std::size_t> later;
    for (std::size_t i = sequence.size(); i-- > 0;) {
        const auto at = later.try_emplace(sequence[i].unit, never).first;
        next[i] = at->second;
        if (!sequence[i].written) at->second = i;
    }

    std::set<std::pair<std::size_t, std::uint64_t>> resident; // (next use, unit)
    std::uint64_t used = 0, hits = 0;
    std::unordered_map<std::uint64_t, std::uint32_t> frames_of; // of every unit seen
    const auto make_room = [&](std::uint64_t frames) {
        for (; used + frames > capacity; resident.erase(std::prev(resident.end())))
            used -= frames_of[std::prev(resident.end())->second];
    };
    for (std::size_t i = 0; i < sequence.size(); ++i) {
        const auto [unit, frames, written] = sequence[i];
        const auto [size, is_new] = frames_of.try_emplace(unit, frames);
        const bool there = resident.erase({written ? next[i] : i, unit}) != 0;
        if (there) used -= size->second;
        if (there && !written) hits += std::min(frames, size->second);
        size->second = frames;
        if (frames > capacity || (written && !there && !is_new)) continue;
        if (!written) make_room(frames);
        used += frames;
        resident.insert({next[i], unit});
        make_room(0); // what was written may be the first to go
    }
    return hits;
}

[[nodiscard]] inline hit_bounds belady(std::span<const access> sequence, std::uint64_t capacity) {
    hit_bounds out;
    std::vector<access> by_frame;
    std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> items_of; // a unit's frames
    std::uint64_t items = 0;
    for (const access& a : sequence) {
        if (!a.written) out.accessed += a.frames;
        if (a.frames > capacity) continue; // never a hit, for nobody
        auto& own = items_of[a.unit];
        const auto there = static_cast<std::uint32_t>(std::min<std::size_t>(own.size(), a.frames));
        own.resize(there);
        while (own.size() < a.frames) own.push_back(items++); // a frame that comes back is another one
        for (std::uint32_t f = a.written ? there : 0; f < a.frames; ++f)
            by_frame.push_back({own[f], 1, a.written});
    }
    out.reached = farthest_next_use(sequence, capacity);
    out.bound = farthest_next_use(by_frame, capacity);
    return out;
}

} // namespace bench
