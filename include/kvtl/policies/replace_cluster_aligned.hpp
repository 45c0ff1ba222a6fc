// Replacement: small clusters stay, and so do recently updated ones (DynaKV §6.2).
//
// Principle 1: there is one LRU list per unit size. The victim is the list end with the largest
//
//     age * pages / (pages + access)     age in requests since the last choice, access in pages
//
// This is the idle memory of the cluster divided by the cost of reading it again: a transfer of its pages,
// and an access whose cost does not depend on the size. So a large cluster leaves after a shorter idle time
// than a small one; the difference grows with the cost of an access. With access = 0 this is LRU, which has
// the most bytes in memory. Large values keep the most clusters. With half a page, both rates are above LRU
// where it matters (`kvtl-bench reuse` shows both). Size x age, the limit for expensive accesses, loses
// bytes.
//
// Principle 2: a share of the frames is reserved for clusters that received entries or were split in the last
// `updated_steps` steps. While they fit into it, they are not victims. A cluster that loses this protection
// joins the list of its size as the most recent.
//
// The paper names both principles without a formula. The weight, the share (1/4) and the horizon (16 steps,
// the range of its Table 2) are chosen here.
//
// Cost: O(number of sizes) per victim, plus the pinned units that are skipped.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>
#include <kvtl/slots/replacement.hpp>

#include <algorithm>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct cluster_aligned {
    static constexpr std::string_view name = "cluster_aligned";
    struct config {
        std::uint32_t updated_percent = 25; ///< share of the frames reserved for updated clusters
        std::uint32_t updated_steps = 16;   ///< how long an update protects
        std::uint32_t access_percent = 50;  ///< what an access costs, in percent of a page's transfer
        template <class Visit> void fields(Visit&& visit) {
            visit("updated_percent", updated_percent);
            visit("updated_steps", updated_steps);
            visit("access_percent", access_percent);
        }
    };

    class state {
        struct counters {
            std::uint32_t reserved = 0; ///< frames for updated units
            std::uint32_t protected_pages = 0;
            std::uint32_t now = 0;      ///< ticks
            std::uint32_t requests = 0; ///< differences stay right when it wraps
        };
        struct entry {
            std::uint32_t used = 0;    ///< request that chose it last
            std::uint32_t updated = 0; ///< tick of the last update
            std::uint16_t pages = 1;
            bool is_protected = false;
            bool unused = false; ///< padding with a value
        };

      public:
        state() = default;
        state(const config& c, std::uint32_t handles, std::uint32_t unit_pages, std::span<std::byte> memory,
              state_block holds = state_block::fresh) noexcept
            : config_(c), classes_(unit_pages) {
            block_parts parts(memory, holds);
            count_ = parts.take<counters>(1, {.reserved = handles * c.updated_percent / 100});
            lists_ = resident_lists(handles, classes_ + 1,
                                    parts.take_bytes(resident_lists::bytes(handles, classes_ + 1)), holds);
            entry_ = parts.take<entry>(handles);
        }
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t unit_pages) noexcept {
            return sizeof(counters) + resident_lists::bytes(handles, unit_pages + 1) +
                   handles * sizeof(entry);
        }

        /// The pool has so many frames from now on.
        void resize(std::uint32_t frames) noexcept {
            count_->reserved = frames * config_.updated_percent / 100;
            while (count_->protected_pages > count_->reserved) unprotect(lists_.back(classes_));
        }
        void tick() noexcept {
            ++count_->now;
            for (std::uint32_t h = lists_.back(classes_);
                 h != none && count_->now - entry_[h].updated > config_.updated_steps;
                 h = lists_.back(classes_))
                unprotect(h);
        }
        void admit(std::uint32_t h, resident_facts facts) noexcept {
            entry_[h] = {++count_->requests, count_->now, static_cast<std::uint16_t>(facts.pages), false};
            lists_.push_front(size_class(h), h);
            if (facts.updated) protect(h);
        }
        void touch(std::uint32_t h) noexcept {
            entry_[h].used = ++count_->requests;
            if (!entry_[h].is_protected) lists_.move_front(size_class(h), h);
        }
        void refresh(std::uint32_t h, resident_facts facts) noexcept {
            remove(h);
            admit(h, facts);
        }
        void remove(std::uint32_t h) noexcept {
            if (entry_[h].is_protected) count_->protected_pages -= entry_[h].pages;
            lists_.remove(h);
        }

        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            std::uint32_t best = none;
            double best_weight = 0;
            for (std::uint32_t c = classes_; c-- > 0;) {
                std::uint32_t h = lists_.back(c);
                while (h != none && pinned(h)) h = lists_.towards_front(c, h);
                if (h == none) continue;
                const double age = idle(h), pages = c + 1;
                const double weight = age * pages / (pages + config_.access_percent * 0.01);
                if (best == none || weight > best_weight) best = h, best_weight = weight;
            }
            if (best != none) return best;
            for (std::uint32_t h = lists_.back(classes_); h != none; h = lists_.towards_front(classes_, h))
                if (!pinned(h)) return h;
            return none;
        }

      private:
        [[nodiscard]] std::uint32_t size_class(std::uint32_t h) const noexcept {
            return std::min<std::uint32_t>(entry_[h].pages, classes_) - 1;
        }
        /// Requests since the last choice, that one included.
        [[nodiscard]] std::uint32_t idle(std::uint32_t h) const noexcept {
            return count_->requests - entry_[h].used + 1;
        }
        void protect(std::uint32_t h) noexcept {
            lists_.move_front(classes_, h);
            entry_[h].is_protected = true;
            count_->protected_pages += entry_[h].pages;
            while (count_->protected_pages > count_->reserved) unprotect(lists_.back(classes_));
        }
        void unprotect(std::uint32_t h) noexcept {
            entry_[h].is_protected = false;
            count_->protected_pages -= entry_[h].pages;
            entry_[h].used = ++count_->requests;
            lists_.move_front(size_class(h), h);
        }

        config config_{};
        counters* count_ = nullptr;
        resident_lists lists_; ///< one list per size, then the updated ones
        entry* entry_ = nullptr;
        std::uint32_t classes_ = 1;
    };
};

}} // namespace kvtl::v0
