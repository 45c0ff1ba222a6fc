// Decode attention that also tells how much attention each row received.
//
// What:   attend_rows (attend.hpp) keeps per query a maximum and a sum; the weight of a single row is
//         lost. Here the logits of all rows stay in memory of the caller until the maximum is final, and
//         then become shares of the softmax: the feedback that eviction by attention mass lives on.
// Shapes: q (G,D) f32; keys, values (N,D) of E; logit (G,N) with a stride from query to query; mass (N).
// Cost:   the rows' inner products are taken twice, the second time from the L1 cache; G exponentials per
//         row.
// Limits: as attend_rows. Rows with log_weight = -inf get mass 0.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/softmax.hpp>

#include <cmath>

namespace kvtl { inline namespace v0 { namespace simd {

/// attend_blocks (attend.hpp) for all queries, which leaves the logit of query g and row i at
/// logit[g * logit_stride + i].
template <class Arch = default_arch, class Score, class Accumulate>
void attend_blocks_keeping_logits(std::size_t rows, const logit_rule& rule, const float* log_weight,
                                  const partial& p, std::span<float> scratch, float* logit,
                                  std::size_t logit_stride, Score&& score, Accumulate&& accumulate) noexcept {
    attend_blocks<Arch>(
        rows, rule, log_weight, p, scratch, all_queries,
        [&](std::size_t first, std::size_t n, std::size_t begin, std::size_t count, float* s) {
            score(first, n, begin, count, s);
            for (std::size_t g = 0; g < count; ++g) {
                float* kept = logit + (begin + g) * logit_stride + first;
                std::copy_n(s + g * attend_block, n, kept);
                to_logits<Arch>(rule, kept, n);
                if (log_weight != nullptr) simd::add<Arch>(log_weight + first, kept, n);
            }
        },
        accumulate);
}

/// attend_blocks_keeping_logits for plain rows.
template <class Arch = default_arch, element E>
void attend_rows_keeping_logits(const float* q, std::size_t q_stride, const logit_rule& rule,
                                rows_view<E> keys, rows_view<E> values, const float* log_weight,
                                const partial& p, std::span<float> scratch, float* logit,
                                std::size_t logit_stride) noexcept {
    attend_blocks_keeping_logits<Arch>(
        keys.count, rule, log_weight, p, scratch, logit, logit_stride,
        [&](std::size_t first, std::size_t n, std::size_t begin, std::size_t count, float* s) {
            score_rows<Arch>(q + begin * q_stride, count, q_stride, keys.slice(first, n), s, attend_block);
        },
        [&](std::size_t first, std::size_t n, std::size_t count, const float* s, float* acc) {
            accumulate_rows<Arch>(s, count, values.slice(first, n), acc, p.dim);
        });
}

/// Logits become shares of their query's softmax, in place; `p` has seen all rows. mass[i] = their mean over
/// the queries.
template <class Arch = default_arch>
void shares_of_softmax(float* logit, std::size_t logit_stride, std::size_t rows, const partial& p,
                       float* mass) noexcept {
    std::fill_n(mass, rows, 0.0F);
    for (std::size_t g = 0; g < p.group; ++g) {
        float* s = logit + g * logit_stride;
        static_cast<void>(exp_shifted_sum<Arch>(s, rows, p.max[g]));
        simd::scale<Arch>(1.0F / p.sum[g], s, rows);
        axpy<Arch>(1.0F / static_cast<float>(p.group), s, mass, rows);
    }
}

}}} // namespace kvtl::v0::simd
