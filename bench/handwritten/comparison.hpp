// A composed cache and the hand-written loop of the same preset, step by step on the same tokens.
//
// Both hold the whole cache on a file in memory and decode from the same prompt; each step is taken by one and then the other,
// which of them first changes with every step. Their outputs must be the same bits.
// SPDX-License-Identifier: MIT
#pragma once

#include "median_interval.hpp"
#include "shapes.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace bench {

struct comparison_options {
    std::string policy; ///< dynakv or kvswap
    kvtl::shape shape;  ///< heads of 64 numbers
    double rope_base = 10'000;
    std::size_t context = 4096, steps = 64, attend_tokens = 256;
    double memory_mib = 64;
    std::string workload = "drift:1";
    std::string scratch; ///< where a calibration may be written

    static constexpr std::size_t warm_up = 8; ///< steps that are compared but not timed
};

struct comparison {
    std::size_t steps = 0, equal_steps = 0; ///< warm-up included: those whose outputs are the same bits
    double composed_ms = 0, handwritten_ms = 0,
           ratio = 0; ///< medians; of composed / handwritten, step by step
    std::optional<interval> composed, handwritten, of_ratio; ///< of the medians, 95 %
    double composed_bytes = 0, handwritten_bytes = 0;        ///< read per step
};

/// Throws engine::bad_input where a cache cannot be opened, engine::run_failure.
[[nodiscard]] comparison compare_with_handwritten(const comparison_options& o);

} // namespace bench
