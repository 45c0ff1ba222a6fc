// How entries come to a shard's units other than token by token: prompts, further turns, and what retention
// kept of a prompt.
//
// What:   clusters take a prompt at its end, lane by lane and segment by segment in the memory of the pool's frames;
//         chunks before the last are staged. Fixed groups take a prompt as many tokens.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/retrieval_parts.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> class retrieval_prompts {
  public:
    using types = Types;
    using element_type = typename types::element_type;
    using pool = typename types::pool;
    using lane = typename types::lane;
    using runner = step_runner<types>;

    explicit retrieval_prompts(retrieval_parts<types>& parts) noexcept : r_(parts) {}

    [[nodiscard]] status prefill(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                 std::uint32_t tokens, const tensor_span& out, bool last) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty()) return {};
        if (h == call_half::prepare) {
            if (r_.io.gave_up()) return r_.io.no_answer();
            r_.begin_call();
            r_.ahead.release_all();
        }
        if (!types::sequential && r_.store.at(lanes[0].id).state().tokens > 0) {
            if (h == call_half::prepare) {
                if (status s = r_.bring(slot, layer); !s) return s;
                r_.announce_next(slot, layer);
            }
            return prefill_turn(h, lanes, in, tokens, out);
        }
        status done = prefill_prompt(h, slot, layer, lanes, in, tokens, out, last);
        if (h == call_half::commit && done.ok() && last) r_.look_at_prompt(slot, layer, lanes, in, tokens);
        return done;
    }

    /// The attention of prefill(). Nothing stays.
    [[nodiscard]] status attend_only(call_half h, std::uint32_t slot, std::uint32_t layer,
                                     const layer_input& in, std::uint32_t tokens,
                                     const tensor_span& out) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty() || h == call_half::commit) return {};
        if (h == call_half::undo) return r_.restore(r_.before), status{};
        if (r_.io.gave_up()) return r_.io.no_answer();
        r_.begin_call();
        r_.ahead.release_all();
        r_.before = r_.stats;
        const lane_state& s = r_.store.at(lanes[0].id).state();
        if (types::sequential || s.tokens > 0) {
            if (status e = r_.check_complete(lanes); !e) return e;
            if (status e = r_.bring(slot, layer); !e) return e;
            return attend_turn(lanes, in, tokens, out);
        }
        if constexpr (!types::sequential) {
            if (status e = r_.lend_to_prompt(slot, layer); !e) return e;
            pool& frames = r_.pool_for(lanes);
            if (r_.store.has_failed_writes(frames)) return r_.store.write_error(frames);
            if (status e = r_.prompt.begin(frames, s.staged + tokens); !e) return e;
            for (const lane_ref& ref : lanes)
                if (status e =
                        r_.prompt.attend(r_.prompt.rows_of(ref.id, ref.in_layer, in, s.staged), tokens, out);
                    !e)
                    return e;
        }
        return {};
    }

    /// What retention kept of a layer's prompt becomes units, as a prompt of just these entries would. Kept
    /// is a retention_stage; q: (chunk, HQ, D), the prompt's last queries, may be empty. After an error the
    /// lanes are empty and the call may be repeated.
    template <class Kept>
    [[nodiscard]] status take_over(std::uint32_t slot, std::uint32_t layer, Kept& kept, const layer_input& in,
                                   std::uint32_t chunk) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        r_.begin_call();
        r_.ahead.release_all();
        std::uint32_t most = 0;
        for (std::uint32_t i = 0; i < lanes.size(); ++i) most = std::max(most, kept.rows(slot, layer, i));
        if (status s = take_rows(slot, layer, lanes, kept, most, in, chunk); !s) return s;
        for (std::uint32_t i = 0; i < lanes.size(); ++i)
            r_.store.at(lanes[i].id).state().dropped = kept.tokens(slot, layer) - kept.rows(slot, layer, i);
        r_.look_at_prompt(slot, layer, lanes, in, chunk);
        r_.note_storage();
        return {};
    }

  private:
    status prefill_prompt(call_half h, std::uint32_t slot, std::uint32_t layer,
                          std::span<const lane_ref> lanes, const layer_input& in, std::uint32_t tokens,
                          const tensor_span& out, bool last) noexcept requires(!types::sequential) {
        const std::uint32_t before = r_.store.at(lanes[0].id).state().staged, total = before + tokens;
        if (h == call_half::undo) return forget_prompt(lanes, before, last ? lanes.size() : 0), status{};
        if (h == call_half::commit) {
            for (const lane_ref& ref : lanes) {
                if (last)
                    r_.prompt.commit(r_.store.at(ref.id), total);
                else
                    r_.store.at(ref.id).state().staged = total;
            }
            return {};
        }
        if (last)
            if (status s = r_.check_last_queries(in); !s) return s;
        if (status s = r_.lend_to_prompt(slot, layer); !s) return s;
        pool& frames = r_.pool_for(lanes);
        if (r_.store.has_failed_writes(frames)) return r_.store.write_error(frames);
        if (status s = r_.prompt.begin(frames, total); !s) return s;
        if (last) r_.store.make_room_for_prompt(lanes[0].id, r_.cluster.max_units(total));
        status done;
        std::uint32_t organised = 0;
        for (const lane_ref& ref : lanes) {
            const auto rows = r_.prompt.rows_of(ref.id, ref.in_layer, in, before);
            if (!out.empty()) done = r_.prompt.attend(rows, tokens, out);
            if (done.ok())
                done = last ? r_.prompt.organise(ref.id, ref.in_layer, in, total, tokens, rows)
                            : r_.prompt.stage(r_.store.at(ref.id), before, total, rows);
            if (!done) break;
            ++organised;
            r_.note_storage();
        }
        if (!done) forget_prompt(lanes, before, last ? organised : 0);
        return done;
    }
    /// Lanes are as they were before a chunk: earlier ones are still staged.
    void forget_prompt(std::span<const lane_ref> lanes, std::uint32_t staged,
                       std::size_t organised) noexcept {
        for (const lane_ref& ref : lanes.first(organised)) r_.prompt.forget_units(ref.id);
        for (const lane_ref& ref : lanes) r_.prompt.forget_staged(r_.store.at(ref.id), staged);
    }

    status attend_turn(std::span<const lane_ref> lanes, const layer_input& in, std::uint32_t tokens,
                       const tensor_span& out) noexcept {
        for (const lane_ref& ref : lanes)
            if (status s = r_.step.attend_turn(ref, in, tokens, out); !s) {
                r_.restore(r_.before);
                return s;
            }
        return {};
    }
    status prefill_turn(call_half h, std::span<const lane_ref> lanes, const layer_input& in,
                        std::uint32_t tokens, const tensor_span& out) noexcept {
        if (h == call_half::undo) return r_.restore(r_.before), status{};
        if (h == call_half::prepare) {
            if (status s = r_.accept(lanes, tokens); !s) return s;
            r_.before = r_.stats;
            return out.empty() ? status{} : attend_turn(lanes, in, tokens, out);
        }
        const bool first = r_.store.at(lanes[0].id).state().tokens == 0;
        for (const lane_ref& ref : lanes)
            if (status s = append_turn(ref, in, tokens); !s) {
                r_.give_up_turn(lanes, first);
                if (first) return s;
                return status::failure(s.code(), "prefill: the turn is cut short, end the sequence: %s",
                                       s.what());
            }
        r_.note_storage();
        return {};
    }

    /// T further tokens of a lane. One that becomes long enough to be clustered on the way is, before it outgrows
    /// the memory for that.
    [[nodiscard]] status append_turn(const lane_ref& ref, const layer_input& in,
                                     std::uint32_t tokens) noexcept {
        const auto rows = r_.step.rows_of(ref, in);
        for (std::uint32_t done = 0, some = 0; done < tokens; done += some) {
            some = tokens - done;
            if (done > 0)
                if (status s = r_.cluster_ready({&ref, 1}); !s) return s;
            if (types::clusterer::clusters_prompt && !r_.store.at(ref.id).state().clustered)
                some = std::min(some, prompt_builder<types>::unfounded_rows);
            const auto from_here = [&](std::size_t t) { return rows(done + t); };
            if (status s = r_.step.append_turn(ref, some, r_.plan.buffer_limit, from_here); !s) return s;
        }
        return {};
    }

    template <class Kept>
    [[nodiscard]] status take_rows(std::uint32_t slot, std::uint32_t layer, std::span<const lane_ref> lanes,
                                   Kept& kept, std::uint32_t most, const layer_input& in,
                                   std::uint32_t chunk) noexcept requires(!types::sequential) {
        pool& frames = r_.pool_for(lanes);
        if (r_.store.has_failed_writes(frames)) return r_.store.write_error(frames);
        if (status s = r_.lend_to_prompt(slot, layer); !s) return s;
        if (status s = r_.prompt.begin(frames, most); !s) return s;
        r_.store.make_room_for_prompt(lanes[0].id, r_.cluster.max_units(most));
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const std::uint32_t n = kept.rows(slot, layer, i);
            const auto rows = [&](std::uint32_t first, std::uint32_t end) {
                kept.visit(slot, layer, i, first, end,
                           [&](std::uint32_t row, std::uint32_t head, const auto* k, const auto* v,
                               const entry_facts& facts) { r_.prompt.put(row, head, k, v, facts); });
                return status{};
            };
            r_.prompt.next_lane();
            if (status s = r_.prompt.organise(lanes[i].id, lanes[i].in_layer, in, n, chunk, rows); !s) {
                for (std::uint32_t j = 0; j < i; ++j) r_.prompt.forget_units(lanes[j].id);
                return s;
            }
        }
        for (std::uint32_t i = 0; i < lanes.size(); ++i)
            r_.prompt.commit(r_.store.at(lanes[i].id), kept.rows(slot, layer, i));
        return {};
    }
    template <class Kept>
    [[nodiscard]] status take_rows(std::uint32_t slot, std::uint32_t layer, std::span<const lane_ref> lanes,
                                   Kept& kept, std::uint32_t most, const layer_input& in,
                                   std::uint32_t chunk) noexcept requires(types::sequential) {
        if (status s = r_.accept(lanes, most); !s) return s;
        const std::size_t width = r_.plan.model.width(), dim = r_.plan.model.dim;
        const auto row = [&](std::size_t t) -> typename runner::entry_source {
            const tensor_view k = r_.memory.moving_k, v = r_.memory.moving_v;
            return {k.subspan(t * width, width), v.subspan(t * width, width), r_.memory.moving_facts[t]};
        };
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const std::uint32_t n = kept.rows(slot, layer, i);
            for (std::uint32_t done = 0, some = 0; done < n; done += some) {
                some = std::min(n - done, r_.plan.moving_rows);
                kept.visit(slot, layer, i, done, done + some,
                           [&](std::uint32_t t, std::uint32_t head, const auto* k, const auto* v,
                               const entry_facts& facts) {
                               r_.memory.moving_facts[t] = facts;
                               simd::decode(k, &r_.memory.moving_k[t * width + head * dim], dim);
                               simd::decode(v, &r_.memory.moving_v[t * width + head * dim], dim);
                           });
                if (done == 0)
                    fit_lane<float>(lanes[i], {r_.memory.moving_k.data(), some, width, width},
                                    {r_.memory.moving_v.data(), some, width, width}, in, chunk);
                if (status s = r_.step.append_turn(lanes[i], some, r_.plan.buffer_limit, row); !s) {
                    r_.forget(lanes);
                    return s;
                }
            }
        }
        return {};
    }

    /// Fixed groups: a prompt is nothing but many tokens. A first chunk that fails leaves empty lanes.
    status prefill_prompt(call_half h, std::uint32_t, std::uint32_t, std::span<const lane_ref> lanes,
                          const layer_input& in, std::uint32_t tokens, const tensor_span& out,
                          bool last) noexcept requires(types::sequential) {
        const lane_state before = r_.store.at(lanes[0].id).state();
        const bool first = before.tokens == 0;
        if (h == call_half::prepare)
            if (status s = r_.check_last_queries(in, first, last); !s) return s;
        if (h == call_half::prepare && first && types::fits_first_rows)
            if (status s = in.k.visit([&](const auto* k) { return fit_lanes(lanes, in, k, tokens); }); !s)
                return s;
        status done = prefill_turn(h, lanes, in, tokens, out);
        if (first && h != call_half::commit && (h == call_half::undo || !done)) r_.forget(lanes);
        if (h == call_half::commit && done.ok()) // chunks become entries as they come
            for (const lane_ref& ref : lanes)
                r_.store.at(ref.id).state().prompt_open = (first || before.prompt_open) && !last;
        return done;
    }

    /// k: those of the input, as what they are.
    template <element E>
    status fit_lanes(std::span<const lane_ref> lanes, const layer_input& in, const E* k,
                     std::uint32_t tokens) noexcept {
        const E* const v = in.v.template as<E>();
        if (v == nullptr)
            return status::failure(errc::invalid_argument,
                                   "prefill: k and v are of different types; valid: both float, both f16 or "
                                   "both bf16");
        const std::size_t width = r_.plan.model.width(),
                          token = std::size_t{r_.plan.model.kv_heads} * r_.plan.model.dim;
        const auto rows = [&](const tensor_view& all, const E* p, std::size_t at) {
            return rows_view<E>{p + all.place(at), tokens, width, all.row() == 0 ? token : all.stride()};
        };
        for (const lane_ref& ref : lanes) {
            const std::size_t at = r_.plan.model.key_offset(ref.in_layer);
            fit_lane<E>(ref, rows(in.k, k, at), rows(in.v, v, at), in, tokens);
        }
        return {};
    }

    /// Index and codec fit their codebook or basis to a lane's first entries; the slots, empty now, lend them
    /// their memory. `in`: the queries of the last `chunk` tokens.
    template <element E>
    void fit_lane(const lane_ref& ref, rows_view<E> keys, rows_view<E> values, const layer_input& in,
                  std::uint32_t chunk) noexcept {
        if (!types::fits_first_rows) return;
        pool& slots = r_.store.pool_of(ref.id);
        r_.store.evict_all(slots);
        slots.note_used(static_cast<std::uint32_t>(
            std::min<std::size_t>(slots.size(), r_.plan.fit_bytes / slots.frame_bytes() + 1)));
        if constexpr (fits_first_keys<typename types::index>) { // of what it will score
            const std::size_t sinks = std::min<std::size_t>(r_.plan.sizes.sinks, keys.count);
            r_.index_state.fit(r_.sums.index_of(ref.id), keys.slice(sinks, keys.count - sinks),
                               slots.memory());
        }
        r_.store.fit_codec(ref.id, keys, values, r_.plan.model.queries_of(ref.in_layer).of_chunk(in, chunk),
                           slots.memory());
    }

    retrieval_parts<types>& r_;
};

}} // namespace kvtl::v0
