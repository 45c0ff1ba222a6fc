// Layout: every unit is one run of adjacent pages, exactly as long as it needs.
//
// A unit that outgrows its run moves as a whole to a longer one (the manager rewrites it and counts the
// bytes). DynaKV's Figure 13 compares with this naive cluster-by-cluster layout. The runs of one prompt
// follow each other in unit order (`correlated`: in co-retrieval order).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/layout/page_map.hpp>
#include <kvtl/slots/layout.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct unit_contiguous {
    static constexpr std::string_view name = "unit_contiguous";
    static constexpr bool by_entry = false;          ///< pages belong to units
    static constexpr bool wants_correlation = false; ///< prompt units are placed in unit order
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const layout_limits& limits, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept
            : map_(limits.file_pages, memory, holds), run_pages_(2 * limits.unit_pages) {}

        [[nodiscard]] static std::size_t bytes(const layout_limits& limits) noexcept {
            return page_map::bytes(limits.file_pages);
        }

        /// Places the units of a prompt; on failure nothing stays allocated. One long run keeps them
        /// adjacent; where the file has no such run left, each unit takes its own.
        [[nodiscard]] bool arrange(const arrangement& a) noexcept {
            std::uint32_t total = 0;
            for (const std::uint32_t u : a.order) total += a.pages(u);
            std::uint32_t next = map_.allocate(total);
            const bool together = next != none;
            for (std::size_t i = 0; i < a.order.size(); ++i) {
                unit_record& unit = a.unit[a.order[i]];
                const std::uint32_t pages = a.pages(a.order[i]);
                if (!together) next = map_.allocate(pages);
                if (next == none) {
                    for (std::size_t j = 0; j < i; ++j) {
                        release(a.unit[a.order[j]].where);
                        a.unit[a.order[j]].where = {}; // whoever cleans up must not release it again
                    }
                    return false;
                }
                unit.where = {next, pages};
                next += pages;
            }
            return true;
        }

        /// A place for a new unit that will hold `pages` pages.
        [[nodiscard]] bool place_unit(std::uint32_t pages, place& out) noexcept {
            const std::uint32_t first = map_.allocate(pages);
            if (first == none) return false;
            out = {first, pages};
            return true;
        }

        [[nodiscard]] static std::uint32_t capacity(place where) noexcept { return where.extra; }
        [[nodiscard]] static std::uint32_t page(place where, std::uint32_t i) noexcept {
            return where.first + i;
        }

        void release(place where) noexcept { map_.release(where.first, where.extra); }

        /// Runs hold staged prompts; all have run_pages() pages.
        [[nodiscard]] std::uint32_t run_pages() const noexcept { return run_pages_; }
        [[nodiscard]] std::uint32_t allocate_run() noexcept { return map_.allocate(run_pages_); }
        void release_run(std::uint32_t first) noexcept { map_.release(first, run_pages_); }

        [[nodiscard]] std::uint32_t top() const noexcept { return map_.top(); }
        [[nodiscard]] std::uint32_t used() const noexcept { return map_.used(); }

      private:
        page_map map_;
        std::uint32_t run_pages_ = 0;
    };
};

/// Layout: unit_contiguous for small units, each of which takes at least a page. Decode may fill the
/// sequence's part of the file, which has a place for the largest unit of each row of the tables, so the tables are the limit.
/// Otherwise decode adds no unit beyond 2.5 raw caches of the sequence.
struct unit_contiguous_whole_file {
    static constexpr std::string_view name = "unit_contiguous_whole_file";
    static constexpr bool by_entry = false;
    static constexpr bool wants_correlation = false;
    static constexpr bool decode_fills_file = true;
    using config = unit_contiguous::config;
    using state = unit_contiguous::state;
};

/// Layout: unit_contiguous, with units that are retrieved together placed next to each other (DynaKV §5.1,
/// Eq. 8).
struct correlated {
    static constexpr std::string_view name = "correlated";
    static constexpr bool by_entry = false;
    static constexpr bool wants_correlation = true;
    using config = unit_contiguous::config;
    using state = unit_contiguous::state;
};

}} // namespace kvtl::v0
