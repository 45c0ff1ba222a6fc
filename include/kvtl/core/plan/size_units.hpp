// From a configuration to the sizes of units, lanes and frames of a cache whose entries are units on storage.
//
// Cost: of open() only.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/shard_memory.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Where nothing is retrieved there are no units to size.
struct no_unit_sizes {
    template <class Config>
    [[nodiscard]] static status settle(const Config&, const geometry&, cache_plan&, std::uint32_t&) noexcept {
        return {};
    }
    static void measure(cache_plan&, std::uint32_t, std::uint32_t, memory_parts&) noexcept {}
};

/// Clusters: units with records, in pages and frames of their own.
template <class Types> struct cluster_sizes {
    using clusterer_state = typename Types::clusterer_state;

    /// What a lane has for its units.
    [[nodiscard, gnu::cold]] static status size_lane(const clusterer_state& cluster, const page_format&,
                                                     std::uint32_t centroid_bits, cache_plan& p) noexcept {
        lane_sizes& s = p.sizes;
        if constexpr (Types::batches) { // entries that wait are attended: not too many
            s.spare = cluster.batch_entries(p.attend_tokens / 4);
            s.batch_scratch = cluster.batch_scratch_bytes(s.spare, s.width);
        }
        if (Types::means) s.centroid_bits = centroid_bits;
        s.spread = Types::spread;
        return {};
    }
    /// Pages of a run, in which chunks of a prompt wait.
    [[nodiscard]] static std::uint32_t run_pages(const cache_plan& p) noexcept { return 2 * p.unit_pages; }
    /// Pages of all runs that a lane may have.
    [[nodiscard]] static std::uint32_t stream_pages(const page_format&, cache_plan& p) noexcept {
        return Types::plain_format_of(p.device_page, p.sizes).pages_for(p.sizes.max_tokens);
    }
    /// The least number of frames with which a pool can work at all.
    [[gnu::cold]] static void size_frames(const page_format& format, const clusterer_state& cluster,
                                          cache_plan& p) noexcept {
        const std::uint32_t rows = unit_growth<Types>::scratch::rows(p.sizes, p.max_entries);
        const std::uint32_t working = 2 * p.unit_pages + rows / format.rows + 6;
        using builder = prompt_builder<Types>;
        const std::uint32_t page_rows =
            builder::page_rows(format, Types::plain_format_of(p.device_page, p.sizes));
        const std::size_t arena =
            builder::least_bytes(p.model, p.sizes, page_rows, p.unit_pages, cluster, format.page_bytes);
        const std::size_t lent = std::size_t{p.arenas} * format.page_bytes; // of one frame of each arena
        p.least_frames =
            std::max(p.open_pages + working, static_cast<std::uint32_t>((arena + lent - 1) / lent));
    }
    /// Frames of a pool that an io_batch may take: half, as others hold what is attended. Sets the plan's fewest frames.
    [[nodiscard]] static std::uint32_t divide_frames(cache_plan& p, std::uint32_t frames) noexcept {
        p.fewest_frames = p.least_frames;
        return frames / 2;
    }
    /// Bytes of tables of a pool.
    [[nodiscard]] static std::size_t pool_tables(const cache_plan& p) noexcept {
        return Types::pool::table_bytes(p.frames + p.borrowed_frames, p.unit_pages, p.open_pages,
                                        p.sizes.running);
    }
};

/// Fixed groups: runs of a lane's stream, in slots; other frames carry pages (group_store.hpp).
template <class Types> struct group_sizes {
    using clusterer_state = typename Types::clusterer_state;
    using store = group_store<Types>;

    [[nodiscard, gnu::cold]] static status size_lane(const clusterer_state&, const page_format& format,
                                                     std::uint32_t, cache_plan& p) noexcept {
        lane_sizes& s = p.sizes;
        constexpr std::uint32_t granule = Types::compressor::granule;
        if (p.max_entries % granule != 0)
            return status::failure(errc::invalid_argument,
                                   "clusterer: groups of %u entries; valid: multiples of %u, which the "
                                   "compressor encodes together",
                                   p.max_entries, granule);
        if (Types::values_only)
            s.key_records = std::size_t{s.max_units} * (p.max_entries / granule) * s.record.key;
        if (Types::means) s.centroid_bits = 32; // a group has no page to keep an exact sum beside
        p.unit_pages = Types::fields * (format.pages_for(p.max_entries) + 1); // a group may begin in mid-page
        p.buffer_limit = 1;
        s.buffer = 0;
        s.spare = p.max_entries;
        return {};
    }
    /// Pages of a run of a lane's stream.
    [[nodiscard]] static std::uint32_t run_pages(const cache_plan&) noexcept { return 8; }
    /// Pages of all runs that a lane may have. Sets how many pages a stream of ragged records lists.
    [[nodiscard]] static std::uint32_t stream_pages(const page_format& format, cache_plan& p) noexcept {
        const std::uint32_t pages = format.pages_for(p.sizes.max_tokens);
        p.sizes.stream_pages = p.sizes.ragged ? pages + 1 : 0;
        return store::stream_pages(pages);
    }
    [[gnu::cold]] static void size_frames(const page_format& format, const clusterer_state&,
                                          cache_plan& p) noexcept {
        p.spare_pages = Types::fields * (format.pages_for(p.max_entries) + 1);
        if (Types::split_pages) { // a run of keys can be read at once whatever is read ahead
            p.spare_pages = std::max(p.spare_pages, store::split_run);
            p.gap_pages = std::min(p.gap_pages, store::split_run - 1);
        }
        p.open_pages = Types::fields * p.pool_lanes + p.spare_pages;
        p.least_frames = p.open_pages + p.unit_pages + 2 + least_slot_frames(p);
    }
    /// A quarter of a pool carries pages, as far as a step can use them, the rest are slots.
    [[nodiscard]] static std::uint32_t divide_frames(cache_plan& p, std::uint32_t frames) noexcept {
        const auto format = Types::page_format_of(p.device_page, p.sizes);
        const std::uint32_t of_step =
            2 * p.shard_lanes * p.unit_pages * (p.attend_tokens / p.max_entries + 1);
        p.page_frames = p.open_pages + std::clamp(frames / 4, p.unit_pages + 1, of_step);
        p.page_frames = std::min(p.page_frames, frames - least_slot_frames(p));
        p.slots = static_cast<std::uint32_t>(std::size_t{frames - p.page_frames} * format.page_bytes /
                                             Types::slot_frame_bytes(p.sizes, p.max_entries));
        p.fewest_frames = p.page_frames + least_slot_frames(p);
        return p.page_frames;
    }
    [[nodiscard]] static std::size_t pool_tables(const cache_plan& p) noexcept {
        return Types::pool::table_bytes(p.slots, Types::slot_frames(p.sizes, p.max_entries), 1, 0) +
               Types::pool::table_bytes(p.page_frames, 1, p.page_frames, 0) + 64;
    }

  private:
    /// Frames' worth of slots: two groups, and what index and codec borrow while they fit a lane.
    [[nodiscard]] static std::uint32_t least_slot_frames(const cache_plan& p) noexcept {
        const auto format = Types::page_format_of(p.device_page, p.sizes);
        const std::size_t two = 2 * std::size_t{Types::slot_frames(p.sizes, p.max_entries)} *
                                Types::slot_frame_bytes(p.sizes, p.max_entries);
        const std::size_t bytes = std::max(two, p.fit_bytes) + two; // the last slot may be cut off
        return static_cast<std::uint32_t>((bytes + format.page_bytes - 1) / format.page_bytes);
    }
};

template <class Types> class unit_sizes {
  public:
    using types = Types;
    using runner = step_runner<types>;
    using kind = std::conditional_t<types::sequential, group_sizes<types>, cluster_sizes<types>>;

    /// Storage beyond which decode adds no units, as a multiple of the raw entries.
    static constexpr double storage_factor = 2.5;
    /// Of one shard: the last number stands for no page.
    static constexpr double most_pages = 4294967294.0;

    /// Settles all of the plan but the number of frames. Sinks and window are there already.
    /// Errors: invalid_argument where storage would need more pages than their numbers can count.
    template <class Config>
    [[nodiscard, gnu::cold]] static status settle(const Config& c, const geometry& g, cache_plan& p,
                                                  std::uint32_t& page_bytes) {
        const typename types::clusterer_state cluster(c.clusterer, g);
        lane_sizes& s = p.sizes;
        const auto format = types::page_format_of(p.device_page, s);
        page_bytes = format.page_bytes;
        if (types::virtualised) {
            p.pool_layers = std::max<std::uint32_t>(1, p.model.layers);
            p.arenas = std::min<std::uint32_t>(2, p.pool_layers);
        }
        if constexpr (requires { c.schedule.hot_steps; }) {
            // Sequences that share a pool take their steps one after the other.
            const std::uint64_t steps =
                std::uint64_t{c.schedule.hot_steps} * (c.share ? p.shard_sequences : 1);
            p.hot_steps = static_cast<std::uint32_t>(std::min<std::uint64_t>(steps, none));
        }
        p.pools = (c.share ? 1 : p.shard_sequences) * p.pool_layers;
        p.gap_pages = c.read_through_pages;
        p.shard_lanes = p.division.lanes_of(p.model.lanes(), 0);
        if (status fits = size_units(cluster, format, c.centroid_bits, p); !fits) return fits;
        size_policies(c, g, p);
        const std::uint64_t may_be_chosen = std::uint64_t{chooser<types>::choosers(p.model)} *
                                            p.attend_tokens *
                                            detail::most_of_budget<typename types::selector>();
        p.chosen_per_lane = types::selector::takes_everything || may_be_chosen > s.max_units
                                ? s.max_units
                                : static_cast<std::uint32_t>(may_be_chosen);
        p.chosen_per_lane = std::max<std::uint32_t>(1, p.chosen_per_lane);
        if constexpr (requires { c.schedule.true_layers; }) p.true_layers = c.schedule.true_layers;
        p.prefetches = std::min<std::uint32_t>(16, p.max_sequences + 1);
        const std::uint32_t pool_lanes =
            p.shard_lanes * (p.pool_layers > 1 ? 1 : p.model.layers) * (c.share ? p.shard_sequences : 1);
        p.pool_lanes = pool_lanes;
        if (p.pool_layers > 1)
            if (status fits = size_representatives(page_bytes, p); !fits) return fits;
        p.open_pages = c.open_pages == automatic ? 2 * pool_lanes : c.open_pages;
        kind::size_frames(format, cluster, p);
        // More frames than the units of all lanes can fill are no use.
        const std::size_t per_lane = std::size_t{s.max_tokens} * p.unit_pages / p.max_entries + s.max_units;
        p.most_frames = pool_lanes * per_lane + p.least_frames;
        if (!types::sequential && !types::virtualised)
            if (c.lend_tables && page_bytes % system_page() == 0) size_lending(page_bytes, p);
        return {};
    }

    /// Adds the bytes of every part when each pool has `frames` frames.
    [[gnu::cold]] static void measure(cache_plan& p, std::uint32_t frames, std::uint32_t page_bytes,
                                      memory_parts& m) {
        size_io_batches(p, frames);
        p.frames = frames;
        p.borrowed_frames = static_cast<std::uint32_t>(std::min<std::size_t>(
            p.most_borrowed, p.most_frames - std::min<std::size_t>(p.most_frames, frames)));
        if (p.lent_page > page_bytes)
            p.borrowed_frames -= p.borrowed_frames % static_cast<std::uint32_t>(p.lent_page / page_bytes);
        const std::size_t lanes = std::size_t{p.max_sequences} * p.model.layers * p.model.lanes();
        using lane = typename types::lane;
        const auto at = lane::offsets::make(p.sizes);
        m.metadata += lanes * at.metadata_bytes + p.regions() * sizeof(lane_region<lane>) +
                      (lanes * sizeof(lane_place<lane>) + 63) / 64 * 64;
        m.buffers += lanes * at.buffer_bytes;
        m.index += lanes * at.index_bytes;
        if (p.pool_layers > 1) {
            m.index += p.division.shards * p.lent_representatives() * page_bytes;
            m.metadata += lanes * sizeof(std::byte*); // where a lane's are at the moment
        } else {
            m.index += lanes * at.representative_bytes;
        }
        m.window += lanes * at.window_bytes;
        carver metadata, scratch;
        static_cast<void>(shard_memory<types>::take(p, metadata, scratch));
        const std::size_t shards = p.division.shards;
        m.metadata += shards * (metadata.used() + p.pools * (kind::pool_tables(p) + 64));
        // The device allocates its rings itself; as many bytes of the reservation stay untouched for them.
        constexpr std::size_t ring_bytes = 112;
        m.metadata += shards * p.max_in_flight * ring_bytes;
        constexpr std::size_t slot_bytes = 192; // of one more request that the kernel may have at once
        m.metadata += shards * (p.io_depth() - cache_plan::usual_depth) * slot_bytes;
        m.scratch += shards * (scratch.used() + p.device_page + 64);
        const std::size_t tails =
            p.pool_layers > 1 ? p.parked_frames() : p.pools * std::size_t{std::min(frames, p.open_pages)};
        m.tails += shards * tails * page_bytes;
        m.frames += shards * (p.memory_frames() - tails - p.lent_representatives()) * page_bytes;
    }

  private:
    /// What index and estimator keep for each unit, and what they need while they work.
    template <class Config>
    [[gnu::cold]] static void size_policies(const Config& c, const geometry& g, cache_plan& p) noexcept {
        const typename types::index_state index(c.index, g);
        const typename types::estimator_state rest(c.estimator, g);
        const summary_shape shape = p.model.summaries(p.max_entries);
        summaries<types>::size(index, rest, shape, p.sizes);
        p.index_floats = scratch_floats_of(index, shape, p.sizes.max_units);
        p.rest_floats = scratch_floats_of(rest, shape, p.sizes.max_units);
        p.fit_bytes = p.sizes.codec_fit;
        if constexpr (fits_first_keys<typename types::index>)
            p.fit_bytes = std::max(p.fit_bytes, index.fit_scratch_bytes(shape, p.sizes.max_tokens));
    }

    /// What the tables of a pool's lanes can lend while they are half full, as prompts leave them about.
    [[gnu::cold]] static void size_lending(std::uint32_t page_bytes, cache_plan& p) noexcept {
        using lane = typename types::lane;
        using region = lane_region<lane>;
        const std::size_t lanes = std::size_t{p.shard_lanes} * p.model.layers,
                          all = lanes * region::stride(lane::offsets::make(p.sizes), false),
                          half = lanes *
                                 region::stride(lane::offsets::make(p.sizes, p.sizes.max_units / 2), false);
        p.lent_page = region::page_for(all);
        if (p.lent_page % page_bytes != 0) p.lent_page = system_page();
        const std::size_t lent =
            (all - half) / p.lent_page * p.lent_page / page_bytes * (p.pool_lanes / lanes);
        p.most_borrowed = static_cast<std::uint32_t>(std::min<std::size_t>(lent, 1U << 30));
    }
    /// Pages for what a pool's lanes know of their units.
    [[nodiscard, gnu::cold]] static status size_representatives(std::uint32_t page_bytes,
                                                                cache_plan& p) noexcept {
        const std::size_t bytes = types::lane::offsets::make(p.sizes).representative_bytes * p.pool_lanes;
        const std::size_t pages = std::max<std::size_t>(1, (bytes + page_bytes - 1) / page_bytes);
        const double all = p.file_pages + static_cast<double>(p.pools) * static_cast<double>(pages);
        if (all > most_pages) return too_many_pages(p, all);
        p.representative_pages = static_cast<std::uint32_t>(pages);
        return {};
    }
    [[nodiscard, gnu::cold]] static status too_many_pages(const cache_plan& p, double pages) noexcept {
        return status::failure(errc::invalid_argument,
                               "max_tokens is %u with max_sequences %u, which may need %.0f pages of "
                               "storage a shard; valid: what needs up to %.0f, or more shards",
                               p.sizes.max_tokens, p.max_sequences, pages, most_pages);
    }

    [[nodiscard, gnu::cold]] static status size_units(const typename types::clusterer_state& cluster,
                                                      const page_format& format, std::uint32_t centroid_bits,
                                                      cache_plan& p) noexcept {
        lane_sizes& s = p.sizes;
        p.max_entries = cluster.max_entries();
        p.unit_pages = format.pages_for(p.max_entries);
        p.buffer_limit = cluster.pending_entries();
        s.buffer = p.buffer_limit + 2;
        s.max_units = cluster.max_units(s.max_tokens);
        s.ragged = types::compressor::ragged;
        s.weights = types::weighted;
        s.positions = types::compressor::domain == key_domain::pre_rope;
        s.window_positions = types::keeps_positions;
        if (status fits = kind::size_lane(cluster, format, centroid_bits, p); !fits) return fits;
        const std::uint32_t run_pages = kind::run_pages(p);
        s.runs = (kind::stream_pages(format, p) + run_pages - 1) / run_pages + 1;
        return size_file(format, run_pages, p);
    }
    /// Pages of storage of a shard.
    [[nodiscard, gnu::cold]] static status size_file(const page_format& format, std::uint32_t run_pages,
                                                     cache_plan& p) noexcept {
        const lane_sizes& s = p.sizes;
        const double lanes = static_cast<double>(p.shard_lanes) * p.model.layers * p.shard_sequences;
        const double grown = storage_factor * format.pages_for(s.max_tokens) + 2 * run_pages;
        // A prompt may fall into as many clusters as the table has, each in a place for the largest one.
        const double prompt = types::sequential
                                  ? static_cast<double>(s.runs) * run_pages
                                  : static_cast<double>(s.max_units) * p.unit_pages + 2 * run_pages;
        // While one layer's prompt is placed, its staged chunks are still held. (A stream is its own stage.)
        const double staged =
            types::sequential ? 0.0 : static_cast<double>(p.shard_lanes) * s.runs * run_pages;
        const double file =
            (types::sequential ? prompt : std::max(grown, prompt)) * lanes + staged + run_pages;
        if (std::max(file, grown * lanes) > most_pages)
            return too_many_pages(p, std::max(file, grown * lanes));
        p.file_pages = static_cast<std::uint32_t>(file);
        const double most = fills_file<typename types::layout> ? std::max(grown, prompt) : grown;
        p.grow_pages = static_cast<std::uint32_t>(most * lanes); // without `staged`, which decode cannot have
        return {};
    }

    static void size_io_batches(cache_plan& p, std::uint32_t frames) noexcept {
        p.io_batch_pages = p.io_batch_pages_for(kind::divide_frames(p, frames));
        p.max_in_flight =
            p.io_batch_pages *
                (runner::store::step_io_batches + p.prefetches + runner::store::write_io_batches) +
            p.page_in_batches() * frames + p.representative_io_batches() * p.representative_pages;
        p.batch_items = std::clamp<std::uint32_t>(p.io_batch_pages, 16, 128);
    }
};

}} // namespace kvtl::v0
