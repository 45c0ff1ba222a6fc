// SPDX-License-Identifier: MIT
#include "tuner.hpp"

#include "error.hpp"

#include <algorithm>
#include <cmath>

namespace engine {

piecewise::piecewise(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {
    std::sort(points_.begin(), points_.end());
}

double piecewise::at(double x) const {
    if (points_.size() == 1) return points_[0].second;
    std::size_t i = 1;
    while (i + 1 < points_.size() && points_[i].first < x) ++i;
    const auto [x0, y0] = points_[i - 1];
    const auto [x1, y1] = points_[i];
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

tuned_memory memory_of(const kvtl::shape& shape, const tuning_limits& limits, const tuned_entry& entry) {
    const std::uint64_t lanes = std::uint64_t{entry.batch} * shape.layers;
    const std::uint64_t width = std::uint64_t{shape.kv_heads} * shape.head_dim;
    const std::uint64_t token_bytes = 2 * width * limits.element_bytes; // key and value, all heads
    const std::uint64_t group_bytes = token_bytes * entry.group_tokens;
    tuned_memory m;
    m.index = lanes * entry.context * entry.rank * limits.element_bytes;
    m.adapter = shape.layers * width * entry.rank * sizeof(float);
    m.reuse = lanes * entry.reuse_slots * group_bytes;
    m.transit = 2 * std::uint64_t{entry.batch} * entry.groups * group_bytes;
    m.rolling = lanes * group_bytes;
    m.tables = lanes * ((entry.context + entry.group_tokens - 1) / entry.group_tokens) * limits.record_bytes;
    return m;
}

tuned_entry tune(const kvtl::shape& shape, const tuning_limits& limits, const delays& delays,
                 std::uint32_t batch, std::uint64_t context) {
    const std::uint64_t budget = limits.memory_bytes / limits.largest_batch * batch;
    const std::uint32_t width = shape.kv_heads * shape.head_dim;
    const std::uint32_t largest_sigma = std::min(limits.largest_sigma, width);

    // The entry for C, G and a sigma, without its times.
    const auto candidate = [&](std::uint32_t slots, std::uint32_t group, std::uint32_t sigma) {
        tuned_entry e{
            .batch = batch, .context = context, .sigma = sigma, .rank = std::max(1U, width / sigma)};
        e.group_tokens = group;
        e.groups = (limits.attend_tokens + group - 1) / group;
        e.reuse_slots = slots;
        e.memory = memory_of(shape, limits, e);
        return e;
    };
    // Memory falls with sigma: the smallest that fits, or 0.
    const auto fitting_sigma = [&](std::uint32_t slots, std::uint32_t group) {
        if (candidate(slots, group, largest_sigma).memory.total() > budget) return 0U;
        std::uint32_t low = 1, high = largest_sigma;
        while (low < high) {
            const std::uint32_t middle = (low + high) / 2;
            if (candidate(slots, group, middle).memory.total() <= budget)
                high = middle;
            else
                low = middle + 1;
        }
        return low;
    };

    tuned_entry best;
    std::uint64_t least_memory = UINT64_MAX;
    for (std::uint32_t slots = 0; slots == 0 || slots <= context; slots += limits.delta) {
        bool any_fits = false;
        for (std::uint32_t group = 1; group <= limits.largest_group; ++group) {
            const std::uint32_t sigma = fitting_sigma(slots, group);
            if (sigma == 0) {
                least_memory = std::min(least_memory, candidate(slots, group, largest_sigma).memory.total());
                continue;
            }
            any_fits = true;
            tuned_entry e = candidate(slots, group, sigma);
            const double missed = 1 - std::clamp(delays.reuse(group, e.groups, slots), 0.0, 1.0);
            e.io_us = delays.read(group, missed * e.groups * batch);
            e.model_us = batch * (delays.attend(limits.attend_tokens) + delays.score(context, e.rank)) +
                         delays.rest(batch);
            e.predicted_us = std::max(e.io_us, e.model_us);
            e.hidden = (1 - limits.alpha) * e.io_us <= e.model_us;
            if (e.hidden) return e;
            if (best.group_tokens == 0 || e.predicted_us < best.predicted_us) best = e;
        }
        if (!any_fits) break;
    }
    if (best.group_tokens == 0) {
        const std::uint64_t needed = (least_memory + batch - 1) / batch * limits.largest_batch;
        throw bad_input("memory of " + std::to_string(limits.memory_bytes) + " bytes: batch " +
                        std::to_string(batch) + " of " + std::to_string(limits.largest_batch) +
                        " at context " + std::to_string(context) + " needs " + std::to_string(needed) +
                        " or more");
    }
    return best;
}

} // namespace engine
