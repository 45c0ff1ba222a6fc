// What a composed cache has made of a prompt, as the hand-written loop of dynakv begins with it: so that both decode from the
// same clusters, whose making is no part of a step.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "dynakv_loop.hpp"

namespace bench {

struct dynakv_in_memory : kvtl::presets::dynakv {
    using io = kvtl::in_memory;
};

/// Of a cache's only sequence, behind its prompt and before its first step, opened with `c`.
template <class Cache>
[[nodiscard]] kvtl::result<dynakv_loop> take_over(Cache& cache, const typename Cache::config& c) {
    using number = dynakv_loop::number;
    constexpr std::uint32_t dim = dynakv_loop::dim, rows = dynakv_loop::page_rows;
    auto& store = kvtl::shard_access::of(cache, 0).store();
    auto& frames = store.pool_of(0);
    const auto& sizes = store.at(0).sizes();
    const std::uint32_t heads = c.shape.layers * c.shape.kv_heads, pool_pages = store.layout().run_pages();
    if (frames.in_use() != 0 || store.at(0).state().buffered != 0 || !store.at(0).state().clustered)
        return kvtl::status::failure(kvtl::errc::unsupported,
                                     "the loop begins behind a prompt that is clustered, before any step");
    auto storage = Cache::storage_bytes(c);
    if (!storage) return storage.error();
    dynakv_sizes s;
    s.layers = c.shape.layers, s.kv_heads = c.shape.kv_heads,
    s.group = c.shape.query_heads / c.shape.kv_heads;
    s.attend_tokens = static_cast<std::uint32_t>(c.attend_tokens);
    s.window = sizes.window, s.sinks = sizes.sinks, s.max_clusters = sizes.max_units;
    s.waiting = c.clusterer.pending_entries, s.tokens_per_cluster = c.clusterer.tokens_per_cluster;
    s.frames = frames.size(), s.tails = frames.tail_quota();
    s.all_clusters = static_cast<std::uint32_t>(*storage / page_file::page_bytes) / (pool_pages / 2);
    s.scale = 1.0F / std::sqrt(static_cast<float>(dim));
    auto file = page_file::open(store.layout().top() + heads * s.max_clusters * pool_pages,
                                s.kv_heads * s.attend_tokens);
    if (!file) return file.error();
    dynakv_loop loop(s, *std::move(file));

    std::vector<number> k(std::size_t{2} * s.tokens_per_cluster * dim), v(k.size());
    for (std::uint32_t id = 0; id < heads; ++id) {
        const auto lane = store.at(id);
        const auto& state = lane.state();
        dynakv_loop::head& to = loop.at(id / s.kv_heads, id % s.kv_heads);
        to.tokens = state.tokens, to.window_begin = state.window_begin;
        to.threshold = lane.clusterer().threshold;
        std::copy_n(lane.sink_k(0), to.sink_k.size(), to.sink_k.data());
        std::copy_n(lane.sink_v(0), to.sink_v.size(), to.sink_v.data());
        for (std::uint32_t t = state.window_begin; t < state.tokens; ++t) {
            std::copy_n(lane.window_k(t), dim, &to.ring_k[std::size_t{lane.ring(t)} * dim]);
            std::copy_n(lane.window_v(t), dim, &to.ring_v[std::size_t{lane.ring(t)} * dim]);
        }
        for (std::uint32_t u = 0; u < state.units; ++u) {
            const kvtl::unit_record& unit = lane.unit(u);
            auto& io_batch = store.io().at(0);
            io_batch.clear();
            for (std::uint32_t p = 0; p < store.pages_of(lane, u); ++p)
                io_batch.add(store.layout().page(unit.where, p), p, kvtl::none);
            if (kvtl::status read = store.io().submit_reads(0, frames, true); !read) return read;
            store.io().drain(0);
            if (!io_batch.error().ok()) return io_batch.error();
            for (std::uint32_t i = 0; i < unit.entries; ++i) {
                const std::byte* page = frames.bytes(i / rows);
                std::memcpy(&k[std::size_t{i} * dim], store.format().key(page, i % rows),
                            dim * sizeof(number));
                std::memcpy(&v[std::size_t{i} * dim], store.format().value(page, i % rows),
                            dim * sizeof(number));
            }
            if (kvtl::status done = loop.add_cluster(to, k.data(), v.data(), unit.entries, unit.where.first,
                                                     unit.where.extra);
                !done)
                return done;
        }
    }
    return loop;
}

} // namespace bench
