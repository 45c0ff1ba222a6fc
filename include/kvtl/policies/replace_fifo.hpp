// Replacement: the unit that came in first leaves first, however often it was chosen since (KVSwap's reuse
// buffer). A pinned unit is skipped and keeps its place.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/slots/replacement.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct fifo {
    static constexpr std::string_view name = "fifo";
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        /// `handles`: residents are numbered below this. `memory` holds bytes(handles) bytes.
        state(const config&, std::uint32_t handles, std::uint32_t /*unit_pages*/, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept
            : lists_(handles, 1, memory, holds) {}
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t /*unit_pages*/) noexcept {
            return resident_lists::bytes(handles, 1);
        }

        void tick() noexcept {}
        void admit(std::uint32_t handle, resident_facts) noexcept { lists_.push_front(0, handle); }
        void touch(std::uint32_t) noexcept {}
        void refresh(std::uint32_t, resident_facts) noexcept {}
        void remove(std::uint32_t handle) noexcept { lists_.remove(handle); }

        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            for (std::uint32_t h = lists_.back(0); h != none; h = lists_.towards_front(0, h))
                if (!pinned(h)) return h;
            return none;
        }

      private:
        resident_lists lists_;
    };
};

}} // namespace kvtl::v0
