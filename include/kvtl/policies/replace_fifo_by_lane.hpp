// Replacement: every lane has an equal share of the frames and evicts its own oldest unit for a new one. A
// lane below its share takes the oldest unit of the lane that has most.
//
// With one queue for all layers, a layer's units are evicted while the other layers compute. The layer then
// finds none of them again, unless memory holds the choices of all layers. With shares, each layer keeps its
// last choice, except for units that it must overwrite. (KVSwap's own code has slots per layer, and a miss
// takes a slot that this step did not hit.) Only lanes with resident units count: shares adapt when sequences
// begin and end.
//
// Cost: O(1); a lane below its share searches all lanes. Memory: 12 bytes per frame and per list. Beyond
// max_lists lanes some lanes share a list.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/slots/replacement.hpp>

#include <algorithm>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct fifo_by_lane {
    static constexpr std::string_view name = "fifo_by_lane";
    static constexpr bool names_lanes = true;
    static constexpr std::uint32_t max_lists = 256;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
        struct counters {
            std::uint32_t frames = 0; ///< handles that are frames which are there
            std::uint32_t active = 0; ///< lists that hold something
            std::uint32_t serving = none;
        };
        struct resident {
            std::uint16_t list, pages;
        };

      public:
        state() = default;
        state(const config&, std::uint32_t handles, std::uint32_t /*unit_pages*/, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept
            : list_count_(lists_for(handles)) {
            block_parts parts(memory, holds);
            count_ = parts.take<counters>(1, {.frames = handles});
            lists_ = resident_lists(handles, list_count_,
                                    parts.take_bytes(resident_lists::bytes(handles, list_count_)), holds);
            held_ = parts.take<std::uint32_t>(list_count_);
            resident_ = parts.take<resident>(handles);
        }
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t /*unit_pages*/) noexcept {
            const std::uint32_t lists = lists_for(handles);
            return sizeof(counters) + resident_lists::bytes(handles, lists) + lists * sizeof(std::uint32_t) +
                   handles * sizeof(resident);
        }

        /// So many of the handles are frames that are there.
        void resize(std::uint32_t frames) noexcept { count_->frames = frames; }
        void tick() noexcept {}
        void serve(std::uint32_t lane) noexcept {
            count_->serving = lane == none ? none : lane % list_count_;
        }
        void admit(std::uint32_t h, resident_facts facts) noexcept {
            const std::uint32_t list = facts.lane % list_count_;
            resident_[h] = {static_cast<std::uint16_t>(list), 0};
            lists_.push_front(list, h);
            hold(h, facts.pages);
        }
        void touch(std::uint32_t) noexcept {}
        void refresh(std::uint32_t h, resident_facts facts) noexcept { hold(h, facts.pages); }
        void remove(std::uint32_t h) noexcept {
            lists_.remove(h);
            hold(h, 0);
        }

        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            const std::uint32_t serving = count_->serving;
            if (serving != none && held_[serving] >= share())
                if (const std::uint32_t h = oldest(serving, pinned); h != none) return h;
            std::uint32_t best = none, most = 0;
            for (std::uint32_t list = 0; list < list_count_; ++list) {
                if (held_[list] <= most) continue;
                const std::uint32_t h = oldest(list, pinned);
                if (h != none) best = h, most = held_[list];
            }
            return best;
        }

      private:
        [[nodiscard]] static std::uint32_t lists_for(std::uint32_t handles) noexcept {
            return std::clamp(handles, 1U, max_lists);
        }
        /// Frames that each lane with something resident, and the one that is served, may have.
        [[nodiscard]] std::uint32_t share() const noexcept {
            return count_->frames / std::max(1U, count_->active + (held_[count_->serving] == 0 ? 1 : 0));
        }
        void hold(std::uint32_t h, std::uint32_t pages) noexcept {
            std::uint32_t& held = held_[resident_[h].list];
            const bool had = held > 0;
            held += pages - resident_[h].pages;
            resident_[h].pages = static_cast<std::uint16_t>(pages);
            if (had != (held > 0)) count_->active += held > 0 ? 1U : ~0U;
        }
        template <class Pinned>
        [[nodiscard]] std::uint32_t oldest(std::uint32_t list, Pinned& pinned) const noexcept {
            for (std::uint32_t h = lists_.back(list); h != none; h = lists_.towards_front(list, h))
                if (!pinned(h)) return h;
            return none;
        }

        counters* count_ = nullptr;
        resident_lists lists_;
        std::uint32_t* held_ = nullptr; ///< (lists) frames of each list's units
        resident* resident_ = nullptr;  ///< (handles)
        std::uint32_t list_count_ = 1;
    };
};

}} // namespace kvtl::v0
