// SPDX-License-Identifier: MIT
#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

namespace engine {

std::vector<std::pair<token_id, float>> highest(std::span<const float> logits, std::size_t count) {
    std::vector<token_id> order(logits.size());
    std::iota(order.begin(), order.end(), token_id{0});
    count = std::min(count, order.size());
    std::partial_sort(
        order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
        [&](token_id a, token_id b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    std::vector<std::pair<token_id, float>> top;
    for (std::size_t i = 0; i < count; ++i) top.emplace_back(order[i], logits[order[i]]);
    return top;
}

std::string sampler::state() const {
    std::ostringstream out;
    out << random_;
    return out.str();
}

bool sampler::go_on_from(const std::string& state) {
    std::istringstream in(state);
    in >> random_;
    return !in.fail();
}

double sampler::keep_likely(double total) {
    order_.resize(weights_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    const auto less = [&](std::size_t a, std::size_t b) {
        return weights_[a] != weights_[b] ? weights_[a] < weights_[b] : a > b;
    };
    std::make_heap(order_.begin(), order_.end(), less);
    auto rest = order_.end();
    double kept = 0;
    do {
        std::pop_heap(order_.begin(), rest, less);
        kept += weights_[*--rest];
    } while (kept < top_p_ * total && rest != order_.begin());
    std::for_each(order_.begin(), rest, [&](std::size_t i) { weights_[i] = 0; });
    return kept;
}

token_id sampler::choose(std::span<const float> logits) {
    const auto best = std::max_element(logits.begin(), logits.end());
    if (temperature_ <= 0) return static_cast<token_id>(best - logits.begin());
    weights_.clear();
    for (const float x : logits)
        weights_.push_back(std::exp((static_cast<double>(x) - static_cast<double>(*best)) / temperature_));
    double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    if (top_p_ < 1) total = keep_likely(total);
    // 53 random bits, because the standard library's distributions differ between implementations.
    double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
        left -= weights_[i];
        if (left < 0) return static_cast<token_id>(i);
    }
    return static_cast<token_id>(best - logits.begin()); // rounding used up the whole range
}

} // namespace engine
