// From a configuration to the sizes of everything: what memory each part takes, how much is left for frames
// and rows, whether the bound holds.
//
// What:   open() checks the numbers that all presets share, size_rows.hpp settles what retention keeps,
//         size_units.hpp what lies on storage, row_plan.hpp what is attended whole. Of the memory beyond the least, frames
//         of units, or blocks of records, get all; rows that wait for a prompt's last chunk come first, up to half of
//         memory_bytes.
//         What policies do not decide is plain code (cache_planner), compiled once; planner<Policies> adds what they do.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/config_checks.hpp>
#include <kvtl/core/plan/knobs.hpp>
#include <kvtl/core/plan/row_plan.hpp>
#include <kvtl/core/plan/settings.hpp>
#include <kvtl/core/plan/size_rows.hpp>
#include <kvtl/core/plan/size_units.hpp>
#include <kvtl/core/save/branches.hpp>
#include <kvtl/core/step/row_stage.hpp>
#include <kvtl/statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
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
    std::uint32_t least_blocks = 0, most_blocks = 0; ///< of a shard's pool of kept rows
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
/// What a plan depends on beside the settings. Layers of the model count stores.
struct plan_inputs {
    geometry model;
    std::uint32_t device_page = 4096; ///< bytes
    std::size_t calibration_bytes = 0;
};

/// Plans one cache. plan() and least() settle `sizes`; the settings stay as they are.
class cache_planner {
  public:
    sized_cache sizes;

    virtual ~cache_planner() = default;

    /// As much as memory_bytes allows: the bytes of everything.
    [[nodiscard, gnu::cold]] result<std::size_t> plan(const plan_inputs& inputs) {
        const auto least_bytes = least(inputs);
        if (!least_bytes) return least_bytes;
        if (*least_bytes > settings().memory_bytes) return too_small();
        grow();
        return sizes.bytes();
    }

    /// With the least memory, and how much that is: what memory_bytes is does not matter, as long as it is not 0.
    [[nodiscard, gnu::cold]] result<std::size_t> least(const plan_inputs& inputs) {
        const common_settings& c = settings();
        inputs_ = inputs;
        const geometry& model = inputs_.model;
        if (status s = check(); !s) return s;
        sizes = {};
        sizes.calibration_bytes = (inputs_.calibration_bytes + 63) / 64 * 64;
        const auto max_tokens = static_cast<std::uint32_t>(c.max_tokens);
        auto row_layers = row_plan::make(c.attention.windows, model.layers(), max_tokens, rewindable(),
                                         inputs_.calibration_bytes != 0);
        if (!row_layers) return row_layers.error();
        sizes.row_layers = *std::move(row_layers);
        cache_plan& p = sizes.plan;
        p.model = {model.layers() - sizes.row_layers.sliding,
                   model.kv_heads(),
                   model.group(),
                   model.head_dim(),
                   facts.layer_units ? model.kv_heads() : 1,
                   {model.logit_scale(), c.attention.softcap, products() == "relaxed"}};
        p.device_page = inputs_.device_page;
        p.max_sequences = static_cast<std::uint32_t>(c.max_sequences);
        p.division.by_sequence = facts.one_shard || c.shard_by == division::sequences;
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
        p.sizes.max_tokens = max_tokens;
        p.sizes.sinks = std::min(c.sink_tokens, max_tokens);
        p.sizes.window = std::min(c.window_tokens, max_tokens);
        if (status s = settle(); !s) return s;
        sizes.least_bytes = measure(sizes.least_blocks, frame_limits().first);
        return sizes.least_bytes;
    }

    /// Of attention, as the config asks and the processor can: "exact", "relaxed", or what is missing. Rows in memory and stored
    /// ones may differ; one kind with relaxed products suffices.
    [[nodiscard, gnu::cold]] std::string_view products() const noexcept {
        const common_settings& c = settings();
        if (c.precision == precision::exact) return "exact";
        if (!simd::relaxed_products_of(inputs_.model.head_dim()))
            return "exact: head_dim has no relaxed products";
        if (facts.evicts_by_mass && c.attention.windows.empty())
            return "exact: the preset evicts by attention mass";
        return facts.products;
    }

    const policy_facts facts;

  protected:
    explicit cache_planner(const policy_facts& of) noexcept : facts(of) {}
    cache_planner(const cache_planner&) = default;

    /// Survivors of a prompt are chosen among: their window, and how many of them move at once.
    [[nodiscard, gnu::cold]] status settle_survivors() noexcept {
        const common_settings& c = settings();
        cache_plan& p = sizes.plan;
        if (c.window_tokens == automatic) {
            p.sizes.window = kept()->window;
            const std::uint32_t unit = unit_tokens();
            if (nothing_to_choose(c.attend_tokens, c.max_tokens, p.sizes.sinks, p.sizes.window, unit))
                return status::failure(
                    errc::invalid_argument,
                    "window_tokens is automatic, here %u; valid where what is kept is chosen among: "
                    "less than attend_tokens - sink_tokens - a unit = %zu - %u - %u",
                    p.sizes.window, c.attend_tokens, p.sizes.sinks, unit);
        }
        constexpr std::uint32_t some = 64;
        const std::uint32_t prompt = kept()->prefill_tokens;
        if (facts.sequential) p.moving_rows = facts.fits_first_rows ? prompt : std::min(some, prompt);
        return {};
    }
    /// Layers that do not slide keep everything in rows and records. Records of one size have room for max_tokens.
    [[nodiscard, gnu::cold]] status keep_all(record_bytes record) {
        const cache_plan& p = sizes.plan;
        row_plan& r = sizes.row_layers;
        std::uint32_t window = p.sizes.window, promised = p.sizes.max_tokens;
        if (const retention_plan* of = kept()) {
            window = of->window;
            promised = of->keep + p.sizes.max_tokens - of->prefill_tokens;
        }
        r.keep_all(p.model.layers, p.sizes.sinks, window, p.sizes.max_tokens);
        r.lane_heads = p.model.lane_heads;
        r.record = record;
        r.ragged = facts.ragged;
        const std::uint64_t lanes =
            std::uint64_t{p.shard_sequences} * p.model.layers * p.division.lanes_of(p.model.lanes(), 0);
        return r.size_records(lanes, r.ragged ? 0 : promised, p);
    }

    [[nodiscard]] const geometry& model() const noexcept { return inputs_.model; }

  private:
    static_assert(most_read_through_pages == io_batch::max_request_pages);

    [[nodiscard]] virtual const common_settings& settings() const noexcept = 0;
    [[nodiscard]] virtual std::unique_ptr<cache_planner> copy() const = 0;
    /// What the policies say of their own settings.
    [[nodiscard]] virtual status check_policies() const noexcept = 0;
    /// Everything but the number of blocks and frames. All that does not depend on policies is there.
    [[nodiscard]] virtual status settle() = 0;
    /// Adds the bytes of rows and units to the parts, for so many blocks of rows and frames of units.
    virtual void measure_policies(std::uint32_t blocks, std::uint32_t frames) = 0;
    /// Entries of the smallest unit that can be chosen: those of a group, unless a part of it can be.
    [[nodiscard]] virtual std::uint32_t unit_tokens() const noexcept = 0;
    /// Of what retention keeps; null where it keeps all.
    [[nodiscard]] virtual const retention_plan* kept() const noexcept = 0;
    /// The numbers of the settings, which a knob changes.
    [[nodiscard]] virtual knob_numbers numbers() noexcept = 0;
    /// Turns the preset's size settings one step down. Returns what has changed since `original`, or nothing.
    [[nodiscard]] virtual std::string turn_size(const cache_planner& original) = 0;
    [[nodiscard]] virtual bool shrinks() const noexcept = 0;

    [[gnu::cold]] status check() const noexcept {
        const common_settings& c = settings();
        if (status s = check_config(c, facts, model().kv_heads(), unit_tokens()); !s) return s;
        if (const std::string_view of = products(); c.precision == precision::relaxed && of != "relaxed")
            return status::failure(
                errc::invalid_argument,
                "precision is relaxed with preset %s and head_dim %u, and products are %s; "
                "valid: exact, or relaxed_if_available",
                c.preset.data(), model().head_dim(), of.data());
        if (status s = check_extents(c.max_tokens, c.max_sequences, model().extents()); !s) return s;
        return check_policies();
    }

    /// The least and the most of what grows when all else has what it needs: a pool's frames of units, or a shard's
    /// blocks of records.
    [[nodiscard]] std::pair<std::uint32_t, std::size_t> frame_limits() const noexcept {
        if (facts.in_chains) return {sizes.row_layers.least_blocks, sizes.row_layers.most_blocks};
        if (!facts.retrieves) return {0, 0};
        const std::size_t in_memory = settings().memory_bytes / sizes.page_bytes;
        return {sizes.plan.least_frames,
                std::min<std::size_t>(std::min(sizes.plan.most_frames, in_memory), 1U << 30)};
    }

    /// Settles every number for so many blocks of rows and frames of units (or blocks of records). Returns the bytes they
    /// take.
    [[gnu::cold]] std::size_t measure(std::uint32_t blocks, std::uint32_t frames) {
        const common_settings& c = settings();
        sizes.parts = {};
        sizes.parts.calibration = sizes.calibration_bytes;
        if (facts.in_chains) sizes.row_layers.blocks = frames;
        measure_policies(blocks, frames);
        sizes.parts.metadata += sizes.plan.division.shards * sequence_bytes(c);
        sizes.round_up(facts.retrieves ? 1 : 0, c.max_tokens);
        return sizes.bytes();
    }

    /// Tokens that a layer that slides can give up: the window's, or a few where the window holds everything.
    [[nodiscard]] std::uint32_t rewindable() const noexcept {
        constexpr std::uint32_t few = 32;
        const common_settings& c = settings();
        const bool number = c.window_tokens != whole_sequence && c.window_tokens != automatic;
        return static_cast<std::uint32_t>(
            std::min<std::size_t>(number ? c.window_tokens : few, c.max_tokens));
    }

    /// Of what a shard keeps of each sequence, wherever it begins.
    [[nodiscard]] std::size_t sequence_bytes(const common_settings& c) const noexcept {
        carver tables;
        static_cast<void>(
            sequence_tables::take(tables, sizes.plan.division, sizes.plan.max_sequences, c.shape.layers));
        return tables.used() + 64;
    }

    /// As many blocks and frames as the bound allows, and longer stretches of prompts where they take little of that.
    [[gnu::cold]] void grow() {
        const std::size_t memory_bytes = settings().memory_bytes;
        // What prompts take from frames decode has to read. A row of a lane with many heads is as much longer.
        constexpr std::size_t little = 256;
        const std::uint32_t heads = sizes.plan.model.lane_heads, shards = sizes.plan.division.shards;
        sizes.plan.stretch_bytes =
            std::clamp((memory_bytes - sizes.least_bytes) / (little * shards) * std::min(heads, 4U),
                       cache_plan::least_stretch, heads * cache_plan::most_stretch);
        const auto limits = frame_limits();
        std::uint32_t frames = limits.first;
        const std::size_t for_rows =
            facts.retrieves || facts.in_chains ? std::max(sizes.least_bytes, memory_bytes / 2) : memory_bytes;
        const std::uint32_t blocks = largest(sizes.least_blocks, sizes.most_blocks,
                                             [&](std::uint32_t n) { return measure(n, frames) <= for_rows; });
        frames = largest(frames, static_cast<std::uint32_t>(limits.second),
                         [&](std::uint32_t n) { return measure(blocks, n) <= memory_bytes; });
        static_cast<void>(measure(blocks, frames));
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

    [[nodiscard, gnu::cold]] error too_small() const {
        const common_settings& c = settings();
        memory_notes notes;
        notes.with = facts.drops ? "this shape, max_tokens, keep_tokens and prefill_tokens"
                                 : "this shape and max_tokens";
        if (facts.retrieves)
            notes.frames = " (at least; they also hold a segment of a prompt while it is organised)";
        else if (facts.in_chains)
            notes.frames = facts.drops
                               ? " (kept entries, at the peak before budgets are settled, and records)"
                               : " (records of entries that have left the window)";
        else
            notes.frames = " (kept entries, at the peak before budgets are settled)";
        if (sizes.plan.pool_layers > 1) {
            notes.frames = " (at least, of two layers; together they also hold a segment of a prompt)";
            notes.last = "\n  frames are what one layer needs and the next one that is read back meanwhile: "
                         "fewer with "
                         "lower max_tokens or more shards; tails are open_pages = " +
                         std::to_string(sizes.plan.open_pages) + " of each layer";
        }
        if (facts.drops && !facts.hands_over && !facts.evicts_in_decode &&
            c.max_tokens > kept()->prefill_tokens)
            notes.last = "\n  prefill_tokens is " + std::to_string(kept()->prefill_tokens) +
                         " and max_tokens " + std::to_string(c.max_tokens) +
                         ": frames hold the difference for decode in every head";
        best_knobs best(sizes.least_bytes, c.memory_bytes);
        for (std::uint8_t k = 0; k <= static_cast<std::uint8_t>(knob::size); ++k)
            try_knob(static_cast<knob>(k), best);
        std::string advice = best.text();
        if (shrinks())
            advice += "; fitted(config) turns the size settings of this preset down to memory_bytes";
        return bound_too_small(c.preset, c.memory_bytes, sizes.bytes(), sizes.parts, notes, advice);
    }

    /// Turns a knob until memory_bytes is enough. Where a few turns are not, what one step leads to counts.
    [[gnu::cold]] void try_knob(knob k, best_knobs& best) const {
        const auto turned = copy();
        std::string first;
        std::size_t first_least = 0;
        for (int i = 0; i < most_turns; ++i) {
            const std::string change = k == knob::size ? turned->turn_size(*this) : turn(k, turned->knobs());
            if (change.empty()) break;
            // Bases of a smaller rank would be smaller too: what is said is enough.
            const auto least_bytes = turned->least(inputs_);
            if (!least_bytes) break;
            if (first.empty()) first = change, first_least = *least_bytes;
            if (*least_bytes > settings().memory_bytes) continue;
            best.tried(k, k == knob::size ? change : all_turns_of(first, change), *least_bytes);
            return;
        }
        if (!first.empty()) best.tried(k, first, first_least);
    }
    [[nodiscard]] knob_numbers knobs() noexcept {
        knob_numbers n = numbers();
        n.planned_tails = sizes.plan.open_pages;
        n.chooses = facts.chooses;
        n.unit_tokens = unit_tokens();
        return n;
    }

    plan_inputs inputs_;
};

/// Adds the bytes of rows that are attended whole, and of what belongs to them, in all shards.
template <class E, class Codec> [[gnu::cold]] void measure_row_layers(sized_cache& a) noexcept {
    const row_plan& r = a.row_layers;
    if (r.layers.empty()) return;
    carver metadata, window, scratch;
    for (std::uint32_t shard = 0; shard < a.plan.division.shards; ++shard) {
        static_cast<void>(metadata.take<layer_place>(r.places.size()));
        static_cast<void>(row_stage<E, Codec>::memory::take(r, a.plan, shard, metadata, window, scratch));
    }
    constexpr std::size_t line = 64; // wherever they begin
    a.parts.metadata += metadata.used() + line * a.plan.division.shards;
    a.parts.window += window.used() + line * a.plan.division.shards;
    a.parts.scratch += scratch.used() + line * a.plan.division.shards;
    a.parts.frames += a.plan.division.shards * a.chain_bytes();
}

template <class Policies> class planner final : public cache_planner {
  public:
    using types = policy_types<Policies>;
    using rows_type = std::conditional_t<types::drops, row_sizes<types>, no_row_sizes>;
    using units_type = std::conditional_t<types::retrieves, unit_sizes<types>, no_unit_sizes>;

    rows_type rows; ///< that retention keeps
    cache_settings<Policies> config;

    template <class Preset>
    explicit planner(const cache_config<Preset>& c)
        : cache_planner(facts_of_policies()), config(settings_from(c)) {}

  private:
    template <class E> [[nodiscard]] static constexpr bool rounds() noexcept {
        return std::is_same_v<E, bf16> || std::is_same_v<E, std::int8_t>;
    }
    [[nodiscard]] static constexpr std::string_view relaxed_products() noexcept {
        using plain_rows = typename types::element_type;
        using codec_rows = typename scored_rows<typename types::codec>::type;
        if (simd::has_relaxed_products<simd::default_arch, plain_rows> ||
            simd::has_relaxed_products<simd::default_arch, codec_rows>)
            return "relaxed";
        if (rounds<plain_rows>()) return simd::no_relaxed_products<plain_rows>;
        if (rounds<codec_rows>()) return simd::no_relaxed_products<codec_rows>;
        return "exact: neither bf16 rows nor int8_row codes";
    }
    [[nodiscard]] static constexpr policy_facts facts_of_policies() noexcept {
        policy_facts f;
        f.drops = types::drops, f.hands_over = types::hands_over, f.retrieves = types::retrieves;
        f.in_chains = types::in_chains, f.sequential = types::sequential;
        f.chooses = types::retrieves && !types::selector::takes_everything;
        f.layer_units = types::unit_of == granularity::layer;
        f.fits_first_rows = types::fits_first_rows;
        f.ragged = types::compressor::ragged;
        f.products = relaxed_products();
        const bool has_bar =
            calibrates_on_prompts<typename types::selector> || goes_by_errors<typename types::selector>;
        f.one_shard = f.layer_units || types::decides_together || (types::retrieves && has_bar);
        f.evicts_in_decode = types::evicts_in_decode;
        f.evicts_by_mass = !types::hands_over && types::reads_mass;
        return f;
    }

    [[nodiscard]] const common_settings& settings() const noexcept override { return config; }
    [[nodiscard, gnu::cold]] std::unique_ptr<cache_planner> copy() const override {
        return std::make_unique<planner>(*this);
    }
    [[nodiscard, gnu::cold]] std::uint32_t unit_tokens() const noexcept override {
        if constexpr (requires { config.clusterer.group_tokens; })
            if (types::retrieves && !truncates_units<typename types::selector>)
                return std::max(1U, config.clusterer.group_tokens);
        return 1;
    }
    [[nodiscard]] const retention_plan* kept() const noexcept override { return rows.kept(); }
    [[nodiscard]] bool shrinks() const noexcept override { return config.shrink != nullptr; }

    [[nodiscard, gnu::cold]] status check_policies() const noexcept override {
        const auto& c = config;
        for (const status& s : {check_settings<typename types::index_state>(c.index),
                                check_settings<typename types::selector_state>(c.selector),
                                check_settings<typename types::estimator_state>(c.estimator),
                                check_settings<typename types::schedule>(c.schedule),
                                check_settings<typename types::clusterer_state>(c.clusterer)})
            if (!s) return s;
        if constexpr (requires {
                          types::codec::check_units(c.compressor, c.clusterer.group_tokens, c.sink_tokens);
                      })
            return types::codec::check_units(c.compressor, c.clusterer.group_tokens, c.sink_tokens);
        return {};
    }

    [[nodiscard, gnu::cold]] status settle() override {
        const auto& c = config;
        cache_plan& p = sizes.plan;
        const record_shape stored{p.model.lane_heads, p.model.dim};
        if (status s = check_settings<typename types::codec>(c.compressor, stored); !s) return s;
        typename types::codec codec(c.compressor, stored);
        p.sizes.record = types::record_bytes_of(codec);
        if constexpr (codec_shares<typename types::compressor>)
            p.codec_shared_bytes = codec.shared_bytes(p.sizes.max_tokens);
        if constexpr (codec_fits_lanes<typename types::compressor>) {
            p.sizes.codec_lane = codec.lane_bytes();
            p.sizes.codec_fit = codec.fit_scratch_bytes(p.sizes.max_tokens);
        }
        rows = {};
        if (status s = rows.settle(c, model(), p); !s) return s;
        sizes.least_blocks = rows.least_blocks, sizes.most_blocks = rows.most_blocks;
        if (types::retrieves && types::drops)
            if (status s = settle_survivors(); !s) return s;
        if (status s = units_type::settle(c, model(), p, sizes.page_bytes); !s) return s;
        return types::in_chains ? keep_all(codec.bytes()) : status{};
    }
    [[gnu::cold]] void measure_policies(std::uint32_t blocks, std::uint32_t frames) override {
        memory_parts& m = sizes.parts;
        rows.measure(config, blocks, m);
        sizes.pool_bytes = rows.pool_bytes();
        units_type::measure(sizes.plan, frames, sizes.page_bytes, m);
        measure_row_layers<typename types::element_type, typename types::chain_codec>(sizes);
    }

    [[nodiscard, gnu::cold]] knob_numbers numbers() noexcept override {
        auto& c = config;
        knob_numbers n{c.max_tokens,    c.max_sequences, c.prefill_tokens, c.keep_tokens, c.attend_tokens,
                       c.window_tokens, c.sink_tokens,   c.open_pages,     c.shards};
        if constexpr (requires { c.clusterer.pending_entries; })
            n.pending_entries = &c.clusterer.pending_entries;
        n.planned_keep = rows_type::keep_tokens(c);
        return n;
    }
    [[nodiscard, gnu::cold]] std::string turn_size(const cache_planner& original) override {
        const auto listed = [](cache_settings<Policies> of) {
            knob_listing all;
            all.add("clusterer", of.clusterer);
            all.add("index", of.index);
            all.add("compressor", of.compressor);
            return all;
        };
        if (config.shrink != nullptr) {
            if (!config.shrink(config)) return {};
        } else if constexpr (requires { config.clusterer.tokens_per_cluster; }) {
            config.clusterer.tokens_per_cluster *= 2;
        }
        return listed(config).instead_of(listed(static_cast<const planner&>(original).config));
    }
};

}} // namespace kvtl::v0
