// The manager of presets that drop entries. Its calls are those of every kv_manager (manager.hpp); what is
// kept lies in DRAM, in rows that the budget divides among layers and heads.
//
//   auto opened = kvtl::snapkv_group<geometry>::open({.shape = ..., .max_tokens = 4096,
//                                                     .memory_bytes = 16 << 20, .keep_tokens = 256,
//                                                     .prefill_tokens = 2048});
//
// Memory:  open() promises that a prompt of prefill_tokens in one chunk fits, with all its layers before
//          their budgets are settled, and max_tokens - prefill_tokens decoded entries (any number where the
//          preset evicts in decode). Earlier chunks of a prompt and further entries take what memory_bytes
//          leaves. prefill_tokens = 0 stands for max_tokens, which leaves nothing for decode: a preset that
//          evicts at the prompt's end only should say how long its prompts are. A preset whose prompts are
//          evicted from as they come holds one chunk at a time; its prefill_tokens bounds that chunk and what
//          it joins, not the prompt.
// Threads: as manager.hpp; where heads are decided together, a sequence belongs to one shard, and calls for
//          the others do nothing.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/call_checks.hpp>
#include <kvtl/core/plan/eviction_planner.hpp>
#include <kvtl/io/device.hpp>
#include <kvtl/manager.hpp>
#include <kvtl/slots/eviction_requirements.hpp>
#include <kvtl/slots/explain.hpp>

#include <memory>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Supplied is taken apart to tell this specialisation from manager.hpp's by more than its constraints: gcc
/// 12 emits no code for an explicit instantiation of the second of two that differ in nothing else.
template <class Preset, class Geometry, signal... Signals>
requires eviction_preset_for<Preset, Geometry, supplied<Signals...>>
class kv_manager<Preset, Geometry, supplied<Signals...>> {
  public:
    using preset = Preset;
    using geometry = Geometry;
    using config = cache_config<Preset>;
    using types = eviction_types<Preset, Geometry>;
    using element_type = typename types::element_type;

    kv_manager(kv_manager&&) noexcept = default;
    kv_manager& operator=(kv_manager&&) noexcept = default;
    ~kv_manager() = default;

    /// Reserves all memory and checks everything that can be checked. Cold; the only call that allocates.
    [[nodiscard]] static result<kv_manager> open(const config& c) {
        auto g = Geometry::from(c.shape);
        if (!g) return g.error();
        if (!contains(c.supplied, needed_signals<Preset>()))
            return status::failure(
                errc::unsupported,
                "supplied: preset %s needs the signal %s, which the engine does not supply",
                preset_name<Preset>().data(), missing_signal(needed_signals<Preset>(), c.supplied));
        auto planned = planner_type::plan(c, *g);
        if (!planned) return planned.error();
        auto memory = reservation::make(planned->bytes());
        if (!memory) return memory.error();
        return kv_manager(std::make_unique<core>(c, *planned, *std::move(memory)));
    }

    /// The smallest memory_bytes that open() accepts.
    [[nodiscard]] static result<std::size_t> least_memory(config c) {
        auto g = Geometry::from(c.shape);
        if (!g) return g.error();
        c.memory_bytes = std::numeric_limits<std::size_t>::max() / 2;
        const auto planned = planner_type::plan(c, *g);
        if (!planned) return planned.error();
        return planned->least_bytes;
    }

    [[nodiscard]] result<sequence_id> begin() { return core_->calls.begin(); }

    status end(sequence_id seq) noexcept {
        if (status s = core_->calls.sequence("end", seq); !s) return s;
        for (auto& shard : core_->shards) shard.end(seq.slot);
        core_->calls.end(seq);
        return {};
    }

    /// A chunk of T prompt tokens of one layer, attended exactly; the last one evicts. After decode it is a
    /// further turn, which goes the way of decode token by token.
    [[nodiscard]] status prefill(sequence_id seq, std::size_t layer, const layer_input& in,
                                 std::span<float> out, unsigned shard = 0) noexcept {
        std::size_t tokens = 0;
        if (status s = check("prefill", seq, layer, shard, in, out, true, tokens); !s) return s;
        return core_->shards[shard].prefill(seq.slot, static_cast<std::uint32_t>(layer), in,
                                            static_cast<std::uint32_t>(tokens), out);
    }

    /// One decode step of one layer: appends k, v (H, D), attends q (HQ, D) to out (HQ, D), evicts.
    [[nodiscard]] status attend(sequence_id seq, std::size_t layer, const layer_input& in,
                                std::span<float> out, unsigned shard = 0) noexcept {
        std::size_t tokens = 0;
        if (status s = check("attend", seq, layer, shard, in, out, false, tokens); !s) return s;
        if (out.empty())
            return status::failure(errc::invalid_argument, "attend: out is empty; valid: %zu floats",
                                   core_->calls.query_floats);
        if (!in.lse.empty() && in.lse.size() != core_->calls.query_floats / core_->shards[0].plan().dim)
            return status::failure(errc::invalid_argument, "attend: lse has %zu floats; valid: %zu",
                                   in.lse.size(), core_->calls.query_floats / core_->shards[0].plan().dim);
        return core_->shards[shard].attend(seq.slot, static_cast<std::uint32_t>(layer), in, out);
    }

    /// Appends k, v (H, D) without attention; refused where the preset evicts by attention mass.
    [[nodiscard]] status append(sequence_id seq, std::size_t layer, const layer_input& in,
                                unsigned shard = 0) noexcept {
        if constexpr (types::reads_mass)
            return refuse("append", "it evicts by attention mass, which only attend() sees");
        std::size_t tokens = 0;
        if (status s = check("append", seq, layer, shard, in, {}, false, tokens); !s) return s;
        return core_->shards[shard].append(seq.slot, static_cast<std::uint32_t>(layer), in);
    }

    /// Everything is in memory: nothing to do.
    status prefetch(sequence_id seq, std::size_t layer, std::span<const float> q,
                    unsigned shard = 0) noexcept {
        if (status s = core_->calls.call("prefetch", seq, layer, shard); !s) return s;
        return core_->calls.floats("prefetch", "q", q, core_->calls.query_floats);
    }

    /// visit(std::size_t kv_head, rows_view<E> keys, rows_view<E> values) for every piece of rows that a
    /// layer holds, whatever q is. Refused where keys and values alone do not make the attention.
    template <class Visit>
    [[nodiscard]] status select(sequence_id seq, std::size_t layer, std::span<const float> q, Visit&& visit,
                                unsigned shard = 0) noexcept {
        if constexpr (types::reads_mass)
            return refuse("select", "it evicts by attention mass, which only attend() sees");
        if constexpr (types::position::moves) return refuse("select", "its keys change their positions");
        if constexpr (types::retention::merges) return refuse("select", "its entries carry weights");
        if constexpr (types::score::per_query_head)
            return refuse("select", "every query head keeps entries of its own");
        if (status s = prefetch(seq, layer, q, shard); !s) return s;
        core_->shards[shard].views(seq.slot, static_cast<std::uint32_t>(layer), visit);
        return {};
    }

    /// Gives up the last n tokens in all layers; all of them must still be held. What was dropped in their
    /// favour does not come back.
    status rewind(sequence_id seq, std::size_t n) noexcept {
        if (status s = core_->calls.sequence("rewind", seq); !s) return s;
        const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(n, none - 1));
        const std::uint32_t layers = core_->calls.layers;
        for (auto& shard : core_->shards)
            for (std::uint32_t l = 0; l < layers; ++l)
                if (status s = shard.check_rewind(seq.slot, l, count); !s) return s;
        for (auto& shard : core_->shards)
            for (std::uint32_t l = 0; l < layers; ++l) shard.rewind(seq.slot, l, count);
        return {};
    }

    /// Nothing is ever written.
    status retry_writes(sequence_id seq) noexcept { return core_->calls.sequence("retry_writes", seq); }

    /// kept_entries: entries held now, over all sequences, layers and KV heads.
    [[nodiscard]] statistics stats() const noexcept {
        statistics total;
        for (const auto& shard : core_->shards) total += shard.stats();
        total.bytes_by_part = core_->parts;
        total.resident_bytes_peak += core_->parts.total() - core_->parts.frames;
        return total;
    }

    [[nodiscard]] unsigned shards() const noexcept { return static_cast<unsigned>(core_->shards.size()); }
    [[nodiscard]] io_facts facts() const noexcept {
        io_facts f;
        f.name = "in_memory";
        return f;
    }
    /// Tokens that a layer of a sequence has seen, dropped ones included; 0 for one that is not there.
    [[nodiscard]] std::size_t tokens(sequence_id seq, std::size_t layer) noexcept {
        if (!core_->calls.call("tokens", seq, layer, 0)) return 0;
        for (auto& shard : core_->shards)
            if (const std::uint32_t n = shard.tokens(seq.slot, static_cast<std::uint32_t>(layer)); n != none)
                return n;
        return 0;
    }

    /// The shard's inside, for tests of invariants. Not part of the stable interface.
    [[nodiscard]] auto& inspect(unsigned shard) noexcept { return core_->shards[shard]; }

  private:
    using planner_type = eviction_planner<Preset, Geometry>;
    using shard_type = typename planner_type::shard_type;

    struct core {
        reservation memory;
        memory_parts parts;
        call_checks<element_type> calls;
        std::vector<shard_type> shards;

        core(const config& c, const typename planner_type::answer& a, reservation m)
            : memory(std::move(m)), parts(a.parts), shards(a.plan.shards) {
            const eviction_plan& p = a.plan;
            calls = {.layers = p.layers,
                     .shards = p.shards,
                     .max_tokens = p.max_tokens,
                     .query_floats = p.query_floats(),
                     .key_floats = p.key_floats(),
                     .slots = {p.sequences, typename call_checks<element_type>::slot_state{}}};
            const std::size_t blocks = p.blocks * a.block_bytes;
            carver fixed(memory.memory().first(a.fixed_bytes));
            for (std::uint32_t s = 0; s < p.shards; ++s) {
                const auto own =
                    eviction_memory<types>::take(p, c.retention, a.scores, a.budgets, fixed, fixed, fixed);
                shards[s].init(p, s, own, memory.memory().subspan(a.fixed_bytes + s * blocks, blocks),
                               typename types::score_state(c.retention, a.scores, own.score),
                               typename types::budget_state(c.budget, a.budgets, own.budget),
                               typename types::position_state(c.position, p.dim, own.position),
                               c.time_phases);
            }
        }
    };

    explicit kv_manager(std::unique_ptr<core> c) noexcept : core_(std::move(c)) {}

    [[nodiscard]] static status refuse(const char* call, const char* why) noexcept {
        return status::failure(errc::unsupported, "%s: preset %s does not offer it: %s", call,
                               preset_name<Preset>().data(), why);
    }
    [[nodiscard]] status check(const char* call, sequence_id seq, std::size_t layer, unsigned shard,
                               const layer_input& in, std::span<float> out, bool many,
                               std::size_t& tokens) noexcept {
        if (status s = core_->calls.call(call, seq, layer, shard); !s) return s;
        if (status s = core_->calls.input(call, in, out, many, tokens); !s) return s;
        const std::uint32_t have = core_->shards[shard].tokens(seq.slot, static_cast<std::uint32_t>(layer));
        return have == none ? status{} : core_->calls.room(call, have, tokens);
    }

    std::unique_ptr<core> core_;
};

}} // namespace kvtl::v0
