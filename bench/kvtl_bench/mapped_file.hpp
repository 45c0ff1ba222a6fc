// mapped_file: full attention over a file of keys and values that the operating system pages in, as a row of kvtl-bench decode.
//
// What an engine has without a cache of its own: it maps a file and attends all of it. Every token's K and V go to the mapping
// as f16; a step runs the kernels of `full` over all of them, and what is not in memory comes by page faults, with the kernel's
// read-ahead. Memory is bounded by MADV_PAGEOUT: what has been attended beyond memory_bytes leaves at once, what is within
// stays for the next step. (A step asks for everything in the same order: to let the oldest go, as the kernel would where
// a control group bounds it, would leave nothing to be found.)
//
// File:   for each (sequence, layer, KV head) pieces of (piece_tokens, D) keys and as many values, 128 KiB together.
// Counts: reads are major faults, read_bytes what the kernel read from the device for the threads of steps, and the resident
//         bytes are asked of the kernel (mincore) behind every step: on a busy machine reads ahead land behind the
//         page-out of their piece, and the peak is then above the bound.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace bench {

inline constexpr std::string_view mapped_file_name = "mapped_file";

/// engine::open_cache(), least_memory() and policy_wants(), which know mapped_file too.
[[nodiscard]] kvtl::result<std::unique_ptr<engine::kv_cache>> open_policy(const engine::cache_options& o);
[[nodiscard]] kvtl::result<engine::memory_use> least_memory_of(const engine::cache_options& o);
[[nodiscard]] engine::cache_wants wants_of(std::string_view policy);

} // namespace bench
