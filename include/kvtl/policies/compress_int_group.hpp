// Compressor: codes of 4 or of 2 bits with a scale per group of 32 or 64 numbers of a row.
//
// What:   number d of a row is level[code] * step, plus the group's middle if zero_point is set. Levels are symmetric: for 4 bits
//         -7.5, -6.5, .. 7.5. The step is chosen by least squares (simd/packed.hpp). Inner products and weighted sums are
//         computed from the codes in registers.
// Record: for each KV head of the lane the steps of its groups (bf16), their middles (bf16) if zero_point is set, then D codes,
//         padded to a multiple of 4 bytes. Keys and values alike. D = 64, 4 bits, groups of 32: 36 bytes instead of 128.
// Error:  half of the plain step, which is largest magnitude / 7.5 (4 bits) or / 1.5 (2 bits), and the rounding of
//         steps and middles to bf16.
// Cost:   attention reads 3.6 (4 bits) or 6.4 (2 bits) times fewer bytes than of f16. Encoding takes some ten passes over a row.
// Source: groups of 4 bits as in FlexGen (section 5); scales by least squares instead of the largest magnitude.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/packed.hpp>
#include <kvtl/slots/compressor.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

/// Plain: what window, sinks and waiting entries are.
template <std::size_t Bits, element Plain = f16> struct int_group {
    using format = simd::packed_format<Bits>;
    static constexpr std::string_view name = Bits == 4 ? "int4_group" : "int2_group";
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error =
        0.5 / static_cast<double>(format::centre) + 0x1p-8 + (std::same_as<Plain, bf16> ? 0x1p-8 : 0x1p-11);
    struct config {
        std::uint32_t group_numbers = 32; ///< numbers that share a step: 32 or 64
        bool zero_point = false;          ///< groups have a middle too: for numbers that are far from zero
        template <class Visit> void fields(Visit&& visit) {
            visit("group_numbers", group_numbers);
            visit("zero_point", zero_point);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept
            : shape_(shape), group_(c.group_numbers), middles_(c.zero_point) {
            head_bytes_ = visit({}, 0, [](const auto& rows) {
                return static_cast<std::uint32_t>((rows.row_bytes() + 3) / 4 * 4);
            });
        }

        /// Refuses groups of another size.
        [[nodiscard]] static status check(const config& c, const record_shape&) noexcept {
            if (c.group_numbers != 32 && c.group_numbers != 64)
                return status::failure(errc::invalid_argument,
                                       "compressor.group_numbers is %u; valid: 32 or 64", c.group_numbers);
            return {};
        }

        [[nodiscard]] record_bytes bytes() const noexcept { return {row_bytes(), row_bytes()}; }

        std::uint32_t encode_key(const Plain* row, std::uint32_t, std::byte* record) const noexcept {
            std::memset(record, 0, row_bytes()); // what follows the last code is stored too
            visit({}, 0, [&](const auto& of) {
                for (std::uint32_t h = 0; h < shape_.heads; ++h)
                    simd::pack_row(row + std::size_t{h} * shape_.dim, of,
                                   record + std::size_t{h} * head_bytes_);
            });
            return row_bytes();
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            return encode_key(row, 0, record);
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            for (std::uint32_t h = 0; h < shape_.heads; ++h)
                visit(records, h, [&](const auto& of) {
                    for (std::size_t i = 0; i < records.count; ++i)
                        simd::unpack_row(of, i, rows + i * shape_.width() + std::size_t{h} * shape_.dim);
                });
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            decode_keys(records, rows);
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            visit(keys, head, [&](const auto& rows) {
                simd::score_packed<simd::default_arch>(q, group, q_stride, rows, out, out_stride);
            });
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            visit(values, head, [&](const auto& rows) {
                simd::accumulate_packed<simd::default_arch>(weight, group, rows, acc, acc_stride);
            });
        }

      private:
        [[nodiscard]] std::uint32_t row_bytes() const noexcept { return shape_.heads * head_bytes_; }
        /// f(the rows of a head), whose type depends on whether groups have a middle.
        template <class F>
        [[gnu::always_inline]] auto visit(const records_view& records, std::uint32_t head,
                                          F&& f) const noexcept {
            const auto rows = [&]<bool Middle>(std::bool_constant<Middle>) {
                return simd::packed_rows<Bits, Middle>{records.data + std::size_t{head} * head_bytes_,
                                                       records.count,
                                                       shape_.dim,
                                                       records.stride,
                                                       group_,
                                                       records.following};
            };
            return middles_ ? f(rows(std::true_type{})) : f(rows(std::false_type{}));
        }

        record_shape shape_{};
        std::uint32_t head_bytes_ = 0, group_ = 32;
        bool middles_ = false;
    };
};

template <element Plain = f16> using int4_group = int_group<4, Plain>;
template <element Plain = f16> using int2_group = int_group<2, Plain>;

}} // namespace kvtl::v0
