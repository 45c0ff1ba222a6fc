// The manager: a preset and the inputs of the engine become one statically specialised KV cache.
//
//   auto opened = kvtl::dynakv::open({.shape = ..., .max_tokens = 32768, .memory_bytes = 64 << 20, .attend_tokens = 512,
//                                     .io = {.path = "kv.bin"}});
//
// Memory:  open() reserves at most memory_bytes, once. It guarantees room for
//            - max_tokens per sequence, if all entries stay in memory and records have one size; records of different
//              sizes take what memory_bytes leaves;
//            - a prompt of prefill_tokens (0: max_tokens) in one chunk until its budgets are settled, if retention drops
//              entries. If the survivors stay in memory, also max_tokens - prefill_tokens decoded entries, or any
//              number if the preset evicts in decode. Earlier chunks of such a prompt take what memory_bytes leaves.
//          A preset that drops and retrieves has one window and one set of sinks. keep_tokens entries per head survive
//          the prompt (0: four times attend_tokens), sinks and window included. Each step attends attend_tokens of
//          them. All decoded tokens are kept.
// Threads: A call without a shard processes all shards, one after the other. Shards divide KV heads or sequences
//          (config.shard_by). shard(i) is the part of one thread, and fills only its heads' part of `out`. Different
//          shards may run concurrently. A second thread in a shard gets errc::busy, and nothing happens.
//          begin() may run at any time, end() and rewind() concurrently for sequences of different shards. tokens() and
//          kept_entries() need the shards of the sequence at rest; stats(), device_info() and memory() need all shards.
// Numbers: q, k, v and out are floats, f16 or bf16 (tensor_view, tensor_span). 16-bit queries are widened where they are
//          used, and results are rounded once where they are stored: they equal the rounded results of floats.
// Errors:  Cold calls return a result<T>. Hot calls return a status and are noexcept. A failed call changes no tokens, no
//          units and no statistics (except times and wasted_bytes), and may be repeated:
//            - a call without a shard with the same `out`: shards that have completed it are left alone;
//            - a call with a shard only on the shards that failed: others would append the tokens twice;
//            - forward() only after rewind_to(): the parts before the one that failed have been taken.
//          A call of a branch or of its parent that fails may have copied the layer first (fork()).
//          A failed call does not restore which units were in memory. With few frames this can change when a pending
//          entry joins its unit. After a failed attend() of several tokens, entries that had left the window stay in
//          their units. Two failures cannot be undone:
//            - a further turn (prefill after decode) whose writes fail halfway: later calls say that the sequence must be
//              ended;
//            - a prompt of which retention has dropped entries: the repeated call only writes what was kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/core/cache_sizes.hpp>
#include <kvtl/core/call_checks.hpp>
#include <kvtl/core/open_core.hpp>
#include <kvtl/core/refused.hpp>
#include <kvtl/core/resize_core.hpp>
#include <kvtl/core/save/sequence_parts.hpp>
#include <kvtl/core/shard.hpp>
#include <kvtl/core/shard_handle.hpp>
#include <kvtl/core/shard_lock.hpp>
#include <kvtl/core/step/no_views.hpp>
#include <kvtl/save/saved_file.hpp>
#include <kvtl/slots/preset.hpp>
#include <kvtl/slots/sentences.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace kvtl { inline namespace v0 {

struct shard_access; // core/shard_access.hpp

/// Reached only by presets that miss a requirement: prints one sentence for each (slots/sentences.hpp).
template <class Preset, class Supplied = default_engine_inputs>
class kv_manager : public refused_cache<Preset, kv_manager<Preset, Supplied>> {
    static_assert(explain_preset<Preset, Supplied>(), "[kvtl] the sentences above say what to mend");
};

template <class Preset, class Supplied>
requires preset_for<Preset, Supplied>
class kv_manager<Preset, Supplied> : public cache_sizes<Preset> {
  public:
    using preset = Preset;
    using config = cache_config<Preset>;
    using types = cache_types<Preset>;
    using element_type = typename types::element_type;
    using shard_handle = kvtl::shard_handle<kv_manager>;
    /// Rows that select() shows outlast their visit.
    static constexpr bool views_last = types::plain_records;

    kv_manager(kv_manager&&) noexcept = default;
    kv_manager& operator=(kv_manager&&) noexcept = default;
    ~kv_manager() = default;

    /// Reserves all memory, opens the device, checks everything that can be checked. Cold; the only call that
    /// allocates.
    [[nodiscard, gnu::cold]] static result<kv_manager> open(const config& c) {
        auto g = geometry::from(c.shape, c.attention.scale);
        if (!g) return g.error();
        if (!contains(c.engine_inputs, needed_inputs<Preset>()))
            return status::failure(
                errc::unsupported, "engine_inputs: preset %s needs %s, which the engine does not supply",
                preset_name<Preset>().data(), missing_input(needed_inputs<Preset>(), c.engine_inputs));
        if (status s = c.threads.check(); !s) return s;
        auto bases = open_calibration<Preset>(c, *g);
        if (!bases) return bases.error();
        std::uint32_t page = 4096;
        for (;;) {
            auto planned = planner_type::plan(c, *g, page, bases->bytes());
            if (!planned) return planned.error();
            auto made = open_core<Preset>(c, *g, *planned, *bases);
            if (!made) return made.error();
            if ((*made)->device_info().page <= page) return kv_manager(*std::move(made));
            page = (*made)->device_info().page; // a device with larger pages: plan again for it
        }
    }

    /// A new, empty sequence.
    [[nodiscard]] result<sequence_id> begin() noexcept { return core_->calls.slots.begin(); }

    /// Forgets a sequence and frees its storage. Writes in the air are waited for. Layers that branches still have from it are
    /// copied first. If a device fails at that, the sequence stays open: retry_writes() and end it again, or end the branches
    /// first.
    status end(sequence_id seq) noexcept {
        if (status unknown = core_->calls.sequence("end", seq); !unknown) return unknown;
        const sequence_lock_type mine(*core_, seq.slot);
        if (!mine.taken()) return busy("end", mine.blocked());
        if (status ended = core_->calls.sequence("end", seq); !ended) return ended; // somebody was faster
        status copied;
        core_->for_each_owner(seq.slot, [&](shard_type& s) {
            if (copied.ok()) copied = s.copy_to_branches(seq.slot);
        });
        if (!copied) return copied;
        if (!core_->calls.slots.end(seq)) return core_->calls.sequence("end", seq);
        core_->for_each_owner(seq.slot, [&](shard_type& s) { s.end(seq.slot); });
        core_->saved_as[seq.slot] = 0;
        core_->calls.slots.free(seq);
        return {};
    }

    /// Writes all that a sequence is to a target, as its next generation: for a file it counts once it is published
    /// (save/saved_file.hpp). Between tokens: every layer has taken the same ones and no prompt is open. Changes nothing of the
    /// sequence. Where the target's published generation is the sequence's last save, or the one it was loaded from, pages that
    /// have not changed since are kept. Of tables and rows in memory a file keeps the pieces that are equal in its published
    /// generation, as a checksum of 64 bits says. Cold: reads what is written and not in memory, and takes 1 MiB and 32 bytes for
    /// each page of a head beside memory_bytes while it lasts. Other threads in
    /// its shards get errc::busy. After an error the target has dropped what it was given.
    template <save_target To>
    [[nodiscard, gnu::cold]] result<save_facts> save(sequence_id seq, To& to,
                                                     const save_options& options = {}) {
        if (status unknown = core_->calls.sequence("save", seq); !unknown) return unknown;
        const sequence_lock_type mine(*core_, seq.slot);
        if (!mine.taken()) return busy("save", mine.blocked());
        if (status ended = core_->calls.sequence("save", seq); !ended) return ended;
        return sequence_parts(*core_).save(seq.slot, to, options);
    }
    /// The same to a file of its own, which takes the place of one that has the name when it is complete and on the disk. If that
    /// one has the sequence's last save, it gets the next generation instead.
    [[nodiscard, gnu::cold]] result<save_facts> save(sequence_id seq, const std::string& path,
                                                     const save_options& options = {}) {
        if (status unknown = core_->calls.sequence("save", seq); !unknown) return unknown;
        const auto into = [&](result<saved_file> file) -> result<save_facts> {
            if (!file) return file.error();
            const auto facts = save(seq, *file, options);
            if (!facts) return facts;
            if (status s = file->publish(); !s) return s;
            return facts;
        };
        const auto facts = into(file_for(seq, path));
        if (facts || facts.error().code != errc::corrupt) return facts;
        return into(
            saved_file::create(path, static_cast<std::uint32_t>(core_->page_bytes))); // all of it anew
    }
    /// A new sequence that goes on as the saved one would, or none. A cache with other settings refuses the file
    /// (errc::file_refused) and names the first setting that differs. Shards, memory, max_sequences and devices may differ;
    /// max_tokens must suffice. `exact`: the continuation has the bits that the saved sequence would have had, unless other
    /// sequences fill the storage. It is false if attend_tokens or products() differ. The growth of clusters that take entry by entry depends
    /// on which units are in memory. So their continuation is exact only if the save has that (no prefetch was under way, the
    /// sequence had frames of its own, and no schedule lends them) and this cache has as many frames, tails and shards, and the
    /// same replacement. Otherwise no unit is in memory at first. Units of other sequences may leave the frames. Cold; memory as
    /// for save(), and for such clusters some 70 bytes per frame and a copy of the replacement policy's state.
    template <save_source From>
    [[nodiscard, gnu::cold]] result<loaded_sequence> load(From& from, const load_options& options = {}) {
        const auto seq = begin();
        if (!seq) return seq.error();
        const result<bool> loaded = [&]() -> result<bool> {
            const sequence_lock_type mine(*core_, seq->slot);
            if (!mine.taken()) return busy("load", mine.blocked());
            return sequence_parts(*core_).load(seq->slot, from, options);
        }();
        if (!loaded) {
            static_cast<void>(core_->calls.slots.end(*seq));
            core_->calls.slots.free(*seq);
            return loaded.error();
        }
        return loaded_sequence{*seq, save_facts(from.facts()).tokens, *loaded};
    }
    [[nodiscard, gnu::cold]] result<loaded_sequence> load(const std::string& path,
                                                          const load_options& options = {}) {
        auto file = saved_file::open(path);
        if (!file) return file.error();
        return load(*file, options);
    }

    /// A branch: a new sequence with all tokens of another one. Parent and branch go on, fork and end in any order, and
    /// neither changes the other. Callable between tokens, as save(). After an error there is no branch, and the parent
    /// is as it was. A branch needs a free slot; where sequences are divided, one of its parent's shard.
    /// Shared: pages of units, and complete runs of fixed groups, by at most 256 sequences each. They take storage once.
    /// Copied:  rows and tables in memory (windows, means, kept rows), and the incomplete runs of groups: a layer at a time, by
    ///          the first call that touches the layer of the parent or of the branch. Open pages of the parent's units in the
    ///          layer are written first. fork() sets aside the memory and the storage for that. So a copy fails only where a
    ///          device fails: the call then changes nothing and may be repeated, after retry_writes().
    /// Cost:    O(layers * KV heads), and with fixed groups a look at each page; without a transfer. Where frames have the memory
    ///          of the branch's tables, they leave it: all that is resident of the branch's pool goes, and open pages are
    ///          written, perhaps once per layer. Where a cache is for more than 256 sequences, all layers are copied at
    ///          once, as owners of a page might not be counted. No unit of the branch is resident at first.
    /// Later:   a shared unit moves to a place of its own before it takes an entry. It takes entries only while it is
    ///          resident; until then they are pending. So clusters that grow entry by entry may take entries at other steps than
    ///          in a sequence that was never forked; branches of other presets have its bits. Branches
    ///          of fixed groups that share pages give up each other's prefetches of the same layer.
    [[nodiscard, gnu::cold]] result<sequence_id> fork(sequence_id seq) {
        std::size_t all = 0;
        return branch_of(seq, all);
    }
    /// A branch of the first `tokens` tokens, within what rewind_to() allows. If these are fewer than all, it is copied at once.
    [[nodiscard, gnu::cold]] result<sequence_id> fork(sequence_id seq, std::size_t tokens) {
        std::size_t have = 0;
        const auto branch = branch_of(seq, have);
        if (!branch) return branch;
        status back = tokens <= have ? rewind_to(*branch, tokens)
                                     : status::failure(errc::out_of_range,
                                                       "fork: tokens is %zu; valid: up to %zu", tokens, have);
        if (back.ok()) return branch;
        static_cast<void>(end(*branch));
        return back;
    }

    /// A chunk of T prompt tokens of one layer: q (T, HQ, D), k, v (T, H, D), exact causal attention over
    /// everything so far to out (T, HQ, D). With `out` empty the engine attended itself; q may be empty then, too, unless
    /// a retention or a selector reads it. Chunks before the last set in.last_chunk = false. After decode it is a further turn and goes the way of decode, in bulk.
    [[nodiscard]] status prefill(sequence_id seq, std::size_t layer, const layer_input& in,
                                 tensor_span out) noexcept {
        return one_by_one("prefill", seq, layer,
                          [&](unsigned shard) { return prefill(seq, layer, in, out, shard); });
    }
    [[nodiscard]] status prefill(sequence_id seq, std::size_t layer, const layer_input& in, tensor_span out,
                                 unsigned shard) noexcept {
        return in_one("prefill", seq, layer, shard, [&](shard_type& s, std::uint32_t l) -> status {
            std::size_t tokens = 0;
            if (status e = core_->calls.input("prefill", in, out, true, tokens); !e) return e;
            if (!s.waits(seq.slot, l)) // else this call repeats one that failed
                if (status e = check_room("prefill", s, seq, l, tokens); !e) return e;
            return s.prefill(seq.slot, l, in, static_cast<std::uint32_t>(tokens), out,
                             in.last_chunk || core_->adapt_prompt);
        });
    }

    /// Decode of one layer: appends k, v (T, H, D) and attends q (T, HQ, D) to out (T, HQ, D). One token is a step;
    /// several, a draft to be verified, are steps one after the other, to the bit: each attends what it would choose
    /// before the next one comes (with one price for all of them, where the selector has one). As many as the window has room for, where entries are retrieved. Every layer takes
    /// its tokens before any takes the next ones.
    [[nodiscard]] status attend(sequence_id seq, std::size_t layer, const layer_input& in,
                                tensor_span out) noexcept {
        return one_by_one("attend", seq, layer,
                          [&](unsigned shard) { return attend(seq, layer, in, out, shard); });
    }
    [[nodiscard]] status attend(sequence_id seq, std::size_t layer, const layer_input& in, tensor_span out,
                                unsigned shard) noexcept {
        return in_one("attend", seq, layer, shard, [&](shard_type& s, std::uint32_t l) -> status {
            std::size_t tokens = 0;
            if (status e = core_->calls.input("attend", in, out, true, tokens); !e) return e;
            if (status e = core_->calls.outputs("attend", in, out, tokens); !e) return e;
            if (status e = check_token("attend", s, seq, l, tokens); !e) return e;
            return s.attend(seq.slot, l, in, static_cast<std::uint32_t>(tokens), out);
        });
    }

    /// One layer of a batch: the tokens of several sequences, part after part, as rows of `in` (q (T, HQ, D), k, v
    /// (T, H, D)) and out (T, HQ, D). Each part is what prefill() or attend() would do, in their order. Of steps that follow
    /// each other what the first tokens choose is asked for before the first is attended, as far as frames and prefetches go.
    /// Where frames are few, who is resident, and so when waiting entries join their units and what is chosen later, may differ
    /// from calls one by one. When a part fails, those before it have been taken: rewind_to() gives them back.
    [[nodiscard]] status forward(std::span<const batch_part> parts, std::size_t layer, const layer_input& in,
                                 tensor_span out) noexcept {
        return for_each_part(parts, layer, in, out, {0, shards()},
                             [&](const batch_part& p, const layer_input& rows, tensor_span to) {
                                 return p.kind == part_kind::decode ? attend(p.seq, layer, rows, to)
                                                                    : prefill(p.seq, layer, rows, to);
                             });
    }
    [[nodiscard]] status forward(std::span<const batch_part> parts, std::size_t layer, const layer_input& in,
                                 tensor_span out, unsigned shard) noexcept {
        return for_each_part(parts, layer, in, out, {shard, std::min(shard, shards() - 1) + 1},
                             [&](const batch_part& p, const layer_input& rows, tensor_span to) {
                                 return p.kind == part_kind::decode ? attend(p.seq, layer, rows, to, shard)
                                                                    : prefill(p.seq, layer, rows, to, shard);
                             });
    }

    /// Appends k, v (H, D) without attention, for engines that attend themselves (then select()). Refused
    /// where the preset evicts by attention mass.
    [[nodiscard]] status append(sequence_id seq, std::size_t layer, const layer_input& in) noexcept {
        return one_by_one("append", seq, layer,
                          [&](unsigned shard) { return append(seq, layer, in, shard); });
    }
    [[nodiscard]] status append(sequence_id seq, std::size_t layer, const layer_input& in,
                                unsigned shard) noexcept {
        if (needs_mass) return refuse("append", "it evicts by attention mass, which only attend() sees");
        return in_one("append", seq, layer, shard, [&](shard_type& s, std::uint32_t l) -> status {
            std::size_t tokens = 0;
            if (status e = core_->calls.input("append", in, {}, false, tokens); !e) return e;
            if (status e = check_token("append", s, seq, l, 1); !e) return e;
            return s.append(seq.slot, l, in);
        });
    }

    /// The engine is about to compute a layer's query, and may call for several sequences. A hint, legal for every preset:
    /// where layers have the memory of their cache in turn (layer_virtualised) it has what the layer keeps resident
    /// read back, elsewhere it does nothing.
    status before_query(sequence_id seq, std::size_t layer) noexcept {
        return one_by_one("before_query", seq, layer,
                          [&](unsigned shard) { return before_query(seq, layer, shard); });
    }
    status before_query(sequence_id seq, std::size_t layer, unsigned shard) noexcept {
        return in_one("before_query", seq, layer, shard, [&](shard_type& s, std::uint32_t l) -> status {
            s.before_query(seq.slot, l);
            return {};
        });
    }

    /// Starts the reads of a layer early for a guessed (or the true) query q (HQ, D). A hint: what does not fit is
    /// left to attend(), as are prefetches beyond those that a shard carries at once, one more than its sequences and
    /// 16 at most; what was not needed is counted in wasted_bytes. Nothing to do where entries are in memory.
    status prefetch(sequence_id seq, std::size_t layer, tensor_view q) noexcept {
        return one_by_one("prefetch", seq, layer,
                          [&](unsigned shard) { return prefetch(seq, layer, q, shard); });
    }
    status prefetch(sequence_id seq, std::size_t layer, tensor_view q, unsigned shard) noexcept {
        return in_one("prefetch", seq, layer, shard, [&](shard_type& s, std::uint32_t l) -> status {
            if (status e = core_->calls.floats("prefetch", "q", q, core_->calls.query_floats); !e) return e;
            return s.prefetch(seq.slot, l, q);
        });
    }
    /// The same for a batch, q (B, HQ, D) with a query for each sequence: its calls one by one. A sequence that is
    /// refused does not stop the others; the first failure comes back.
    status prefetch(std::span<const sequence_id> batch, std::size_t layer, tensor_view q) noexcept {
        return prefetch_each(batch, q,
                             [&](sequence_id seq, tensor_view row) { return prefetch(seq, layer, row); });
    }
    status prefetch(std::span<const sequence_id> batch, std::size_t layer, tensor_view q,
                    unsigned shard) noexcept {
        return prefetch_each(
            batch, q, [&](sequence_id seq, tensor_view row) { return prefetch(seq, layer, row, shard); });
    }

    /// For engines with their own attention kernel: brings in what q (HQ, D) selects and calls
    /// visit(std::size_t kv_head, rows_view<E> keys, rows_view<E> values) for every block to attend (append()
    /// first), which calls nothing of this manager but stats(), tokens() and kept_entries(). Rows stay where they are until the next call on this shard if
    /// views_last; else they are decoded for one visit, and the next one overwrites them. Refused where keys and
    /// values alone do not make the attention.
    template <class Visit>
    [[nodiscard]] status select(sequence_id seq, std::size_t layer, tensor_view q, Visit&& visit) noexcept {
        return one_by_one("select", seq, layer,
                          [&](unsigned shard) { return select(seq, layer, q, visit, shard); });
    }
    template <class Visit>
    [[nodiscard]] status select(sequence_id seq, std::size_t layer, tensor_view q, Visit&& visit,
                                unsigned shard) noexcept {
        constexpr const char* why = why_no_views<types>();
        if constexpr (why != nullptr) {
            static_cast<void>(visit);
            return refuse("select", why);
        } else {
            return in_one("select", seq, layer, shard, [&](shard_type& s, std::uint32_t l) -> status {
                if (status e = core_->calls.floats("select", "q", q, core_->calls.query_floats); !e) return e;
                return s.select(seq.slot, l, q, visit);
            });
        }
    }

    /// Gives up the last n tokens in all layers. They must still be in the window, or, where entries stay in
    /// memory, still be held (as plain rows where a retention drops and its codec keeps records); what was dropped in their favour does not come back.
    status rewind(sequence_id seq, std::size_t n) noexcept {
        const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(n, none - 1));
        if (status unknown = core_->calls.sequence("rewind", seq); !unknown) return unknown;
        const sequence_lock_type mine(*core_, seq.slot);
        if (!mine.taken()) return busy("rewind", mine.blocked());
        status refused = core_->calls.sequence("rewind", seq); // it may have ended meanwhile
        if (!refused) return refused;
        core_->for_each_owner(seq.slot, [&](shard_type& s) {
            for (std::uint32_t l = 0; l < core_->calls.layers && refused.ok(); ++l)
                refused = s.check_rewind(seq.slot, l, count, {"rewind", "n", n});
        });
        if (refused.ok()) refused = settle_all(seq);
        if (!refused) return refused;
        core_->for_each_owner(seq.slot, [&](shard_type& s) {
            for (std::uint32_t l = 0; l < core_->calls.layers; ++l) s.rewind(seq.slot, l, count);
        });
        return {};
    }

    /// Every layer gives up what it has beyond `tokens`, whether or not all have come equally far: takes a step or a
    /// chunk back of which a layer failed. The limits are those of rewind(); chunks of a prompt whose last one is to
    /// come go too where they wait on storage. When a layer cannot, none does, and only end() is left: so it is where
    /// some layers have thinned a prompt out whose last chunk others wait for. What had left a window for the tokens
    /// that go stays where it went.
    status rewind_to(sequence_id seq, std::size_t tokens) noexcept {
        if (status unknown = core_->calls.sequence("rewind_to", seq); !unknown) return unknown;
        const sequence_lock_type mine(*core_, seq.slot);
        if (!mine.taken()) return busy("rewind_to", mine.blocked());
        if (status ended = core_->calls.sequence("rewind_to", seq); !ended) return ended;
        const auto for_each_beyond = [&](auto&& f) {
            core_->for_each_owner(seq.slot, [&](shard_type& s) {
                for (std::uint32_t l = 0; l < core_->calls.layers; ++l)
                    if (const std::uint32_t have = s.tokens(seq.slot, l); have != none && have > tokens)
                        f(s, l, static_cast<std::uint32_t>(have - tokens));
            });
        };
        bool any = false;
        for_each_beyond([&](shard_type&, std::uint32_t, std::uint32_t) { any = true; });
        if (!any) return {};
        std::uint32_t waits = none; // a layer whose prompt is still whole
        core_->for_each_owner(seq.slot, [&](shard_type& s) {
            for (std::uint32_t l = 0; l < core_->calls.layers; ++l)
                if (s.will_drop(seq.slot, l)) waits = l;
        });
        status refused;
        for_each_beyond([&](shard_type& s, std::uint32_t l, std::uint32_t n) {
            if (!refused) return;
            if (waits != none && !s.is_sliding(l) && !s.will_drop(seq.slot, l))
                refused = status::failure(
                    errc::out_of_range,
                    "rewind_to: layer %u has thinned out the prompt whose last chunk layer %u "
                    "waits for; valid: end()",
                    l, waits);
            else
                refused = s.check_rewind(seq.slot, l, n, {"rewind_to", "tokens", tokens});
        });
        if (refused.ok()) refused = settle_all(seq);
        if (!refused) return refused;
        for_each_beyond([&](shard_type& s, std::uint32_t l, std::uint32_t n) { s.rewind(seq.slot, l, n); });
        return {};
    }

    /// From now on the cache takes at most so many bytes: fewer than it was opened with, as when a system runs out of memory, or
    /// as many again. valid: memory().least to memory().most. Units in frames that go have left and are read again when they
    /// are chosen; the system gets that memory in whole pages of its own. Between steps: no other thread in a call (it would get
    /// errc::busy), no rows of select() in use. Refused (errc::unsupported) where nothing lies on storage, layers have
    /// memory in turn, or the memory is locked; errc::writes_pending until retry_writes() of every sequence. While frames
    /// are fewer a device pins none of them (device_info()). Cold; resident_bytes_peak begins anew.
    [[nodiscard, gnu::cold]] status resize(std::size_t memory_bytes) noexcept {
        const sequence_lock_type mine(*core_);
        if (!mine.taken()) return busy("resize", mine.blocked());
        return resize_core(*core_, memory_bytes);
    }
    /// What resize() takes, and what the cache takes now.
    [[nodiscard]] memory_range memory() const noexcept { return memory_range_of(*core_); }

    /// Tries writes that failed in the background once more; appends are refused until this succeeds.
    status retry_writes(sequence_id seq) noexcept {
        status worst;
        const status done = in_all("retry_writes", seq, [&](shard_type& s) {
            if (status e = s.retry_writes(seq.slot); !e) worst = e;
        });
        return done.ok() ? worst : done;
    }

    /// kept_entries: held now, over all sequences, layers and heads, where retention drops some; kept_bytes: of all.
    [[nodiscard]] statistics stats() const noexcept {
        statistics total;
        for (const auto& shard : core_->shards) total += shard.stats();
        total.bytes_by_part = core_->parts;
        total.resident_bytes_peak += core_->parts.total() - core_->parts.frames - core_->parts.tails;
        return total;
    }

    /// What the calls of an open sequence did since it began (attend, prefill, append, prefetch and their like; not save, load,
    /// fork and rewind), and what it holds now. The shards of the sequence at rest.
    [[nodiscard]] result<sequence_statistics> stats(sequence_id seq) noexcept {
        if (status unknown = core_->calls.sequence("stats", seq); !unknown) return unknown;
        sequence_statistics total;
        core_->for_each_owner(seq.slot, [&](shard_type& s) { total += s.stats(seq.slot); });
        total.tokens = tokens(seq, 0);
        return total;
    }

    [[nodiscard]] unsigned shards() const noexcept { return core_->calls.shards; }
    /// Products of attention (config.precision): "exact", "relaxed", or "exact" with what is missing for relaxed ones.
    [[nodiscard]] std::string_view products() const noexcept { return core_->products; }
    [[nodiscard]] io_device_info device_info() const noexcept { return core_->device_info(); }
    /// Tokens that a layer of a sequence has seen, dropped and staged ones included; 0 for one that is not there.
    [[nodiscard]] std::size_t tokens(sequence_id seq, std::size_t layer) noexcept {
        if (!core_->calls.call("tokens", seq, layer, 0)) return 0;
        std::uint32_t n = none;
        core_->for_each_owner(seq.slot, [&](shard_type& s) {
            if (n == none) n = s.tokens(seq.slot, static_cast<std::uint32_t>(layer));
        });
        return n == none ? 0 : n;
    }
    /// Entries of all its KV heads that a layer of a sequence holds, staged ones included; 0 where tokens() is.
    [[nodiscard]] std::size_t kept_entries(sequence_id seq, std::size_t layer) noexcept {
        std::size_t n = 0;
        if (core_->calls.call("kept_entries", seq, layer, 0))
            core_->for_each_owner(seq.slot, [&](shard_type& s) {
                n += s.kept_entries(seq.slot, static_cast<std::uint32_t>(layer));
            });
        return n;
    }

    /// `i` beyond shards(): every call on the handle says so.
    [[nodiscard]] shard_handle shard(unsigned i) noexcept { return {*this, i}; }
    /// The shard that a sequence belongs to where sequences are divided.
    [[nodiscard]] unsigned shard_of(sequence_id seq) const noexcept { return seq.slot % core_->calls.shards; }

  private:
    friend struct shard_access;
    using planner_type = planner<Preset>;
    using core_type = cache_core<types>;
    using shard_type = kvtl::shard<types>;

    explicit kv_manager(std::unique_ptr<core_type> c) noexcept : core_(std::move(c)) {}

    static constexpr bool needs_mass = [] {
        if constexpr (types::drops && !types::hands_over)
            return types::reads_mass;
        else
            return false;
    }();
    [[nodiscard]] static status refuse(const char* call, const char* why) noexcept {
        return status::failure(errc::unsupported, "%s: preset %s does not offer it: %s", call,
                               preset_name<Preset>().data(), why);
    }

    using sequence_lock_type = sequence_lock<core_type>;
    /// fork(), and how many tokens the branch has.
    [[nodiscard, gnu::cold]] result<sequence_id> branch_of(sequence_id seq, std::size_t& tokens) {
        if (status unknown = core_->calls.sequence("fork", seq); !unknown) return unknown;
        const sequence_lock_type mine(*core_, seq.slot);
        if (!mine.taken()) return busy("fork", mine.blocked());
        if (status ended = core_->calls.sequence("fork", seq); !ended) return ended;
        const std::uint32_t apart = core_->division.by_sequence ? core_->calls.shards : 1;
        const auto branch = core_->calls.slots.begin("fork", seq.slot % apart, apart);
        if (!branch) return branch;
        if (status done = sequence_parts(*core_).fork(seq.slot, branch->slot); !done) {
            static_cast<void>(core_->calls.slots.end(*branch));
            core_->calls.slots.free(*branch);
            return done;
        }
        tokens = this->tokens(*branch, 0);
        return branch;
    }
    /// The file of that name, if it has the sequence's last save; otherwise a new one.
    [[nodiscard, gnu::cold]] result<saved_file> file_for(sequence_id seq, const std::string& path) {
        std::uint64_t last = 0;
        {
            const sequence_lock_type mine(*core_, seq.slot);
            if (!mine.taken()) return busy("save", mine.blocked());
            last = core_->saved_as[seq.slot];
        }
        if (last != 0)
            if (auto file = saved_file::open(path); file && file->facts().digest == last) return file;
        return saved_file::create(path, static_cast<std::uint32_t>(core_->page_bytes));
    }
    [[nodiscard]] static status busy(const char* call, unsigned shard) noexcept {
        return status::failure(
            errc::busy,
            "%s: another thread is in a call of shard %u; valid: one thread in a shard at a "
            "time",
            call, shard);
    }

    /// Shards [first, end).
    struct shard_range {
        unsigned first, end;
    };
    /// f(part, its rows of `in`, its rows of `out`) for the parts of a batch, up to the first that fails. The shards read what
    /// steps choose that follow each other; behind a prompt, which gives up what was read ahead, anew.
    template <class F>
    [[nodiscard]] status for_each_part(std::span<const batch_part> parts, std::size_t layer,
                                       const layer_input& in, tensor_span out, shard_range range,
                                       F&& f) noexcept {
        if (status s = core_->calls.batch("forward", parts, in, out); !s) return s;
        const std::size_t tokens = in.k.size() / core_->calls.key_floats, row = out.size() / tokens;
        std::size_t first = 0;
        bool announced = false, stepped = false;
        status done;
        for (; !parts.empty() && done.ok(); parts = parts.subspan(1)) {
            const batch_part& p = parts.front();
            const bool steps = p.kind == part_kind::decode;
            if (steps && !stepped && announce(parts, layer, in.q, first, range)) announced = true;
            stepped = steps;
            layer_input rows = in.rows(first, p.tokens, tokens);
            rows.last_chunk = p.kind != part_kind::prompt;
            done = f(p, rows, out.subspan(first * row, p.tokens * row));
            first += p.tokens;
        }
        for (unsigned s = range.first; announced && s < range.end; ++s)
            if (shard_lock mine; mine.take(core_->shards[s].busy)) core_->shards[s].cancel_prefetch();
        return done;
    }

    /// f(sequence, its query), a prefetch, for all of a batch.
    template <class F>
    [[nodiscard]] status prefetch_each(std::span<const sequence_id> batch, tensor_view q, F&& f) noexcept {
        const std::size_t row = core_->calls.query_floats;
        status first = core_->calls.sized("prefetch", "q", q, batch.size() * row);
        if (!first) return first;
        for (std::size_t b = 0; b < batch.size(); ++b)
            if (status s = f(batch[b], q.subspan(b * row, row)); !s && first.ok()) first = s;
        return first;
    }

    /// Has shards read what the steps at the front of `parts` choose, whose queries begin at row `first` of q. False when there
    /// is nothing to gain. A hint: what is wrong with a part its own call will say.
    [[nodiscard]] bool announce(std::span<const batch_part> parts, std::size_t layer, const tensor_view& q,
                                std::size_t first, shard_range range) noexcept {
        if constexpr (types::retrieves) {
            const std::size_t row = core_->calls.query_floats;
            std::size_t steps = 0, end = first;
            for (; steps < parts.size() && parts[steps].kind == part_kind::decode; ++steps)
                end += parts[steps].tokens;
            if (steps < 2 || q.size() < end * row) return false;
            if (!core_->calls.floats("forward", "q", q.subspan(first * row, (end - first) * row),
                                     (end - first) * row))
                return false;
            for (unsigned shard = range.first; shard < range.end; ++shard) {
                bool more = true;
                std::size_t at = first;
                for (std::size_t i = 0; i < steps && more; at += parts[i++].tokens) {
                    const auto ask = [&](shard_type& s, std::uint32_t l) -> status {
                        more = s.prefetch_for_batch(parts[i].seq.slot, l, q.subspan(at * row, row));
                        return {};
                    };
                    if (!in_one("forward", parts[i].seq, layer, shard, ask)) break;
                }
            }
            return true;
        }
        static_cast<void>(layer), static_cast<void>(q), static_cast<void>(first), static_cast<void>(range);
        return false;
    }

    /// One call on one shard.
    template <class Call>
    [[nodiscard]] status in_one(const char* name, sequence_id seq, std::size_t layer, unsigned shard,
                                Call&& call) noexcept {
        shard_lock mine;
        if (status s = enter(name, seq, layer, shard, mine); !s) return s;
        shard_type& s = core_->shards[shard];
        const auto l = static_cast<std::uint32_t>(layer);
        if (!core_->owns(seq.slot, shard)) return call(s, l);
        const sequence_statistics before = s.counted();
        status done = s.settle(seq.slot, l);
        if (done.ok()) done = call(s, l);
        s.note_call(seq.slot, before);
        return done;
    }
    /// Takes the shard, if all that names it is right. Out of line, as is all that calls have in common: every call
    /// would carry a copy.
    [[nodiscard, gnu::noinline]] status enter(const char* name, sequence_id seq, std::size_t layer,
                                              unsigned shard, shard_lock& mine) noexcept {
        if (status s = core_->calls.call(name, seq, layer, shard); !s) return s;
        if (!mine.take(core_->shards[shard].busy)) return busy(name, shard);
        return core_->calls.sequence(name, seq); // it may have ended meanwhile
    }
    /// Branches of the sequence, which all shards are held for, copy what they still have from it, and it what it is a branch
    /// of.
    [[nodiscard, gnu::cold]] status settle_all(sequence_id seq) noexcept {
        status done;
        core_->for_each_owner(seq.slot, [&](shard_type& s) {
            if (done.ok()) done = s.settle_all(seq.slot);
        });
        return done;
    }
    /// f(shard) for every shard that has a part of the sequence, all of them held meanwhile.
    template <class F> [[nodiscard]] status in_all(const char* name, sequence_id seq, F&& f) noexcept {
        if (status unknown = core_->calls.sequence(name, seq); !unknown) return unknown;
        const sequence_lock_type mine(*core_, seq.slot);
        if (!mine.taken()) return busy(name, mine.blocked());
        if (status ended = core_->calls.sequence(name, seq); !ended) return ended;
        core_->for_each_owner(seq.slot, f);
        return {};
    }
    /// The same call on every shard that has a part of the sequence and has not completed it already.
    template <class Call>
    [[nodiscard]] status one_by_one(const char* name, sequence_id seq, std::size_t layer,
                                    Call&& call) noexcept {
        progress all;
        if (status e = look_at_all(name, seq, layer, all); !e) return e;
        for (unsigned shard = 0; shard < core_->calls.shards; ++shard) {
            bool behind = false;
            if (status e = look_at(name, seq, layer, shard, all, behind); !e) return e;
            if (!behind) continue;
            if (status e = call(shard); !e) return e;
        }
        return {};
    }
    /// How far the shards of a sequence have come in a layer.
    struct progress {
        std::uint32_t least = none, most = 0; ///< tokens
        bool waiting = false;                 ///< a prompt's kept entries could not be moved in one of them
    };
    [[nodiscard, gnu::noinline]] status look_at_all(const char* name, sequence_id seq, std::size_t layer,
                                                    progress& all) noexcept {
        if (status s = core_->calls.call(name, seq, layer, 0); !s) return s;
        return in_all(name, seq, [&, l = static_cast<std::uint32_t>(layer)](shard_type& s) {
            const std::uint32_t n = s.tokens(seq.slot, l);
            all.least = std::min(all.least, n), all.most = std::max(all.most, n);
            all.waiting = all.waiting || s.waits(seq.slot, l);
        });
    }
    /// Whether a shard still has to do what others may have done.
    [[nodiscard, gnu::noinline]] status look_at(const char* name, sequence_id seq, std::size_t layer,
                                                unsigned shard, const progress& all, bool& behind) noexcept {
        if (!core_->owns(seq.slot, shard)) return {};
        shard_lock mine;
        shard_type& s = core_->shards[shard];
        if (!mine.take(s.busy)) return busy(name, shard);
        const auto l = static_cast<std::uint32_t>(layer);
        const std::uint32_t n = s.tokens(seq.slot, l);
        behind = all.waiting ? n < all.most || s.waits(seq.slot, l) : n == all.least;
        return {};
    }

    [[nodiscard, gnu::noinline]] status check_room(const char* call, shard_type& s, sequence_id seq,
                                                   std::uint32_t layer, std::size_t tokens) const noexcept {
        const std::uint32_t have = s.tokens(seq.slot, layer);
        return have == none ? status{} : core_->calls.room(call, have, tokens);
    }
    /// A token may come unless a layer was left out before: each looks at the next one.
    [[nodiscard, gnu::noinline]] status check_token(const char* call, shard_type& s, sequence_id seq,
                                                    std::uint32_t layer, std::size_t tokens) const noexcept {
        if (status e = check_room(call, s, seq, layer, tokens); !e) return e;
        if (status e = s.ready(call, seq.slot, layer); !e) return e;
        const std::uint32_t next = (layer + 1) % core_->calls.layers;
        const std::uint32_t have = s.tokens(seq.slot, layer), there = s.tokens(seq.slot, next);
        if (have != none && there < have)
            return status::failure(errc::invalid_argument,
                                   "%s: layer %u has %u tokens and layer %u only %u: it was left out; valid: "
                                   "every layer takes its token before the next one comes",
                                   call, layer, have, next, there);
        return {};
    }

    std::unique_ptr<core_type> core_;
};

}} // namespace kvtl::v0
