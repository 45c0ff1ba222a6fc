// Compressor: codes of 4 or of 2 bits, of keys with a step per channel of 32 consecutive tokens, of values with a step per
// group of a token's numbers.
//
// What:   keys have channels that are large, or far from zero, in all tokens. Each channel of a granule of 32 tokens gets a
//         middle and a step of its own, so such a channel costs the others no accuracy. Values are records of int_group with
//         a middle. A number is middle + level * step, as in compress_int_group.hpp.
// Record: keys: for each KV head of the lane and each channel a step and a middle (bf16), then the codes of 32 tokens: 20 bytes
//         a channel (4 bits) or 12. Values: the records of the 32 tokens. D = 64: an entry takes 80 bytes (4 bits) or 48
//         instead of 256.
// Error:  half of the plain step, which is half of the range of a channel or group / 7.5 (4 bits) or / 1.5 (2 bits), and the
//         rounding of steps and middles to bf16.
// Cost:   a key's record is a matrix of (D,32) codes, and scores of 32 tokens are the sum of its rows weighted by the query:
//         the kernel of weighted sums of values.
// Limits: entries are encoded 32 at a time, so units are runs of consecutive tokens; a clusterer cannot move single entries.
// Source: KIVI (Liu et al. 2024, section 3.2): keys by channel and values by token, in groups of 32, asymmetric; the latest
//         tokens stay plain rows (window_tokens). Here steps are by least squares, not by the range.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_int_group.hpp>

#include <algorithm>
#include <cassert>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Plain: what window, sinks and waiting entries are.
template <std::size_t Bits, element Plain = f16> struct channel_group {
    using values = int_group<Bits, Plain>;
    static constexpr std::string_view name = Bits == 4 ? "int4_channel_group" : "int2_channel_group";
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 32;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error = values::relative_error;
    struct config {
        std::uint32_t group_numbers = 32; ///< numbers of a value that share a step and a middle: 32 or 64
        template <class Visit> void fields(Visit&& visit) { visit("group_numbers", group_numbers); }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept
            : shape_(shape), values_(of_values(c), shape) {}

        /// Refuses groups of another size.
        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            return values::state::check(of_values(c), shape);
        }

        [[nodiscard]] record_bytes bytes() const noexcept {
            return {shape_.width() * channel_bytes, granule * values_.bytes().value};
        }

        std::uint32_t encode_key(const Plain* rows, std::uint32_t, std::byte* record) const noexcept {
            float x[granule];
            for (std::uint32_t c = 0; c < shape_.width(); ++c, record += channel_bytes) {
                for (std::uint32_t i = 0; i < granule; ++i) x[i] = to_float(rows[i * shape_.width() + c]);
                simd::pack_row(x, channels{nullptr, 0, granule}, record);
            }
            return bytes().key;
        }
        std::uint32_t encode_value(const Plain* rows, std::byte* record) const noexcept {
            for (std::uint32_t i = 0; i < granule; ++i, rows += shape_.width())
                record += values_.encode_value(rows, record);
            return bytes().value;
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            float x[granule];
            for (std::size_t first = 0; first < records.count; first += granule) {
                const channels all{records.record(first / granule), shape_.width(), granule, channel_bytes};
                for (std::uint32_t c = 0; c < shape_.width(); ++c) {
                    simd::unpack_row(all, c, x);
                    for (std::uint32_t i = 0; i < granule; ++i)
                        rows[(first + i) * shape_.width() + c] = from_float<Plain>(x[i]);
                }
            }
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            for (std::size_t first = 0; first < records.count; first += granule)
                values_.decode_values(tokens(records, first), rows + first * shape_.width());
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            static_assert(granule == simd::attend_block); // as many weights as accumulate_packed() takes
            assert(keys.count % granule == 0);
            constexpr std::size_t at_once = 4, some = simd::attend_block;
            float weight[at_once * some];
            for (std::size_t first = 0; first < keys.count; first += granule) {
                const std::byte* record =
                    keys.record(first / granule) + std::size_t{head} * shape_.dim * channel_bytes;
                for (std::size_t g = 0; g < group; g += at_once) {
                    const std::size_t queries = std::min(at_once, group - g);
                    float* to = out + g * out_stride + first;
                    for (std::size_t i = 0; i < queries; ++i) std::fill_n(to + i * out_stride, granule, 0.0F);
                    for (std::size_t c = 0; c < shape_.dim; c += some) {
                        const std::size_t n = std::min(some, shape_.dim - c);
                        for (std::size_t i = 0; i < queries; ++i)
                            std::copy_n(q + (g + i) * q_stride + c, n, weight + i * some);
                        const channels rows{record + c * channel_bytes, n, granule, channel_bytes};
                        simd::accumulate_packed<simd::default_arch>(weight, queries, rows, to, out_stride);
                    }
                }
            }
        }
        void accumulate(const float* weight, std::size_t group, const records_view& all, std::uint32_t head,
                        float* acc, std::size_t acc_stride) const noexcept {
            for (std::size_t first = 0; first < all.count; first += granule)
                values_.accumulate(weight + first, group, tokens(all, first), head, acc, acc_stride);
        }

      private:
        using channels = simd::packed_rows<Bits, true>; ///< a row has one number of each of the 32 tokens
        static constexpr auto channel_bytes =
            static_cast<std::uint32_t>(2 * sizeof(bf16) + channels::format::code_bytes(granule));

        [[nodiscard]] static typename values::config of_values(const config& c) noexcept {
            return {c.group_numbers, true};
        }
        /// The records of the values of one granule.
        [[nodiscard]] records_view tokens(const records_view& all, std::size_t first) const noexcept {
            return {all.record(first / granule), granule, values_.bytes().value};
        }

        record_shape shape_{};
        typename values::state values_{};
    };
};

template <element Plain = f16> using int4_channel_group = channel_group<4, Plain>;
template <element Plain = f16> using int2_channel_group = channel_group<2, Plain>;

}} // namespace kvtl::v0
