// A cache that writes everything it is given to a trace and passes it on. It asks the engine for what a trace
// can hold beyond q, k and v; the predicted queries reach the cache below only if that wants them.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/trace_writer.hpp>

#include "error.hpp"
#include "kv_cache.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace engine {

/// Records the first sequence that is begun. Not for use after rewind() beyond what will be appended again.
class recording_cache final : public kv_cache {
  public:
    /// `what`: the model, and in `fields` what the engine hands over beyond q, k and v. Throws bad_input when the file
    /// cannot be made.
    recording_cache(kv_cache& inner, const std::string& path, const kvtl::trace_header& what)
        : inner_(inner), inner_wants_(inner.wants()), shape_(what.shape),
          out_(insist(kvtl::trace_writer::create(path, what))), tokens_(shape_.layers),
          predictions_(shape_.layers) {
        for (auto& p : predictions_) p.reserve(what.query_floats());
    }

    /// Completes the file. Throws run_failure, or bad_input when there is nothing in it.
    void finish() { insist(out_.close(prompt_tokens_, *std::min_element(tokens_.begin(), tokens_.end()))); }

    [[nodiscard]] kvtl::result<kvtl::sequence_id> begin() override {
        auto seq = inner_.begin();
        if (seq && !begun_) sequence_ = *seq, begun_ = true;
        return seq;
    }
    kvtl::status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned shard) noexcept override {
        const kvtl::status s = inner_.prefill(seq, layer, in, out, shard);
        if (s) record(seq, layer, in, shard, true);
        return s;
    }
    kvtl::status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                        std::span<float> out, unsigned shard) noexcept override {
        const kvtl::status s = inner_.attend(seq, layer, in, out, shard);
        if (s) record(seq, layer, in, shard, false);
        return s;
    }
    kvtl::status before_query(kvtl::sequence_id seq, std::uint32_t layer, unsigned shard) noexcept override {
        return inner_.before_query(seq, layer, shard);
    }
    kvtl::status prefetch(kvtl::sequence_id seq, std::uint32_t layer, std::span<const float> q,
                          unsigned shard) noexcept override {
        if (shard == 0 && begun_ && seq == sequence_) predictions_[layer].assign(q.begin(), q.end());
        return inner_wants_.prefetch ? inner_.prefetch(seq, layer, q, shard) : kvtl::status{};
    }
    kvtl::status rewind(kvtl::sequence_id seq, std::size_t n) noexcept override {
        const kvtl::status s = inner_.rewind(seq, n);
        if (s && begun_ && seq == sequence_)
            for (auto& t : tokens_) t -= n;
        return s;
    }
    kvtl::status retry_writes(kvtl::sequence_id seq) noexcept override { return inner_.retry_writes(seq); }
    kvtl::status end(kvtl::sequence_id seq) noexcept override { return inner_.end(seq); }
    [[nodiscard]] cache_stats stats() const override { return inner_.stats(); }
    [[nodiscard]] unsigned shards() const noexcept override { return inner_.shards(); }
    [[nodiscard]] cache_wants wants() const noexcept override {
        cache_wants w{inner_wants_.inputs | kvtl::engine_input::k_pre, true};
        w.announced = inner_wants_.announced;
        return w;
    }

  private:
    /// Every shard is given all heads, so the first one's call has everything.
    void record(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in, unsigned shard,
                bool prompt) noexcept {
        if (shard != 0 || !begun_ || !(seq == sequence_)) return;
        const std::size_t tokens = in.k.size() / (std::size_t{shape_.kv_heads} * shape_.head_dim);
        const bool predicted = !prompt && layer > 0;
        for (std::size_t t = 0; t < tokens; ++t)
            out_.write(tokens_[layer]++, layer, in.rows(t, 1, tokens),
                       predicted ? std::span<const float>(predictions_[layer]) : std::span<const float>{});
        if (prompt && layer + 1 == shape_.layers) prompt_tokens_ = tokens_[layer];
    }

    kv_cache& inner_;
    const cache_wants inner_wants_;
    kvtl::shape shape_;
    kvtl::trace_writer out_;
    kvtl::sequence_id sequence_{};
    bool begun_ = false;
    std::uint64_t prompt_tokens_ = 0;
    std::vector<std::uint64_t> tokens_; ///< recorded, by layer
    std::vector<std::vector<float>> predictions_;
};

} // namespace engine
