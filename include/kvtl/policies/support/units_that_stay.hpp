// What clusterers have in common whose units never change once they are made: entries leave the window in batches, and
// each batch becomes units of its own.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/clusterer.hpp>

#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// The part of a clusterer's state that all have whose units never change once they are made.
template <class Lane> class units_that_stay {
  public:
    [[nodiscard]] static bool ready(std::uint32_t entries) noexcept { return entries > 0; }
    [[nodiscard]] static std::uint32_t pending_entries() noexcept { return 1; } // nothing ever waits there
    void clustered(Lane&, const units_view&) const noexcept {}
    [[nodiscard]] growth judge(Lane&, const unit_record& unit, float, const units_view& u) const noexcept {
        return unit.entries < u.max_entries ? growth::append : growth::open;
    }
    /// Where an entry would go by itself: to a new unit. The manager places batches instead.
    [[nodiscard]] assignment assign(Lane&, const float* key, const units_view& u,
                                    std::span<float> distance) const noexcept {
        if (u.count == 0 || u.may_add) return {none, growth::open};
        u.mean.distances(key, u.count, distance.data());
        std::uint32_t best = none;
        for (std::uint32_t i = 0; i < u.count; ++i)
            if (u.unit[i].entries + u.unit[i].buffered < u.max_entries &&
                (best == none || distance[i] < distance[best]))
                best = i;
        return {best != none ? best : 0, best != none ? growth::append : growth::open};
    }
};

}} // namespace kvtl::v0
