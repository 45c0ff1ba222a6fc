// Which resident cluster leaves first, written out for the hand-written loop of dynakv.
//
// A list per size in pages, the latest choice in front, and one of clusters that were updated within the last 16 steps: these
// stay while they take up no more than a quarter of the frames. Of the ends of the lists the victim is the one with the
// largest idle time x pages / (pages + 1/2). The order is that of kvtl::cluster_aligned, and must be: who is resident
// decides when waiting entries join their clusters, and with that the last bits of the output.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/unit.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace bench {

class cluster_order {
  public:
    /// A cluster is known by one of `frames` frames, its first.
    cluster_order(std::uint32_t frames, std::uint32_t most_pages)
        : sizes_(most_pages), frames_(frames), reserved_(frames / 4), node_(frames + most_pages + 1) {
        for (std::uint32_t end = frames; end < node_.size(); ++end) node_[end].next = node_[end].prev = end;
    }

    void tick() noexcept {
        ++now_;
        for (std::uint32_t f = back(sizes_); f != kvtl::none && now_ - node_[f].updated > horizon;
             f = back(sizes_))
            release(f);
    }
    void add(std::uint32_t f, std::uint32_t pages, bool updated) noexcept {
        node_[f].used = ++requests_;
        node_[f].updated = now_;
        node_[f].pages = pages;
        node_[f].guarded = updated;
        node_[f].known = true;
        push(updated ? sizes_ : size_of(f), f);
        if (!updated) return;
        guarded_pages_ += pages;
        while (guarded_pages_ > reserved_) release(back(sizes_));
    }
    /// Entries have joined the cluster, or it is new.
    void update(std::uint32_t f, std::uint32_t pages) noexcept {
        if (node_[f].known) remove(f);
        add(f, pages, true);
    }
    void touch(std::uint32_t f) noexcept {
        node_[f].used = ++requests_;
        if (node_[f].guarded) return;
        unlink(f);
        push(size_of(f), f);
    }
    void remove(std::uint32_t f) noexcept {
        if (node_[f].guarded) guarded_pages_ -= node_[f].pages;
        node_[f].known = false;
        unlink(f);
    }
    /// The first that may leave, or none.
    template <class MayLeave> [[nodiscard]] std::uint32_t victim(MayLeave&& may_leave) const noexcept {
        std::uint32_t best = kvtl::none;
        double best_weight = 0;
        for (std::uint32_t size = sizes_; size-- > 0;) {
            std::uint32_t f = back(size);
            while (f != kvtl::none && !may_leave(f)) f = before(f);
            if (f == kvtl::none) continue;
            const double idle = requests_ - node_[f].used + 1, pages = size + 1,
                         weight = idle * pages / (pages + .5);
            if (best == kvtl::none || weight > best_weight) best = f, best_weight = weight;
        }
        for (std::uint32_t f = back(sizes_); best == kvtl::none && f != kvtl::none; f = before(f))
            if (may_leave(f)) best = f;
        return best;
    }

  private:
    static constexpr std::uint32_t horizon = 16; ///< steps
    struct node {
        std::uint32_t prev = kvtl::none, next = kvtl::none;
        std::uint32_t used = 0, updated = 0;
        std::uint32_t pages = 1;
        bool guarded = false, known = false;
    };

    [[nodiscard]] std::uint32_t size_of(std::uint32_t f) const noexcept {
        return std::min(node_[f].pages, sizes_) - 1;
    }
    [[nodiscard]] std::uint32_t member(std::uint32_t f) const noexcept {
        return f < frames_ ? f : kvtl::none;
    }
    [[nodiscard]] std::uint32_t back(std::uint32_t list) const noexcept {
        return member(node_[frames_ + list].prev);
    }
    [[nodiscard]] std::uint32_t before(std::uint32_t f) const noexcept { return member(node_[f].prev); }
    void push(std::uint32_t list, std::uint32_t f) noexcept {
        const std::uint32_t end = frames_ + list, first = node_[end].next;
        node_[f].prev = end, node_[f].next = first;
        node_[first].prev = node_[end].next = f;
    }
    void unlink(std::uint32_t f) noexcept {
        node_[node_[f].prev].next = node_[f].next;
        node_[node_[f].next].prev = node_[f].prev;
    }
    /// A guarded cluster becomes one of its size, the latest.
    void release(std::uint32_t f) noexcept {
        node_[f].guarded = false;
        guarded_pages_ -= node_[f].pages;
        node_[f].used = ++requests_;
        unlink(f);
        push(size_of(f), f);
    }

    std::uint32_t sizes_, frames_, reserved_;
    std::uint32_t guarded_pages_ = 0, now_ = 0, requests_ = 0;
    std::vector<node> node_; ///< frames, then the ends of the lists
};

} // namespace bench
