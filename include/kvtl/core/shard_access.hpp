// The inside of a cache, for tests of invariants and for benchmarks. Not part of the interface.
// SPDX-License-Identifier: MIT
#pragma once

namespace kvtl { inline namespace v0 {

struct shard_access {
    /// The shard itself: what it holds may be read and changed at will.
    template <class Cache> [[nodiscard]] static auto& of(Cache& cache, unsigned shard) noexcept {
        return cache.core_->shards[shard];
    }
};

}} // namespace kvtl::v0
