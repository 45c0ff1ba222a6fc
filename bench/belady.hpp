// What no replacement policy can beat: bounds on the hits of a recorded access sequence, from its future.
//
// An access names a unit and its size in frames (the same at every access of a unit). A unit must be
// brought in when it is asked for and whole. With units of one frame the farthest-next-use rule (Belady 1966)
// is optimal. With units of several frames the optimum is NP-hard, but it lies between two numbers that are
// equal when all sizes are 1:
//
//   reached  hits of the rule applied to whole units: a cache that knew the future could have these
//   bound    hits of the optimum that may keep parts of units: every frame is an item of its own
//
// Both count frames that did not have to be read. Cost: O(n log n) for n accessed frames.
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
    std::vector<std::size_t> next(sequence.size(), never);
    std::unordered_map<std::uint64_t, std::size_t> seen;
    for (std::size_t i = sequence.size(); i-- > 0;) {
        const auto [at, first] = seen.try_emplace(sequence[i].unit, i);
        if (!first) next[i] = std::exchange(at->second, i);
    }

    std::set<std::pair<std::size_t, std::uint64_t>> resident; // (next use, unit)
    std::uint64_t used = 0, hits = 0;
    std::unordered_map<std::uint64_t, std::uint32_t> frames_of;
    for (std::size_t i = 0; i < sequence.size(); ++i) {
        const auto [unit, frames] = sequence[i];
        if (frames > capacity) continue;
        if (resident.erase({i, unit}) != 0) {
            hits += frames;
        } else {
            for (; used + frames > capacity; resident.erase(std::prev(resident.end())))
                used -= frames_of[std::prev(resident.end())->second];
            used += frames;
            frames_of[unit] = frames;
        }
        resident.insert({next[i], unit});
    }
    return hits;
}

[[nodiscard]] inline hit_bounds belady(std::span<const access> sequence, std::uint64_t capacity) {
    hit_bounds out;
    std::vector<access> by_frame;
    for (const access& a : sequence) {
        out.accessed += a.frames;
        if (a.frames > capacity) continue; // never a hit, for nobody
        for (std::uint32_t f = 0; f < a.frames; ++f) by_frame.push_back({a.unit << 16 | f, 1});
    }
    out.reached = farthest_next_use(sequence, capacity);
    out.bound = farthest_next_use(by_frame, capacity);
    return out;
}

} // namespace bench
