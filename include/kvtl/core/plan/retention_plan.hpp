// Sizes of what retention keeps in memory: who holds how many rows at most, and what memory that takes.
//
// What:   open() promises that a prompt in one chunk, its survivors and, where the preset evicts in
//         decode, any number of decode steps fit; that is the declared peak. Demoted entries count by the rows
//         whose memory they take. Rows beyond it (earlier
//         chunks of a prompt, which wait for the last one; decoded entries of presets that evict at the
//         prompt's end only) come from what memory_bytes leaves, and are refused when it is used up.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/store/record_rows.hpp>
#include <kvtl/core/store/row_pool.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/causal.hpp>
#include <kvtl/simd/topk.hpp>
#include <kvtl/slots/budget.hpp>
#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// How a lane divides its limit where entries are demoted. Limits and costs are rows of the first chain.
struct demotion_plan {
    std::uint32_t per_block = 0; ///< demoted rows of a block, more than rows_per_block; 0: nothing is demoted

    /// Rows whose memory n demoted ones take.
    [[nodiscard]] std::uint32_t cost(std::uint32_t n) const noexcept {
        if (per_block == 0) return 0;
        return static_cast<std::uint32_t>((std::uint64_t{n} * rows_per_block + per_block - 1) / per_block);
    }
    /// Demoted rows that fit into the memory of n rows.
    [[nodiscard]] std::uint64_t room(std::uint64_t n) const noexcept {
        return n * per_block / rows_per_block;
    }

    struct parts {
        std::uint32_t full = 0, demoted = 0;
    };
    /// Of n entries, `pinned` of them in the first chain in any case: as many in the first chain as fit with
    /// the others. The entries beyond both parts are dropped.
    [[nodiscard]] parts divide(std::uint32_t limit, std::uint32_t n, std::uint32_t pinned) const noexcept {
        if (n <= limit || per_block == 0) return {std::min(n, limit), 0};
        const std::uint64_t bound = std::uint64_t{limit} * per_block, all = std::uint64_t{n} * rows_per_block;
        const auto most =
            static_cast<std::uint32_t>((std::max(bound, all) - all) / (per_block - rows_per_block));
        const std::uint32_t full = std::min(limit, std::max(most, pinned));
        return {full, static_cast<std::uint32_t>(std::min<std::uint64_t>(n - full, room(limit - full)))};
    }
};

struct retention_plan {
    std::uint32_t layers = 0, kv_heads = 0, group = 1, dim = 0;
    record_bytes record{}; ///< bytes of an entry's records; ragged: at most
    shard_division division;
    std::uint32_t sequences = 1;
    std::uint32_t shard_sequences = 1; ///< sequences that have lanes in one shard
    std::uint32_t lanes_per_head = 1;  ///< G where every query head keeps entries of its own
    std::uint32_t lane_group = 1;      ///< query heads of a lane
    std::uint32_t shard_lanes = 0;     ///< lanes of a layer in one shard, at most
    bool hands_over = false;           ///< what a prompt keeps moves on; nothing is decoded here
    std::uint32_t sinks = 0, window = 0, keep = 0;
    std::uint32_t slack = 0; ///< entries a lane may hold over its limit before decode evicts
    std::uint32_t max_tokens = 0, prefill_tokens = 0;
    std::size_t remembered = 0;          ///< bytes of each token in a lane, for the score
    std::uint32_t most_rows = 0;         ///< of a lane
    std::uint32_t blocks = 0;            ///< of a shard's pool
    std::uint32_t guaranteed_blocks = 0; ///< of a sequence in a shard
    demotion_plan demotion;

    logit_rule logits{};
    layer_numbers numbers;

    [[nodiscard]] std::size_t query_floats() const noexcept { return std::size_t{kv_heads} * group * dim; }
    [[nodiscard]] std::size_t key_floats() const noexcept { return std::size_t{kv_heads} * dim; }
};

/// A lane: one head of one layer of one sequence.
struct kept_lane {
    block_chain rows;
    block_chain demoted;       ///< entries that lost their place among `rows`
    block_chain queries;       ///< raw blocks: the last queries of a prompt whose last chunk is to come
    std::uint32_t tokens = 0;  ///< of the sequence, dropped ones included
    std::uint32_t limit = 0;   ///< rows it may hold in decode
    std::uint32_t waiting = 0; ///< tokens of queries in `queries`
    float merge_bar = 0;       ///< what a merging retention remembers of the lane
    bool prompt_open = false;  ///< a chunk has come, the last one has not
    bool wanted = false;       ///< that chunk, or one before it, had something that should stay
};

/// Rows of a lane that hold neighbouring tokens in order.
struct token_run {
    std::uint32_t first_token = 0;
    std::uint32_t begin = 0; ///< first row
    std::uint32_t rows = 0;
    std::uint32_t dropped = 0; ///< tokens between the run and the latest token that are no longer held
};
/// By their first tokens, the latest in front.
inline void sort_latest_first(std::span<token_run> runs) noexcept {
    std::sort(runs.begin(), runs.end(),
              [](const token_run& a, const token_run& b) { return a.first_token > b.first_token; });
}

/// What a shard knows of a sequence beside its lanes.
struct sequence_budget {
    std::uint32_t layers_seen = 0; ///< layers whose prompt is complete
    std::uint32_t competing = 0;   ///< entries of the prompt that compete in each lane
    std::uint32_t pinned = 0;      ///< those that do not
    std::uint32_t blocks = 0;      ///< blocks the sequence holds
};

/// The memory of a shard, carved from the reservation. E: stored element.
template <class Types> struct retention_memory {
    using E = typename Types::element_type;
    std::span<kept_lane> lanes;                   ///< (sequences of the shard, L, lanes)
    std::span<std::uint32_t> keep;                ///< likewise: competing entries that each may hold
    std::span<float> preference;                  ///< (sequences of the shard, L)
    std::span<sequence_budget> sequence_budgets;  ///< (sequences of the shard)
    std::span<std::uint32_t> links;               ///< (blocks) of the pool
    std::span<std::byte> score, budget, position; ///< the policies' own
    std::span<std::byte> past; ///< (sequences of the shard, L, lanes, tokens) what the score remembers
    std::span<float> balance;  ///< (sequences of the shard, L, lanes, D) factors of demoted keys

    std::span<E> work_k, work_v;  ///< (prefill, D) one lane's prompt
    std::span<E> row_k, row_v;    ///< (D) a row on its way to its record
    row_tile<Types> shown;        ///< rows for engines that attend themselves
    std::span<float> board;       ///< (lanes, prefill) scores of one layer
    std::span<float> value_sizes; ///< (prefill)
    std::span<float> logits;      ///< (G, rows)
    std::span<float> rank;        ///< (prefill) where worth depends on age
    std::span<float> spare;       ///< (spare rows, prefill)
    std::span<float> observed;    ///< (2 W, G, D) last queries
    std::span<float> causal;
    std::span<std::uint32_t> order, table; ///< (prefill); blocks of one lane
    std::span<std::uint32_t> numbers; ///< (prefill) tokens of the work area, where chunks are evicted from
    std::span<std::uint32_t> demoted_table; ///< likewise, of demoted rows
    std::span<std::uint64_t> ranking;
    std::span<float> partial, attend, mass, worth, arrival;
    std::span<float> turned;   ///< (G, D) queries for keys that are turned back, or balanced
    std::span<float> query;    ///< (G, D) of a lane, where they come in 16 bits
    std::span<float> arrived;  ///< (2, H, D) and (HQ, D) of a token that did not come as floats
    std::span<token_run> runs; ///< (rows) where positions move

    [[gnu::cold]] static retention_memory take(const retention_plan& p,
                                               const typename Types::score_config& score_config,
                                               const score_limits& score_sizes,
                                               const budget_limits& budget_sizes, carver& metadata,
                                               carver& index, carver& scratch) noexcept {
        using score = typename Types::score;
        retention_memory m;
        const std::size_t lanes = std::size_t{p.shard_sequences} * p.layers * p.shard_lanes;
        m.lanes = metadata.take<kept_lane>(lanes);
        m.keep = metadata.take<std::uint32_t>(lanes);
        m.preference = metadata.take<float>(std::size_t{p.shard_sequences} * p.layers);
        m.sequence_budgets = metadata.take<sequence_budget>(p.shard_sequences);
        m.links = metadata.take<std::uint32_t>(p.blocks);
        m.budget = metadata.take<std::byte>(Types::budget_state::bytes(budget_sizes));
        m.position = metadata.take<std::byte>(Types::position_state::bytes(p.dim));
        m.score = index.take<std::byte>(Types::score_state::bytes(score_config, score_sizes));
        m.past = index.take<std::byte>(lanes * p.max_tokens * p.remembered);
        m.balance = metadata.take<float>(Types::balances_channels ? lanes * p.dim : 0);

        const std::size_t prompt = p.prefill_tokens;
        const bool observes = score::source != score_source::arrival && score::source != score_source::keys;
        constexpr bool windowed = score::source == score_source::window;
        m.work_k = scratch.take<E>(prompt * p.dim);
        m.work_v = scratch.take<E>(prompt * p.dim);
        m.row_k = scratch.take<E>(p.dim);
        m.row_v = scratch.take<E>(p.dim);
        m.shown = row_tile<Types>::take(scratch, rows_per_block, p.dim);
        m.board = scratch.take<float>(p.shard_lanes * prompt);
        m.value_sizes = scratch.take<float>(score::reads_values ? prompt : 0);
        m.logits = scratch.take<float>(
            p.lane_group *
            std::max<std::size_t>(observes ? prompt : 0, Types::reads_mass ? std::size_t{p.most_rows} : 0));
        m.rank = scratch.take<float>(score::ages ? prompt : 0);
        m.spare = scratch.take<float>(score::spare_rows * prompt);
        m.observed = scratch.take<float>(windowed ? std::size_t{2} * p.window * p.lane_group * p.dim : 0);
        m.causal = scratch.take<float>(simd::causal_scratch_floats(p.dim));
        m.order = scratch.take<std::uint32_t>(prompt);
        m.numbers = scratch.take<std::uint32_t>(Types::evicts_by_chunk ? prompt : 0);
        m.table = scratch.take<std::uint32_t>(blocks_for(p.most_rows) + 1);
        m.demoted_table = scratch.take<std::uint32_t>(
            Types::demotes ? blocks_for(p.most_rows, p.demotion.per_block) + 1 : 0);
        m.ranking = scratch.take<std::uint64_t>(prompt);
        m.partial = scratch.take<float>(partial_floats(p.lane_group, p.dim));
        m.attend = scratch.take<float>(simd::attend_scratch_floats(p.lane_group));
        m.turned = scratch.take<float>(
            Types::position::moves || Types::balances_channels ? std::size_t{p.lane_group} * p.dim : 0);
        m.mass = scratch.take<float>(Types::reads_mass ? std::size_t{p.shard_lanes} * p.most_rows : 0);
        m.worth = scratch.take<float>(score::evicts_in_decode ? p.most_rows : 0);
        m.arrival = scratch.take<float>(p.shard_lanes);
        m.query = scratch.take<float>(std::size_t{p.lane_group} * p.dim);
        constexpr bool scores_queries = contains(needs_of<score>(), engine_input::q);
        m.arrived = scratch.take<float>(score::source == score_source::arrival
                                            ? 2 * p.key_floats() + (scores_queries ? p.query_floats() : 0)
                                            : 0);
        m.runs = scratch.take<token_run>(Types::position::moves ? p.most_rows : 0);
        return m;
    }
};

}} // namespace kvtl::v0
