// The numbers that open() settles.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/chooser.hpp>
#include <kvtl/core/store/lane.hpp>
#include <kvtl/lent_threads.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// How the lanes of a cache are divided among its shards: by KV heads (head h belongs to shard h % shards),
/// or by sequences (slot s belongs, with all its heads, to shard s % shards).
struct shard_division {
    std::uint32_t shards = 1;
    bool by_sequence = false;

    [[nodiscard]] bool owns(std::uint32_t slot, std::uint32_t shard) const noexcept {
        return !by_sequence || slot % shards == shard;
    }
    /// Of `n` lanes of a layer: how many a shard has, which is its i-th.
    [[nodiscard]] std::uint32_t lanes_of(std::uint32_t n, std::uint32_t shard) const noexcept {
        return by_sequence ? n : (n + shards - 1 - shard) / shards;
    }
    [[nodiscard]] std::uint32_t lane(std::uint32_t i, std::uint32_t shard) const noexcept {
        return by_sequence ? i : shard + i * shards;
    }
    /// Sequences that have lanes in one shard, at most.
    [[nodiscard]] std::uint32_t sequences(std::uint32_t all) const noexcept {
        return by_sequence ? (all + shards - 1) / shards : all;
    }
    /// The number of a sequence among those of its shard.
    [[nodiscard]] std::uint32_t seat(std::uint32_t slot) const noexcept {
        return by_sequence ? slot / shards : slot;
    }
};

/// What messages call a layer: where some slide, the others are numbered without them.
struct layer_numbers {
    std::span<const std::uint32_t> of_model; ///< per layer that does not slide; empty: the same
    [[nodiscard]] std::uint32_t of(std::uint32_t layer) const noexcept {
        return layer < of_model.size() ? of_model[layer] : layer;
    }
};

/// What messages call the number of tokens that a call gives up: the call, its argument, and the argument's value.
struct rewind_argument {
    const char* call = "rewind";
    const char* name = "n";
    std::size_t value = 0;
};

/// Numbers that open() settles and every shard needs.
struct cache_plan {
    model_extents model;
    shard_division division;
    lane_sizes sizes;
    std::uint32_t device_page = 4096;
    std::uint32_t max_sequences = 1;
    std::uint32_t shard_sequences = 1; ///< sequences that have lanes in one shard
    std::uint32_t pool_layers = 1;     ///< pools of a sequence: one, or one per layer that arenas are lent to
    std::uint32_t arenas = 1;          ///< of a sequence: pools whose frames have memory at the same time
    std::uint32_t hot_steps = none; ///< of a pool: what they chose or updated last is read back to an arena
    std::uint32_t pools = 1;        ///< per shard: those of all sequences that it has, or that share
    std::uint32_t max_entries = 1;  ///< of a unit
    std::uint32_t unit_pages = 1;
    std::uint32_t file_pages = 0; ///< per shard, at most
    std::uint32_t grow_pages = 0; ///< per shard: pages in places of units, at which decode adds no more
    std::uint32_t pool_lanes = 1; ///< most lanes that share a pool
    /// Of all representatives of a pool's lanes, where these are lent memory too; else 0, and they are in the lanes.
    std::uint32_t representative_pages = 0;
    std::uint32_t shard_lanes = 1;   ///< most lanes of one layer that a shard owns
    std::uint32_t open_pages = 1;    ///< per pool
    std::uint32_t frames = 0;        ///< per pool (and arena), tails included
    std::uint32_t most_borrowed = 0; ///< per pool: frames that tables of units may lend before they are full
    std::size_t lent_page = 0;       ///< in which tables lend their memory
    std::uint32_t borrowed_frames = 0; ///< of these, as many as the pool has a use for
    std::uint32_t slots = 0;           ///< fixed groups: per pool, what frames beyond page_frames hold
    std::uint32_t page_frames = 0;     ///< fixed groups: per pool, frames that carry pages
    std::uint32_t spare_pages = 1;     ///< fixed groups: page frames that reads leave to appends
    /// Per shard: of rows that the queries of a prompt attend one after the other, before others take their place. The most is
    /// what stays in the L2 cache while the queries of a head pass.
    std::size_t stretch_bytes = least_stretch;
    static constexpr std::size_t least_stretch = 32768,
                                 most_stretch = std::size_t{1} << 18; ///< times KV heads of a lane
    std::size_t index_floats = 0;    ///< scratch of the index while it scores
    std::size_t rest_floats = 0;     ///< scratch of the estimator
    std::size_t fit_bytes = 0;       ///< memory that index and codec borrow from the slots to fit a lane
    std::uint32_t io_timeout_ms = 0; ///< for messages
    bool time_phases = false;
    lent_threads threads{};
    std::uint32_t least_frames = 0;  ///< what a pool needs to work at all
    std::uint32_t fewest_frames = 0; ///< that an open pool may be cut down to
    std::size_t most_frames = 0;     ///< beyond which it has no use for more
    std::uint32_t buffer_limit = 1;  ///< entries in a lane's buffer that force a load
    std::uint32_t io_batch_pages = 64;
    std::uint32_t batch_items = 32;
    std::uint32_t chosen_per_lane = 1;
    std::uint32_t prefetches = 2;
    std::uint32_t true_layers =
        1; ///< where choices are made for predicted queries: first layers that take their own
    std::uint32_t max_in_flight = 64;   ///< requests that a shard's io_batches may have with the device
    std::size_t codec_shared_bytes = 0; ///< of the tables that all lanes of a shard have in common
    std::uint32_t moving_rows = 0; ///< fixed groups behind a retention that drops: entries that move at once
    std::uint32_t attend_tokens = 0;
    std::uint32_t gap_pages = 0;
    layer_numbers numbers;

    /// Sequences and shards that have lanes of them (lane_table.hpp).
    [[nodiscard]] std::uint32_t regions() const noexcept {
        return max_sequences * (division.by_sequence ? 1 : division.shards);
    }
    /// Sequences of a shard that have pools of their own: one where all share.
    [[nodiscard]] std::uint32_t pool_groups() const noexcept { return pools / pool_layers; }
    /// Of a shard: tails of layers whose frames have no memory wait beside the arenas.
    [[nodiscard]] std::uint32_t parked_frames() const noexcept {
        return pool_layers > 1 ? pools * open_pages : 0;
    }
    /// Of a shard: pages of memory for representatives.
    [[nodiscard]] std::size_t lent_representatives() const noexcept {
        return std::size_t{pool_groups()} * arenas * representative_pages;
    }
    /// Of a shard: pages of memory that transfers reach, in this order: of arenas, of tails, of representatives.
    [[nodiscard]] std::size_t memory_frames() const noexcept {
        return std::size_t{pool_groups()} * arenas * frames + parked_frames() + lent_representatives();
    }
    /// Pools take turns in memory that arenas lend (layer_arenas.hpp).
    [[nodiscard]] bool takes_turns() const noexcept { return pool_layers > 1; }
    /// Of all shards: frames that one more or less in each pool makes.
    [[nodiscard]] std::size_t frames_in_all_pools() const noexcept {
        return std::size_t{division.shards} * pools;
    }
    /// Pages of an io_batch that may take so many frames: enough to keep a device busy.
    [[nodiscard]] std::uint32_t io_batch_pages_for(std::uint32_t room) const noexcept {
        constexpr std::uint32_t many = 512;
        return std::max(unit_pages + 1, std::min(many, room));
    }
    /// Of all shards: addresses of borrowed frames. Their memory is that of tables, so that no bound counts it twice.
    [[nodiscard]] std::size_t borrowed_pages() const noexcept {
        return std::size_t{division.shards} * pools * borrowed_frames;
    }
    /// Pages that a shard may use of the file: those that the layout places, then the representatives' of each pool.
    [[nodiscard]] std::uint32_t storage_pages() const noexcept {
        return file_pages + pools * representative_pages;
    }
    /// Requests that a device should have at once. More where a layer is read in while nobody calls.
    static constexpr unsigned usual_depth = 64;
    [[nodiscard]] unsigned io_depth() const noexcept {
        return pool_layers > 1 ? 8 * usual_depth : usual_depth;
    }
    /// Batches that bring the units of a layer back in: one for each that has arenas to lend.
    [[nodiscard]] std::uint32_t page_in_batches() const noexcept {
        return pool_layers > 1 ? pool_groups() : 0;
    }
    /// Batches of representatives: for each that has arenas to lend one reads, and one of each arena writes.
    [[nodiscard]] std::uint32_t representative_io_batches() const noexcept {
        return representative_pages > 0 ? pool_groups() * (1 + arenas) : 0;
    }
};

}} // namespace kvtl::v0
