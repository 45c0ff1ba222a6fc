// Replacement: segmented LRU (Karedla, Love and Wherry, IEEE Computer 27(3), 1994).
//
// New units are on probation, and the next use makes a unit protected. When the protected segment exceeds its
// share, its least recently used units go back to probation, as the most recent there. So a sweep through
// many units does not evict units that were used twice. Victims come from the end of probation, and from the
// protected segment only if no unit on probation may leave. Pinned units are skipped and keep their place.
// The protected share is counted in frames. The paper does not set it; 80 % is usual elsewhere.
//
// Cost: O(1) per use, except for units that are sent back. 16 bytes per frame.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/slots/replacement.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct slru {
    static constexpr std::string_view name = "slru";
    struct config {
        std::uint32_t protected_percent = 80; ///< share of the frames for units used again; 0 to 100
        template <class Visit> void fields(Visit&& visit) { visit("protected_percent", protected_percent); }
    };

    class state {
        struct counters {
            std::uint32_t quota = 0; ///< frames that the protected segment may hold
            std::uint32_t guarded_pages = 0;
        };
        struct entry {
            std::uint32_t pages;
            std::uint32_t segment;
        };

      public:
        state() = default;
        state(const config& c, std::uint32_t handles, std::uint32_t /*unit_pages*/,
              std::span<std::byte> memory, state_block holds = state_block::fresh) noexcept
            : percent_(c.protected_percent) {
            block_parts parts(memory, holds);
            count_ = parts.take<counters>(1, {share_of(handles, percent_), 0});
            lists_ = resident_lists(handles, 2, parts.take_bytes(resident_lists::bytes(handles, 2)), holds);
            entry_ = parts.take<entry>(handles);
        }
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t /*unit_pages*/) noexcept {
            return sizeof(counters) + resident_lists::bytes(handles, 2) + handles * sizeof(entry);
        }

        /// The pool has so many frames from now on.
        void resize(std::uint32_t frames) noexcept { count_->quota = share_of(frames, percent_); }
        void tick() noexcept {}
        void admit(std::uint32_t h, resident_facts facts) noexcept {
            entry_[h] = {facts.pages, probation};
            lists_.push_front(probation, h);
        }
        void touch(std::uint32_t h) noexcept {
            move(h, guarded);
            while (count_->guarded_pages > count_->quota) move(lists_.back(guarded), probation);
        }
        /// An update is a use; the unit may have grown.
        void refresh(std::uint32_t h, resident_facts facts) noexcept {
            if (entry_[h].segment == guarded) count_->guarded_pages += facts.pages - entry_[h].pages;
            entry_[h].pages = facts.pages;
            touch(h);
        }
        void remove(std::uint32_t h) noexcept {
            if (entry_[h].segment == guarded) count_->guarded_pages -= entry_[h].pages;
            lists_.remove(h);
        }

        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            for (const std::uint32_t segment : {probation, guarded})
                for (std::uint32_t h = lists_.back(segment); h != none; h = lists_.towards_front(segment, h))
                    if (!pinned(h)) return h;
            return none;
        }

      private:
        static constexpr std::uint32_t probation = 0, guarded = 1; ///< guarded: `protected` is a keyword

        void move(std::uint32_t h, std::uint32_t segment) noexcept {
            if (entry_[h].segment == guarded) count_->guarded_pages -= entry_[h].pages;
            if (segment == guarded) count_->guarded_pages += entry_[h].pages;
            entry_[h].segment = segment;
            lists_.move_front(segment, h);
        }

        counters* count_ = nullptr;
        resident_lists lists_;
        entry* entry_ = nullptr; ///< (handles)
        std::uint32_t percent_ = 0;
    };
};

}} // namespace kvtl::v0
