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
// Threads: Shards divide KV heads or sequences (config.shard_by). shard(i) is the part of one thread, and fills only its
//          heads' part of `out`. Different shards may run concurrently. A call without a shard holds all shards and
//          processes them one after the other. A second thread in a shard gets errc::busy, and nothing happens.
//          begin() may run at any time, end() and rewind() concurrently for sequences of different shards. tokens() and
//          kept_entries() need the shards of the sequence at rest; stats(), device_info() and memory() need all shards.
// Layers:  Layers that share a cache (config.owner) each pass k and v of their owner, the same tokens. A call attends them with
//          what is cached; the call of the last of these layers appends them, and retention decides by its queries.
//          tokens() counts them from then on. append() is for owners; a prefetch() for another layer does nothing.
// Numbers: q, k, v and out are floats, f16 or bf16 (tensor_view, tensor_span). 16-bit queries are widened where they are
//          used, and results are rounded once where they are stored: they equal the rounded results of floats.
// Errors:  Rare calls return a result<T>. Calls of every step return a status and are noexcept. A failed call leaves the sequence as it
//          was and may be repeated. With a shard, this holds for that shard; forward() is a call for each part.
//          Tokens, units and statistics are as they were, except for times, transfers and wasted_bytes. Two exceptions:
//            - a further turn (prefill after decode), or a later chunk of a prompt of fixed groups, that fails halfway: the
//              error and later calls say that the sequence must be ended;
//            - a prompt whose last chunk fails after retention has dropped entries: it has its tokens and its `out`. The
//              repeated call only moves the survivors to their place, in the shards that have not done so.
//          A failed call gives up what was prefetched for the layer. Presets that choose for predicted queries therefore
//          choose for the true one when attend() is repeated, unless prefetch() is repeated first.
//          A failed call may change three things without changing tokens: which units are in memory (with few frames, this
//          can change when a pending entry joins its unit), entries that left the window for a draft (they stay in their
//          units), and a layer that a branch had to copy (fork()).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/core/cache_calls.hpp>
#include <kvtl/core/open_core.hpp>
#include <kvtl/core/refused.hpp>
#include <kvtl/core/shard.hpp>
#include <kvtl/core/shard_handle.hpp>
#include <kvtl/core/step/no_views.hpp>
#include <kvtl/save/saved_file.hpp>
#include <kvtl/slots/preset.hpp>
#include <kvtl/slots/sentences.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace kvtl { inline namespace v0 {

/// Which kv_manager a preset gets. It is complete where its cache is named.
template <class Preset, class Supplied> [[nodiscard]] consteval bool valid_preset() {
    static_assert(
        requires { sizeof(Preset); },
        "[kvtl] preset: only declared here; define it before kv_manager<...> is named");
    return preset_for<Preset, Supplied>;
}

/// Reached only by presets that miss a requirement: prints one sentence for each (slots/sentences.hpp).
template <class Preset, class Supplied = default_engine_inputs, bool Valid = valid_preset<Preset, Supplied>()>
class kv_manager : public refused_cache<Preset, kv_manager<Preset, Supplied>> {
    static_assert(explain_preset<Preset, Supplied>(), "[kvtl] the sentences above say what to mend");
};

/// The calls that every preset shares are those of cache_calls (core/cache_calls.hpp): begin, prefill, attend, fork, end, ...
template <class Preset, class Supplied>
class kv_manager<Preset, Supplied, true> : public cache_calls<typename cache_types<Preset>::element_type> {
    using calls = cache_calls<typename cache_types<Preset>::element_type>;

  public:
    using preset = Preset;
    using config = cache_config<Preset>;
    using types = cache_types<Preset>;
    using element_type = typename types::element_type;
    using shard_handle = kvtl::shard_handle<kv_manager>;
    /// Rows that select() shows outlast their visit.
    static constexpr bool views_last = types::plain_records;

    /// The config with the largest index that takes at most half of memory_bytes, calibration included: the preset's size
    /// knobs are turned down in its published order (`Preset::shrink`) until it does. Without knobs, or when even the
    /// smallest is too large or its units would leave nothing to choose, the last that may be comes back and open() decides.
    [[nodiscard, gnu::cold]] static result<config> fitted(config c) {
        bool valid = false; // something that can be planned has been found
        if constexpr (requires { Preset::shrink(c); })
            for (config next = c;; valid = true) {
                const auto least = least_plan(next);
                if (!least) return valid ? result<config>(c) : least.error();
                c = next;
                if (least->index_fits(c.memory_bytes) || !Preset::shrink(next)) break;
            }
        return c;
    }

    /// The smallest memory_bytes that open() accepts on a device with pages of 4 KiB.
    [[nodiscard, gnu::cold]] static result<std::size_t> least_memory(const config& c) {
        const auto parts = least_parts(c);
        if (!parts) return parts.error();
        return parts->total();
    }
    /// What each part takes of it. memory_bytes does not matter.
    [[nodiscard, gnu::cold]] static result<memory_parts> least_parts(const config& c) {
        auto planned = least_plan(c);
        if (!planned) return planned.error();
        return planned->parts;
    }
    /// Bytes of the file beyond which decode adds no units; 0 where all is in memory. Uneven clusters of a prompt take more.
    [[nodiscard, gnu::cold]] static result<std::uint64_t> storage_bytes(const config& c) {
        auto planned = least_plan(c);
        if (!planned) return planned.error();
        return std::uint64_t{planned->plan.division.shards} * planned->plan.grow_pages * planned->page_bytes;
    }

    /// Reserves all memory, opens the device, checks everything that can be checked. Cold; the only call that
    /// allocates.
    [[nodiscard, gnu::cold]] static result<kv_manager> open(const config& c);

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
        return calls::save_to(seq, to, options, rare_calls());
    }
    /// The same to a file of its own, which takes the place of one that has the name when it is complete and on the disk. If that
    /// one has the sequence's last save, it gets the next generation instead.
    [[nodiscard, gnu::cold]] result<save_facts> save(sequence_id seq, const std::string& path,
                                                     const save_options& options = {});
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
        return calls::load_from(from, options, rare_calls());
    }
    [[nodiscard, gnu::cold]] result<loaded_sequence> load(const std::string& path,
                                                          const load_options& options = {});

    /// For engines with their own attention kernel: brings in what q (HQ, D) selects and calls
    /// visit(std::size_t kv_head, rows_view<E> keys, rows_view<E> values) for every block to attend (append()
    /// first), which calls nothing of this manager but stats(), tokens() and kept_entries(). Rows stay where they are until the next call on this shard if
    /// views_last; else they are decoded for one visit, and the next one overwrites them. Refused where keys and
    /// values alone do not make the attention.
    template <class Visit>
    [[nodiscard]] status select(sequence_id seq, std::size_t layer, tensor_view q, Visit&& visit,
                                unsigned shard = calls::all_shards) noexcept {
        constexpr const char* why = why_no_views<types>();
        if constexpr (why != nullptr) {
            static_cast<void>(visit);
            return calls::refuse("select", why);
        } else {
            return calls::in_shards(
                "select", seq, layer, shard, [&](shard_base& s, std::uint32_t l, call_half h) -> status {
                    const auto& checks = this->core_->calls;
                    if (h == call_half::prepare)
                        if (status e = checks.floats("select", "q", q, checks.query_floats); !e) return e;
                    return static_cast<kvtl::shard<types>&>(s).select(h, seq.slot, l, q, visit);
                });
        }
    }

    /// From now on the cache takes at most so many bytes: fewer than it was opened with, as when a system runs out of memory, or
    /// as many again. valid: memory().least to memory().most. Units in frames that go have left and are read again when they
    /// are chosen; the system gets that memory in whole pages of its own. Between steps: no other thread in a call (it would get
    /// errc::busy), no rows of select() in use. Refused (errc::unsupported) where nothing lies on storage, layers have
    /// memory in turn, or the memory is locked; errc::writes_pending until retry_writes() of every sequence. While frames
    /// are fewer a device pins none of them (device_info()). Cold; resident_bytes_peak begins anew.
    [[nodiscard, gnu::cold]] status resize(std::size_t memory_bytes) noexcept;

    /// Divides the frames of the cache among its open sequences by weight: one of weight 2 gets twice as many as one of weight 1.
    /// An open sequence has weight 1 until this call sets another. Before the first call each of max_sequences has an equal
    /// part, open or not.
    ///   - A sequence that ends leaves its frames to the others. One that begins, is loaded or forked takes its part.
    ///   - Each sequence keeps at least the frames that its preset needs. If shards divide sequences, the sequences of a shard
    ///     divide its frames. The cache takes no more memory than before.
    ///   - Units in frames that change hands are evicted, and so are units in borrowed frames. A step that chooses them reads
    ///     them again, or prefetch(seq) does. A selection and prefetches are cancelled.
    ///   - Units that stay keep the order of eviction, which lifo turns round. Counts and ghosts of the replacement policy
    ///     are lost. The bits of clusters that grow by entries depend on what is in memory, and so on shares.
    ///   - Call it between steps, with no other thread in a call. After the first call this also holds for begin(), end(),
    ///     fork() and load(), in the shards of their sequence.
    /// Errors: bound_too_small: the weight leaves too few frames; the message has the least valid one. busy. writes_pending
    /// until retry_writes(). unsupported: nothing lies on storage, sequences share their frames (config.share), layers have
    /// memory in turn, or the memory is locked after resize(). In the last case weights stay as they were, but a first call
    /// has given each open sequence an equal part.
    /// Cost: waits for all transfers, and copies each frame in use behind a border that moves.
    [[nodiscard, gnu::cold]] status set_share(sequence_id seq, float weight) noexcept;

    /// `i` beyond shards(): every call on the handle says so.
    [[nodiscard]] shard_handle shard(unsigned i) noexcept {
        return {*this, std::min(i, calls::all_shards - 1)};
    }

  private:
    template <element E> friend class any_cache;
    using planner_type = planner<policies_of<Preset>>;

    [[nodiscard, gnu::cold]] static const rare_shard_calls& rare_calls() noexcept;

    /// The plan with the least memory.
    [[nodiscard, gnu::cold]] static result<sized_cache> least_plan(const config& c) {
        planner_type planner(c);
        planner.config.memory_bytes = 1;
        const auto stores = stores_of(planner.config);
        if (!stores) return stores.error();
        const auto bytes = planner.least({stores->model, 4096, stores->bases.bytes()});
        if (!bytes) return bytes.error();
        return std::move(planner.sizes);
    }

    explicit kv_manager(std::unique_ptr<core_of<policies_of<Preset>>> c) noexcept : calls(std::move(c)) {}
};

// These are not inline. A translation unit that declares the class `extern template` takes them from the one that instantiates it,
// and with them all code that depends on the preset.
template <class Preset, class Supplied>
result<kv_manager<Preset, Supplied, true>> kv_manager<Preset, Supplied, true>::open(const config& c) {
    if (!contains(c.engine_inputs, needed_inputs<Preset>()))
        return status::failure(
            errc::unsupported, "engine_inputs: preset %s needs %s, which the engine does not supply",
            preset_name<Preset>().data(), missing_input(needed_inputs<Preset>(), c.engine_inputs));
    if (status s = c.threads.check(); !s) return s;
    planner_type planner(c);
    const auto stores = stores_of(planner.config);
    if (!stores) return stores.error();
    std::uint32_t page = 4096;
    for (;;) {
        if (const auto bytes = planner.plan({stores->model, page, stores->bases.bytes()}); !bytes)
            return bytes.error();
        auto made = open_core(*stores, planner);
        if (!made) return made.error();
        if ((*made)->device_info().page <= page) return kv_manager(*std::move(made));
        page = (*made)->device_info().page; // a device with larger pages: plan again for it
    }
}
template <class Preset, class Supplied>
const rare_shard_calls& kv_manager<Preset, Supplied, true>::rare_calls() noexcept {
    return rare_calls_of<types>;
}
template <class Preset, class Supplied>
result<save_facts> kv_manager<Preset, Supplied, true>::save(sequence_id seq, const std::string& path,
                                                            const save_options& options) {
    return calls::save_to(seq, path, options, rare_calls());
}
template <class Preset, class Supplied>
result<loaded_sequence> kv_manager<Preset, Supplied, true>::load(const std::string& path,
                                                                 const load_options& options) {
    return calls::load_from(path, options, rare_calls());
}
template <class Preset, class Supplied>
status kv_manager<Preset, Supplied, true>::resize(std::size_t memory_bytes) noexcept {
    return calls::resize_to(memory_bytes, rare_calls());
}
template <class Preset, class Supplied>
status kv_manager<Preset, Supplied, true>::set_share(sequence_id seq, float weight) noexcept {
    return calls::share_of(seq, weight, rare_calls());
}

/// A cache of any preset, for programs that choose the preset at run time (docs/integrate.md has one). E: what the preset
/// stores, kv_manager::element_type. Move-only. It has the calls of kv_manager with the same names, bits, errors and threads.
/// Cost:   none beyond kv_manager's: no allocation, no further virtual call. save(), load(), resize() and set_share() are
///         compiled for every preset that an any_cache is made of.
/// Limits: no select(), which is a template of the preset.
template <element E> class any_cache : public cache_calls<E> {
    using calls = cache_calls<E>;

  public:
    using element_type = E;
    using shard_handle = kvtl::shard_handle<any_cache>;

    /// Takes over an open cache with its sequences. `cache` may only be destroyed or assigned to afterwards, and its shard
    /// handles must not be used any more.
    template <class Preset, class Supplied>
    any_cache(kv_manager<Preset, Supplied>&& cache) noexcept requires
        std::same_as<typename cache_types<Preset>::element_type, E>
        : calls(std::move(cache)), rare_(&kv_manager<Preset, Supplied>::rare_calls()) {}

    /// Name of the preset. The text lives as long as the program.
    [[nodiscard]] std::string_view preset() const noexcept { return this->core_->preset; }

    template <save_target To>
    [[nodiscard, gnu::cold]] result<save_facts> save(sequence_id seq, To& to,
                                                     const save_options& options = {}) {
        return calls::save_to(seq, to, options, *rare_);
    }
    [[nodiscard, gnu::cold]] result<save_facts> save(sequence_id seq, const std::string& path,
                                                     const save_options& options = {}) {
        return calls::save_to(seq, path, options, *rare_);
    }
    template <save_source From>
    [[nodiscard, gnu::cold]] result<loaded_sequence> load(From& from, const load_options& options = {}) {
        return calls::load_from(from, options, *rare_);
    }
    [[nodiscard, gnu::cold]] result<loaded_sequence> load(const std::string& path,
                                                          const load_options& options = {}) {
        return calls::load_from(path, options, *rare_);
    }
    [[nodiscard, gnu::cold]] status resize(std::size_t memory_bytes) noexcept {
        return calls::resize_to(memory_bytes, *rare_);
    }
    [[nodiscard, gnu::cold]] status set_share(sequence_id seq, float weight) noexcept {
        return calls::share_of(seq, weight, *rare_);
    }
    /// `i` beyond shards(): every call on the handle says so.
    [[nodiscard]] shard_handle shard(unsigned i) noexcept {
        return {*this, std::min(i, calls::all_shards - 1)};
    }

  private:
    const rare_shard_calls* rare_; ///< of the preset, which the core does not know
};
template <class Preset, class Supplied>
any_cache(kv_manager<Preset, Supplied>&&) -> any_cache<typename kv_manager<Preset, Supplied>::element_type>;

}} // namespace kvtl::v0
