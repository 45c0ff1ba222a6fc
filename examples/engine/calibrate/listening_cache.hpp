// A cache for prompts that are computed only to look at their keys and queries: exact attention straight from
// what the engine hands over, nothing kept. A whole prompt must come as one chunk.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/causal.hpp>

#include "kv_cache.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

namespace engine {

class listening_cache final : public kv_cache {
  public:
    using listener = std::function<kvtl::status(std::uint32_t layer, const kvtl::layer_input& in)>;

    /// `hear` is called once per layer and prompt. A status that is not ok ends the run.
    listening_cache(const kvtl::shape& shape, bool with_k_pre, listener hear)
        : shape_(shape), with_k_pre_(with_k_pre), hear_(std::move(hear)),
          scratch_(kvtl::simd::causal_scratch_floats(shape.head_dim)) {}

    /// From the next prompt on a token attends only the tokens of its own block of so many; 0: all before it.
    void divide(std::size_t block) { block_ = block; }

    [[nodiscard]] kvtl::result<kvtl::sequence_id> begin() override { return kvtl::sequence_id{}; }
    kvtl::status prefill(kvtl::sequence_id, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned) noexcept override {
        const std::size_t dim = shape_.head_dim, group = shape_.query_heads / shape_.kv_heads;
        const std::size_t kv_row = shape_.kv_heads * dim, q_row = shape_.query_heads * dim;
        const std::size_t tokens = in.k.size() / kv_row;
        if (!in.last_chunk)
            return kvtl::status::failure(kvtl::errc::unsupported, "the prompt does not come in one chunk");
        const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
        for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
            const kvtl::rows_view<float> keys{in.k.floats().data() + h * dim, tokens, dim, kv_row};
            const kvtl::rows_view<float> values{in.v.floats().data() + h * dim, tokens, dim, kv_row};
            const std::size_t block = block_ == 0 ? tokens : block_;
            for (std::size_t first = 0; first < tokens; first += block) {
                const std::size_t n = std::min(block, tokens - first), at = first * q_row + h * group * dim;
                kvtl::simd::attend_causal(in.q.floats().subspan(at), q_row, group, scale, n,
                                          keys.slice(first, n), values.slice(first, n), 0, out.subspan(at),
                                          q_row, scratch_);
            }
        }
        return hear_(layer, in);
    }
    kvtl::status attend(kvtl::sequence_id, std::uint32_t, const kvtl::layer_input&, std::span<float>,
                        unsigned) noexcept override {
        return kvtl::status::failure(kvtl::errc::unsupported, "this cache keeps nothing to decode from");
    }
    kvtl::status prefetch(kvtl::sequence_id, std::uint32_t, std::span<const float>,
                          unsigned) noexcept override {
        return {};
    }
    kvtl::status rewind(kvtl::sequence_id, std::size_t) noexcept override { return {}; }
    kvtl::status end(kvtl::sequence_id) noexcept override { return {}; }
    [[nodiscard]] cache_stats stats() const override { return {}; }
    [[nodiscard]] unsigned shards() const noexcept override { return 1; }
    [[nodiscard]] cache_wants wants() const noexcept override {
        cache_wants w;
        w.inputs = kvtl::engine_input::x;
        if (with_k_pre_) w.inputs = w.inputs | kvtl::engine_input::k_pre;
        return w;
    }

  private:
    kvtl::shape shape_;
    bool with_k_pre_;
    std::size_t block_ = 0;
    listener hear_;
    std::vector<float> scratch_;
};

} // namespace engine
