// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace engine {

/// Runs from where it is made.
class stopwatch {
  public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(clock::now() - start_).count();
    }

  private:
    using clock = std::chrono::steady_clock;
    clock::time_point start_ = clock::now();
};

} // namespace engine
