// Whose choice a step attends: that of its own query, of a query known or predicted a layer ahead, or that of
// an earlier layer that shares its choice.
//
//   layer shares (policies/select_shared_by_layers.hpp)   what the layer that leads it chose in this step
//   chosen for a prediction (query::predicted)            what prefetch() chose; without one, or in the first
//                                                         layers (schedule.true_layers), what the true query
//                                                         chooses, read on demand and counted
//   prefetch() was given the true query                   what prefetch() chose: scored once
//   otherwise                                             index and selector choose for the query
//
// Cost: copying a choice is O(units chosen); following another layer is O(U / 64 + units chosen).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/shard_memory.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

template <class Types> class choice_source {
  public:
    using runner = step_runner<Types>;
    using store = store_of<Types>;
    using lane = typename Types::lane;

    choice_source() = default;
    choice_source(runner& step, store& s, const cache_plan& p) noexcept
        : step_(&step), store_(&s), plan_(&p) {}

    /// For a step: the units that the lanes of a layer attend for q (HQ, D). `arriving`: tokens that are not
    /// counted yet. `a`: what prefetch() has chosen for this layer, or null.
    [[nodiscard]] status choose(std::span<const lane_ref> lanes, const float* q, std::uint32_t arriving,
                                std::uint32_t layer, const prefetch_slot* a) noexcept {
        if (layer % share != 0) return follow(lanes, layer % share, arriving), status{};
        // What was chosen for a prediction stands; for others it does when the engine knew the true query.
        constexpr bool predicts = detail::chooses_ahead<typename Types::selector>();
        const bool by_guess = predicts && layer >= plan_->true_layers;
        if (predicts && (a == nullptr || !by_guess)) ++store_->stats().unpredicted_choices;
        // One that goes by errors knows more by now: the arriving token counts, too.
        if (a != nullptr && (by_guess || (!runner::by_errors && a->same_query(q, a->query.size()))))
            return take(lanes, *a), status{};
        // Scoring reads the pages of the lane itself: what reads them ahead lands first.
        if constexpr (Types::split_pages)
            if (a != nullptr)
                if (status s = step_->land_prefetch(lanes, a->io_batch); !s) return s;
        return step_->choose(lanes, q, arriving, true);
    }

    /// For prefetch(): what a step with this query would choose as far as can be known now.
    [[nodiscard]] status guess(std::span<const lane_ref> lanes, const float* q, std::uint32_t arriving,
                               std::uint32_t layer) noexcept {
        if (layer % share != 0) return follow(lanes, layer % share, arriving), status{};
        return step_->choose(lanes, q, arriving, false);
    }

  private:
    static constexpr std::uint32_t share = detail::layers_that_share<typename Types::selector>();

    void take(std::span<const lane_ref> lanes, const prefetch_slot& a) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            std::copy_n(a.chosen.begin() + i * plan_->chosen_per_lane, a.count[i],
                        step_->chosen_of(i).begin());
            set_count(i, a.count[i]);
        }
    }

    /// What the layer `back` layers earlier chose in its latest step, as far as this layer has such units and
    /// its budget allows.
    void follow(std::span<const lane_ref> lanes, std::uint32_t back, std::uint32_t arriving) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane mine = store_->at(lanes[i].id),
                       leading = store_->at(lanes[i].id - back * plan_->model.lanes());
            const std::uint32_t units = mine.state().units;
            std::uint32_t left = mine.budget(arriving), n = 0;
            const auto bits = leading.chosen_before();
            const auto out = step_->chosen_of(i);
            for (std::uint32_t word = 0; word < bits.size(); ++word)
                for (std::uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
                    const std::uint32_t u = word * 64 + static_cast<std::uint32_t>(std::countr_zero(rest));
                    const std::uint32_t entries = u < units ? store_->entries_of(mine, u) : none;
                    if (entries > left || n == out.size()) continue;
                    out[n++] = {.unit = u};
                    left -= entries;
                }
            set_count(i, n);
        }
    }

    void set_count(std::uint32_t i, std::uint32_t n) noexcept {
        step_->chosen_count(i) = n;
        step_->clear_forced(i);
    }

    runner* step_ = nullptr;
    store* store_ = nullptr;
    const cache_plan* plan_ = nullptr;
};

}} // namespace kvtl::v0
