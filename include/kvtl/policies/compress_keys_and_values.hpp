// Compressor: one codec for keys and another for values.
//
// What:   keys take more bits than values for the same quality of attention, because an error of a key changes all weights.
//         `k8v4` has keys of 8 bits with a scale per row, and values of 4 bits with a step per group of 32.
// Record: the key's record of `Keys`, the value's record of `Values`.
// Limits: codecs of single entries with records of one size, keys after RoPE, no tables of their own and no rule about
//         units. To keep the keys in memory, wrap the whole: keys_in_memory<keys_and_values<..>>.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/policies/compress_int_group.hpp>
#include <kvtl/policies/support/codec_name.hpp>

#include <algorithm>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <class Keys, class Values> struct keys_and_values {
    static_assert(std::same_as<typename Keys::plain_type, typename Values::plain_type>,
                  "[kvtl] keys_and_values: two codecs with the same plain_type");
    static_assert(
        holds(codec_is_plain<Keys>) && holds(codec_is_plain<Values>),
        "[kvtl] keys_and_values: two codecs of single entries after RoPE, with records of one size, no "
        "tables and no rule about units");
    static constexpr std::string_view outer_name = "keys_and_values";
    static constexpr std::string_view name = detail::codec_name<keys_and_values, Keys, Values>::value;
    using plain_type = typename Keys::plain_type;
    static constexpr key_domain domain = Keys::domain;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = Keys::rows_are_records && Values::rows_are_records;
    static constexpr double relative_error = std::max(Keys::relative_error, Values::relative_error);
    static constexpr bool layer_wide_only = kvtl::layer_wide_only<Keys> || kvtl::layer_wide_only<Values>;
    static constexpr engine_input needs = needs_of<Keys>() | needs_of<Values>();
    struct config {
        typename Keys::config keys{};
        typename Values::config values{};
        /// Settings of the values' codec, then settings of the keys' codec; a name that both have sets the values' one.
        template <class Visit> void fields(Visit&& visit) {
            values.fields(visit);
            keys.fields(visit);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept
            : keys_(c.keys, shape), values_(c.values, shape) {}

        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            if (status s = check_of<Keys>(c.keys, shape); !s) return s;
            return check_of<Values>(c.values, shape);
        }
        [[nodiscard]] record_bytes bytes() const noexcept {
            return {keys_.bytes().key, values_.bytes().value};
        }
        std::uint32_t encode_key(const plain_type* row, std::uint32_t position,
                                 std::byte* record) const noexcept {
            return keys_.encode_key(row, position, record);
        }
        std::uint32_t encode_value(const plain_type* row, std::byte* record) const noexcept {
            return values_.encode_value(row, record);
        }
        void decode_keys(const records_view& records, plain_type* rows) const noexcept {
            keys_.decode_keys(records, rows);
        }
        void decode_values(const records_view& records, plain_type* rows) const noexcept {
            values_.decode_values(records, rows);
        }
        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            keys_.score(q, q_stride, group, keys, head, out, out_stride);
        }
        void score_run(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                       std::uint32_t head, float* out, std::size_t out_stride) const noexcept requires
            requires(const typename Keys::state& s) {
            s.score_run(q, q_stride, group, keys, head, out, out_stride);
        }
        { keys_.score_run(q, q_stride, group, keys, head, out, out_stride); }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            values_.accumulate(weight, group, values, head, acc, acc_stride);
        }

      private:
        template <class Codec>
        [[nodiscard]] static status check_of(const typename Codec::config& c,
                                             const record_shape& shape) noexcept {
            return check_settings<typename Codec::state>(c, shape);
        }

        typename Keys::state keys_{};
        typename Values::state values_{};
    };
};

/// Keys of 8 bits, values of 4.
template <element Plain = f16> using k8v4 = keys_and_values<int8_row<Plain>, int4_group<Plain>>;

}} // namespace kvtl::v0
