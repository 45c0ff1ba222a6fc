// A codec for tests whose records hold several entries: of keys a scale for every channel and signed bytes, of values
// the rows themselves. Keys and values so differ in size.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

namespace kvtl_test {

template <std::uint32_t Granule> struct channel_codes {
    static constexpr std::string_view name = "channel_codes";
    using plain_type = float;
    static constexpr kvtl::key_domain domain = kvtl::key_domain::post_rope;
    static constexpr std::uint32_t granule = Granule;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error = 0.5 / 127 + 1e-6;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const kvtl::record_shape& shape) noexcept : shape_(shape) {}

        [[nodiscard]] kvtl::record_bytes bytes() const noexcept {
            return {shape_.width() * static_cast<std::uint32_t>(sizeof(float)) + codes_bytes(),
                    Granule * shape_.width() * static_cast<std::uint32_t>(sizeof(float))};
        }
        std::uint32_t encode_key(const float* rows, std::uint32_t, std::byte* record) const noexcept {
            const std::uint32_t width = shape_.width();
            std::memset(record, 0, bytes().key);
            for (std::uint32_t d = 0; d < width; ++d) {
                float largest = 0;
                for (std::uint32_t i = 0; i < Granule; ++i)
                    largest = std::max(largest, std::fabs(rows[i * width + d]));
                const float scale = largest < 1e-30F ? 0.0F : largest / 127.0F;
                std::memcpy(record + d * sizeof scale, &scale, sizeof scale);
                for (std::uint32_t i = 0; i < Granule; ++i)
                    reinterpret_cast<std::int8_t*>(record + width * sizeof scale)[i * width + d] =
                        static_cast<std::int8_t>(scale == 0.0F ? 0
                                                               : std::lround(rows[i * width + d] / scale));
            }
            return bytes().key;
        }
        std::uint32_t encode_value(const float* rows, std::byte* record) const noexcept {
            std::memcpy(record, rows, bytes().value);
            return bytes().value;
        }
        void decode_keys(const kvtl::records_view& records, float* rows) const noexcept {
            for (std::size_t i = 0; i < records.count; ++i)
                for (std::uint32_t d = 0; d < shape_.width(); ++d) *rows++ = key(records, i, d);
        }
        void decode_values(const kvtl::records_view& records, float* rows) const noexcept {
            for (std::size_t i = 0; i < records.count; ++i, rows += shape_.width())
                std::memcpy(rows, value(records, i), shape_.width() * sizeof(float));
        }
        void score(const float* q, std::size_t q_stride, std::size_t group, const kvtl::records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            std::vector<float> row(shape_.dim);
            for (std::size_t i = 0; i < keys.count; ++i) {
                for (std::uint32_t d = 0; d < shape_.dim; ++d) row[d] = key(keys, i, head * shape_.dim + d);
                for (std::size_t g = 0; g < group; ++g)
                    out[g * out_stride + i] = kvtl::simd::dot(q + g * q_stride, row.data(), shape_.dim);
            }
        }
        void accumulate(const float* weight, std::size_t group, const kvtl::records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            for (std::size_t i = 0; i < values.count; ++i)
                for (std::size_t g = 0; g < group; ++g)
                    kvtl::simd::axpy(weight[g * kvtl::simd::attend_block + i],
                                     value(values, i) + std::size_t{head} * shape_.dim, acc + g * acc_stride,
                                     shape_.dim);
        }

      private:
        [[nodiscard]] std::uint32_t codes_bytes() const noexcept {
            return (Granule * shape_.width() + 3) / 4 * 4;
        }
        [[nodiscard]] float key(const kvtl::records_view& records, std::size_t i,
                                std::uint32_t d) const noexcept {
            const std::byte* record = records.record(i / Granule);
            float scale = 0;
            std::memcpy(&scale, record + d * sizeof scale, sizeof scale);
            const auto* codes = reinterpret_cast<const std::int8_t*>(record + shape_.width() * sizeof scale);
            return scale * static_cast<float>(codes[i % Granule * shape_.width() + d]);
        }
        [[nodiscard]] const float* value(const kvtl::records_view& records, std::size_t i) const noexcept {
            return reinterpret_cast<const float*>(records.record(i / Granule)) + i % Granule * shape_.width();
        }

        kvtl::record_shape shape_{};
    };
};

} // namespace kvtl_test
