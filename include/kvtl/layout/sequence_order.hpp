// Layout: entries stay where they were generated. A lane is a stream of pages in token order, and a unit is a
// run of consecutive entries in it.
//
// This is the layout of fixed groups and single tokens. Nothing is ever moved. Memory: one bit per page.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/layout/page_map.hpp>
#include <kvtl/slots/layout.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct sequence_order {
    static constexpr std::string_view name = "sequence_order";
    static constexpr bool by_entry = true; ///< pages belong to the lane's stream, of which units are runs
    static constexpr bool wants_correlation = false;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        static constexpr std::uint32_t pages_per_run = 8;

        state() = default;
        state(const config&, const layout_limits& limits, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept
            : map_(limits.file_pages, memory, holds) {}

        [[nodiscard]] static std::size_t bytes(const layout_limits& limits) noexcept {
            return page_map::bytes(limits.file_pages);
        }

        /// A lane's stream (and its staged prompt) is a list of runs of this many pages.
        [[nodiscard]] std::uint32_t run_pages() const noexcept { return pages_per_run; }
        [[nodiscard]] std::uint32_t allocate_run() noexcept { return map_.allocate(pages_per_run); }
        void release_run(std::uint32_t first) noexcept { map_.release(first, pages_per_run); }

        [[nodiscard]] std::uint32_t top() const noexcept { return map_.top(); }
        [[nodiscard]] std::uint32_t used() const noexcept { return map_.used(); }

      private:
        page_map map_;
    };
};

}} // namespace kvtl::v0
