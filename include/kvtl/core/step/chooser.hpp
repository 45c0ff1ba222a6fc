// Which units a query attends: index scores, reduced over the queries that share a lane, then the selector's
// choice.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/phase_clock.hpp>
#include <kvtl/core/step/row_attention.hpp>
#include <kvtl/core/store/lane.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/slots/selector.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace kvtl { inline namespace v0 {

/// Extents that the shard's classes share.
struct model_extents {
    std::uint32_t layers = 0;
    std::uint32_t kv_heads = 0;
    std::uint32_t group = 0;      ///< G, query heads per KV head
    std::uint32_t dim = 0;        ///< D
    std::uint32_t lane_heads = 1; ///< KV heads per lane: 1, or all of them
    logit_rule logits{};

    [[nodiscard]] std::uint32_t lanes() const noexcept { return kv_heads / lane_heads; }
    [[nodiscard]] std::uint32_t lane_queries() const noexcept { return lane_heads * group; }
    [[nodiscard]] std::uint32_t width() const noexcept { return lane_heads * dim; }
    [[nodiscard]] std::uint32_t query_heads() const noexcept { return kv_heads * group; }
    /// First float of a lane's queries in one token's q (HQ, D), and of its keys in one token's k (H, D).
    [[nodiscard]] std::size_t query_offset(std::uint32_t lane) const noexcept {
        return std::size_t{lane} * lane_queries() * dim;
    }
    [[nodiscard]] std::size_t key_offset(std::uint32_t lane) const noexcept {
        return std::size_t{lane} * width();
    }
    [[nodiscard]] query_lane queries_of(std::uint32_t lane) const noexcept {
        return {query_heads(), lane * lane_queries(), lane_heads, group, dim, logits};
    }
    [[nodiscard]] summary_shape summaries(std::uint32_t max_entries) const noexcept {
        return {lane_heads, group, dim, max_entries};
    }
};

/// Queries that attend the first entries of a unit alone.
struct unit_cut {
    std::uint16_t first = 0, queries = 0;
};

template <class Types> class chooser {
  public:
    using lane = typename Types::lane;
    using index = typename Types::index;
    using selector = typename Types::selector;

    /// Every query, or every KV head of a lane, chooses for itself: the choice is a union with masks.
    static constexpr bool per_query = selector::uses_scores && chooses_per_query<selector>;
    static constexpr bool per_head = selector::uses_scores && chooses_per_head<selector>;
    static constexpr bool unites = per_query || per_head;
    /// The estimator says what units are worth (choose_by_errors()).
    static constexpr bool by_errors = goes_by_errors<selector>;
    /// How many choose in a lane, each with the whole budget.
    [[nodiscard]] static constexpr std::uint32_t choosers(const model_extents& m) noexcept {
        return per_query ? m.group : per_head && m.lane_queries() <= 64 ? m.lane_heads : 1;
    }

    struct scratch {
        std::span<float> query;   ///< (width)
        std::span<float> score;   ///< (rows, U or entries)
        std::span<float> project; ///< for the index: projected queries, tables
        std::span<std::uint32_t> order;
        std::span<std::uint64_t> keys;
        std::span<std::uint64_t> mask; ///< (U) queries that chose a unit, when not all choose together
        std::span<unit_cut> cuts;      ///< (U) of these, those that chose a part of it
        narrowing few;                 ///< for an index that narrows

        static scratch take(carver& c, const model_extents& m, std::uint32_t max_units,
                            std::uint32_t max_entries, std::size_t index_floats) noexcept {
            scratch x;
            constexpr bool scores = selector::uses_scores, any = scores || by_errors;
            const std::size_t rows = !scores || one_row ? 1
                                     : linear           ? 2
                                                        : std::size_t{m.group} + 1,
                              row = std::size_t{max_units} * (scores_entries<index> ? max_entries : 1);
            x.query = c.take<float>(scores ? m.width() : 0);
            x.score = c.take<float>(any ? rows * row : 0);
            x.project = c.take<float>(scores ? index_floats : 0);
            x.order = c.take<std::uint32_t>(any ? max_units : 0);
            x.keys = c.take<std::uint64_t>(any ? max_units : 0);
            x.mask = c.take<std::uint64_t>(unites ? max_units : 0);
            x.cuts = c.take<unit_cut>(truncates_units<selector> ? max_units : 0);
            if (scores && narrows) x.few = narrowing::take(c, max_units, m.width());
            return x;
        }
    };

    chooser() = default;
    /// `counts`: where it is counted what choices take, or null.
    chooser(const model_extents& m, const typename Types::index_state& scores,
            const typename Types::selector_state& select, const scratch& x,
            choice_counts* counts = nullptr) noexcept
        : model_(m), index_(&scores), selector_(&select), x_(x), counts_(counts) {
        x_.few.counts = counts;
    }

    /// Chooses among the units of a lane for the queries `q` (lane queries, D) of one token; at most `budget`
    /// entries for each query. Writes them to `out` and returns their number: best first where units have records
    /// and all queries of a lane choose together (co_retrieval reads that), else in any order. For an index that
    /// scores stored keys, stream(visit) calls visit(codec, keys) for the records of all of them in order; when
    /// it fails, what is chosen means nothing.
    /// `bar`: the sequence's, for a selector that calibrates.
    template <class Stream = std::nullptr_t>
    [[nodiscard]] std::uint32_t choose(const float* q, const units_view& u, std::uint32_t budget,
                                       std::span<chosen_unit> out, phase_clock* clock = nullptr,
                                       Stream&& stream = {},
                                       float bar = -std::numeric_limits<float>::infinity()) noexcept {
        bar_ = bar;
        if constexpr (selector::takes_everything) {
            for (std::uint32_t i = 0; i < u.count; ++i) out[i] = {.unit = i};
            return u.count;
        } else {
            if (u.count == 0 || budget == 0) return 0;
            const phase_clock::span timed(clock, &phase_times::score);
            static_assert(!by_errors,
                          "[kvtl] selector: one that goes by errors chooses by choose_by_errors()");
            if constexpr (!selector::uses_scores) {
                timed.enter(&phase_times::choose);
                choice_input in({}, u, budget);
                in.named = std::exchange(named_, {});
                return selector_->choose(in, out);
            } else if constexpr (narrows) {
                const units_view few = narrowed(q, u, budget);
                const std::uint32_t chosen = choose_of(q, few, budget, out, timed, stream);
                for (std::uint32_t i = 0; i < chosen; ++i) out[i].unit = few.id(out[i].unit);
                return chosen;
            } else {
                return choose_of(q, u, budget, out, timed, stream);
            }
        }
    }

    /// The units that the engine names for the lane that chooses next, for a selector that goes by them.
    void name(std::span<const std::uint32_t> units) noexcept { named_ = units; }

    /// The same where price(scores) says what error each unit leaves when it is not read: in their order. `bar` and `output`:
    /// choice_input's. `marginal` becomes the lowest score chosen, or 0 if everything or nothing was. fetched(unit): entries
    /// for which the pages that would be read have room; 0: the unit is resident.
    template <class Fetched, class Price>
    [[nodiscard]] std::uint32_t choose_by_errors(const units_view& u, std::uint32_t budget,
                                                 std::span<chosen_unit> out, float bar, float output,
                                                 float& marginal, phase_clock* clock, Fetched&& fetched,
                                                 Price&& price) noexcept {
        marginal = 0;
        if (u.count == 0 || budget == 0) return 0;
        const phase_clock::span timed(clock, &phase_times::score);
        const std::span<float> score = x_.score.first(u.count);
        std::fill(score.begin(), score.end(), 0.0F);
        price(score);
        if (counts_ != nullptr) counts_->scored += std::uint64_t{model_.lane_queries()} * u.count;
        timed.enter(&phase_times::choose);
        choice_input in(score, u, budget, x_.order, x_.keys);
        in.bar = bar;
        in.output = output;
        // Where a unit is need not be looked up if it is not worth its cost wherever it is.
        const float least = selector_->least_worth(in), most = selector_->most_worth(u.max_entries);
        for (std::uint32_t i = 0; i < u.count; ++i)
            score[i] = score[i] * most > least ? score[i] * selector_->worth(u.entries(i), fetched(i)) : 0.0F;
        const std::uint32_t n = counted(u, selector_->choose(in, out));
        if (n < u.count)
            for (std::uint32_t i = 0; i < n; ++i)
                marginal = i == 0 ? score[out[i].unit] : std::min(marginal, score[out[i].unit]);
        return n;
    }

    /// Shows a selector that calibrates what it would choose from, each query for itself where they choose so.
    template <class Notes>
    void look(const float* q, const units_view& u, std::uint32_t budget, std::span<chosen_unit> spare,
              Notes& notes) noexcept {
        static_assert(!by_codec, "[kvtl] selector: one that calibrates goes by scores of an index in memory");
        if (u.count == 0 || budget == 0) return;
        std::nullptr_t no_stream = nullptr;
        score(q, u, no_stream);
        const std::uint32_t n = row_length(u);
        for (std::uint32_t g = 0; g < (per_query ? model_.group : 1); ++g) {
            float* row = &x_.score[per_query ? std::size_t{g + 1} * n : 0];
            fold_entries(u, row);
            selector_->note(input(u, {row, u.count}, budget), spare, notes);
        }
    }

    /// (group, U) scores of every query of a lane of one head, or (group, U, max_entries): the index is asked again, for
    /// an estimator that goes by them.
    [[nodiscard]] std::span<const float> scores(const float* q, const units_view& u) noexcept {
        static_assert(per_query);
        const std::span<float> rows =
            x_.score.subspan(row_length(u), std::size_t{model_.group} * row_length(u));
        std::nullptr_t no_stream = nullptr;
        score_head(q, u, 0, rows, no_stream);
        return rows;
    }

  private:
    static constexpr bool linear =
        !selector::uses_scores || (reduces_linearly<selector> && scores_linearly<index>);
    static constexpr bool by_codec = scores_stored_keys<index>;
    /// One product of a lane-wide mean query with what is kept of all heads together does it all.
    static constexpr bool one_row = linear && scores_whole_lanes<index>;

    static constexpr bool narrows = narrows_units<index>;

    template <class Stream>
    [[nodiscard]] std::uint32_t choose_of(const float* q, const units_view& u, std::uint32_t budget,
                                          std::span<chosen_unit> out, const phase_clock::span& timed,
                                          Stream& stream) noexcept {
        if constexpr (unites)
            if (per_query || choosers(model_) > 1) return choose_apart(q, u, budget, out, timed, stream);
        score(q, u, stream);
        timed.enter(&phase_times::choose);
        fold_entries(u, x_.score.data());
        for (std::uint32_t h = 0; h < model_.lane_heads; ++h)
            pin(u, h, budget / model_.lane_heads, x_.score.data());
        return counted(u, selector_->choose(input(u, x_.score.first(u.count), budget), out));
    }
    [[nodiscard]] std::uint32_t counted(const units_view& u, std::uint32_t chosen) const noexcept {
        if (counts_ != nullptr) counts_->compared += u.count, counts_->opened += chosen;
        return chosen;
    }

    /// Those units that the index finds worth scoring, for the mean query or, where scores are not linear, for each
    /// query of a lane of one head.
    [[nodiscard]] units_view narrowed(const float* q, const units_view& u, std::uint32_t budget) noexcept {
        std::uint32_t few = 0;
        if (linear || model_.lane_heads > 1) {
            for (std::uint32_t h = 0; h < model_.lane_heads; ++h) mean_query(q, h, &x_.query[h * model_.dim]);
            few = index_->narrow(x_.query.data(), 1, u, budget, x_.few);
        } else {
            few = index_->narrow(q, model_.group, u, budget, x_.few);
        }
        return u.only(x_.few.unit.first(few));
    }

    [[nodiscard]] choice_input input(const units_view& u, std::span<const float> score,
                                     std::uint32_t budget) const noexcept {
        choice_input in(score, u, budget, x_.order, x_.keys);
        in.bar = bar_;
        return in;
    }
    [[nodiscard]] static std::uint32_t row_length(const units_view& u) noexcept {
        return u.count * (scores_entries<index> ? u.max_entries : 1);
    }

    template <class Stream>
    void ask_index(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   Stream& stream) noexcept {
        if (counts_ != nullptr) counts_->scored += std::uint64_t{queries} * row_length(u);
        if constexpr (by_codec) {
            static_assert(simd::attend_block % Types::compressor::granule == 0);
            float* next = out.data();
            stream([&](const auto& codec, const records_view& keys) {
                if constexpr (requires {
                                  codec.score_run(q, u.dim, queries, keys, u.head, next, keys.count);
                              })
                    if (!one_row || model_.lane_heads == 1) {
                        codec.score_run(q, u.dim, queries, keys, u.head, next, row_length(u));
                        next += keys.count;
                        return;
                    }
                for (std::size_t first = 0; first < keys.count; first += simd::attend_block) {
                    const std::size_t n = std::min(simd::attend_block, keys.count - first);
                    const records_view block = keys.slice(first, n);
                    if constexpr (one_row)
                        score_heads(codec, q, block, next);
                    else
                        codec.score(q, u.dim, queries, block, u.head, next, row_length(u));
                    next += n;
                }
            });
        } else if constexpr (requires { index_->score(q, queries, u, out, x_.project); })
            index_->score(q, queries, u, out, x_.project);
        else
            index_->score(q, queries, u, out);
    }

    /// Scores of a block of stored keys, summed over the lane's heads. q: (lane heads, D), a query for each.
    template <class Codec>
    void score_heads(const Codec& codec, const float* q, const records_view& block, float* out) noexcept {
        const std::size_t dim = model_.dim;
        codec.score(q, dim, 1, block, 0, out, block.count);
        for (std::uint32_t h = 1; h < model_.lane_heads; ++h) {
            float of_head[simd::attend_block];
            codec.score(q + h * dim, dim, 1, block, h, of_head, block.count);
            simd::add(of_head, out, block.count);
        }
    }

    template <class Stream> void score(const float* q, const units_view& u, Stream& stream) noexcept {
        const std::uint32_t n = row_length(u);
        if constexpr (one_row) {
            for (std::uint32_t h = 0; h < model_.lane_heads; ++h) mean_query(q, h, &x_.query[h * model_.dim]);
            ask_index(x_.query.data(), 1, u, x_.score, stream);
        } else {
            const std::span<float> total = x_.score.first(n), rows = x_.score.subspan(n);
            for (std::uint32_t h = 0; h < model_.lane_heads; ++h) {
                score_head(q, u, h, rows, stream);
                if (per_query) return; // of its one head
                if (h == 0)
                    std::copy_n(rows.data(), n, total.data());
                else
                    simd::add(rows.data(), total.data(), n);
            }
        }
    }

    /// Scores of KV head h of a lane: one row, or one for each query where every query chooses.
    template <class Stream>
    void score_head(const float* q, const units_view& u, std::uint32_t h, std::span<float> rows,
                    Stream& stream) noexcept {
        units_view head = u;
        head.head = h;
        head.dim = model_.dim;
        head.mean = u.mean.columns(std::size_t{h} * model_.dim, model_.dim);
        if constexpr (linear) {
            mean_query(q, h, x_.query.data());
            ask_index(x_.query.data(), 1, head, rows, stream);
        } else {
            ask_index(q + std::size_t{h} * model_.group * model_.dim, model_.group, head, rows, stream);
            selector::reduction::apply(rows, model_.group, row_length(u), model_.logits.scale);
        }
    }

    /// The mean over a KV head's queries: its score is the mean of their scores.
    void mean_query(const float* q, std::uint32_t h, float* out) const noexcept {
        const float* first = q + std::size_t{h} * model_.group * model_.dim;
        std::copy_n(first, model_.dim, out);
        for (std::uint32_t g = 1; g < model_.group; ++g)
            simd::add(first + std::size_t{g} * model_.dim, out, model_.dim);
        simd::scale(1.0F / static_cast<float>(model_.group), out, model_.dim);
    }

    /// A unit counts as much as its best entry: scores per entry become scores per unit, in place.
    static void fold_entries(const units_view& u, float* score) noexcept {
        if (!scores_entries<index> || u.max_entries == 1) return;
        if (u.entries_if_fixed() == u.max_entries) return simd::max_of_each(score, u.count, u.max_entries);
        for (std::uint32_t i = 0; i < u.count; ++i)
            score[i] = simd::max_of(score + std::size_t{i} * u.max_entries, u.entries(i));
    }

    /// Units that the index wants chosen in any case, as far as its part of the budget goes, score best.
    void pin(const units_view& u, std::uint32_t head, std::uint32_t budget, float* score) const noexcept {
        if constexpr (pins_units<index>)
            index_->pinned(u, head, budget,
                           [score](std::uint32_t unit) { score[unit] = std::numeric_limits<float>::max(); });
    }

    /// The union of what each query of a lane of one head, or each head of a lane of several, chooses, in unit order.
    template <class Stream>
    [[nodiscard]] std::uint32_t choose_apart(const float* q, const units_view& u, std::uint32_t budget,
                                             std::span<chosen_unit> out, const phase_clock::span& timed,
                                             Stream& stream) noexcept {
        const std::uint32_t n = row_length(u), queries = per_query ? 1 : model_.group;
        const std::uint64_t some = simd::all_queries >> (64 - queries);
        if constexpr (per_query) {
            score(q, u, stream);
            timed.enter(&phase_times::choose);
        }
        for (std::uint32_t c = 0; c < choosers(model_); ++c) {
            const std::uint32_t head = per_query ? 0 : c;
            const std::span<float> row = x_.score.subspan(per_query ? std::size_t{c + 1} * n : n);
            if constexpr (per_head) score_head(q, u, head, row, stream);
            fold_entries(u, row.data());
            pin(u, head, budget, row.data());
            const std::uint32_t count =
                counted(u, selector_->choose(input(u, row.first(u.count), budget), out));
            for (std::uint32_t i = 0; i < count; ++i) {
                if (truncates_units<selector>) {
                    // Cuts have a bit for 16 queries: what others would cut off they go without.
                    if (out[i].first != 0 && c >= 16) continue;
                    if (out[i].first != 0) cut_off(out[i], c);
                }
                x_.mask[out[i].unit] |= some << (c * queries);
            }
        }
        return unite(u, out);
    }
    /// Where several queries cut a unit off, the least of them is what all of these attend.
    void cut_off(const chosen_unit& c, std::uint32_t g) noexcept {
        unit_cut& at = x_.cuts[c.unit];
        at.first = at.queries == 0 ? c.first : std::min(at.first, c.first);
        at.queries = static_cast<std::uint16_t>(at.queries | 1U << g);
    }

    /// What has been noted of the units becomes the choice, in unit order, and is forgotten.
    [[nodiscard]] std::uint32_t unite(const units_view& u, std::span<chosen_unit> out) noexcept {
        std::uint32_t chosen = 0;
        for (std::uint32_t i = 0; i < u.count; ++i) {
            if (x_.mask[i] == 0) continue;
            out[chosen] = {.unit = i, .mask = std::exchange(x_.mask[i], 0)};
            if (truncates_units<selector>) {
                const unit_cut at = std::exchange(x_.cuts[i], {});
                out[chosen].first = at.first;
                out[chosen].cut = at.queries;
            }
            ++chosen;
        }
        return chosen;
    }

    model_extents model_{};
    const typename Types::index_state* index_ = nullptr;
    const typename Types::selector_state* selector_ = nullptr;
    scratch x_{};
    choice_counts* counts_ = nullptr;
    std::span<const std::uint32_t> named_;                ///< during a choice
    float bar_ = -std::numeric_limits<float>::infinity(); ///< of the sequence that chooses
};

}} // namespace kvtl::v0
