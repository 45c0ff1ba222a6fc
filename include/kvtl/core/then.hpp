// The manager of composed presets (composition.hpp): a prompt is evicted from in DRAM, what it keeps goes to
// storage, decode retrieves from there. Its calls are those of every kv_manager (manager.hpp).
//
//   auto opened = kvtl::snapkv_then_dynakv<geometry>::open({.shape = ..., .max_tokens = 32768,
//                                                           .memory_bytes = 64 << 20, .attend_tokens = 256,
//                                                           .keep_tokens = 2048, .prefill_tokens = 16384});
//
// What:    prefill() goes to First's manager, which attends exactly. At a layer's last chunk every KV head's
//          kept entries move, in order, to Second's manager as a prompt, and First's rows are free again.
//          From then on (decode, further turns, rewind) only Second works. A sequence that begins with decode
//          never meets First.
// Config:  keep_tokens, prefill_tokens, retention and budget are First's, all else Second's. keep_tokens 0
//          means four times attend_tokens: were it the same, Second would have nothing to choose.
// Memory:  First gets what it needs at least and, up to half of memory_bytes, what prompts in chunks take
//          (chunks before the last wait in its rows); Second gets the rest, whose tables serve max_tokens.
// Rewind:  goes back over decoded tokens and First's window, as everything before was thinned out.
// Threads: as manager.hpp. Errors too, but for one more exception: when writing fails while kept entries
//          move, the prompt cannot be repeated; every later call on that sequence says that it must be ended.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/composition.hpp>
#include <kvtl/core/eviction_manager.hpp>
#include <kvtl/manager.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

template <class Preset, class Geometry, class Supplied>
requires composed_preset_for<Preset, Geometry, Supplied>
class kv_manager<Preset, Geometry, Supplied> {
  public:
    using preset = Preset;
    using geometry = Geometry;
    using config = cache_config<Preset>;
    using first_manager = kv_manager<eviction_part<Preset>, Geometry, Supplied>;
    using second_manager = kv_manager<retrieval_part<Preset>, Geometry, Supplied>;
    using types = typename second_manager::types;
    using element_type = typename second_manager::element_type;

    kv_manager(kv_manager&&) noexcept = default;
    kv_manager& operator=(kv_manager&&) noexcept = default;
    ~kv_manager() = default;

    /// Reserves all memory, opens the device, checks everything that can be checked. Cold; the only call that
    /// allocates.
    [[nodiscard]] static result<kv_manager> open(const config& c) {
        auto need = needs::of(c);
        if (!need) return need.error();
        if (need->total() > c.memory_bytes) return too_small(c, *need);
        const std::size_t spare = c.memory_bytes - need->total();
        auto for_first = halves::first(c);
        for_first.memory_bytes = std::clamp(c.memory_bytes / 2, need->first, need->first + spare);
        auto first = first_manager::open(for_first);
        if (!first) return first.error();
        const std::size_t taken = first->stats().bytes_by_part.total();
        auto for_second = halves::second(c);
        for_second.memory_bytes = c.memory_bytes - taken - need->move;
        auto second = second_manager::open(for_second);
        if (!second) return second.error();
        auto memory = reservation::make(need->move);
        if (!memory) return memory.error();
        return kv_manager(std::make_unique<core>(c, *Geometry::from(c.shape), *std::move(first),
                                                 *std::move(second), *std::move(memory)));
    }

    /// The smallest memory_bytes that open() accepts on a device with pages of 4 KiB.
    [[nodiscard]] static result<std::size_t> least_memory(const config& c) {
        auto need = needs::of(c);
        if (!need) return need.error();
        return need->total();
    }

    /// As manager.hpp's: Second's size knobs, turned down until its index takes at most half of the memory.
    [[nodiscard]] static result<config> fitted(config c) {
        auto fitting = second_manager::fitted(halves::second(c));
        if (!fitting) return fitting.error();
        halves::copy_shared(*fitting, c);
        return c;
    }

    /// A new, empty sequence. Both managers number sequences alike: they begin and end them together.
    [[nodiscard]] result<sequence_id> begin() {
        auto seq = core_->calls.begin();
        if (!seq) return seq;
        static_cast<void>(core_->first.begin());
        static_cast<void>(core_->second.begin());
        for (unsigned s = 0; s < shards(); ++s)
            std::fill_n(core_->progress_of(s, seq->slot).begin(), core_->layers, progress{});
        return seq;
    }

    status end(sequence_id seq) noexcept {
        if (status s = core_->calls.sequence("end", seq); !s) return s;
        status done = core_->first.end(seq);
        if (status s = core_->second.end(seq); !s) done = s;
        core_->calls.end(seq);
        return done;
    }

    /// A chunk of T prompt tokens of one layer, attended exactly; the last one evicts and hands over. After
    /// that it is a further turn, which Second takes.
    [[nodiscard]] status prefill(sequence_id seq, std::size_t layer, const layer_input& in,
                                 std::span<float> out, unsigned shard = 0) noexcept {
        const std::size_t tokens = in.k.size() / core_->calls.key_floats;
        progress* p = nullptr;
        if (status s = find("prefill", seq, layer, shard, tokens, false, p); !s) return s;
        if (p->stage == stage::retrieving) return core_->second.prefill(seq, layer, in, out, shard);
        const auto l = static_cast<std::uint32_t>(layer);
        const std::uint32_t before = core_->first.inspect(shard).tokens(seq.slot, l);
        if (before != none && before + tokens > core_->prefill_tokens)
            return status::failure(errc::out_of_range,
                                   "prefill: the prompt has %zu tokens; valid: up to prefill_tokens = %zu",
                                   before + tokens, core_->prefill_tokens);
        if (status s = core_->first.prefill(seq, layer, in, out, shard); !s) return s;
        p->stage = stage::evicting;
        return in.last_chunk ? hand_over(seq, l, in.q, tokens, shard, *p) : status{};
    }

    /// One decode step of one layer: appends k, v (H, D) and attends q (HQ, D) to out (HQ, D).
    [[nodiscard]] status attend(sequence_id seq, std::size_t layer, const layer_input& in,
                                std::span<float> out, unsigned shard = 0) noexcept {
        progress* p = nullptr;
        if (status s = find("attend", seq, layer, shard, 1, true, p); !s) return s;
        return settle(core_->second.attend(seq, layer, in, out, shard), *p);
    }

    /// Appends k, v (H, D) without attention, for engines that attend themselves (then select()).
    [[nodiscard]] status append(sequence_id seq, std::size_t layer, const layer_input& in,
                                unsigned shard = 0) noexcept {
        progress* p = nullptr;
        if (status s = find("append", seq, layer, shard, 1, true, p); !s) return s;
        return settle(core_->second.append(seq, layer, in, shard), *p);
    }

    /// Starts the reads of a layer early for a guessed (or the true) query q (HQ, D).
    status prefetch(sequence_id seq, std::size_t layer, std::span<const float> q,
                    unsigned shard = 0) noexcept {
        progress* p = nullptr;
        if (status s = find("prefetch", seq, layer, shard, 0, true, p); !s) return s;
        return core_->second.prefetch(seq, layer, q, shard);
    }

    /// As manager.hpp: brings in what q (HQ, D) selects among the kept entries and visits it.
    template <class Visit>
    [[nodiscard]] status select(sequence_id seq, std::size_t layer, std::span<const float> q, Visit&& visit,
                                unsigned shard = 0) noexcept {
        progress* p = nullptr;
        if (status s = find("select", seq, layer, shard, 0, true, p); !s) return s;
        return core_->second.select(seq, layer, q, std::forward<Visit>(visit), shard);
    }

    /// Gives up the last n tokens in all layers: decoded ones, and of the prompt those of First's window.
    status rewind(sequence_id seq, std::size_t n) noexcept {
        if (status s = core_->calls.sequence("rewind", seq); !s) return s;
        for (unsigned shard = 0; shard < shards(); ++shard)
            for (std::uint32_t l = 0; l < core_->layers; ++l) {
                progress* p = nullptr;
                if (status s = find("rewind", seq, l, shard, 0, true, p); !s) return s;
                const std::size_t seen = seen_by(seq.slot, l, shard, *p);
                if (p->dropped > 0 && n > seen - p->firm)
                    return status::failure(
                        errc::out_of_range,
                        "rewind: n is %zu; layer %u can give up %zu tokens (of those before "
                        "only some were kept)",
                        n, l, seen - p->firm);
            }
        return core_->second.rewind(seq, n);
    }

    /// Tries writes that failed in the background once more; appends are refused until this succeeds.
    status retry_writes(sequence_id seq) noexcept { return core_->second.retry_writes(seq); }

    /// kept_entries: entries that there are now, over all sequences, layers and KV heads, decoded ones
    /// included.
    [[nodiscard]] statistics stats() const noexcept {
        statistics total = core_->second.stats();
        const statistics first = core_->first.stats();
        total += first;
        memory_parts& parts = total.bytes_by_part;
        parts += first.bytes_by_part;
        parts.scratch += core_->memory.memory().size();
        total.resident_bytes_peak += core_->memory.memory().size();
        for (unsigned s = 0; s < shards(); ++s) {
            auto& shard = core_->second.inspect(s);
            for (std::uint32_t slot = 0; slot < core_->calls.slots.size(); ++slot)
                for (std::uint32_t l = 0; l < core_->layers; ++l)
                    if (const std::uint32_t n = shard.tokens(slot, l); n != none)
                        total.kept_entries += std::uint64_t{n} * core_->heads_of(s);
        }
        return total;
    }

    [[nodiscard]] unsigned shards() const noexcept { return core_->calls.shards; }
    [[nodiscard]] io_facts facts() const noexcept { return core_->second.facts(); }
    /// Tokens that a layer of a sequence has seen, dropped ones included; 0 for one that is not there.
    [[nodiscard]] std::size_t tokens(sequence_id seq, std::size_t layer) noexcept {
        if (!core_->calls.call("tokens", seq, layer, 0)) return 0;
        const auto l = static_cast<std::uint32_t>(layer);
        std::size_t most = 0;
        for (unsigned s = 0; s < shards(); ++s)
            most = std::max(most, seen_by(seq.slot, l, s, core_->progress_of(s, seq.slot)[l]));
        return most;
    }

    /// The two managers, for tests of invariants. Not part of the stable interface.
    [[nodiscard]] first_manager& first() noexcept { return core_->first; }
    [[nodiscard]] second_manager& second() noexcept { return core_->second; }

  private:
    using halves = config_halves<Preset>;

    enum class stage : std::uint32_t { fresh, evicting, retrieving, cut_short };
    /// How far a layer of a sequence has come in one shard.
    struct progress {
        kv_manager::stage stage = stage::fresh;
        std::uint32_t dropped = 0; ///< tokens of the prompt that every head gave up
        std::uint32_t firm = 0;    ///< first tokens, of which only some are held: rewind() stops there
    };

    /// Kept entries on their way, and the table of progress.
    struct crossing {
        std::span<progress> table; ///< (shards, slots, L)
        std::span<float> k, v;     ///< (shards, rows, H, D); other shards' heads stay 0
        std::uint32_t rows = 0;    ///< that move at once

        static crossing take(carver& c, const config& cfg, const Geometry& g) noexcept {
            crossing x;
            // An index that fits something to a lane's first keys shall see all of them.
            constexpr std::size_t few = 64;
            constexpr bool at_once = detail::fits_lane<typename types::index>();
            x.rows = static_cast<std::uint32_t>(at_once ? halves::prompt_tokens(cfg)
                                                        : std::min(few, halves::prompt_tokens(cfg)));
            const std::size_t floats = std::size_t{cfg.shards} * x.rows * g.kv_heads() * g.head_dim();
            x.table = c.take<progress>(std::size_t{cfg.shards} * cfg.max_sequences * g.layers());
            x.k = c.take<float>(floats);
            x.v = c.take<float>(floats);
            return x;
        }
    };

    /// Bytes that each part needs at least.
    struct needs {
        std::size_t first = 0, move = 0, second = 0;
        [[nodiscard]] std::size_t total() const noexcept { return first + move + second; }

        static result<needs> of(const config& c) {
            const auto g = Geometry::from(c.shape);
            if (!g) return g.error();
            const auto first = first_manager::least_memory(halves::first(c));
            if (!first) return first.error();
            const auto second = second_manager::least_memory(halves::second(c));
            if (!second) return second.error();
            carver count;
            static_cast<void>(crossing::take(count, c, *g));
            return needs{*first, (count.used() + 4095) / 4096 * 4096, *second};
        }
    };

    struct core {
        first_manager first;
        second_manager second;
        reservation memory;
        crossing moving;
        call_checks<element_type> calls;
        std::uint32_t layers, kv_heads;
        std::size_t dim, prefill_tokens;

        core(const config& c, const Geometry& g, first_manager one, second_manager two, reservation m)
            : first(std::move(one)), second(std::move(two)), memory(std::move(m)), layers(g.layers()),
              kv_heads(g.kv_heads()), dim(g.head_dim()), prefill_tokens(halves::prompt_tokens(c)) {
            carver carve(memory.memory());
            moving = crossing::take(carve, c, g);
            calls = {.layers = layers,
                     .shards = c.shards,
                     .max_tokens = static_cast<std::uint32_t>(c.max_tokens),
                     .query_floats = std::size_t{g.query_heads()} * dim,
                     .key_floats = kv_heads * dim,
                     .slots = {c.max_sequences, typename call_checks<element_type>::slot_state{}}};
        }
        [[nodiscard]] std::span<progress> progress_of(unsigned shard, std::uint32_t slot) const noexcept {
            return moving.table.subspan((shard * calls.slots.size() + slot) * layers, layers);
        }
        /// KV heads of a sequence in a shard that has any.
        [[nodiscard]] std::uint32_t heads_of(unsigned shard) const noexcept {
            if (types::unit_of == granularity::layer) return kv_heads;
            return (kv_heads - shard + calls.shards - 1) / calls.shards;
        }
    };

    explicit kv_manager(std::unique_ptr<core> c) noexcept : core_(std::move(c)) {}

    static error too_small(const config& c, const needs& need) {
        const auto line = [](std::string_view name, std::size_t bytes, const char* note) {
            return "\n  " + std::string(name) + ": " + std::to_string(bytes) + " bytes" + note;
        };
        std::string text = "memory_bytes is " + std::to_string(c.memory_bytes) + "; preset " +
                           std::string(preset_name<Preset>()) + " needs at least " +
                           std::to_string(need.total()) +
                           " with this shape, max_tokens, keep_tokens and prefill_tokens:";
        text += line(preset_name<typename Preset::first>(), need.first, " (a prompt and what it keeps)");
        text += line("scratch", need.move, " (kept entries on their way)");
        text += line(preset_name<typename Preset::second>(), need.second, " (retrieval from storage)");
        return {errc::bound_too_small, text};
    }

    /// The checks that all calls share. `tokens` more are to come; `whole`: not within an unfinished prompt.
    [[nodiscard]] status find(const char* call, sequence_id seq, std::size_t layer, unsigned shard,
                              std::size_t tokens, bool whole, progress*& p) noexcept {
        if (status s = core_->calls.call(call, seq, layer, shard); !s) return s;
        const auto l = static_cast<std::uint32_t>(layer);
        p = &core_->progress_of(shard, seq.slot)[l];
        if (p->stage == stage::cut_short)
            return status::failure(errc::io_error,
                                   "%s: the prompt of this sequence was cut short by a device error; end it",
                                   call);
        const std::size_t seen = seen_by(seq.slot, l, shard, *p);
        if (whole && p->stage == stage::evicting)
            return status::failure(errc::invalid_argument,
                                   "%s: the prompt of this sequence is not complete: %zu tokens wait for a "
                                   "prefill with last_chunk = true",
                                   call, seen);
        return core_->calls.room(call, seen, tokens);
    }
    [[nodiscard]] std::size_t seen_by(std::uint32_t slot, std::uint32_t layer, unsigned shard,
                                      const progress& p) const noexcept {
        const std::uint32_t n = p.stage == stage::evicting ? core_->first.inspect(shard).tokens(slot, layer)
                                                           : core_->second.inspect(shard).tokens(slot, layer);
        return n == none ? 0 : n + p.dropped;
    }
    /// A sequence that begins with decode has no prompt any more.
    [[nodiscard]] static status settle(const status& done, progress& p) noexcept {
        if (done.ok()) p.stage = stage::retrieving;
        return done;
    }

    /// Moves what a layer's prompt kept from First to Second. q: of the `chunk` tokens that came last.
    [[nodiscard]] status hand_over(sequence_id seq, std::uint32_t layer, std::span<const float> q,
                                   std::size_t chunk, unsigned shard, progress& p) noexcept {
        auto& from = core_->first.inspect(shard);
        const auto lanes = from.lanes_of(seq.slot, layer);
        if (lanes.empty()) return settle({}, p); // the sequence has another shard
        const std::uint32_t held = lanes[0].rows.rows, seen = lanes[0].tokens;
        const std::uint32_t window = std::min(from.plan().window, held), most = core_->moving.rows;
        // The last piece is of latest tokens only: their queries are there, and tell Second which units are
        // wanted together.
        const auto known =
            static_cast<std::uint32_t>(q.empty() ? 0 : std::min<std::size_t>(chunk, std::min(window, most)));
        for (std::uint32_t row = 0, n = 0; row < held; row += n) {
            const std::uint32_t left = held - row;
            n = std::min(most, left > known ? left - known : left);
            const bool last = n == left;
            layer_input in = fill(seq.slot, layer, row, n, shard);
            in.last_chunk = last;
            if (last && n == known) in.q = q.last(n * core_->calls.query_floats);
            if (status s = core_->second.prefill(seq, layer, in, {}, shard); !s) {
                for (progress& other : core_->progress_of(shard, seq.slot)) other.stage = stage::cut_short;
                return s;
            }
        }
        from.forget(seq.slot, layer);
        p = {stage::retrieving, seen - held, seen > held ? seen - window : 0};
        return {};
    }
    /// Rows [row, row + n) of the heads of a shard, as a chunk of a prompt.
    [[nodiscard]] layer_input fill(std::uint32_t slot, std::uint32_t layer, std::uint32_t row,
                                   std::uint32_t n, unsigned shard) noexcept {
        const std::size_t token = core_->calls.key_floats, dim = core_->dim;
        const std::size_t begin = shard * core_->moving.rows * token;
        const std::span<float> k = core_->moving.k.subspan(begin, n * token),
                               v = core_->moving.v.subspan(begin, n * token);
        core_->first.inspect(shard).rows_of(
            slot, layer, row, row + n,
            [&](std::size_t head, std::uint32_t first, rows_view<element_type> keys,
                rows_view<element_type> values) {
                for (std::size_t i = 0; i < keys.count; ++i) {
                    const std::size_t at = (first - row + i) * token + head * dim;
                    simd::decode(keys.row(i), &k[at], dim);
                    simd::decode(values.row(i), &v[at], dim);
                }
            });
        return {.k = k, .v = v};
    }

    std::unique_ptr<core> core_;
};

}} // namespace kvtl::v0
