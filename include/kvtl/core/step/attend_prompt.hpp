// Exact causal attention of a prompt's chunk, lane by lane.
//
// Cost: O(T (before + T) D) multiply-adds per query head.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/chooser.hpp>
#include <kvtl/simd/causal.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// Exact causal attention of a chunk of T tokens for one lane. keys, values: (before + T, width) rows of the
/// lane, or those of a stretch; its max, sum and acc are then (lane heads, ..).
template <element E>
void attend_prompt(const model_extents& m, std::uint32_t lane_in_layer, const layer_input& in,
                   std::uint32_t before, std::uint32_t tokens, const E* keys, const E* values,
                   const tensor_span& out, std::span<float> scratch,
                   simd::causal_stretch stretch = {}) noexcept {
    const std::size_t token = std::size_t{m.query_heads()} * m.dim;
    const std::size_t rows = std::min(stretch.end, std::size_t{before} + tokens) - stretch.begin;
    for (std::uint32_t h = 0; h < m.lane_heads; ++h) {
        const std::size_t offset = m.query_offset(lane_in_layer) + std::size_t{h} * m.group * m.dim;
        const auto of_head = [&](const auto& all) { return all.subspan(offset, all.size() - offset); };
        simd::attend_causal(of_head(in.q), token, m.group, m.logits, tokens,
                            rows_view<E>{keys + std::size_t{h} * m.dim, rows, m.dim, m.width()},
                            rows_view<E>{values + std::size_t{h} * m.dim, rows, m.dim, m.width()}, before,
                            of_head(out), token, scratch, simd::no_reach, in.sinks_of(offset / m.dim),
                            stretch);
        if (stretch.max == nullptr) continue;
        stretch.max += std::size_t{tokens} * m.group;
        stretch.sum += std::size_t{tokens} * m.group;
        if (stretch.acc != nullptr) stretch.acc += std::size_t{tokens} * m.group * m.dim;
    }
}

}} // namespace kvtl::v0
