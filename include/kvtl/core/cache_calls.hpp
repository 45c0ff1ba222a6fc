// The calls of an open cache, the same for all presets that store the same elements: they reach what a preset differs in
// through shard_base. kv_manager (manager.hpp) adds open() and the calls that need the preset's types.
//
// Cost: of a call of a layer some virtual calls for each shard.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/core/cache_core.hpp>
#include <kvtl/core/resize_core.hpp>
#include <kvtl/core/save/sequence_parts.hpp>
#include <kvtl/core/shard_lock.hpp>
#include <kvtl/save/saved_file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

struct shard_access; // core/shard_access.hpp

/// One call on shards, by reference: f(shard, layer, half) returns a status. Or f(shard, layer) does, of a call that has only the
/// first half: a hint.
class shard_call {
  public:
    template <class F>
    explicit shard_call(F& f) noexcept
        : f_(&f), hint_(std::is_invocable_v<F&, shard_base&, std::uint32_t>),
          run_([](void* with, shard_base& s, std::uint32_t layer, call_half h) noexcept -> status {
              F& call = *static_cast<F*>(with);
              if constexpr (std::is_invocable_v<F&, shard_base&, std::uint32_t>)
                  return h == call_half::prepare ? call(s, layer) : status{};
              else
                  return call(s, layer, h);
          }) {}
    [[nodiscard]] status operator()(shard_base& s, std::uint32_t layer, call_half h) const noexcept {
        return run_(f_, s, layer, h);
    }
    [[nodiscard]] bool is_hint() const noexcept { return hint_; }

  private:
    void* f_;
    bool hint_;
    status (*run_)(void* with, shard_base& s, std::uint32_t layer, call_half h) noexcept;
};

template <element E> class cache_calls {
  public:
    /// As the shard of a call: every one, one after the other.
    static constexpr unsigned all_shards = ~0U;

    /// A new, empty sequence. Where sequences have shares (set_share) it takes its part of the frames, for a weight of 1: between
    /// steps, as other threads in its shards would get errc::busy.
    [[nodiscard]] result<sequence_id> begin() noexcept {
        const auto seq = core_->calls.slots.begin();
        if (!seq || core_->shares.calls() == nullptr) return seq;
        const sequence_lock<core_type> mine(*core_, seq->slot);
        status s =
            mine.taken() ? weigh_sequence(*core_, "begin", seq->slot, 1) : busy("begin", mine.blocked());
        if (s.ok()) return seq;
        forget(*seq);
        return s;
    }

    /// Forgets a sequence and frees its storage. Writes in the air are waited for. Layers that branches still have from it are
    /// copied first. If a device fails at that, the sequence stays open: retry_writes() and end it again, or end the branches
    /// first.
    status end(sequence_id seq) noexcept {
        const held_sequence mine(*core_, "end", seq);
        if (!mine.held) return mine.held;
        status copied;
        core_->for_each_owner(seq.slot, [&](shard_base& s) {
            if (copied.ok()) copied = s.copy_to_branches(seq.slot);
        });
        if (!copied) return copied;
        if (!core_->calls.slots.end(seq)) return core_->calls.sequence("end", seq);
        core_->for_each_owner(seq.slot, [&](shard_base& s) { s.end(seq.slot); });
        core_->saved_as[seq.slot] = 0;
        static_cast<void>(weigh_sequence(*core_, "end", seq.slot, 0)); // others get its frames, or later
        core_->calls.slots.free(seq);
        return {};
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
    [[nodiscard]] status prefill(sequence_id seq, std::size_t layer, const layer_input& in, tensor_span out,
                                 unsigned shard = all_shards) noexcept {
        bool waits =
            false; // what a thinned prompt keeps could not be moved in a shard: this call repeats the one that failed
        return in_shards(
            "prefill", seq, layer, shard, [&](shard_base& s, std::uint32_t l, call_half h) -> status {
                const bool here = s.waits(seq.slot, l);
                std::size_t tokens = in.k.size() / core_->calls.key_floats;
                if (h == call_half::prepare) {
                    if (status e = core_->calls.input("prefill", in, out, true, tokens); !e) return e;
                    if (status e = core_->calls.passing("prefill", in, tokens); !e) return e;
                    waits = here || (shard == all_shards && waits_anywhere(seq.slot, l));
                    if (!waits)
                        if (status e = check_room("prefill", s, seq, l, tokens); !e) return e;
                }
                if (waits && !here) return {}; // this shard has moved it
                const auto n = static_cast<std::uint32_t>(tokens);
                if (!core_->layers.completes(layer)) return s.attend_only(h, seq.slot, l, in, n, out);
                return s.prefill(h, seq.slot, l, in, n, out, in.last_chunk || core_->adapt_prompt);
            });
    }

    /// Decode of one layer: appends k, v (T, H, D) and attends q (T, HQ, D) to out (T, HQ, D). One token is a step;
    /// several, a draft to be verified, are steps one after the other, to the bit: each attends what it would choose
    /// before the next one comes (with one price for all of them, where the selector has one). Layers that share a cache are
    /// an exception: what left the window for a draft of one of them has left it for the others, so they may choose
    /// otherwise. As many as the window has room for, where entries are retrieved. Every layer takes its tokens before any
    /// takes the next ones.
    [[nodiscard]] status attend(sequence_id seq, std::size_t layer, const layer_input& in, tensor_span out,
                                unsigned shard = all_shards) noexcept {
        return in_shards("attend", seq, layer, shard,
                         [&](shard_base& s, std::uint32_t l, call_half h) -> status {
                             std::size_t tokens = in.k.size() / core_->calls.key_floats;
                             if (h == call_half::prepare) {
                                 if (status e = core_->calls.input("attend", in, out, true, tokens); !e)
                                     return e;
                                 if (status e = core_->calls.outputs("attend", in, out, tokens); !e) return e;
                                 if (status e = core_->calls.all_stay("attend", in); !e) return e;
                                 if (status e = check_token("attend", s, seq, layer, tokens); !e) return e;
                             }
                             return s.attend(h, seq.slot, l, in, static_cast<std::uint32_t>(tokens), out,
                                             core_->layers.completes(layer));
                         });
    }

    /// One layer of a batch: the tokens of several sequences, part after part, as rows of `in` (q (T, HQ, D), k, v
    /// (T, H, D)) and out (T, HQ, D). Each part is what prefill() or attend() would do, in their order. Of steps that follow
    /// each other what the first tokens choose is asked for before the first is attended, as far as frames and prefetches go.
    /// Where frames are few, who is resident, and so when waiting entries join their units and what is chosen later, may differ
    /// from calls one by one. When a part fails, those before it have been taken: rewind_to() gives them back.
    [[nodiscard]] status forward(std::span<const batch_part> parts, std::size_t layer, const layer_input& in,
                                 tensor_span out, unsigned shard = all_shards) noexcept {
        if (status s = core_->calls.batch("forward", parts, in, out); !s) return s;
        const std::size_t tokens = in.k.size() / core_->calls.key_floats, row = out.size() / tokens;
        std::size_t first = 0;
        bool announced = false, stepped = false;
        status done;
        for (; !parts.empty() && done.ok(); parts = parts.subspan(1)) {
            const batch_part& p = parts.front();
            const bool steps = p.kind == part_kind::decode;
            // The shards read what steps choose that follow each other; behind a prompt, which gives up what was read ahead,
            // anew.
            if (steps && !stepped && announce(parts, layer, in.q, first, shard)) announced = true;
            stepped = steps;
            layer_input rows = in.rows(first, p.tokens, tokens);
            rows.last_chunk = p.kind != part_kind::prompt;
            const tensor_span to = out.subspan(first * row, p.tokens * row);
            done = steps ? attend(p.seq, layer, rows, to, shard) : prefill(p.seq, layer, rows, to, shard);
            first += p.tokens;
        }
        if (announced)
            for_each_of(shard, [&](unsigned i) {
                shard_base& s = *core_->shards[i];
                if (shard_lock mine; mine.take(s.busy)) s.cancel_prefetch();
            });
        return done;
    }

    /// Appends k, v (H, D) without attention, for engines that attend themselves (then select()). Refused
    /// where the preset evicts by attention mass.
    [[nodiscard]] status append(sequence_id seq, std::size_t layer, const layer_input& in,
                                unsigned shard = all_shards) noexcept {
        if (core_->needs_mass)
            return refuse("append", "it evicts by attention mass, which only attend() sees");
        return in_shards(
            "append", seq, layer, shard, [&](shard_base& s, std::uint32_t l, call_half h) -> status {
                if (h == call_half::prepare) {
                    if (const std::uint32_t owner = core_->layers.owner_of(l); owner != layer)
                        return status::failure(
                            errc::invalid_argument,
                            "append: layer is %zu, which attends the cache of layer %u; valid: a "
                            "layer that is its own owner",
                            layer, owner);
                    std::size_t tokens = 0;
                    if (status e = core_->calls.input("append", in, {}, false, tokens); !e) return e;
                    if (status e = core_->calls.all_stay("append", in); !e) return e;
                    if (status e = check_token("append", s, seq, layer, 1); !e) return e;
                }
                return s.append(h, seq.slot, l, in);
            });
    }

    /// The engine is about to compute a layer's query, and may call for several sequences. A hint, legal for every preset:
    /// where layers have the memory of their cache in turn (layer_virtualised) it has what the layer keeps resident
    /// read back, elsewhere it does nothing.
    status before_query(sequence_id seq, std::size_t layer, unsigned shard = all_shards) noexcept {
        return in_shards("before_query", seq, layer, shard, [&](shard_base& s, std::uint32_t l) -> status {
            return s.before_query(seq.slot, l), status{};
        });
    }

    /// Starts the reads of a layer early for a guessed (or the true) query q (HQ, D). A hint: what does not fit is
    /// left to attend(), as are prefetches beyond those that a shard carries at once, one more than its sequences and
    /// 16 at most; what was not needed is counted in wasted_bytes. Nothing to do where entries are in memory.
    status prefetch(sequence_id seq, std::size_t layer, tensor_view q, unsigned shard = all_shards) noexcept {
        return in_shards("prefetch", seq, layer, shard, [&](shard_base& s, std::uint32_t l) -> status {
            if (status e = core_->calls.floats("prefetch", "q", q, core_->calls.query_floats); !e) return e;
            // One read-ahead of a store at a time, which its first layer takes.
            return core_->layers.owner_of(l) == layer ? s.prefetch(seq.slot, l, q) : status{};
        });
    }
    /// The same for a batch, q (B, HQ, D) with a query for each sequence: its calls one by one. A sequence that is
    /// refused does not stop the others; the first failure comes back.
    status prefetch(std::span<const sequence_id> batch, std::size_t layer, tensor_view q,
                    unsigned shard = all_shards) noexcept {
        const std::size_t row = core_->calls.query_floats;
        status first = core_->calls.sized("prefetch", "q", q, batch.size() * row);
        if (!first) return first;
        for (std::size_t b = 0; b < batch.size(); ++b)
            if (status s = prefetch(batch[b], layer, q.subspan(b * row, row), shard); !s && first.ok())
                first = s;
        return first;
    }

    /// Reads back what the last token of a sequence chose and frames have lost since, as when they were given to others
    /// (set_share), after load() or in a new branch: layer by layer, as far as frames are free. It waits for the reads. Nothing but
    /// residency changes, so the bits of presets whose choices do not depend on it stay. Nothing to do where
    /// entries are in memory.
    [[nodiscard]] status prefetch(sequence_id seq, unsigned shard = all_shards) noexcept {
        for (std::size_t layer = 0; layer < core_->calls.layers; ++layer)
            if (status s = in_shards("prefetch", seq, layer, shard,
                                     [&](shard_base& in, std::uint32_t l) -> status {
                                         return core_->layers.owner_of(l) == layer ? in.read_back(seq.slot, l)
                                                                                   : status{};
                                     });
                !s)
                return s;
        return {};
    }

    /// Gives up the last n tokens in all layers. They must still be in the window, or, where entries stay in
    /// memory, still be held (as plain rows where a retention drops and its codec keeps records); what was dropped in their favour does not come back.
    status rewind(sequence_id seq, std::size_t n) noexcept {
        const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(n, none - 1));
        const held_sequence mine(*core_, "rewind", seq);
        if (!mine.held) return mine.held;
        status refused;
        core_->for_each_owner(seq.slot, [&](shard_base& s) {
            for (std::uint32_t l = 0; l < core_->layers.stores() && refused.ok(); ++l)
                refused = s.check_rewind(seq.slot, l, count, {"rewind", "n", n});
        });
        if (refused.ok()) refused = settle_all(seq);
        if (!refused) return refused;
        core_->for_each_owner(seq.slot, [&](shard_base& s) {
            for (std::uint32_t l = 0; l < core_->layers.stores(); ++l) s.rewind(seq.slot, l, count);
        });
        return {};
    }

    /// Every layer gives up its tokens beyond `tokens`. Layers may have different numbers of tokens, so this takes back a
    /// step or a chunk that failed in some layer. The limits of rewind() apply. Chunks of an open prompt that wait on
    /// storage go too. If one layer cannot give up its tokens, no layer does, and only end() is possible. This happens
    /// when some layers have evicted from a prompt whose last chunk other layers have not seen. Entries that left a
    /// window for the tokens do not return to it.
    status rewind_to(sequence_id seq, std::size_t tokens) noexcept {
        const held_sequence mine(*core_, "rewind_to", seq);
        if (!mine.held) return mine.held;
        const auto for_each_beyond = [&](auto&& f) {
            core_->for_each_owner(seq.slot, [&](shard_base& s) {
                for (std::uint32_t l = 0; l < core_->layers.stores(); ++l)
                    if (const std::uint32_t have = s.tokens(seq.slot, l); have != none && have > tokens)
                        f(s, l, static_cast<std::uint32_t>(have - tokens));
            });
        };
        bool any = false;
        for_each_beyond([&](shard_base&, std::uint32_t, std::uint32_t) { any = true; });
        if (!any) return {};
        std::uint32_t waits = none; // a layer whose prompt is still whole
        core_->for_each_owner(seq.slot, [&](shard_base& s) {
            for (std::uint32_t l = 0; l < core_->layers.stores(); ++l)
                if (s.will_drop(seq.slot, l)) waits = l;
        });
        status refused;
        for_each_beyond([&](shard_base& s, std::uint32_t l, std::uint32_t n) {
            if (!refused) return;
            if (waits != none && !s.is_sliding(l) && !s.will_drop(seq.slot, l))
                refused = status::failure(
                    errc::out_of_range,
                    "rewind_to: layer %u has thinned out the prompt whose last chunk layer %u "
                    "waits for; valid: end()",
                    core_->layers.owner_of(l), core_->layers.owner_of(waits));
            else
                refused = s.check_rewind(seq.slot, l, n, {"rewind_to", "tokens", tokens});
        });
        if (refused.ok()) refused = settle_all(seq);
        if (!refused) return refused;
        for_each_beyond([&](shard_base& s, std::uint32_t l, std::uint32_t n) { s.rewind(seq.slot, l, n); });
        return {};
    }

    /// What resize() takes, and what the cache takes now.
    [[nodiscard]] memory_range memory() const noexcept {
        return memory_range_of(core_->frames, core_->parts.total());
    }

    /// Tries writes that failed in the background once more; appends are refused until this succeeds.
    status retry_writes(sequence_id seq) noexcept {
        status worst;
        const status done = in_all("retry_writes", seq, [&](shard_base& s) {
            if (status e = s.retry_writes(seq.slot); !e) worst = e;
        });
        return done.ok() ? worst : done;
    }

    /// kept_entries: held now, over all sequences, layers and heads, where retention drops some; kept_bytes: of all.
    [[nodiscard]] statistics stats() const noexcept {
        statistics total;
        for (const shard_base* shard : core_->shards) total += shard->stats();
        total.bytes_by_part = core_->parts;
        total.resident_bytes_peak += core_->parts.total() - core_->parts.frames - core_->parts.tails;
        return total;
    }

    /// What the calls of an open sequence did since it began (attend, prefill, append, prefetch and their like; not save, load,
    /// fork and rewind), and what it holds now. The shards of the sequence at rest.
    [[nodiscard]] result<sequence_statistics> stats(sequence_id seq) noexcept {
        if (status unknown = core_->calls.sequence("stats", seq); !unknown) return unknown;
        sequence_statistics total;
        core_->for_each_owner(seq.slot, [&](shard_base& s) { total += s.stats(seq.slot); });
        total.tokens = tokens(seq, 0);
        return total;
    }

    [[nodiscard]] unsigned shards() const noexcept { return core_->calls.shards; }
    /// The shard that a sequence belongs to where sequences are divided.
    [[nodiscard]] unsigned shard_of(sequence_id seq) const noexcept { return seq.slot % core_->calls.shards; }
    /// Products of attention (config.precision): "exact", "relaxed", or "exact" with what is missing for relaxed ones.
    [[nodiscard]] std::string_view products() const noexcept { return core_->products; }
    [[nodiscard]] io_device_info device_info() const noexcept { return core_->device_info(); }
    /// Tokens that a layer of a sequence has seen, dropped and staged ones included; 0 for one that is not there.
    [[nodiscard]] std::size_t tokens(sequence_id seq, std::size_t layer) noexcept {
        if (!core_->calls.call("tokens", seq, layer, 0)) return 0;
        std::uint32_t n = none;
        core_->for_each_owner(seq.slot, [&](shard_base& s) {
            if (n == none) n = s.tokens(seq.slot, core_->layers.store_of(layer));
        });
        return n == none ? 0 : n;
    }
    /// Entries of all its KV heads that a layer of a sequence holds, staged ones included; 0 where tokens() is.
    [[nodiscard]] std::size_t kept_entries(sequence_id seq, std::size_t layer) noexcept {
        std::size_t n = 0;
        if (core_->calls.call("kept_entries", seq, layer, 0))
            core_->for_each_owner(seq.slot, [&](shard_base& s) {
                n += s.kept_entries(seq.slot, core_->layers.store_of(layer));
            });
        return n;
    }

  protected:
    friend struct shard_access;
    using core_type = cache_core<E>;

    explicit cache_calls(std::unique_ptr<core_type> c) noexcept : core_(std::move(c)) {}
    cache_calls(cache_calls&&) noexcept = default;
    cache_calls& operator=(cache_calls&&) noexcept = default;
    ~cache_calls() = default;

    /// A call, as shard_call has it, in one shard, or in all or none of them.
    template <class F>
    [[nodiscard]] status in_shards(const char* name, sequence_id seq, std::size_t layer, unsigned shard,
                                   F&& f) noexcept {
        const shard_call call(f);
        return shard == all_shards ? in_each(name, seq, layer, call) : in_one(name, seq, layer, shard, call);
    }
    [[nodiscard, gnu::cold]] status refuse(const char* call, const char* why) const noexcept {
        return status::failure(errc::unsupported, "%s: preset %s does not offer it: %s", call,
                               core_->preset.data(), why);
    }

    // What kv_manager says of these is there.
    template <save_target To>
    [[nodiscard, gnu::cold]] result<save_facts> save_to(sequence_id seq, To& to, const save_options& options,
                                                        const rare_shard_calls& rare) {
        const held_sequence mine(*core_, "save", seq);
        if (!mine.held) return mine.held;
        return sequence_parts(*core_, rare).save(seq.slot, to, options);
    }
    [[nodiscard, gnu::cold]] result<save_facts> save_to(sequence_id seq, const std::string& path,
                                                        const save_options& options,
                                                        const rare_shard_calls& rare) {
        const auto into = [&](result<saved_file> file) -> result<save_facts> {
            if (!file) return file.error();
            const auto facts = save_to(seq, *file, options, rare);
            if (!facts) return facts;
            if (status s = file->publish(); !s) return s;
            return facts;
        };
        const auto facts = into(file_for(seq, path));
        if (facts || facts.error().code != errc::corrupt) return facts;
        return into(
            saved_file::create(path, static_cast<std::uint32_t>(core_->page_bytes))); // all of it anew
    }
    template <save_source From>
    [[nodiscard, gnu::cold]] result<loaded_sequence> load_from(From& from, const load_options& options,
                                                               const rare_shard_calls& rare) {
        const auto seq = begin();
        if (!seq) return seq.error();
        const result<bool> loaded = [&]() -> result<bool> {
            const held_sequence mine(*core_, "load", *seq);
            if (!mine.held) return mine.held;
            auto done = sequence_parts(*core_, rare).load(seq->slot, from, options);
            if (!done) static_cast<void>(weigh_sequence(*core_, "load", seq->slot, 0));
            return done;
        }();
        if (!loaded) {
            forget(*seq);
            return loaded.error();
        }
        return loaded_sequence{*seq, save_facts(from.facts()).tokens, *loaded};
    }
    [[nodiscard, gnu::cold]] result<loaded_sequence>
    load_from(const std::string& path, const load_options& options, const rare_shard_calls& rare) {
        auto file = saved_file::open(path);
        if (!file) return file.error();
        return load_from(*file, options, rare);
    }
    [[nodiscard, gnu::cold]] status resize_to(std::size_t memory_bytes,
                                              const rare_shard_calls& rare) noexcept {
        const sequence_lock<core_type> mine(*core_);
        if (!mine.taken()) return busy("resize", mine.blocked());
        return resize_core(*core_, memory_bytes, rare);
    }

    [[nodiscard, gnu::cold]] status share_of(sequence_id seq, float weight,
                                             const rare_shard_calls& rare) noexcept {
        if (status s = core_->calls.sequence("set_share", seq); !s) return s;
        const frame_range& r = core_->frames;
        if (r.most == 0 || r.in_turn || r.in_common)
            return status::failure(
                errc::unsupported, "set_share: %s",
                r.most == 0 ? "nothing of this cache lies on storage, so no sequence has frames of its own"
                : r.in_turn ? "the layers of a sequence have its frames in turn, and all of them are in use"
                            : "all sequences have their frames in common (share = true)");
        const sequence_lock<core_type> mine(*core_);
        if (!mine.taken()) return busy("set_share", mine.blocked());
        if (status s = core_->calls.sequence("set_share", seq); !s) return s;
        frame_shares& all = core_->shares;
        const bool first =
            all.begin(rare, [&](std::uint32_t slot) { return core_->calls.slots.is_open(slot); });
        status s = all.check(r, seq.slot, weight);
        if (s.ok()) s = weigh_sequence(*core_, "set_share", seq.slot, weight, true);
        if (first && !s && s.code() != errc::unsupported) all.cancel();
        return s;
    }

    std::unique_ptr<core_type> core_;

  private:
    /// Of a sequence that holds nothing.
    void forget(sequence_id seq) noexcept {
        static_cast<void>(core_->calls.slots.end(seq));
        core_->shares.set_weight(seq.slot, 0);
        core_->calls.slots.free(seq);
    }
    /// All shards that have a part of an open sequence, for one call.
    struct held_sequence {
        status held; ///< or why they are not
        std::optional<sequence_lock<core_type>> lock;

        held_sequence(core_type& core, const char* call, sequence_id seq) noexcept
            : held(core.calls.sequence(call, seq)) {
            if (!held) return;
            lock.emplace(core, seq.slot);
            held = lock->taken() ? core.calls.sequence(call, seq) // it may have ended meanwhile
                                 : busy(call, lock->blocked());
        }
    };

    /// fork(), and how many tokens the branch has.
    [[nodiscard, gnu::cold]] result<sequence_id> branch_of(sequence_id seq, std::size_t& tokens) {
        const held_sequence mine(*core_, "fork", seq);
        if (!mine.held) return mine.held;
        const std::uint32_t apart = core_->division.by_sequence ? core_->calls.shards : 1;
        const auto branch = core_->calls.slots.begin("fork", seq.slot % apart, apart);
        if (!branch) return branch;
        const std::uint32_t slot = branch->slot, sequences = core_->calls.slots.size();
        status done = at_rest(*core_, "fork", seq.slot, tokens_of(*core_, seq.slot));
        if (done.ok()) done = weigh_sequence(*core_, "fork", slot, 1);
        core_->for_each_owner(slot, [&](shard_base& s) {
            if (done.ok()) done = s.fork(seq.slot, slot, sequences);
        });
        if (!done) {
            core_->for_each_owner(slot, [&](shard_base& s) { s.end(slot); });
            static_cast<void>(weigh_sequence(*core_, "fork", slot, 0));
            forget(*branch);
            return done;
        }
        tokens = this->tokens(*branch, 0);
        return branch;
    }
    /// The file of that name, if it has the sequence's last save; otherwise a new one.
    [[nodiscard, gnu::cold]] result<saved_file> file_for(sequence_id seq, const std::string& path) {
        std::uint64_t last = 0;
        {
            const held_sequence mine(*core_, "save", seq);
            if (!mine.held) return mine.held;
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

    /// f(i) for one shard, or for all of them.
    template <class F> void for_each_of(unsigned shard, F&& f) const noexcept {
        const bool all = shard == all_shards;
        const unsigned end = all ? core_->calls.shards : std::min(shard, core_->calls.shards - 1) + 1;
        for (unsigned i = all ? 0 : shard; i < end; ++i) f(i);
    }

    /// Has shards read what the steps at the front of `parts` choose, whose queries begin at row `first` of q. False when there
    /// is nothing to gain. A hint: what is wrong with a part its own call will say.
    [[nodiscard]] bool announce(std::span<const batch_part> parts, std::size_t layer, const tensor_view& q,
                                std::size_t first, unsigned shard) noexcept {
        if (!core_->stores) return false;
        const std::size_t row = core_->calls.query_floats;
        std::size_t steps = 0, end = first;
        for (; steps < parts.size() && parts[steps].kind == part_kind::decode; ++steps)
            end += parts[steps].tokens;
        if (steps < 2 || q.size() < end * row) return false;
        if (!core_->calls.floats("forward", "q", q.subspan(first * row, (end - first) * row), row,
                                 end - first))
            return false;
        for_each_of(shard, [&](unsigned in) {
            bool more = true;
            std::size_t at = first;
            for (std::size_t i = 0; i < steps && more; at += parts[i++].tokens) {
                auto ask = [&](shard_base& s, std::uint32_t l) -> status {
                    more = s.prefetch_for_batch(parts[i].seq.slot, l, q.subspan(at * row, row));
                    return {};
                };
                if (!in_one("forward", parts[i].seq, layer, in, shard_call(ask))) break;
            }
        });
        return true;
    }

    /// One call on one shard. Out of line, as is all that calls have in common: every call would carry a copy.
    [[nodiscard, gnu::noinline]] status in_one(const char* name, sequence_id seq, std::size_t layer,
                                               unsigned shard, const shard_call& call) noexcept {
        shard_lock mine;
        if (status s = core_->calls.call(name, seq, layer, shard); !s) return s;
        shard_base& s = *core_->shards[shard];
        if (!mine.take(s.busy)) return busy(name, shard);
        if (status ended = core_->calls.sequence(name, seq); !ended) return ended; // meanwhile
        const std::uint32_t l = core_->layers.store_of(layer);
        if (!core_->owns(seq.slot, shard)) return call(s, l, call_half::prepare);
        s.begin_call();
        status done = prepare(s, seq, l, call);
        if (done.ok()) done = call(s, l, call_half::commit);
        s.end_call(seq.slot);
        return done;
    }
    [[nodiscard]] static status prepare(shard_base& s, sequence_id seq, std::uint32_t l,
                                        const shard_call& call) noexcept {
        if (status e = s.settle(seq.slot, l); !e) return e;
        return call(s, l, call_half::prepare);
    }
    /// The same call on every shard that has a part of the sequence, all of them held meanwhile. If one cannot prepare it, no
    /// shard commits it.
    [[nodiscard, gnu::noinline]] status in_each(const char* name, sequence_id seq, std::size_t layer,
                                                const shard_call& call) noexcept {
        if (status s = core_->calls.call(name, seq, layer, 0); !s) return s;
        const held_sequence mine(*core_, name, seq);
        if (!mine.held) return mine.held;
        const std::uint32_t l = core_->layers.store_of(layer);
        std::uint32_t have = none;
        unsigned prepared = 0; // shards in front of this one are
        status done;
        for (; prepared < core_->calls.shards; ++prepared) {
            if (!core_->owns(seq.slot, prepared)) continue;
            shard_base& s = *core_->shards[prepared];
            const std::uint32_t n = s.tokens(seq.slot, l);
            s.begin_call();
            if (have == none) have = n;
            done = n == have || call.is_hint() ? prepare(s, seq, l, call)
                                               : apart(name, layer, have, prepared, n);
            if (done.ok()) continue;
            s.end_call(seq.slot);
            break;
        }
        const bool commits = done.ok();
        for (unsigned i = 0; i < prepared; ++i) {
            if (!core_->owns(seq.slot, i)) continue;
            shard_base& s = *core_->shards[i];
            status e = call(s, l, commits ? call_half::commit : call_half::undo);
            if (done.ok()) done = std::move(e);
            s.end_call(seq.slot);
        }
        if (commits && !done) give_up_turn(seq, l);
        return done;
    }
    /// A shard could not take its part of a turn: none of them has it.
    [[gnu::cold]] void give_up_turn(sequence_id seq, std::uint32_t l) noexcept {
        if (waits_anywhere(seq.slot, l))
            return;         // what is kept of a prompt could not be moved: the call is repeated
        bool empty = false; // it was the first one
        core_->for_each_owner(seq.slot, [&](shard_base& s) { empty = empty || s.tokens(seq.slot, l) == 0; });
        core_->for_each_owner(seq.slot, [&](shard_base& s) { s.give_up_turn(seq.slot, l, empty); });
    }
    [[nodiscard, gnu::cold]] static status apart(const char* call, std::size_t layer, std::uint32_t first,
                                                 unsigned shard, std::uint32_t tokens) noexcept {
        return status::failure(errc::invalid_argument,
                               "%s: the first shard has %u tokens of layer %zu and shard %u has %u; valid: a "
                               "call with the shard that is behind, or rewind_to()",
                               call, first, layer, shard, tokens);
    }
    [[nodiscard]] bool waits_anywhere(std::uint32_t slot, std::uint32_t l) noexcept {
        bool any = false;
        core_->for_each_owner(slot, [&](const shard_base& s) { any = any || s.waits(slot, l); });
        return any;
    }
    /// Branches of the sequence, which all shards are held for, copy what they still have from it, and it what it is a branch
    /// of.
    [[nodiscard, gnu::cold]] status settle_all(sequence_id seq) noexcept {
        status done;
        core_->for_each_owner(seq.slot, [&](shard_base& s) {
            if (done.ok()) done = s.settle_all(seq.slot);
        });
        return done;
    }
    /// f(shard) for every shard that has a part of the sequence, all of them held meanwhile.
    template <class F> [[nodiscard]] status in_all(const char* name, sequence_id seq, F&& f) noexcept {
        const held_sequence mine(*core_, name, seq);
        if (!mine.held) return mine.held;
        core_->for_each_owner(seq.slot, f);
        return {};
    }
    [[nodiscard]] status check_room(const char* call, shard_base& s, sequence_id seq, std::uint32_t layer,
                                    std::size_t tokens) const noexcept {
        const std::uint32_t have = s.tokens(seq.slot, layer);
        return have == none ? status{} : core_->calls.room(call, have, tokens);
    }
    /// A token may come unless a layer was left out before: each looks at the next one.
    [[nodiscard]] status check_token(const char* call, shard_base& s, sequence_id seq, std::size_t layer,
                                     std::size_t tokens) const noexcept {
        const layer_map& layers = core_->layers;
        const std::uint32_t l = layers.store_of(layer);
        if (status e = check_room(call, s, seq, l, tokens); !e) return e;
        if (status e = s.ready(call, seq.slot, l); !e) return e;
        const std::size_t next = layers.next_store(layer);
        const std::uint32_t have = s.tokens(seq.slot, l), there = s.tokens(seq.slot, layers.store_of(next));
        if (have != none && there < have)
            return status::failure(
                errc::invalid_argument,
                "%s: layer %zu has %u tokens and layer %zu only %u: it was left out; valid: "
                "every layer takes its token before the next one comes",
                call, layer, have, next, there);
        return {};
    }
};

#ifdef KVTL_INSTANCE // other elements are rare, and all cost those who build the library
KVTL_INSTANCE class cache_calls<f16>;
#endif

}} // namespace kvtl::v0
