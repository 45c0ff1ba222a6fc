// Attention of a lane's queries over rows that they attend whole: a prompt's chunk, and what a token's queries have seen.
//
// Shapes: rows (n, width) with the lane's KV heads side by side; queries and results (T, HQ, D).
// Cost:   a chunk takes O(T (before + T) D) multiply-adds per query head.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attention.hpp>
#include <kvtl/simd/causal.hpp>
#include <kvtl/slots/compressor.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// Where a lane's queries stand among those of a token.
struct query_lane {
    std::uint32_t all = 0;   ///< HQ
    std::uint32_t first = 0; ///< the lane's first query head
    std::uint32_t heads = 1; ///< KV heads of the lane
    std::uint32_t group = 1; ///< query heads of each
    std::uint32_t dim = 0;   ///< D
    logit_rule logits{};

    [[nodiscard]] std::size_t width() const noexcept { return std::size_t{heads} * dim; }
    /// First float of a token's queries of KV head h.
    [[nodiscard]] std::size_t offset(std::size_t token, std::uint32_t h = 0) const noexcept {
        return (token * all + first + std::size_t{h} * group) * dim;
    }
    /// Those of a chunk's last `tokens` tokens, for a codec.
    [[nodiscard]] prompt_queries of_chunk(const layer_input& in, std::size_t tokens) const noexcept {
        return {in.q, in.q.empty() ? 0 : tokens, all, first, group};
    }
};

/// Exact causal attention of a chunk of T tokens. keys, values: (before + T, width) rows of the lane, or those of a stretch;
/// its max, sum and acc are then (lane heads, ..). A query sees the last `reach` rows.
template <element E>
void attend_prompt(const query_lane& lane, const layer_input& in, std::uint32_t before, std::uint32_t tokens,
                   const E* keys, const E* values, const tensor_span& out, std::span<float> scratch,
                   std::size_t reach = simd::no_reach, simd::causal_stretch stretch = {}) noexcept {
    const std::size_t token = std::size_t{lane.all} * lane.dim;
    const std::size_t rows = std::min(stretch.end, std::size_t{before} + tokens) - stretch.begin;
    for (std::uint32_t h = 0; h < lane.heads; ++h) {
        const std::size_t offset = lane.offset(0, h), column = std::size_t{h} * lane.dim;
        const auto of_head = [&](const auto& all) { return all.subspan(offset, all.size() - offset); };
        simd::attend_causal(of_head(in.q), token, lane.group, lane.logits, tokens,
                            rows_view<E>{keys + column, rows, lane.dim, lane.width()},
                            rows_view<E>{values + column, rows, lane.dim, lane.width()}, before, of_head(out),
                            token, scratch, reach, in.sinks_of(offset / lane.dim), stretch);
        if (stretch.max == nullptr) continue;
        stretch.max += std::size_t{tokens} * lane.group;
        stretch.sum += std::size_t{tokens} * lane.group;
        if (stretch.acc != nullptr) stretch.acc += std::size_t{tokens} * lane.group * lane.dim;
    }
}

/// What the queries of KV head h of token t have seen becomes their result. `seen` has the sink logits afterwards.
inline void finish_token(const query_lane& lane, std::uint32_t h, const partial& seen, const layer_input& in,
                         std::size_t t, const tensor_span& out) noexcept {
    const std::size_t offset = lane.offset(t, h), head = lane.first + std::size_t{h} * lane.group;
    if (!in.lse.empty())
        for (std::uint32_t g = 0; g < seen.group; ++g)
            in.lse[offset / lane.dim + g] = seen.max[g] + std::log(seen.sum[g]);
    if (const float* sinks = in.sinks_of(head)) add_sink_logits(seen, sinks);
    if (!out.empty()) finish(seen, out, offset, lane.dim);
}

}} // namespace kvtl::v0
