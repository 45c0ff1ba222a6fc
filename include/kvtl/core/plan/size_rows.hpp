// From a configuration to the rows that retention may hold, or the reason why it cannot be.
//
// What:   rows of a preset that keeps its entries in memory last for prompt and decode. Where what is kept
//         moves on, to units or to chains, rows hold a prompt until it is settled: one
//         layer's survivors at once, or, under a late budget, those of all layers.
// Cost:   of open() only.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/plan/retention_plan.hpp>
#include <kvtl/core/store/row_pool.hpp>
#include <kvtl/slots/preset.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtl { inline namespace v0 {

/// The codec of kept rows, which belong to one head each.
template <class Types, class Config>
[[nodiscard]] typename Types::row_codec row_codec_of(const Config& c, std::uint32_t dim) noexcept {
    if constexpr (Types::hands_over)
        return typename Types::row_codec(record_shape{1, dim});
    else
        return typename Types::row_codec(c, record_shape{1, dim});
}

template <class Types> class row_sizes {
  public:
    using score = typename Types::score;
    using score_state = typename Types::score_state;
    using budget_state = typename Types::budget_state;
    using pool_type = row_pool<typename Types::element_type, typename score::record>;

    retention_plan plan;
    score_limits scores;
    budget_limits budgets;
    std::size_t block_bytes = 0;
    std::uint32_t least_blocks = 0; ///< of a shard's pool
    std::uint32_t most_blocks = 0;  ///< beyond which a shard's pool has no use for more

    [[nodiscard]] const retention_plan* kept() const noexcept { return &plan; }
    /// keep_tokens 0: attend_tokens, or four times as many where these are chosen among what was kept.
    template <class Config> [[nodiscard]] static std::size_t keep_tokens(const Config& c) noexcept {
        return c.keep_tokens != 0 ? c.keep_tokens : (Types::retrieves ? 4 : 1) * c.attend_tokens;
    }

    /// Settles everything but the number of blocks. `window`, `sinks`: as far as max_tokens has room for
    /// them.
    template <class Config>
    [[nodiscard, gnu::cold]] status settle(const Config& c, const geometry& g, const cache_plan& cache) {
        retention_plan& p = plan;
        p.layers = cache.model.layers, p.kv_heads = g.kv_heads(), p.group = g.group(), p.dim = g.head_dim();
        p.logits = cache.model.logits;
        if (Types::replays && p.layers != g.layers()) // they would drop rows that the replay is to score
            return status::failure(errc::unsupported,
                                   "attention.windows: %u of %u layers slide, and the preset replays "
                                   "prompts; valid: no layer that slides",
                                   g.layers() - p.layers, g.layers());
        p.hands_over = Types::hands_over;
        p.lanes_per_head = score::per_query_head ? p.group : 1;
        p.lane_group = score::per_query_head ? 1 : p.group;
        p.division = cache.division, p.sequences = cache.max_sequences;
        p.shard_sequences = cache.shard_sequences;
        p.shard_lanes = cache.division.lanes_of(p.kv_heads, 0) * p.lanes_per_head;
        p.prefill_tokens = static_cast<std::uint32_t>(
            c.prefill_tokens == 0 ? c.max_tokens : std::min(c.prefill_tokens, c.max_tokens));
        p.max_tokens = p.hands_over ? p.prefill_tokens : static_cast<std::uint32_t>(c.max_tokens);
        p.keep = static_cast<std::uint32_t>(std::min<std::size_t>(keep_tokens(c), p.max_tokens));
        // A cache that may keep everything has no use for its sinks and window beyond that. The latest token always
        // belongs to the window: its query is what a window observes.
        p.sinks = std::min(c.sink_tokens, p.max_tokens - 1);
        p.window = c.window_tokens == automatic ? std::max(1U, (p.keep - std::min(p.keep, p.sinks)) / 2)
                                                : std::min(c.window_tokens, p.max_tokens - p.sinks);
        const std::uint32_t pinned = p.sinks + p.window;
        if (p.keep < pinned)
            return status::failure(errc::invalid_argument,
                                   "keep_tokens is %u; valid: at least sink_tokens + window_tokens = %u + %u",
                                   p.keep, p.sinks, p.window);
        const std::uint32_t most = p.prefill_tokens - std::min(p.prefill_tokens, pinned);
        scores = {p.layers, p.kv_heads, p.group,          p.dim,       p.sinks,
                  p.window, p.keep,     p.prefill_tokens, p.max_tokens};
        budgets = {p.layers, p.shard_lanes, p.keep - pinned, pinned, most};
        if (status s = score_state::check(c.retention, scores); !s) return s;
        p.remembered = remembered_bytes<score>(c.retention);
        if (status s = budget_state::check(c.budget, budgets); !s) return s;
        if (status s = Types::position_state::check(c.position, p.dim); !s) return s;
        p.record = row_codec_of<Types>(c.compressor, p.dim).bytes();
        block_bytes = pool_type::block_bytes(p.record);
        if (status s = settle_demotion(); !s) return s;
        return size_blocks(c);
    }

    /// Adds the bytes of all shards to `m` when each has `blocks` blocks.
    template <class Config>
    [[gnu::cold]] void measure(const Config& c, std::uint32_t blocks, memory_parts& m) {
        plan.blocks = blocks;
        carver metadata, index, scratch;
        static_cast<void>(
            retention_memory<Types>::take(plan, c.retention, scores, budgets, metadata, index, scratch));
        m.metadata += plan.division.shards * (metadata.used() + 64);
        m.index += plan.division.shards * (index.used() + 64);
        m.scratch += plan.division.shards * (scratch.used() + 64);
        m.frames += pool_bytes();
    }
    /// Of all shards' blocks.
    [[nodiscard]] std::size_t pool_bytes() const noexcept {
        return std::size_t{plan.division.shards} * plan.blocks * block_bytes;
    }

  private:
    [[nodiscard]] static status settle_demotion() noexcept requires(!Types::demotes) { return {}; }
    [[nodiscard, gnu::cold]] status settle_demotion() noexcept requires(Types::demotes) {
        retention_plan& p = plan;
        using codec = typename Types::retention::codec;
        if (status s =
                check_settings<typename codec::state>(typename codec::config{}, record_shape{1, p.dim});
            !s)
            return s;
        const record_bytes demoted = Types::demoted_codec_of(p.dim).bytes();
        p.demotion = {pool_type::format_within(demoted, block_bytes).rows};
        if (p.demotion.per_block > rows_per_block) return {};
        return status::failure(errc::unsupported,
                               "compressor: its records have %u bytes an entry at head_dim = %u; valid: more "
                               "than the %u of %s, to which the retention demotes",
                               p.record.entry(), p.dim, demoted.entry(), codec::name.data());
    }

    /// The declared peak, and how many rows a lane may ever have.
    template <class Config> [[nodiscard, gnu::cold]] status size_blocks(const Config& c) {
        retention_plan& p = plan;
        std::vector<std::byte> scratch(budget_state::bytes(budgets));
        std::vector<std::byte> memory(score_state::bytes(c.retention, scores));
        p.slack = score_state(c.retention, scores, memory).slack();
        const budget_state budget(c.budget, budgets, scratch);
        const bool layer_by_layer = p.hands_over && !Types::budget::late;
        const std::uint64_t lanes = std::uint64_t{layer_by_layer ? 1 : p.layers} * p.shard_lanes;
        std::uint64_t peak = budget.peak();
        if (layer_by_layer) {
            peak = 0;
            for (std::uint32_t l = 0; l < p.layers; ++l)
                peak = std::max<std::uint64_t>(peak, std::uint64_t{budget.provisional(l, budgets.most)} *
                                                         p.shard_lanes);
        }
        peak = std::min(peak, lanes * budgets.most);
        const std::uint64_t prompt = lanes * std::min(p.sinks + p.window, p.prefill_tokens) + peak;
        const std::uint64_t settled = p.hands_over ? 0 : lanes * decode_rows();
        // Every chain's last block may be half empty, but no lane has more than all its tokens. An entry that
        // is demoted is in both chains for a moment.
        const std::uint64_t chains = lanes * (Types::demotes ? 3 : 1), demoted = Types::demotes ? lanes : 0;
        const std::uint64_t in_prompt = std::min(prompt / rows_per_block + chains,
                                                 lanes * blocks_for(p.prefill_tokens) + demoted),
                            in_decode = std::min(settled / rows_per_block + chains,
                                                 lanes * blocks_for(p.max_tokens) + demoted);
        constexpr std::uint64_t most = std::uint64_t{1} << 30;
        const std::uint64_t guaranteed = std::max(in_prompt, in_decode);
        if (guaranteed > most / p.shard_sequences)
            return status::failure(errc::invalid_argument,
                                   "max_tokens is %zu with max_sequences %u, which may need %.0f blocks of "
                                   "rows a shard; valid: what needs up to %.0f, or more shards",
                                   c.max_tokens, p.sequences,
                                   static_cast<double>(guaranteed) * p.shard_sequences,
                                   static_cast<double>(most));
        p.guaranteed_blocks = static_cast<std::uint32_t>(guaranteed);
        p.most_rows = score::evicts_in_decode ? std::max(p.prefill_tokens, most_kept(budget)) + p.slack + 2
                                              : p.max_tokens + 1;
        least_blocks = p.guaranteed_blocks * p.shard_sequences;
        const std::uint64_t lane =
            std::uint64_t{blocks_for(p.most_rows)} +
            (std::size_t{p.window} * p.lane_group * p.dim * sizeof(float)) / block_bytes + 1;
        const std::uint64_t whole = lane * p.layers * p.shard_lanes * p.shard_sequences;
        most_blocks = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(std::max<std::uint64_t>(least_blocks, whole), most));
        return {};
    }

    /// Entries of a lane, at most, where decode evicts: those that fit into the largest limit that the budget gives.
    [[nodiscard]] std::uint32_t most_kept(const budget_state& budget) const noexcept {
        const retention_plan& p = plan;
        // A prompt that is evicted from as it comes has no number of entries that compete.
        const std::uint32_t competing = score::evicts_in_prompt ? none : budgets.most;
        std::uint64_t limit = p.keep;
        for (std::uint32_t l = 0; l < p.layers; ++l)
            limit = std::max(limit, std::uint64_t{budgets.pinned} + budget.provisional(l, competing));
        return static_cast<std::uint32_t>(
            std::min<std::uint64_t>(p.max_tokens, Types::demotes ? p.demotion.room(limit) : limit));
    }
    /// Entries of a head, on average, when decode ends.
    [[nodiscard]] std::uint64_t decode_rows() const noexcept {
        const retention_plan& p = plan;
        if (score::evicts_in_decode)
            return std::min<std::uint64_t>(std::uint64_t{p.keep} + p.slack + 1, p.max_tokens);
        const std::uint32_t later = p.max_tokens - p.prefill_tokens; // of these some may belong to the prompt
        return std::uint64_t{std::min(p.keep, p.prefill_tokens)} +
               (Types::evicts_by_chunk ? std::min(later, p.prefill_tokens) : later);
    }
};

/// Where nothing is dropped there is nothing to size.
struct no_row_sizes {
    static constexpr std::uint32_t least_blocks = 0, most_blocks = 0;
    [[nodiscard]] static const retention_plan* kept() noexcept { return nullptr; }
    template <class Config> [[nodiscard]] static std::size_t keep_tokens(const Config&) noexcept { return 0; }
    template <class Config>
    [[nodiscard]] static status settle(const Config&, const geometry&, const cache_plan&) noexcept {
        return {};
    }
    template <class Config> static void measure(const Config&, std::uint32_t, memory_parts&) noexcept {}
    [[nodiscard]] static std::size_t pool_bytes() noexcept { return 0; }
};

}} // namespace kvtl::v0
