// One shard of a cache: everything that attending its lanes touches. Shards share nothing but the file.
//
// What:   retention is a stage of the prompt and, for entries that stay in memory, of the step; retrieval
//         is what chooses among units. A preset has one of them or both (slots/preset.hpp):
//
//           keeps all, in memory      prompt ──────────────▶ rows and records ──▶ step
//           keeps all, retrieves      prompt ──────────────▶ units ─────────────▶ step
//           drops, stays in memory    prompt ─▶ retention ─▶ rows ──────────────▶ step, retention
//           drops, moves on           prompt ─▶ retention ─▶ units, or records ─▶ step
//
//         Layers whose attention slides (config.attention.windows) take no part in this: they keep the rows that
//         their queries see, in the stage of those that keep all in memory. The others are numbered without them, here
//         and in every policy.
//
//         In the last, a prompt waits in the rows of retention until what it keeps is settled, at a layer's
//         last chunk or, under a late budget, when all layers have come; then it moves.
// Errors: when a device fails, or memory has no room, while kept entries move, they wait in memory; the same prefill may be repeated.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/core/plan/size_rows.hpp>
#include <kvtl/core/shard_base.hpp>
#include <kvtl/core/step/retention_stage.hpp>
#include <kvtl/core/step/retrieval_stage.hpp>
#include <kvtl/core/step/row_stage.hpp>
#include <kvtl/policies/support/plain_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// Stands where a preset has no such stage: it has nothing, and does nothing.
struct no_stage {
    static constexpr std::uint32_t most_owners = none;
    template <class... Plan> static void init(const Plan&...) noexcept {}
    static void bind(const calibration_view&) noexcept {}
    static status check_last_queries(const layer_input&) noexcept { return {}; }
    static void give_up_turn(std::uint32_t, std::uint32_t, bool) noexcept {}
    static void undo_select(std::uint32_t, std::uint32_t) noexcept {}
    static void before_query(std::uint32_t, std::uint32_t) noexcept {}
    static status prefetch(std::uint32_t, std::uint32_t, const tensor_view&) noexcept { return {}; }
    static bool prefetch_for_batch(std::uint32_t, std::uint32_t, const tensor_view&) noexcept { return true; }
    static void cancel_prefetch() noexcept {}
    static status select(std::uint32_t, std::uint32_t, const tensor_view&) noexcept { return {}; }
    static void end(std::uint32_t) noexcept {}
    static bool holds(std::uint32_t, std::uint32_t) noexcept { return false; }
    static bool prompt_open(std::uint32_t, std::uint32_t) noexcept { return false; }
    static bool settled(std::uint32_t) noexcept { return true; }
    static std::uint32_t layers_seen(std::uint32_t) noexcept { return 0; }
    static std::uint32_t tokens(std::uint32_t, std::uint32_t) noexcept { return 0; }
    static std::size_t kept_entries(std::uint32_t, std::uint32_t) noexcept { return 0; }
    static status attend_only(call_half, std::uint32_t, std::uint32_t, const layer_input&, std::uint32_t,
                              const tensor_span&) noexcept {
        return {};
    }
    static void parts(part_stream&, std::uint32_t, std::uint32_t, std::uint32_t,
                      std::span<std::byte> = {}) noexcept {}
    static bool hot_set_parts(part_stream&, std::uint32_t, const pool_role&) noexcept { return false; }
    static void begin_branch(std::uint32_t, std::uint32_t) noexcept {}
    static status promise_copy(std::uint32_t, std::uint32_t, std::uint32_t = 0) noexcept { return {}; }
    static void withdraw_copy(std::uint32_t, std::uint32_t, std::uint32_t = 0) noexcept {}
    static void withdraw_copies(std::uint32_t) noexcept {}
    static status copy_layer(std::uint32_t, std::uint32_t, std::uint32_t) noexcept { return {}; }
    static status retry_writes(std::uint32_t) noexcept { return {}; }
    static void note_saved(std::uint32_t) noexcept {}
    static status come_to_rest() noexcept { return {}; }
    static bool limit_frames(std::uint32_t, std::span<const std::uint32_t>, bool) noexcept { return true; }
    static std::size_t frame_bytes(std::uint32_t) noexcept { return 0; }
    static status read_back(std::uint32_t, std::uint32_t) noexcept { return {}; }
    static statistics stats() noexcept { return {}; }
    static sequence_statistics counted() noexcept { return {}; }
    static void add_held(statistics&, std::uint32_t, std::uint32_t) noexcept {}
};

template <class Types> class alignas(64) shard final : public shard_base {
  public:
    using types = Types;
    using retention = std::conditional_t<types::drops, retention_stage<types>, no_stage>;
    using retrieval = std::conditional_t<types::retrieves, retrieval_stage<types>, no_stage>;
    static constexpr bool hands_over = types::hands_over;

    status prefill(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                   std::uint32_t tokens, const tensor_span& out, bool last) noexcept override {
        if (slides(layer)) return rows_.prefill(h, slot, layer, in, tokens, out, last);
        if constexpr (hands_over) {
            const std::uint32_t here = decoder().tokens(slot, layer);
            if (here == none) return {};
            if (here == 0) {
                if (h == call_half::undo) return {};
                const bool repeated = retention_.holds(slot, layer) && !retention_.prompt_open(slot, layer);
                if (h == call_half::prepare && in.last_chunk)
                    if (status s = retrieval_.check_last_queries(in); !s) return s;
                if (!repeated)
                    if (status s = retention_.prefill(h, slot, layer, in, tokens, out); !s) return s;
                if (!in.last_chunk) return repeated ? check_moved("prefill", slot, layer) : status{};
                return h == call_half::commit ? move_settled(slot, layer, in, tokens, repeated) : status{};
            }
        }
        return decoder().prefill(h, slot, layer, in, tokens, out, last);
    }
    status attend_only(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                       std::uint32_t tokens, const tensor_span& out) noexcept override {
        static_cast<void>(slides(layer)); // it does not; its number
        if (out.empty()) return {};
        if (hands_over && decoder().tokens(slot, layer) == 0) {
            if (retention_.holds(slot, layer) && !retention_.prompt_open(slot, layer))
                if (status s = check_moved("prefill", slot, layer); !s) return s;
            return retention_.attend_only(h, slot, layer, in, tokens, out);
        }
        return decoder().attend_only(h, slot, layer, in, tokens, out);
    }
    status attend(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                  std::uint32_t tokens, const tensor_span& out, bool stays) noexcept override {
        if (slides(layer)) return rows_.attend(h, slot, layer, in, tokens, out, true);
        if (status s = check_moved("attend", slot, layer); !s) return s;
        return decoder().attend(h, slot, layer, in, tokens, out, stays);
    }
    status append(call_half h, std::uint32_t slot, std::uint32_t layer,
                  const layer_input& in) noexcept override {
        if (slides(layer)) return rows_.append(h, slot, layer, in);
        if (status s = check_moved("append", slot, layer); !s) return s;
        return decoder().append(h, slot, layer, in);
    }
    void give_up_turn(std::uint32_t slot, std::uint32_t layer, bool empty) noexcept override {
        if (!slides(layer)) retrieval_.give_up_turn(slot, layer, empty);
    }
    void before_query(std::uint32_t slot, std::uint32_t layer) noexcept override {
        if (!slides(layer)) retrieval_.before_query(slot, layer);
    }
    status prefetch(std::uint32_t slot, std::uint32_t layer, const tensor_view& q) noexcept override {
        if (slides(layer)) return {};
        if (status s = check_moved("prefetch", slot, layer); !s) return s;
        return retrieval_.prefetch(slot, layer, q);
    }
    status read_back(std::uint32_t slot, std::uint32_t layer) noexcept override {
        if (slides(layer)) return {};
        if (status s = check_moved("prefetch", slot, layer); !s) return s;
        return retrieval_.read_back(slot, layer);
    }
    bool prefetch_for_batch(std::uint32_t slot, std::uint32_t layer, const tensor_view& q) noexcept override {
        if (slides(layer) || !check_moved("attend", slot, layer).ok()) return true;
        return retrieval_.prefetch_for_batch(slot, layer, q);
    }
    void cancel_prefetch() noexcept override { retrieval_.cancel_prefetch(); }
    status ready(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept override {
        if (slides(layer)) return rows_.ready(call, slot, layer);
        if (status s = check_moved(call, slot, layer); !s) return s;
        return decoder().ready(call, slot, layer);
    }
    /// Brings in what q selects and calls visit(kv head, keys, values) for every block to attend.
    template <class Visit>
    [[nodiscard]] status select(call_half h, std::uint32_t slot, std::uint32_t layer, const tensor_view& q,
                                Visit&& visit) noexcept {
        const bool rows = slides(layer);
        if (h == call_half::commit) {
            if (rows) return rows_.views(slot, layer, visit), status{};
            return decoder().views(slot, layer, visit), status{};
        }
        if (rows) return {};
        if (h == call_half::undo) return retrieval_.undo_select(slot, layer), status{};
        if (status s = check_moved("select", slot, layer); !s) return s;
        status done = retrieval_.select(slot, layer, q);
        if (!done) retrieval_.undo_select(slot, layer);
        return done;
    }

    status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n,
                        const rewind_argument& asked) noexcept override {
        slot = holder(slot, layer);
        if (slides(layer)) return rows_.check_rewind(slot, layer, n, asked);
        if (status s = check_moved(asked.call, slot, layer); !s) return s;
        return decoder().check_rewind(slot, layer, n, asked);
    }
    void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept override {
        if (slides(layer)) return rows_.rewind(slot, layer, n);
        decoder().rewind(slot, layer, n);
    }
    // As rare_shard_calls.
    void parts(part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t head,
               std::span<std::byte> batch) noexcept {
        if (slides(layer)) return rows_.parts(io, slot, layer, head);
        retention_.parts(io, slot, layer, head);
        chains().parts(io, slot, layer, head);
        retrieval_.parts(io, slot, layer, head, batch);
    }

    [[nodiscard]] bool waits(std::uint32_t slot, std::uint32_t layer) const noexcept override {
        return hands_over && !slides(layer) && retention_.holds(slot, layer) &&
               !retention_.prompt_open(slot, layer) && retention_.settled(slot);
    }
    [[nodiscard]] bool will_drop(std::uint32_t slot, std::uint32_t layer) const noexcept override {
        return !slides(layer) && retention_.holds(slot, layer) && retention_.prompt_open(slot, layer);
    }
    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept override {
        slot = holder(slot, layer);
        if (slides(layer)) return rows_.tokens(slot, layer);
        if (hands_over && retention_.holds(slot, layer)) return retention_.tokens(slot, layer);
        return decoder().tokens(slot, layer);
    }
    [[nodiscard]] std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) noexcept override {
        slot = holder(slot, layer);
        if (slides(layer)) return rows_.kept_entries(slot, layer);
        if (hands_over && retention_.holds(slot, layer)) return retention_.kept_entries(slot, layer);
        return decoder().kept_entries(slot, layer);
    }
    /// The part of a plan that layers make which are attended whole. Carves the places too. `records`: memory of the
    /// shard's.
    template <class Config>
    [[gnu::cold]] void init_rows(const Config& c, const row_plan& r, const cache_plan& p, std::uint32_t index,
                                 carver& carve, std::span<std::byte> records) noexcept {
        numbers_ = p.numbers;
        if (r.layers.empty()) return;
        places_ = carve.take<layer_place>(r.places.size());
        std::copy(r.places.begin(), r.places.end(), places_.begin());
        rows_.init(c, r, p, index, carve, records);
    }
    // Its parts, for the manager that sets them up and for tests of invariants.
    [[nodiscard]] retention& kept() noexcept { return retention_; }
    [[nodiscard]] retrieval& retrieved() noexcept { return retrieval_; }
    [[nodiscard]] auto& rows() noexcept { return rows_; }
    [[nodiscard]] auto& store() noexcept { return retrieval_.store(); }
    [[nodiscard]] auto& growth() noexcept { return retrieval_.growth(); }

  private:
    // ------------------------------------------------------------------------------------- branches
    void begin_branch(std::uint32_t parent, std::uint32_t slot) noexcept override {
        retention_.begin_branch(parent, slot);
        retrieval_.begin_branch(parent, slot);
    }
    status promise_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept override {
        if (slides(layer)) return rows_.promise_copy(from, layer);
        if (status s = chains().promise_copy(from, layer); !s) return s;
        status done = retention_.promise_copy(from, to, layer);
        if (done.ok()) done = retrieval_.promise_copy(from, to, layer);
        if (!done) chains().withdraw_copy(from, layer);
        return done;
    }
    void withdraw_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept override {
        if (slides(layer)) return rows_.withdraw_copy(from, layer);
        chains().withdraw_copy(from, layer);
        retrieval_.withdraw_copy(from, to, layer);
    }
    void withdraw_copies(std::uint32_t slot) noexcept override { retrieval_.withdraw_copies(slot); }
    status copy_layer(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept override {
        if (slides(layer)) return rows_.copy_layer(from, to, layer);
        if (status s = retrieval_.copy_layer(from, to, layer); !s) return s;
        if (status s = retention_.copy_layer(from, to, layer); !s) return s;
        return chains().copy_layer(from, to, layer);
    }
    [[nodiscard]] std::uint32_t most_owners() const noexcept override { return retrieval::most_owners; }
    [[nodiscard]] sequence_statistics counted() const noexcept override {
        sequence_statistics s(rows_.counted());
        s += sequence_statistics(retention_.counted());
        s += sequence_statistics(retrieval_.counted());
        return s;
    }
    status retry_own_writes(std::uint32_t slot) noexcept override { return retrieval_.retry_writes(slot); }
    void forget(std::uint32_t slot) noexcept override {
        rows_.end(slot);
        retention_.end(slot);
        retrieval_.end(slot);
    }
    [[nodiscard]] statistics counters() const noexcept override {
        statistics s = retention_.stats();
        if (hands_over) s.kept_entries = s.kept_bytes = 0; // those on their way are none that decode has
        s += retrieval_.stats();
        statistics rows = rows_.stats();
        if (!types::drops) rows.kept_entries = 0; // of presets that drop entries only
        return s += rows, s;
    }
    [[nodiscard]] std::size_t frame_bytes(std::uint32_t slot) const noexcept override {
        return retrieval_.frame_bytes(slot);
    }
    [[nodiscard]] statistics held(std::uint32_t slot, std::uint32_t layer) const noexcept override {
        statistics s;
        if (slides(layer)) {
            rows_.add_held(s, slot, layer);
        } else {
            chains().add_held(s, slot, layer);
            if (!hands_over) retention_.add_held(s, slot, layer);
            retrieval_.add_held(s, slot, layer);
        }
        if (!types::drops) s.kept_entries = 0;
        return s;
    }

    /// The stage that holds entries during decode.
    [[nodiscard]] auto& decoder() noexcept {
        if constexpr (types::retrieves)
            return retrieval_;
        else if constexpr (types::in_chains)
            return rows_;
        else
            return retention_;
    }

    /// Rows and records of all that is kept, where decode attends these; else nothing.
    [[nodiscard]] decltype(auto) chains() noexcept {
        if constexpr (types::in_chains)
            return (rows_);
        else
            return no_stage{};
    }
    [[nodiscard]] decltype(auto) chains() const noexcept {
        if constexpr (types::in_chains)
            return (rows_);
        else
            return no_stage{};
    }

    /// The prompt of this layer is not somewhere on its way.
    [[nodiscard]] status check_moved(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept {
        if (!hands_over) return {};
        if (!retention_.holds(slot, layer)) {
            if (retention_.layers_seen(slot) == 0 || retention_.settled(slot)) return {};
        } else if (retention_.prompt_open(slot, layer))
            return status::failure(errc::invalid_argument,
                                   "%s: the prompt of this sequence is not complete: %u tokens wait for a "
                                   "prefill with last_chunk = true",
                                   call, retention_.tokens(slot, layer));
        if (!retention_.settled(slot))
            return status::failure(errc::invalid_argument,
                                   "%s: the prompt of layer %u is still to come; budgets are not settled",
                                   call, numbers_.of(retention_.layers_seen(slot)));
        if (types::in_chains)
            return status::failure(errc::bound_too_small,
                                   "%s: what layer %u keeps of its prompt found no room in memory_bytes; "
                                   "repeat its prefill when other sequences have ended, or end this one",
                                   call, numbers_.of(layer));
        return status::failure(errc::io_error,
                               "%s: what layer %u keeps of its prompt could not be written; repeat its "
                               "prefill, or end the sequence",
                               call, numbers_.of(layer));
    }

    /// Moves what is settled: this layer, or under a late budget all of them once the last one has come.
    [[nodiscard]] status move_settled(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                      std::uint32_t chunk, bool repeated) noexcept {
        if (!retention_.settled(slot)) {
            if (!repeated) return {};
            return check_moved("prefill", slot, layer);
        }
        const bool all = types::budget::late;
        const std::uint32_t first = all ? 0 : layer, end = all ? retention_.layers_seen(slot) : layer + 1;
        for (std::uint32_t l = first; l < end; ++l) {
            if (!retention_.holds(slot, l)) continue;
            layer_input last = in;
            if (l != layer) last.q = {}; // queries of another layer say nothing about this one
            if (status s = decoder().take_over(slot, l, retention_, last, last.q.empty() ? 0 : chunk); !s)
                return s;
            retention_.forget(slot, l);
        }
        if (all) retention_.begin_anew(slot);
        return {};
    }

    retention retention_;
    retrieval retrieval_;
    row_stage<typename types::element_type, typename types::chain_codec> rows_;
    layer_numbers numbers_;
};

#ifdef KVTL_INSTANCE // layers that slide, and presets that keep plain rows of everything
KVTL_INSTANCE class row_stage<f16, plain_rows<f16>>;
#endif

template <class Types>
inline constexpr rare_shard_calls rare_calls_of{
    [](shard_base& s, part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t head,
       std::span<std::byte> batch) noexcept {
        static_cast<shard<Types>&>(s).parts(io, slot, layer, head, batch);
    },
    [](shard_base& s, part_stream& io, std::uint32_t slot, const pool_role& role) noexcept {
        return static_cast<shard<Types>&>(s).retrieved().hot_set_parts(io, slot, role);
    },
    [](shard_base& s, std::uint32_t slot) noexcept {
        static_cast<shard<Types>&>(s).retrieved().note_saved(slot);
    },
    [](shard_base& s) noexcept { return static_cast<shard<Types>&>(s).retrieved().come_to_rest(); },
    [](shard_base& s, std::uint32_t frames, std::span<const std::uint32_t> of, bool large) noexcept {
        return static_cast<shard<Types>&>(s).retrieved().limit_frames(frames, of, large);
    }};

}} // namespace kvtl::v0
