// SPDX-License-Identifier: MIT
#include "reuse.hpp"

#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/softmax.hpp>

#include "error.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace engine {

std::size_t reuse_buffer::step(std::span<const std::uint32_t> chosen) {
    std::size_t hits = 0;
    std::vector<std::uint32_t> missing;
    for (const std::uint32_t g : chosen) // all are looked up before any is replaced
        if (present_[g])
            ++hits;
        else
            missing.push_back(g);
    if (ring_.empty()) return hits;
    for (const std::uint32_t g : missing) {
        if (count_ == ring_.size())
            present_[ring_[next_]] = false;
        else
            ++count_;
        ring_[next_] = g;
        next_ = (next_ + 1) % ring_.size();
        present_[g] = true;
    }
    return hits;
}

std::vector<double> reuse_rates(kvtl::trace_reader& trace, std::uint32_t group_tokens,
                                std::uint32_t attend_tokens, std::span<const std::uint32_t> slots) {
    insist(trace.require(true, false));
    const kvtl::trace_header& head = trace.header();
    const std::size_t dim = head.shape.head_dim, heads = head.shape.query_heads, row = head.key_floats();
    const std::size_t group = heads / head.shape.kv_heads;
    const std::uint32_t choose = (attend_tokens + group_tokens - 1) / group_tokens;
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    std::vector<std::size_t> hits(slots.size(), 0);
    std::size_t chosen = 0;
    std::vector<float> keys(head.tokens * row), logits(head.tokens), sum(head.tokens), best;
    for (std::uint32_t l = 0; l < head.shape.layers; ++l) {
        std::vector<reuse_buffer> buffers;
        for (const std::uint32_t s : slots) buffers.emplace_back(s, head.tokens / group_tokens + 1);
        for (std::uint64_t t = 0; t < head.tokens; ++t) {
            const kvtl::trace_entry e = insist(trace.read(t, l));
            std::copy(e.k.begin(), e.k.end(), keys.begin() + static_cast<std::ptrdiff_t>(t * row));
            const auto groups = static_cast<std::uint32_t>(t / group_tokens); // complete before this token
            if (t < head.prompt_tokens || groups <= choose) continue;
            std::fill(sum.begin(), sum.end(), 0.0F);
            const std::size_t seen = groups * group_tokens;
            for (std::size_t h = 0; h < heads; ++h) {
                kvtl::simd::dot_rows<kvtl::simd::default_arch, float>(
                    e.q.data() + h * dim, {keys.data() + h / group * dim, seen, dim, row}, logits.data());
                kvtl::simd::scale(scale, logits.data(), seen);
                const float top = kvtl::simd::max_of(logits.data(), seen);
                const float total = kvtl::simd::exp_shifted_sum(logits.data(), seen, top);
                kvtl::simd::axpy(1.0F / total, logits.data(), sum.data(), seen);
            }
            best.assign(groups, 0.0F);
            for (std::size_t i = 0; i < seen; ++i)
                best[i / group_tokens] = std::max(best[i / group_tokens], sum[i]);
            std::vector<std::uint32_t> order(groups);
            std::iota(order.begin(), order.end(), 0U);
            std::nth_element(order.begin(), order.begin() + choose, order.end(),
                             [&](auto a, auto b) { return best[a] != best[b] ? best[a] > best[b] : a < b; });
            order.resize(choose);
            std::sort(order.begin(), order.end());
            chosen += choose;
            for (std::size_t i = 0; i < buffers.size(); ++i) hits[i] += buffers[i].step(order);
        }
    }
    if (chosen == 0)
        throw bad_input("the trace has no decoded token behind more than " + std::to_string(attend_tokens) +
                        " others, so it tells nothing about reuse");
    std::vector<double> rates;
    for (const std::size_t h : hits) rates.push_back(static_cast<double>(h) / static_cast<double>(chosen));
    return rates;
}

} // namespace engine
