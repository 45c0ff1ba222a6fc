// The halves of a call on a shard. All that can fail is in the first one, so that a call of several shards happens in all of
// them or in none.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstdint>

namespace kvtl { inline namespace v0 {

enum class call_half : std::uint8_t {
    prepare, ///< what may fail: reads, choices, attention, room. After an error the shard is as it was
    commit, ///< the tokens count. Only a further turn, a chunk of fixed groups and the move of a thinned prompt may fail
    undo, ///< of a prepared call: another shard could not prepare it
};

}} // namespace kvtl::v0
