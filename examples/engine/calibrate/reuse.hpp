// How many of the groups that a step chooses are still in a FIFO reuse buffer of C slots: replayed on a
// recorded trace.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/trace_reader.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace engine {

/// A buffer of `slots` groups; the one that came first leaves first.
class reuse_buffer {
  public:
    reuse_buffer(std::uint32_t slots, std::size_t groups) : ring_(slots), present_(groups, false) {}
    /// Takes a step's groups in and returns how many were there before.
    std::size_t step(std::span<const std::uint32_t> chosen);

  private:
    std::vector<std::uint32_t> ring_; ///< in order of arrival from next_ on
    std::size_t next_ = 0, count_ = 0;
    std::vector<bool> present_;
};

/// For each number of slots the share of chosen groups that were there, over all layers and decoded tokens of
/// the trace. Chosen are the ceil(attend_tokens / group_tokens) best complete groups by the exact keys: per
/// head a soft-max over all tokens, summed over heads, the maximum of a group's tokens. Steps that could
/// choose every group do not count. Throws bad_input when none is left.
[[nodiscard]] std::vector<double> reuse_rates(kvtl::trace_reader& trace, std::uint32_t group_tokens,
                                              std::uint32_t attend_tokens,
                                              std::span<const std::uint32_t> slots);

} // namespace engine
