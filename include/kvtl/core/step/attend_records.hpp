// Decode attention over stored entries, through the row codec.
//
// What:   one query group over a run of records, continuing a softmax state; the passes over a block of rows
//         are those of simd/attend.hpp, the codec supplies inner products and weighted sums. For raw<E> this
//         is simd::attend_rows to the bit.
// Shapes: q (G, D) f32; records of keys and of values, (N) each; log_weight (N) or null; state: partial of
//         (G, D). Limits as simd/attend.hpp.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend_mass.hpp>
#include <kvtl/slots/compressor.hpp>

namespace kvtl { inline namespace v0 {

/// Queries of one KV head of a lane.
struct head_queries {
    const float* q = nullptr; ///< query g is at q + g * stride
    std::size_t stride = 0;
    logit_rule logits{};
    std::uint32_t head = 0; ///< KV head of the lane
};

template <class Codec> class record_attention {
  public:
    record_attention(const Codec& codec, const head_queries& q, const records_view& keys,
                     const records_view& values) noexcept
        : codec_(&codec), q_(q), keys_(keys), values_(values) {}

    /// Adds the result to `p`; bit g of `queries` stands for query g.
    [[gnu::always_inline]] void attend(const float* log_weight, const partial& p, std::span<float> scratch,
                                       std::uint64_t queries = simd::all_queries) const noexcept {
        simd::attend_blocks(keys_.count, q_.logits, log_weight, p, scratch, queries, score(),
                            accumulate(p.dim));
    }
    /// The same for all queries, leaving the logit of query g and entry i at logit[g * logit_stride + i].
    void attend_keeping_logits(const float* log_weight, const partial& p, std::span<float> scratch,
                               float* logit, std::size_t logit_stride) const noexcept {
        simd::attend_blocks_keeping_logits(keys_.count, q_.logits, log_weight, p, scratch, logit,
                                           logit_stride, score(), accumulate(p.dim));
    }

  private:
    [[nodiscard]] auto score() const noexcept {
        return [this](std::size_t first, std::size_t n, std::size_t begin, std::size_t count, float* s)
            __attribute__((always_inline)) {
            codec_->score(q_.q + begin * q_.stride, q_.stride, count, keys_.slice(first, n), q_.head, s,
                          simd::attend_block);
        };
    }
    [[nodiscard]] auto accumulate(std::size_t dim) const noexcept {
        return [ this, dim ](std::size_t first, std::size_t n, std::size_t count, const float* s, float* acc)
            __attribute__((always_inline)) {
            codec_->accumulate(s, count, values_.slice(first, n), q_.head, acc, dim);
        };
    }

    const Codec* codec_;
    head_queries q_;
    records_view keys_, values_;
};

}} // namespace kvtl::v0
