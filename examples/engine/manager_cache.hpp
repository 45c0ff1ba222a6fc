// Any cache of kvtl behind the programs' virtual interface.
//
// An engine that takes a kv_cache can so be given a cache whose policies are known at compile time, without the registry
// of presets. Costs one virtual call per layer and shard.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/manager.hpp>

#include "kv_cache.hpp"

#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace engine {

[[nodiscard, gnu::cold]] inline memory_use memory_use_of(const kvtl::memory_parts& p) {
    memory_use out;
    p.each([&](std::string_view name, std::size_t bytes) { out.parts.emplace_back(name, bytes); });
    out.raw_cache = p.raw_cache;
    return out;
}

/// What a manager counted, as programs report it; `config` stays empty.
[[nodiscard, gnu::cold]] inline cache_stats stats_of(const kvtl::statistics& s,
                                                     const kvtl::io_device_info& facts) {
    cache_stats out;
    out.resident_bytes_peak = s.resident_bytes_peak;
    out.read_bytes = s.read_bytes;
    out.useful_bytes = s.useful_bytes;
    out.reads = s.reads;
    out.written_bytes = s.written_bytes;
    out.hit_rate = s.hit_rate();
    out.mean_read_entries = s.mean_read_entries();
    out.storage_bytes = s.storage_bytes;
    memory_use memory = memory_use_of(s.bytes_by_part);
    out.bytes_by_part = std::move(memory.parts);
    out.raw_cache_bytes = memory.raw_cache;
    out.io = facts.name == std::string_view("in_memory")    ? "memory"
             : facts.name == std::string_view("posix_file") ? "posix"
                                                            : "uring";
    out.direct = facts.direct;
    out.memory_backed = facts.memory_backed;
    out.registered_file = facts.registered_file;
    out.registered_arena = facts.registered_arena;
    out.detail = s;
    return out;
}

/// What a preset wants of an engine beyond q, k and v.
template <class Preset> [[nodiscard]] cache_wants wants_of() noexcept {
    cache_wants w;
    w.inputs = kvtl::needed_inputs<Preset>();
    if constexpr (requires { Preset::schedule::wants_prediction; })
        w.prefetch = Preset::schedule::wants_prediction;
    w.announced = kvtl::virtualises<typename Preset::schedule>;
    w.evicts = kvtl::drops_entries<Preset>;
    w.retrieves = kvtl::retrieves<Preset>;
    w.by_chunk = kvtl::evicts_by_chunk<Preset>;
    w.replays = kvtl::replays_prompts<Preset>;
    return w;
}

/// E: what the preset stores.
template <kvtl::element E> class manager_cache : public kv_cache {
  public:
    manager_cache(kvtl::any_cache<E> cache, const cache_wants& wants)
        : cache_(std::move(cache)), wants_(wants) {}

    [[nodiscard]] kvtl::result<kvtl::sequence_id> begin() override { return cache_.begin(); }
    kvtl::status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned shard) noexcept override {
        return cache_.prefill(seq, layer, in, out, shard);
    }
    kvtl::status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                        std::span<float> out, unsigned shard) noexcept override {
        return cache_.attend(seq, layer, in, out, shard);
    }
    kvtl::status before_query(kvtl::sequence_id seq, std::uint32_t layer, unsigned shard) noexcept override {
        return cache_.before_query(seq, layer, shard);
    }
    kvtl::status prefetch(kvtl::sequence_id seq, std::uint32_t layer, std::span<const float> q,
                          unsigned shard) noexcept override {
        return cache_.prefetch(seq, layer, q, shard);
    }
    kvtl::status prefetch_batch(std::span<const kvtl::sequence_id> batch, std::uint32_t layer,
                                std::span<const float> q, unsigned shard) noexcept override {
        return cache_.prefetch(batch, layer, q, shard);
    }
    kvtl::status rewind(kvtl::sequence_id seq, std::size_t n) noexcept override {
        return cache_.rewind(seq, n);
    }
    kvtl::status forward(std::span<const kvtl::batch_part> parts, std::uint32_t layer,
                         const kvtl::layer_input& in, std::span<float> out,
                         unsigned shard) noexcept override {
        return cache_.forward(parts, layer, in, out, shard);
    }
    kvtl::status rewind_to(kvtl::sequence_id seq, std::size_t tokens) noexcept override {
        return cache_.rewind_to(seq, tokens);
    }
    kvtl::status resize(std::size_t memory_bytes) noexcept override { return cache_.resize(memory_bytes); }
    kvtl::status retry_writes(kvtl::sequence_id seq) noexcept override { return cache_.retry_writes(seq); }
    kvtl::status end(kvtl::sequence_id seq) noexcept override { return cache_.end(seq); }
    [[nodiscard]] kvtl::result<kvtl::save_facts> save(kvtl::sequence_id seq, const std::string& path,
                                                      const kvtl::save_options& o) override {
        return cache_.save(seq, path, o);
    }
    [[nodiscard]] kvtl::result<kvtl::save_facts> save(kvtl::sequence_id seq, kvtl::saved_file& to) override {
        return cache_.save(seq, to);
    }
    [[nodiscard]] kvtl::result<kvtl::loaded_sequence> load(const std::string& path,
                                                           const kvtl::load_options& o) override {
        return cache_.load(path, o);
    }
    [[nodiscard]] kvtl::result<kvtl::sequence_id> fork(kvtl::sequence_id seq) override {
        return cache_.fork(seq);
    }

    [[nodiscard]] std::size_t kept_entries(kvtl::sequence_id seq, std::uint32_t layer) noexcept override {
        return cache_.kept_entries(seq, layer);
    }
    [[nodiscard]] cache_stats stats() const override {
        cache_stats out = stats_of(cache_.stats(), cache_.device_info());
        out.products = cache_.products();
        return out;
    }
    [[nodiscard]] unsigned shards() const noexcept override { return cache_.shards(); }
    [[nodiscard]] cache_wants wants() const noexcept override { return wants_; }

  private:
    kvtl::any_cache<E> cache_;
    cache_wants wants_;
};

/// As Manager::open. Manager: a kvtl::kv_manager.
template <class Manager>
[[nodiscard, gnu::cold]] kvtl::result<std::unique_ptr<kv_cache>>
open_manager(const typename Manager::config& c) {
    auto opened = Manager::open(c);
    if (!opened) return opened.error();
    return std::unique_ptr<kv_cache>(std::make_unique<manager_cache<typename Manager::element_type>>(
        *std::move(opened), wants_of<typename Manager::preset>()));
}

} // namespace engine
