// The one cache that the transformer sees during an evaluation. What stands behind it changes: first the full
// model's cache, whose every exchange is recorded; then the cache of one policy after the other.
//
// A prompt therefore passes through the model once. Each policy is given the recorded q, k and v of the
// prompt (evaluator.hpp) and the model then decodes on from there: the stage forgets what was decoded before
// when the transformer rewinds, because the caches behind it are thrown away.
//
// Shapes: HQ, H, D as in layer_input; P tokens were prefilled, S decoded.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace eval {

/// What the full model handed to one layer's cache, and what it got back while decoding.
struct layer_recording {
    std::vector<float> q;        ///< (P + S, HQ, D)
    std::vector<float> k, v;     ///< (P + S, H, D)
    std::vector<float> k_pre, x; ///< (P + S, ...) when some policy wants them
    std::vector<float> probe;    ///< (., HQ, D) queries that stand for the prompt's future, likewise
    std::vector<float> guess;    ///< (S, HQ, D) queries predicted before this layer, likewise; not in layer 0
    std::vector<float> out;      ///< (S, HQ, D)
    std::vector<float> lse;      ///< (S, HQ)
};

struct recording {
    std::size_t prefilled = 0; ///< P
    std::size_t decoded = 0;   ///< S
    std::vector<layer_recording> layers;
};

class stage final : public engine::kv_cache {
  public:
    /// `wants`: all that any of the policies wants. The full model reads a prompt once, without a probe between its chunks.
    stage(const kvtl::shape& shape, unsigned shards, engine::cache_wants wants)
        : shape_(shape), shards_(shards), wants_(wants) {
        wants_.by_chunk = wants_.replays = false;
    }

    /// From now on `cache` is behind the stage. With `into`, everything is recorded; it must be empty.
    void set(engine::kv_cache& cache, kvtl::sequence_id sequence, recording* into = nullptr);

    [[nodiscard]] kvtl::result<kvtl::sequence_id> begin() override { return kvtl::sequence_id{0, 1}; }
    kvtl::status prefill(kvtl::sequence_id, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned shard) noexcept override;
    kvtl::status attend(kvtl::sequence_id, std::uint32_t layer, const kvtl::layer_input& in,
                        std::span<float> out, unsigned shard) noexcept override;
    kvtl::status before_query(kvtl::sequence_id, std::uint32_t layer, unsigned shard) noexcept override {
        return shard < cache_->shards() ? cache_->before_query(sequence_, layer, shard) : kvtl::status{};
    }
    kvtl::status prefetch(kvtl::sequence_id, std::uint32_t layer, std::span<const float> q,
                          unsigned shard) noexcept override;
    kvtl::status rewind(kvtl::sequence_id, std::size_t) noexcept override { return {}; }
    kvtl::status end(kvtl::sequence_id) noexcept override { return {}; }
    [[nodiscard]] engine::cache_stats stats() const override { return cache_->stats(); }
    [[nodiscard]] unsigned shards() const noexcept override { return shards_; }
    [[nodiscard]] engine::cache_wants wants() const noexcept override { return wants_; }

  private:
    void record_input(layer_recording& to, const kvtl::layer_input& in);

    kvtl::shape shape_;
    unsigned shards_;
    engine::cache_wants wants_;
    engine::kv_cache* cache_ = nullptr;
    kvtl::sequence_id sequence_{};
    bool prefetches_ = false; ///< the cache wants predicted queries
    std::vector<float> keep_; ///< (H) what is decoded stays, where the cache wants to be told
    recording* into_ = nullptr;
};

} // namespace eval
