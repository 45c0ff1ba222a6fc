// Compressor: codes of 8 bits as two planes of 4 bits. The first plane is a complete 4-bit code by itself.
//
// What:   the coarse plane holds a row in 4 bits. The fine plane holds the error of the coarse plane, also in 4 bits.
//         Each plane has its own steps, by least squares. Inner products and weighted sums are computed in
//         registers from the codes of each plane, and added.
// Record: for each KV head of the lane the record of int4_group for the coarse plane, then that for the fine plane. Keys
//         and values alike. D = 64: 36 + 36 bytes.
// Error:  both planes: 1/15 of 1/15 of the largest magnitude of a group of 32 numbers, and the rounding of the fine
//         steps to bf16. On normal numbers the mean square is 0.008 (coarse plane) and 0.00003 (both) of a number's.
// Cost:   attention reads 1.06 times the bytes of int8_row and runs the 4-bit kernels twice. Encoding takes some
//         twenty passes over a row.
// Limits: stores read both planes: a unit's coarse plane does not lie in pages of its own.
// Source: two-stage residual quantisation; steps as in compress_int_group.hpp.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_int_group.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Plain: what window, sinks and waiting entries are.
template <element Plain = f16> struct nibble_planes {
    using plane = int4_group<float>;
    static constexpr std::string_view name = "nibble_planes";
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error =
        plane::relative_error * plane::relative_error + (std::same_as<Plain, bf16> ? 0x1p-8 : 0x1p-11);
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const record_shape& shape) noexcept
            : shape_(shape), plane_({}, {1, shape.dim}), plane_bytes_(plane_.bytes().key) {}

        /// Refuses rows that encoding has no room for.
        [[nodiscard]] static status check(const config&, const record_shape& shape) noexcept {
            if (shape.dim <= most) return {};
            return status::failure(errc::invalid_argument,
                                   "shape.head_dim is %u; valid for nibble_planes: at most %u", shape.dim,
                                   most);
        }

        [[nodiscard]] record_bytes bytes() const noexcept { return {row_bytes(), row_bytes()}; }

        std::uint32_t encode_key(const Plain* row, std::uint32_t, std::byte* record) const noexcept {
            float x[most], coarse[most];
            for (std::uint32_t h = 0; h < shape_.heads; ++h, row += shape_.dim, record += 2 * plane_bytes_) {
                simd::decode(row, x, shape_.dim);
                static_cast<void>(plane_.encode_key(x, 0, record));
                plane_.decode_keys({record, 1, plane_bytes_}, coarse);
                simd::axpy(-1.0F, coarse, x, shape_.dim);
                static_cast<void>(plane_.encode_key(x, 0, record + plane_bytes_));
            }
            return row_bytes();
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            return encode_key(row, 0, record);
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            float x[most], fine[most];
            for (std::size_t i = 0; i < records.count; ++i)
                for (std::uint32_t h = 0; h < shape_.heads; ++h, rows += shape_.dim) {
                    const records_view one = records.slice(i, 1);
                    plane_.decode_keys(plane_of(one, h, 0), x);
                    plane_.decode_keys(plane_of(one, h, 1), fine);
                    simd::add(fine, x, shape_.dim);
                    simd::encode(x, rows, shape_.dim);
                }
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            decode_keys(records, rows);
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            constexpr std::size_t at_once = 4, block = simd::attend_block;
            float fine[at_once * block];
            plane_.score(q, q_stride, group, plane_of(keys, head, 0), 0, out, out_stride);
            for (std::size_t g = 0; g < group; g += at_once) {
                const std::size_t n = std::min(at_once, group - g);
                plane_.score(q + g * q_stride, q_stride, n, plane_of(keys, head, 1), 0, fine, block);
                for (std::size_t j = 0; j < n; ++j)
                    simd::add(fine + j * block, out + (g + j) * out_stride, keys.count);
            }
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            for (const std::uint32_t i : {0U, 1U})
                plane_.accumulate(weight, group, plane_of(values, head, i), 0, acc, acc_stride);
        }

      private:
        static constexpr std::uint32_t most = 512; ///< numbers of a head

        [[nodiscard]] std::uint32_t row_bytes() const noexcept { return shape_.heads * 2 * plane_bytes_; }
        /// The coarse (0) or the fine plane (1) of a head.
        [[nodiscard]] records_view plane_of(records_view records, std::uint32_t head,
                                            std::uint32_t which) const noexcept {
            records.data += std::size_t{2 * head + which} * plane_bytes_;
            return records;
        }

        record_shape shape_{};
        typename plane::state plane_{};
        std::uint32_t plane_bytes_ = 0;
    };
};

}} // namespace kvtl::v0
