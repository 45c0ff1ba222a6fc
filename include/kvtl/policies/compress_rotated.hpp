// Compressor: another compressor's records of rotated entries, so that channels of large numbers cost no accuracy.
//
// What:   keys and values are stored as H k and H v, with H the Walsh-Hadamard transform of a head (simd/hadamard.hpp).
//         Attention rotates a query once per run of records, as q . k = H q . H k, and the weighted sum back once. Rows are
//         rotated one by one only when they are encoded or decoded.
// Record: for each KV head of the lane the record of `Codec` for one head. Keys and values alike.
// Error:  the length of a row's error is that of `Codec` for the rotated row, whose largest number is at most
//         sqrt(B) times and mostly far below the row's. Any number of a row may have any part of it.
// Cost:   for a run of records (a page, or all that a lane keeps in memory) and each query two transforms of D log2 B
//         additions, beside 2 D multiply-adds per entry.
// Limits: codecs of single entries with floats as plain_type, records of one size, keys after RoPE, and no tables of
//         their own. D is a multiple of 8, at most 512.
// Source: QuaRot (Ashkboos et al. 2024, section 4): Hadamard matrices per head around a quantised cache. The signs of
//         its randomised matrices are left out.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/codec_name.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/hadamard.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <limits>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Codec: takes floats, so that nothing is rounded between rotation and code. Plain: what window, sinks and waiting
/// entries are.
template <class Codec, element Plain = f16> struct rotated {
    static_assert(std::same_as<typename Codec::plain_type, float>,
                  "[kvtl] rotated: a codec whose plain_type is float, such as int4_group<float>");
    static_assert(
        holds(codec_is_plain<Codec>) && !layer_wide_only<Codec>,
        "[kvtl] rotated: a codec of single entries of one head after RoPE, with records of one size, no "
        "tables and no rule about units");
    static constexpr std::string_view outer_name = "rotated";
    static constexpr std::string_view name = detail::codec_name<rotated, Codec>::value;
    static constexpr engine_input needs = needs_of<Codec>();
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error = std::numeric_limits<double>::infinity();
    using config = typename Codec::config;

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept
            : shape_(shape), codec_(c, {1, shape.dim}), head_(codec_.bytes()) {}

        /// Refuses head sizes with small blocks, and settings that `Codec` refuses.
        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            if (shape.dim % 8 != 0 || shape.dim > most)
                return status::failure(
                    errc::invalid_argument,
                    "shape.head_dim is %u; valid for rotated entries: a multiple of 8, at most %u", shape.dim,
                    most);
            return check_settings<typename Codec::state>(c, shape);
        }

        [[nodiscard]] record_bytes bytes() const noexcept {
            return {shape_.heads * head_.key, shape_.heads * head_.value};
        }

        std::uint32_t encode_key(const Plain* row, std::uint32_t position, std::byte* record) const noexcept {
            float x[most];
            for (std::uint32_t h = 0; h < shape_.heads; ++h, record += head_.key) {
                rotate(row + std::size_t{h} * shape_.dim, x);
                static_cast<void>(codec_.encode_key(x, position, record));
            }
            return bytes().key;
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            float x[most];
            for (std::uint32_t h = 0; h < shape_.heads; ++h, record += head_.value) {
                rotate(row + std::size_t{h} * shape_.dim, x);
                static_cast<void>(codec_.encode_value(x, record));
            }
            return bytes().value;
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            decode(records, head_.key, rows,
                   [this](const records_view& one, float* x) { codec_.decode_keys(one, x); });
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            decode(records, head_.value, rows,
                   [this](const records_view& one, float* x) { codec_.decode_values(one, x); });
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            float x[at_once * most];
            for (std::size_t g = 0; g < group; g += at_once) {
                const std::size_t n = std::min(at_once, group - g);
                for (std::size_t i = 0; i < n; ++i) rotate(q + (g + i) * q_stride, x + i * shape_.dim);
                codec_.score(x, shape_.dim, n, of_head(keys, head, head_.key), 0, out + g * out_stride,
                             out_stride);
            }
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            float x[at_once * most];
            for (std::size_t g = 0; g < group; g += at_once) {
                const std::size_t n = std::min(at_once, group - g);
                std::fill_n(x, n * shape_.dim, 0.0F);
                codec_.accumulate(weight + g * simd::attend_block, n, of_head(values, head, head_.value), 0,
                                  x, shape_.dim);
                for (std::size_t i = 0; i < n; ++i) {
                    simd::hadamard(x + i * shape_.dim, shape_.dim);
                    simd::add(x + i * shape_.dim, acc + (g + i) * acc_stride, shape_.dim);
                }
            }
        }

        /// What the rotated rows of a head are for attention, which rotates queries and sums once per run of records
        /// (core/step/attend_records.hpp).
        static constexpr std::uint32_t most_numbers = 512;
        [[nodiscard]] const typename Codec::state& inner() const noexcept { return codec_; }
        [[nodiscard]] records_view inner_keys(const records_view& keys, std::uint32_t head) const noexcept {
            return of_head(keys, head, head_.key);
        }
        [[nodiscard]] records_view inner_values(const records_view& values,
                                                std::uint32_t head) const noexcept {
            return of_head(values, head, head_.value);
        }

      private:
        static constexpr std::uint32_t most = most_numbers;
        static constexpr std::size_t at_once = 4; ///< queries: as many as kernels take together

        template <element E> void rotate(const E* in, float* out) const noexcept {
            simd::decode(in, out, shape_.dim);
            simd::hadamard(out, shape_.dim);
        }
        [[nodiscard]] static records_view of_head(records_view records, std::uint32_t head,
                                                  std::uint32_t bytes) noexcept {
            records.data += std::size_t{head} * bytes;
            return records;
        }
        template <class Decode>
        void decode(const records_view& records, std::uint32_t bytes, Plain* rows,
                    const Decode& of) const noexcept {
            float x[most];
            for (std::size_t i = 0; i < records.count; ++i)
                for (std::uint32_t h = 0; h < shape_.heads; ++h, rows += shape_.dim) {
                    of(of_head(records.slice(i, 1), h, bytes), x);
                    simd::hadamard(x, shape_.dim);
                    simd::encode(x, rows, shape_.dim);
                }
        }

        record_shape shape_{};
        typename Codec::state codec_{};
        record_bytes head_{};
    };
};

}} // namespace kvtl::v0
