// Which steps and layers mass_recall looks at: a sample generates every key before it once more, so that a long run takes
// some 64 of them instead of one every 8 steps.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

namespace bench {

struct recall_samples {
    static constexpr std::size_t least =
        8; ///< steps between two samples; layers between two that one looks at
    std::size_t every = least;

    recall_samples() = default;
    explicit recall_samples(std::size_t steps) : every(std::max(least, steps / 64 / least * least)) {}

    [[nodiscard]] bool has(std::size_t step) const noexcept { return step % every == 0; }
    /// One layer in 8 of a step that has a sample, the next ones in the next sample.
    [[nodiscard]] bool has(std::size_t step, std::size_t layer, std::size_t layers) const noexcept {
        return layer % least == step / every % std::min(least, layers);
    }
};

} // namespace bench
