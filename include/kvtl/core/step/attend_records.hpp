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
#include <kvtl/simd/hadamard.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// Queries of one KV head of a lane.
struct head_queries {
    const float* q = nullptr; ///< query g is at q + g * stride
    std::size_t stride = 0;
    logit_rule logits{};
    std::uint32_t head = 0; ///< KV head of the lane
};

/// Records whose turn is next, for memory to be asked for while others are attended. Half of them at a time, keys before
/// scores are taken and values between scores and the weighted sums: a core that is asked for more lines than it has room to
/// wait for stands still (bench/results, *The next unit's page*). Once: a second call asks for nothing. Always inlined: gcc
/// takes a function that does little but this for one without effect, and drops the call.
struct coming_records {
    std::span<const std::byte> keys{}, values{};

    [[gnu::always_inline]] void ask_for_keys() noexcept {
        for (std::size_t at = 0; at < keys.size(); at += 64) simd::prefetch(keys.data() + at);
        keys = {};
    }
    [[gnu::always_inline]] void ask_for_values() noexcept {
        for (std::size_t at = 0; at < values.size(); at += 64) simd::prefetch(values.data() + at);
        values = {};
    }
    /// All of a small unit that is some units ahead: into the L2 cache.
    [[gnu::always_inline]] void ask_for_all_later() noexcept {
        for (const auto& some : {keys, values})
            for (std::size_t at = 0; at < some.size(); at += 64) simd::prefetch_later(some.data() + at);
    }
};

template <class Codec> class record_attention {
  public:
    record_attention(const Codec& codec, const head_queries& q, const records_view& keys,
                     const records_view& values) noexcept
        : codec_(&codec), q_(q), keys_(keys), values_(values) {}

    /// Adds the result to `p`; bit g of `queries` stands for query g. `next` is asked for meanwhile.
    [[gnu::always_inline]] void attend(const float* log_weight, const partial& p, std::span<float> scratch,
                                       std::uint64_t queries, coming_records& next) const noexcept {
        next.ask_for_keys();
        if constexpr (rotates)
            return rotated(p, queries,
                           [&](const auto& records, const partial& some, std::uint32_t, std::uint64_t mask) {
                               records.attend(log_weight, some, scratch, mask, next);
                           });
        if constexpr (relaxes)
            if (q_.logits.relaxed && simd::relaxed_products_of(p.dim))
                return attend_rounded(log_weight, p, scratch, queries, next);
        simd::attend_blocks(
            keys_.count, q_.logits, log_weight, p, scratch, queries, score(),
            [ sums = accumulate(p.dim), &next ](std::size_t first, std::size_t n, std::size_t count,
                                                const float* s, float* acc) __attribute__((always_inline)) {
                next.ask_for_values();
                sums(first, n, count, s, acc);
            });
    }
    [[gnu::always_inline]] void attend(const float* log_weight, const partial& p, std::span<float> scratch,
                                       std::uint64_t queries = simd::all_queries) const noexcept {
        coming_records nothing;
        attend(log_weight, p, scratch, queries, nothing);
    }
    /// The same for all queries, leaving the logit of query g and entry i at logit[g * logit_stride + i].
    void attend_keeping_logits(const float* log_weight, const partial& p, std::span<float> scratch,
                               float* logit, std::size_t logit_stride) const noexcept {
        if constexpr (rotates)
            return rotated(p, simd::all_queries,
                           [&](const auto& records, const partial& some, std::uint32_t g, std::uint64_t) {
                               records.attend_keeping_logits(log_weight, some, scratch,
                                                             logit + g * logit_stride, logit_stride);
                           });
        simd::attend_blocks_keeping_logits(keys_.count, q_.logits, log_weight, p, scratch, logit,
                                           logit_stride, score(), accumulate(p.dim));
    }

  private:
    /// The codec rotates what another one encodes.
    static constexpr bool rotates = requires(const Codec& codec) { codec.inner(); };
    /// The codec has relaxed products, and the processor, too.
    static constexpr bool relaxes =
        !rotates && simd::has_relaxed_products<simd::default_arch, typename scored_rows<Codec>::type>;
    void attend_rounded(const float* log_weight, const partial& p, std::span<float> scratch,
                        std::uint64_t queries, coming_records& next) const noexcept requires relaxes {
        simd::attend_rounded<simd::default_arch, typename Codec::rounded_type>(
            q_.q, q_.stride, keys_.count, q_.logits, log_weight, p, scratch, queries,
            [this](const auto& rounded, std::size_t first, std::size_t n, std::size_t begin,
                   std::size_t count, float* s) {
                codec_->score_rounded(rounded, begin, count, keys_.slice(first, n), q_.head, s,
                                      simd::attend_block);
            },
            [this, dim = p.dim, &next](std::size_t first, std::size_t n, std::size_t count, const float* s,
                                       float* acc) {
                next.ask_for_values();
                if constexpr (requires { &Codec::accumulate_relaxed; })
                    codec_->accumulate_relaxed(s, count, values_.slice(first, n), q_.head, acc, dim);
                else
                    codec_->accumulate(s, count, values_.slice(first, n), q_.head, acc, dim);
            });
    }

    /// Queries are rotated once, and so is the sum of the rotated values: four queries at a time, as kernels take them.
    /// attend(records, partial, g, mask) is for queries g and on.
    template <class Attend>
    void rotated(const partial& p, std::uint64_t queries, const Attend& attend) const noexcept {
        constexpr std::uint32_t at_once = 4, most = Codec::most_numbers;
        alignas(64) float turned[at_once * most], memory[partial_floats(at_once, most)];
        for (std::uint32_t g = 0; g < p.group; g += at_once, queries >>= at_once) {
            const std::uint32_t count = std::min(at_once, p.group - g);
            if ((queries & ((1U << at_once) - 1)) == 0) continue;
            for (std::uint32_t i = 0; i < count; ++i) {
                std::copy_n(q_.q + (g + i) * q_.stride, p.dim, turned + std::size_t{i} * p.dim);
                simd::hadamard(turned + std::size_t{i} * p.dim, p.dim);
            }
            const partial some = partial_at(memory, count, p.dim);
            reset(some);
            attend(record_attention<std::remove_cvref_t<decltype(codec_->inner())>>(
                       codec_->inner(), {turned, p.dim, q_.logits, 0}, codec_->inner_keys(keys_, q_.head),
                       codec_->inner_values(values_, q_.head)),
                   some, g, queries);
            for (std::uint32_t i = 0; i < count; ++i)
                simd::hadamard(some.acc + std::size_t{i} * p.dim, p.dim);
            merge({p.max + g, p.sum + g, p.acc + std::size_t{g} * p.dim, count, p.dim}, some);
        }
    }

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
