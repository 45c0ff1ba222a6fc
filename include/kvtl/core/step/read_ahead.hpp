// Which lanes a shard owns, and what is read ahead for them: prefetches, and the selection that an engine attends by itself.
//
// Cost:   a look at each of up to 17 prefetches.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/plan/shard_memory.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

namespace kvtl { inline namespace v0 {

/// The lanes of a shard. Layer-wide lanes belong to the shard of their sequence.
struct shard_lanes {
    const cache_plan* plan = nullptr;
    std::uint32_t shard = 0;

    /// How many lanes of each layer of a sequence.
    [[nodiscard]] std::uint32_t count(std::uint32_t slot) const noexcept {
        return plan->division.owns(slot, shard) ? plan->division.lanes_of(plan->model.lanes(), shard) : 0;
    }
    [[nodiscard]] lane_ref at(std::uint32_t slot, std::uint32_t layer, std::uint32_t i) const noexcept {
        const std::uint32_t in_layer = plan->division.lane(i, shard);
        return {(slot * plan->model.layers + layer) * plan->model.lanes() + in_layer, in_layer};
    }
    [[nodiscard]] std::span<const lane_ref> list(std::uint32_t slot, std::uint32_t layer,
                                                 std::span<lane_ref> into) const noexcept {
        const std::uint32_t n = count(slot);
        for (std::uint32_t i = 0; i < n; ++i) into[i] = at(slot, layer, i);
        return into.first(n);
    }
    [[nodiscard]] std::uint32_t slot_of(std::uint32_t lane_id) const noexcept {
        return lane_id / (plan->model.layers * plan->model.lanes());
    }
    [[nodiscard]] std::uint32_t layer_of(std::uint32_t lane_id) const noexcept {
        return lane_id / plan->model.lanes() % plan->model.layers;
    }
    /// A sequence among those that have pools of their own.
    [[nodiscard]] std::uint32_t group(std::uint32_t slot) const noexcept {
        return plan->pool_groups() == 1 ? 0 : plan->division.seat(slot);
    }
};

template <class Types> class read_ahead {
  public:
    using runner = step_runner<Types>;
    using fate = typename runner::fate;

    read_ahead() = default;
    /// lanes: scratch for those of a prefetch that ends.
    read_ahead(runner& step, const shard_lanes& owned, std::span<prefetch_slot> slots,
               std::span<lane_ref> lanes) noexcept
        : step_(&step), owned_(&owned), slots_(slots), lanes_(lanes) {}

    /// What is read ahead for a layer of a sequence, or null.
    [[nodiscard]] prefetch_slot* find(std::uint32_t slot, std::uint32_t layer) const noexcept {
        return first_of(
            [&](const prefetch_slot& a) { return a.io_batch != none && a.slot == slot && a.layer == layer; });
    }
    [[nodiscard]] prefetch_slot* unused() const noexcept {
        return first_of([](const prefetch_slot& a) { return a.io_batch == none; });
    }
    [[nodiscard]] bool any() const noexcept {
        return first_of([](const prefetch_slot& a) { return a.io_batch != none; }) != nullptr;
    }
    /// Of sequences that share the frames.
    [[nodiscard]] bool any_of(std::uint32_t group) const noexcept {
        return first_of([&](const prefetch_slot& a) {
                   return a.io_batch != none && owned_->group(a.slot) == group;
               }) != nullptr;
    }
    /// Takes a place for a layer: the number of its io_batch is that of the place.
    void begin(prefetch_slot& a, std::uint32_t slot, std::uint32_t layer, bool complete) const noexcept {
        a.slot = slot, a.layer = layer, a.complete = complete, a.announced = false;
        a.io_batch = runner::store::step_io_batches + static_cast<std::uint32_t>(&a - slots_.data());
    }

    void release(prefetch_slot* a, std::span<const lane_ref> lanes, fate end) noexcept {
        if (a == nullptr) return;
        step_->release_io_batch(lanes, a->io_batch, end);
        a->io_batch = none;
    }
    [[nodiscard]] const prefetch_slot* selection() const noexcept { return selection_; }
    void select(prefetch_slot& a) noexcept { selection_ = &a; }
    void release_selection() noexcept {
        if (prefetch_slot* a = std::exchange(selection_, nullptr); a != nullptr)
            release(a, lanes_of(*a), fate::shown);
    }
    void release_all() noexcept {
        release_selection();
        release_if([](const prefetch_slot&) { return true; });
    }
    /// Gives up what was read ahead for a layer of those that share the frames, or for all layers.
    void release_of(std::uint32_t group, std::uint32_t layer = none) noexcept {
        release_if([&](const prefetch_slot& a) {
            return owned_->group(a.slot) == group && (layer == none || a.layer == layer);
        });
    }
    /// Gives up what was announced for steps that have not come: of a batch that failed.
    void cancel() noexcept {
        release_if([](const prefetch_slot& a) { return a.announced; });
    }

  private:
    template <class Of> [[nodiscard]] prefetch_slot* first_of(Of&& of) const noexcept {
        const auto found = std::find_if(slots_.begin(), slots_.end(), of);
        return found == slots_.end() ? nullptr : &*found;
    }
    template <class Of> void release_if(Of&& of) noexcept {
        for (prefetch_slot& a : slots_) {
            if (a.io_batch == none || !of(a)) continue;
            if (&a == selection_)
                release_selection();
            else
                release(&a, lanes_of(a), fate::dropped);
        }
    }
    [[nodiscard]] std::span<const lane_ref> lanes_of(const prefetch_slot& a) const noexcept {
        return owned_->list(a.slot, a.layer, lanes_);
    }

    runner* step_ = nullptr;
    const shard_lanes* owned_ = nullptr;
    std::span<prefetch_slot> slots_;
    std::span<lane_ref> lanes_;
    prefetch_slot* selection_ = nullptr;
};

}} // namespace kvtl::v0
