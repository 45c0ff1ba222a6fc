// Compressor: a prefix of every row's coefficients in an orthonormal basis of its head. The basis is trained
// so that prefixes represent rows well.
//
// What:   x~ = B x for the key row of a head after RoPE, and for its value row; B is orthonormal. The first r
//         coefficients are stored in 16 bits, with one r for all rows. Scores are products of coefficients,
//         q~ . x~. Values are summed as coefficients and rotated back once per block.
// Basis:  kinds prefix_keys and prefix_values of the calibration file, one per KV head.
// Record: for each head of the lane r coefficients, padded to a multiple of 4 bytes.
// Cost:   r multiply-adds per score and per sum; r * D per query and per sum, once per block.
// Source: "MatryoshkaKV": trained on random prefixes; one rate for all heads, while its authors search one
//         per head.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/combine.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Plain: what window, sinks and waiting entries are.
template <element Plain = f16> struct orthogonal_prefix {
    static constexpr std::string_view name = "orthogonal_prefix";
    using plain_type = Plain;
    using coefficient = f16;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error = std::numeric_limits<double>::infinity(); // as much as r gives up
    static constexpr std::uint32_t calibrated =
        kind_bit(calibration_kind::prefix_keys) | kind_bit(calibration_kind::prefix_values);
    static constexpr std::uint32_t max_dim = 256;

    struct config {
        float rate = 0.5F; ///< share of the coefficients, above 0; 1 keeps all
        template <class Visit> void fields(Visit&& visit) { visit("rate", rate); }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept
            : shape_(shape),
              rank_(std::clamp(static_cast<std::uint32_t>(c.rate * static_cast<float>(shape.dim) + 0.5F), 1U,
                               std::max(shape.dim, 1U))) {}

        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            if (!(c.rate > 0 && c.rate <= 1))
                return status::failure(errc::invalid_argument,
                                       "compressor.rate is %g; valid: more than 0, to 1",
                                       static_cast<double>(c.rate));
            if (shape.dim > max_dim)
                return status::failure(errc::invalid_argument,
                                       "compressor: heads of %u numbers; valid: up to %u", shape.dim,
                                       max_dim);
            return {};
        }

        [[nodiscard]] record_bytes bytes() const noexcept { return {row_bytes(), row_bytes()}; }
        [[nodiscard, gnu::cold]] status check_calibration(const calibration_view& view) const {
            if (status s = view.check_inverse(calibration_kind::prefix_keys); !s) return s;
            return view.check_inverse(calibration_kind::prefix_values);
        }
        void bind(const calibration_view& view) noexcept {
            keys_ = view.basis(calibration_kind::prefix_keys, 0, 0);
            values_ = view.basis(calibration_kind::prefix_values, 0, 0);
            lane_heads_ = view.heads(calibration_kind::prefix_keys);
        }
        [[nodiscard]] state at(const codec_lane& lane) const noexcept {
            state s = *this;
            const std::size_t head = lane.layer * lane_heads_ + lane.first_head;
            s.keys_.data += head * shape_.dim * shape_.dim;
            s.values_.data += head * shape_.dim * shape_.dim;
            return s;
        }

        std::uint32_t encode_key(const Plain* row, std::uint32_t, std::byte* record) const noexcept {
            return put(row, keys_, record);
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            return put(row, values_, record);
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            rebuild(records, keys_, rows);
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            rebuild(records, values_, rows);
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            std::array<float, max_dim> spectrum;
            for (std::size_t g = 0; g < group; ++g) {
                simd::dot_rows(q + g * q_stride, prefix(keys_, head), spectrum.data());
                for (std::size_t i = 0; i < keys.count; ++i)
                    out[g * out_stride + i] =
                        simd::dot(spectrum.data(), coefficients(keys.record(i), head), rank_);
            }
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            std::array<simd::coefficient_row<coefficient>, simd::attend_block> rows;
            for (std::size_t i = 0; i < values.count; ++i)
                rows[i] = {coefficients(values.record(i), head), rank_};
            std::array<float, max_dim> sums, rebuilt;
            for (std::size_t g = 0; g < group; ++g) {
                simd::spectral_sums(weight + g * simd::attend_block, 1, simd::attend_block, rows.data(),
                                    values.count, 0, rank_, sums.data(), max_dim);
                const simd::coefficient_row<float> spectrum{sums.data(), rank_};
                simd::combine_rows(&spectrum, 1, prefix(values_, head), rebuilt.data(), max_dim);
                for (std::uint32_t d = 0; d < shape_.dim; ++d) acc[g * acc_stride + d] += rebuilt[d];
            }
        }

      private:
        [[nodiscard]] std::uint32_t row_bytes() const noexcept {
            return static_cast<std::uint32_t>((shape_.heads * rank_ * sizeof(coefficient) + 3) / 4 * 4);
        }
        [[nodiscard]] const coefficient* coefficients(const std::byte* record,
                                                      std::uint32_t head) const noexcept {
            return reinterpret_cast<const coefficient*>(record) + std::size_t{head} * rank_;
        }
        /// The first r directions of a head.
        [[nodiscard]] rows_view<float> prefix(const rows_view<float>& first,
                                              std::uint32_t head) const noexcept {
            return {first.data + std::size_t{head} * shape_.dim * shape_.dim, rank_, first.dim, first.stride};
        }
        std::uint32_t put(const Plain* row, const rows_view<float>& basis, std::byte* record) const noexcept {
            std::array<float, max_dim> x, c;
            std::memset(record, 0, row_bytes());
            auto* to = reinterpret_cast<coefficient*>(record);
            for (std::uint32_t h = 0; h < shape_.heads; ++h, row += shape_.dim, to += rank_) {
                simd::decode(row, x.data(), shape_.dim);
                simd::dot_rows(x.data(), prefix(basis, h), c.data());
                constexpr float largest = 65504.0F; // of 16 bits
                for (std::uint32_t i = 0; i < rank_; ++i) c[i] = std::clamp(c[i], -largest, largest);
                simd::encode(c.data(), to, rank_);
            }
            return row_bytes();
        }
        void rebuild(const records_view& records, const rows_view<float>& basis, Plain* rows) const noexcept {
            std::array<float, max_dim> x;
            for (std::size_t i = 0; i < records.count; ++i)
                for (std::uint32_t h = 0; h < shape_.heads; ++h, rows += shape_.dim) {
                    const simd::coefficient_row<coefficient> one{coefficients(records.record(i), h), rank_};
                    simd::combine_rows(&one, 1, prefix(basis, h), x.data(), max_dim);
                    simd::encode(x.data(), rows, shape_.dim);
                }
        }

        record_shape shape_{};
        std::uint32_t rank_ = 1;
        rows_view<float> keys_{}, values_{}; ///< of the lane's first head
        std::size_t lane_heads_ = 0;         ///< KV heads of a layer
    };
};

}} // namespace kvtl::v0
