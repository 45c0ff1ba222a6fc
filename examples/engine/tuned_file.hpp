// What kvtl-tune --json wrote, as settings of the policy that it tunes: what programs make of --tuned FILE.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace engine {

/// Of the entry for `batch` sequences of `tokens`: the smallest batch and context in the file that are enough, else the
/// largest. No settings where `file` is "". Throws bad_input for a file that kvtl-tune did not write, for one of another
/// shape, and where none of `policies` is kvswap.
[[nodiscard]] std::vector<setting> tuned_settings(const std::string& file,
                                                  std::span<const std::string> policies,
                                                  const kvtl::shape& shape, std::size_t batch,
                                                  std::size_t tokens);

} // namespace engine
