// What a manager owns, and how it comes to be: the reservation, the device, the shards.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/core/cache_core.hpp>
#include <kvtl/core/layer_map.hpp>
#include <kvtl/core/plan/planner.hpp>
#include <kvtl/core/save/identity.hpp>
#include <kvtl/core/shard.hpp>
#include <kvtl/io/any_io.hpp>
#include <kvtl/io/superblock.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// The calibration file of a preset that needs one, or can use one.
struct calibration_blob {
    std::unique_ptr<calibration_file> file;
    [[nodiscard]] std::size_t bytes() const noexcept { return file ? file->bytes() : 0; }
};
/// What the policies read of a calibration. Kinds are bits (kind_bit()).
struct calibration_needs {
    std::uint32_t of_codec = 0, of_index = 0, of_score = 0;
    bool required = false;           ///< index and score alone can do without
    std::uint32_t rank = 0;          ///< directions that are used; 0: all
    const char* rank_name = nullptr; ///< the setting that says how many
};
template <class Policies>
concept reads_calibration = (calibrated_kinds<typename Policies::compressor>() |
                             calibrated_kinds<typename Policies::index>() |
                             policy_types<Policies>::score_kinds) != 0;
template <class Policies>
[[nodiscard, gnu::cold]] calibration_needs
calibration_needs_of([[maybe_unused]] const cache_settings<Policies>& c,
                     [[maybe_unused]] const geometry& g) noexcept {
    calibration_needs n;
    n.of_codec = calibrated_kinds<typename Policies::compressor>();
    n.of_index = calibrated_kinds<typename Policies::index>();
    n.of_score = policy_types<Policies>::score_kinds;
    n.required = contains(needed_inputs<Policies>(), engine_input::calibration);
    if (n.of_index == 0 || n.of_codec != 0) return n; // a codec wants its directions to the last
    if constexpr (requires { c.index.rank; }) {
        n.rank = std::min(c.index.rank, g.kv_heads() * g.head_dim()), n.rank_name = "index.rank";
    } else if constexpr (requires {
                             c.index.channels;
                             Policies::index::calibrated;
                         }) {
        if (calibration_extents::has_directions(Policies::index::calibrated))
            n.rank = std::min(c.index.channels, g.head_dim()), n.rank_name = "index.channels";
    }
    return n;
}
[[nodiscard, gnu::cold]] inline result<calibration_blob>
open_calibration(const common_settings& c, const geometry& g, const calibration_needs& n) {
    calibration_blob out;
    if (c.calibration.empty() && !n.required) return out;
    if (c.calibration.empty())
        return error{errc::unsupported, "calibration is empty; preset " + std::string(c.preset) +
                                            " needs a calibration file with section " +
                                            kind_names(n.of_codec | n.of_index)};
    calibration_request want{
        .kinds = n.of_codec | n.of_index, .optional = n.of_score, .fingerprint = c.calibration_model};
    if (n.rank_name != nullptr) want.rank = n.rank, want.rank_name = n.rank_name;
    auto file = calibration_file::open(c.calibration, g.extents(), want);
    if (!file) return file.error();
    out.file = std::make_unique<calibration_file>(std::move(*file));
    return out;
}

/// What is planned and opened, whatever the policies: how layers share stores, and what was fitted offline.
struct common_stores {
    geometry model; ///< its layers count stores
    layer_map layers;
    calibration_blob bases;
};
/// What decides whether layers may share stores.
struct sharing_limits {
    bool encodes_input = false; ///< the codec keeps the inputs of layers
    std::uint32_t together = 1; ///< layers that follow one choice
    std::string_view selector;  ///< which makes it
};
/// Settings become those of stores: layers and windows count stores, and `owner` is empty if no layers share.
[[nodiscard, gnu::cold]] inline result<common_stores> settle_stores(common_settings& c, common_stores out,
                                                                    const sharing_limits& limits) {
    if (!out.layers.shares()) return c.owner.clear(), std::move(out);
    if (out.bases.bytes() != 0)
        return status::failure(errc::unsupported,
                               "owner: preset %s reads a calibration, whose layers are all of the model's; "
                               "valid: every layer its own, or a preset without one",
                               c.preset.data());
    if (limits.encodes_input)
        return status::failure(
            errc::unsupported,
            "owner: preset %s keeps the inputs of layers, and layers that share a cache have "
            "different ones; valid: every layer its own",
            c.preset.data());
    for (std::uint32_t s = 0; s < out.layers.stores(); ++s) // a choice is followed in the step that made it
        if (const std::uint32_t leads = s - s % limits.together;
            out.layers.owner_of(s) < out.layers.owner_of(leads))
            return status::failure(
                errc::unsupported,
                "owner: layer %u would follow the choice of layer %u before it is made; "
                "valid for selector %s: caches whose first and last layers come in one order",
                out.layers.owner_of(s), out.layers.owner_of(leads), limits.selector.data());
    auto windows = out.layers.windows_of_stores(c.attention.windows);
    if (!windows) return windows.error();
    c.attention.windows = *std::move(windows);
    c.shape.layers = out.layers.stores();
    out.model = *geometry::from(c.shape, c.attention.scale);
    return out;
}
template <class Policies>
[[nodiscard, gnu::cold]] result<common_stores> stores_of(cache_settings<Policies>& c) {
    auto model = geometry::from(c.shape, c.attention.scale);
    if (!model) return model.error();
    auto layers = layer_map::make(c.owner, c.shape.layers);
    if (!layers) return layers.error();
    common_stores stores{*model, *std::move(layers), {}};
    if constexpr (reads_calibration<Policies>) {
        auto bases = open_calibration(c, *model, calibration_needs_of(c, *model));
        if (!bases) return bases.error();
        stores.bases = *std::move(bases);
    }
    return settle_stores(c, std::move(stores),
                         {codec_encodes_input<typename Policies::compressor>,
                          detail::layers_that_share<typename Policies::selector>(),
                          Policies::selector::name});
}

/// The blocks of all lanes, without an entry yet.
template <class Lane>
[[gnu::cold]] void lay_out_lanes(lane_table<Lane>& table, const cache_plan& p, carver& carve) noexcept {
    table.sizes = p.sizes;
    table.longest = Lane::offsets::make(p.sizes);
    table.lanes_per_layer = p.model.lanes();
    table.lane_heads = p.model.lane_heads;
    table.lanes_per_slot = p.model.layers * p.model.lanes();
    const std::uint32_t lanes = p.max_sequences * table.lanes_per_slot;
    table.places = carve.take<lane_place<Lane>>(lanes);
    table.regions = carve.take<lane_region<Lane>>(p.regions());
    if (p.representative_pages > 0) table.representatives = carve.take<std::byte*>(lanes).data();
    const std::size_t stride = lane_region<Lane>::stride(table.longest, p.representative_pages > 0);
    const std::span<std::byte> blocks = carve.take<std::byte>(lanes * stride);
    if (p.lent_page == system_page()) reservation::in_small_pages(blocks);
    std::size_t at = 0;
    for (std::uint32_t r = 0; r < p.regions(); ++r) {
        const std::uint32_t in_slot = p.regions() / p.max_sequences, shard = r % in_slot;
        const shard_division& d = p.division;
        const lane_numbers numbers{.first = r / in_slot * table.lanes_per_slot + shard,
                                   .layers = p.model.layers,
                                   .of_layer = d.lanes_of(table.lanes_per_layer, shard),
                                   .apart = in_slot,
                                   .layer_apart = table.lanes_per_layer};
        const std::size_t bytes = numbers.count() * stride;
        table.begin_region(table.regions[r], blocks.subspan(at, bytes), numbers, p.lent_page);
        at += bytes;
    }
}

/// The reservation of a plan, and who has which part of it.
struct cache_memory {
    reservation all;
    std::span<std::byte> fixed, rows, records, frames;
    std::span<std::byte> borrowed; ///< of frames that tables lend; none where the system takes no memory back

    [[nodiscard, gnu::cold]] static result<cache_memory> reserve(const sized_cache& a) {
        // Frames that tables lend need addresses of their own, and a system that takes memory back: else there are none.
        const bool may_lend = a.borrowed_bytes() > 0;
        const std::size_t lent_page = std::max<std::size_t>(a.plan.lent_page, 1),
                          lent_from = (a.bytes() + lent_page - 1) / lent_page * lent_page;
        auto memory = reservation::make(may_lend ? lent_from + a.borrowed_bytes() : a.bytes(),
                                        std::max<std::size_t>(a.plan.device_page, lent_page));
        const bool lends = may_lend && memory.ok() && memory->gives_back(lent_from);
        if (may_lend && !lends) memory = reservation::make(a.bytes(), a.plan.device_page);
        if (!memory) return memory.error();
        cache_memory m;
        const std::span<std::byte> bytes = memory->memory();
        std::size_t at = 0;
        const auto next = [&](std::size_t n) { return bytes.subspan(std::exchange(at, at + n), n); };
        m.fixed = next(a.fixed_bytes), m.rows = next(a.row_bytes());
        m.records = next(a.record_bytes()), m.frames = next(a.frame_bytes());
        m.all = *std::move(memory);
        if (!lends) return m;
        m.borrowed = bytes.subspan(lent_from);
        // What lies between a page and the large page that it would be part of takes memory with it.
        reservation::in_small_pages(bytes.subspan(at, lent_from - at));
        if (a.plan.lent_page <= system_page()) reservation::in_small_pages(m.borrowed);
        return m;
    }
};

/// Storage of a preset that stores something; nothing otherwise.
template <class Types, bool = Types::retrieves> struct storage_part {
    template <class... Plan> [[nodiscard]] static result<storage_part> open(const Plan&...) {
        return storage_part();
    }
    template <class... Plan> [[nodiscard]] static status lay_out(const Plan&...) noexcept { return {}; }
    [[nodiscard]] static io_device_info device_info() noexcept {
        io_device_info f;
        f.name = "in_memory";
        return f;
    }
    static void use_arena(std::span<std::byte>) noexcept {}
    [[nodiscard]] static bool land_all(const shard<Types>&) noexcept { return true; }
};
template <class Types> struct storage_part<Types, true> {
    typename Types::lane_table lanes;
    any_io::device device;
    std::vector<typename Types::pool> pools;

    explicit storage_part(any_io::device d) noexcept : device(std::move(d)) {}
    /// frames: memory that transfers reach.
    template <class Policies>
    [[nodiscard, gnu::cold]] static result<storage_part>
    open(const planner<Policies>& planned, const geometry& g, std::span<std::byte> frames) {
        const cache_plan& p = planned.sizes.plan;
        const auto& c = planned.config;
        const superblock block = make_superblock(g.extents(), sizeof(typename Types::element_type),
                                                 fingerprint_of(identity_of(c, g, p, {})), p.device_page);
        auto device = any_io::open(c.io, {.queues = p.division.shards,
                                          .depth = p.io_depth(),
                                          .max_in_flight = p.max_in_flight,
                                          .arena = frames,
                                          .superblock = superblock_bytes(block),
                                          .max_bytes = planned.sizes.file_bytes(),
                                          .timeout_ms = c.io_timeout_ms});
        if (!device) return device.error();
        return storage_part(std::move(*device));
    }
    /// Gives the shards their lanes, frames and pools. p: as it was opened.
    template <class Policies>
    [[nodiscard, gnu::cold]] status lay_out(const planner<Policies>& planned, const geometry& g,
                                            const cache_plan& p, const cache_memory& memory,
                                            const calibration_view& view, carver& carve,
                                            std::span<shard<Types>> shards) {
        const std::size_t shard_pools = p.pools * (Types::sequential ? 2U : 1U);
        pools.resize(shards.size() * shard_pools);
        lay_out_lanes(lanes, p, carve);
        const std::size_t shard_frames = memory.frames.size() / shards.size(),
                          shard_borrowed = memory.borrowed.size() / shards.size();
        for (std::uint32_t s = 0; s < shards.size(); ++s) {
            auto& stage = shards[s].retrieved();
            stage.init(p, planned.config, g, s, device, lanes, carve,
                       memory.frames.subspan(s * shard_frames, shard_frames),
                       memory.borrowed.subspan(s * shard_borrowed, shard_borrowed),
                       std::span(pools).subspan(s * shard_pools, shard_pools), planned.sizes.page_bytes);
            if (status e = stage.bind(view); !e) return e;
        }
        return {};
    }
    [[nodiscard]] io_device_info device_info() const noexcept { return device.device_info(); }
    void use_arena(std::span<std::byte> arena) noexcept { device.use_arena(arena); }
    [[nodiscard]] static bool land_all(shard<Types>& s) noexcept { return s.retrieved().land_all(); }
};

/// Members are destroyed in reverse order: shards, the device, then the memory. Transfers end before that; where the device has
/// given one up, the memory stays.
template <class Types> struct preset_core final : cache_core<typename Types::element_type> {
    using shard_type = shard<Types>;

    storage_part<Types> storage;
    std::vector<shard_type> own_shards;

    preset_core(std::uint32_t n, storage_part<Types> opened) : storage(std::move(opened)), own_shards(n) {
        for (shard_type& s : own_shards) this->shards.push_back(&s);
    }
    ~preset_core() override {
        for (shard_type& s : own_shards)
            if (!storage.land_all(s)) this->memory.leave();
    }
    [[nodiscard]] io_device_info device_info() const noexcept override { return storage.device_info(); }
    void use_arena(std::span<std::byte> all) noexcept override { storage.use_arena(all); }
};

/// What a cache with these policies is to its callers.
template <class Policies> using core_of = cache_core<typename policy_types<Policies>::element_type>;

/// Reserves the memory that was planned, opens the device and lays the shards out. All code that depends on the policies is
/// reached from here, so a translation unit that declares it `extern template` compiles none of it.
template <class Policies>
[[nodiscard, gnu::cold]] result<std::unique_ptr<core_of<Policies>>>
open_core(const common_stores& of, const planner<Policies>& planned) {
    const cache_settings<Policies>& c = planned.config;
    const geometry& g = of.model;
    const sized_cache& a = planned.sizes;
    using types = policy_types<Policies>;
    using core_type = preset_core<types>;
    const std::uint32_t shards = a.plan.division.shards;
    auto memory = cache_memory::reserve(a);
    if (!memory) return memory.error();
    auto storage = storage_part<types>::open(planned, g, memory->frames);
    if (!storage) return storage.error();
    auto made = std::make_unique<core_type>(shards, std::move(*storage));
    row_plan row_layers = a.row_layers;
    made->name_layers(of.layers, row_layers);
    cache_plan p = a.plan;
    if (memory->borrowed.empty()) p.borrowed_frames = 0, p.lent_page = 0;
    p.numbers.of_model = made->layer_numbers;
    made->settle(g, p, a.parts, a.page_bytes);
    made->preset = c.preset;
    made->stores = types::retrieves;
    made->residency_decides = types::residency_decides;
    made->needs_mass = planned.facts.evicts_by_mass;
    made->products = planned.products();
    made->frames.memory_bytes = c.memory_bytes;
    made->adapt_prompt = c.adapt_prompt;
    made->calls.reads_probe = contains(needed_inputs<Policies>(), engine_input::probe);
    made->calls.probes_chunks = evicts_by_chunk<Policies> || replays_prompts<Policies>;
    made->calls.takes_passing = made->calls.probes_chunks && row_layers.sliding == 0;
    made->calls.all_may_pass = replays_prompts<Policies>;
    made->arena = memory->frames;
    made->memory = std::move(memory->all);

    carver carve(memory->fixed);
    calibration_view view;
    const std::span<std::byte> read_into = carve.template take<std::byte>(of.bases.bytes());
    if (of.bases.file) {
        auto read = of.bases.file->read(read_into);
        if (!read) return read.error();
        view = *read;
    }
    made->identity = identity_of(c, g, p, read_into);
    made->replacement = fingerprint_of_replacement<typename Policies::replacement>(c.replacement);
    for (std::uint32_t s = 0; s < shards; ++s) {
        auto& shard = made->own_shards[s];
        shard.init_sequences(sequence_tables::take(carve, p.division, p.max_sequences, g.layers()),
                             p.division, g.layers());
        shard.init_rows(c.compressor, row_layers, p, s, carve,
                        memory->records.subspan(s * a.chain_bytes(), a.chain_bytes()));
        if (status e = shard.rows().bind(view); !e) return e;
    }
    const std::size_t blocks = a.pool_bytes / shards;
    for (std::uint32_t s = 0; s < shards; ++s) {
        auto& kept = made->own_shards[s].kept();
        kept.init(c, planned.rows, p.numbers, s, carve, memory->rows.subspan(s * blocks, blocks));
        kept.bind(view);
    }
    const std::span<shard<types>> own = made->own_shards;
    if (status e = made->storage.lay_out(planned, g, p, *memory, view, carve, own); !e) return e;
    return std::unique_ptr<core_of<Policies>>(std::move(made));
}

}} // namespace kvtl::v0
