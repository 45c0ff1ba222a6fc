// Exact attention of a prompt's chunk over the rows of its lane (prompt_rows.hpp): all at once where a segment holds them,
// else stretch by stretch, with what a stretch leaves of each query.
//
// What:   sums lie in `out` where these are floats. 16 bits cannot carry them from stretch to stretch: they lie in the arena
//         then, which is laid out for fewer rows meanwhile. Queries that there is no room for come later and read the rows
//         once more. The bits do not depend on any of this.
// Cost:   bytes read: the staged rows, once for every segment's worth of queries, or for every arena's worth of sums.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/attend_prompt.hpp>
#include <kvtl/core/step/prompt_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

template <class Types> class prompt_attention : public prompt_rows<Types> {
    using base = prompt_rows<Types>;

  protected:
    using base::first_page_, base::frames_, base::held_, base::p_, base::pages_, base::segment_, base::store_,
        base::x_;
    using base::hold, base::lay_out, base::row_k, base::row_v, base::whole;

  public:
    using base::arena_bytes, base::least_segment, base::least_staging;
    using typename base::arena, typename base::parts, typename base::store;

    prompt_attention() = default;
    prompt_attention(store& s, const parts& p) noexcept : base(s, p) {}

    /// Bytes of a pool in which segments of `rows` tokens are attended, not organised, with room for what stretches leave of
    /// the queries of a tile, or of a token.
    [[nodiscard]] static std::size_t attention_bytes(const model_extents& m, const lane_sizes& s,
                                                     std::uint32_t rows, std::uint32_t unit_pages,
                                                     const typename Types::clusterer_state& cluster,
                                                     std::uint32_t page_bytes) noexcept {
        carver c;
        const arena a = arena::take(c, m, s, rows, cluster);
        const std::size_t pages = std::size_t{least_staging(unit_pages)} + 1;
        const std::size_t queries = std::max<std::size_t>(simd::causal_tile, m.lane_queries());
        return a.work_begins +
               std::max(simd::causal_scratch_floats(m.dim) * sizeof(float), pages * page_bytes) +
               queries * sums_floats(m.dim) * sizeof(float);
    }
    /// What is left of a query between two stretches: acc (D), max and sum.
    [[nodiscard]] static constexpr std::size_t sums_floats(std::uint32_t dim) noexcept {
        return std::size_t{dim} + 2;
    }
    /// Bytes of a pool in which any prompt can be organised and attended.
    [[nodiscard]] static std::size_t least_bytes(const model_extents& m, const lane_sizes& s,
                                                 std::uint32_t page_rows, std::uint32_t unit_pages,
                                                 const typename Types::clusterer_state& cluster,
                                                 std::uint32_t page_bytes) noexcept {
        const std::uint32_t rows = least_segment(cluster, s, page_rows);
        const std::size_t organised = arena_bytes(m, s, rows, unit_pages, cluster, page_bytes);
        if (rows >= s.max_tokens) return organised; // one stretch
        return std::max(organised, attention_bytes(m, s, rows, unit_pages, cluster, page_bytes));
    }

    /// Causal attention of the chunk's T queries over rows [0, before + T). out: (T, HQ, D), this lane's
    /// heads only.
    template <class Source>
    [[nodiscard]] status attend(std::uint32_t lane_in_layer, const layer_input& in, std::uint32_t before,
                                std::uint32_t tokens, const numbers_span& out, Source&& source) noexcept {
        if (before + tokens <= segment_) {
            if (status s = hold(0, before + tokens, before + tokens, source); !s) return s;
            attend_prompt(p_.model, lane_in_layer, in, before, tokens, row_k(0), row_v(0), out, x_.causal);
            return {};
        }
        if (out.holds<float>())
            return attend_stretches(lane_in_layer, in, before, tokens, out, source, segment_,
                                    {0, 0, x_.seen_max.data(), x_.seen_sum.data()});
        const std::uint32_t organised = segment_;
        const std::span<float> sums = lay_out_beside_sums();
        const std::size_t queries = p_.model.lane_queries(), of_token = queries * sums_floats(p_.model.dim);
        const std::size_t some = std::min<std::size_t>(sums.size() / of_token, tokens);
        float* const acc = sums.data() + 2 * some * queries;
        const status done =
            attend_stretches(lane_in_layer, in, before, tokens, out, source, static_cast<std::uint32_t>(some),
                             {0, 0, sums.data(), sums.data() + some * queries, acc});
        lay_out(organised);
        return done;
    }

  private:
    /// The same stretch by stretch of rows, for `most` queries at a time, of which `left` has room.
    template <class Source>
    [[nodiscard]] status attend_stretches(std::uint32_t lane_in_layer, const layer_input& in,
                                          std::uint32_t before, std::uint32_t tokens, const numbers_span& out,
                                          Source& source, std::uint32_t most,
                                          simd::causal_stretch left) noexcept {
        for (std::uint32_t first = 0; first < tokens; first += most) {
            const std::uint32_t some = std::min(most, tokens - first), seen = before + first + some;
            const layer_input queries = in.rows(first, some, tokens);
            const auto to = out.subspan(first * (out.size() / tokens), some * (out.size() / tokens));
            for (std::uint32_t begin = 0; begin < seen; begin += segment_) {
                const std::uint32_t end = std::min(begin + segment_, seen);
                if (status s = hold(begin, end, end, source); !s) return s;
                left.begin = begin, left.end = end == seen ? simd::no_reach : end;
                attend_prompt(p_.model, lane_in_layer, queries, before + first, some, row_k(held_.at(begin)),
                              row_v(held_.at(begin)), to, x_.causal, left);
            }
        }
        return {};
    }

    /// Divides the pool's memory for attention alone: fewer rows, pages to read, and behind them the sums, which it returns.
    [[nodiscard]] std::span<float> lay_out_beside_sums() noexcept {
        const std::span<std::byte> all = frames_->memory();
        const std::size_t page = store_->format().page_bytes;
        const auto needs = [&](std::uint32_t rows) {
            return attention_bytes(p_.model, p_.sizes, rows, p_.unit_pages, *p_.cluster,
                                   store_->format().page_bytes);
        };
        std::uint32_t rows = std::max(least_segment(), whole(segment_ / 4));
        if (needs(rows) > all.size()) rows = least_segment();
        lay_out(rows);
        const std::size_t spare = (all.size() - needs(rows)) / page;
        pages_ = std::min<std::uint32_t>(pages_, least_staging(p_.unit_pages) +
                                                     static_cast<std::uint32_t>(spare / 4));
        const std::size_t begin =
            std::max(x_.work_begins + x_.causal.size_bytes(), (first_page_ + pages_) * page);
        frames_->note_used(static_cast<std::uint32_t>(all.size() / page));
        return {reinterpret_cast<float*>(all.data() + begin), (all.size() - begin) / sizeof(float)};
    }
};

}} // namespace kvtl::v0
