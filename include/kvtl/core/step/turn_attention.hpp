// Attention of many queries over all entries of a lane: of a prompt's chunk that lies behind others, and of a further turn.
//
// What:   the lane's entries pass by once, in whatever order; behind them come those of the chunk. They are collected as plain
//         rows, and each stretch of rows is attended by all queries at once (simd/causal.hpp). What a query has seen lies in
//         `out` where that is floats. 16 bits cannot carry it from stretch to stretch: it lies here then, for fewer queries,
//         and the entries pass by once more for each of these.
// Shapes: rows (n, width) of a lane; queries and results (T, HQ, D), of which the lane's heads are touched.
// Cost:   O(T (before + T) D) multiply-adds per query head, and a copy of each row. Where entries pass by in token order the
//         bits of a result do not depend on how the tokens are cut into chunks.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/step/row_attention.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/causal.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// E: of plain rows; Weighted: entries have log-weights.
template <element E, bool Weighted> class turn_attention {
  public:
    /// So many bytes of rows, but a tile of them at least, and room for what the queries of `tokens` tokens have seen; of more
    /// where `out` is floats.
    [[nodiscard]] static turn_attention take(carver& c, const query_lane& lane, std::uint32_t tokens,
                                             std::size_t bytes) noexcept {
        constexpr std::size_t tile = simd::causal_tile;
        turn_attention a;
        a.width_ = lane.width();
        a.rows_ = std::max(bytes / (2 * a.width_ * sizeof(E)) / tile, std::size_t{1}) * tile;
        a.k_ = c.take<E>(a.rows_ * a.width_);
        a.v_ = c.take<E>(a.rows_ * a.width_);
        a.log_weight_ = c.take<float>(Weighted ? a.rows_ : 0);
        a.causal_ = c.take<float>(simd::causal_scratch_floats(lane.dim));
        a.seen_ = c.take<float>(std::size_t{tokens} * lane.heads * lane.group * (lane.dim + 2));
        return a;
    }
    /// One that makes the best of so much memory for `tokens` tokens. It is enough for what take() gives one token and a tile.
    [[nodiscard]] static turn_attention within(std::span<std::byte> memory, const query_lane& lane,
                                               std::uint32_t tokens) noexcept {
        const std::size_t most = lane.heads * cache_plan::most_stretch;
        carver least, none_seen, all(memory);
        static_cast<void>(take(least, lane, 1, 0));
        const std::size_t tile = 2 * simd::causal_tile * lane.width() * sizeof(E),
                          rows = std::min(most, tile + (memory.size() - least.used()) / 4);
        static_cast<void>(take(none_seen, lane, 0, rows));
        const std::size_t each = std::size_t{lane.heads} * lane.group * (lane.dim + 2) * sizeof(float),
                          room = (memory.size() - none_seen.used()) / each;
        return take(all, lane, static_cast<std::uint32_t>(std::min<std::size_t>(room, tokens)), rows);
    }

    /// Attention of a chunk of T tokens that lies behind `before` entries. pass() adds these, in any order, once for as many
    /// queries as there is room for. Fails when pass() does.
    template <class Pass>
    [[nodiscard]] status attend(const query_lane& lane, const layer_input& in, std::uint32_t before,
                                std::uint32_t tokens, const tensor_span& out, Pass&& pass) noexcept {
        const std::size_t row = out.size() / tokens, token = std::size_t{lane.all} / lane.group * lane.dim,
                          at = std::size_t{lane.first} / lane.group * lane.dim;
        for (std::uint32_t first = 0, some = 0; first < tokens; first += some) {
            some = std::min(tokens - first, most_tokens(lane, out));
            begin(lane, in.rows(first, some, tokens), before + first, some,
                  out.subspan(first * row, some * row));
            if (status s = pass(); !s) return s;
            for (std::size_t t = 0; t < std::size_t{first} + some; ++t)
                add(0.0F, [&](E* k, E* v) {
                    simd::encode(in.k, t * token + at, k, width_);
                    simd::encode(in.v, t * token + at, v, width_);
                });
        }
        return {};
    }

    /// Tokens whose queries may attend at once.
    [[nodiscard]] std::uint32_t most_tokens(const query_lane& lane, const tensor_span& out) const noexcept {
        const std::size_t each = lane.heads * lane.group * (out.holds<float>() ? 2U : lane.dim + 2U);
        return static_cast<std::uint32_t>(seen_.size() / each);
    }
    /// The queries of `tokens` tokens behind `before` others; rows of all of these are to come. Results go to out.
    void begin(const query_lane& lane, const layer_input& in, std::uint32_t before, std::uint32_t tokens,
               const tensor_span& out) noexcept {
        lane_ = lane, in_ = in, before_ = before, tokens_ = tokens, out_ = out;
        first_ = held_ = 0;
    }
    /// The next row: put(k, v) fills it, (width) numbers each. log_weight: of its entry, where entries have them.
    template <class Put> void add(float log_weight, Put&& put) noexcept {
        put(&k_[held_ * width_], &v_[held_ * width_]);
        if constexpr (Weighted) log_weight_[held_] = log_weight;
        ++held_;
        if (held_ == rows_ || first_ + held_ == before_ + tokens_) attend_held();
    }
    /// The next rows: k, v (rows, width), log_weight (rows) or null.
    void add(const E* k, const E* v, const float* log_weight, std::size_t rows) noexcept {
        for (std::size_t i = 0; i < rows; ++i)
            add(log_weight == nullptr ? 0.0F : log_weight[i], [&](E* to_k, E* to_v) {
                std::copy_n(k + i * width_, width_, to_k);
                std::copy_n(v + i * width_, width_, to_v);
            });
    }

  private:
    void attend_held() noexcept {
        const std::size_t end = first_ + held_;
        float* const sum = seen_.data() + std::size_t{tokens_} * lane_.heads * lane_.group;
        const simd::causal_stretch stretch{.begin = first_,
                                           .end = end == before_ + tokens_ ? simd::no_reach : end,
                                           .max = seen_.data(),
                                           .sum = sum,
                                           .acc = out_.holds<float>() ? nullptr : sum + (sum - seen_.data()),
                                           .log_weight = Weighted ? log_weight_.data() : nullptr};
        attend_prompt(lane_, in_, before_, tokens_, k_.data(), v_.data(), out_, causal_, simd::no_reach,
                      stretch);
        first_ = end, held_ = 0;
    }

    std::size_t rows_ = 0, width_ = 0;
    std::span<E> k_, v_;          ///< (rows, width)
    std::span<float> log_weight_; ///< (rows)
    std::span<float> causal_;     ///< scratch
    std::span<float> seen_; ///< max and sum (lane heads, T, G) each, and acc (.., D) where `out` has 16 bits
    query_lane lane_{};
    layer_input in_{};
    tensor_span out_{};
    std::uint32_t before_ = 0, tokens_ = 0;
    std::size_t first_ = 0, held_ = 0; ///< rows that have been attended; that wait
};

}} // namespace kvtl::v0
