// The bar of a sequence: one number for all its layers and heads, with which a selector compares scores
// (slots/selector.hpp; for selectors without one this is empty).
//
// What:   a selector that calibrates sets it with the prompt: when a layer's prompt is in its units, its last queries are
//         shown to the selector as steps would be, lane by lane. What it notes is kept per layer, so that a prompt may be
//         repeated. The bar is of all layers seen so far: after the last one, of the model.
//         A selector that goes by errors sets it after each token, from what the token's steps chose.
// Memory: a note per layer of each of the shard's sequences.
// Cost:   `looked_at` choices per lane and prompt; nothing worth counting per step.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/save/part_stream.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvtl { inline namespace v0 {

template <class Types> class sequence_bars {
  public:
    using selector = typename Types::selector;
    static constexpr bool of_prompts = calibrates_on_prompts<selector>, of_steps = goes_by_errors<selector>;
    static constexpr bool any = of_prompts || of_steps;
    static constexpr std::uint32_t looked_at = 100; ///< queries, as far as the last chunk has them
    static constexpr float open = -std::numeric_limits<float>::infinity(); ///< lets everything pass

    struct scratch {
        std::span<detail::bar_notes<selector>> notes; ///< (sequences of the shard, L)
        std::span<float> bar;                         ///< (sequences of the shard)

        static scratch take(carver& c, const cache_plan& p) noexcept {
            scratch x;
            const std::size_t sequences = any ? p.shard_sequences : 0;
            x.notes = c.take<detail::bar_notes<selector>>(sequences * p.model.layers);
            x.bar = c.take<float>(sequences);
            return x;
        }
    };

    sequence_bars() = default;
    sequence_bars(const cache_plan& p, const typename Types::selector_state& select,
                  const scratch& x) noexcept
        : plan_(&p), selector_(&select), x_(x) {
        for (std::uint32_t seat = 0; seat < x_.bar.size(); ++seat) clear(seat);
    }

    /// The bar of the sequence that a lane belongs to.
    [[nodiscard]] float of_lane(std::uint32_t lane_id) const noexcept {
        return any ? x_.bar[seat_of(lane_id / (plan_->model.layers * plan_->model.lanes()))] : open;
    }

    /// Shows the selector the last of the chunk's queries in a layer whose prompt is complete. view(lane) and
    /// budget(lane): of the lanes (references of them); spare: for a lane's choice.
    template <class Lanes, class View, class Budget>
    void look(std::uint32_t slot, std::uint32_t layer, const Lanes& lanes, const layer_input& in,
              std::uint32_t chunk, chooser<Types>& choose, const View& view, const Budget& budget,
              std::span<float> query, std::span<chosen_unit> spare) noexcept {
        if constexpr (of_prompts) {
            const std::uint32_t seat = seat_of(slot), layers = plan_->model.layers;
            auto& notes = x_.notes[std::size_t{seat} * layers + layer];
            notes = {};
            const std::size_t token = std::size_t{plan_->model.query_heads()} * plan_->model.dim,
                              own = std::size_t{plan_->model.lane_queries()} * plan_->model.dim;
            for (std::uint32_t t = chunk - std::min(chunk, looked_at); t < chunk && !in.q.empty(); ++t)
                for (const auto& ref : lanes) {
                    const float* q = simd::widened(in.q, t * token + plan_->model.query_offset(ref.in_layer),
                                                   query.data(), own);
                    choose.look(q, view(ref), budget(ref), spare, notes);
                }
            x_.bar[seat] = selector_->settle(x_.notes.subspan(std::size_t{seat} * layers, layers));
        }
    }

    /// of_steps: the squared length of the output that the lane's layer had at its last step; 0 before.
    [[nodiscard]] float output_of_lane(std::uint32_t lane_id) const noexcept {
        const std::uint32_t layers = plan_->model.layers, row = lane_id / plan_->model.lanes();
        return x_.notes[std::size_t{seat_of(row / layers)} * layers + row % layers].output;
    }
    /// of_steps: a step of a layer is complete. After the last layer's the bar is that of the next token.
    void note_step(std::uint32_t slot, std::uint32_t layer, const step_facts& facts) noexcept {
        const std::uint32_t seat = seat_of(slot), layers = plan_->model.layers;
        const auto notes = x_.notes.subspan(std::size_t{seat} * layers, layers);
        selector_->note_step(facts, notes[layer]);
        if (layer + 1 == layers) x_.bar[seat] = selector_->settle(notes, x_.bar[seat]);
    }

    /// The notes of a layer and the bar of its sequence, to or from a stream, with the layer's first lane.
    void parts(part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t lane) noexcept {
        if (!any || lane != 0) return;
        const std::uint32_t seat = seat_of(slot);
        io.value(x_.notes[std::size_t{seat} * plan_->model.layers + layer]);
        io.value(x_.bar[seat]);
    }

    /// A branch begins with the bar of its parent and the notes of all its layers, whenever these are copied.
    void copy(std::uint32_t from, std::uint32_t to) noexcept {
        if (!any) return;
        const std::size_t layers = plan_->model.layers;
        x_.bar[seat_of(to)] = x_.bar[seat_of(from)];
        std::ranges::copy(x_.notes.subspan(seat_of(from) * layers, layers),
                          x_.notes.subspan(seat_of(to) * layers, layers).begin());
    }

    /// A sequence has ended.
    void forget(std::uint32_t slot) noexcept {
        if (any) clear(seat_of(slot));
    }

  private:
    /// All heads of a sequence have one shard where a selector calibrates.
    [[nodiscard]] std::uint32_t seat_of(std::uint32_t slot) const noexcept {
        return plan_->division.seat(slot);
    }
    void clear(std::uint32_t seat) noexcept {
        const std::uint32_t layers = plan_->model.layers;
        std::fill_n(x_.notes.begin() + seat * layers, layers, detail::bar_notes<selector>{});
        x_.bar[seat] = open;
    }

    const cache_plan* plan_ = nullptr;
    const typename Types::selector_state* selector_ = nullptr;
    scratch x_;
};

}} // namespace kvtl::v0
