// What the parts of a shard share when entries are dropped: lanes, rows, budgets kept, scratch, counters.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/call_half.hpp>
#include <kvtl/core/plan/retention_plan.hpp>
#include <kvtl/core/step/phase_clock.hpp>
#include <kvtl/core/step/row_attention.hpp>
#include <kvtl/core/store/row_pool.hpp>
#include <kvtl/statistics.hpp>

#include <algorithm>
#include <cassert>
#include <cstdio>

namespace kvtl { inline namespace v0 {

template <class Types> struct eviction_state {
    using E = typename Types::element_type;
    using score_policy = typename Types::score;
    using record = typename score_policy::record;
    using pool_type = row_pool<E, record>;
    using rows = kept_rows<pool_type>;
    using demoted_rows = kept_rows<pool_type, 0>;

    retention_plan plan{};
    std::uint32_t index = 0; ///< of the shard
    retention_memory<Types> memory{};
    pool_type pool;
    typename Types::row_codec codec{};
    typename Types::demoted_codec demoted_codec{};
    row_format demoted_format{};
    typename Types::score_state score{};
    typename Types::budget_state budget{};
    typename Types::position_state position{};
    statistics stats;
    phase_clock* clock = nullptr; ///< the stopwatch, or none

    // -------------------------------------------------------------------------------------- places
    /// A sequence that belongs to another shard has no lanes here, nor a seat in the tables.
    [[nodiscard]] bool owns(std::uint32_t slot) const noexcept { return plan.division.owns(slot, index); }
    /// Where the tables of a shard have a sequence: one that belongs to the shard alone takes no room in others.
    [[nodiscard]] std::size_t seat_of(std::uint32_t slot) const noexcept {
        assert(owns(slot));
        return plan.division.seat(slot);
    }
    [[nodiscard]] sequence_budget& sequence_budget_of(std::uint32_t slot) const noexcept {
        return memory.sequence_budgets[seat_of(slot)];
    }
    [[nodiscard]] std::span<kept_lane> lanes_of(std::uint32_t slot, std::uint32_t layer) const noexcept {
        if (!owns(slot)) return {};
        const std::size_t first = (seat_of(slot) * plan.layers + layer) * plan.shard_lanes;
        return memory.lanes.subspan(first, lane_count());
    }
    [[nodiscard]] rows open(kept_lane& lane) noexcept { return {pool, lane.rows, memory.table}; }
    [[nodiscard]] demoted_rows open_demoted(kept_lane& lane) noexcept {
        return {pool, lane.demoted, memory.demoted_table, demoted_format};
    }
    /// f(rows, first entry) for the chains of a lane that the retention has.
    template <class F> void each_chain(kept_lane& lane, F&& f) noexcept {
        f(open(lane), 0U);
        if constexpr (Types::demotes) f(open_demoted(lane), lane.rows.rows);
    }
    /// Entries of a lane in all chains.
    [[nodiscard]] static std::uint32_t entries(const kept_lane& lane) noexcept {
        return lane.rows.rows + lane.demoted.rows;
    }
    /// Rows of the first chain whose memory the entries of a lane take.
    [[nodiscard]] std::uint32_t cost(const kept_lane& lane) const noexcept {
        return lane.rows.rows + plan.demotion.cost(lane.demoted.rows);
    }
    /// Bytes of the records of a lane.
    [[nodiscard]] std::uint64_t record_bytes_of(const kept_lane& lane) const noexcept {
        return std::uint64_t{lane.rows.rows} * plan.record.entry() +
               std::uint64_t{lane.demoted.rows} * demoted_format.most.entry();
    }
    [[nodiscard]] std::uint32_t lane_count() const noexcept {
        return plan.division.lanes_of(plan.kv_heads, index) * plan.lanes_per_head;
    }
    /// The KV head of a lane.
    [[nodiscard]] std::uint32_t head_of(std::uint32_t lane) const noexcept {
        return plan.division.lane(lane / plan.lanes_per_head, index);
    }
    [[nodiscard]] query_lane queries_of(std::uint32_t lane) const noexcept {
        return {plan.kv_heads * plan.group,
                head_of(lane) * plan.group + lane % plan.lanes_per_head,
                1,
                plan.lane_group,
                plan.dim,
                plan.logits};
    }
    /// The first of a lane's queries in (HQ, D).
    [[nodiscard]] std::size_t query_offset(std::uint32_t lane) const noexcept {
        return queries_of(lane).offset(0);
    }
    [[nodiscard]] std::size_t key_offset(std::uint32_t lane) const noexcept {
        return std::size_t{head_of(lane)} * plan.dim;
    }
    [[nodiscard]] std::span<std::uint32_t> keep_of(std::uint32_t slot) const noexcept {
        const std::size_t n = std::size_t{plan.layers} * plan.shard_lanes;
        return memory.keep.subspan(seat_of(slot) * n, std::size_t{plan.layers} * lane_count());
    }
    [[nodiscard]] std::span<float> board(std::uint32_t lane, std::uint32_t tokens) const noexcept {
        return memory.board.subspan(std::size_t{lane} * plan.prefill_tokens, tokens);
    }
    [[nodiscard]] std::span<float> mass_of(std::uint32_t lane, std::uint32_t n) const noexcept {
        return memory.mass.subspan(std::size_t{lane} * plan.most_rows, n);
    }
    [[nodiscard]] std::uint32_t query_blocks(std::uint32_t tokens) const noexcept {
        const std::size_t bytes = std::size_t{tokens} * plan.lane_group * plan.dim * sizeof(float);
        return static_cast<std::uint32_t>((bytes + pool.block_bytes() - 1) / pool.block_bytes());
    }

    // -------------------------------------------------------------------------------------- rows
    /// Row i of a lane becomes the entry with key k and value v, (D) each.
    void store(const rows& held, std::uint32_t i, const E* k, const E* v) const noexcept {
        static_cast<void>(codec.encode_key(k, 0, held.key_record(i)));
        static_cast<void>(codec.encode_value(v, held.value_record(i)));
    }
    /// Adds a demoted row for the entry with key k and value v, (D) each. k is scratch afterwards.
    std::uint32_t push_demoted(kept_lane& lane, const demoted_rows& to, std::uint32_t token, E* k,
                               const E* v) const noexcept requires(Types::demotes) {
        const std::span<const float> factor = balance_of(lane);
        constexpr float most = largest_of<E>();
        for (std::size_t d = 0; d < factor.size(); ++d)
            k[d] = from_float<E>(std::clamp(to_float(k[d]) * factor[d], -most, most));
        const std::uint32_t i = to.push(token);
        static_cast<void>(demoted_codec.encode_key(k, 0, to.key_record(i)));
        static_cast<void>(demoted_codec.encode_value(v, to.value_record(i)));
        return i;
    }
    /// Row i of a lane moves on to its demoted rows; the last row takes its place.
    void demote(kept_lane& lane, const rows& held, const demoted_rows& to, std::uint32_t i) noexcept
        requires(Types::demotes) {
        codec.decode_keys({held.key_record(i), 1, plan.record.key}, memory.row_k.data());
        codec.decode_values({held.value_record(i), 1, plan.record.value}, memory.row_v.data());
        const std::uint32_t at =
            push_demoted(lane, to, held.token(i), memory.row_k.data(), memory.row_v.data());
        to.score(at) = held.score(i);
        to.record(at) = held.record(i);
        held.remove(i);
    }
    /// (D) what a channel of a lane's keys is multiplied by before it is encoded again. While a prompt is open:
    /// the largest magnitude of its queries.
    [[nodiscard]] std::span<float> balance_of(const kept_lane& lane) const noexcept {
        if (!Types::balances_channels) return {};
        const auto i = static_cast<std::size_t>(&lane - memory.lanes.data());
        return memory.balance.subspan(i * plan.dim, plan.dim);
    }
    /// What the score remembers of the first n tokens of a lane, dropped ones included.
    [[nodiscard]] std::span<std::byte> past_of(const kept_lane& lane, std::size_t n) const noexcept {
        const auto i = static_cast<std::size_t>(&lane - memory.lanes.data());
        return memory.past.subspan(i * plan.max_tokens * plan.remembered, n * plan.remembered);
    }
    /// The queries of a lane, (lane group, D), for its demoted rows.
    [[nodiscard]] const float* demoted_query(const kept_lane& lane, const float* q) const noexcept {
        const std::span<const float> factor = balance_of(lane);
        if (factor.empty()) return q;
        for (std::size_t i = 0; i < std::size_t{plan.lane_group} * plan.dim; ++i)
            memory.turned[i] = q[i] / factor[i % plan.dim];
        return memory.turned.data();
    }

    /// What rows are asked for, so that a refusal can say what helps.
    enum class rows_for : std::uint8_t { chunk, decode };
    /// Blocks that `tokens` more entries in each lane of a layer may take.
    [[nodiscard]] std::uint32_t growth(std::uint32_t slot, std::uint32_t layer,
                                       std::uint32_t tokens) const noexcept {
        std::uint32_t more = 0;
        for (const kept_lane& lane : lanes_of(slot, layer)) {
            const std::uint32_t has = cost(lane), held = lane.rows.blocks + lane.demoted.blocks;
            std::size_t n = std::size_t{has} + tokens;
            // A chain of demoted rows has a last block of its own, and an entry is in both for a moment.
            if (score_policy::evicts_in_decode)
                n = std::min<std::size_t>(n, std::max(has, lane.limit + plan.slack) +
                                                 (Types::demotes ? 2U : 1U));
            const std::uint32_t want = blocks_for(n) + (Types::demotes ? 1U : 0U);
            more += want - std::min(want, held);
        }
        return more;
    }
    /// A sequence may always have its guaranteed blocks; what is beyond comes from the common rest.
    [[nodiscard]] status reserve(std::uint32_t slot, std::uint32_t more, const char* call,
                                 rows_for use) const noexcept {
        if (!owns(slot)) return {};
        std::uint64_t promised = 0;
        for (std::uint32_t s = 0; s < plan.sequences; ++s)
            if (s != slot && owns(s))
                promised +=
                    plan.guaranteed_blocks - std::min(plan.guaranteed_blocks, sequence_budget_of(s).blocks);
        const bool own = sequence_budget_of(slot).blocks + more <= plan.guaranteed_blocks;
        if (own || more + promised <= pool.free_blocks()) return {};
        const bool ends_there = use == rows_for::decode && !score_policy::evicts_in_decode;
        char advice[128] = "";
        if (use == rows_for::chunk && !Types::evicts_by_chunk)
            std::snprintf(advice, sizeof advice, ", or give the prompt in one chunk");
        if (ends_there && !Types::evicts_by_chunk)
            std::snprintf(
                advice, sizeof advice,
                ", or set prefill_tokens (%u of max_tokens = %u) to the longest prompt, so that open() "
                "keeps room for the rest",
                plan.prefill_tokens, plan.max_tokens);
        return status::failure(
            errc::bound_too_small,
            "%s: memory_bytes has no room for %u more blocks of %u rows (%u are held); raise "
            "it%s",
            call, more, rows_per_block, sequence_budget_of(slot).blocks, advice);
    }
    void recount(std::uint32_t slot) noexcept {
        std::uint32_t blocks = 0;
        for (std::uint32_t l = 0; l < plan.layers; ++l) blocks += count_blocks(lanes_of(slot, l));
        sequence_budget_of(slot).blocks = blocks;
    }
    void recount(std::uint32_t slot, std::span<const kept_lane> lanes, std::uint32_t before) noexcept {
        sequence_budget_of(slot).blocks += count_blocks(lanes) - before;
    }
    [[nodiscard]] static std::uint32_t count_blocks(std::span<const kept_lane> lanes) noexcept {
        std::uint32_t n = 0;
        for (const kept_lane& lane : lanes) n += lane.rows.blocks + lane.demoted.blocks + lane.queries.blocks;
        return n;
    }

    // -------------------------------------------------------------------------------------- arrivals
    /// The queries of a lane in token t, (lane group, D), until the next call.
    [[nodiscard]] const float* query(const layer_input& in, std::size_t t,
                                     std::uint32_t lane) const noexcept {
        return simd::widened(in.q, t * plan.query_floats() + query_offset(lane), memory.query.data(),
                             memory.query.size());
    }
    /// The scores of one arriving token go to memory.arrival.
    void arrive(std::uint32_t slot, std::uint32_t layer, const layer_input& in, std::size_t t,
                std::uint32_t token, bool decoded) noexcept {
        if constexpr (score_policy::source == score_source::arrival) {
            const std::size_t k = plan.key_floats(), tokens = in.k.size() / k;
            const std::size_t q = contains(needs_of<score_policy>(), engine_input::q) && !in.q.empty()
                                      ? plan.query_floats()
                                      : 0;
            const auto row = [t](std::span<const float> all, std::size_t n) {
                return all.empty() ? all : all.subspan(t * n, n);
            };
            const auto widened = [&](const tensor_view& all, std::size_t at, std::size_t n) {
                return std::span(simd::widened(all, t * n, memory.arrived.data() + at, n), n);
            };
            const arriving a{
                .layer = layer,
                .token = token,
                .first_head = head_of(0),
                .head_step = plan.division.by_sequence ? 1 : plan.division.shards,
                .decoded = decoded,
                .q = widened(in.q, 2 * k, q),
                .k = widened(in.k, 0, k),
                .v = widened(in.v, k, k),
                .x = row(in.x, in.x.size() / tokens),
                .external = row(in.external, plan.kv_heads),
                .past = past_of(lanes_of(slot, layer)[0], std::size_t{lane_count()} * plan.max_tokens)};
            score.arrive(a, memory.arrival.first(lane_count()));
        }
    }
};

}} // namespace kvtl::v0
