// Finds units that are retrieved together, and an order of all units in which such pairs are neighbours
// (DynaKV §5.1, Eq. 8).
//
// add() takes the set of units that one query would choose. chain() counts the pairs and joins units
// greedily: the most frequent pair first, with ties to the lower indices. A unit has at most two neighbours,
// and no ring is closed. The frequencies of Eq. 8 are these counts divided by their sum, so their order is
// equal.
//
// It is scratch of one prompt: nothing outlives the call that creates it.
//
// Cost: O(p log p) for p pairs; memory 8 bytes per pair and 16 per unit.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/slots/selector.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

class co_retrieval {
  public:
    static constexpr std::uint32_t set_limit = 24; ///< units of a set that count, best first

    [[nodiscard]] static constexpr std::size_t pairs_for(std::uint32_t sets) noexcept {
        return std::size_t{sets} * set_limit * (set_limit - 1) / 2;
    }

    co_retrieval(carver& c, std::uint32_t sets, std::uint32_t units) noexcept
        : pair_(c.take<std::uint64_t>(pairs_for(sets))), left_(c.take<std::uint32_t>(units)),
          right_(c.take<std::uint32_t>(units)), root_(c.take<std::uint32_t>(units)),
          weight_left_(c.take<std::uint32_t>(units)), weight_right_(c.take<std::uint32_t>(units)),
          units_(units) {}

    /// `set`: the units one query chose, best first.
    void add(std::span<const chosen_unit> set) noexcept {
        const std::size_t n = std::min<std::size_t>(set.size(), set_limit);
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = i + 1; j < n && pairs_ < pair_.size(); ++j) {
                const std::uint64_t a = std::min(set[i].unit, set[j].unit),
                                    b = std::max(set[i].unit, set[j].unit);
                pair_[pairs_++] = a << unit_bits | b;
            }
    }

    /// Fills `order` with every unit once and `strength[i]` with the count of the pair (order[i],
    /// order[i+1]), 0 where a chain ends. Chains come in the order of their strongest pair, then the units
    /// without any.
    void chain(std::span<std::uint32_t> order, std::span<std::uint32_t> strength) noexcept {
        std::fill(left_.begin(), left_.end(), none);
        std::fill(right_.begin(), right_.end(), none);
        for (std::uint32_t u = 0; u < units_; ++u) root_[u] = u;
        const std::size_t distinct = count_pairs();
        for (std::size_t i = 0; i < distinct; ++i) join(lower(pair_[i]), higher(pair_[i]), count(pair_[i]));
        std::size_t n = 0;
        for (std::size_t i = 0; i < distinct; ++i) {
            const std::uint32_t a = lower(pair_[i]), b = higher(pair_[i]);
            if (left_[a] == b || right_[a] == b) n = walk(a, order, strength, n);
        }
        for (std::uint32_t u = 0; u < units_; ++u) n = walk(u, order, strength, n);
    }

  private:
    // A pair is packed as (4095 - count) : 12, lower unit : 26, higher unit : 26, so that sorting the packed
    // words puts frequent pairs first and the lower indices first among equals.
    static constexpr std::uint32_t unit_bits = 26;
    static constexpr std::uint64_t unit_mask = (std::uint64_t{1} << unit_bits) - 1;
    static constexpr std::uint64_t most = 4095;
    [[nodiscard]] static std::uint32_t lower(std::uint64_t p) noexcept {
        return static_cast<std::uint32_t>(p >> unit_bits & unit_mask);
    }
    [[nodiscard]] static std::uint32_t higher(std::uint64_t p) noexcept {
        return static_cast<std::uint32_t>(p & unit_mask);
    }
    [[nodiscard]] static std::uint32_t count(std::uint64_t p) noexcept {
        return static_cast<std::uint32_t>(most - (p >> 2 * unit_bits));
    }

    /// Counts equal pairs and sorts the distinct ones; returns how many there are.
    std::size_t count_pairs() noexcept {
        const auto pairs = pair_.first(pairs_);
        std::sort(pairs.begin(), pairs.end());
        std::size_t distinct = 0;
        for (std::size_t i = 0; i < pairs.size();) {
            std::size_t j = i;
            while (j < pairs.size() && pairs[j] == pairs[i]) ++j;
            pair_[distinct++] = (most - std::min<std::uint64_t>(most, j - i)) << 2 * unit_bits | pairs[i];
            i = j;
        }
        std::sort(pair_.begin(), pair_.begin() + static_cast<std::ptrdiff_t>(distinct));
        return distinct;
    }

    std::uint32_t find(std::uint32_t u) noexcept {
        while (root_[u] != u) u = root_[u] = root_[root_[u]];
        return u;
    }
    void join(std::uint32_t a, std::uint32_t b, std::uint32_t strength) noexcept {
        const bool a_free = left_[a] == none || right_[a] == none,
                   b_free = left_[b] == none || right_[b] == none;
        if (!a_free || !b_free || find(a) == find(b)) return;
        (left_[a] == none ? weight_left_ : weight_right_)[a] = strength;
        (left_[a] == none ? left_ : right_)[a] = b;
        (left_[b] == none ? weight_left_ : weight_right_)[b] = strength;
        (left_[b] == none ? left_ : right_)[b] = a;
        root_[find(b)] = find(a);
    }
    /// Writes out the chain that `u` belongs to, from one of its ends, unless that was done already.
    std::size_t walk(std::uint32_t u, std::span<std::uint32_t> order, std::span<std::uint32_t> strength,
                     std::size_t n) noexcept {
        if (root_[u] == none) return n;
        std::uint32_t before = none;
        const auto towards = [&](std::uint32_t at, std::uint32_t from) {
            return left_[at] != from || left_[at] == none ? left_[at] : right_[at];
        };
        while (left_[u] != none && right_[u] != none) { // find an end
            const std::uint32_t next = towards(u, before);
            before = u;
            u = next;
        }
        before = none;
        while (u != none) {
            const bool via_left = left_[u] != none && left_[u] != before;
            const std::uint32_t next = via_left ? left_[u] : (right_[u] != before ? right_[u] : none);
            root_[u] = none;
            order[n] = u;
            strength[n++] = next == none ? 0 : (via_left ? weight_left_ : weight_right_)[u];
            before = u;
            u = next;
        }
        return n;
    }

    std::span<std::uint64_t> pair_;
    std::span<std::uint32_t> left_, right_, root_, weight_left_, weight_right_;
    std::uint32_t units_ = 0;
    std::size_t pairs_ = 0;
};

}} // namespace kvtl::v0
