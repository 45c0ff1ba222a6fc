// From a configuration to the sizes of everything: what memory each part takes, how much is left for frames
// and rows, whether the bound holds.
//
// What:   open() checks the numbers that all presets share, size_rows.hpp settles what retention keeps,
//         size_units.hpp what lies on storage, row_plan.hpp what is attended whole. Of the memory beyond the least, frames
//         of units, or blocks of records, get all; rows that wait for a prompt's last chunk come first, up to half of
//         memory_bytes.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/config_checks.hpp>
#include <kvtl/core/plan/knobs.hpp>
#include <kvtl/core/plan/row_plan.hpp>
#include <kvtl/core/plan/size_rows.hpp>
#include <kvtl/core/plan/size_units.hpp>
#include <kvtl/core/save/branches.hpp>
#include <kvtl/core/step/row_stage.hpp>
#include <kvtl/statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

/// A plan and the bytes of everything in it.
struct sized_cache {
    cache_plan plan;
    row_plan row_layers;
    memory_parts parts;
    std::size_t calibration_bytes = 0;
    std::size_t fixed_bytes = 0; ///< everything but rows, records and frames, rounded up to pages
    std::size_t pool_bytes = 0;  ///< of the blocks of rows that retention keeps
    std::size_t least_bytes = 0; ///< memory_bytes below which there is no plan
    std::uint32_t page_bytes = 4096;

    /// Of the rows' blocks, rounded up to pages.
    [[nodiscard]] std::size_t row_bytes() const noexcept { return whole_pages(pool_bytes, plan.device_page); }
    /// Of one shard's records.
    [[nodiscard]] std::size_t chain_bytes() const noexcept {
        return std::size_t{row_layers.blocks} * row_layers.format().page_bytes;
    }
    /// Of all of them, rounded up to pages.
    [[nodiscard]] std::size_t record_bytes() const noexcept {
        return whole_pages(plan.division.shards * chain_bytes(), plan.device_page);
    }
    [[nodiscard]] std::size_t frame_bytes() const noexcept {
        return std::size_t{plan.division.shards} * plan.memory_frames() * page_bytes;
    }
    /// Of addresses only: what lies there is memory of tables (frame_pool.hpp).
    [[nodiscard]] std::size_t borrowed_bytes() const noexcept { return plan.borrowed_pages() * page_bytes; }
    /// There is a plan for so many bytes, of which what is known of units takes at most half.
    [[nodiscard]] bool index_fits(std::size_t memory_bytes) const noexcept {
        return least_bytes <= memory_bytes && parts.index + parts.calibration <= memory_bytes / 2;
    }
    [[nodiscard]] std::size_t bytes() const noexcept {
        return fixed_bytes + row_bytes() + record_bytes() + frame_bytes();
    }
    /// That the file may take, its superblock included. Shards add to it in whole steps.
    [[nodiscard, gnu::cold]] std::uint64_t file_bytes() const noexcept {
        const std::uint64_t shards = plan.division.shards;
        const std::uint64_t step =
            std::uint64_t{file_map::step_pages_for(plan.grow_pages, page_bytes)} * page_bytes * shards;
        const auto whole_steps = [&](std::uint64_t pages) {
            return (pages * page_bytes * shards + step - 1) / step * step;
        };
        return page_bytes + whole_steps(plan.file_pages) +
               whole_steps(plan.storage_pages() - plan.file_pages) + step;
    }

    /// All parts are there but what rounding adds: settles fixed_bytes. device_pages: to begin transfers at whole ones.
    [[gnu::cold]] void round_up(std::uint32_t device_pages, std::size_t max_tokens) noexcept {
        const std::size_t pages = std::size_t{plan.division.shards} * plan.lent_representatives(),
                          lent = parts.tails + parts.frames + pages * page_bytes;
        fixed_bytes = whole_pages(parts.total() - lent, plan.device_page) + device_pages * plan.device_page;
        parts.metadata += bytes() - parts.total();
        parts.raw_cache = max_tokens * plan.max_sequences * (plan.model.layers + row_layers.sliding) *
                          plan.model.kv_heads * plan.model.dim * 4;
    }
};
/// Presets that keep all entries share the type.
template <class RowPlan> struct sized_plan : sized_cache { RowPlan rows; };

template <class Preset> class planner {
  public:
    using types = cache_types<Preset>;
    using config = cache_config<Preset>;
    using kept_rows_plan = std::conditional_t<types::drops, row_sizes<types>, no_row_sizes>;
    using answer = sized_plan<kept_rows_plan>;

    /// Rows that the codec scores; int where it rounds nothing.
    template <class Codec> [[nodiscard]] static constexpr auto rows_of() noexcept {
        if constexpr (requires { typename Codec::rounded_type; })
            return std::type_identity<typename Codec::rounded_type>{};
        else if constexpr (requires(const Codec& c) { c.inner(); })
            return rows_of<std::remove_cvref_t<decltype(std::declval<const Codec&>().inner())>>();
        else
            return std::type_identity<int>{};
    }
    using codec_rows = typename decltype(rows_of<typename types::codec>())::type;
    template <class E> [[nodiscard]] static constexpr bool rounds() noexcept {
        return std::is_same_v<E, bf16> || std::is_same_v<E, std::int8_t>;
    }
    template <class E> [[nodiscard]] static constexpr bool has_products() noexcept {
        if constexpr (rounds<E>())
            return simd::has_relaxed_products<simd::default_arch, E>;
        else
            return false;
    }

    static constexpr bool evicts_by_mass = [] { // which takes logits (core/step/decode_eviction.hpp)
        if constexpr (types::drops && !types::hands_over)
            return types::reads_mass;
        else
            return false;
    }();

    /// Of attention, as the config asks and the processor can: "exact", "relaxed", or what is missing. Rows in memory and stored
    /// ones may differ; one kind with relaxed products suffices.
    [[nodiscard, gnu::cold]] static std::string_view products(const config& c, std::uint32_t dim) noexcept {
        using plain_rows = typename types::element_type;
        if (c.precision == precision::exact) return "exact";
        if (!simd::relaxed_products_of(dim)) return "exact: head_dim has no relaxed products";
        if constexpr (evicts_by_mass)
            if (c.attention.windows.empty()) return "exact: the preset evicts by attention mass";
        if constexpr (has_products<plain_rows>() || has_products<codec_rows>())
            return "relaxed";
        else if constexpr (rounds<plain_rows>())
            return simd::no_relaxed_products<plain_rows>;
        else if constexpr (rounds<codec_rows>())
            return simd::no_relaxed_products<codec_rows>;
        else
            return "exact: neither bf16 rows nor int8_row codes";
    }

    /// As much as memory_bytes allows.
    [[nodiscard, gnu::cold]] static result<answer>
    plan(const config& c, const geometry& g, std::uint32_t device_page, std::size_t calibration_bytes = 0) {
        auto a = least(c, g, device_page, calibration_bytes);
        if (!a) return a.error();
        if (a->least_bytes > c.memory_bytes) return too_small(c, g, *a, device_page, calibration_bytes);
        grow(c, *a);
        return a;
    }

    /// With the least memory: what memory_bytes is does not matter, as long as it is not 0.
    [[nodiscard, gnu::cold]] static result<answer>
    least(const config& c, const geometry& g, std::uint32_t device_page, std::size_t calibration_bytes = 0) {
        if (status s = check(c, g); !s) return s;
        answer a;
        a.calibration_bytes = (calibration_bytes + 63) / 64 * 64;
        cache_plan& p = a.plan;
        const auto max_tokens = static_cast<std::uint32_t>(c.max_tokens);
        auto row_layers = row_plan::make(c.attention.windows, g.layers(), max_tokens, rewindable(c),
                                         calibration_bytes != 0);
        if (!row_layers) return row_layers.error();
        a.row_layers = *std::move(row_layers);
        p.model = {g.layers() - a.row_layers.sliding,
                   g.kv_heads(),
                   g.group(),
                   g.head_dim(),
                   types::unit_of == granularity::layer ? g.kv_heads() : 1,
                   {g.logit_scale(), c.attention.softcap, products(c, g.head_dim()) == "relaxed"}};
        p.device_page = device_page;
        p.max_sequences = static_cast<std::uint32_t>(c.max_sequences);
        p.division.by_sequence = sequences_have_one_shard || c.shard_by == division::sequences;
        p.division.shards =
            p.division.by_sequence ? std::min<std::uint32_t>(c.shards, p.max_sequences) : c.shards;
        p.shard_sequences = p.division.sequences(p.max_sequences);
        p.attend_tokens =
            static_cast<std::uint32_t>(std::min<std::size_t>(c.attend_tokens, c.max_tokens + 1));
        p.sizes.attend_tokens = p.attend_tokens;
        p.time_phases = c.time_phases;
        p.io_timeout_ms = c.io_timeout_ms;
        p.threads = c.threads;
        p.sizes.width = p.model.width();
        const record_shape stored{p.model.lane_heads, p.model.dim};
        if constexpr (requires { types::codec::check(c.compressor, stored); })
            if (status s = types::codec::check(c.compressor, stored); !s) return s;
        typename types::codec codec(c.compressor, stored);
        p.sizes.record = types::record_bytes_of(codec);
        p.sizes.max_tokens = static_cast<std::uint32_t>(c.max_tokens);
        if constexpr (detail::codec_shares<typename types::compressor>())
            p.codec_shared_bytes = codec.shared_bytes(p.sizes.max_tokens);
        if constexpr (detail::codec_fits_lanes<typename types::compressor>()) {
            p.sizes.codec_lane = codec.lane_bytes();
            p.sizes.codec_fit = codec.fit_scratch_bytes(p.sizes.max_tokens);
        }
        p.sizes.sinks = std::min(c.sink_tokens, p.sizes.max_tokens);
        p.sizes.window = std::min(c.window_tokens, p.sizes.max_tokens);
        if constexpr (types::drops)
            if (status s = a.rows.settle(c, g, p); !s) return s;
        if constexpr (types::retrieves) {
            if constexpr (types::drops)
                if (c.window_tokens == automatic) {
                    p.sizes.window = a.rows.plan.window;
                    const std::uint32_t unit = unit_tokens(c);
                    if (nothing_to_choose(c.attend_tokens, c.max_tokens, p.sizes.sinks, p.sizes.window, unit))
                        return status::failure(
                            errc::invalid_argument,
                            "window_tokens is automatic, here %u; valid where what is kept is chosen among: "
                            "less than attend_tokens - sink_tokens - a unit = %zu - %u - %u",
                            p.sizes.window, c.attend_tokens, p.sizes.sinks, unit);
                }
            if constexpr (types::drops) p.moving_rows = rows_that_move(a.rows.plan);
            if (status s = unit_sizes<types>::settle(c, g, p, a.page_bytes); !s) return s;
        }
        if constexpr (types::in_chains)
            if (status s = keep_all(codec, a); !s) return s;
        std::uint32_t blocks = 0;
        if constexpr (types::drops) blocks = a.rows.least_blocks;
        a.least_bytes = measure(c, a, blocks, frame_limits(c, a).first);
        return a;
    }

  private:
    static_assert(most_read_through_pages == io_batch::max_request_pages);

    /// Heads that are decided together, or lie in one unit, have one shard.
    static constexpr bool sequences_have_one_shard = [] {
        if constexpr (types::retrieves && (calibrates_on_prompts<typename types::selector> ||
                                           goes_by_errors<typename types::selector>))
            return true;
        else if constexpr (types::drops)
            return types::decides_together || types::unit_of == granularity::layer;
        else
            return types::unit_of == granularity::layer;
    }();

    /// Entries of the smallest unit that can be chosen: those of a group, unless a part of it can be.
    [[nodiscard]] static std::uint32_t unit_tokens(const config& c) noexcept {
        if constexpr (types::retrieves)
            if constexpr (requires { c.clusterer.group_tokens; } &&
                          !truncates_units<typename types::selector>)
                return std::max(1U, c.clusterer.group_tokens);
        static_cast<void>(c);
        return 1;
    }

    [[gnu::cold]] static status check(const config& c, const geometry& g) noexcept {
        const config_limits limits{.name = preset_name<Preset>().data(),
                                   .kv_heads = g.kv_heads(),
                                   .one_shard = sequences_have_one_shard,
                                   .drops = types::drops,
                                   .retrieves = types::retrieves,
                                   .chooses = types::retrieves && !types::selector::takes_everything,
                                   .unit_tokens = unit_tokens(c),
                                   .by_entry = types::sequential,
                                   .window_tokens = Preset::window_tokens,
                                   .sink_tokens = Preset::sink_tokens};
        if (status s = check_config(c, limits); !s) return s;
        if (const std::string_view of = products(c, g.head_dim());
            c.precision == precision::relaxed && of != "relaxed")
            return status::failure(
                errc::invalid_argument,
                "precision is relaxed with preset %s and head_dim %u, and products are %s; "
                "valid: exact, or relaxed_if_available",
                preset_name<Preset>().data(), g.head_dim(), of.data());
        if (status s = check_extents(c.max_tokens, c.max_sequences, g.extents()); !s) return s;
        if constexpr (requires { types::index_state::check(c.index); })
            if (status s = types::index_state::check(c.index); !s) return s;
        if constexpr (requires { types::selector_state::check(c.selector); })
            if (status s = types::selector_state::check(c.selector); !s) return s;
        if constexpr (requires { types::estimator_state::check(c.estimator); })
            if (status s = types::estimator_state::check(c.estimator); !s) return s;
        if constexpr (requires { types::schedule::check(c.schedule); })
            if (status s = types::schedule::check(c.schedule); !s) return s;
        if constexpr (types::retrieves)
            if (status s = types::clusterer_state::check(c.clusterer); !s) return s;
        if constexpr (requires {
                          types::codec::check_units(c.compressor, c.clusterer.group_tokens, c.sink_tokens);
                      })
            return types::codec::check_units(c.compressor, c.clusterer.group_tokens, c.sink_tokens);
        return {};
    }

    /// An index or a codec that fits something to a lane's first keys shall see all of them.
    [[nodiscard]] static std::uint32_t rows_that_move(const retention_plan& r) noexcept {
        constexpr std::uint32_t some = 64;
        if (!types::sequential) return 0;
        return types::fits_first_rows ? r.prefill_tokens : std::min(some, r.prefill_tokens);
    }

    /// Layers that do not slide keep everything in rows and records. Records of one size have room for max_tokens.
    [[nodiscard, gnu::cold]] static status keep_all(const typename types::codec& codec, answer& a) {
        const cache_plan& p = a.plan;
        row_plan& r = a.row_layers;
        std::uint32_t window = p.sizes.window, promised = p.sizes.max_tokens;
        if constexpr (types::drops) {
            const retention_plan& kept = a.rows.plan;
            window = kept.window;
            promised = kept.keep + p.sizes.max_tokens - kept.prefill_tokens;
        }
        r.keep_all(p.model.layers, p.sizes.sinks, window, p.sizes.max_tokens);
        r.lane_heads = p.model.lane_heads;
        r.record = codec.bytes();
        r.ragged = types::compressor::ragged;
        const std::uint64_t lanes =
            std::uint64_t{p.shard_sequences} * p.model.layers * p.division.lanes_of(p.model.lanes(), 0);
        return r.size_records(lanes, r.ragged ? 0 : promised, p);
    }
    /// The least and the most of what grows when all else has what it needs: a pool's frames of units, or a shard's
    /// blocks of records.
    [[nodiscard]] static std::pair<std::uint32_t, std::size_t> frame_limits(const config& c,
                                                                            const answer& a) noexcept {
        if constexpr (types::in_chains) return {a.row_layers.least_blocks, a.row_layers.most_blocks};
        if constexpr (types::retrieves)
            return {
                a.plan.least_frames,
                std::min<std::size_t>(std::min(a.plan.most_frames, c.memory_bytes / a.page_bytes), 1U << 30)};
        return static_cast<void>(c), std::pair<std::uint32_t, std::size_t>{0, 0};
    }

    /// Settles every number for so many blocks of rows and frames of units (or blocks of records). Returns the bytes they
    /// take.
    [[gnu::cold]] static std::size_t measure(const config& c, answer& a, std::uint32_t blocks,
                                             std::uint32_t frames) {
        memory_parts& m = a.parts;
        m = {};
        m.calibration = a.calibration_bytes;
        if constexpr (types::drops) a.rows.measure(c, blocks, m), a.pool_bytes = a.rows.pool_bytes();
        if constexpr (types::retrieves) unit_sizes<types>::measure(a.plan, frames, a.page_bytes, m);
        if constexpr (types::in_chains) a.row_layers.blocks = frames;
        measure_row_layers(a);
        m.metadata += a.plan.division.shards * sequence_bytes(c, a.plan);
        a.round_up(types::retrieves ? 1 : 0, c.max_tokens);
        static_cast<void>(blocks), static_cast<void>(frames);
        return a.bytes();
    }

    /// Tokens that a layer that slides can give up: the window's, or a few where the window holds everything.
    [[nodiscard]] static std::uint32_t rewindable(const config& c) noexcept {
        constexpr std::uint32_t few = 32;
        const bool number = c.window_tokens != whole_sequence && c.window_tokens != automatic;
        return static_cast<std::uint32_t>(
            std::min<std::size_t>(number ? c.window_tokens : few, c.max_tokens));
    }

    /// Of what a shard keeps of each sequence, wherever it begins.
    [[nodiscard]] static std::size_t sequence_bytes(const config& c, const cache_plan& p) noexcept {
        carver tables;
        static_cast<void>(sequence_tables::take(tables, p.division, p.max_sequences, c.shape.layers));
        return tables.used() + 64;
    }
    /// Of rows that are attended whole and of what belongs to them, in all shards.
    [[gnu::cold]] static void measure_row_layers(answer& a) noexcept {
        const row_plan& r = a.row_layers;
        if (r.layers.empty()) return;
        carver metadata, window, scratch;
        for (std::uint32_t shard = 0; shard < a.plan.division.shards; ++shard) {
            static_cast<void>(metadata.take<layer_place>(r.places.size()));
            using stage = row_stage<typename types::element_type, typename types::chain_codec>;
            static_cast<void>(stage::memory::take(r, a.plan, shard, metadata, window, scratch));
        }
        constexpr std::size_t line = 64; // wherever they begin
        a.parts.metadata += metadata.used() + line * a.plan.division.shards;
        a.parts.window += window.used() + line * a.plan.division.shards;
        a.parts.scratch += scratch.used() + line * a.plan.division.shards;
        a.parts.frames += a.plan.division.shards * a.chain_bytes();
    }

    /// As many blocks and frames as the bound allows.
    [[gnu::cold]] static void grow(const config& c, answer& a) {
        std::uint32_t blocks = 0, most_blocks = 0;
        if constexpr (types::drops) blocks = a.rows.least_blocks, most_blocks = a.rows.most_blocks;
        const auto limits = frame_limits(c, a);
        std::uint32_t frames = limits.first;
        const std::size_t for_rows = types::retrieves || types::in_chains
                                         ? std::max(a.least_bytes, c.memory_bytes / 2)
                                         : c.memory_bytes;
        blocks = largest(blocks, most_blocks,
                         [&](std::uint32_t n) { return measure(c, a, n, frames) <= for_rows; });
        frames = largest(frames, static_cast<std::uint32_t>(limits.second),
                         [&](std::uint32_t n) { return measure(c, a, blocks, n) <= c.memory_bytes; });
        static_cast<void>(measure(c, a, blocks, frames));
    }
    /// The largest number from `low`, which fits, to `high` that does.
    template <class Fits>
    [[nodiscard]] static std::uint32_t largest(std::uint32_t low, std::uint32_t high, Fits&& fits) {
        while (low < high) {
            const std::uint32_t middle = low + (high - low + 1) / 2;
            if (fits(middle))
                low = middle;
            else
                high = middle - 1;
        }
        return low;
    }

    [[gnu::cold]] static error too_small(const config& c, const geometry& g, const answer& a,
                                         std::uint32_t device_page, std::size_t calibration_bytes) {
        memory_notes notes;
        notes.with = types::drops ? "this shape, max_tokens, keep_tokens and prefill_tokens"
                                  : "this shape and max_tokens";
        if (types::retrieves)
            notes.frames = " (at least; they also hold a segment of a prompt while it is organised)";
        else if (types::in_chains)
            notes.frames = types::drops
                               ? " (kept entries, at the peak before budgets are settled, and records)"
                               : " (records of entries that have left the window)";
        else
            notes.frames = " (kept entries, at the peak before budgets are settled)";
        if (a.plan.pool_layers > 1) {
            notes.frames = " (at least, of two layers; together they also hold a segment of a prompt)";
            notes.last = "\n  frames are what one layer needs and the next one that is read back meanwhile: "
                         "fewer with "
                         "lower max_tokens or more shards; tails are open_pages = " +
                         std::to_string(a.plan.open_pages) + " of each layer";
        }
        if constexpr (types::drops && !types::hands_over)
            if (!types::score::evicts_in_decode && c.max_tokens > a.rows.plan.prefill_tokens)
                notes.last = "\n  prefill_tokens is " + std::to_string(a.rows.plan.prefill_tokens) +
                             " and max_tokens " + std::to_string(c.max_tokens) +
                             ": frames hold the difference for decode in every head";
        best_knobs best(a.least_bytes, c.memory_bytes);
        for (std::uint8_t k = 0; k <= static_cast<std::uint8_t>(knob::size); ++k)
            try_knob(c, g, static_cast<knob>(k), a, device_page, calibration_bytes, best);
        std::string advice = best.text();
        if constexpr (requires(config other) { Preset::shrink(other); })
            advice += "; fitted(config) turns the size settings of this preset down to memory_bytes";
        return bound_too_small(preset_name<Preset>(), c.memory_bytes, a.bytes(), a.parts, notes, advice);
    }

    /// Turns a knob until memory_bytes is enough. Where a few turns are not, what one step leads to counts.
    [[gnu::cold]] static void try_knob(const config& c, const geometry& g, knob k, const answer& a,
                                       std::uint32_t device_page, std::size_t calibration_bytes,
                                       best_knobs& best) {
        config turned = c;
        answer now = a;
        std::string first;
        std::size_t first_least = 0;
        for (int i = 0; i < most_turns; ++i) {
            const std::string change = turn_one(turned, k, now, c);
            if (change.empty()) break;
            // Bases of a smaller rank would be smaller too: what is said is enough.
            auto planned = least(turned, g, device_page, calibration_bytes);
            if (!planned) break;
            now = *std::move(planned);
            if (first.empty()) first = change, first_least = now.least_bytes;
            if (now.least_bytes > c.memory_bytes) continue;
            best.tried(k, k == knob::size ? change : all_turns_of(first, change), now.least_bytes);
            return;
        }
        if (!first.empty()) best.tried(k, first, first_least);
    }

    /// Turns one knob of a config whose plan is `a`. Returns what has changed, or nothing; of the size knobs, what
    /// has changed since `original`.
    [[nodiscard, gnu::cold]] static std::string turn_one(config& c, knob k, const answer& a,
                                                         const config& original) {
        if (k == knob::size) return turn_size(c, original);
        knob_numbers n{c.max_tokens,    c.max_sequences, c.prefill_tokens, c.keep_tokens, c.attend_tokens,
                       c.window_tokens, c.sink_tokens,   c.open_pages,     c.shards};
        if constexpr (requires { c.clusterer.pending_entries; })
            n.pending_entries = &c.clusterer.pending_entries;
        if constexpr (types::drops) n.planned_keep = row_sizes<types>::keep_tokens(c);
        n.planned_tails = a.plan.open_pages;
        n.chooses = types::retrieves && !types::selector::takes_everything;
        n.unit_tokens = unit_tokens(c);
        return turn(k, n);
    }
    [[nodiscard, gnu::cold]] static std::string turn_size(config& c, config original) {
        const auto listed = [](config& of) {
            knob_listing all;
            all.add("clusterer", of.clusterer);
            all.add("index", of.index);
            all.add("compressor", of.compressor);
            return all;
        };
        if constexpr (requires { Preset::shrink(c); }) {
            if (!Preset::shrink(c)) return {};
        } else if constexpr (requires { c.clusterer.tokens_per_cluster; }) {
            c.clusterer.tokens_per_cluster *= 2;
        }
        return listed(c).instead_of(listed(original));
    }
};

}} // namespace kvtl::v0
