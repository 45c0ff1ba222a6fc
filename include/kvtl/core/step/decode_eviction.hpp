// Decode: a token arrives, attends what is held, feeds back what it attended to, and something may leave.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/attend_records.hpp>
#include <kvtl/core/store/eviction_state.hpp>

#include <algorithm>
#include <limits>

namespace kvtl { inline namespace v0 {

template <class Types> class decode_eviction {
    using book = eviction_state<Types>;
    using E = typename book::E;
    using score = typename Types::score;
    using record = typename book::record;
    using rows = typename book::rows;
    static constexpr bool reads_mass = Types::reads_mass;
    static constexpr bool merges = Types::retention::merges;

  public:
    decode_eviction() = default;
    explicit decode_eviction(book& b) noexcept : book_(&b) {}

    /// Token t of the input: appended, attended where there is an `out` (or mass is wanted), evicted for. Unless it stays,
    /// nothing is fed back or evicted: its row, the last of each lane, is to be taken out again.
    void step(std::uint32_t slot, std::uint32_t layer, const layer_input& in, std::size_t t,
              const tensor_span& out, bool stays = true) noexcept {
        const std::span<kept_lane> lanes = book_->lanes_of(slot, layer);
        const std::uint32_t had = book_->count_blocks(lanes), token = lanes[0].tokens;
        const phase_clock::span timed(book_->clock, &phase_times::append);
        if (stays) book_->arrive(slot, layer, in, t, token, true);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            kept_lane& lane = lanes[i];
            const rows held = book_->open(lane);
            const std::uint32_t row = held.push(token);
            const std::size_t at = t * book_->plan.key_floats() + book_->key_offset(i);
            simd::encode(in.k, at, book_->memory.row_k.data(), book_->plan.dim);
            simd::encode(in.v, at, book_->memory.row_v.data(), book_->plan.dim);
            book_->store(held, row, book_->memory.row_k.data(), book_->memory.row_v.data());
            if (score::source == score_source::arrival) held.score(row) = book_->memory.arrival[i];
            ++lane.tokens;
            if (!out.empty() || reads_mass) {
                timed.enter(&phase_times::attend);
                attend_held(lane, held, book_->query(in, t, i), i, token, in, t, out);
                const std::uint64_t bytes = out.empty() ? 0 : book_->record_bytes_of(lane);
                book_->stats.chosen_bytes += bytes;
                book_->stats.resident_chosen_bytes += bytes;
                timed.enter(&phase_times::append);
            }
        }
        if (!stays) return book_->recount(slot, lanes, had);
        timed.enter(&phase_times::evict);
        if (reads_mass && score::decides_together)
            average_mass(static_cast<std::uint32_t>(lanes.size()), book::entries(lanes[0]));
        if constexpr (score::evicts_in_decode)
            for (std::uint32_t i = 0; i < lanes.size(); ++i) {
                kept_lane& lane = lanes[i];
                if constexpr (reads_mass)
                    book_->each_chain(lane, [&](const auto& held, std::uint32_t first) {
                        feed(held, book_->mass_of(i, book::entries(lane)).subspan(first), token);
                    });
                if (score::drops_unwanted || book_->cost(lane) > lane.limit + book_->score.slack())
                    evict(lane, token);
            }
        book_->recount(slot, lanes, had);
    }

  private:
    [[nodiscard]] partial seen() const noexcept {
        return partial_at(book_->memory.partial.data(), book_->plan.lane_group, book_->plan.dim);
    }
    /// Attention of a lane's query group to all rows held: to `out` and lse where asked for, and to book_->mass_of(i).
    void attend_held(kept_lane& lane, const rows& held, const float* q, std::uint32_t i, std::uint32_t token,
                     const layer_input& in, std::size_t t, const tensor_span& out) noexcept {
        const partial p = seen();
        reset(p);
        const std::uint32_t n = book::entries(lane);
        const auto attend_rows = [&](const auto& some, const auto& codec, std::uint32_t begin,
                                     std::uint32_t end, const float* query, std::uint32_t before) {
            some.pieces(
                begin, end,
                [&](std::uint32_t first, const records_view& k, const records_view& v, const float* w) {
                    const float* log_weight = merges ? w : nullptr;
                    const record_attention piece(codec, {query, book_->plan.dim, book_->plan.logits, 0}, k,
                                                 v);
                    if constexpr (reads_mass)
                        piece.attend_keeping_logits(log_weight, p, book_->memory.attend,
                                                    &book_->memory.logits[before + first], n);
                    else
                        piece.attend(log_weight, p, book_->memory.attend);
                });
        };
        const auto attend = [&](std::uint32_t begin, std::uint32_t end, const float* query) {
            attend_rows(held, book_->codec, begin, end, query, 0);
        };
        if constexpr (Types::position::moves) {
            for (const token_run& run : find_runs(held, token)) {
                const float* query = q;
                if (run.dropped > 0) {
                    book_->position.turn_back(q, book_->plan.lane_group, run.dropped,
                                              book_->memory.turned.data());
                    query = book_->memory.turned.data();
                }
                attend(run.begin, run.begin + run.rows, query);
            }
        } else {
            attend(0, held.size(), q);
        }
        if constexpr (Types::demotes)
            if (const auto demoted = book_->open_demoted(lane); demoted.size() > 0)
                attend_rows(demoted, book_->demoted_codec, 0, demoted.size(), book_->demoted_query(lane, q),
                            held.size());
        finish_token(book_->queries_of(i), 0, p, in, t, out);
        if constexpr (reads_mass)
            simd::shares_of_softmax(book_->memory.logits.data(), n, n, p, book_->mass_of(i, n).data());
    }
    /// The rows as runs of neighbouring tokens, latest first, each with the number of tokens dropped behind
    /// it.
    [[nodiscard]] std::span<const token_run> find_runs(const rows& held, std::uint32_t token) noexcept {
        std::uint32_t n = 0;
        for (std::uint32_t i = 0; i < held.size(); ++i) {
            if (n == 0 ||
                held.token(i) != book_->memory.runs[n - 1].first_token + book_->memory.runs[n - 1].rows)
                book_->memory.runs[n++] = {held.token(i), i, 0, 0};
            ++book_->memory.runs[n - 1].rows;
        }
        const std::span<token_run> runs = book_->memory.runs.first(n);
        sort_latest_first(runs);
        std::uint32_t later = 0; // held rows from this run on
        for (token_run& run : runs) {
            later += run.rows;
            run.dropped = token + 1 - run.first_token - later;
        }
        return runs;
    }

    void average_mass(std::uint32_t lanes, std::uint32_t n) noexcept {
        const std::span<float> first = book_->mass_of(0, n);
        for (std::uint32_t i = 1; i < lanes; ++i) simd::add(book_->mass_of(i, n).data(), first.data(), n);
        simd::scale(1.0F / static_cast<float>(lanes), first.data(), n);
        for (std::uint32_t i = 1; i < lanes; ++i)
            std::copy(first.begin(), first.end(), book_->mass_of(i, n).begin());
    }
    template <class Rows>
    void feed(const Rows& held, std::span<const float> mass, std::uint32_t token) noexcept {
        for (std::uint32_t i = 0; i < held.size(); ++i) {
            auto&& remembered = held.record(i);
            book_->score.feed(held_entry{held.score(i), held.token(i), token}, mass[i], held.score(i),
                              remembered);
        }
    }
    /// Gives up the entries that are worth least until the lane is at its limit, or as far below it as the score
    /// wants; among equals the latest goes. Where entries are demoted, those of the first chain move on first.
    void evict(kept_lane& lane, std::uint32_t token) noexcept {
        const rows held = book_->open(lane);
        const std::uint32_t most = lane.limit - std::min(lane.limit, book_->score.headroom());
        if constexpr (Types::demotes) {
            const auto demoted = book_->open_demoted(lane);
            const auto parts = book_->plan.demotion.divide(most, book::entries(lane),
                                                           book_->plan.sinks + book_->plan.window);
            each_least(held, token, [&](std::uint32_t least, float) {
                if (held.size() <= parts.full) return false;
                return book_->demote(lane, held, demoted, least), true;
            });
            each_least(demoted, token, [&](std::uint32_t least, float) {
                if (demoted.size() <= parts.demoted) return false;
                return demoted.remove(least), true;
            });
        } else {
            each_least(held, token, [&](std::uint32_t least, float worth) {
                if (held.size() <= most && (!score::drops_unwanted || book_->score.wanted(worth)))
                    return false;
                if constexpr (merges)
                    book_->score.merge(held, leaving_row(held, least), book_->plan.sinks, lane.merge_bar);
                return held.remove(least), true;
            });
        }
    }
    /// Calls leave(row, worth) with the row that is worth least until that returns false. A row that leaves is
    /// removed; pinned ones are worth more than all others.
    template <class Rows, class Leave>
    void each_least(const Rows& held, std::uint32_t token, Leave&& leave) noexcept {
        const std::span<float> worth = book_->memory.worth;
        for (std::uint32_t i = 0; i < held.size(); ++i) {
            const std::uint32_t t = held.token(i);
            const bool pinned = t < book_->plan.sinks || t + std::uint64_t{book_->plan.window} > token;
            worth[i] = pinned ? std::numeric_limits<float>::infinity()
                              : book_->score.worth(held_entry{held.score(i), t, token}, held.record(i));
        }
        while (held.size() > 0) {
            std::uint32_t least = 0;
            for (std::uint32_t i = 1; i < held.size(); ++i)
                if (worth[i] < worth[least] ||
                    (!(worth[least] < worth[i]) && held.token(i) > held.token(least)))
                    least = i;
            const std::uint32_t last = held.size() - 1;
            if (!leave(least, worth[least])) break;
            worth[least] = worth[last];
        }
    }

    book* book_ = nullptr;
};

}} // namespace kvtl::v0
