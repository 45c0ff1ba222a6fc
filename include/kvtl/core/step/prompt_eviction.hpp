// A prompt, from its first chunk to the rows that survive it.
//
// What:   chunks before the last wait as plain rows in token order; what their queries said lies in the
//         rows' scores, or the last queries themselves lie beside them. The last chunk gathers one lane at
//         a time in the work area, scores it, keeps the best of it, and lets the budget cut earlier layers
//         back. Every step that needs rows asks for them before it changes anything.
//         A score that evicts after each chunk treats every chunk as the last one, of a prompt whose earlier tokens
//         are those that are left. One that replays takes a probe with any chunk. Its queries raise the scores of
//         the rows so far, and the tokens that pass with it are attended and leave.
// Source: block prefill: EpiCache (Kim et al.). Replay: KVzip (Kim et al.).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/eviction_state.hpp>
#include <kvtl/simd/topk.hpp>

#include <cmath>
#include <functional>
#include <numeric>

namespace kvtl { inline namespace v0 {

template <class Types> class prompt_eviction {
    using book = eviction_state<Types>;
    using E = typename book::E;
    using score = typename Types::score;
    using record = typename book::record;
    using rows = typename book::rows;
    static constexpr bool merges = Types::retention::merges;
    /// Entries of a prompt are joined to sets before the rest is dropped.
    static constexpr bool joins = requires { requires Types::retention::joins; };
    /// Tokens of a chunk may pass.
    static constexpr bool lets_pass = Types::evicts_by_chunk || Types::replays;

  public:
    prompt_eviction() = default;
    explicit prompt_eviction(book& b) noexcept : book_(&b) {}

    /// Where the prompt takes the way of decode: the attention of a chunk to what is held and to itself.
    void attend_chunk(std::uint32_t slot, std::uint32_t layer, const layer_input& in, std::uint32_t tokens,
                      const tensor_span& out) noexcept {
        if (out.empty()) return;
        const std::span<kept_lane> lanes = book_->lanes_of(slot, layer);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const std::uint32_t held = lanes[i].rows.rows;
            gather(lanes[i], i, in, held, tokens);
            attend(i, in, held, tokens, out);
        }
    }
    /// A chunk that is not the last: its rows are held as they are; scores so far lie in the rows' scores. tokens: those that
    /// stay, none in a replay.
    [[nodiscard]] status add_chunk(call_half h, std::uint32_t slot, std::uint32_t layer,
                                   const layer_input& in, std::uint32_t before, std::uint32_t tokens,
                                   const tensor_span& out) noexcept {
        const std::span<kept_lane> lanes = book_->lanes_of(slot, layer);
        const std::uint32_t total = before + tokens, had = book_->count_blocks(lanes);
        constexpr bool windowed = score::source == score_source::window;
        const std::uint32_t queries = windowed ? book_->query_blocks(std::min(total, book_->plan.window)) : 0;
        const auto want = static_cast<std::uint32_t>(lanes.size()) * (blocks_for(total) + queries);
        if (h == call_half::prepare)
            return book_->reserve(slot, want - std::min(want, had), "prefill", book::rows_for::chunk);
        score_arrivals(slot, layer, in, before, tokens, static_cast<std::uint32_t>(lanes.size()));
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            kept_lane& lane = lanes[i];
            const std::uint32_t all = tokens + passing(in);
            gather(lane, i, in, before, all);
            attend(i, in, before, all, out);
            score_chunk(lane, i, layer, in, before, tokens);
            measure_queries(lane, i, in, before, tokens);
            const rows held = book_->open(lane);
            for (std::uint32_t t = before; t < total; ++t) put(held, t, t);
            const std::span<const float> scores = book_->board(i, total);
            for (std::uint32_t t = 0; t < total; ++t) held.score(t) = scores[t];
            if (windowed) put_queries_aside(lane, last_queries(lane, i, in, tokens));
            lane.tokens = total;
            lane.prompt_open = true;
            if (score::drops_unwanted) lane.wanted = lane.wanted || book_->score.wants_any(in);
        }
        book_->recount(slot, lanes, had);
        return {};
    }
    /// Scores the prompt at its last chunk. Every lane keeps what its budget allows for now. before: tokens of earlier chunks.
    /// A score that evicts after each chunk comes here with every chunk. Then `before` counts the rows that are left of earlier
    /// ones, and `tokens` the chunk's tokens that stay.
    [[nodiscard]] status complete(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                  std::uint32_t before, std::uint32_t tokens,
                                  const tensor_span& out) noexcept {
        const std::span<kept_lane> lanes = book_->lanes_of(slot, layer);
        const auto count = static_cast<std::uint32_t>(lanes.size());
        const std::uint32_t total = before + tokens, had = book_->count_blocks(lanes);
        const std::uint32_t sinks = std::min(total, book_->plan.sinks),
                            window = std::min(total - sinks, book_->plan.window), n = total - sinks - window;
        // What is left of earlier chunks differs by layer and says nothing of the prompt's length.
        const std::uint32_t allowed =
            std::min(n, book_->budget.provisional(layer, Types::evicts_by_chunk ? none : n));
        const std::uint32_t want =
            count * (blocks_for(sinks + window + allowed) + (Types::demotes ? 2U : 0U));
        if (h == call_half::prepare)
            return book_->reserve(slot, want - std::min(want, had), "prefill", book::rows_for::chunk);

        if constexpr (score::reads_values) sum_values(lanes, layer, in, before, tokens);
        score_arrivals(slot, layer, in, before, tokens, count);
        layer_notes notes;
        for (std::uint32_t i = 0; i < count; ++i) {
            const std::uint32_t all = tokens + passing(in);
            gather(lanes[i], i, in, before, all);
            attend(i, in, before, all, out);
            const phase_clock::span timed(book_->clock, &phase_times::evict);
            load_scores(lanes[i], i, before, tokens);
            score_lane(lanes[i], i, layer, in, before, tokens, notes);
            measure_queries(lanes[i], i, in, before, tokens);
            balance_keys(lanes[i], total);
        }
        const phase_clock::span timed(book_->clock, &phase_times::evict);
        if (score::decides_together) average_board(count, total);
        sequence_budget& ledger = book_->sequence_budget_of(slot);
        ledger.competing = n;
        ledger.pinned = sinks + window;
        const std::span<std::uint32_t> keep = book_->keep_of(slot);
        for (std::uint32_t i = 0; i < count; ++i) {
            gather(lanes[i], i, in, before, tokens);
            keep[std::size_t{layer} * count + i] =
                keep_best(lanes[i], book_->board(i, total), sinks, window, allowed);
            lanes[i].tokens += total - before; // before: all so far, or the rows that are left of them
            lanes[i].prompt_open = Types::evicts_by_chunk && !in.last_chunk;
        }
        ledger.layers_seen = std::max(ledger.layers_seen, layer + 1);
        if constexpr (Types::budget::reads_preference)
            book_->memory.preference[book_->seat_of(slot) * book_->plan.layers + layer] =
                book_->score.preference(notes);
        settle(slot, layer);
        return {};
    }

  private:
    [[nodiscard]] static std::uint32_t passing(const layer_input& in) noexcept {
        return lets_pass ? in.passing : 0;
    }
    /// Scores of tokens as they arrive, for all lanes: board[lane][first + t].
    void score_arrivals(std::uint32_t slot, std::uint32_t layer, const layer_input& in, std::uint32_t first,
                        std::uint32_t tokens, std::uint32_t lanes) noexcept {
        if (score::source != score_source::arrival) return;
        for (std::uint32_t t = 0; t < tokens; ++t) {
            book_->arrive(slot, layer, in, t, first + t, false);
            for (std::uint32_t i = 0; i < lanes; ++i)
                book_->board(i, first + t + 1).back() = book_->memory.arrival[i];
        }
    }
    /// A lane's rows so far and the chunk's, side by side in the work area.
    void gather(kept_lane& lane, std::uint32_t i, const layer_input& in, std::uint32_t before,
                std::uint32_t tokens) noexcept {
        const rows held = book_->open(lane);
        const std::size_t dim = book_->plan.dim, token = book_->plan.key_floats(),
                          offset = book_->key_offset(i);
        held.pieces(0, before,
                    [&](std::uint32_t first, const records_view& k, const records_view& v, const float*) {
                        book_->codec.decode_keys(k, &book_->memory.work_k[first * dim]);
                        book_->codec.decode_values(v, &book_->memory.work_v[first * dim]);
                    });
        for (std::uint32_t t = 0; t < tokens; ++t) {
            simd::encode(in.k, t * token + offset, &book_->memory.work_k[(before + t) * dim], dim);
            simd::encode(in.v, t * token + offset, &book_->memory.work_v[(before + t) * dim], dim);
        }
    }
    [[nodiscard]] rows_view<E> work_keys(std::uint32_t n) const noexcept {
        return {book_->memory.work_k.data(), n, book_->plan.dim, book_->plan.dim};
    }
    [[nodiscard]] rows_view<E> work_values(std::uint32_t n) const noexcept {
        return {book_->memory.work_v.data(), n, book_->plan.dim, book_->plan.dim};
    }
    void attend(std::uint32_t i, const layer_input& in, std::uint32_t before, std::uint32_t tokens,
                const tensor_span& out) noexcept {
        if (out.empty()) return;
        attend_prompt(book_->queries_of(i), in, before, tokens, book_->memory.work_k.data(),
                      book_->memory.work_v.data(), out, book_->memory.causal);
    }
    /// The scores of a lane's rows once a chunk has come that is not the last.
    void score_chunk(kept_lane& lane, std::uint32_t i, std::uint32_t layer, const layer_input& in,
                     std::uint32_t before, std::uint32_t tokens) noexcept {
        const phase_clock::span timed(book_->clock, &phase_times::evict);
        load_scores(lane, i, before, tokens);
        if (score::source == score_source::prompt) add_prompt_mass(i, in, before, tokens);
        if constexpr (Types::replays)
            if (const std::uint32_t total = before + tokens; !in.probe.empty())
                book_->score.score(seen_by_probe(i, layer, in, total), book_->board(i, total));
    }
    /// score_source::probe: the work area's first `total` rows. Where a score replays, the probe sees the passing rows behind
    /// them, too, up to its own.
    [[nodiscard]] prompt_lane<E> seen_by_probe(std::uint32_t i, std::uint32_t layer, const layer_input& in,
                                               std::uint32_t total) const noexcept {
        prompt_lane<E> p = lane_view(layer, i, total);
        p.observed = static_cast<std::uint32_t>(in.probe.size() / book_->plan.query_floats());
        p.queries = in.probe.data() + book_->query_offset(i);
        p.query_stride = book_->plan.query_floats();
        p.causal = Types::replays && in.passing != 0;
        if (Types::replays) p.keys = work_keys(total + in.passing);
        if (Types::replays && contains(needs_of<score>(), engine_input::x)) {
            const std::size_t tokens = in.k.size() / book_->plan.key_floats();
            p.inputs = in.x.last(in.x.size() / tokens * in.passing);
        }
        return p;
    }
    /// score_source::prompt: adds the attention that the chunk's queries pay to the lane's row of the board.
    void add_prompt_mass(std::uint32_t i, const layer_input& in, std::uint32_t before,
                         std::uint32_t tokens) noexcept {
        const std::span<float> sum = book_->board(i, before + tokens);
        const float share = 1.0F / static_cast<float>(book_->plan.lane_group);
        for (std::uint32_t t = 0; t < tokens; ++t) { // one at a time: those of 16 bits have room for one
            prompt_lane<E> p = lane_view(0, i, before + t + 1);
            p.queries = book_->query(in, t, i);
            p.observed = 1;
            for_each_observed(p, [&](std::uint32_t, std::uint32_t, std::span<const float> probability) {
                simd::axpy(share, probability.data(), sum.data(), probability.size());
            });
        }
    }
    /// Where key channels are balanced: the largest magnitude of each channel of the prompt's queries so far.
    void measure_queries(const kept_lane& lane, std::uint32_t i, const layer_input& in, std::uint32_t before,
                         std::uint32_t tokens) noexcept {
        if (!Types::balances_channels) return;
        const std::span<float> most = book_->balance_of(lane);
        if (before == 0) std::fill(most.begin(), most.end(), 0.0F);
        for (std::uint32_t t = 0; t < tokens; ++t) {
            const float* q = book_->query(in, t, i);
            for (std::size_t at = 0; at < book_->plan.lane_group * most.size(); ++at)
                most[at % most.size()] = std::max(most[at % most.size()], std::fabs(q[at]));
        }
    }
    /// The factors of a lane's channels, from the work area's keys and what measure_queries() left.
    void balance_keys(const kept_lane& lane, std::uint32_t total) noexcept {
        if (!Types::balances_channels) return;
        const std::span<float> factor = book_->balance_of(lane);
        const rows_view<E> keys = work_keys(total);
        for (std::size_t d = 0; d < factor.size(); ++d) {
            float most = 0;
            for (std::size_t t = 0; t < keys.count; ++t)
                most = std::max(most, std::fabs(to_float(keys.row(t)[d])));
            const float balance = std::sqrt(factor[d] / most);
            factor[d] = std::isnormal(balance) ? balance : 1.0F; // a query is divided by it
        }
    }
    [[nodiscard]] prompt_lane<E> lane_view(std::uint32_t layer, std::uint32_t i,
                                           std::uint32_t total) const noexcept {
        prompt_lane<E> p;
        p.layer = layer;
        p.head = book_->head_of(i) * book_->plan.lanes_per_head + i % book_->plan.lanes_per_head;
        p.keys = work_keys(total);
        p.values = work_values(total);
        p.sinks = std::min(total, book_->plan.sinks);
        p.window = std::min(total - p.sinks, book_->plan.window);
        p.group = book_->plan.lane_group;
        p.logit = book_->plan.logits;
        p.logits = book_->memory.logits;
        p.spare = book_->memory.spare;
        p.value_sizes = book_->memory.value_sizes.first(score::reads_values ? total : 0);
        return p;
    }

    /// The last `window` queries of what has come, in book_->memory.observed. Returns how many these are.
    std::uint32_t last_queries(kept_lane& lane, std::uint32_t i, const layer_input& in,
                               std::uint32_t tokens) noexcept {
        const std::size_t token = std::size_t{book_->plan.lane_group} * book_->plan.dim;
        std::uint32_t n = lane.waiting;
        auto* to = reinterpret_cast<std::byte*>(book_->memory.observed.data());
        std::size_t left = n * token * sizeof(float);
        for (std::uint32_t b = lane.queries.first; left > 0; b = book_->pool.next(b)) {
            const std::size_t some = std::min(left, book_->pool.block_bytes());
            std::memcpy(to, book_->pool.bytes(b), some);
            to += some;
            left -= some;
        }
        for (std::uint32_t t = tokens - std::min(tokens, book_->plan.window); t < tokens; ++t, ++n)
            simd::encode(in.q, t * book_->plan.query_floats() + book_->query_offset(i),
                         &book_->memory.observed[n * token], token);
        const std::uint32_t keep = std::min(n, book_->plan.window);
        std::memmove(book_->memory.observed.data(), &book_->memory.observed[(n - keep) * token],
                     keep * token * sizeof(float));
        return keep;
    }
    void put_queries_aside(kept_lane& lane, std::uint32_t n) noexcept {
        std::size_t left = std::size_t{n} * book_->plan.lane_group * book_->plan.dim * sizeof(float);
        const auto* from = reinterpret_cast<const std::byte*>(book_->memory.observed.data());
        while (lane.queries.blocks < book_->query_blocks(n))
            static_cast<void>(book_->pool.extend(lane.queries));
        for (std::uint32_t b = lane.queries.first; left > 0; b = book_->pool.next(b)) {
            const std::size_t some = std::min(left, book_->pool.block_bytes());
            std::memcpy(book_->pool.bytes(b), from, some);
            from += some;
            left -= some;
        }
        lane.waiting = n;
    }

    /// The scores of a lane's waiting rows, and zeros behind them unless arrivals have been scored already.
    void load_scores(kept_lane& lane, std::uint32_t i, std::uint32_t before, std::uint32_t tokens) noexcept {
        const std::span<float> scores = book_->board(i, before + tokens);
        const rows held = book_->open(lane);
        const std::uint32_t scored = Types::evicts_by_chunk ? 0 : before; // else all are scored anew
        for (std::uint32_t t = 0; t < scored; ++t) scores[t] = held.score(t);
        if (score::source != score_source::arrival) std::fill(scores.begin() + scored, scores.end(), 0.0F);
    }
    /// Row `from` of the work area becomes a row of the lane, for token number `token`.
    std::uint32_t put(const rows& held, std::uint32_t from, std::uint32_t token) noexcept {
        const std::uint32_t i = held.push(token);
        const std::size_t at = std::size_t{from} * book_->plan.dim;
        book_->store(held, i, &book_->memory.work_k[at], &book_->memory.work_v[at]);
        return i;
    }

    void score_lane(kept_lane& lane, std::uint32_t i, std::uint32_t layer, const layer_input& in,
                    std::uint32_t before, std::uint32_t tokens, layer_notes& notes) noexcept {
        constexpr score_source source = score::source;
        const std::uint32_t total = before + tokens;
        if constexpr (source == score_source::prompt) {
            add_prompt_mass(i, in, before, tokens);
            if constexpr (Types::budget::reads_preference) book_->score.note(book_->board(i, total), notes);
        } else if constexpr (source != score_source::arrival) {
            prompt_lane<E> p = source == score_source::probe ? seen_by_probe(i, layer, in, total)
                                                             : lane_view(layer, i, total);
            p.notes = &notes;
            if (source == score_source::window) {
                p.observed = last_queries(lane, i, in, tokens);
                p.queries = book_->memory.observed.data();
                p.query_stride = std::size_t{book_->plan.lane_group} * book_->plan.dim;
            }
            book_->score.score(p, book_->board(i, total));
        }
        ++notes.lanes;
    }
    /// value_sizes[t] = sum over the layer's heads of what the policy takes for the size of v.
    void sum_values(std::span<kept_lane> lanes, std::uint32_t layer, const layer_input& in,
                    std::uint32_t before, std::uint32_t tokens) noexcept {
        std::fill_n(book_->memory.value_sizes.begin(), before + tokens, 0.0F);
        for (std::uint32_t i = 0; i < lanes.size(); i += book_->plan.lanes_per_head) {
            gather(lanes[i], i, in, before, tokens);
            const rows_view<E> values = work_values(before + tokens);
            for (std::size_t t = 0; t < values.count; ++t)
                book_->memory.value_sizes[t] +=
                    book_->score.value_size(layer, book_->head_of(i), values.row(t), values.dim);
        }
    }
    void average_board(std::uint32_t lanes, std::uint32_t tokens) noexcept {
        const std::span<float> first = book_->board(0, tokens);
        for (std::uint32_t i = 1; i < lanes; ++i)
            simd::add(book_->board(i, tokens).data(), first.data(), tokens);
        simd::scale(1.0F / static_cast<float>(lanes), first.data(), tokens);
        for (std::uint32_t i = 1; i < lanes; ++i)
            std::copy(first.begin(), first.end(), book_->board(i, tokens).begin());
    }

    /// From the work area: the pinned rows and the best of the others that fit into `allowed` rows. Late budgets
    /// need these in score order behind the pinned ones; otherwise tokens stay in order.
    /// Returns how many rows these take.
    std::uint32_t keep_best(kept_lane& lane, std::span<const float> scores, std::uint32_t sinks,
                            std::uint32_t window, std::uint32_t allowed) noexcept {
        const auto total = static_cast<std::uint32_t>(scores.size());
        const auto parts = book_->plan.demotion.divide(sinks + window + allowed, total, sinks + window);
        const std::uint32_t full = parts.full - sinks - window;
        std::span<std::uint32_t> best = book_->memory.order.first(full + parts.demoted);
        const float* rank = scores.data();
        if (score::ages) {
            for (std::uint32_t t = 0; t < total; ++t)
                book_->memory.rank[t] = book_->score.worth(held_entry{scores[t], t, total - 1}, record{});
            rank = book_->memory.rank.data();
        }
        std::span<float> joined;
        if constexpr (joins) {
            const std::span<float> ranks = book_->memory.spare.first(total);
            joined = book_->memory.spare.subspan(total, total);
            std::copy_n(rank, total, ranks.begin());
            book_->score.join(work_keys(total), sinks, total - window, full, ranks, joined,
                              book_->memory.order);
            rank = ranks.data();
        }
        static_cast<void>(simd::top_k(rank + sinks, total - sinks - window, best.size(), best.data(),
                                      book_->memory.ranking));
        while (score::drops_unwanted && !best.empty() && !book_->score.wanted(scores[sinks + best.back()]))
            best = best.first(best.size() - 1);
        const auto rest = best.subspan(std::min<std::size_t>(full, best.size()));
        best = best.first(best.size() - rest.size());
        if (!Types::budget::late) std::sort(best.begin(), best.end());
        if (Types::evicts_by_chunk) number_rows(lane, total);
        book_->pool.release(lane.rows);
        book_->pool.release(lane.demoted);
        book_->pool.release(lane.queries);
        lane.waiting = 0;
        const rows held = book_->open(lane);
        const auto add = [&](std::uint32_t t) {
            const std::uint32_t token = Types::evicts_by_chunk ? book_->memory.numbers[t] : t;
            const std::uint32_t i = put(held, t, token);
            held.score(i) = scores[t];
            if constexpr (joins) {
                if (joined[t] <= 0.0F && (t + 1 == total || joined[t + 1] <= 0.0F)) return; // no set
                held.log_weight(i) =
                    book_->score.mean(work_keys(total), work_values(total), joined, t,
                                      book_->memory.row_k.data(), book_->memory.row_v.data());
                book_->store(held, i, book_->memory.row_k.data(), book_->memory.row_v.data());
            }
        };
        const auto add_best = [&] {
            for (const std::uint32_t t : best) add(sinks + t);
        };
        for (std::uint32_t t = 0; t < sinks; ++t) add(t);
        if (!Types::budget::late) add_best();
        for (std::uint32_t t = total - window; t < total; ++t) add(t);
        if (Types::budget::late) add_best();
        if constexpr (merges && !joins) merge_losers(lane, held, best, scores, sinks, total - window);
        if constexpr (Types::demotes) {
            const auto demoted = book_->open_demoted(lane);
            for (const std::uint32_t t : rest) {
                const std::size_t at = std::size_t{sinks + t} * book_->plan.dim;
                const std::uint32_t i = book_->push_demoted(
                    lane, demoted, sinks + t, &book_->memory.work_k[at], &book_->memory.work_v[at]);
                demoted.score(i) = scores[sinks + t];
            }
        }
        return static_cast<std::uint32_t>(best.size()) +
               book_->plan.demotion.cost(static_cast<std::uint32_t>(rest.size()));
    }
    /// The tokens of the work area's rows: those that are left of earlier chunks, and the chunk's.
    void number_rows(kept_lane& lane, std::uint32_t total) noexcept {
        const rows held = book_->open(lane);
        for (std::uint32_t i = 0; i < total; ++i)
            book_->memory.numbers[i] = i < held.size() ? held.token(i) : lane.tokens + i - held.size();
    }
    /// What was not kept goes into what was, in token order.
    void merge_losers(kept_lane& lane, const rows& held, std::span<std::uint32_t> kept,
                      std::span<const float> scores, std::uint32_t begin, std::uint32_t end) noexcept {
        std::sort(kept.begin(), kept.end());
        std::size_t next = 0;
        for (std::uint32_t t = begin; t < end; ++t) {
            if (next < kept.size() && kept[next] + begin == t) {
                ++next;
                continue;
            }
            const std::size_t at = std::size_t{t} * book_->plan.dim;
            const leaving_entry<E> entry{t, &book_->memory.work_k[at], &book_->memory.work_v[at], 0.0F,
                                         scores[t]};
            book_->score.merge(held, entry, book_->plan.sinks, lane.merge_bar);
        }
    }

    /// Keeps the first `n` rows; with merging, the others go into these. Where entries are demoted: those that fit
    /// into the memory of n rows. The first `pinned` rows are those that do not compete.
    void cut_back(kept_lane& lane, const rows& held, std::uint32_t n, std::uint32_t pinned) noexcept {
        if constexpr (Types::demotes && Types::budget::late) {
            const auto demoted = book_->open_demoted(lane);
            const std::uint32_t all = book::entries(lane);
            const auto parts = book_->plan.demotion.divide(n, all, pinned);
            const std::uint32_t gone = all - parts.full - parts.demoted,
                                earlier = std::min(gone, demoted.size());
            drop_least(demoted, earlier, lane.tokens);
            held.truncate(held.size() - (gone - earlier)); // rows are in score order
            while (held.size() > parts.full) book_->demote(lane, held, demoted, held.size() - 1);
            return;
        }
        if constexpr (merges && Types::budget::late) {
            const std::uint32_t had = held.size();
            lane.rows.rows = std::min(n, had); // what leaves must not go into what leaves as well
            for (std::uint32_t i = n; i < had; ++i)
                book_->score.merge(held, leaving_row(held, i), book_->plan.sinks, lane.merge_bar);
            lane.rows.rows = had;
        }
        held.truncate(n);
    }

    /// What an entry of a prompt of `tokens` tokens is worth when budgets are settled.
    template <class Rows>
    [[nodiscard]] static float settled_worth(const book& shard, const Rows& held, std::uint32_t i,
                                             std::uint32_t tokens) noexcept {
        return score::ages ? shard.score.worth(held_entry{held.score(i), held.token(i), tokens - 1}, record{})
                           : held.score(i);
    }
    /// The n rows that are worth least go, among equals the latest.
    template <class Rows> void drop_least(const Rows& held, std::uint32_t n, std::uint32_t tokens) noexcept {
        if (n == 0) return;
        const std::span<float> worth = book_->board(0, held.size()); // of no use any more
        for (std::uint32_t i = 0; i < held.size(); ++i) worth[i] = settled_worth(*book_, held, i, tokens);
        const std::span<std::uint32_t> order = book_->memory.order.first(held.size()), least = order.first(n);
        std::iota(order.begin(), order.end(), 0U);
        std::nth_element(order.begin(), least.end(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
            return worth[a] != worth[b] ? worth[a] < worth[b] : held.token(a) > held.token(b);
        });
        std::sort(least.begin(), least.end(), std::greater<>());
        for (const std::uint32_t i : least) held.remove(i);
    }

    /// A late budget's view of a sequence. Where entries are demoted it shows those that are not, and no budget visits it
    /// (demotion_agrees).
    struct score_board_view {
        book* shard;
        std::uint32_t slot;

        [[nodiscard]] std::uint32_t layers_seen() const noexcept { return ledger().layers_seen; }
        [[nodiscard]] std::uint32_t competing() const noexcept { return ledger().competing; }
        [[nodiscard]] std::uint32_t keep(std::uint32_t layer, std::uint32_t head) const noexcept {
            return shard->keep_of(slot)[std::size_t{layer} * shard->lane_count() + head];
        }
        [[nodiscard]] float preference(std::uint32_t layer) const noexcept {
            return shard->memory.preference[shard->seat_of(slot) * shard->plan.layers + layer];
        }
        template <class F> void visit(std::uint32_t layer, std::uint32_t head, F&& f) const noexcept {
            kept_lane& lane = shard->lanes_of(slot, layer)[head];
            const rows held = shard->open(lane);
            for (std::uint32_t i = ledger().pinned; i < held.size(); ++i)
                f(settled_worth(*shard, held, i, lane.tokens));
        }
        [[nodiscard]] const sequence_budget& ledger() const noexcept {
            return shard->sequence_budget_of(slot);
        }
    };

    /// Lets the budget revise what all layers seen so far may hold, and cuts them back.
    void settle(std::uint32_t slot, std::uint32_t layer) noexcept {
        const std::span<std::uint32_t> keep = book_->keep_of(slot);
        const std::uint32_t pinned = book_->sequence_budget_of(slot).pinned, count = book_->lane_count();
        if constexpr (Types::budget::late) book_->budget.revise(layer, score_board_view{book_, slot}, keep);
        for (std::uint32_t l = Types::budget::late ? 0 : layer; l <= layer; ++l)
            for (std::uint32_t i = 0; i < count; ++i) {
                kept_lane& lane = book_->lanes_of(slot, l)[i];
                const rows held = book_->open(lane);
                std::uint32_t& mine = keep[std::size_t{l} * count + i];
                mine = std::min(mine, book_->cost(lane) - pinned);
                cut_back(lane, held, pinned + mine, pinned);
                // A prompt below budget leaves room for decode to fill. Heads that compete keep to what they got: a flag that is
                // missing leaves room unused.
                const bool all = (score::drops_unwanted && !Types::budget::late) ||
                                 mine == book_->sequence_budget_of(slot).competing;
                lane.limit = all ? std::max(book_->plan.keep, book_->cost(lane))
                                 : mine + book_->plan.sinks + book_->plan.window;
            }
        book_->recount(slot);
    }

    book* book_ = nullptr;
};

}} // namespace kvtl::v0
