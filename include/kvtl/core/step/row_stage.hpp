// The part of a shard whose layers keep their entries in memory and attend all that they keep.
//
// What:   a lane has plain rows, in order and side by side: of the first tokens (sinks) and of the last ones. When there is
//         no room behind them, the oldest but the sinks leave and what is left moves up. In a layer that slides they are
//         dropped, those that no query can see any more and no rewind can bring back, in whole blocks of 64 tokens; so a
//         query's result has the same bits however a prompt is cut into chunks. In other layers they become records of the
//         lane's chain. A lane whose rows have room for all tokens (`full`) is the plain case of both.
// Prompt: queries of a chunk see the chunk's own entries as they came, and older ones as they are kept.
// Cost:   a step attends all rows and records; a row moves once in some 16 tokens or more, and is encoded once. A prompt's
//         chunk decodes the records that precede it once for every 64 of its tokens.
// Inputs: where records are made of the layer's input, each row has its record beside it from the start.
// Errors: a call for whose records no block is free changes no token. Rows that left for earlier tokens of an attend() stay
//         records.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/core/call_half.hpp>
#include <kvtl/core/plan/row_plan.hpp>
#include <kvtl/core/step/attend_records.hpp>
#include <kvtl/core/step/phase_clock.hpp>
#include <kvtl/core/step/row_attention.hpp>
#include <kvtl/core/store/record_chain.hpp>
#include <kvtl/core/store/record_rows.hpp>
#include <kvtl/policies/support/plain_rows.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/save/part_stream.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstring>
#include <span>

namespace kvtl { inline namespace v0 {

/// E: of plain rows. Codec: of records.
template <element E, class Codec> class row_stage {
  public:
    struct lane {
        std::uint32_t tokens = 0; ///< of the sequence
        std::uint32_t gone = 0;   ///< of these, those that are no plain rows any more
        bool prompt_open = false; ///< its last chunk is to come
        record_chain records;
    };
    /// Records are made of the layer's input, which is there only when a token arrives. They wait beside its row.
    static constexpr bool of_inputs = requires { &Codec::encode_input; };
    struct memory {
        std::span<row_layer> layers;
        std::span<lane> lanes;          ///< (seats, layers, lanes of a layer)
        std::span<std::uint32_t> links; ///< (blocks) of the pool
        std::span<E> rows;              ///< (seats, lanes of a layer, rows of all layers, K and V, width)
        std::span<float> query;         ///< (heads, G, D) of a lane, where they come in 16 bits
        std::span<float> partials;      ///< (heads) of a lane
        std::span<float> attend, causal;
        std::span<E> tile_k, tile_v; ///< (64 or more, width) rows on their way to records, and back
        /// Of queries between two tiles: (heads, 64, G, D + 2), or of 128 tokens where `out` has their values.
        std::span<float> sums;
        std::span<std::byte> inputs;     ///< (seats, lanes of a layer, recorded rows, record) that wait
        std::span<std::byte> record;     ///< of one entry
        std::span<std::byte> codec;      ///< tables that the codec's lanes have in common
        std::span<std::uint32_t> before; ///< (lanes of a layer) records that a lane had before the call

        static memory take(const row_plan& r, const cache_plan& p, std::uint32_t shard, carver& metadata,
                           carver& window, carver& scratch) noexcept {
            memory m;
            if (r.layers.empty()) return m;
            const std::size_t seats = seats_of(p, shard), lanes = lanes_of(r, p, shard),
                              width = std::size_t{r.lane_heads} * p.model.dim, group = p.model.group,
                              dim = p.model.dim;
            m.layers = metadata.take<row_layer>(r.layers.size());
            m.lanes = metadata.take<lane>(seats * r.layers.size() * lanes);
            m.links = metadata.take<std::uint32_t>(r.blocks);
            m.before = metadata.take<std::uint32_t>(lanes);
            m.rows = window.take<E>(seats * lanes * r.rows() * 2 * width);
            m.query = scratch.take<float>(group * width);
            m.partials = scratch.take<float>(r.lane_heads * partial_floats(group, dim));
            m.attend = scratch.take<float>(simd::attend_scratch_floats(group));
            m.causal = scratch.take<float>(simd::causal_scratch_floats(dim));
            if (r.recorded() == 0) return m;
            if (of_inputs)
                m.inputs = window.take<std::byte>(seats * lanes * r.recorded_rows() * r.record.key);
            const std::size_t more = (p.stretch_bytes - cache_plan::least_stretch) / (2 * width * sizeof(E)),
                              tile = row_plan::block + more / row_plan::block * row_plan::block;
            m.tile_k = scratch.take<E>(tile * width);
            m.tile_v = scratch.take<E>(tile * width);
            m.sums = scratch.take<float>(r.lane_heads * row_plan::block * group *
                                         std::max<std::size_t>(4, dim + 2));
            m.record = scratch.take<std::byte>(r.record.entry());
            m.codec = scratch.take<std::byte>(p.codec_shared_bytes);
            return m;
        }
    };

    /// `blocks`: memory of the shard's records; the rest is carved from `fixed`.
    template <class Config>
    [[gnu::cold]] void init(const Config& c, const row_plan& r, const cache_plan& p, std::uint32_t shard,
                            carver& fixed, std::span<std::byte> blocks) noexcept {
        plan_ = p;
        shard_ = shard;
        lane_heads_ = r.lane_heads;
        x_ = memory::take(r, p, shard, fixed, fixed, fixed);
        std::copy(r.layers.begin(), r.layers.end(), x_.layers.begin());
        lane_rows_ = r.rows(), lane_inputs_ = r.recorded_rows();
        const record_shape shape{lane_heads_, p.model.dim};
        if constexpr (std::constructible_from<Codec, const Config&, record_shape>)
            codec_ = Codec(c, shape);
        else
            codec_ = Codec(shape);
        if (p.time_phases) clock_ = phase_clock(stats_.phase_ns);
        if (r.recorded() == 0) return;
        if constexpr (requires { codec_.share(c, p.sizes.max_tokens, x_.codec); })
            codec_.share(c, p.sizes.max_tokens, x_.codec);
        pool_ = record_pool(r.format(), blocks, x_.links);
    }
    /// Hands the codec what was fitted offline, before the first key. It may refuse it.
    [[nodiscard, gnu::cold]] status bind(const calibration_view& calibration) {
        // What the first shard takes all others take.
        return bind_calibration(codec_, calibration, shard_ == 0);
    }

    [[nodiscard]] status prefill(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                 std::uint32_t tokens, const tensor_span& out, bool last) noexcept {
        const row_layer& r = x_.layers[layer];
        if (h == call_half::undo) return give_room_back(slot, layer), status{};
        // Queries see what leaves for them as it was, so they come first; where all are rows these are attended in place.
        const auto in_place = [&](const row_lane& l) {
            return r.slides() || (l->records.rows == 0 && r.leaving(l.held(), tokens) == 0);
        };
        if (h == call_half::prepare) {
            if (status s = check_input(r, in, tokens); !s) return s;
            if (!out.empty())
                for_each_lane(slot, layer, [&](row_lane& l) {
                    if (!in_place(l)) attend_chunk(l, in, tokens, out);
                });
            return make_room("prefill", slot, layer, in, tokens);
        }
        for_each_lane(slot, layer, [&](row_lane& l) {
            const bool attends = in_place(l) && !out.empty();
            l->prompt_open =
                !last && (l->tokens == 0 || l->prompt_open); // a further turn needs no last chunk
            for (std::uint32_t t = 0, n = 0; t < tokens; t += n) {
                n = r.slides() ? std::min(row_plan::block, tokens - t) : tokens;
                take(l, in, t, n);
                if (attends)
                    attend_prompt(queries_of(l), in.rows(t, n, tokens), l.held() - n, n, l.keys, l.values,
                                  rows_of(out, t, n, tokens), x_.causal,
                                  r.slides() ? r.reach : simd::no_reach);
            }
        });
        return {};
    }

    /// The attention of prefill(), in a layer that does not slide. Nothing stays.
    [[nodiscard]] status attend_only(call_half h, std::uint32_t slot, std::uint32_t layer,
                                     const layer_input& in, std::uint32_t tokens,
                                     const tensor_span& out) noexcept {
        if (h != call_half::prepare) return {};
        for_each_lane(slot, layer, [&](row_lane& l) {
            if (l->records.rows > 0 || x_.layers[layer].leaving(l.held(), tokens) > 0)
                return attend_chunk(l, in, tokens, out);
            take(l, in, 0, tokens);
            attend_prompt(queries_of(l), in, l.held() - tokens, tokens, l.keys, l.values, out, x_.causal);
            l->tokens -= tokens;
        });
        return {};
    }

    /// The prompt is complete, so that a token may come.
    [[nodiscard]] status ready(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept {
        status open;
        for_each_lane(slot, layer, [&](row_lane& l) {
            if (l->prompt_open)
                open =
                    status::failure(errc::invalid_argument,
                                    "%s: the prompt of this sequence is not complete: %u tokens wait for a "
                                    "prefill with last_chunk = true",
                                    call, l->tokens);
        });
        return open;
    }

    /// T decoded tokens, one after the other; the last one is committed, with those of a layer that slides, where nothing fails.
    /// When one fails, those before it are given back; all are unless they stay. What has become a record for the sake of
    /// tokens before the last remains one.
    [[nodiscard]] status attend(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                std::uint32_t tokens, const tensor_span& out, bool stays) noexcept {
        if (!plan_.division.owns(slot, shard_)) return {};
        const bool slides = x_.layers[layer].slides();
        const auto give_back = [&](std::uint32_t taken) {
            rewind(slot, layer, taken);
            stats_.chosen_bytes = stats_.resident_chosen_bytes = chosen_before_;
        };
        if (h == call_half::undo) {
            give_room_back(slot, layer);
            if (!slides) give_back(tokens - 1);
            return {};
        }
        if (h == call_half::prepare) {
            if (status s = check_input(x_.layers[layer], in, tokens); !s) return s;
            chosen_before_ = stats_.chosen_bytes;
            if (slides) return {};
        }
        for (std::uint32_t t = h == call_half::commit && !slides ? tokens - 1 : 0; t < tokens; ++t) {
            const layer_input one = in.rows(t, 1, tokens);
            if (h == call_half::prepare) {
                if (status s = make_room("attend", slot, layer, one, 1); !s) return give_back(t), s;
                if (t + 1 == tokens) return {};
            }
            const phase_clock::span timed(&clock_, &phase_times::append);
            for_each_lane(slot, layer, [&](row_lane& l) {
                timed.enter(&phase_times::append);
                take(l, one, 0, 1);
                timed.enter(&phase_times::attend);
                attend_token(l, in, t, out);
            });
        }
        stats_.steps += tokens;
        if (!stays) rewind(slot, layer, tokens);
        return {};
    }

    [[nodiscard]] status append(call_half h, std::uint32_t slot, std::uint32_t layer,
                                const layer_input& in) noexcept {
        if (h == call_half::undo) return give_room_back(slot, layer), status{};
        if (h == call_half::prepare) {
            if (status s = check_input(x_.layers[layer], in, 1); !s) return s;
            return make_room("append", slot, layer, in, 1);
        }
        for_each_lane(slot, layer, [&](row_lane& l) { take(l, in, 0, 1); });
        return {};
    }

    /// visit(kv head, keys, values) of what the next query sees. Records that are no plain rows are decoded for the visit and
    /// last as long as it does.
    template <class Visit> void views(std::uint32_t slot, std::uint32_t layer, Visit&& visit) noexcept {
        const std::size_t dim = plan_.model.dim;
        for_each_lane(slot, layer, [&](row_lane& l) {
            const auto show = [&](const E* k, const E* v, std::size_t n) {
                for (std::uint32_t h = 0; n > 0 && h < lane_heads_; ++h)
                    visit(std::size_t{l.head} + h, rows_view<E>{k + h * dim, n, dim, width()},
                          rows_view<E>{v + h * dim, n, dim, width()});
            };
            if constexpr (std::derived_from<Codec, plain_rows<E>>) {
                pool_.visit(l->records, [&](const records_view& keys, const records_view& values, auto) {
                    show(reinterpret_cast<const E*>(keys.data), reinterpret_cast<const E*>(values.data),
                         keys.count);
                });
            } else {
                auto at = record_pool::begin(l->records);
                for (std::uint32_t first = 0, n = 0; first < l->records.rows; first += n) {
                    n = std::min(row_plan::block, l->records.rows - first);
                    decode(l, at, n, 0);
                    show(x_.tile_k.data(), x_.tile_v.data(), n);
                }
            }
            const std::uint32_t from = first_seen(l);
            show(l.key(from), l.value(from), l.held() - from);
        });
    }

    /// What a retention has kept of a layer's prompt: sinks and window as rows, the rest as records. Kept is a
    /// retention_stage; what the prompt's last chunk was does not matter here. After an error the lanes are empty and the
    /// call may be repeated.
    template <class Kept>
    [[nodiscard]] status take_over(std::uint32_t slot, std::uint32_t layer, Kept& kept, const layer_input&,
                                   std::uint32_t) noexcept {
        const row_layer& r = x_.layers[layer];
        bool fits = true;
        for_each_lane(slot, layer, [&](row_lane& l) {
            const std::uint32_t n = kept.rows(slot, layer, l.index), sinks = std::min(n, r.sinks),
                                recent = std::min(n - sinks, r.keep - r.sinks), end = n - recent;
            const auto rows = [&](std::uint32_t first, std::uint32_t some, E* k, E* v, auto&& note) {
                kept.visit(slot, layer, l.index, first, first + some,
                           [&](std::uint32_t row, std::uint32_t head, const E* key, const E* value,
                               const entry_facts& facts) {
                               const std::size_t at = row * width() + std::size_t{head} * plan_.model.dim;
                               std::copy_n(key, plan_.model.dim, k + at);
                               std::copy_n(value, plan_.model.dim, v + at);
                               note(row, facts.position);
                           });
            };
            const auto nothing = [](std::uint32_t, std::uint32_t) {};
            rows(0, sinks, l.key(0), l.value(0), nothing);
            rows(end, recent, l.key(sinks), l.value(sinks), nothing);
            std::uint32_t position[row_plan::block];
            for (std::uint32_t first = sinks, some = 0; fits && first < end; first += some) {
                some = std::min(row_plan::block, end - first);
                rows(first, some, x_.tile_k.data(), x_.tile_v.data(),
                     [&](std::uint32_t row, std::uint32_t token) { position[row] = token; });
                for (std::uint32_t i = 0; fits && i < some; ++i)
                    fits = push(l, &x_.tile_k[i * width()], &x_.tile_v[i * width()], position[i]);
            }
            l->tokens = kept.tokens(slot, layer);
            l->gone = l->tokens - sinks - recent;
        });
        if (fits) return {};
        for_each_lane(slot, layer, [&](row_lane& l) { forget(*l); });
        return no_block("prefill");
    }

    [[nodiscard]] status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n,
                                      const rewind_argument& asked) noexcept {
        status refused;
        for_each_lane(slot, layer, [&](row_lane& l) {
            const row_layer& r = x_.layers[layer];
            if (r.slides()) {
                const std::uint32_t seen = r.reach - 1; // by the query that comes next
                const std::uint32_t most = l->gone == 0 ? l->tokens : (l.held() > seen ? l.held() - seen : 0);
                if (n > most)
                    refused = status::failure(
                        errc::out_of_range,
                        "%s: %s is %zu; layer %u, which slides over %u tokens, has %u and can give up %u",
                        asked.call, asked.name, asked.value, r.number, seen + 1, l->tokens, most);
            } else if (const std::uint32_t most = l->gone == l->records.rows ? l->tokens : recent(l);
                       n > most)
                refused = status::failure(
                    errc::out_of_range, "%s: %s is %zu; layer %u has %u tokens and can give up %u",
                    asked.call, asked.name, asked.value, plan_.numbers.of(layer), l->tokens, most);
        });
        return refused;
    }
    void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept {
        for_each_lane(slot, layer, [&](row_lane& l) {
            const std::uint32_t records =
                std::min(n - std::min(n, recent(l)), l->records.rows); // behind them only sinks are left
            if (records > 0) pool_.cut(l->records, l->records.rows - records);
            l->gone -= records;
            l->tokens -= n;
            l->prompt_open = l->prompt_open && l->tokens != 0;
        });
    }
    void end(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < x_.layers.size(); ++layer)
            for_each_lane(slot, layer, [&](row_lane& l) { forget(*l); });
    }

    /// What the lane that begins with a KV head of the model is, to or from a stream (core/save/sequence_parts.hpp). Nothing
    /// where it begins with another one.
    void parts(part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t head) noexcept {
        for_each_lane(slot, layer, [&](row_lane& l) {
            if (l.head == head) lane_parts(io, l);
        });
    }

    /// A branch will copy this layer: the blocks for its records are kept for it, or none.
    [[nodiscard]] status promise_copy(std::uint32_t from, std::uint32_t layer) noexcept {
        return pool_.promise(blocks_of(from, layer)) ? status{} : no_block("fork");
    }
    /// It does not any more.
    void withdraw_copy(std::uint32_t from, std::uint32_t layer) noexcept {
        pool_.withdraw(blocks_of(from, layer));
    }
    /// The layer of a branch, which is empty, becomes what its parent's is.
    status copy_layer(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        for_each_lane(from, layer, [&](const row_lane& parent) {
            for_each_lane(to, layer, [&](row_lane& l) {
                if (l.index != parent.index) return;
                *l = *parent;
                l->records = pool_.copy(parent->records);
                std::copy_n(parent.keys, parent.held() * width(), l.keys);
                std::copy_n(parent.values, parent.held() * width(), l.values);
                std::copy_n(parent.inputs, parent.waiting() * input_bytes(), l.inputs);
            });
        });
        return {};
    }

    /// `none` where the shard has no lane of the sequence.
    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept {
        std::uint32_t n = none;
        for_each_lane(slot, layer, [&](row_lane& l) { n = l->tokens; });
        return n;
    }
    /// Of all heads of a layer.
    [[nodiscard]] std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) noexcept {
        std::size_t entries = 0;
        for_each_lane(slot, layer, [&](row_lane& l) { entries += std::size_t{l.held()} + l->records.rows; });
        return entries * lane_heads_;
    }
    [[nodiscard]] const statistics& counted() const noexcept { return stats_; }
    [[nodiscard]] statistics stats() const noexcept {
        statistics s = stats_;
        const std::size_t per_layer = x_.before.size();
        for (std::size_t i = 0; i < x_.lanes.size(); ++i)
            add_held(s, x_.lanes[i], waits(x_.layers[i / per_layer % x_.layers.size()]));
        s.resident_bytes_peak = std::uint64_t{pool_.used_peak()} * pool_.format().page_bytes;
        return s;
    }
    /// Adds what a layer holds now.
    void add_held(statistics& s, std::uint32_t slot, std::uint32_t layer) const noexcept {
        for_each_lane(slot, layer, [&](const row_lane& l) { add_held(s, *l, waits(x_.layers[layer])); });
    }
    [[nodiscard]] const record_pool& pool() const noexcept { return pool_; }

  private:
    void add_held(statistics& s, const lane& l, bool inputs) const noexcept {
        const std::uint64_t held = l.tokens - l.gone;
        s.kept_entries += (held + l.records.rows) * lane_heads_;
        s.kept_bytes += held * (2 * width() * sizeof(E) + (inputs ? input_bytes() : 0)) + l.records.bytes;
    }
    /// Rows of the layer have their records beside them.
    [[nodiscard]] bool waits(const row_layer& r) const noexcept {
        return of_inputs && !r.slides() && !x_.inputs.empty();
    }
    /// Of the records of a layer.
    [[nodiscard]] std::uint32_t blocks_of(std::uint32_t slot, std::uint32_t layer) const noexcept {
        std::uint32_t n = 0;
        for_each_lane(slot, layer, [&](const row_lane& l) { n += pool_.blocks_of(l->records); });
        return n;
    }
    /// A lane of a call.
    struct row_lane {
        lane* state;
        std::uint32_t layer;
        std::uint32_t index; ///< of the shard's lanes of the layer
        std::uint32_t head;  ///< its first KV head
        E *keys, *values;    ///< (capacity, width)
        std::size_t width;
        std::byte* inputs; ///< (capacity) records that wait; null where there are none

        [[nodiscard]] lane* operator->() const noexcept { return state; }
        [[nodiscard]] lane& operator*() const noexcept { return *state; }
        [[nodiscard]] std::uint32_t held() const noexcept { return state->tokens - state->gone; }
        [[nodiscard]] E* key(std::size_t row) const noexcept { return keys + row * width; }
        [[nodiscard]] E* value(std::size_t row) const noexcept { return values + row * width; }
        /// Records that wait: one per row, or none.
        [[nodiscard]] std::size_t waiting() const noexcept { return inputs == nullptr ? 0 : held(); }
    };

    // ---------------------------------------------------------------------------------------- places
    /// Sequences that a shard has lanes of.
    [[nodiscard]] static std::uint32_t seats_of(const cache_plan& p, std::uint32_t shard) noexcept {
        return p.division.by_sequence ? (p.max_sequences + p.division.shards - 1 - shard) / p.division.shards
                                      : p.max_sequences;
    }
    /// Lanes of a layer.
    [[nodiscard]] static std::uint32_t lanes_of(const row_plan& r, const cache_plan& p,
                                                std::uint32_t shard) noexcept {
        return p.division.lanes_of(p.model.kv_heads / r.lane_heads, shard);
    }
    /// f(lane) for the shard's lanes of a layer.
    template <class F> void for_each_lane(std::uint32_t slot, std::uint32_t layer, F&& f) const noexcept {
        if (!plan_.division.owns(slot, shard_)) return;
        const std::size_t seat = plan_.division.seat(slot);
        const auto lanes = static_cast<std::uint32_t>(x_.before.size());
        const row_layer& l = x_.layers[layer];
        for (std::uint32_t i = 0; i < lanes; ++i) {
            E* rows = &x_.rows[((seat * lanes + i) * lane_rows_ + l.offset) * 2 * width()];
            row_lane view{&x_.lanes[(seat * x_.layers.size() + layer) * lanes + i],
                          layer,
                          i,
                          plan_.division.lane(i, shard_) * lane_heads_,
                          rows,
                          rows + l.capacity * width(),
                          width(),
                          nullptr};
            if constexpr (of_inputs)
                if (waits(l))
                    view.inputs = &x_.inputs[((seat * lanes + i) * lane_inputs_ + l.offset) * input_bytes()];
            f(view);
        }
    }
    [[nodiscard]] std::size_t width() const noexcept { return std::size_t{lane_heads_} * plan_.model.dim; }
    /// Rows behind the sinks.
    [[nodiscard]] std::uint32_t recent(const row_lane& l) const noexcept {
        return l.held() - std::min(l.held(), x_.layers[l.layer].sinks);
    }
    /// The first row that the latest token's query sees.
    [[nodiscard]] std::uint32_t first_seen(const row_lane& l) const noexcept {
        const std::uint32_t held = l.held(), reach = x_.layers[l.layer].reach;
        return held > reach ? held - reach : 0;
    }

    // ------------------------------------------------------------------------------------- arrivals
    /// A token of the input as a row of the lane, (width) each.
    void encode(const row_lane& l, const layer_input& in, std::size_t token, E* k, E* v) const noexcept {
        const std::size_t from = (token * plan_.model.kv_heads + l.head) * std::size_t{plan_.model.dim};
        simd::encode(in.k, from, k, width());
        simd::encode(in.v, from, v, width());
    }
    /// Bytes of the record of an input.
    [[nodiscard]] std::size_t input_bytes() const noexcept { return pool_.format().record.key; }
    [[nodiscard]] status check_input(const row_layer& r, const layer_input& in,
                                     std::size_t tokens) const noexcept {
        if constexpr (of_inputs)
            if (!r.slides()) return codec_.check_arrival(in, tokens);
        return static_cast<void>(r), static_cast<void>(in), static_cast<void>(tokens), status{};
    }
    /// The record of a token of the input.
    void encode_input([[maybe_unused]] const layer_input& in, [[maybe_unused]] std::size_t token,
                      [[maybe_unused]] std::uint32_t position,
                      [[maybe_unused]] std::byte* record) const noexcept {
        if constexpr (of_inputs)
            codec_.encode_input(in.x.data() + token * codec_.input_numbers(), position, record);
    }
    /// Encodes the rows that leave when `tokens` more come, of the lanes of a layer that does not slide, and changes nothing
    /// else. An error leaves the chains as they were.
    [[nodiscard]] status make_room(const char* call, std::uint32_t slot, std::uint32_t layer,
                                   const layer_input& in, std::uint32_t tokens) noexcept {
        const row_layer& r = x_.layers[layer];
        if (r.slides()) return {};
        const phase_clock::span timed(&clock_, &phase_times::maintain);
        bool fits = true;
        std::uint32_t lanes = 0;
        for_each_lane(slot, layer, [&](row_lane& l) {
            if (!fits) return;
            x_.before[l.index] = l->records.rows;
            lanes = l.index + 1;
            const std::uint32_t end = r.sinks + r.leaving(l.held(), tokens);
            for (std::uint32_t row = r.sinks; fits && row < end; ++row) {
                if constexpr (of_inputs) {
                    std::byte* record = l.inputs + row * input_bytes();
                    if (row >= l.held())
                        encode_input(in, row - l.held(), l->gone + row, record = x_.record.data());
                    fits = pool_.push(l->records, {record, nullptr, pool_.format().record});
                    continue;
                } else {
                    const E *k = l.key(row), *v = l.value(row);
                    if (row >= l.held()) {
                        encode(l, in, row - l.held(), x_.tile_k.data(), x_.tile_v.data());
                        k = x_.tile_k.data(), v = x_.tile_v.data();
                    }
                    fits = push(l, k, v, l->gone + row);
                }
            }
        });
        if (fits) return {};
        for_each_lane(slot, layer, [&](row_lane& l) {
            if (l.index < lanes) pool_.cut(l->records, x_.before[l.index]);
        });
        return no_block(call);
    }
    /// Undoes the last make_room().
    void give_room_back(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (x_.layers[layer].slides()) return;
        for_each_lane(slot, layer, [&](row_lane& l) { pool_.cut(l->records, x_.before[l.index]); });
    }
    [[nodiscard]] bool push(const row_lane& l, const E* k, const E* v, std::uint32_t position) noexcept {
        const std::uint32_t most = pool_.format().record.key;
        std::byte* const record = x_.record.data();
        decltype(auto) codec = codec_of(l);
        const record_bytes bytes{codec.encode_key(k, position, record), codec.encode_value(v, record + most)};
        return pool_.push(l->records, {record, record + most, bytes});
    }
    [[nodiscard]] status no_block(const char* call) const noexcept {
        return status::failure(
            errc::bound_too_small,
            "%s: memory_bytes has no room for more records, all %u blocks of %u bytes are in "
            "use; raise it",
            call, pool_.size(), pool_.format().page_bytes);
    }

    /// Tokens [t, t + n) of the input become rows; what leaves for them has become records, or is dropped.
    void take(row_lane& l, const layer_input& in, std::uint32_t t, std::uint32_t n) noexcept {
        const row_layer& r = x_.layers[l.layer];
        const std::uint32_t held = l.held(), leave = r.leaving(held, n), end = r.sinks + leave;
        std::uint32_t row = std::min(held, r.sinks); // the first that is new
        if (held >= end) {
            row = held - leave;
            if (leave > 0) {
                const std::size_t bytes = std::size_t{held - end} * width() * sizeof(E);
                std::memmove(l.key(r.sinks), l.key(end), bytes);
                std::memmove(l.value(r.sinks), l.value(end), bytes);
                if (l.inputs != nullptr)
                    std::memmove(l.inputs + r.sinks * input_bytes(), l.inputs + end * input_bytes(),
                                 (held - end) * input_bytes());
            }
        }
        for (; row < held + n - leave; ++row) {
            const std::uint32_t moved = row < r.sinks ? 0 : leave, token = t + row + moved - held;
            encode(l, in, token, l.key(row), l.value(row));
            if constexpr (of_inputs)
                if (l.inputs != nullptr)
                    encode_input(in, token, l->gone + row + moved, l.inputs + row * input_bytes());
        }
        l->tokens += n;
        l->gone += leave;
    }
    void forget(lane& l) noexcept {
        pool_.cut(l.records, 0);
        l = {};
    }

    // ------------------------------------------------------------------------------------- attention
    /// The codec of a lane.
    [[nodiscard]] decltype(auto) codec_of(const row_lane& l) const noexcept {
        if constexpr (requires { codec_.at(codec_lane{}); })
            return codec_.at(codec_lane{plan_.numbers.of(l.layer), l.head, nullptr});
        else
            return static_cast<const Codec&>(codec_);
    }
    /// What values are decoded from.
    [[nodiscard]] static const records_view& values_of(const records_view& keys,
                                                       const records_view& values) noexcept {
        return of_inputs ? keys : values;
    }
    /// The next n records of a lane become rows of the tile, from `row` on.
    void decode(const row_lane& l, record_pool::cursor& at, std::uint32_t n, std::size_t row) const noexcept {
        decltype(auto) codec = codec_of(l);
        pool_.read(at, n, [&](const records_view& keys, const records_view& values) {
            codec.decode_keys(keys, &x_.tile_k[row * width()]);
            codec.decode_values(values_of(keys, values), &x_.tile_v[row * width()]);
            row += keys.count;
        });
    }

    [[nodiscard]] query_lane queries_of(const row_lane& l) const noexcept {
        const model_extents& m = plan_.model;
        return {m.query_heads(), l.head * m.group, lane_heads_, m.group, m.dim, m.logits};
    }

    /// The latest token, which is token t of the input: its queries see all that the lane holds.
    void attend_token(const row_lane& l, const layer_input& in, std::size_t t,
                      const tensor_span& out) noexcept {
        const query_lane of = queries_of(l);
        const float* q = simd::widened(in.q, of.offset(t), x_.query.data(), x_.query.size());
        const auto seen = [&](std::uint32_t h) {
            return partial_at(&x_.partials[h * partial_floats(of.group, of.dim)], of.group, of.dim);
        };
        const auto queries = [&](std::uint32_t h) { return q + std::size_t{h} * of.group * of.dim; };
        for (std::uint32_t h = 0; h < of.heads; ++h) reset(seen(h));
        if (l->records.rows > 0) {
            decltype(auto) codec = codec_of(l);
            pool_.visit(l->records, [&](const records_view& keys, const records_view& values,
                                        std::span<const std::byte> next) {
                const std::size_t some =
                    next.size() / (2 * of.heads); // for keys, and for values, of each head
                for (std::uint32_t h = 0; h < of.heads; ++h) {
                    coming_records coming{next.subspan(2 * h * some, some),
                                          next.subspan((2 * h + 1) * some, some)};
                    record_attention(codec, {queries(h), of.dim, of.logits, h}, keys, values_of(keys, values))
                        .attend(nullptr, seen(h), x_.attend, simd::all_queries, coming);
                }
            });
            stats_.chosen_bytes += l->records.bytes;
            stats_.resident_chosen_bytes += l->records.bytes;
        }
        const std::uint32_t from = first_seen(l), n = l.held() - from;
        for (std::uint32_t h = 0; h < of.heads; ++h) {
            const std::size_t column = std::size_t{h} * of.dim;
            simd::attend_rows<simd::default_arch, E>(
                queries(h), of.dim, of.logits, {l.key(from) + column, n, of.dim, width()},
                {l.value(from) + column, n, of.dim, width()}, nullptr, seen(h), x_.attend);
            finish_token(of, h, seen(h), in, t, out);
        }
    }

    /// All tokens of the input, which are to come behind what a lane holds, attend that and each other: some queries at a time, which
    /// share what is decoded, and as many of the entries that they see as the tile has room for.
    void attend_chunk(const row_lane& l, const layer_input& in, std::uint32_t tokens,
                      const tensor_span& out) noexcept {
        const std::uint32_t before = l.held() + l->records.rows,
                            tile = static_cast<std::uint32_t>(x_.tile_k.size() / width());
        const std::size_t queries = std::size_t{lane_heads_} * plan_.model.group; // of a token
        // What queries have seen lies in `out` if that is floats. Those of more tokens would leave the L2 cache between tiles.
        const std::uint32_t block = out.holds<float>() ? 2 * row_plan::block : row_plan::block;
        float *const max = x_.sums.data(), *const sum = max + queries * block,
                     *const acc = out.holds<float>() ? nullptr : sum + queries * block;
        assert(queries * block * (acc == nullptr ? 2 : plan_.model.dim + 2) <= x_.sums.size());
        for (std::uint32_t t = 0, n = 0; t < tokens; t += n) {
            n = std::min(block, tokens - t);
            const layer_input some = in.rows(t, n, tokens);
            const tensor_span to = rows_of(out, t, n, tokens);
            auto at = record_pool::begin(l->records);
            for (std::uint32_t first = 0, end = 0, seen = before + t + n; first < seen; first = end) {
                end = std::min(first + tile, seen);
                gather(l, in, at, first, end - first);
                attend_prompt(queries_of(l), some, before + t, n, x_.tile_k.data(), x_.tile_v.data(), to,
                              x_.causal, simd::no_reach,
                              {first, end == seen ? simd::no_reach : end, max, sum, acc});
            }
        }
    }
    /// Rows [first, first + n) of `total` in a result.
    [[nodiscard]] static tensor_span rows_of(const tensor_span& out, std::size_t first, std::size_t n,
                                             std::size_t total) noexcept {
        return out.subspan(first * (out.size() / total), n * (out.size() / total));
    }
    /// Rows [first, first + n), to the tile, of a lane in the order of its tokens, which the input's follow. `at`: the first
    /// record that has not been read.
    void gather(const row_lane& l, const layer_input& in, record_pool::cursor& at, std::uint32_t first,
                std::uint32_t n) const noexcept {
        const std::uint32_t held = l.held(), sinks = held - recent(l), records = l->records.rows;
        for (std::uint32_t i = 0; i < n;) {
            const std::uint32_t row = first + i;
            if (row >= sinks && row < sinks + records) {
                const std::uint32_t some = std::min(n - i, sinks + records - row);
                decode(l, at, some, i);
                i += some;
                continue;
            }
            E *const k = &x_.tile_k[i * width()], *const v = &x_.tile_v[i * width()];
            const std::uint32_t plain = row < sinks ? row : row - records;
            if (plain < held) {
                std::copy_n(l.key(plain), width(), k);
                std::copy_n(l.value(plain), width(), v);
            } else {
                encode(l, in, plain - held, k, v);
            }
            ++i;
        }
    }

    void lane_parts(part_stream& io, row_lane& l) noexcept {
        io.count(l->tokens, plan_.sizes.max_tokens, "tokens");
        std::uint32_t held = l.held(), records = l->records.rows;
        io.count(held, x_.layers[l.layer].capacity, "rows of a lane");
        io.count(records, plan_.sizes.max_tokens, "records of a lane");
        if (io.loads()) l->gone = l->tokens - std::min(held, l->tokens);
        record_parts(io, l, records); // first, as what they begin with stays where it is
        io.array(l.keys, held * width());
        io.array(l.values, held * width());
        if constexpr (of_inputs)
            if (l.inputs != nullptr) io.bytes(l.inputs, held * input_bytes());
    }
    void record_parts(part_stream& io, row_lane& l, std::uint32_t records) noexcept {
        if (!io.loads())
            return pool_.each_entry(l->records, [&](const entry_record& e) {
                record_bytes bytes = e.bytes;
                io.value(bytes);
                io.bytes(const_cast<std::byte*>(e.key), bytes.key);
                io.bytes(const_cast<std::byte*>(e.value), bytes.value);
            });
        for (std::uint32_t i = 0; i < records && io.ok(); ++i) {
            record_bytes bytes{};
            io.value(bytes);
            if (bytes.key > x_.record.size() || bytes.value > x_.record.size() - bytes.key)
                return io.fail(status::failure(errc::corrupt,
                                               "load: a record has %u and %u bytes; valid: up to %zu",
                                               bytes.key, bytes.value, x_.record.size()));
            std::byte *const key = x_.record.data(), *const value = key + bytes.key;
            io.bytes(key, bytes.key);
            io.bytes(value, bytes.value);
            if (io.ok() && !pool_.push(l->records, {key, value, bytes})) return io.fail(no_block(io.call()));
        }
    }

    cache_plan plan_{};
    std::uint32_t shard_ = 0, lane_heads_ = 1;
    std::size_t lane_rows_ = 0, lane_inputs_ = 0; ///< of one lane in all layers
    memory x_{};
    Codec codec_{};
    record_pool pool_;
    statistics stats_;
    std::uint64_t chosen_before_ = 0; ///< the attend() that is under way
    phase_clock clock_;
};

}} // namespace kvtl::v0
