// Replacement algorithms as their papers tell them, on containers that are searched from end to end. They
// have the calls of a policy's state and know nothing of how that keeps its queues.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/resident_lists.hpp>

#include "contracts/replacement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

namespace kvtl_test {

using queue_model = std::vector<std::uint32_t>; ///< oldest first

inline void take_out(queue_model& q, std::uint32_t h) {
    q.erase(std::find(q.begin(), q.end(), h));
}
inline bool holds(const queue_model& q, std::uint32_t h) {
    return std::find(q.begin(), q.end(), h) != q.end();
}
template <class Pinned> std::uint32_t first_free(const queue_model& q, Pinned&& pinned) {
    const auto it = std::find_if_not(q.begin(), q.end(), pinned);
    return it == q.end() ? none : *it;
}

struct fifo_model {
    queue_model order;

    void tick() {}
    void admit(std::uint32_t h, resident_facts) { order.push_back(h); }
    void remove(std::uint32_t h) { take_out(order, h); }
    void touch(std::uint32_t) {}
    void refresh(std::uint32_t, resident_facts) {}
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) {
        return first_free(order, pinned);
    }
};

struct lfu_model {
    struct resident {
        std::uint64_t uses, last;
    };
    std::map<std::uint32_t, resident> all;
    std::uint64_t now = 0;

    void tick() {}
    void admit(std::uint32_t h, resident_facts) { all[h] = {1, ++now}; }
    void remove(std::uint32_t h) { all.erase(h); }
    void touch(std::uint32_t h) { all.at(h) = {all.at(h).uses + 1, ++now}; }
    void refresh(std::uint32_t h, resident_facts) { touch(h); }
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) {
        std::uint32_t best = none;
        for (const auto& [h, r] : all) {
            if (pinned(h)) continue;
            const bool better = best == none || r.uses < all.at(best).uses ||
                                (r.uses == all.at(best).uses && r.last < all.at(best).last);
            if (better) best = h;
        }
        return best;
    }
};

struct slru_model {
    std::uint32_t quota;
    queue_model probation{}, guarded{};
    std::map<std::uint32_t, std::uint32_t> pages{};

    void tick() {}
    void admit(std::uint32_t h, resident_facts facts) {
        pages[h] = facts.pages;
        probation.push_back(h);
    }
    void remove(std::uint32_t h) { take_out(holds(guarded, h) ? guarded : probation, h); }
    void touch(std::uint32_t h) {
        remove(h);
        guarded.push_back(h);
        for (;;) {
            std::uint32_t sum = 0;
            for (const std::uint32_t g : guarded) sum += pages.at(g);
            if (sum <= quota) return;
            probation.push_back(guarded.front());
            guarded.erase(guarded.begin());
        }
    }
    void refresh(std::uint32_t h, resident_facts facts) {
        pages[h] = facts.pages;
        touch(h);
    }
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) {
        const std::uint32_t h = first_free(probation, pinned);
        return h != none ? h : first_free(guarded, pinned);
    }
};

struct sieve_model {
    queue_model order;
    std::map<std::uint32_t, bool> visited{};
    std::size_t hand = 0; ///< place in `order`; its length or more: at the oldest

    void tick() {}
    void admit(std::uint32_t h, resident_facts) {
        if (hand >= order.size()) hand = order.size() + 1; // the newcomer is not where the hand went off
        order.push_back(h);
        visited[h] = false;
    }
    void remove(std::uint32_t h) {
        const auto at = static_cast<std::size_t>(std::find(order.begin(), order.end(), h) - order.begin());
        order.erase(order.begin() + static_cast<std::ptrdiff_t>(at));
        if (hand > at) --hand; // at itself: now the next newer one
        if (hand >= order.size()) hand = order.size() + 1;
    }
    void touch(std::uint32_t h) { visited.at(h) = true; }
    void refresh(std::uint32_t h, resident_facts) { touch(h); }
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) {
        if (first_free(order, pinned) == none) return none;
        for (std::size_t i = hand < order.size() ? hand : 0;; i = (i + 1) % order.size()) {
            const std::uint32_t h = order[i];
            if (pinned(h)) continue;
            if (!visited.at(h)) {
                hand = i;
                return h;
            }
            visited.at(h) = false;
        }
    }
};

struct s3_fifo_model {
    std::uint32_t small_quota, main_quota;
    int promote_above = 1;
    queue_model small{}, main{};
    std::list<resident_facts> ghost{}; ///< newest first
    std::map<std::uint32_t, resident_facts> facts_of{};
    std::map<std::uint32_t, int> uses{};
    std::uint32_t named = none;

    [[nodiscard]] std::uint32_t pages(const queue_model& q) const {
        std::uint32_t sum = 0;
        for (const std::uint32_t h : q) sum += facts_of.at(h).pages;
        return sum;
    }
    void tick() {}
    void admit(std::uint32_t h, resident_facts facts) {
        const auto seen = std::find_if(ghost.begin(), ghost.end(), [&](const resident_facts& g) {
            return g.lane == facts.lane && g.unit == facts.unit;
        });
        (seen != ghost.end() ? main : small).push_back(h);
        if (seen != ghost.end()) ghost.erase(seen);
        facts_of[h] = facts;
        uses[h] = 0;
    }
    void remove(std::uint32_t h) {
        const bool remember = h == named && holds(small, h);
        take_out(holds(small, h) ? small : main, h);
        if (h == named) named = none;
        if (!remember || facts_of.at(h).pages > main_quota) return;
        ghost.push_front(facts_of.at(h));
        for (;;) {
            std::uint32_t sum = 0;
            for (const resident_facts& g : ghost) sum += g.pages;
            if (sum <= main_quota) return;
            ghost.pop_back();
        }
    }
    void touch(std::uint32_t h) { uses.at(h) = std::min(uses.at(h) + 1, 3); }
    void refresh(std::uint32_t h, resident_facts facts) {
        facts_of[h] = facts;
        touch(h);
    }
    template <class Pinned> [[nodiscard]] std::uint32_t evict_main(Pinned& pinned) {
        for (;;) {
            const std::uint32_t h = first_free(main, pinned);
            if (h == none || uses.at(h) == 0) return h;
            --uses.at(h);
            take_out(main, h);
            main.push_back(h);
        }
    }
    template <class Pinned> [[nodiscard]] std::uint32_t evict_small(Pinned& pinned) {
        for (;;) {
            const std::uint32_t h = first_free(small, pinned);
            if (h == none || uses.at(h) <= promote_above) return h;
            take_out(small, h);
            main.push_back(h);
            uses.at(h) = 0;
            if (pages(main) > main_quota) return evict_main(pinned);
        }
    }
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) {
        named = pages(small) >= small_quota ? evict_small(pinned) : none;
        if (named == none) named = evict_main(pinned);
        if (named == none) named = evict_small(pinned);
        if (named == none) named = evict_main(pinned);
        return named;
    }
};

/// A cache of `frames` frames over many more units, as the manager runs one: residents get whatever frame is
/// free, so that a unit that comes back has another handle. Compares every victim and returns the hits.
template <class P, class Model, class Trace>
std::size_t same_as_model(const typename P::config& config, Model model, std::uint32_t frames,
                          std::uint32_t steps, const Trace& unit_at, std::uint32_t largest = 1) {
    using state = typename P::state;
    guarded_bytes memory(state::bytes(frames, largest));
    state s(config, frames, largest, memory.memory());
    std::map<std::uint32_t, std::uint32_t> handle_of;
    std::vector<std::uint32_t> unit_of(frames, none), free;
    for (std::uint32_t h = frames; h-- > 0;) free.push_back(h);
    const auto pages_of = [&](std::uint32_t unit) { return 1 + unit * 7 % largest; };
    const auto nothing_pinned = [](std::uint32_t) { return false; };
    std::size_t hits = 0;
    std::uint32_t used = 0, evictions = 0;
    for (std::uint32_t i = 0; i < steps; ++i) {
        const std::uint32_t unit = unit_at(i);
        if (const auto found = handle_of.find(unit); found != handle_of.end()) {
            ++hits;
            s.touch(found->second);
            model.touch(found->second);
            continue;
        }
        // Lanes that are apart by a power of two, as indices of heads and layers often are.
        const resident_facts facts{pages_of(unit), false, unit % 3 * 64, unit / 3};
        while (used + facts.pages > frames) {
            const std::uint32_t h = s.victim(nothing_pinned);
            REQUIRE(h == model.victim(nothing_pinned));
            REQUIRE(h != none);
            s.remove(h);
            model.remove(h);
            used -= pages_of(unit_of[h]);
            handle_of.erase(unit_of[h]);
            free.insert(free.begin(), h);
            ++evictions;
        }
        const std::uint32_t h = free.back();
        free.pop_back();
        handle_of[unit] = h;
        unit_of[h] = unit;
        used += facts.pages;
        s.admit(h, facts);
        model.admit(h, facts);
    }
    CHECK(evictions > 100);
    CHECK(memory.intact());
    return hits;
}

/// The traces of same_as_model: uniform, skewed, looping, and skewed with sweeps between.
enum class unit_trace { uniform, skewed, loop, sweeps };

class unit_sequence {
  public:
    unit_sequence(unit_trace kind, std::uint32_t units, std::uint64_t seed)
        : kind_(kind), units_(units), random_(seed) {}
    std::uint32_t operator()(std::uint32_t i) const {
        const auto skewed = [&] { // density falls as 1 / (unit + 1)
            return static_cast<std::uint32_t>(std::pow(units_, random_.uniform())) - 1;
        };
        switch (kind_) {
        case unit_trace::uniform:
            return static_cast<std::uint32_t>(random_.below(units_));
        case unit_trace::skewed:
            return skewed();
        case unit_trace::loop:
            return i % units_;
        case unit_trace::sweeps:
            break;
        }
        return i / units_ % 2 == 0 ? skewed() : i % units_;
    }

  private:
    unit_trace kind_;
    std::uint32_t units_;
    mutable oracle::generator random_;
};

/// same_as_model on every trace, with units of one page and of up to three.
template <class P, class MakeModel>
void same_on_all_traces(const typename P::config& config, const MakeModel& make_model) {
    for (const unit_trace kind :
         {unit_trace::uniform, unit_trace::skewed, unit_trace::loop, unit_trace::sweeps})
        for (const std::uint32_t largest : {1U, 3U})
            for (std::uint64_t seed = 1; seed <= 3; ++seed) {
                CAPTURE(static_cast<int>(kind));
                CAPTURE(largest);
                CAPTURE(seed);
                static_cast<void>(same_as_model<P>(config, make_model(40U), 40, 2000,
                                                   unit_sequence(kind, 90, seed), largest));
            }
}

} // namespace kvtl_test
