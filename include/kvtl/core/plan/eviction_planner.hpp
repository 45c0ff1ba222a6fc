// From a configuration to an eviction_plan and the bytes of every part, or the reason why it cannot be.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/eviction_shard.hpp>
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/eviction_plan.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace kvtl { inline namespace v0 {

/// The concrete types behind a preset that drops entries.
template <class Preset, class Geometry> struct eviction_types {
    using geometry = Geometry;
    using compressor = typename Preset::compressor;
    using codec = typename compressor::template state<Geometry>;
    using element_type = typename compressor::plain_type; ///< of plain rows
    static constexpr bool plain_records = compressor::rows_are_records;
    using retention = typename Preset::retention;
    using score = typename retention::score;
    using score_config = typename retention::config;
    using score_state = typename score::template state<Geometry>;
    using budget = typename Preset::budget;
    using budget_state = typename budget::template state<Geometry>;
    using position = typename Preset::position;
    using position_state = typename position::template state<Geometry>;
    static constexpr bool reads_mass = feedback_of<retention>() != feedback::unused;
};

template <class Preset, class Geometry> class eviction_planner {
  public:
    using types = eviction_types<Preset, Geometry>;
    using config = cache_config<Preset>;
    using score = typename types::score;
    using shard_type = eviction_shard<types>;
    using pool_type = typename shard_type::pool_type;

    struct answer {
        eviction_plan plan;
        score_limits scores;
        budget_limits budgets;
        memory_parts parts;
        std::size_t fixed_bytes = 0; ///< everything but the blocks, rounded up to pages
        std::size_t block_bytes = 0;
        std::size_t least_bytes = 0; ///< memory_bytes below which there is no plan
        [[nodiscard]] std::size_t bytes() const noexcept {
            return fixed_bytes + std::size_t{plan.shards} * plan.blocks * block_bytes;
        }
    };

    [[nodiscard]] static result<answer> plan(const config& c, const Geometry& g) {
        answer a;
        eviction_plan& p = a.plan;
        p.layers = g.layers(), p.kv_heads = g.kv_heads(), p.group = g.group(), p.dim = g.head_dim();
        p.record = typename types::codec(c.compressor, record_shape{1, p.dim}).bytes();
        p.together = types::budget::decides_together || score::decides_together || score::reads_values;
        p.lanes_per_head = score::per_query_head ? p.group : 1;
        p.lane_group = score::per_query_head ? 1 : p.group;
        if (status s = check(c, g); !s) return s;
        p.shards = c.shards, p.sequences = static_cast<std::uint32_t>(c.max_sequences);
        p.shard_lanes = (p.together ? p.kv_heads : (p.kv_heads + p.shards - 1) / p.shards) * p.lanes_per_head;
        p.max_tokens = static_cast<std::uint32_t>(c.max_tokens);
        p.prefill_tokens = static_cast<std::uint32_t>(
            c.prefill_tokens == 0 ? c.max_tokens : std::min(c.prefill_tokens, c.max_tokens));
        p.keep = static_cast<std::uint32_t>(
            std::min<std::size_t>(c.keep_tokens == 0 ? c.attend_tokens : c.keep_tokens, c.max_tokens));
        // A cache that may keep everything has no use for its window beyond that.
        p.sinks = std::min(c.sink_tokens, p.max_tokens);
        p.window = c.window_tokens == automatic ? std::max(1U, (p.keep - std::min(p.keep, p.sinks)) / 2)
                                                : std::min(c.window_tokens, p.max_tokens - p.sinks);
        const std::uint32_t pinned = p.sinks + p.window;
        if (p.keep < pinned)
            return status::failure(errc::invalid_argument,
                                   "keep_tokens is %u; valid: at least sink_tokens + window_tokens = %u + %u",
                                   p.keep, p.sinks, p.window);

        const std::uint32_t most = p.prefill_tokens - std::min(p.prefill_tokens, pinned);
        a.scores = {p.layers, p.kv_heads, p.group, p.dim, p.sinks, p.window, p.keep, p.prefill_tokens};
        a.budgets = {p.layers, p.shard_lanes, p.keep - pinned, pinned, most};
        if (status s = types::score_state::check(c.retention, a.scores); !s) return s;
        if (status s = types::budget_state::check(c.budget, a.budgets); !s) return s;
        if (status s = types::position_state::check(c.position, p.dim); !s) return s;
        size_rows(c, a);
        return fit(c, a);
    }

  private:
    static status check(const config& c, const Geometry& g) noexcept {
        if (c.max_tokens == 0 || c.max_tokens > (1U << 30))
            return status::failure(errc::invalid_argument, "max_tokens is %zu; valid: 1 to %u", c.max_tokens,
                                   1U << 30);
        if (c.max_sequences == 0 || c.max_sequences > 4096)
            return status::failure(errc::invalid_argument, "max_sequences is %zu; valid: 1 to 4096",
                                   c.max_sequences);
        if (c.shards == 0 || c.shards > 256 || c.shards > g.kv_heads())
            return status::failure(errc::invalid_argument,
                                   "shards is %u; valid: 1 to the number of KV heads (%u)", c.shards,
                                   g.kv_heads());
        if (c.memory_bytes == 0)
            return status::failure(errc::invalid_argument, "memory_bytes is 0; valid: what the parts need");
        if (c.keep_tokens == 0 && c.attend_tokens == 0)
            return status::failure(errc::invalid_argument,
                                   "keep_tokens and attend_tokens are 0; valid: 1 and more for one of them");
        if (c.window_tokens == 0)
            return status::failure(errc::invalid_argument, "window_tokens is 0; valid: 1 and more");
        return {};
    }

    /// The declared peak, and how many rows a lane may ever have.
    static void size_rows(const config& c, answer& a) {
        eviction_plan& p = a.plan;
        std::vector<std::byte> scratch(types::budget_state::bytes(a.budgets));
        std::vector<std::byte> memory(types::score_state::bytes(c.retention, a.scores));
        if constexpr (score::evicts_in_decode)
            p.slack = typename types::score_state(c.retention, a.scores, memory).slack();
        const std::uint64_t lanes = std::uint64_t{p.layers} * p.shard_lanes;
        const std::uint64_t peak = std::min(typename types::budget_state(c.budget, a.budgets, scratch).peak(),
                                            lanes * a.budgets.most);
        const std::uint64_t prompt = lanes * std::min(p.sinks + p.window, p.prefill_tokens) + peak;
        const std::uint64_t settled = lanes * decode_rows(p);
        // Every lane's last block may be half empty, but no lane has more than all its tokens.
        const std::uint64_t in_prompt = std::min(prompt / rows_per_block + lanes,
                                                 lanes * blocks_for(p.prefill_tokens)),
                            in_decode =
                                std::min(settled / rows_per_block + lanes, lanes * blocks_for(p.max_tokens));
        p.guaranteed_blocks = static_cast<std::uint32_t>(std::max(in_prompt, in_decode));
        p.most_rows =
            score::evicts_in_decode ? std::max(p.prefill_tokens, p.keep) + p.slack + 2 : p.max_tokens + 1;
    }

    /// Entries of a head, on average, when decode ends.
    static std::uint64_t decode_rows(const eviction_plan& p) {
        if (score::evicts_in_decode)
            return std::min<std::uint64_t>(std::uint64_t{p.keep} + p.slack + 1, p.max_tokens);
        return std::uint64_t{std::min(p.keep, p.prefill_tokens)} + p.max_tokens - p.prefill_tokens;
    }

    static void measure(const config& c, answer& a, std::uint32_t blocks) {
        a.plan.blocks = blocks;
        a.block_bytes = pool_type::block_bytes(a.plan.record);
        carver metadata, index, scratch;
        static_cast<void>(
            eviction_memory<types>::take(a.plan, c.retention, a.scores, a.budgets, metadata, index, scratch));
        memory_parts& m = a.parts;
        const std::size_t shards = a.plan.shards;
        m = {};
        m.metadata = shards * (metadata.used() + 64);
        m.index = shards * (index.used() + 64);
        m.scratch = shards * (scratch.used() + 64);
        m.frames = shards * blocks * a.block_bytes;
        a.fixed_bytes = (m.metadata + m.index + m.scratch + 4095) / 4096 * 4096;
        m.metadata += a.fixed_bytes - (m.metadata + m.index + m.scratch);
    }

    /// As many blocks as the bound allows, but no more than could ever be held.
    static result<answer> fit(const config& c, answer& a) {
        const eviction_plan& p = a.plan;
        const std::uint32_t least = p.guaranteed_blocks * p.sequences;
        measure(c, a, least);
        a.least_bytes = a.bytes();
        if (a.least_bytes > c.memory_bytes) return too_small(c, a);
        const std::uint64_t lane =
            std::uint64_t{blocks_for(p.most_rows)} +
            (std::size_t{p.window} * p.lane_group * p.dim * sizeof(float)) / a.block_bytes + 1;
        const std::uint64_t whole =
            std::max<std::uint64_t>(least, lane * p.layers * p.shard_lanes * p.sequences);
        const std::uint64_t more =
            (c.memory_bytes - a.bytes()) / (p.shards * (a.block_bytes + sizeof(std::uint32_t)));
        for (std::uint64_t blocks = std::min({whole, least + more, std::uint64_t{1} << 30});;) {
            measure(c, a, static_cast<std::uint32_t>(blocks));
            if (a.bytes() <= c.memory_bytes || blocks <= least) return a;
            blocks -= std::min<std::uint64_t>(blocks - least, 4);
        }
    }

    static result<answer> too_small(const config& c, const answer& a) {
        const auto line = [](const char* name, std::size_t bytes, const char* note) {
            char text[200];
            std::snprintf(text, sizeof text, "\n  %-9s %12zu bytes%s", name, bytes, note);
            return std::string(text);
        };
        const memory_parts& m = a.parts;
        std::string text = "memory_bytes is " + std::to_string(c.memory_bytes) + "; preset " +
                           std::string(Preset::name) + " needs at least " + std::to_string(a.bytes()) +
                           " with this shape, keep_tokens and prefill_tokens:";
        text += line("index", m.index, "");
        text += line("metadata", m.metadata, "");
        text += line("scratch", m.scratch, " (one head's prompt among it)");
        text += line("frames", m.frames, " (kept entries, at the peak before budgets are settled)");
        if (!score::evicts_in_decode && a.plan.max_tokens > a.plan.prefill_tokens)
            text += "\n  prefill_tokens is " + std::to_string(a.plan.prefill_tokens) + " and max_tokens " +
                    std::to_string(a.plan.max_tokens) +
                    ": frames hold the difference for decode in every head";
        return error(errc::bound_too_small, text);
    }
};

}} // namespace kvtl::v0
