// Replacement: SIEVE (Zhang et al., NSDI 2024).
//
// There is one queue in order of arrival, and a hand that walks from the oldest to the newest unit and then
// starts again. A use only sets the unit's visited bit; nothing moves. The hand clears the bits that it finds
// set and stops at the first unit whose bit is clear. That unit leaves, and the next search starts behind it.
// New units arrive at the front, which the hand seldom reaches, and leave soon if they are not used again.
// The hand skips pinned units without clearing their bits: it meets them again on its next round.
//
// Cost: O(1) per use; a victim costs the steps of the hand, less than three rounds. 9 bytes per frame.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/slots/replacement.hpp>

#include <algorithm>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct sieve {
    static constexpr std::string_view name = "sieve";
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
        struct counters {
            std::uint32_t hand = none; ///< none: at the oldest
        };

      public:
        state() = default;
        state(const config&, std::uint32_t handles, std::uint32_t /*unit_pages*/, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept {
            block_parts parts(memory, holds);
            count_ = parts.take<counters>(1);
            queue_ = resident_lists(handles, 1, parts.take_bytes(resident_lists::bytes(handles, 1)), holds);
            visited_ = parts.take<bool>(handles);
        }
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t /*unit_pages*/) noexcept {
            return sizeof(counters) + resident_lists::bytes(handles, 1) + handles * sizeof(bool);
        }

        void tick() noexcept {}
        void admit(std::uint32_t h, resident_facts) noexcept {
            visited_[h] = false;
            queue_.push_front(0, h);
        }
        void touch(std::uint32_t h) noexcept { visited_[h] = true; }
        void refresh(std::uint32_t h, resident_facts) noexcept { touch(h); }
        void remove(std::uint32_t h) noexcept {
            if (count_->hand == h) count_->hand = queue_.towards_front(0, h);
            queue_.remove(h);
        }

        /// The hand stays at the victim until that is removed. Searching moves it.
        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            std::uint32_t h = count_->hand != none ? count_->hand : queue_.back(0);
            for (int ends = 0; ends < 3;) { // the rest of a round, one for the bits, one for the victim
                if (h == none) {
                    ++ends;
                    h = queue_.back(0);
                    if (h == none) return none;
                    continue;
                }
                if (!pinned(h)) {
                    if (!visited_[h]) return count_->hand = h;
                    visited_[h] = false;
                }
                h = queue_.towards_front(0, h);
            }
            return none;
        }

      private:
        counters* count_ = nullptr;
        resident_lists queue_;    ///< newest first
        bool* visited_ = nullptr; ///< (handles)
    };
};

}} // namespace kvtl::v0
