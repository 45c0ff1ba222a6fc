// Layout: two units per pool, which grow towards each other from its ends (DynaKV §5.2, Figure 8).
//
//   pool p                                   pool p+1
//   | A0 A1 A2 ->          <- B2 B1 B0 | C0 C1 ->        <- D1 D0 |
//   left head                right head  left head       right head
//
// A pool has room for two units of the maximum size, so an append never moves pages and the heads cannot
// meet. The right head of a pool and the left head of the next one touch. The strongest co-retrieved pair is
// placed there and is one sequential read. The next-strongest pair shares a pool and is read across the gap
// if that is cheaper than another read. (This is our choice: the paper pairs only inside a pool.)
//
// Paper: "one of the sub-clusters continues to grow from the original head, the other is migrated to a newly
// allocated pool, paired with another cluster (or left with an empty partner slot)". Memory: 2 bits per pool.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/layout/page_map.hpp>
#include <kvtl/slots/layout.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct dual_head {
    static constexpr std::string_view name = "dual_head";
    static constexpr bool by_entry = false;
    static constexpr bool wants_correlation = true;
    struct config {
        bool pair_in_pool = false; ///< true: the strongest pair shares a pool, as in the paper's Figure 8
        template <class Visit> void fields(Visit&& visit) { visit("pair_in_pool", pair_in_pool); }
    };

    class state {
        struct alignas(std::uint64_t) counters {
            std::uint32_t pools_taken = 0;
            std::uint32_t half_taken = 0;
            std::uint32_t half_hint = 0; ///< no half-taken pool lies below
            std::uint32_t free_hint = 0; ///< no free pool lies below
            std::uint32_t top = 0;       ///< one past the highest pool that is taken
        };

      public:
        state() = default;
        state(const config& c, const layout_limits& limits, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept
            : config_(c), unit_pages_(limits.unit_pages),
              pools_(limits.file_pages / (2 * limits.unit_pages)) {
            block_parts parts(memory, holds);
            count_ = parts.take<counters>(1);
            left_ = page_map(pools_, parts.take_bytes(page_map::bytes(pools_)), holds);
            right_ = page_map(pools_, parts.take_bytes(page_map::bytes(pools_)), holds);
        }

        [[nodiscard]] static std::size_t bytes(const layout_limits& limits) noexcept {
            return sizeof(counters) + 2 * page_map::bytes(limits.file_pages / (2 * limits.unit_pages));
        }

        /// Chains take neighbouring heads: right of a pool, left of the next, right of the next, ... Single
        /// units fill the halves that remain, and so does the rest of a chain for which no pool is free.
        [[nodiscard]] bool arrange(const arrangement& a) noexcept {
            const std::size_t n = a.order.size();
            for (std::size_t i = 0; i < n; ++i) a.unit[a.order[i]].where = {};
            for (std::size_t begin = 0; begin < n;) {
                std::size_t end = begin + 1;
                while (end < n && a.strength[end - 1] != 0) ++end;
                if (end - begin > 1) arrange_chain(a, begin, end);
                begin = end;
            }
            bool ok = true;
            for (std::size_t i = 0; i < n && ok; ++i) {
                place& where = a.unit[a.order[i]].where;
                if (where.first == none) ok = place_unit(a.pages(a.order[i]), where);
            }
            if (ok) return true;
            for (std::size_t i = 0; i < n; ++i)
                if (place& where = a.unit[a.order[i]].where; where.first != none) {
                    release(where);
                    where = {};
                }
            return false;
        }

        /// A half whose partner is taken is preferred: pools fill up before new ones are started.
        [[nodiscard]] bool place_unit(std::uint32_t, place& out) noexcept {
            if (count_->half_taken > 0) {
                for (std::uint32_t p = count_->half_hint; p < pools_; ++p) {
                    if (left_.taken(p) == right_.taken(p)) continue;
                    count_->half_hint = p;
                    out = take(p, left_.taken(p));
                    return true;
                }
            }
            const std::uint32_t pool = free_pool();
            if (pool == none) return false;
            out = take(pool, false);
            return true;
        }

        [[nodiscard]] std::uint32_t capacity(place) const noexcept { return unit_pages_; }

        /// The right head counts its pages downwards from the end of the pool.
        [[nodiscard]] std::uint32_t page(place where, std::uint32_t i) const noexcept {
            const std::uint32_t begin = where.first * 2 * unit_pages_;
            return where.extra == 0 ? begin + i : begin + 2 * unit_pages_ - 1 - i;
        }

        void release(place where) noexcept {
            const std::uint32_t p = where.first;
            (where.extra == 0 ? left_ : right_).release(p, 1);
            if (left_.taken(p) || right_.taken(p)) {
                ++count_->half_taken;
                count_->half_hint = p < count_->half_hint ? p : count_->half_hint;
            } else {
                --count_->half_taken;
                --count_->pools_taken;
                count_->free_hint = p < count_->free_hint ? p : count_->free_hint;
                std::uint32_t top = count_->top;
                if (p + 1 == top)
                    while (top > 0 && !left_.taken(top - 1) && !right_.taken(top - 1)) --top;
                count_->top = top;
            }
        }

        [[nodiscard]] std::uint32_t run_pages() const noexcept { return 2 * unit_pages_; }
        [[nodiscard]] std::uint32_t allocate_run() noexcept {
            const std::uint32_t pool = free_pool();
            if (pool == none) return none;
            static_cast<void>(take(pool, false));
            static_cast<void>(take(pool, true));
            return pool * 2 * unit_pages_;
        }
        void release_run(std::uint32_t first) noexcept {
            const std::uint32_t pool = first / (2 * unit_pages_);
            release({pool, 0});
            release({pool, 1});
        }

        [[nodiscard]] std::uint32_t top() const noexcept { return count_->top * 2 * unit_pages_; }
        [[nodiscard]] std::uint32_t used() const noexcept { return count_->pools_taken * 2 * unit_pages_; }

      private:
        void arrange_chain(const arrangement& a, std::size_t begin, std::size_t end) noexcept {
            // Links alternate between "touching across a pool boundary" and "sharing a pool"; choose which
            // comes first so that the touching links are the stronger half.
            std::uint64_t sum[2] = {0, 0};
            for (std::size_t i = begin; i + 1 < end; ++i) sum[(i - begin) % 2] += a.strength[i];
            const bool first_link_touches = config_.pair_in_pool ? sum[0] < sum[1] : sum[0] >= sum[1];
            bool right = first_link_touches;
            std::uint32_t pool = free_pool();
            for (std::size_t i = begin; i < end && pool != none; ++i) {
                a.unit[a.order[i]].where = take(pool, right);
                if (right && i + 1 < end) pool = free_pool_after(pool);
                right = !right;
            }
        }

        place take(std::uint32_t pool, bool right) noexcept {
            const bool partner = right ? left_.taken(pool) : right_.taken(pool);
            (right ? right_ : left_).take(pool);
            if (partner) {
                --count_->half_taken;
            } else {
                ++count_->half_taken;
                ++count_->pools_taken;
            }
            if (!partner && pool < count_->half_hint) count_->half_hint = pool;
            count_->top = pool + 1 > count_->top ? pool + 1 : count_->top;
            return {pool, right ? 1U : 0U};
        }

        [[nodiscard]] std::uint32_t free_pool() noexcept {
            for (std::uint32_t p = count_->free_hint; p < pools_; ++p)
                if (!left_.taken(p) && !right_.taken(p)) return count_->free_hint = p;
            return none;
        }
        /// Preferably the very next pool, so that heads touch.
        [[nodiscard]] std::uint32_t free_pool_after(std::uint32_t pool) noexcept {
            if (pool + 1 < pools_ && !left_.taken(pool + 1) && !right_.taken(pool + 1)) return pool + 1;
            return free_pool();
        }

        config config_{};
        std::uint32_t unit_pages_ = 1;
        std::uint32_t pools_ = 0;
        counters* count_ = nullptr;
        page_map left_, right_; ///< one bit per pool: that head is taken
    };
};

}} // namespace kvtl::v0
