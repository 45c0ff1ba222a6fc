// SPDX-License-Identifier: MIT
#include "stage.hpp"

#include <limits>

namespace eval {

namespace {

void append(std::vector<float>& to, std::span<const float> more) {
    to.insert(to.end(), more.begin(), more.end());
}

} // namespace

void stage::set(engine::kv_cache& cache, kvtl::sequence_id sequence, recording* into) {
    cache_ = &cache;
    sequence_ = sequence;
    prefetches_ = cache.wants().prefetch;
    keep_.assign(contains(cache.wants().inputs, kvtl::engine_input::external) ? shape_.kv_heads : 0,
                 std::numeric_limits<float>::max());
    into_ = into;
    if (into_ != nullptr) into_->layers.resize(shape_.layers);
}

void stage::record_input(layer_recording& to, const kvtl::layer_input& in) {
    append(to.q, in.q.floats());
    append(to.k, in.k.floats());
    append(to.v, in.v.floats());
    append(to.k_pre, in.k_pre);
    append(to.x, in.x);
    append(to.probe, in.probe);
}

kvtl::status stage::prefill(kvtl::sequence_id, std::uint32_t layer, const kvtl::layer_input& in,
                            std::span<float> out, unsigned shard) noexcept {
    if (into_ != nullptr && shard == 0) { // every shard is given all heads
        record_input(into_->layers[layer], in);
        if (layer == 0) into_->prefilled += in.k.size() / (std::size_t{shape_.kv_heads} * shape_.head_dim);
    }
    // A cache of fewer parts than the stage serves all heads in its own.
    return shard < cache_->shards() ? cache_->prefill(sequence_, layer, in, out, shard) : kvtl::status{};
}

kvtl::status stage::attend(kvtl::sequence_id, std::uint32_t layer, const kvtl::layer_input& in,
                           std::span<float> out, unsigned shard) noexcept {
    if (into_ == nullptr) {
        kvtl::layer_input told = in;
        told.external = keep_;
        return shard < cache_->shards() ? cache_->attend(sequence_, layer, told, out, shard) : kvtl::status{};
    }
    // One caller serves and records all parts, so that nothing here is shared.
    if (shard != 0) return {};
    layer_recording& to = into_->layers[layer];
    record_input(to, in);
    if (layer == 0) ++into_->decoded;
    to.lse.resize(to.lse.size() + shape_.query_heads, std::numeric_limits<float>::quiet_NaN());
    kvtl::layer_input asked = in;
    asked.lse = std::span(to.lse).last(shape_.query_heads);
    for (unsigned s = 0; s < cache_->shards(); ++s)
        if (kvtl::status done = cache_->attend(sequence_, layer, asked, out, s); !done) return done;
    append(to.out, out);
    return {};
}

kvtl::status stage::prefetch(kvtl::sequence_id, std::uint32_t layer, std::span<const float> q,
                             unsigned shard) noexcept {
    if (into_ != nullptr && shard == 0) append(into_->layers[layer].guess, q);
    if (!prefetches_ || shard >= cache_->shards()) return {};
    return cache_->prefetch(sequence_, layer, q, shard);
}

} // namespace eval
