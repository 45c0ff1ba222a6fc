// Chooses the next token from the logits.
// SPDX-License-Identifier: MIT
#pragma once

#include "tokenizer.hpp"

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace engine {

/// The `count` highest logits, highest first; equal ones by id.
[[nodiscard]] std::vector<std::pair<token_id, float>> highest(std::span<const float> logits,
                                                              std::size_t count);

class sampler {
  public:
    /// Temperature 0 takes the highest logit. `top_p`: chooses from the most likely tokens that have so much of the probability
    /// together (nucleus sampling); 1: from all. The same seed gives the same choices on every platform.
    sampler(double temperature, std::uint64_t seed, double top_p = 1)
        : temperature_(temperature), top_p_(top_p), random_(seed) {}

    [[nodiscard]] token_id choose(std::span<const float> logits);

    /// Where its random numbers are, as text; and back again. False where the text is none.
    [[nodiscard]] std::string state() const;
    [[nodiscard]] bool go_on_from(const std::string& state);

  private:
    /// Leaves only the most likely tokens a weight; returns what these have of `total`.
    [[nodiscard]] double keep_likely(double total);

    double temperature_, top_p_;
    std::mt19937_64 random_;
    std::vector<double> weights_;
    std::vector<std::size_t> order_;
};

} // namespace engine
