// The manager: a preset, a geometry and what the engine supplies become one statically specialised KV cache.
//
//   using geometry = kvtl::geometry<kvtl::shape{.head_dim = 64}>;
//   auto opened = kvtl::dynakv<geometry>::open({.shape = ..., .max_tokens = 32768, .memory_bytes = 64 << 20,
//                                               .attend_tokens = 512, .io = {.path = "kv.bin"}});
//
// Threads: begin, end, rewind and stats are exclusive. The other calls take a shard; different shards may run
// concurrently, each fills only its heads' part of `out`. Errors: cold calls return result<T>, hot calls a
// status and are noexcept; a failed call leaves tokens, units and statistics as they were, and the call may
// be repeated for the shard it failed on. One exception: a further turn (prefill after decode) whose writes
// fail half-way cannot be undone; every later call on that sequence then says that it must be ended.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/core/call_checks.hpp>
#include <kvtl/core/plan/planner.hpp>
#include <kvtl/core/refused.hpp>
#include <kvtl/core/shard.hpp>
#include <kvtl/io/superblock.hpp>
#include <kvtl/slots/preset.hpp>
#include <kvtl/slots/sentences.hpp>

#include <memory>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Reached only by presets that miss a requirement: prints one sentence for each (slots/sentences.hpp).
template <class Preset, class Geometry, class Supplied = supplied_by_default>
class kv_manager : public refused_cache<Preset, kv_manager<Preset, Geometry, Supplied>> {
    static_assert(explain_preset<Preset, Geometry, Supplied>(),
                  "[kvtl] the sentences above say what to mend");
};

template <class Preset, class Geometry, class Supplied>
requires preset_for<Preset, Geometry, Supplied> &&
    (!drops_entries<Preset>)class kv_manager<Preset, Geometry, Supplied> {
  public:
    using preset = Preset;
    using geometry = Geometry;
    using config = cache_config<Preset>;
    using types = cache_types<Preset, Geometry>;
    using element_type = typename types::element_type;

    kv_manager(kv_manager&&) noexcept = default;
    kv_manager& operator=(kv_manager&&) noexcept = default;
    ~kv_manager() = default;

    /// Reserves all memory, opens the device, checks everything that can be checked. Cold; the only call that
    /// allocates.
    [[nodiscard]] static result<kv_manager> open(const config& c) {
        auto g = Geometry::from(c.shape);
        if (!g) return g.error();
        if (!contains(c.supplied, needed_signals<Preset>()))
            return status::failure(
                errc::unsupported,
                "supplied: preset %s needs the signal %s, which the engine does not supply",
                preset_name<Preset>().data(), missing_signal(needed_signals<Preset>(), c.supplied));
        calibration bases;
        if (auto e = open_calibration(c, *g, bases); e.code != errc::ok) return e;
        std::uint32_t page = 4096;
        for (;;) {
            auto planned = planner<Preset, Geometry>::plan(c, *g, page, bases.bytes());
            if (!planned) return planned.error();
            auto core = open_core(c, *g, *planned, bases);
            if (!core) return core.error();
            if ((*core)->device.facts().page <= page) return kv_manager(std::move(*core));
            page = (*core)->device.facts().page; // a device with larger pages: plan again for it
        }
    }

    /// The config with the largest index that takes at most half of memory_bytes: the preset's size knobs are
    /// turned down in its published order (`Preset::shrink`) until it does. Without knobs, or when even the
    /// smallest is too large, the config comes back as far as it got and open() decides.
    [[nodiscard]] static result<config> fitted(config c) {
        auto g = Geometry::from(c.shape);
        if (!g) return g.error();
        if constexpr (requires { Preset::shrink(c); })
            for (;;) {
                calibration bases;
                if (auto e = open_calibration(c, *g, bases); e.code != errc::ok) return e;
                const auto planned = planner<Preset, Geometry>::plan(c, *g, 4096, bases.bytes());
                if (planned.ok() && planned->parts.index <= c.memory_bytes / 2) break;
                if (!planned.ok() && planned.error().code != errc::bound_too_small) return planned.error();
                if (!Preset::shrink(c)) break;
            }
        return c;
    }

    /// The smallest memory_bytes that open() accepts on a device with pages of 4 KiB.
    [[nodiscard]] static result<std::size_t> least_memory(config c) {
        auto g = Geometry::from(c.shape);
        if (!g) return g.error();
        calibration bases;
        if (auto e = open_calibration(c, *g, bases); e.code != errc::ok) return e;
        c.memory_bytes = std::numeric_limits<std::size_t>::max() / 2;
        const auto planned = planner<Preset, Geometry>::plan(c, *g, 4096, bases.bytes());
        if (!planned) return planned.error();
        return planned->least_bytes;
    }

    /// A new, empty sequence.
    [[nodiscard]] result<sequence_id> begin() { return core_->calls.begin(); }

    /// Forgets a sequence and frees its storage. Writes in the air are waited for.
    status end(sequence_id seq) noexcept {
        if (status s = check_sequence("end", seq); !s) return s;
        for (auto& shard : core_->shards) shard.end(seq.slot);
        core_->calls.end(seq);
        return {};
    }

    /// A chunk of T prompt tokens of one layer: q (T, HQ, D), k, v (T, H, D), exact causal attention over
    /// everything so far to out (T, HQ, D). With `out` empty the engine attended itself. Chunks before the
    /// last set in.last_chunk = false. After decode it is a further turn and goes the way of decode, in bulk.
    [[nodiscard]] status prefill(sequence_id seq, std::size_t layer, const layer_input& in,
                                 std::span<float> out, unsigned shard = 0) noexcept {
        std::size_t tokens = 0;
        if (status s = check_call("prefill", seq, layer, shard); !s) return s;
        if (status s = check_input("prefill", in, out, true, tokens); !s) return s;
        if (status s = check_room("prefill", seq, layer, shard, tokens); !s) return s;
        const bool last = in.last_chunk || core_->adapt_prompt;
        return core_->shards[shard].prefill(seq.slot, static_cast<std::uint32_t>(layer), in,
                                            static_cast<std::uint32_t>(tokens), out, last);
    }

    /// One decode step of one layer: appends k, v (H, D) and attends q (HQ, D) to out (HQ, D).
    [[nodiscard]] status attend(sequence_id seq, std::size_t layer, const layer_input& in,
                                std::span<float> out, unsigned shard = 0) noexcept {
        std::size_t tokens = 0;
        if (status s = check_call("attend", seq, layer, shard); !s) return s;
        if (status s = check_input("attend", in, out, false, tokens); !s) return s;
        if (out.empty())
            return status::failure(errc::invalid_argument, "attend: out is empty; valid: %zu floats",
                                   core_->calls.query_floats);
        if (const std::size_t heads = core_->plan.model.query_heads();
            !in.lse.empty() && in.lse.size() != heads)
            return status::failure(errc::invalid_argument, "attend: lse has %zu floats; valid: %zu",
                                   in.lse.size(), heads);
        if (status s = check_room("attend", seq, layer, shard, tokens); !s) return s;
        return core_->shards[shard].attend(seq.slot, static_cast<std::uint32_t>(layer), in, out);
    }

    /// Appends k, v (H, D) without attention, for engines that attend themselves (then select()).
    [[nodiscard]] status append(sequence_id seq, std::size_t layer, const layer_input& in,
                                unsigned shard = 0) noexcept {
        std::size_t tokens = 0;
        if (status s = check_call("append", seq, layer, shard); !s) return s;
        layer_input rows = in;
        rows.q = {}; // of no use here
        if (status s = check_input("append", rows, {}, false, tokens); !s) return s;
        if (status s = check_room("append", seq, layer, shard, tokens); !s) return s;
        return core_->shards[shard].append(seq.slot, static_cast<std::uint32_t>(layer), in);
    }

    /// Starts the reads of a layer early for a guessed (or the true) query q (HQ, D). A hint: what does not
    /// fit is left to attend(); what was not needed is counted in wasted_bytes.
    status prefetch(sequence_id seq, std::size_t layer, std::span<const float> q,
                    unsigned shard = 0) noexcept {
        if (status s = check_call("prefetch", seq, layer, shard); !s) return s;
        if (status s = check_floats("prefetch", "q", q, core_->calls.query_floats); !s) return s;
        return core_->shards[shard].prefetch(seq.slot, static_cast<std::uint32_t>(layer), q);
    }

    /// For engines with their own attention kernel: brings in what q (HQ, D) selects and calls
    /// visit(std::size_t kv_head, rows_view<E> keys, rows_view<E> values) for every block to attend (append()
    /// first). The views stay valid until the next call on this shard.
    template <class Visit>
    [[nodiscard]] status select(sequence_id seq, std::size_t layer, std::span<const float> q, Visit&& visit,
                                unsigned shard = 0) noexcept {
        if (status s = check_call("select", seq, layer, shard); !s) return s;
        if (status s = check_floats("select", "q", q, core_->calls.query_floats); !s) return s;
        const auto l = static_cast<std::uint32_t>(layer);
        if (status s = core_->shards[shard].select(seq.slot, l, q); !s) return s;
        core_->shards[shard].views(seq.slot, l, visit);
        return {};
    }

    /// Gives up the last n tokens in all layers; they must still be in the window.
    status rewind(sequence_id seq, std::size_t n) noexcept {
        if (status s = check_sequence("rewind", seq); !s) return s;
        const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(n, none - 1));
        for (auto& shard : core_->shards)
            for (std::uint32_t l = 0; l < core_->plan.model.layers; ++l)
                if (status s = shard.check_rewind(seq.slot, l, count); !s) return s;
        for (auto& shard : core_->shards)
            for (std::uint32_t l = 0; l < core_->plan.model.layers; ++l) shard.rewind(seq.slot, l, count);
        return {};
    }

    /// Tries writes that failed in the background once more; appends are refused until this succeeds.
    status retry_writes(sequence_id seq) noexcept {
        if (status s = check_sequence("retry_writes", seq); !s) return s;
        status worst;
        for (auto& shard : core_->shards)
            if (status s = shard.retry_writes(seq.slot); !s) worst = s;
        return worst;
    }

    [[nodiscard]] statistics stats() const noexcept {
        statistics total;
        for (auto& shard : core_->shards) total += shard.stats(0);
        total.bytes_by_part = core_->parts;
        total.resident_bytes_peak += core_->parts.total() - core_->parts.frames - core_->parts.tails;
        return total;
    }

    [[nodiscard]] unsigned shards() const noexcept { return static_cast<unsigned>(core_->shards.size()); }
    [[nodiscard]] io_facts facts() const noexcept { return core_->device.facts(); }
    /// Tokens that a layer of a sequence holds, staged ones included; 0 for a sequence or layer that is not
    /// there. Exclusive.
    [[nodiscard]] std::size_t tokens(sequence_id seq, std::size_t layer) noexcept {
        if (!check_call("tokens", seq, layer, 0)) return 0;
        for (auto& shard : core_->shards)
            if (const std::uint32_t n = shard.tokens(seq.slot, static_cast<std::uint32_t>(layer)); n != none)
                return n;
        return 0;
    }

    /// The shard's inside, for tests of invariants. Not part of the stable interface.
    [[nodiscard]] auto& inspect(unsigned shard) noexcept { return core_->shards[shard]; }

  private:
    using shard_type = shard<Preset, Geometry>;
    using pool = typename types::pool;

    /// Members are destroyed in reverse order: the device (which waits for its transfers) before the memory.
    struct core {
        reservation memory;
        typename types::lane_table lanes;
        typename types::device device;
        cache_plan plan;
        memory_parts parts;
        std::vector<pool> pools;
        std::vector<shard_type> shards;
        call_checks<element_type> calls;
        bool adapt_prompt = false;

        explicit core(typename types::device d) : device(std::move(d)) {}
    };

    explicit kv_manager(std::unique_ptr<core> c) noexcept : core_(std::move(c)) {}

    /// The calibration file of a preset that needs one, or can use one.
    struct calibration {
        std::unique_ptr<calibration_file> file;
        [[nodiscard]] std::size_t bytes() const noexcept { return file ? file->bytes() : 0; }
    };
    static error open_calibration(const config& c, const Geometry& g, calibration& out) {
        if constexpr (requires { Preset::index::calibrated; }) {
            constexpr auto kind = Preset::index::calibrated;
            if (c.calibration.empty() && !contains(needed_signals<Preset>(), signal::calibration))
                return {errc::ok, {}}; // the index can do without
            if (c.calibration.empty())
                return {errc::unsupported,
                        "calibration is empty; preset " + std::string(preset_name<Preset>()) +
                            " needs a calibration file with section " + std::string(kind_name(kind))};
            calibration_request want{.kinds = kind_bit(kind)};
            if constexpr (requires { c.index.rank; })
                want.rank = std::min(c.index.rank, g.kv_heads() * g.head_dim());
            else if constexpr (requires { c.index.channels; })
                if (calibration_extents::has_directions(kind))
                    want.rank = std::min(c.index.channels, g.head_dim());
            auto file = calibration_file::open(c.calibration, g.extents(), want);
            if (!file) return file.error();
            out.file = std::make_unique<calibration_file>(std::move(*file));
        } else {
            static_cast<void>(c), static_cast<void>(g), static_cast<void>(out);
        }
        return {errc::ok, {}};
    }

    static result<std::unique_ptr<core>> open_core(const config& c, const Geometry& g,
                                                   const typename planner<Preset, Geometry>::answer& a,
                                                   const calibration& bases) {
        auto memory = reservation::make(a.bytes());
        if (!memory) return memory.error();
        const auto fixed = memory->memory().first(a.fixed_bytes),
                   frames = memory->memory().subspan(a.fixed_bytes);
        const superblock block = make_superblock(g.extents(), sizeof(element_type),
                                                 preset_fingerprint<Preset>(), a.plan.device_page);
        const std::uint64_t step = std::uint64_t{file_map::step_bytes} * a.plan.shards;
        const std::uint64_t data = std::uint64_t{a.plan.file_pages} * a.page_bytes * a.plan.shards;
        auto device =
            types::io::open(c.io, {.queues = a.plan.shards,
                                   .depth = 64,
                                   .max_in_flight = a.plan.max_in_flight,
                                   .arena = frames,
                                   .superblock = superblock_bytes(block),
                                   .max_bytes = a.page_bytes + (data + step - 1) / step * step + step});
        if (!device) return device.error();
        auto made = std::make_unique<core>(std::move(*device));
        made->memory = std::move(*memory);
        made->plan = a.plan;
        made->parts = a.parts;
        made->adapt_prompt = c.adapt_prompt;
        made->calls = {.layers = g.layers(),
                       .shards = a.plan.shards,
                       .max_tokens = a.plan.sizes.max_tokens,
                       .query_floats = std::size_t{g.query_heads()} * g.head_dim(),
                       .key_floats = std::size_t{g.kv_heads()} * g.head_dim(),
                       .slots = {a.plan.max_sequences, typename call_checks<element_type>::slot_state{}}};
        const std::size_t shard_pools = a.plan.pools * (types::sequential ? 2U : 1U);
        made->pools.resize(a.plan.shards * shard_pools);
        made->shards = std::vector<shard_type>(a.plan.shards);
        carver carve(fixed);
        calibration_view view;
        if (bases.file) {
            auto read = bases.file->read(carve.template take<std::byte>(bases.bytes()));
            if (!read) return read.error();
            view = *read;
        }
        const std::uint32_t lanes = a.plan.max_sequences * a.plan.model.layers * a.plan.model.lanes();
        made->lanes.sizes = a.plan.sizes;
        made->lanes.offsets = types::lane::offsets::make(a.plan.sizes);
        made->lanes.lanes_per_layer = a.plan.model.lanes();
        made->lanes.lanes_per_slot = a.plan.model.layers * a.plan.model.lanes();
        made->lanes.blocks = carve.template take<std::byte>(lanes * made->lanes.offsets.bytes).data();
        for (std::uint32_t i = 0; i < lanes; ++i) made->lanes.at(i).reset();
        const std::size_t shard_frames = frames.size() / a.plan.shards;
        for (std::uint32_t s = 0; s < a.plan.shards; ++s) {
            made->shards[s].init(a.plan, c, g, s, made->device, made->lanes, carve, carve,
                                 frames.subspan(s * shard_frames, shard_frames),
                                 std::span(made->pools).subspan(s * shard_pools, shard_pools), a.page_bytes);
            made->shards[s].bind(view);
        }
        return made;
    }

    status check_sequence(const char* call, sequence_id seq) const noexcept {
        return core_->calls.sequence(call, seq);
    }
    status check_call(const char* call, sequence_id seq, std::size_t layer, unsigned shard) const noexcept {
        return core_->calls.call(call, seq, layer, shard);
    }
    status check_floats(const char* call, const char* name, std::span<const float> x,
                        std::size_t want) const noexcept {
        return core_->calls.floats(call, name, x, want);
    }
    status check_input(const char* call, const layer_input& in, std::span<float> out, bool many,
                       std::size_t& tokens) const noexcept {
        return core_->calls.input(call, in, out, many, tokens);
    }
    status check_room(const char* call, sequence_id seq, std::size_t layer, unsigned shard,
                      std::size_t tokens) const noexcept {
        const std::uint32_t have = core_->shards[shard].tokens(seq.slot, static_cast<std::uint32_t>(layer));
        return have == none ? status{} : core_->calls.room(call, have, tokens);
    }

    std::unique_ptr<core> core_;
};

}} // namespace kvtl::v0
