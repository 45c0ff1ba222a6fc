// Attention of one step over the pieces that a lane consists of.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/attend_records.hpp>
#include <kvtl/core/step/entry_tile.hpp>
#include <kvtl/core/step/step_parts.hpp>
#include <kvtl/core/step/turn_attention.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/attention.hpp>
#include <kvtl/slots/estimator.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

template <class Types> class step_attention {
  public:
    using element_type = typename Types::element_type;
    using store = store_of<Types>;
    using estimator = typename Types::estimator;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    static constexpr bool by_errors = goes_by_errors<typename Types::selector>;

    struct scratch {
        std::span<float> total;     ///< (lanes, lane heads) partials
        std::span<float> near, far; ///< the same, of a step that goes by errors: what is in memory; estimates
        std::span<float> item;      ///< (batch_items, lane heads) partials; gathered: none
        entry_tile<Types> tile;
        std::span<float> attend;
        turn_attention<element_type, Types::weighted> turn;
        std::span<std::uint64_t> attended; ///< (U) masks, for the estimator
        std::span<float> rest;             ///< the estimator's own

        /// `shared`: for what nobody needs between two calls or while units grow.
        static scratch take(carver& c, carver& shared, const step_parts<Types>& p,
                            std::uint32_t lanes) noexcept {
            scratch x;
            const std::size_t lane_partial = p.model.lane_heads * partial_floats(p.model.group, p.model.dim);
            x.total = c.take<float>(lanes * lane_partial);
            x.near = c.take<float>(by_errors ? lanes * lane_partial : 0);
            x.far = c.take<float>(by_errors ? lanes * lane_partial : 0);
            const bool gathered = entry_tile<Types>::gathers(p.max_entries);
            // A step and a turn need theirs one after the other.
            const auto of_step = [&](carver& of) {
                x.item = of.take<float>(gathered ? 0 : p.batch_items * lane_partial);
                x.tile = entry_tile<Types>::take(of, p.sizes, p.max_entries);
            };
            const auto of_turn = [&](carver& of) {
                x.turn = decltype(x.turn)::take(of, p.model.queries_of(0), p.turn_tokens, p.stretch_bytes);
            };
            carver step_bytes, turn_bytes;
            of_step(step_bytes), of_turn(turn_bytes);
            const auto either = shared.take<std::byte>(std::max(step_bytes.used(), turn_bytes.used()), 64);
            carver for_step(either), for_turn(either);
            of_step(for_step), of_turn(for_turn);
            x.attend = c.take<float>(simd::attend_scratch_floats(p.model.group));
            x.attended = c.take<std::uint64_t>(estimates<estimator> ? p.sizes.max_units : 0);
            x.rest = c.take<float>(p.estimator_floats);
            return x;
        }
    };

    step_attention() = default;
    step_attention(store& s, const step_parts<Types>& p, const scratch& x) noexcept
        : store_(&s), p_(p), x_(x) {}

    [[nodiscard]] entry_tile<Types>& tile() noexcept { return x_.tile; }
    [[nodiscard]] auto& turn() noexcept { return x_.turn; }

    /// visit(k, v, log_weight, rows) for the window's entries before token `to`: one or two pieces of the ring.
    template <class Visit> void visit_window(const lane& l, std::uint32_t to, Visit&& visit) const noexcept {
        for (std::uint32_t from = l.state().window_begin, rows = 0; from < to; from += rows) {
            rows = std::min(to - from, p_.sizes.window + p_.sizes.spare - l.ring(from));
            visit(l.window_k(from), l.window_v(from), l.window_w(from), rows);
        }
    }
    /// visit(keys, values) for the records of a resident unit, page by page.
    template <class Visit>
    void visit_unit(const lane_ref& ref, std::uint32_t u, Visit&& visit) const noexcept {
        const lane l = store_->at(ref.id);
        const pool& frames = store_->pool_of(ref.id);
        const auto& format = store_->unit_format();
        std::uint32_t left = store_->entries_of(l, u);
        for (std::uint32_t f = l.residency(u).frames(); left > 0; f = frames[f].next) {
            const std::byte* page = frames.bytes(f);
            const std::uint32_t rows = format.entries_in(page, left);
            visit(format.keys(page, 0, rows), format.values(page, 0, rows));
            left -= rows;
        }
    }

    /// What error each unit of a lane leaves when it is not read, beside what is in memory (near_of(i)).
    void price_units(std::span<const lane_ref> lanes, std::uint32_t i, const float* q,
                     std::span<float> score) noexcept {
        for_heads(lanes[i], q, [&](const estimator_input& in, std::uint32_t h) {
            p_.rest->price(in, head_partial(near_of(i), h), score);
        });
    }
    /// The estimate of what lane i has not chosen, for end_lane(). `priced`: price_units() came last.
    void estimate_now(std::span<const lane_ref> lanes, std::uint32_t i, std::span<const chosen_unit> chosen,
                      const float* q, bool priced) noexcept {
        for (std::uint32_t h = 0; h < p_.model.lane_heads; ++h) reset(head_partial(far_of(i), h));
        estimate_rest(lanes, i, chosen, q, far_of(i), priced && p_.model.lane_heads == 1);
    }
    /// A lane's total becomes what its choice has attended already.
    void begin_lane(const lane_ref& ref, std::uint32_t i, const float* q) noexcept {
        if constexpr (by_errors)
            std::copy_n(near_of(i), lane_partial(), total_of(i));
        else
            attend_memory(ref, total_of(i), q);
    }
    /// Once all that was read is attended: the estimate of the rest joins a lane's total.
    void end_lane(std::span<const lane_ref> lanes, std::uint32_t i, std::span<const chosen_unit> chosen,
                  const float* q) noexcept {
        if constexpr (by_errors)
            for (std::uint32_t h = 0; h < p_.model.lane_heads; ++h)
                merge(head_partial(total_of(i), h), head_partial(far_of(i), h));
        else
            estimate_rest(lanes, i, chosen, q, total_of(i), false);
    }
    /// The squared length of the layer's output, before sink logits.
    [[nodiscard]] float squared_output(std::span<const lane_ref> lanes) const noexcept {
        float length = 0;
        for (std::uint32_t i = 0; i < lanes.size(); ++i)
            for (std::uint32_t h = 0; h < p_.model.lane_heads; ++h) {
                const partial p = head_partial(total_of(i), h);
                for (std::uint32_t g = 0; g < p.group; ++g) {
                    const float* acc = p.acc + std::size_t{g} * p.dim;
                    if (p.sum[g] > 0) length += simd::dot(acc, acc, p.dim) / (p.sum[g] * p.sum[g]);
                }
            }
        return length;
    }
    /// Calls visit(estimator's view of a head, head) for each head of a lane.
    template <class Visit> void for_heads(const lane_ref& ref, const float* q, Visit&& visit) noexcept {
        units_view u = p_.growth->view(ref.id);
        if (u.count == 0) return;
        u.summary = p_.sums->estimator_of(ref.id);
        const unit_means means = u.mean;
        u.dim = p_.model.dim;
        for (std::uint32_t h = 0; h < p_.model.lane_heads; ++h) {
            u.head = h;
            u.mean = means.columns(std::size_t{h} * p_.model.dim, p_.model.dim);
            visit(estimator_input{queries_of(q, ref, h), p_.model.group, p_.model.logits, u,
                                  x_.attended.first(u.count), x_.rest, x_.attend},
                  h);
        }
    }
    [[nodiscard]] std::size_t lane_partial() const noexcept {
        return p_.model.lane_heads * partial_floats(p_.model.group, p_.model.dim);
    }
    [[nodiscard]] float* total_of(std::uint32_t i) const noexcept { return &x_.total[i * lane_partial()]; }
    [[nodiscard]] float* near_of(std::uint32_t i) const noexcept { return &x_.near[i * lane_partial()]; }
    [[nodiscard]] float* far_of(std::uint32_t i) const noexcept { return &x_.far[i * lane_partial()]; }
    [[nodiscard]] float* item_of(std::uint32_t i) const noexcept { return &x_.item[i * lane_partial()]; }
    /// The queries of KV head h of a lane. q: (HQ, D).
    [[nodiscard]] const float* queries_of(const float* q, const lane_ref& ref,
                                          std::uint32_t h) const noexcept {
        return q + p_.model.query_offset(ref.in_layer) + std::size_t{h} * p_.model.group * p_.model.dim;
    }
    [[nodiscard]] partial head_partial(float* memory, std::uint32_t h) const noexcept {
        return partial_at(memory + h * partial_floats(p_.model.group, p_.model.dim), p_.model.group,
                          p_.model.dim);
    }

    // ------------------------------------------------------------------------------------------------------
    // attention
    /// Sinks, window (the arriving token included when `arriving`) and buffer, in this order.
    void attend_memory(const lane_ref& ref, float* into, const float* q, bool arriving = true) noexcept {
        const lane l = store_->at(ref.id);
        const lane_state& s = l.state();
        for (std::uint32_t h = 0; h < p_.model.lane_heads; ++h) reset(head_partial(into, h));
        const auto attend = [&](const element_type* k, const element_type* v, const float* w,
                                std::uint32_t rows) { attend_rows(q, ref, k, v, w, rows, into); };
        const bool sink_arrives = arriving && s.tokens < p_.sizes.sinks;
        const std::uint32_t sinks = s.sinks + (sink_arrives ? 1 : 0);
        if (sinks > 0) attend(l.sink_k(0), l.sink_v(0), l.sink_w(0), sinks);
        visit_window(l, s.tokens + (arriving && !sink_arrives ? 1 : 0), attend);
        if (s.buffered > 0) attend(l.buffer_k(0), l.buffer_v(0), l.buffer_w(0), s.buffered);
    }

    /// Rows of the lane's width, attended by the lane's queries in `q` (HQ, D). log_weight: (rows) or null.
    void attend_rows(const float* q, const lane_ref& ref, const element_type* k, const element_type* v,
                     const float* log_weight, std::uint32_t rows, float* into) noexcept {
        if (rows == 0) return;
        const model_extents& m = p_.model;
        for (std::uint32_t h = 0; h < m.lane_heads; ++h)
            simd::attend_rows<simd::default_arch, element_type>(
                queries_of(q, ref, h), m.dim, m.logits, {k + std::size_t{h} * m.dim, rows, m.dim, m.width()},
                {v + std::size_t{h} * m.dim, rows, m.dim, m.width()}, log_weight, head_partial(into, h),
                x_.attend);
    }

    /// The same for stored entries; bit g of `mask` stands for query g of the lane.
    /// `bias`: a number per record that joins its logit, or null. `next` is asked for meanwhile.
    void attend_records(const float* q, const lane_ref& ref, const records_view& keys,
                        const records_view& values, float* into, std::uint64_t mask, const float* bias,
                        coming_records& next) noexcept {
        const model_extents& m = p_.model;
        decltype(auto) codec = store_->unit_codec(ref.id);
        for (std::uint32_t h = 0; h < m.lane_heads; ++h) {
            // A mask has 64 bits: heads beyond them (layer-wide lanes) are attended by all their queries.
            const std::uint64_t queries = (h + 1) * m.group <= 64 ? mask >> (h * m.group) : simd::all_queries;
            const head_queries of_head{queries_of(q, ref, h), m.dim, m.logits, h};
            if constexpr (!Types::weighted) {
                record_attention(codec, of_head, keys, values)
                    .attend(bias, head_partial(into, h), x_.attend, queries, next);
            } else {
                for (std::size_t first = 0; first < keys.count; first += simd::attend_block) {
                    const std::size_t n = std::min(simd::attend_block, keys.count - first);
                    const records_view block = keys.slice(first, n);
                    float log_weight[simd::attend_block];
                    for (std::size_t i = 0; i < n; ++i)
                        log_weight[i] =
                            weight_behind(block.record(i), static_cast<std::uint32_t>(keys.stride)) +
                            (bias == nullptr ? 0.0F : bias[first + i]);
                    record_attention(codec, of_head, block, values.slice(first, n))
                        .attend(log_weight, head_partial(into, h), x_.attend, queries, next);
                }
            }
        }
    }

    /// `after`: of the unit whose turn is next, or nothing. It is asked for while the last page of this unit is attended, as
    /// each page is while the one before is: they lie anywhere among the frames.
    void attend_unit(const lane_ref& ref, const chosen_unit& c, const float* q, float* into, bool fresh,
                     coming_records after) noexcept {
        const lane l = store_->at(ref.id);
        const std::uint32_t u = c.unit;
        const pool& frames = store_->pool_of(ref.id);
        const auto& format = store_->unit_format();
        if (fresh)
            for (std::uint32_t h = 0; h < p_.model.lane_heads; ++h) reset(head_partial(into, h));
        const std::uint32_t entries = c.attended(store_->entries_of(l, u));
        std::uint32_t seen = 0;
        for (std::uint32_t f = l.residency(u).frames(); seen < entries; f = frames[f].next) {
            const std::byte* page = frames.bytes(f);
            const std::uint32_t rows = format.entries_in(page, entries - seen);
            const bool last = seen + rows >= entries;
            coming_records next = last ? after : coming(frames, frames[f].next, entries - seen - rows);
            // Queries that attend a part of the unit, and those that attend all of it.
            const std::uint64_t in_part = c.mask & c.cut;
            if (in_part != 0 && seen < c.first) {
                const std::uint32_t some = std::min(rows, c.first - seen);
                attend_records(q, ref, format.keys(page, 0, some), format.values(page, 0, some), into,
                               in_part, nullptr, next);
            }
            if (c.mask != in_part)
                attend_records(q, ref, format.keys(page, 0, rows), format.values(page, 0, rows), into,
                               c.mask & ~in_part, nullptr, next);
            seen += rows;
        }
    }

    /// Records of a page that `left` entries of its unit begin in. Nothing where a page itself says where its records are.
    [[gnu::always_inline]] coming_records coming(const pool& frames, std::uint32_t frame,
                                                 std::uint32_t left) const noexcept {
        if constexpr (Types::compressor::ragged) {
            return coming_records{};
        } else {
            const auto& format = store_->unit_format();
            const std::byte* page = frames.bytes(frame);
            const std::size_t records = format.records_of(format.entries_in(page, left));
            return {{format.key(page, 0), records * format.record.key},
                    {format.value(page, 0), records * format.record.value}};
        }
    }
    /// Of the first page of a unit that is there: what is attended of it.
    [[gnu::always_inline]] coming_records coming(const lane_ref& ref, const work_item& w) const noexcept {
        const lane l = store_->at(ref.id);
        const std::uint32_t frame = l.residency(w.unit).frames();
        if (frame == none || w.mask == 0) return {};
        return coming(store_->pool_of(ref.id), frame, w.attended(store_->entries_of(l, w.unit)));
    }

    /// What is attended of an item first, if it is there and its turn has not been.
    [[gnu::always_inline]] coming_records coming_item(std::span<const lane_ref> lanes, io_batch& f,
                                                      std::uint32_t i) noexcept {
        if (i >= f.items().size()) return {};
        const work_item& w = f.items()[i];
        return w.done || w.pending > 0 ? coming_records{} : coming(lanes[w.lane], w);
    }
    /// Asks memory for `n` items from `first` on.
    [[gnu::always_inline]] void ask_for_items(std::span<const lane_ref> lanes, io_batch& f,
                                              std::uint32_t first, std::uint32_t n) noexcept {
        for (std::uint32_t i = first; i < first + n; ++i) coming_item(lanes, f, i).ask_for_all_later();
    }

    /// How many small units are asked for ahead: 4 KiB of them, as each is through before memory has answered for the next.
    [[nodiscard]] std::uint32_t units_ahead() const noexcept {
        const std::size_t bytes = std::size_t{store_->unit_format().record.entry()} * p_.max_entries;
        return static_cast<std::uint32_t>(
            std::clamp<std::size_t>(4096 / std::max<std::size_t>(bytes, 1), 1, 16));
    }

    /// A small unit joins the tile that its lane's total attends as a whole; one that is full is attended.
    void gather_unit(std::span<const lane_ref> lanes, const work_item& w, const float* q) noexcept {
        if (x_.tile.lane() != w.lane) attend_tile(lanes, q);
        const lane_ref& ref = lanes[w.lane];
        const std::byte* slot = store_->pool_of(ref.id).bytes(store_->at(ref.id).residency(w.unit).frames());
        const std::uint32_t entries = store_->entries_of(store_->at(ref.id), w.unit);
        for (std::uint32_t row = 0, n = 0; row < entries && w.queries_of(row) != 0; row += n) {
            const std::uint32_t alike =
                row < w.first ? w.first : entries; // up to here the same queries attend
            n = std::min(alike - row, x_.tile.room());
            x_.tile.put(w.lane, store_->unit_format().entry(slot, row), w.queries_of(row), n);
            if (x_.tile.full()) attend_tile(lanes, q);
        }
    }
    void attend_tile(std::span<const lane_ref> lanes, const float* q) noexcept {
        auto& tile = x_.tile;
        if (tile.rows() == 0) return;
        const lane_ref& ref = lanes[tile.lane()];
        float* total = total_of(tile.lane());
        coming_records nothing; // units to come are asked for one by one as they join the tile
        if (tile.one_mask()) {
            attend_records(q, ref, tile.keys(), tile.values(), total, tile.any_mask(), nullptr, nothing);
        } else { // what one query has not chosen is absent for it
            float bias[simd::attend_block];
            for (std::uint64_t left = tile.any_mask(); left != 0;) {
                const std::uint64_t query = left & (~left + 1), same = tile.alike(query);
                tile.absence(query, bias);
                attend_records(q, ref, tile.keys(), tile.values(), total, same, bias, nothing);
                left &= ~same;
            }
        }
        tile.clear();
    }

    /// log of the sum of exp(logit) over what was attended exactly. lse: (HQ).
    void tell_lse(std::span<const lane_ref> lanes, std::span<float> lse) const noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i)
            for (std::uint32_t h = 0; h < p_.model.lane_heads; ++h) {
                const partial p = head_partial(total_of(i), h);
                for (std::uint32_t g = 0; g < p.group; ++g)
                    lse[lanes[i].in_layer * p_.model.lane_queries() + h * p.group + g] =
                        p.max[g] + std::log(p.sum[g]);
            }
    }

    /// The output of token t of a lane: its partials, once sink logits have joined them.
    void finish_lane(const lane_ref& ref, float* partials, const layer_input& in, std::size_t t,
                     const tensor_span& out) const noexcept {
        const model_extents& m = p_.model;
        for (std::uint32_t h = 0; h < m.lane_heads; ++h) {
            const partial p = head_partial(partials, h);
            const std::size_t head = std::size_t{ref.in_layer} * m.lane_queries() + std::size_t{h} * m.group;
            if (const float* sinks = in.sinks_of(head)) add_sink_logits(p, sinks);
            finish(p, out, (t * m.query_heads() + head) * m.dim, m.dim);
        }
    }

  private:
    /// What stands in for the units of a lane that a query did not attend joins the softmax of `into`.
    void estimate_rest(std::span<const lane_ref> lanes, std::uint32_t i, std::span<const chosen_unit> chosen,
                       const float* q, float* into, bool priced) noexcept {
        if constexpr (estimates<estimator>) {
            std::span<const float> score;
            if constexpr (reads_scores<estimator>)
                if (const units_view u = p_.growth->view(lanes[i].id); u.count > 0)
                    score = p_.choose->scores(q + p_.model.query_offset(lanes[i].in_layer), u);
            for (const chosen_unit& c : chosen) x_.attended[c.unit] = c.mask;
            for_heads(lanes[i], q, [&](estimator_input in, std::uint32_t h) {
                in.score = score;
                in.priced = priced;
                p_.rest->add(in, head_partial(into, h));
            });
            for (const chosen_unit& c : chosen) x_.attended[c.unit] = 0;
        }
    }

    store* store_ = nullptr;
    step_parts<Types> p_{};
    scratch x_{};
};

}} // namespace kvtl::v0
