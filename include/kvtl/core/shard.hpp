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

#include <kvtl/core/plan/size_rows.hpp>
#include <kvtl/core/save/branches.hpp>
#include <kvtl/core/step/retention_stage.hpp>
#include <kvtl/core/step/retrieval_stage.hpp>
#include <kvtl/core/step/row_stage.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// Stands where a preset has no such stage: it has nothing, and does nothing.
struct no_stage {
    static status check_last_queries(const layer_input&) noexcept { return {}; }
    static void before_query(std::uint32_t, std::uint32_t) noexcept {}
    static status prefetch(std::uint32_t, std::uint32_t, const tensor_view&) noexcept { return {}; }
    static bool prefetch_for_batch(std::uint32_t, std::uint32_t, const tensor_view&) noexcept { return true; }
    static void cancel_prefetch() noexcept {}
    static status select(std::uint32_t, std::uint32_t, const tensor_view&) noexcept { return {}; }
    static void end(std::uint32_t) noexcept {}
    static bool holds(std::uint32_t, std::uint32_t) noexcept { return false; }
    static bool prompt_open(std::uint32_t, std::uint32_t) noexcept { return false; }
    static void parts(part_stream&, std::uint32_t, std::uint32_t, std::uint32_t,
                      std::span<std::byte> = {}) noexcept {}
    static bool hot_set_parts(part_stream&, std::uint32_t, const pool_role&) noexcept { return false; }
    static void note_saved(std::uint32_t) noexcept {}
    static statistics stats() noexcept { return {}; }
};

template <class Types> class alignas(64) shard {
  public:
    using types = Types;
    using retention = std::conditional_t<types::drops, retention_stage<types>, no_stage>;
    using retrieval = std::conditional_t<types::retrieves, retrieval_stage<types>, no_stage>;
    static constexpr bool hands_over = types::hands_over;

    shard() = default;
    shard(const shard&) = delete;
    shard& operator=(const shard&) = delete;

    /// Set while a call is under way.
    std::atomic_flag busy = ATOMIC_FLAG_INIT;

    [[nodiscard]] status prefill(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                 std::uint32_t tokens, const tensor_span& out, bool last) noexcept {
        if (slides(layer)) return rows_.prefill(slot, layer, in, tokens, out, last);
        if constexpr (hands_over) {
            const std::uint32_t here = decoder().tokens(slot, layer);
            if (here == none) return {};
            if (here == 0) {
                if (in.last_chunk)
                    if (status s = retrieval_.check_last_queries(in); !s) return s;
                const bool repeated = retention_.holds(slot, layer) && !retention_.prompt_open(slot, layer);
                if (!repeated)
                    if (status s = retention_.prefill(slot, layer, in, tokens, out); !s) return s;
                if (!in.last_chunk) return repeated ? check_moved("prefill", slot, layer) : status{};
                return move_settled(slot, layer, in, tokens, repeated);
            }
        }
        if constexpr (types::retrieves || types::in_chains)
            return decoder().prefill(slot, layer, in, tokens, out, last);
        else
            return retention_.prefill(slot, layer, in, tokens, out);
    }
    [[nodiscard]] status attend(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                std::uint32_t tokens, const tensor_span& out) noexcept {
        if (slides(layer)) return rows_.attend(slot, layer, in, tokens, out);
        if (status s = check_moved("attend", slot, layer); !s) return s;
        return decoder().attend(slot, layer, in, tokens, out);
    }
    [[nodiscard]] status append(std::uint32_t slot, std::uint32_t layer, const layer_input& in) noexcept {
        if (slides(layer)) return rows_.append(slot, layer, in);
        if (status s = check_moved("append", slot, layer); !s) return s;
        return decoder().append(slot, layer, in);
    }
    void before_query(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (!slides(layer)) retrieval_.before_query(slot, layer);
    }
    [[nodiscard]] status prefetch(std::uint32_t slot, std::uint32_t layer, const tensor_view& q) noexcept {
        if (slides(layer)) return {};
        if (status s = check_moved("prefetch", slot, layer); !s) return s;
        return retrieval_.prefetch(slot, layer, q);
    }
    /// A hint: a step with this query comes, perhaps after those of other sequences. False when nothing is left for more of
    /// them.
    [[nodiscard]] bool prefetch_for_batch(std::uint32_t slot, std::uint32_t layer,
                                          const tensor_view& q) noexcept {
        if (slides(layer) || !check_moved("attend", slot, layer).ok()) return true;
        return retrieval_.prefetch_for_batch(slot, layer, q);
    }
    /// Gives up what was announced and has not come.
    void cancel_prefetch() noexcept { retrieval_.cancel_prefetch(); }
    /// The prompt of a layer is complete, so that a token may come.
    [[nodiscard]] status ready(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept {
        if (slides(layer)) return rows_.ready(call, slot, layer);
        if (status s = check_moved(call, slot, layer); !s) return s;
        return decoder().ready(call, slot, layer);
    }
    /// Brings in what q selects and calls visit(kv head, keys, values) for every block to attend.
    template <class Visit>
    [[nodiscard]] status select(std::uint32_t slot, std::uint32_t layer, const tensor_view& q,
                                Visit&& visit) noexcept {
        if (slides(layer)) return rows_.views(slot, layer, visit), status{};
        if (status s = check_moved("select", slot, layer); !s) return s;
        if (status s = retrieval_.select(slot, layer, q); !s) return s;
        decoder().views(slot, layer, visit);
        return {};
    }

    [[nodiscard]] status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n,
                                      const rewind_argument& asked) noexcept {
        slot = branches_.holder(slot, layer);
        if (slides(layer)) return rows_.check_rewind(slot, layer, n, asked);
        if (status s = check_moved(asked.call, slot, layer); !s) return s;
        return decoder().check_rewind(slot, layer, n, asked);
    }
    void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept {
        if (slides(layer)) return rows_.rewind(slot, layer, n);
        decoder().rewind(slot, layer, n);
    }
    /// Of the sequence, and of those that it will copy layers from or that will copy its layers.
    [[nodiscard]] status retry_writes(std::uint32_t slot) noexcept {
        if constexpr (types::retrieves) {
            status done = retrieval_.retry_writes(slot);
            for (std::uint32_t other = 0; other < calls_.size(); ++other)
                if (branches_.related(slot, other))
                    if (status s = retrieval_.retry_writes(other); !s) done = s;
            return done;
        }
        static_cast<void>(slot);
        return {};
    }
    /// No branch waits for a layer of the sequence.
    void end(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < layers_; ++layer) give_up_copy(slot, layer);
        withdraw_copies(slot);
        calls_[division_.seat(slot)] = {};
        rows_.end(slot);
        retention_.end(slot);
        retrieval_.end(slot);
    }

    /// What the shard has of a layer's KV head, to or from a stream; nothing where that belongs to another shard. Every layer is
    /// complete. batch: memory for pages on their way.
    void parts(part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t head,
               std::span<std::byte> batch) noexcept {
        if (slides(layer)) return rows_.parts(io, slot, layer, head);
        retention_.parts(io, slot, layer, head);
        if constexpr (types::in_chains) rows_.parts(io, slot, layer, head);
        retrieval_.parts(io, slot, layer, head, batch);
    }

    /// Which units of the sequence are in memory (core/save/hot_set.hpp), where that decides. False where a save does not keep
    /// it or the shard cannot load it.
    [[nodiscard]] bool hot_set_parts(part_stream& io, std::uint32_t slot, const pool_role& role) noexcept {
        return retrieval_.hot_set_parts(io, slot, role);
    }

    /// A save has the sequence as it is now: the next one may leave out what does not change until then.
    void note_saved(std::uint32_t slot) noexcept { retrieval_.note_saved(slot); }

    // Branches (core/save/branches.hpp). `settle`: a layer is about to be touched, and is copied by all that wait for it.
    /// A slot that nobody sees yet becomes a branch of a sequence that is between two tokens. Nothing is copied so far, and
    /// what that will take is kept for it. After an error the slot is to be ended.
    [[nodiscard]] status fork(std::uint32_t parent, std::uint32_t slot) noexcept {
        if constexpr (types::drops) retention_.begin_branch(parent, slot);
        if constexpr (types::retrieves) retrieval_.begin_branch(parent, slot);
        for (std::uint32_t layer = 0; layer < layers_; ++layer) {
            const std::uint32_t from = branches_.holder(parent, layer);
            if (status s = promise_copy(from, slot, layer); !s) return s;
            branches_.wait_for(slot, layer, from);
        }
        return {};
    }
    /// Fails where a device fails, in which case the layers that wait still do: the call may be repeated.
    [[nodiscard]] status settle(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (branches_.source(slot, layer) != none) return copy_own(slot, layer);
        for (std::uint32_t b = branches_.next_branch(slot, layer); b != none;
             b = branches_.next_branch(slot, layer))
            if (status s = copy_own(b, layer); !s) return s;
        return {};
    }
    /// The sequence has all of its layers. Others may wait for them.
    [[nodiscard]] status copy_all_own(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < layers_; ++layer)
            if (branches_.source(slot, layer) != none)
                if (status s = copy_own(slot, layer); !s) return s;
        return {};
    }
    /// No other sequence waits for a layer of this one, which may go.
    [[nodiscard]] status copy_to_branches(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < layers_; ++layer)
            if (branches_.source(slot, layer) == none)
                if (status s = settle(slot, layer); !s) return s;
        return {};
    }
    [[nodiscard]] status settle_all(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < layers_; ++layer)
            if (status s = settle(slot, layer); !s) return s;
        return {};
    }

    /// Kept entries of this layer's prompt are settled, but could not be moved so far.
    [[nodiscard]] bool waits(std::uint32_t slot, std::uint32_t layer) const noexcept {
        if (slides(layer)) return false;
        if constexpr (hands_over)
            return retention_.holds(slot, layer) && !retention_.prompt_open(slot, layer) &&
                   retention_.settled(slot);
        return static_cast<void>(slot), static_cast<void>(layer), false;
    }
    /// A layer that slides keeps what its queries see, whatever the preset does.
    [[nodiscard]] bool is_sliding(std::uint32_t layer) const noexcept { return slides(layer); }
    /// Chunks of a prompt have come that will be thinned out when its last one comes.
    [[nodiscard]] bool will_drop(std::uint32_t slot, std::uint32_t layer) const noexcept {
        return !slides(layer) && retention_.holds(slot, layer) && retention_.prompt_open(slot, layer);
    }
    /// Tokens that a layer has seen, dropped and staged ones included; `none` when the shard has no lane of
    /// it.
    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept {
        slot = branches_.holder(slot, layer);
        if (slides(layer)) return rows_.tokens(slot, layer);
        if constexpr (hands_over)
            if (retention_.holds(slot, layer)) return retention_.tokens(slot, layer);
        return decoder().tokens(slot, layer);
    }
    /// Entries of the shard's heads that a layer holds, staged ones included.
    [[nodiscard]] std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) noexcept {
        slot = branches_.holder(slot, layer);
        if (slides(layer)) return rows_.kept_entries(slot, layer);
        if constexpr (hands_over)
            if (retention_.holds(slot, layer)) return retention_.kept_entries(slot, layer);
        return decoder().kept_entries(slot, layer);
    }
    [[nodiscard]] statistics stats() const noexcept {
        statistics s = retention_.stats();
        if constexpr (hands_over)
            s.kept_entries = s.kept_bytes = 0; // those on their way are none that decode has
        s += retrieval_.stats();
        statistics rows = rows_.stats();
        if constexpr (!types::drops) rows.kept_entries = 0; // of presets that drop entries only
        s += rows;
        branches_.each([&](std::uint32_t branch, std::uint32_t layer) {
            s += held(branches_.source(branch, layer), layer);
        });
        return s;
    }

    /// What all calls have been counted for so far.
    [[nodiscard]] sequence_statistics counted() const noexcept {
        sequence_statistics s(rows_.counted());
        if constexpr (types::drops) s += sequence_statistics(retention_.counted());
        if constexpr (types::retrieves) s += sequence_statistics(retrieval_.counted());
        return s;
    }
    /// A call of the sequence has ended, in front of which counted() was `before`.
    void note_call(std::uint32_t slot, const sequence_statistics& before) noexcept {
        calls_[division_.seat(slot)].add(counted(), before);
    }
    /// What the calls of a sequence did in this shard, and what it holds here now.
    [[nodiscard]] sequence_statistics stats(std::uint32_t slot) const noexcept {
        sequence_statistics s = calls_[division_.seat(slot)];
        for (std::uint32_t layer = 0; layer < layers_; ++layer) {
            const statistics now = held(branches_.holder(slot, layer), layer);
            s.units += now.units, s.kept_bytes += now.kept_bytes;
        }
        return s;
    }

    /// The part of a plan that layers make which are attended whole. Carves the places too. `records`: memory of the
    /// shard's.
    void init_sequences(const sequence_tables& all, const shard_division& division,
                        std::uint32_t layers) noexcept {
        branches_ = branch_table(all.branches, layers);
        division_ = division;
        calls_ = all.calls;
        std::fill(calls_.begin(), calls_.end(), sequence_statistics());
        layers_ = layers;
    }
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
    [[nodiscard]] status promise_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        if (slides(layer)) return rows_.promise_copy(from, layer);
        if constexpr (types::in_chains)
            if (status s = rows_.promise_copy(from, layer); !s) return s;
        status done;
        if constexpr (types::drops) done = retention_.promise_copy(from, to, layer);
        if constexpr (types::retrieves)
            if (done.ok()) done = retrieval_.promise_copy(from, to, layer);
        if constexpr (types::in_chains)
            if (!done) rows_.withdraw_copy(from, layer);
        return static_cast<void>(to), done;
    }
    /// A layer that waits to be copied is not.
    void give_up_copy(std::uint32_t slot, std::uint32_t layer) noexcept {
        const std::uint32_t from = branches_.source(slot, layer);
        if (from == none) return;
        branches_.copied(slot, layer);
        if (slides(layer)) return rows_.withdraw_copy(from, layer);
        if constexpr (types::in_chains) rows_.withdraw_copy(from, layer);
        if constexpr (types::retrieves) retrieval_.withdraw_copy(from, slot, layer);
    }
    void withdraw_copies(std::uint32_t slot) noexcept {
        if constexpr (types::retrieves) retrieval_.withdraw_copies(slot);
        static_cast<void>(slot);
    }
    /// Copies a layer that waits for it. What can fail comes first.
    [[nodiscard]] status copy_own(std::uint32_t slot, std::uint32_t layer) noexcept {
        const std::uint32_t from = branches_.source(slot, layer), of_model = layer;
        if (slides(layer)) {
            rows_.copy_layer(from, slot, layer);
        } else {
            if constexpr (types::retrieves)
                if (status s = retrieval_.copy_layer(from, slot, layer); !s) return s;
            if constexpr (types::drops) retention_.copy_layer(from, slot, layer);
            if constexpr (types::in_chains) rows_.copy_layer(from, slot, layer);
        }
        branches_.copied(slot, of_model);
        for (std::uint32_t l = 0; l < layers_; ++l)
            if (branches_.source(slot, l) != none) return {};
        withdraw_copies(slot);
        return {};
    }
    /// What a layer holds now, as stats() counts it.
    [[nodiscard]] statistics held(std::uint32_t slot, std::uint32_t layer) const noexcept {
        statistics s;
        const bool rows = slides(layer);
        if (rows || types::in_chains) rows_.add_held(s, slot, layer);
        if (!types::drops) s.kept_entries = 0;
        if (rows) return s;
        if constexpr (types::drops && !hands_over) retention_.add_held(s, slot, layer);
        if constexpr (types::retrieves) retrieval_.add_held(s, slot, layer);
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

    /// The prompt of this layer is not somewhere on its way.
    [[nodiscard]] status check_moved(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept {
        if constexpr (hands_over) {
            if (!retention_.holds(slot, layer)) {
                if (retention_.layers_seen(slot) == 0 || retention_.settled(slot)) return {};
            } else if (retention_.prompt_open(slot, layer))
                return status::failure(
                    errc::invalid_argument,
                    "%s: the prompt of this sequence is not complete: %u tokens wait for a "
                    "prefill with last_chunk = true",
                    call, retention_.tokens(slot, layer));
            if (!retention_.settled(slot))
                return status::failure(errc::invalid_argument,
                                       "%s: the prompt of layer %u is still to come; budgets are not settled",
                                       call, numbers_.of(retention_.layers_seen(slot)));
            if constexpr (types::in_chains)
                return status::failure(
                    errc::bound_too_small,
                    "%s: what layer %u keeps of its prompt found no room in memory_bytes; repeat its "
                    "prefill when other sequences have ended, or end this one",
                    call, numbers_.of(layer));
            return status::failure(errc::io_error,
                                   "%s: what layer %u keeps of its prompt could not be written; repeat its "
                                   "prefill, or end the sequence",
                                   call, numbers_.of(layer));
        } else {
            static_cast<void>(call), static_cast<void>(slot), static_cast<void>(layer);
            return {};
        }
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
            if (l != layer || repeated) last.q = {}; // queries of another layer say nothing about this one
            if (status s = decoder().take_over(slot, l, retention_, last, last.q.empty() ? 0 : chunk); !s)
                return s;
            retention_.forget(slot, l);
        }
        if (all) retention_.begin_anew(slot);
        return {};
    }

    /// True for a layer that slides. `layer` becomes its number among its kind.
    [[nodiscard]] bool slides(std::uint32_t& layer) const noexcept {
        if (places_.empty()) return false;
        const layer_place at = places_[layer];
        layer = at.index;
        return at.slides;
    }

    retention retention_;
    retrieval retrieval_;
    row_stage<typename types::element_type, typename types::chain_codec> rows_;
    std::span<layer_place> places_; ///< per layer of the model; empty where none slides
    layer_numbers numbers_;
    branch_table branches_;
    shard_division division_;
    std::span<sequence_statistics> calls_; ///< (sequences of this shard)
    std::uint32_t layers_ = 0;             ///< of the model
};

}} // namespace kvtl::v0
