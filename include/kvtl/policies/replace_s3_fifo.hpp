// Replacement: S3-FIFO (Yang et al., SOSP 2023): three queues in which a use moves nothing.
//
// New units enter the *small* queue (10 % of the frames). A unit whose identity is in the *ghost* enters the
// *main* queue. A use increments the unit's counter (two bits, at most 3). While the small queue holds its
// share or more, its oldest unit is examined. With a counter above `promote_above` (1 in the paper's
// Algorithm 1: used at least twice since it came in) it moves to main with a counter of 0. Otherwise it
// leaves, and the ghost remembers it. If a promotion makes main larger than its share, or the small queue is
// below its share, main's oldest unit is examined. With a counter above 0 it goes to the front, and the
// counter is decremented. Otherwise it leaves and is forgotten. The ghost is also a queue: identities of
// units that would fill as many frames as main has. The paper's loop then continues in the small queue. Here
// a call returns one victim, and the next call continues.
//
// Shares are counted in frames. A pinned unit is skipped and keeps its place and its counter; the search goes
// on with the next newer unit. If a queue has only pinned units, the search goes on in the other queue. An
// identity is (lane, unit). A lane that begins a new sequence may find identities of its predecessor in the
// ghost. Such a unit enters main too early, which costs one round there.
//
// Cost: O(1) per use and per step of the search. About 60 bytes per frame.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/slots/replacement.hpp>

#include <algorithm>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// The last units that left, as many as would fill a number of frames: a queue in which identities are found
/// by hash. When one is there twice, it is the newer that is found.
class ghost_queue {
    struct counters {
        std::uint32_t frames = 0; ///< that the units would fill at most
        std::uint32_t pages = 0;
    };
    struct entry {
        std::uint32_t lane, unit, pages;
        std::uint32_t next; ///< older one with the same hash
    };

  public:
    ghost_queue() = default;
    ghost_queue(std::uint32_t frames, std::span<std::byte> memory,
                state_block holds = state_block::fresh) noexcept
        : most_(frames), buckets_(bucket_count(frames)) {
        block_parts parts(memory, holds);
        count_ = parts.take<counters>(1, {.frames = frames});
        slots_ = resident_lists(frames, 2, parts.take_bytes(resident_lists::bytes(frames, 2)), holds);
        entry_ = parts.take<entry>(frames);
        bucket_ = parts.take<std::uint32_t>(buckets_, none);
        if (holds == state_block::filled) return;
        for (std::uint32_t s = 0; s < frames; ++s) slots_.push_front(unused, s);
    }
    [[nodiscard]] static std::size_t bytes(std::uint32_t frames) noexcept {
        return sizeof(counters) + resident_lists::bytes(frames, 2) + frames * sizeof(entry) +
               bucket_count(frames) * sizeof(std::uint32_t);
    }

    /// So many frames from now on, but no more than at first.
    void limit(std::uint32_t frames) noexcept {
        count_->frames = std::min(frames, most_);
        while (count_->pages > count_->frames) drop(slots_.back(used));
    }
    /// Units larger than the whole queue are not remembered.
    void push(const resident_facts& left) noexcept {
        if (left.pages > count_->frames) return;
        while (count_->pages + left.pages > count_->frames) drop(slots_.back(used));
        const std::uint32_t s = slots_.back(unused); // there is one: every unit has at least one page
        std::uint32_t& first = bucket_of(left.lane, left.unit);
        entry_[s] = {left.lane, left.unit, left.pages, first};
        first = s;
        count_->pages += left.pages;
        slots_.move_front(used, s);
    }
    /// True, and it is forgotten, when the unit is there.
    [[nodiscard]] bool take(const resident_facts& back) noexcept {
        for (std::uint32_t s = bucket_of(back.lane, back.unit); s != none; s = entry_[s].next)
            if (entry_[s].lane == back.lane && entry_[s].unit == back.unit) {
                drop(s);
                return true;
            }
        return false;
    }

  private:
    static constexpr std::uint32_t used = 0, unused = 1;

    [[nodiscard]] static std::uint32_t bucket_count(std::uint32_t frames) noexcept { return frames + 1; }
    [[nodiscard]] std::uint32_t& bucket_of(std::uint32_t lane, std::uint32_t unit) const noexcept {
        const std::uint64_t key = (std::uint64_t{lane} << 32 | unit) * 0x9E3779B97F4A7C15U;
        return bucket_[(key >> 32) * buckets_ >> 32];
    }
    void drop(std::uint32_t s) noexcept {
        std::uint32_t* at = &bucket_of(entry_[s].lane, entry_[s].unit);
        while (*at != s) at = &entry_[*at].next;
        *at = entry_[s].next;
        count_->pages -= entry_[s].pages;
        slots_.move_front(unused, s);
    }

    counters* count_ = nullptr;
    resident_lists slots_; ///< newest first
    entry* entry_ = nullptr;
    std::uint32_t* bucket_ = nullptr;
    std::uint32_t most_ = 0; ///< frames at first
    std::uint32_t buckets_ = 0;
};

struct s3_fifo {
    static constexpr std::string_view name = "s3_fifo";
    static constexpr bool names_lanes = true;
    static constexpr std::uint32_t block_form = 2; ///< since the ghost has no power of two of buckets
    struct config {
        std::uint32_t small_percent = 10; ///< share of the frames for new units; 0 to 100
        std::uint32_t promote_above = 1;  ///< uses on probation that a unit must exceed; 0 to 2
        template <class Visit> void fields(Visit&& visit) {
            visit("small_percent", small_percent);
            visit("promote_above", promote_above);
        }
    };

    class state {
        struct counters {
            std::uint32_t quota[2] = {0, 0}; ///< frames of each queue
            std::uint32_t pages[2] = {0, 0};
            std::uint32_t named = none; ///< the last victim, until it is removed
        };
        struct entry {
            resident_facts facts;
            std::uint8_t uses;
            std::uint8_t queue;
        };

      public:
        state() = default;
        state(const config& c, std::uint32_t handles, std::uint32_t /*unit_pages*/,
              std::span<std::byte> memory, state_block holds = state_block::fresh) noexcept
            : promote_above_(c.promote_above), small_percent_(c.small_percent) {
            const std::uint32_t for_small = share_of(handles, small_percent_), for_main = handles - for_small;
            block_parts parts(memory, holds);
            count_ = parts.take<counters>(1, {.quota = {for_small, for_main}});
            queues_ = resident_lists(handles, 2, parts.take_bytes(resident_lists::bytes(handles, 2)), holds);
            entry_ = parts.take<entry>(handles);
            ghost_ = ghost_queue(for_main, parts.take_bytes(ghost_queue::bytes(for_main)), holds);
        }
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t /*unit_pages*/) noexcept {
            return sizeof(counters) + resident_lists::bytes(handles, 2) + handles * sizeof(entry) +
                   ghost_queue::bytes(handles);
        }

        /// The pool has so many frames from now on.
        void resize(std::uint32_t frames) noexcept {
            count_->quota[small] = share_of(frames, small_percent_);
            count_->quota[main] = frames - count_->quota[small];
            ghost_.limit(count_->quota[main]);
        }
        void tick() noexcept {}
        void admit(std::uint32_t h, resident_facts facts) noexcept {
            const bool known = ghost_.take(facts);
            entry_[h] = {facts, 0, known ? main : small};
            count_->pages[entry_[h].queue] += facts.pages;
            queues_.push_front(entry_[h].queue, h);
        }
        void touch(std::uint32_t h) noexcept {
            entry_[h].uses = static_cast<std::uint8_t>(std::min(entry_[h].uses + 1, 3));
        }
        /// An update is a use; the unit may have grown.
        void refresh(std::uint32_t h, resident_facts facts) noexcept {
            count_->pages[entry_[h].queue] += facts.pages - entry_[h].facts.pages;
            entry_[h].facts = facts;
            touch(h);
        }
        /// Only a unit that leaves as the last victim named is remembered.
        void remove(std::uint32_t h) noexcept {
            count_->pages[entry_[h].queue] -= entry_[h].facts.pages;
            queues_.remove(h);
            if (h == count_->named && entry_[h].queue == small) ghost_.push(entry_[h].facts);
            if (h == count_->named) count_->named = none;
        }

        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            count_->named = count_->pages[small] >= count_->quota[small] ? from_small(pinned) : none;
            if (count_->named == none) count_->named = from_main(pinned);
            if (count_->named == none) count_->named = from_small(pinned); // nothing in main may leave
            if (count_->named == none)
                count_->named = from_main(pinned); // all of the small queue was promoted
            return count_->named;
        }

      private:
        static constexpr std::uint8_t small = 0, main = 1;

        /// Promotes what deserves it, up to the first unit that does not, which is the victim. The victim
        /// comes from main when a promotion has filled that.
        template <class Pinned> [[nodiscard]] std::uint32_t from_small(Pinned& pinned) const noexcept {
            for (std::uint32_t h = queues_.back(small), next = none; h != none; h = next) {
                next = queues_.towards_front(small, h);
                if (pinned(h)) continue;
                entry& e = entry_[h];
                if (e.uses <= promote_above_) return h;
                e.uses = 0;
                e.queue = main;
                count_->pages[small] -= e.facts.pages;
                count_->pages[main] += e.facts.pages;
                queues_.move_front(main, h);
                if (count_->pages[main] > count_->quota[main])
                    return from_main(pinned); // finds one: h may leave
            }
            return none;
        }
        template <class Pinned> [[nodiscard]] std::uint32_t from_main(Pinned& pinned) const noexcept {
            for (std::uint32_t h = queues_.back(main); h != none;) {
                const std::uint32_t next = queues_.towards_front(main, h);
                if (!pinned(h)) {
                    if (entry_[h].uses == 0) return h;
                    --entry_[h].uses;
                    queues_.move_front(main, h);
                    h = next != none ? next : queues_.back(main);
                } else {
                    h = next; // none: all are pinned, since others come back to the front
                }
            }
            return none;
        }

        counters* count_ = nullptr;
        mutable resident_lists queues_; ///< searching moves units
        entry* entry_ = nullptr;        ///< (handles)
        ghost_queue ghost_;
        std::uint32_t promote_above_ = 1, small_percent_ = 0;
    };
};

}} // namespace kvtl::v0
