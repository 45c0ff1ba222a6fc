// Which part of a sequence a pool of frames has, for saves that keep who is resident (hot_set.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Which part of a sequence a pool has, and what decides who leaves it.
struct pool_role {
    std::uint32_t part = 0, parts = 1; ///< of the shards that have the sequence
    std::uint64_t replacement = 0;     ///< fingerprint of the policy and its settings
};

}} // namespace kvtl::v0
