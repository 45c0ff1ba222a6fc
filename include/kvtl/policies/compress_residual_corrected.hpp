// Compressor: records of another compressor for 32 tokens, a matrix of low rank for their error, and exact outliers (GEAR).
//
//   x ~= Q(x - S) + sum over j < r of a_j b_j^T + S        x: (32, D) of one head; a_j: (32), b_j: (D)
//
// What:   S are the outliers, the numbers furthest from the mean of their vector. For keys the vector is a channel, for values
//         a token. `Codec` encodes the mean in the place of an outlier, so that outliers widen no step. Subspace iteration
//         finds the r directions of largest energy in the error of all other numbers. An outlier is stored as its difference
//         from the sum of the other terms. With r = 0 and no outliers, the result is equal to that of `Codec`.
// Record: for each KV head of the lane the record of `Codec` for one head; then r times a_j and b_j (16 bits); then of each
//         number of S its place in (32, D) and its difference (2 bytes each). Keys and values alike. D = 64, 2 bits, r = 2 and
//         2 % outliers: an entry takes 48 + 24 + 10.25 bytes instead of 256.
// Cost:   scores: those of `Codec`; for each query and 32 tokens r (D + 32) multiply-adds, and one for each number of S.
//         Encoding takes (2 iterations + 1) * 2 * 32 D r multiply-adds for each of keys and values, and a selection of S.
//         The stack of `encode` holds 14 bytes for each of the 32 max_dim numbers, and less than 12 KiB more.
// Error:  the part of the error of `Codec` that r and S do not cover. Differences beyond 65504 are cut off, so such
//         numbers are worse than with `Codec`.
// Limits: codecs of granules with floats as plain_type, keys after RoPE, and no tables of their own. head_dim up to max_dim.
// Source: "GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM" (Kang et al. 2024,
//         section 3): quantised backbone, low rank by power iteration per head, sparse outliers. Deviations: its buffers are
//         the granules of `Codec`, in the prompt too, where the paper has one matrix for the whole prompt. Outliers are
//         counted per head and granule, not per vector: 2 % of a channel of 32 tokens is less than one number. They are the
//         numbers furthest from the mean, not the largest and the smallest in equal parts.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_prompt_svd.hpp>
#include <kvtl/policies/support/codec_name.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Codec: takes floats, so that nothing is rounded twice. Plain: what window, sinks and waiting entries are.
template <class Codec, element Plain = f16> struct residual_corrected {
    static_assert(std::same_as<typename Codec::plain_type, float>,
                  "[kvtl] residual_corrected: a codec whose plain_type is float, such as "
                  "int2_channel_group<float>");
    static_assert(Codec::granule > 1 && Codec::domain == key_domain::post_rope && !codec_per_lane<Codec> &&
                      !codec_shares<Codec> && !codec_keeps_keys<Codec> && !layer_wide_only<Codec>,
                  "[kvtl] residual_corrected: a codec of granules of one head after RoPE, without tables");
    static constexpr std::string_view outer_name = "residual_corrected";
    static constexpr std::string_view name = detail::codec_name<residual_corrected, Codec>::value;
    static constexpr engine_input needs = needs_of<Codec>();
    using plain_type = Plain;
    using coefficient = f16;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = Codec::granule;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error = std::numeric_limits<double>::infinity();
    static constexpr std::uint32_t max_rank = 8, max_dim = 256;
    /// Products with the residual that turn the subspace, which then has 0.9 of the energy that it can have, or more.
    static constexpr std::uint32_t iterations = 6;

    struct config {
        typename Codec::config codes{};
        std::uint32_t rank = 2; ///< r, of what the codes lose
        double outliers = 0.02; ///< share of the numbers of a head and granule that are kept apart
        template <class Visit> void fields(Visit&& visit) {
            codes.fields(visit);
            visit("rank", rank);
            visit("outliers", outliers);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept
            : shape_(shape), codec_(c.codes, {1, shape.dim}), rank_(std::min(c.rank, shape.dim)),
              outliers_(static_cast<std::uint32_t>(c.outliers * granule * shape.dim + 0.5)) {}

        /// Refuses a config that cannot work.
        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            if (c.rank > max_rank)
                return status::failure(errc::invalid_argument, "compressor.rank is %u; valid: 0 to %u",
                                       c.rank, max_rank);
            if (!(c.outliers >= 0 && c.outliers <= 0.25))
                return status::failure(errc::invalid_argument, "compressor.outliers is %g; valid: 0 to 0.25",
                                       c.outliers);
            if (shape.dim > max_dim)
                return status::failure(errc::invalid_argument,
                                       "shape.head_dim is %u; valid for corrected records: at most %u",
                                       shape.dim, max_dim);
            return check_settings<typename Codec::state>(c.codes, shape);
        }

        [[nodiscard]] record_bytes bytes() const noexcept {
            return {shape_.heads * head_bytes(codec_.bytes().key),
                    shape_.heads * head_bytes(codec_.bytes().value)};
        }

        std::uint32_t encode_key(const Plain* rows, std::uint32_t position,
                                 std::byte* record) const noexcept {
            encode<true>(rows, record, codec_.bytes().key, [&](const float* x, std::byte* out) {
                static_cast<void>(codec_.encode_key(x, position, out));
            });
            return bytes().key;
        }
        std::uint32_t encode_value(const Plain* rows, std::byte* record) const noexcept {
            encode<false>(rows, record, codec_.bytes().value, [&](const float* x, std::byte* out) {
                static_cast<void>(codec_.encode_value(x, out));
            });
            return bytes().value;
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            decode<true>(records, codec_.bytes().key, rows);
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            decode<false>(records, codec_.bytes().value, rows);
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            const std::uint32_t codes = codec_.bytes().key;
            codec_.score(q, q_stride, group, of_head(keys, head, codes), 0, out, out_stride);
            for (std::size_t first = 0; first < keys.count; first += granule) {
                const correction c = correction_of(keys, first, head, codes);
                for (std::size_t g = 0; g < group; ++g) {
                    const float* query = q + g * q_stride;
                    float* to = out + g * out_stride + first;
                    for (std::uint32_t j = 0; j < rank_; ++j)
                        simd::axpy(simd::dot(query, c.channels(j), shape_.dim), c.tokens(j), to, granule);
                    for (std::uint32_t i = 0; i < outliers_; ++i) {
                        const outlier o = c.number(i);
                        to[o.place / shape_.dim] += query[o.place % shape_.dim] * to_float(o.difference);
                    }
                }
            }
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            const std::uint32_t codes = codec_.bytes().value;
            codec_.accumulate(weight, group, of_head(values, head, codes), 0, acc, acc_stride);
            for (std::size_t first = 0; first < values.count; first += granule) {
                const correction c = correction_of(values, first, head, codes);
                for (std::size_t g = 0; g < group; ++g) {
                    const float* w = weight + g * simd::attend_block + first;
                    float* to = acc + g * acc_stride;
                    for (std::uint32_t j = 0; j < rank_; ++j)
                        simd::axpy(simd::dot(w, c.tokens(j), granule), c.channels(j), to, shape_.dim);
                    for (std::uint32_t i = 0; i < outliers_; ++i) {
                        const outlier o = c.number(i);
                        to[o.place % shape_.dim] += w[o.place / shape_.dim] * to_float(o.difference);
                    }
                }
            }
        }

      private:
        static constexpr std::size_t most = std::size_t{granule} * max_dim; ///< numbers of a head
        static_assert(granule == simd::attend_block && most <= 65536);

        struct outlier {
            std::uint16_t place; ///< token * D + channel
            coefficient difference;
        };
        /// What follows the codes of a head.
        struct correction {
            const std::byte* data;
            std::uint32_t dim, rank;
            [[nodiscard]] const coefficient* tokens(std::uint32_t j) const noexcept {
                return reinterpret_cast<const coefficient*>(data) + std::size_t{j} * (granule + dim);
            }
            [[nodiscard]] const coefficient* channels(std::uint32_t j) const noexcept {
                return tokens(j) + granule;
            }
            [[nodiscard]] outlier number(std::uint32_t i) const noexcept {
                return reinterpret_cast<const outlier*>(tokens(rank))[i];
            }
        };

        [[nodiscard]] std::uint32_t head_bytes(std::uint32_t codes) const noexcept {
            return codes + static_cast<std::uint32_t>(rank_ * (granule + shape_.dim) * sizeof(coefficient) +
                                                      outliers_ * sizeof(outlier));
        }
        [[nodiscard]] records_view of_head(records_view records, std::uint32_t head,
                                           std::uint32_t codes) const noexcept {
            records.data += std::size_t{head} * head_bytes(codes);
            return records;
        }
        [[nodiscard]] correction correction_of(const records_view& records, std::size_t first,
                                               std::uint32_t head, std::uint32_t codes) const noexcept {
            return {records.record(first / granule) + std::size_t{head} * head_bytes(codes) + codes,
                    shape_.dim, rank_};
        }

        template <bool Keys, class Encode>
        void encode(const Plain* rows, std::byte* record, std::uint32_t codes,
                    const Encode& encode_codes) const noexcept {
            const std::uint32_t dim = shape_.dim;
            alignas(64) std::array<float, most> x, y;
            std::array<std::uint16_t, most> place;
            for (std::uint32_t h = 0; h < shape_.heads; ++h, record += head_bytes(codes)) {
                for (std::uint32_t t = 0; t < granule; ++t)
                    simd::decode(rows + t * shape_.width() + h * dim, &x[t * dim], dim);
                pick<Keys>(x.data(), y.data(), place.data());
                encode_codes(y.data(), record);
                decode_codes<Keys>({record, granule, codes, nullptr, granule}, y.data());
                auto* const low_rank = reinterpret_cast<coefficient*>(record + codes);
                find_low_rank(x.data(), y.data(), place.data(), low_rank);
                const correction c{record + codes, dim, rank_};
                auto* const number =
                    reinterpret_cast<outlier*>(low_rank + std::size_t{rank_} * (granule + dim));
                for (std::uint32_t i = 0; i < outliers_; ++i) {
                    float difference = x[place[i]] - y[place[i]];
                    for (std::uint32_t j = 0; j < rank_; ++j)
                        difference -=
                            to_float(c.tokens(j)[place[i] / dim]) * to_float(c.channels(j)[place[i] % dim]);
                    number[i] = {place[i], rounded(difference)};
                }
            }
        }

        /// place: where the outliers are, ascending; y: x with means in their places.
        template <bool Keys> void pick(const float* x, float* y, std::uint16_t* place) const noexcept {
            const std::uint32_t dim = shape_.dim, n = granule * dim;
            const std::uint32_t vectors = Keys ? dim : granule, length = Keys ? granule : dim,
                                next = Keys ? dim : 1, vector = Keys ? 1 : dim;
            std::array<float, std::max(max_dim, granule)> mean;
            for (std::uint32_t v = 0; v < vectors; ++v) {
                double sum = 0; // of floats as large as they get
                for (std::uint32_t i = 0; i < length; ++i)
                    sum += static_cast<double>(x[v * vector + i * next]);
                mean[v] = static_cast<float>(sum / length);
                for (std::uint32_t i = 0; i < length; ++i)
                    y[v * vector + i * next] = std::fabs(x[v * vector + i * next] - mean[v]);
            }
            std::iota(place, place + n, std::uint16_t{0});
            std::nth_element(place, place + outliers_, place + n, [y](std::uint16_t a, std::uint16_t b) {
                return y[a] != y[b] ? y[a] > y[b] : a < b;
            });
            std::sort(place, place + outliers_);
            std::copy_n(x, n, y);
            for (std::uint32_t i = 0; i < outliers_; ++i)
                y[place[i]] = mean[Keys ? place[i] % dim : place[i] / dim];
        }

        /// a_j and b_j of x - y, in which outliers are left out.
        void find_low_rank(const float* x, const float* y, const std::uint16_t* place,
                           coefficient* out) const noexcept {
            if (rank_ == 0) return;
            const std::uint32_t dim = shape_.dim, n = granule * dim;
            alignas(64) std::array<float, most> lost;
            alignas(64) std::array<float, max_rank * granule> a;
            alignas(64) std::array<float, max_rank * max_dim> b;
            for (std::uint32_t i = 0; i < n; ++i) lost[i] = x[i] - y[i];
            for (std::uint32_t i = 0; i < outliers_; ++i) lost[place[i]] = 0.0F;
            const rows_view<float> rows{lost.data(), granule, dim, dim};
            for (std::uint32_t i = 0; i < rank_ * granule; ++i)
                a[i] = static_cast<float>(detail::random_unit(1, i) - 0.5);
            for (std::uint32_t turn = 0;; ++turn) {
                detail::orthonormalise(a.data(), rank_, granule);
                std::fill_n(b.data(), rank_ * dim, 0.0F);
                for (std::uint32_t j = 0; j < rank_; ++j)
                    for (std::uint32_t t = 0; t < granule; ++t)
                        simd::axpy(a[j * granule + t], rows.row(t), &b[j * dim], dim);
                if (turn == iterations) break;
                simd::dot_group(b.data(), rank_, dim, rows, a.data(), granule);
            }
            for (std::uint32_t j = 0; j < rank_; ++j, out += granule + dim) {
                simd::encode(&a[j * granule], out, granule);
                for (std::uint32_t d = 0; d < dim; ++d) out[granule + d] = rounded(b[j * dim + d]);
            }
        }
        [[nodiscard]] static coefficient rounded(float x) noexcept {
            constexpr float largest = largest_of<coefficient>();
            return from_float<coefficient>(std::clamp(x, -largest, largest));
        }

        template <bool Keys> void decode_codes(const records_view& one, float* x) const noexcept {
            if constexpr (Keys)
                codec_.decode_keys(one, x);
            else
                codec_.decode_values(one, x);
        }
        template <bool Keys>
        void decode(const records_view& records, std::uint32_t codes, Plain* rows) const noexcept {
            const std::uint32_t dim = shape_.dim;
            alignas(64) std::array<float, most> x;
            for (std::size_t first = 0; first < records.count; first += granule)
                for (std::uint32_t h = 0; h < shape_.heads; ++h) {
                    decode_codes<Keys>(of_head(records.slice(first, granule), h, codes), x.data());
                    const correction c = correction_of(records, first, h, codes);
                    for (std::uint32_t j = 0; j < rank_; ++j)
                        for (std::uint32_t t = 0; t < granule; ++t)
                            simd::axpy(to_float(c.tokens(j)[t]), c.channels(j), &x[t * dim], dim);
                    for (std::uint32_t i = 0; i < outliers_; ++i) {
                        const outlier o = c.number(i);
                        x[o.place] += to_float(o.difference);
                    }
                    for (std::uint32_t t = 0; t < granule; ++t)
                        simd::encode(&x[t * dim], rows + (first + t) * shape_.width() + h * dim, dim);
                }
        }

        record_shape shape_{};
        typename Codec::state codec_{};
        std::uint32_t rank_ = 0;
        std::uint32_t outliers_ = 0; ///< of a head and granule
    };
};

}} // namespace kvtl::v0
