// The counters of a cache. Bytes and operations are counted where they are issued.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Bytes of the reservation by what they are for; their sum never exceeds memory_bytes.
struct memory_parts {
    /// means and summaries of units, keys that live in memory, data that was fitted to a prompt
    std::size_t index = 0;
    std::size_t metadata = 0; ///< lane and unit tables, page maps, checksums, frame tables
    std::size_t window = 0;   ///< sinks and recent window
    std::size_t buffers = 0;  ///< pending entries: they wait for their unit
    std::size_t tails = 0;    ///< frames that open pages may hold
    std::size_t scratch = 0;  ///< scores, choices, partials, transfer plans
    std::size_t frames = 0;   ///< frames for resident units; prefill borrows them while it organises a prompt
    std::size_t calibration = 0; ///< bases and gates that were fitted to the model

    /// Not a part but the measure of the parts: keys and values of max_tokens in max_sequences as f16, if all
    /// of them were kept. Sliding layers count as if they kept everything.
    std::size_t raw_cache = 0;

    memory_parts& operator+=(const memory_parts& o) noexcept {
        index += o.index, metadata += o.metadata, window += o.window, buffers += o.buffers;
        tails += o.tails, scratch += o.scratch, frames += o.frames, calibration += o.calibration;
        return *this;
    }
    [[nodiscard]] std::size_t total() const noexcept {
        return index + metadata + window + buffers + tails + scratch + frames + calibration;
    }
    /// visit(name, bytes) of every part, in the order in which programs and errors list them.
    template <class Visit> void each(Visit&& visit) const {
        visit("index", index), visit("metadata", metadata), visit("window", window);
        visit("buffers", buffers), visit("tails", tails), visit("scratch", scratch);
        visit("frames", frames), visit("calibration", calibration);
    }
    /// `bytes` as a share of the raw cache, for example share(index); 1 is the whole raw cache.
    [[nodiscard]] double share(std::size_t bytes) const noexcept {
        return raw_cache == 0 ? 0.0 : static_cast<double>(bytes) / static_cast<double>(raw_cache);
    }
};

/// The sizes that resize() may give an open cache, and its present size, in bytes.
struct memory_range {
    std::size_t least = 0, now = 0, most = 0;
};

/// The cost of choices as a protocol on secret shares would pay it. Choices of prompts and prefetches are
/// included. Reductions over queries and over the entries of a unit are not counted.
struct choice_counts {
    std::uint64_t scored = 0;   ///< scores of a query and a unit, an entry or a block of several units
    std::uint64_t compared = 0; ///< scores that were compared to find the best
    std::uint64_t opened = 0;   ///< results: numbers of the units and blocks that were found

    choice_counts& operator+=(const choice_counts& o) noexcept {
        scored += o.scored, compared += o.compared, opened += o.opened;
        return *this;
    }
};

/// Nanoseconds that decode spent in each phase; 0 unless cache_config::time_phases is set.
struct phase_times {
    std::uint64_t append = 0;     ///< appending the new token
    std::uint64_t score = 0;      ///< index scores
    std::uint64_t choose = 0;     ///< selection
    std::uint64_t fetch_wait = 0; ///< submitting reads and waiting for them
    std::uint64_t attend = 0;     ///< attention, estimates and merging included
    std::uint64_t maintain = 0;   ///< growth of units, splits, open pages, writes
    std::uint64_t evict = 0;      ///< retention: scoring and dropping entries

    phase_times& operator+=(const phase_times& o) noexcept {
        append += o.append, score += o.score, choose += o.choose, fetch_wait += o.fetch_wait;
        attend += o.attend, maintain += o.maintain, evict += o.evict;
        return *this;
    }
};

/// Counters run from open() on. The difference of two objects counts what happened in between.
struct statistics {
    std::uint64_t steps = 0;      ///< tokens that attend() appended (per layer and shard)
    std::uint64_t read_bytes = 0; ///< bytes of reads issued to the device, gaps included
    std::uint64_t reads = 0;
    std::uint64_t written_bytes = 0;
    std::uint64_t writes = 0;
    std::uint64_t useful_bytes = 0; ///< entry bytes of chosen units among the bytes read for them
    /// Entry bytes that were prefetched and not chosen; prefetches made useless by an append() do not count
    std::uint64_t wasted_bytes = 0;
    std::uint64_t chosen_bytes = 0;          ///< entry bytes of all chosen units
    std::uint64_t resident_chosen_bytes = 0; ///< part of them that was resident before the step issued reads
    std::uint64_t units = 0;                 ///< units that exist now
    std::uint64_t chosen_units = 0;
    std::uint64_t choices = 0; ///< choices among units by selectors that choose (per step and lane)
    /// Entries that attend_tokens left for these choices after everything that is always attended
    std::uint64_t selectable_entries = 0;
    std::uint64_t empty_choices = 0; ///< choices without any chosen unit
    /// Presets with a predicted query: choices by the true query, in the first layers and where no prediction
    /// came (per layer and shard)
    std::uint64_t unpredicted_choices = 0;
    std::uint64_t reused_units = 0;  ///< chosen units that the previous step of their lane had chosen too
    std::uint64_t read_entries = 0;  ///< live entries of chosen units that were read
    std::uint64_t decode_reads = 0;  ///< reads issued for chosen units
    std::uint64_t hot_set_bytes = 0; ///< virtualised layers: bytes read back for units that were resident
    std::uint64_t hot_set_reads = 0; ///< reads issued for them
    std::uint64_t late_hot_sets =
        0; ///< hot sets whose reads began only at the call of their layer (per shard)
    /// Virtualised layers: steps, appends and selections that no before_query() preceded
    std::uint64_t unannounced_layers = 0;
    /// Virtualised layers: means and summaries, which are read and written with the layer's memory
    std::uint64_t representative_bytes_read = 0, representative_bytes_written = 0;
    std::uint64_t splits = 0;
    std::uint64_t delayed_splits = 0; ///< splits that waited for their unit to be read
    std::uint64_t forced_loads = 0;   ///< units loaded because the buffer of pending entries was full
    std::uint64_t refused_splits = 0;
    std::uint64_t tail_rewrites = 0; ///< open pages written to make room for another open page
    /// Entry bytes written again after their first write: the next three counters, and lanes that are
    /// clustered late
    std::uint64_t bytes_moved_by_updates = 0;
    std::uint64_t bytes_moved_by_appends = 0; ///< moved to make room for entries that join units on storage
    /// Bytes of units that split: the child that keeps the unit's place, and the child that becomes a new
    /// unit
    std::uint64_t bytes_moved_by_staying_children = 0, bytes_moved_by_leaving_children = 0;
    std::uint64_t bytes_moved_by_forks = 0; ///< units that left a shared place, and pages that a fork copied
    std::uint64_t storage_bytes =
        0; ///< space of the file that holds live pages, at its peak; shared pages count once
    /// DRAM in use for the cache: peak since open(), resize() or set_share(), and after that one since begin(), end(), fork() or
    /// load(), too
    std::uint64_t resident_bytes_peak = 0;
    std::uint64_t borrowed_bytes = 0; ///< unused bytes of index and metadata that serve as frames now
    std::uint64_t kept_entries = 0;   ///< entries (per KV head) that retention holds now
    std::uint64_t kept_bytes = 0;     ///< bytes of all entries currently held, encoded or not
    choice_counts choosing;
    phase_times phase_ns;
    memory_parts bytes_by_part;

    statistics& operator+=(const statistics& o) noexcept {
        steps += o.steps, read_bytes += o.read_bytes, reads += o.reads;
        written_bytes += o.written_bytes, writes += o.writes;
        useful_bytes += o.useful_bytes, wasted_bytes += o.wasted_bytes;
        chosen_bytes += o.chosen_bytes, resident_chosen_bytes += o.resident_chosen_bytes;
        unpredicted_choices += o.unpredicted_choices;
        choices += o.choices, selectable_entries += o.selectable_entries, empty_choices += o.empty_choices;
        units += o.units, chosen_units += o.chosen_units, reused_units += o.reused_units,
            read_entries += o.read_entries, decode_reads += o.decode_reads;
        hot_set_bytes += o.hot_set_bytes, hot_set_reads += o.hot_set_reads;
        late_hot_sets += o.late_hot_sets, unannounced_layers += o.unannounced_layers;
        representative_bytes_read += o.representative_bytes_read;
        representative_bytes_written += o.representative_bytes_written;
        splits += o.splits, delayed_splits += o.delayed_splits, forced_loads += o.forced_loads;
        refused_splits += o.refused_splits, tail_rewrites += o.tail_rewrites;
        bytes_moved_by_updates += o.bytes_moved_by_updates;
        bytes_moved_by_appends += o.bytes_moved_by_appends;
        bytes_moved_by_staying_children += o.bytes_moved_by_staying_children;
        bytes_moved_by_leaving_children += o.bytes_moved_by_leaving_children;
        bytes_moved_by_forks += o.bytes_moved_by_forks;
        storage_bytes += o.storage_bytes;
        resident_bytes_peak += o.resident_bytes_peak, borrowed_bytes += o.borrowed_bytes;
        kept_entries += o.kept_entries, kept_bytes += o.kept_bytes;
        choosing += o.choosing;
        phase_ns += o.phase_ns;
        return *this;
    }

    /// Share of the chosen bytes that was resident; 1 where nothing was chosen.
    [[nodiscard]] double hit_rate() const noexcept {
        return chosen_bytes == 0
                   ? 1.0
                   : static_cast<double>(resident_chosen_bytes) / static_cast<double>(chosen_bytes);
    }
    [[nodiscard]] double reuse_rate() const noexcept {
        return chosen_units == 0 ? 0.0
                                 : static_cast<double>(reused_units) / static_cast<double>(chosen_units);
    }
    /// Entries that the budget leaves per choice; 0 where there was no choice.
    [[nodiscard]] double mean_selectable_entries() const noexcept {
        return choices == 0 ? 0.0 : static_cast<double>(selectable_entries) / static_cast<double>(choices);
    }
    [[nodiscard]] double mean_read_entries() const noexcept {
        return decode_reads == 0 ? 0.0
                                 : static_cast<double>(read_entries) / static_cast<double>(decode_reads);
    }
};

/// What the calls of one sequence did since it began, and what it holds now. Over all shards that have a part of it.
struct sequence_statistics {
    std::uint64_t steps = 0; ///< tokens that attend() appended (per layer and shard)
    std::uint64_t reads = 0; ///< issued during its calls
    std::uint64_t read_bytes = 0;
    std::uint64_t written_bytes = 0; ///< issued during its calls; an open page may be written in another's
    /// As in statistics. wasted_bytes counts for the sequence whose call gave a prefetch up, whichever had asked for it.
    std::uint64_t useful_bytes = 0, wasted_bytes = 0;
    std::uint64_t chosen_bytes = 0, resident_chosen_bytes = 0;
    std::uint64_t moved_bytes = 0;   ///< written again after their first write, for whatever reason
    std::uint64_t fetch_wait_ns = 0; ///< where config.time_phases
    std::uint64_t tokens = 0;        ///< it has now
    std::uint64_t units = 0;         ///< it has now
    std::uint64_t kept_bytes = 0; ///< of its entries now, encoded or not; shared pages count in each branch
    std::uint64_t frame_bytes =
        0; ///< of the frames that it may fill now; of all sequences where these share them

    sequence_statistics() = default;
    /// Of counters, which run from open() on.
    explicit sequence_statistics(const statistics& s) noexcept
        : steps(s.steps), reads(s.reads), read_bytes(s.read_bytes), written_bytes(s.written_bytes),
          useful_bytes(s.useful_bytes), wasted_bytes(s.wasted_bytes), chosen_bytes(s.chosen_bytes),
          resident_chosen_bytes(s.resident_chosen_bytes),
          moved_bytes(s.bytes_moved_by_updates + s.bytes_moved_by_forks),
          fetch_wait_ns(s.phase_ns.fetch_wait) {}

    /// Adds what `now` has counted beyond `before`, and what it holds, but for tokens: shards have the same ones.
    void add(const sequence_statistics& now, const sequence_statistics& before) noexcept {
        steps += now.steps - before.steps;
        reads += now.reads - before.reads, read_bytes += now.read_bytes - before.read_bytes;
        written_bytes += now.written_bytes - before.written_bytes;
        useful_bytes += now.useful_bytes - before.useful_bytes;
        wasted_bytes += now.wasted_bytes - before.wasted_bytes;
        chosen_bytes += now.chosen_bytes - before.chosen_bytes;
        resident_chosen_bytes += now.resident_chosen_bytes - before.resident_chosen_bytes;
        moved_bytes += now.moved_bytes - before.moved_bytes;
        fetch_wait_ns += now.fetch_wait_ns - before.fetch_wait_ns;
        units += now.units, kept_bytes += now.kept_bytes, frame_bytes += now.frame_bytes;
    }
    sequence_statistics& operator+=(const sequence_statistics& o) noexcept {
        add(o, {});
        return *this;
    }
    /// Share of the chosen bytes that was resident; 1 where nothing was chosen.
    [[nodiscard]] double hit_rate() const noexcept {
        return chosen_bytes == 0
                   ? 1.0
                   : static_cast<double>(resident_chosen_bytes) / static_cast<double>(chosen_bytes);
    }
};

}} // namespace kvtl::v0
