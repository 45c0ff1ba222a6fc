// From a configuration to the sizes of everything: what memory each part takes, how many frames are left,
// whether the bound holds.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/shard.hpp>
#include <kvtl/statistics.hpp>

#include <algorithm>
#include <cstdio>
#include <string>

namespace kvtl { inline namespace v0 {

template <class Preset, class Geometry> class planner {
  public:
    using types = cache_types<Preset, Geometry>;
    using config = cache_config<Preset>;
    using shard_type = shard<Preset, Geometry>;
    using runner = typename shard_type::runner;

    struct answer {
        cache_plan plan;
        memory_parts parts;
        std::size_t calibration_bytes = 0;
        std::size_t fixed_bytes = 0; ///< everything but the frames, rounded up to pages
        std::size_t least_bytes = 0; ///< memory_bytes below which there is no plan
        std::uint32_t page_bytes = 4096;

        [[nodiscard]] std::size_t frame_bytes() const noexcept {
            return std::size_t{plan.shards} * plan.pools * plan.frames * page_bytes;
        }
        [[nodiscard]] std::size_t bytes() const noexcept { return fixed_bytes + frame_bytes(); }
    };

    /// Storage beyond which decode adds no units, as a multiple of the raw entries.
    static constexpr double storage_factor = 2.5;

    [[nodiscard]] static result<answer> plan(const config& c, const Geometry& g, std::uint32_t device_page,
                                             std::size_t calibration_bytes = 0) {
        if (status s = check(c, g); !s) return s;
        answer a;
        a.calibration_bytes = (calibration_bytes + 63) / 64 * 64;
        cache_plan& p = a.plan;
        p.model = {g.layers(), g.kv_heads(), g.group(), g.head_dim(),
                   types::unit_of == granularity::layer ? g.kv_heads() : 1};
        p.device_page = device_page;
        p.max_sequences = static_cast<std::uint32_t>(c.max_sequences);
        p.shards = c.shards;
        p.pools = c.share ? 1 : p.max_sequences;
        p.gap_pages = c.read_through_pages;
        p.attend_tokens =
            static_cast<std::uint32_t>(std::min<std::size_t>(c.attend_tokens, c.max_tokens + 1));

        const typename types::clusterer_state cluster(c.clusterer, g);
        const auto max_tokens = static_cast<std::uint32_t>(c.max_tokens);
        lane_sizes& s = p.sizes;
        s.width = p.model.width();
        s.record = types::record_bytes_of(
            typename types::codec(c.compressor, record_shape{p.model.lane_heads, p.model.dim}));
        s.max_tokens = max_tokens;
        s.sinks = std::min(c.sink_tokens, max_tokens);
        s.window = std::min(c.window_tokens, max_tokens);
        p.window_only = s.window >= max_tokens && s.sinks == 0;
        const auto format = types::page_format_of(device_page, s);
        a.page_bytes = format.page_bytes;
        p.time_phases = c.time_phases;
        if (!p.window_only) size_units(c, cluster, format, p);
        size_policies(c, g, p);
        p.shard_lanes = (p.model.lanes() + p.shards - 1) / p.shards;
        if (types::unit_of == granularity::layer) p.shard_lanes = 1;
        const std::uint32_t choosers = chooser<types>::per_query ? p.model.group : 1;
        p.chosen_per_lane = types::selector::takes_everything
                                ? s.max_units
                                : std::min(s.max_units, choosers * p.attend_tokens);
        p.chosen_per_lane = std::max<std::uint32_t>(1, p.chosen_per_lane);
        p.prefetches = std::min<std::uint32_t>(16, p.max_sequences + 1);

        const std::uint32_t pool_lanes = p.shard_lanes * p.model.layers * (c.share ? p.max_sequences : 1);
        const std::uint32_t by_lane = pool_lanes * (types::layout::by_entry ? 1 : 2);
        p.tail_frames = p.window_only ? 0 : c.tail_frames == automatic ? by_lane : c.tail_frames;
        if (types::layout::by_entry && !p.window_only) p.tail_frames = std::max(p.tail_frames, pool_lanes);
        if (!p.window_only) size_frames(format, cluster, pool_lanes, p);
        return fit(c, a);
    }

  private:
    static status check(const config& c, const Geometry& g) noexcept {
        if (c.max_tokens == 0 || c.max_tokens > (1U << 26))
            return status::failure(errc::invalid_argument, "max_tokens is %zu; valid: 1 to %u", c.max_tokens,
                                   1U << 26);
        if (c.max_sequences == 0 || c.max_sequences > 4096)
            return status::failure(errc::invalid_argument, "max_sequences is %zu; valid: 1 to 4096",
                                   c.max_sequences);
        if (c.shards == 0 || c.shards > 256 ||
            (types::unit_of == granularity::head && c.shards > g.kv_heads()))
            return status::failure(errc::invalid_argument,
                                   "shards is %u; valid: 1 to the number of KV heads (%u)", c.shards,
                                   g.kv_heads());
        if (c.memory_bytes == 0)
            return status::failure(errc::invalid_argument, "memory_bytes is 0; valid: what the parts need");
        if (c.attend_tokens == 0)
            return status::failure(errc::invalid_argument, "attend_tokens is 0; valid: 1 and more");
        if (c.window_tokens == 0)
            return status::failure(errc::invalid_argument, "window_tokens is 0; valid: 1 and more");
        if (c.tail_frames == 0)
            return status::failure(errc::invalid_argument, "tail_frames is 0; valid: 1 and more");
        if (c.read_through_pages > flight::max_request_pages)
            return status::failure(errc::invalid_argument, "read_through_pages is %u; valid: 0 to %u",
                                   c.read_through_pages, flight::max_request_pages);
        if (c.share && c.max_sequences > 1 && types::layout::by_entry && c.window_tokens < c.max_tokens)
            return status::failure(
                errc::invalid_argument,
                "share is true; valid with this layout (entries in token order): false, as "
                "prompts of other sequences would cut a sequence's stream short");
        return types::clusterer_state::check(c.clusterer);
    }

    /// What index and remainder keep for each unit, and what they need while they work.
    static void size_policies(const config& c, const Geometry& g, cache_plan& p) noexcept {
        const typename types::index_state index(c.index, g);
        const typename types::remainder_state rest(c.remainder, g);
        const summary_shape shape = p.model.summaries(p.max_entries);
        if (p.window_only) return;
        summaries<types>::size(index, rest, shape, p.sizes);
        if constexpr (requires { index.scratch_floats(shape, p.sizes.max_units); })
            p.index_floats = index.scratch_floats(shape, p.sizes.max_units);
        if constexpr (requires { rest.scratch_floats(shape, p.sizes.max_units); })
            p.rest_floats = rest.scratch_floats(shape, p.sizes.max_units);
        if constexpr (detail::fits_lane<typename types::index>())
            p.fit_bytes = index.fit_scratch_bytes(shape, p.sizes.max_tokens);
    }

    /// The least number of frames with which a pool can work at all.
    static void size_frames(const page_format& format, const typename types::clusterer_state& cluster,
                            std::uint32_t pool_lanes, cache_plan& p) noexcept {
        const lane_sizes& s = p.sizes;
        if constexpr (types::sequential) {
            static_cast<void>(cluster);
            p.spare_pages = types::fields * (format.pages_for(p.max_entries) + 1);
            if constexpr (types::split_pages) { // a run of keys can be read at once whatever is read ahead
                constexpr std::uint32_t run = runner::store::split_run;
                p.spare_pages = std::max(p.spare_pages, run);
                p.gap_pages = std::min(p.gap_pages, run - 1);
            }
            p.tail_frames = types::fields * pool_lanes + p.spare_pages;
            p.least_frames = p.tail_frames + p.unit_pages + 2 + least_slot_frames(p);
        } else {
            const std::uint32_t rows = unit_growth<types>::scratch::rows(s, p.max_entries);
            const std::uint32_t working =
                2 * p.unit_pages + rows / format.rows + 6 +
                (types::layout::by_entry ? 2 * std::min(p.max_entries, s.max_tokens) : 0);
            const std::size_t arena =
                prompt_builder<types>::arena_bytes(p.model, s, s.max_tokens, cluster, format.page_bytes);
            p.least_frames =
                std::max(p.tail_frames + working,
                         static_cast<std::uint32_t>((arena + format.page_bytes - 1) / format.page_bytes));
        }
    }

    static void size_units(const config& c, const typename types::clusterer_state& cluster,
                           const page_format& format, cache_plan& p) noexcept {
        lane_sizes& s = p.sizes;
        p.max_entries = cluster.max_entries();
        p.unit_pages = format.pages_for(p.max_entries);
        p.buffer_limit = cluster.buffer_entries();
        s.buffer = p.buffer_limit + 2;
        s.max_units = cluster.max_units(s.max_tokens);
        if constexpr (!types::sequential)
            if constexpr (unit_growth<types>::batches) { // entries that wait are attended: not too many of
                                                         // them
                s.spare = cluster.batch_entries(p.attend_tokens / 4);
                s.batch_scratch = cluster.batch_scratch_bytes(s.spare, s.width);
            }
        s.means = types::means;
        s.ragged = types::compressor::ragged;
        s.weights = types::weighted;
        s.chains = types::layout::by_entry && !types::sequential;
        if constexpr (types::sequential) {
            // A group may begin in the middle of a page.
            p.unit_pages = types::fields * (format.pages_for(p.max_entries) + 1);
            p.buffer_limit = 1;
            s.buffer = 0;
            s.spare = p.max_entries;
        }
        // A stream that is interrupted goes on in a new page; a sequence is interrupted about once per layer.
        s.chain_entries = s.max_tokens + (types::sequential ? 0 : (p.model.layers + 8) * format.rows);
        const std::uint32_t run_pages = types::layout::by_entry ? 8 : 2 * p.unit_pages;
        std::uint32_t stream_pages = format.pages_for(s.chain_entries);
        if constexpr (types::sequential) {
            s.stream_pages = s.ragged ? stream_pages + 1 : 0;
            stream_pages = runner::store::stream_pages(stream_pages);
        } else if constexpr (!types::plain_records) { // chunks wait apart, as plain rows
            const std::uint32_t staged_pages =
                types::plain_format_of(p.device_page, s).pages_for(s.max_tokens);
            stream_pages = types::layout::by_entry ? stream_pages + staged_pages + run_pages : staged_pages;
        }
        s.runs = (stream_pages + run_pages - 1) / run_pages + 1;
        const std::uint32_t shard_lanes = (p.model.lanes() + p.shards - 1) / p.shards;
        const double lanes = static_cast<double>(shard_lanes) * p.model.layers * p.max_sequences;
        const double grown = storage_factor * format.pages_for(s.max_tokens) + 2 * run_pages;
        // A prompt may fall into as many clusters as the table has, each in a place for the largest one.
        const double prompt =
            types::layout::by_entry ? s.runs * run_pages : s.max_units * p.unit_pages + 2 * run_pages;
        p.grow_pages = static_cast<std::uint32_t>(grown * lanes);
        // While one layer's prompt is placed, its staged chunks are still held. (A stream is its own stage.)
        const double staged =
            types::layout::by_entry ? 0.0 : static_cast<double>(shard_lanes) * s.runs * run_pages;
        p.file_pages = static_cast<std::uint32_t>(
                           (types::layout::by_entry ? prompt : std::max(grown, prompt)) * lanes + staged) +
                       run_pages;
        static_cast<void>(c);
    }

    /// Bytes of every fixed part when each pool has `frames` frames.
    static memory_parts measure(answer& a, std::uint32_t frames) {
        const cache_plan& p = a.plan;
        memory_parts m;
        const std::size_t lanes = std::size_t{p.max_sequences} * p.model.layers * p.model.lanes();
        const auto at = types::lane::offsets::make(p.sizes);
        m.metadata = lanes * at.metadata_bytes;
        m.buffers = lanes * at.buffer_bytes;
        m.index = lanes * at.index_bytes + a.calibration_bytes;
        m.window = lanes * at.window_bytes;
        carver metadata, scratch;
        static_cast<void>(shard_type::memory::take(p, metadata, scratch));
        const std::size_t pool_tables =
            types::sequential
                ? types::pool::table_bytes(p.slots, 1) + types::pool::table_bytes(p.page_frames, 1) + 64
                : types::pool::table_bytes(frames, p.unit_pages);
        m.metadata += p.shards * (metadata.used() + p.pools * (pool_tables + 64));
        // The device allocates its rings itself; as many bytes of the reservation stay untouched for them.
        constexpr std::size_t ring_bytes = 112;
        m.metadata += std::size_t{p.shards} * p.max_in_flight * ring_bytes;
        m.scratch = p.shards * (scratch.used() + 4096 + 64);
        m.tails = std::size_t{p.shards} * p.pools * p.tail_frames * a.page_bytes;
        m.frames =
            std::size_t{p.shards} * p.pools * (frames - std::min(frames, p.tail_frames)) * a.page_bytes;
        return m;
    }

    /// As many frames as the bound allows.
    static result<answer> fit(const config& c, answer& a) {
        const auto with = [&a](std::uint32_t frames) {
            size_flights(a.plan, frames);
            const memory_parts m = measure(a, frames);
            a.fixed_bytes = (m.total() - m.tails - m.frames + 4095) / 4096 * 4096 + 4096;
            a.plan.frames = frames;
            a.parts = m;
            a.parts.metadata += a.fixed_bytes + a.frame_bytes() - m.total();
            return a.bytes();
        };
        const std::uint32_t least = a.plan.least_frames;
        a.least_bytes = with(least);
        if (a.least_bytes > c.memory_bytes) return too_small(c, a);
        // More frames than the units of all lanes can fill are no use.
        const cache_plan& p = a.plan;
        const std::size_t pool_lanes =
            std::size_t{p.shard_lanes} * p.model.layers * (c.share ? p.max_sequences : 1);
        const std::size_t per_lane =
            std::size_t{p.sizes.max_tokens} * p.unit_pages / p.max_entries + p.sizes.max_units;
        const std::size_t whole = pool_lanes * per_lane + a.plan.least_frames;
        auto low = least, high = static_cast<std::uint32_t>(std::clamp<std::size_t>(
                              std::min(whole, c.memory_bytes / a.page_bytes), least, 1U << 30));
        if (a.plan.window_only) high = least;
        while (low < high) {
            const std::uint32_t middle = low + (high - low + 1) / 2;
            if (with(middle) <= c.memory_bytes)
                low = middle;
            else
                high = middle - 1;
        }
        static_cast<void>(with(low));
        return a;
    }

    /// Flights large enough to keep a device busy, small enough to leave frames for the batch being attended.
    static void size_flights(cache_plan& p, std::uint32_t frames) noexcept {
        if (p.window_only) return;
        if constexpr (types::sequential) split_frames(p, frames);
        const std::uint32_t unit = types::layout::by_entry && !types::sequential
                                       ? std::max(p.unit_pages, p.max_entries)
                                       : p.unit_pages;
        p.flight_pages =
            std::max(unit + 1, std::min<std::uint32_t>(512, types::sequential ? p.page_frames : frames / 2));
        p.max_in_flight =
            p.flight_pages * (runner::store::step_flights + p.prefetches + runner::store::write_flights);
        p.batch_items = std::clamp<std::uint32_t>(p.flight_pages, 16, 128);
    }

    /// Frames' worth of slots: two groups, and what the index borrows while it fits a lane.
    [[nodiscard]] static std::uint32_t least_slot_frames(const cache_plan& p) noexcept {
        const auto format = types::page_format_of(p.device_page, p.sizes);
        const std::size_t two = 2 * std::size_t{types::slot_format_of(p.sizes, p.max_entries).page_bytes};
        const std::size_t bytes = std::max(two, p.fit_bytes) + two; // the last slot may be cut off
        return static_cast<std::uint32_t>((bytes + format.page_bytes - 1) / format.page_bytes);
    }

    /// Fixed groups: a quarter of a pool carries pages, as far as a step can use them, the rest are slots.
    static void split_frames(cache_plan& p, std::uint32_t frames) noexcept {
        const auto format = types::page_format_of(p.device_page, p.sizes);
        const auto slot = types::slot_format_of(p.sizes, p.max_entries);
        const std::uint32_t of_step =
            2 * p.shard_lanes * p.unit_pages * (p.attend_tokens / p.max_entries + 1);
        p.page_frames = p.tail_frames + std::clamp(frames / 4, p.unit_pages + 1, of_step);
        p.page_frames = std::min(p.page_frames, frames - least_slot_frames(p));
        p.slots = static_cast<std::uint32_t>(std::size_t{frames - p.page_frames} * format.page_bytes /
                                             slot.page_bytes);
    }

    static result<answer> too_small(const config& c, const answer& a) {
        const auto line = [](const char* name, std::size_t bytes, const char* note) {
            char text[160];
            std::snprintf(text, sizeof text, "\n  %-9s %12zu bytes%s", name, bytes, note);
            return std::string(text);
        };
        const memory_parts& m = a.parts;
        std::string text = "memory_bytes is " + std::to_string(c.memory_bytes) + "; preset " +
                           std::string(preset_name()) + " needs at least " + std::to_string(a.bytes()) +
                           " with this shape and max_tokens:";
        text += line("index", m.index, "");
        text += line("metadata", m.metadata, "");
        text += line("window", m.window, " (sinks included)");
        text += line("buffers", m.buffers, "");
        text += line("tails", m.tails, "");
        text += line("scratch", m.scratch, "");
        text +=
            line("frames", m.frames, " (at least; they also hold one lane's prompt while it is organised)");
        return error(errc::bound_too_small, text);
    }
    static std::string_view preset_name() noexcept {
        if constexpr (requires { Preset::name; })
            return Preset::name;
        else
            return "(unnamed)";
    }
};

}} // namespace kvtl::v0
