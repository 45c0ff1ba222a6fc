// The part of a shard whose layers attend only what came last: rows in DRAM, nothing else.
//
// What:   of each lane the rows [base, tokens), in order and side by side. When there is no room behind them, those that
//         no query can see any more, and no rewind can bring back, make way: what is left moves to the front, in whole
//         blocks of 64 tokens. So a query's result has the same bits however a prompt is cut into chunks.
// Cost:   a step attends `reach` rows; a row moves once in about (capacity - reach) tokens.
// Errors: none once a call's input is checked; rewind() beyond the spare rows is refused.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/sliding_plan.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/views.hpp>

#include <cmath>
#include <cstring>
#include <span>

namespace kvtl { inline namespace v0 {

template <element E> class sliding_stage {
  public:
    struct lane {
        std::uint32_t base = 0;   ///< token of the first row, a multiple of 64
        std::uint32_t tokens = 0; ///< of the sequence
        bool prompt_open = false; ///< its last chunk is to come
    };
    struct memory {
        std::span<sliding_layer> layers;
        std::span<lane> lanes;  ///< (seats, layers, lanes of a layer)
        std::span<E> rows;      ///< (seats, lanes of a layer, rows of all layers, K and V, D)
        std::span<float> query; ///< (G, D) of a lane, where they come in 16 bits
        std::span<float> partial, attend, causal;

        static memory take(carver& c, const sliding_plan& s, const cache_plan& p,
                           std::uint32_t shard) noexcept {
            memory m;
            if (s.layers.empty()) return m;
            const std::size_t seats = seats_of(p, shard),
                              lanes = p.division.lanes_of(p.model.kv_heads, shard);
            m.layers = c.take<sliding_layer>(s.layers.size());
            m.lanes = c.take<lane>(seats * s.layers.size() * lanes);
            m.rows = c.take<E>(seats * lanes * s.rows() * 2 * p.model.dim);
            m.query = c.take<float>(std::size_t{p.model.group} * p.model.dim);
            m.partial = c.take<float>(partial_floats(p.model.group, p.model.dim));
            m.attend = c.take<float>(simd::attend_scratch_floats(p.model.group));
            m.causal = c.take<float>(simd::causal_scratch_floats(p.model.dim));
            return m;
        }
    };

    void init(const sliding_plan& s, const cache_plan& p, std::uint32_t shard, carver& c) noexcept {
        plan_ = p;
        shard_ = shard;
        x_ = memory::take(c, s, p, shard);
        std::copy(s.layers.begin(), s.layers.end(), x_.layers.begin());
        std::fill(x_.lanes.begin(), x_.lanes.end(), lane{});
        lane_rows_ = s.rows();
    }

    void prefill(std::uint32_t slot, std::uint32_t layer, const layer_input& in, std::uint32_t tokens,
                 const tensor_span& out, bool last) noexcept {
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t head, E* keys, E* values) {
            l.prompt_open = !last && (l.tokens == 0 || l.prompt_open); // a further turn needs no last chunk
            for (std::uint32_t t = 0, n = 0; t < tokens; t += n) {
                n = std::min(sliding_plan::block, tokens - t);
                append(x_.layers[layer], l, head, in, t, n, keys, values);
                if (!out.empty()) attend_chunk(x_.layers[layer], l, head, in, t, n, keys, values, out);
            }
        });
    }

    /// The prompt is complete, so that a token may come.
    [[nodiscard]] status ready(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept {
        status open;
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t, E*, E*) {
            if (l.prompt_open)
                open =
                    status::failure(errc::invalid_argument,
                                    "%s: the prompt of this sequence is not complete: %u tokens wait for a "
                                    "prefill with last_chunk = true",
                                    call, l.tokens);
        });
        return open;
    }

    /// T decoded tokens, one after the other.
    void attend(std::uint32_t slot, std::uint32_t layer, const layer_input& in, std::uint32_t tokens,
                const tensor_span& out) noexcept {
        const model_extents& m = plan_.model;
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t head, E* keys, E* values) {
            const std::size_t query = std::size_t{head} * m.group;
            for (std::uint32_t t = 0; t < tokens; ++t) {
                append(x_.layers[layer], l, head, in, t, 1, keys, values);
                const std::size_t at = t * m.query_heads() + query;
                const partial p = partial_at(x_.partial.data(), m.group, m.dim);
                reset(p);
                const std::uint32_t from = first_row(x_.layers[layer], l), n = l.tokens - l.base - from;
                simd::attend_rows<simd::default_arch, E>(
                    simd::widened(in.q, at * m.dim, x_.query.data(), x_.query.size()), m.dim, m.logits,
                    {keys + std::size_t{from} * m.dim, n, m.dim, m.dim},
                    {values + std::size_t{from} * m.dim, n, m.dim, m.dim}, nullptr, p, x_.attend);
                if (!in.lse.empty())
                    for (std::uint32_t g = 0; g < m.group; ++g)
                        in.lse[at + g] = p.max[g] + std::log(p.sum[g]);
                if (const float* sinks = in.sinks_of(query)) add_sink_logits(p, sinks);
                finish(p, out, at * m.dim, m.dim);
            }
        });
    }

    void append(std::uint32_t slot, std::uint32_t layer, const layer_input& in) noexcept {
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t head, E* keys, E* values) {
            append(x_.layers[layer], l, head, in, 0, 1, keys, values);
        });
    }

    /// visit(kv head, keys, values) of what the next query sees.
    template <class Visit> void views(std::uint32_t slot, std::uint32_t layer, Visit&& visit) noexcept {
        const std::size_t dim = plan_.model.dim;
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t head, E* keys, E* values) {
            const std::uint32_t from = first_row(x_.layers[layer], l), n = l.tokens - l.base - from;
            visit(std::size_t{head}, rows_view<E>{keys + from * dim, n, dim, dim},
                  rows_view<E>{values + from * dim, n, dim, dim});
        });
    }

    [[nodiscard]] status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n,
                                      const rewind_argument& asked) noexcept {
        status refused;
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t, E*, E*) {
            const std::uint32_t seen = x_.layers[layer].reach - 1; // by the query that comes next
            const std::uint32_t held = l.tokens - l.base,
                                most = l.base == 0 ? l.tokens : (held > seen ? held - seen : 0);
            if (n > most)
                refused = status::failure(
                    errc::out_of_range,
                    "%s: %s is %zu; layer %u, which slides over %u tokens, has %u and can give up %u",
                    asked.call, asked.name, asked.value, x_.layers[layer].number, seen + 1, l.tokens, most);
        });
        return refused;
    }
    void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept {
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t, E*, E*) {
            l.tokens -= n;
            l.prompt_open = l.prompt_open && l.tokens != 0;
        });
    }
    void end(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < x_.layers.size(); ++layer)
            for_each_lane(slot, layer, [](lane& l, std::uint32_t, E*, E*) { l = {}; });
    }

    /// `none` where the shard has no lane of the sequence.
    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept {
        std::uint32_t n = none;
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t, E*, E*) { n = l.tokens; });
        return n;
    }
    /// Of all heads of a layer.
    [[nodiscard]] std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) noexcept {
        std::size_t entries = 0;
        for_each_lane(slot, layer, [&](lane& l, std::uint32_t, E*, E*) { entries += l.tokens - l.base; });
        return entries;
    }
    [[nodiscard]] statistics stats() const noexcept {
        statistics s;
        for (const lane& l : x_.lanes) {
            s.kept_entries += l.tokens - l.base;
            s.kept_bytes += std::uint64_t{l.tokens - l.base} * 2 * plan_.model.dim * sizeof(E);
        }
        return s;
    }

  private:
    /// Sequences that a shard has lanes of.
    [[nodiscard]] static std::uint32_t seats_of(const cache_plan& p, std::uint32_t shard) noexcept {
        return p.division.by_sequence ? (p.max_sequences + p.division.shards - 1 - shard) / p.division.shards
                                      : p.max_sequences;
    }
    /// f(lane, its KV head, its keys, its values) for the shard's lanes of a layer.
    template <class F> void for_each_lane(std::uint32_t slot, std::uint32_t layer, F&& f) noexcept {
        if (!plan_.division.owns(slot, shard_)) return;
        const std::size_t seat = plan_.division.by_sequence ? slot / plan_.division.shards : slot;
        const std::uint32_t lanes = plan_.division.lanes_of(plan_.model.kv_heads, shard_);
        const sliding_layer& l = x_.layers[layer];
        for (std::uint32_t i = 0; i < lanes; ++i) {
            E* rows = &x_.rows[((seat * lanes + i) * lane_rows_ + l.offset) * 2 * plan_.model.dim];
            f(x_.lanes[(seat * x_.layers.size() + layer) * lanes + i], plan_.division.lane(i, shard_), rows,
              rows + std::size_t{l.capacity} * plan_.model.dim);
        }
    }
    /// The first row that the latest token's query sees.
    [[nodiscard]] static std::uint32_t first_row(const sliding_layer& s, const lane& l) noexcept {
        const std::uint32_t held = l.tokens - l.base;
        return held > s.reach ? held - s.reach : 0;
    }

    /// Tokens [t, t + n) of the input become rows, n <= 64.
    void append(const sliding_layer& s, lane& l, std::uint32_t head, const layer_input& in, std::uint32_t t,
                std::uint32_t n, E* keys, E* values) noexcept {
        const std::size_t dim = plan_.model.dim, token = std::size_t{plan_.model.kv_heads} * dim;
        if (l.tokens - l.base + n > s.capacity) make_room(s, l, keys, values);
        for (std::uint32_t i = 0; i < n; ++i) {
            const std::size_t from = (t + i) * token + head * dim, to = (l.tokens - l.base + i) * dim;
            simd::encode(in.k, from, keys + to, dim);
            simd::encode(in.v, from, values + to, dim);
        }
        l.tokens += n;
    }
    /// Keeps what a query may see once the spare rows are rewound: whole blocks go, and a block fits behind the rest.
    void make_room(const sliding_layer& s, lane& l, E* keys, E* values) noexcept {
        constexpr std::uint32_t block = sliding_plan::block;
        const std::uint32_t held = l.tokens - l.base, keep = std::min(held, s.capacity - (2 * block - 1));
        const std::uint32_t gone = (held - keep) / block * block;
        const std::size_t dim = plan_.model.dim, rows = held - gone;
        std::memmove(keys, keys + gone * dim, rows * dim * sizeof(E));
        std::memmove(values, values + gone * dim, rows * dim * sizeof(E));
        l.base += gone;
    }
    void attend_chunk(const sliding_layer& s, const lane& l, std::uint32_t head, const layer_input& in,
                      std::uint32_t t, std::uint32_t n, const E* keys, const E* values,
                      const tensor_span& out) noexcept {
        const model_extents& m = plan_.model;
        const std::size_t token = std::size_t{m.query_heads()} * m.dim, query = std::size_t{head} * m.group;
        const std::size_t at = t * token + query * m.dim, held = l.tokens - l.base;
        const auto from_here = [&](const auto& all) { return all.subspan(at, all.size() - at); };
        simd::attend_causal(from_here(in.q), token, m.group, m.logits, n,
                            rows_view<E>{keys, held, m.dim, m.dim}, rows_view<E>{values, held, m.dim, m.dim},
                            held - n, from_here(out), token, x_.causal, s.reach, in.sinks_of(query));
    }

    cache_plan plan_{};
    std::uint32_t shard_ = 0;
    std::size_t lane_rows_ = 0;
    memory x_{};
};

}} // namespace kvtl::v0
