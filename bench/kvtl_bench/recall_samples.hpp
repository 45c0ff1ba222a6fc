// Which steps and layers mass_recall looks at. A sample generates every key before it once more: the longer a run, the further
// they lie apart.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

namespace bench {

class recall_samples {
  public:
    static constexpr std::size_t least = 8, some = 64;

    /// Of steps that count: every 8th at first, and half as often after each 64 samples.
    [[nodiscard]] bool has(std::size_t step) const noexcept { return step % every_ == 0; }
    /// One layer in 8, the next ones in the next sample.
    [[nodiscard]] bool has_layer(std::size_t layer, std::size_t layers) const noexcept {
        return layer % least == taken_ % std::min(least, layers);
    }
    void take() noexcept {
        if (++taken_ % some == 0) every_ *= 2;
    }

  private:
    std::size_t every_ = least, taken_ = 0;
};

} // namespace bench
