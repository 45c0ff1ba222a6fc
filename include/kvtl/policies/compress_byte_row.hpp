// Compressor: codes of one byte with one scale per row: signed bytes, or E4M3 floats.
//
// What:   number d of a row is code[d] * scale, scale = largest magnitude / the largest code. Signed bytes have equal
//         steps. E4M3 has steps of an eighth of the power of two below the number: small numbers of a row keep three
//         bits. Inner products and weighted sums are computed from the codes in registers. The scale is applied once
//         per row: to the logit of a key and to the weight of a value.
// Record: for each KV head of the lane a scale (f32), then D codes, padded to a multiple of 4 bytes. Keys and
//         values alike: D + 4 bytes instead of 2 D.
// Error:  half a step: 0.4 % of the row's largest magnitude (signed bytes) or 3.6 % (E4M3; 6.3 % of a number, but not
//         less than 2^-18 / 1.75 of the largest magnitude), plus the rounding to Plain if rows are decoded.
// Cost:   attention reads half of the bytes of f16; encoding reads a row twice.
// Source: E4M3: "FP8 Formats for Deep Learning" (Micikevicius et al. 2022, section 3), with its scale per row.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>
#include <kvtl/slots/compressor.hpp>

#include <cassert>
#include <cstring>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Code: std::int8_t or simd::e4m3. Plain: what window, sinks and waiting entries are.
template <simd::byte_code Code, element Plain = f16> struct byte_row {
    static constexpr bool floating = std::same_as<Code, simd::e4m3>;
    static constexpr std::string_view name = floating ? "fp8_row" : "int8_row";
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error =
        (floating ? 16.0 / 448 : 0.5 / 127) + (std::same_as<Plain, bf16> ? 0x1p-8 : 0x1p-11);
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const record_shape& shape) noexcept
            : shape_(shape), head_bytes_((sizeof(float) + shape.dim + 3) / 4 * 4) {}

        [[nodiscard]] record_bytes bytes() const noexcept { return {row_bytes(), row_bytes()}; }

        std::uint32_t encode_key(const Plain* row, std::uint32_t, std::byte* record) const noexcept {
            for (std::uint32_t h = 0; h < shape_.heads; ++h, row += shape_.dim, record += head_bytes_) {
                std::memset(record, 0, head_bytes_); // what follows the last code is stored too
                const float scale = simd::quantise(row, codes(record), shape_.dim);
                std::memcpy(record, &scale, sizeof scale);
            }
            return row_bytes();
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            return encode_key(row, 0, record);
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            for (std::size_t i = 0; i < records.count; ++i)
                for (std::uint32_t h = 0; h < shape_.heads; ++h, rows += shape_.dim) {
                    const std::byte* of_head = records.record(i) + std::size_t{h} * head_bytes_;
                    simd::dequantise(codes(of_head), scale(of_head), rows, shape_.dim);
                }
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            decode_keys(records, rows);
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            simd::score_rows<simd::default_arch>(q, group, q_stride, codes_of(keys, head), out, out_stride);
            scale_scores(group, keys, head, out, out_stride);
        }
        /// score() and accumulate() with relaxed products, for simd/attend.hpp's attend_rounded.
        using rounded_type = Code;
        template <class Rounded>
        void score_rounded(const Rounded& q, std::size_t begin, std::size_t group, const records_view& keys,
                           std::uint32_t head, float* out, std::size_t out_stride)
            const noexcept requires simd::has_relaxed_products<simd::default_arch, Code> {
            simd::score_rounded(q, begin, group, codes_of(keys, head), out, out_stride);
            scale_scores(group, keys, head, out, out_stride);
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            scaled<4>(
                weight, group, values,
                head, [&](const float* some, std::size_t n, std::size_t g) __attribute__((always_inline)) {
                    simd::accumulate_rows<simd::default_arch>(some, n, codes_of(values, head),
                                                              acc + g * acc_stride, acc_stride);
                });
        }
        void accumulate_relaxed(const float* weight, std::size_t group, const records_view& values,
                                std::uint32_t head, float* acc, std::size_t acc_stride)
            const noexcept requires simd::has_relaxed_products<simd::default_arch, Code> {
            scaled<8>(weight, group, values, head, [&](const float* some, std::size_t n, std::size_t g) {
                simd::accumulate_relaxed<simd::default_arch>(some, n, codes_of(values, head),
                                                             acc + g * acc_stride, acc_stride);
            });
        }

      private:
        [[nodiscard]] std::uint32_t row_bytes() const noexcept { return shape_.heads * head_bytes_; }
        [[nodiscard]] static Code* codes(std::byte* of_head) noexcept {
            return reinterpret_cast<Code*>(of_head + sizeof(float));
        }
        [[nodiscard]] static const Code* codes(const std::byte* of_head) noexcept {
            return reinterpret_cast<const Code*>(of_head + sizeof(float));
        }
        [[nodiscard]] static float scale(const std::byte* of_head) noexcept {
            float x = 0;
            std::memcpy(&x, of_head, sizeof x);
            return x;
        }
        [[nodiscard]] rows_view<Code> codes_of(const records_view& records,
                                               std::uint32_t head) const noexcept {
            return {codes(records.data + std::size_t{head} * head_bytes_), records.count, shape_.dim,
                    records.stride};
        }
        void scale_scores(std::size_t group, const records_view& keys, std::uint32_t head, float* out,
                          std::size_t out_stride) const noexcept {
            float scales[simd::attend_block];
            scales_of(keys, head, scales);
            for (std::size_t g = 0; g < group; ++g)
                for (std::size_t i = 0; i < keys.count; ++i) out[g * out_stride + i] *= scales[i];
        }
        /// Weights times scales, of up to AtOnce queries: sums(scaled, queries, first query).
        template <std::size_t AtOnce, class Sums>
        [[gnu::always_inline]] void scaled(const float* weight, std::size_t group, const records_view& values,
                                           std::uint32_t head, const Sums& sums) const noexcept {
            constexpr std::size_t block = simd::attend_block;
            float scales[block], by_scale[AtOnce * block];
            scales_of(values, head, scales);
            for (std::size_t g = 0; g < group; g += AtOnce) {
                const std::size_t n = std::min(AtOnce, group - g);
                for (std::size_t j = 0; j < n; ++j)
                    for (std::size_t i = 0; i < values.count; ++i)
                        by_scale[j * block + i] = weight[(g + j) * block + i] * scales[i];
                sums(by_scale, n, g);
            }
        }
        void scales_of(const records_view& records, std::uint32_t head, float* scales) const noexcept {
            assert(records.count <= simd::attend_block);
            for (std::size_t i = 0; i < records.count; ++i)
                scales[i] = scale(records.record(i) + std::size_t{head} * head_bytes_);
        }

        record_shape shape_{};
        std::uint32_t head_bytes_ = 0;
    };
};

template <element Plain = f16> using int8_row = byte_row<std::int8_t, Plain>;
template <element Plain = f16> using fp8_row = byte_row<simd::e4m3, Plain>;

}} // namespace kvtl::v0
