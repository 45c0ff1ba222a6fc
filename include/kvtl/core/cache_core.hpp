// All that an open cache has, as its calls see it: they are the same for all presets that store the same elements.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/call_checks.hpp>
#include <kvtl/core/frame_shares.hpp>
#include <kvtl/core/layer_map.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/plan/row_plan.hpp>
#include <kvtl/core/shard_base.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/save/saved.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

/// E: what entries are stored as. What has the preset's types derives from it (open_core.hpp).
template <element E> struct cache_core {
    reservation memory; ///< destroyed last
    shard_division division;
    memory_parts parts;
    std::string_view preset;   ///< its name
    std::string_view products; ///< of attention (cache_planner::products)
    bool stores = false;       ///< entries are units on storage, and some are chosen
    bool residency_decides = false;
    bool needs_mass = false; ///< it evicts by attention mass
    bool adapt_prompt = false;
    frame_range frames;
    frame_shares shares;        ///< of the frames, per sequence
    std::span<std::byte> arena; ///< memory of all frames, which transfers use
    std::vector<shard_base*> shards;
    call_checks<E> calls;
    layer_map layers;
    std::vector<std::uint32_t> layer_numbers; ///< in the model, of stores that do not slide; empty: the same
    std::uint32_t kv_heads = 0;
    std::size_t page_bytes = 0;           ///< of the store
    std::vector<identity_field> identity; ///< what a saved sequence must have in common with this cache
    std::uint64_t replacement = 0;        ///< fingerprint of the replacement policy and its settings
    std::vector<std::uint64_t> saved_as;  ///< the digest of the last save of each sequence, or 0

    cache_core() = default;
    cache_core(const cache_core&) = delete;
    cache_core& operator=(const cache_core&) = delete;
    virtual ~cache_core() = default;

    [[nodiscard]] virtual io_device_info device_info() const noexcept = 0;
    /// Memory that the device transfers to and from; none: it keeps none pinned.
    virtual void use_arena(std::span<std::byte> arena) noexcept = 0;

    /// Messages name layers of the model: the owner of a store.
    [[gnu::cold]] void name_layers(const layer_map& map, row_plan& rows) {
        layers = map;
        layer_numbers = rows.others;
        if (!map.shares()) return;
        if (layer_numbers.empty())
            for (std::uint32_t s = 0; s < map.stores(); ++s) layer_numbers.push_back(s);
        for (std::uint32_t& n : layer_numbers) n = map.owner_of(n);
        for (row_layer& l : rows.layers)
            if (l.slides()) l.number = map.owner_of(l.number);
    }
    /// What the plan says of it. The memory is there, and layers have their names.
    [[gnu::cold]] void settle(const geometry& g, const cache_plan& p, const memory_parts& planned,
                              std::size_t store_page) {
        division = p.division;
        parts = planned;
        const bool in_turn = p.takes_turns();
        frames.fewest = in_turn ? p.frames : p.fewest_frames;
        frames.most = frames.now = p.frames;
        frames.bytes = p.frames_in_all_pools() * store_page;
        frames.in_turn = in_turn;
        frames.in_common = p.pool_groups() == 1 && p.shard_sequences > 1;
        frames.fixed = p.page_frames;
        frames.pools = p.pools;
        shares.settle(division, p.max_sequences);
        kv_heads = g.kv_heads();
        page_bytes = store_page;
        calls.layers = layers.layers();
        calls.shards = division.shards;
        calls.max_tokens = p.sizes.max_tokens;
        calls.query_floats = std::size_t{g.query_heads()} * g.head_dim();
        calls.key_floats = std::size_t{g.kv_heads()} * g.head_dim();
        calls.query_heads = g.query_heads();
        calls.slots = sequence_slots(p.max_sequences);
        saved_as.resize(p.max_sequences);
    }

    [[nodiscard]] bool owns(std::uint32_t slot, unsigned shard) const noexcept {
        return division.owns(slot, shard);
    }
    template <class F> void for_each_owner(std::uint32_t slot, F&& f) noexcept {
        for (unsigned s = 0; s < calls.shards; ++s)
            if (owns(slot, s)) f(*shards[s]);
    }
};

}} // namespace kvtl::v0
