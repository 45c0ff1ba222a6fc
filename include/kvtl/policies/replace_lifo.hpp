// Replacement: the unit that came in last leaves first. So the units that filled the memory stay for good: a
// static split of the cache between memory and storage (FlexGen). It is optimal when every step scans
// everything: LRU and FIFO would evict each unit just before it is needed again.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/slots/replacement.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct lifo {
    static constexpr std::string_view name = "lifo";
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, std::uint32_t handles, std::uint32_t /*unit_pages*/, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept
            : lists_(handles, 1, memory, holds) {}
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t /*unit_pages*/) noexcept {
            return resident_lists::bytes(handles, 1);
        }

        void tick() noexcept {}
        void admit(std::uint32_t handle, resident_facts) noexcept { lists_.push_back(0, handle); }
        void touch(std::uint32_t) noexcept {}
        void refresh(std::uint32_t, resident_facts) noexcept {}
        void remove(std::uint32_t handle) noexcept { lists_.remove(handle); }

        /// The youngest resident that is not pinned.
        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            for (std::uint32_t h = lists_.back(0); h != none; h = lists_.towards_front(0, h))
                if (!pinned(h)) return h;
            return none;
        }

      private:
        resident_lists lists_;
    };
};

/// Nothing stays beyond the step that read it: systems without a cache of units (InfiniGen and its
/// head-aggregated extension in KVSwap's comparison). Between steps of one batch the order is that of
/// lifo.
struct no_caching : lifo {
    static constexpr std::string_view name = "no_caching";
    static constexpr bool keeps_nothing = true;
};

}} // namespace kvtl::v0
