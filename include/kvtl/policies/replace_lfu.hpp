// Replacement: the unit used least often since it came in leaves first; among equals, the one used longest
// ago. The count is lost when a unit leaves (in-cache LFU) and does not age. A pinned unit is skipped: the
// search goes on with the next unit in this order.
//
// How:  one list ("bucket") per frequency that occurs, and a list of the buckets by frequency. A use moves a
//       unit from its bucket to the bucket of the next frequency, which is created if there is none.
// Cost: O(1) per use; a victim costs the pinned units that are skipped. 32 bytes per frame.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/slots/replacement.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct lfu {
    static constexpr std::string_view name = "lfu";
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, std::uint32_t handles, std::uint32_t /*unit_pages*/, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept {
            const std::uint32_t buckets = bucket_count(handles);
            block_parts parts(memory, holds);
            unit_ = resident_lists(handles, buckets,
                                   parts.take_bytes(resident_lists::bytes(handles, buckets)), holds);
            order_ = resident_lists(buckets, 2, parts.take_bytes(resident_lists::bytes(buckets, 2)), holds);
            bucket_of_ = parts.take<std::uint32_t>(handles);
            uses_ = parts.take<std::uint32_t>(buckets);
            if (holds == state_block::filled) return;
            for (std::uint32_t b = 0; b < buckets; ++b) order_.push_front(unused, b);
        }
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t /*unit_pages*/) noexcept {
            const std::uint32_t buckets = bucket_count(handles);
            return resident_lists::bytes(handles, buckets) + resident_lists::bytes(buckets, 2) +
                   (std::size_t{handles} + buckets) * sizeof(std::uint32_t);
        }

        void tick() noexcept {}
        void admit(std::uint32_t h, resident_facts) noexcept {
            std::uint32_t b = order_.back(used);
            if (b == none || uses_[b] != 1) { // back is the lowest frequency
                b = take_bucket(1);
                order_.push_back(used, b);
            }
            enter(h, b);
        }
        void touch(std::uint32_t h) noexcept {
            const std::uint32_t from = bucket_of_[h];
            std::uint32_t to = order_.towards_front(used, from);
            if (to == none || uses_[to] != uses_[from] + 1) {
                to = take_bucket(uses_[from] + 1);
                order_.push_before(from, to);
            }
            remove(h); // `to` is still empty, but only `from` can be given back
            enter(h, to);
        }
        void refresh(std::uint32_t h, resident_facts) noexcept { touch(h); }
        void remove(std::uint32_t h) noexcept {
            unit_.remove(h);
            const std::uint32_t b = bucket_of_[h];
            if (unit_.back(b) == none) order_.move_front(unused, b);
        }

        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            for (std::uint32_t b = order_.back(used); b != none; b = order_.towards_front(used, b))
                for (std::uint32_t h = unit_.back(b); h != none; h = unit_.towards_front(b, h))
                    if (!pinned(h)) return h;
            return none;
        }

      private:
        /// The two lists of buckets: in use, highest frequency first, and free ones.
        static constexpr std::uint32_t used = 0, unused = 1;

        /// One more than there can be frequencies: a unit's next bucket is made before its last is given
        /// back.
        [[nodiscard]] static std::uint32_t bucket_count(std::uint32_t handles) noexcept {
            return handles + 1;
        }
        [[nodiscard]] std::uint32_t take_bucket(std::uint32_t uses) noexcept {
            const std::uint32_t b = order_.back(unused);
            order_.remove(b);
            uses_[b] = uses;
            return b;
        }
        void enter(std::uint32_t h, std::uint32_t b) noexcept {
            bucket_of_[h] = b;
            unit_.push_front(b, h);
        }

        resident_lists unit_;                ///< of each bucket, most recently used first
        resident_lists order_;               ///< of the buckets
        std::uint32_t* bucket_of_ = nullptr; ///< (handles)
        std::uint32_t* uses_ = nullptr;      ///< (buckets) the frequency a bucket stands for
    };
};

}} // namespace kvtl::v0
