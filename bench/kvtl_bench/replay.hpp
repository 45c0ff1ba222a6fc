// What other replacement policies would have done: a decision_log, replayed through the states of real
// policies at any number of frames, and through the bound that knows the future.
//
// The rules are the manager's: the units that one attend() asks for do not evict each other, hits are what
// was resident before it read anything, and a unit is read whole. What the cache wrote to a unit changes the
// replayed one when that is resident there; a unit that is new (one side of a split) is resident from its
// first entry on. An entry for a unit that is not there would have waited outside the frames: no change.
//
// Units:  sizes and capacities in frames. Cost: that of the policy per event.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/unit.hpp>

#include "../belady.hpp"
#include "traced.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace bench {

/// A log with units numbered from 0, cut into calls of attend().
class access_sequence {
  public:
    struct item {
        std::uint32_t unit = 0;
        std::uint32_t frames = 1;
        bool is_new = false; ///< of `written`: nobody knew it before
    };
    struct call {
        std::vector<item> asked, written;
        bool tick = false; ///< between the two
    };

    explicit access_sequence(std::span<const decision_event> events) {
        for (const decision_event& e : events) {
            if (e.what == decision::call) calls_.emplace_back();
            if (calls_.empty()) calls_.emplace_back();
            call& c = calls_.back();
            if (e.what == decision::tick) c.tick = true;
            if (e.what != decision::hit && e.what != decision::miss && e.what != decision::wrote) continue;
            const auto [at, is_new] =
                number_.try_emplace(unit_key(e.lane, e.unit), static_cast<std::uint32_t>(names_.size()));
            if (is_new) names_.push_back({e.lane, e.unit});
            largest_ = std::max(largest_, e.frames);
            (e.what == decision::wrote ? c.written : c.asked).push_back({at->second, e.frames, is_new});
        }
        std::vector<std::uint32_t> size(units(), 0);
        for (const call& c : calls_) {
            std::uint64_t frames = 0;
            for (const item& i : c.asked) frames += i.frames;
            largest_call_ = std::max(largest_call_, frames);
            for (const auto* list : {&c.asked, &c.written})
                for (const item& i : *list) size[i.unit] = std::max(size[i.unit], i.frames);
        }
        for (const std::uint32_t s : size) touched_ += s;
    }

    [[nodiscard]] const std::vector<call>& calls() const noexcept { return calls_; }
    [[nodiscard]] std::uint32_t units() const noexcept { return static_cast<std::uint32_t>(names_.size()); }
    /// (lane, unit) of unit u.
    [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> name(std::uint32_t u) const { return names_[u]; }
    /// Frames of the largest unit, of all that one call asks for, and of every unit at its largest.
    [[nodiscard]] std::uint32_t largest() const noexcept { return largest_; }
    [[nodiscard]] std::uint64_t largest_call() const noexcept { return largest_call_; }
    [[nodiscard]] std::uint64_t touched() const noexcept { return touched_; }

  private:
    std::vector<call> calls_;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> names_;
    std::unordered_map<std::uint64_t, std::uint32_t> number_;
    std::uint32_t largest_ = 1;
    std::uint64_t largest_call_ = 0, touched_ = 0;
};

struct replay_result {
    std::uint64_t frames = 0, hit_frames = 0; ///< asked for
    std::uint64_t units = 0, hit_units = 0;
    std::uint64_t evictions = 0, evicted_frames = 0;
    std::uint64_t regretted = 0; ///< evicted units that were asked for again within `soon` ticks
    static constexpr std::uint64_t soon = 16;

    [[nodiscard]] double hit_rate() const noexcept { return rate(hit_frames, frames); }
    [[nodiscard]] double unit_hit_rate() const noexcept { return rate(hit_units, units); }

  private:
    [[nodiscard]] static double rate(std::uint64_t part, std::uint64_t all) noexcept {
        return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
    }
};

/// What happens to a policy at one number of frames. `capacity` must hold the largest call.
template <class Replacement> class replayed_cache {
    using policy = typename Replacement::state;

  public:
    replayed_cache(const typename Replacement::config& config, const access_sequence& s,
                   std::uint32_t capacity)
        : capacity_(capacity), memory_(policy::bytes(capacity, s.largest()) / sizeof(std::uint64_t) + 1),
          policy_(config, capacity, s.largest(), std::as_writable_bytes(std::span(memory_))),
          handle_of_(s.units(), kvtl::none), unit_of_(capacity), frames_of_(s.units(), 0),
          wanted_(s.units(), 0), regret_until_(s.units(), 0) {
        for (std::uint32_t h = capacity; h-- > 0;) free_.push_back(h);
    }

    void run(const access_sequence::call& c, const access_sequence& s) {
        ++now_;
        for (const auto& i : c.asked) wanted_[i.unit] = now_;
        for (const auto& i : c.asked) { // what is there before anything is read
            result_.frames += i.frames, ++result_.units;
            if (handle_of_[i.unit] == kvtl::none) continue;
            result_.hit_frames += std::min(i.frames, frames_of_[i.unit]), ++result_.hit_units;
            policy_.touch(handle_of_[i.unit]);
        }
        for (const auto& i : c.asked) {
            if (handle_of_[i.unit] != kvtl::none) {
                resize(i); // entries may have joined it while no policy could see it
                continue;
            }
            result_.regretted += ticks_ < regret_until_[i.unit] ? 1 : 0;
            enter(i, false, s);
        }
        if (c.tick) ++ticks_, policy_.tick();
        ++now_; // attended: from here on they may leave
        for (const auto& i : c.written) {
            wanted_[i.unit] = now_;
            if (const std::uint32_t h = handle_of_[i.unit]; h != kvtl::none) {
                policy_.refresh(h, facts(i, true, s));
                resize(i);
            } else if (i.is_new) {
                enter(i, true, s);
            }
            wanted_[i.unit] = 0;
        }
    }

    [[nodiscard]] const replay_result& result() const noexcept { return result_; }
    [[nodiscard]] bool resident(std::uint32_t unit) const { return handle_of_[unit] != kvtl::none; }
    [[nodiscard]] std::uint32_t used() const noexcept { return used_; }

  private:
    [[nodiscard]] static kvtl::resident_facts facts(const access_sequence::item& i, bool updated,
                                                    const access_sequence& s) {
        return {i.frames, updated, s.name(i.unit).first, s.name(i.unit).second};
    }
    void enter(const access_sequence::item& i, bool updated, const access_sequence& s) {
        make_room(i.frames);
        const std::uint32_t h = free_.back();
        free_.pop_back();
        handle_of_[i.unit] = h, unit_of_[h] = i.unit;
        frames_of_[i.unit] = i.frames;
        used_ += i.frames;
        policy_.admit(h, facts(i, updated, s));
    }
    void resize(const access_sequence::item& i) {
        used_ += i.frames - frames_of_[i.unit];
        frames_of_[i.unit] = i.frames;
        make_room(0);
    }
    void make_room(std::uint32_t frames) {
        while (used_ + frames > capacity_) {
            const std::uint32_t h =
                policy_.victim([this](std::uint32_t x) { return wanted_[unit_of_[x]] == now_; });
            if (h == kvtl::none) return; // a single unit larger than the cache
            policy_.remove(h);
            ++result_.evictions, result_.evicted_frames += frames_of_[unit_of_[h]];
            regret_until_[unit_of_[h]] = ticks_ + replay_result::soon;
            used_ -= frames_of_[unit_of_[h]];
            handle_of_[unit_of_[h]] = kvtl::none;
            free_.push_back(h);
        }
    }

    std::uint32_t capacity_, used_ = 0;
    std::vector<std::uint64_t> memory_;
    policy policy_;
    std::vector<std::uint32_t> handle_of_, unit_of_, frames_of_, free_;
    std::vector<std::uint64_t> wanted_; ///< call that a unit must stay for
    std::vector<std::uint64_t> regret_until_;
    std::uint64_t now_ = 0, ticks_ = 0;
    replay_result result_;
};

template <class Replacement>
[[nodiscard]] replay_result replay(const access_sequence& s, std::uint32_t capacity,
                                   const typename Replacement::config& config = {}) {
    replayed_cache<Replacement> cache(config, s, capacity);
    for (const auto& c : s.calls()) cache.run(c, s);
    return cache.result();
}

/// Where two policies differ at one number of frames: what one had when it was asked for and the other not.
struct replay_difference {
    struct side {
        std::uint64_t units = 0, frames = 0;
        std::uint64_t updated = 0; ///< units that were written to within the last `soon` ticks
    };
    side only_first, only_second;
};
template <class First, class Second>
[[nodiscard]] replay_difference compare(const access_sequence& s, std::uint32_t capacity) {
    replayed_cache<First> first({}, s, capacity);
    replayed_cache<Second> second({}, s, capacity);
    std::vector<std::uint64_t> updated_until(s.units(), 0);
    replay_difference out;
    std::uint64_t ticks = 0;
    for (const auto& c : s.calls()) {
        for (const auto& i : c.asked) {
            if (first.resident(i.unit) == second.resident(i.unit)) continue;
            auto& side = first.resident(i.unit) ? out.only_first : out.only_second;
            ++side.units, side.frames += i.frames;
            side.updated += ticks < updated_until[i.unit] ? 1 : 0;
        }
        first.run(c, s), second.run(c, s);
        ticks += c.tick ? 1 : 0;
        for (const auto& i : c.written) updated_until[i.unit] = ticks + replay_result::soon;
    }
    return out;
}

/// The same sequence, for belady().
[[nodiscard]] inline std::vector<access> as_accesses(const access_sequence& s) {
    std::vector<access> out;
    for (const auto& c : s.calls()) {
        for (const auto& i : c.asked) out.push_back({i.unit, i.frames, false});
        for (const auto& i : c.written) out.push_back({i.unit, i.frames, true});
    }
    return out;
}

} // namespace bench
