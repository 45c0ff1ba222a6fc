// What the comparisons of speed share.
// SPDX-License-Identifier: MIT
#pragma once

#include "tokenizer.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace llama_bench {

class stopwatch {
  public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Threads of the engine that had its turn spin for a while before they sleep, and would take the next one's cores.
inline void let_threads_sleep() {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

[[nodiscard]] inline double median(std::vector<double> x) {
    if (x.empty()) return 0;
    std::sort(x.begin(), x.end());
    return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}

/// The same tokens for everybody: speed does not depend on what they say.
[[nodiscard]] inline engine::token_id token_at(std::size_t position, std::size_t vocabulary) {
    std::uint64_t z = position * 0x9E3779B97F4A7C15U + 1;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    return static_cast<engine::token_id>(16 + (z >> 33) % (vocabulary - 16));
}

} // namespace llama_bench
