// The inside of a cache, for tests of invariants and for benchmarks. Not part of the interface.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/save/sequence_parts.hpp>
#include <kvtl/core/shard.hpp>
#include <kvtl/views.hpp>

#include <cstdint>

namespace kvtl { inline namespace v0 {

struct shard_access {
    /// The shard itself: what it holds may be read and changed at will.
    template <class Cache> [[nodiscard]] static auto& of(Cache& cache, unsigned shard) noexcept {
        return static_cast<kvtl::shard<typename Cache::types>&>(*cache.core_->shards[shard]);
    }
    /// Of all that an open sequence is: equal for sequences that a save would not tell apart. Where things are, and who is
    /// resident, does not matter; how much room the place of a unit has does.
    template <class Cache>
    [[nodiscard]] static result<std::uint64_t> identity_hash(Cache& cache, sequence_id seq) {
        return sequence_parts(*cache.core_, rare_calls_of<typename Cache::types>).hash(seq.slot);
    }
};

}} // namespace kvtl::v0
