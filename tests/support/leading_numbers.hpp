// A ragged codec for tests: of a row it stores as many leading numbers as reach to the last one that is not
// zero, behind their count. Nothing is lost, so caches of it equal those of raw<float>, while hardly two
// records have one size.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

namespace kvtl_test {

struct leading_numbers {
    static constexpr std::string_view name = "leading_numbers";
    using plain_type = float;
    static constexpr kvtl::key_domain domain = kvtl::key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = true;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error = 0;
    struct config {};

    class state {
      public:
        state() = default;
        state(const config&, const kvtl::record_shape& shape) noexcept : shape_(shape) {}

        [[nodiscard]] kvtl::record_bytes bytes() const noexcept {
            const auto most = static_cast<std::uint32_t>((shape_.width() + 1) * sizeof(float));
            return {most, most};
        }
        std::uint32_t encode_key(const float* row, std::uint32_t, std::byte* record) const noexcept {
            std::uint32_t n = shape_.width();
            while (n > 0 && row[n - 1] == 0.0F) --n;
            std::memcpy(record, &n, sizeof n);
            std::memcpy(record + sizeof n, row, n * sizeof(float));
            return static_cast<std::uint32_t>((n + 1) * sizeof(float));
        }
        std::uint32_t encode_value(const float* row, std::byte* record) const noexcept {
            return encode_key(row, 0, record);
        }
        void decode_keys(const kvtl::records_view& records, float* rows) const noexcept {
            for (std::size_t i = 0; i < records.count; ++i, rows += shape_.width())
                copy(records.record(i), 0, shape_.width(), rows);
        }
        void decode_values(const kvtl::records_view& records, float* rows) const noexcept {
            decode_keys(records, rows);
        }
        void score(const float* q, std::size_t q_stride, std::size_t group, const kvtl::records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            std::array<float, most_dim> key;
            for (std::size_t i = 0; i < keys.count; ++i) {
                copy(keys.record(i), head * shape_.dim, shape_.dim, key.data());
                for (std::size_t g = 0; g < group; ++g) {
                    float sum = 0;
                    for (std::uint32_t d = 0; d < shape_.dim; ++d) sum += q[g * q_stride + d] * key[d];
                    out[g * out_stride + i] = sum;
                }
            }
        }
        void accumulate(const float* weight, std::size_t group, const kvtl::records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            std::array<float, most_dim> value;
            for (std::size_t i = 0; i < values.count; ++i) {
                copy(values.record(i), head * shape_.dim, shape_.dim, value.data());
                for (std::size_t g = 0; g < group; ++g)
                    for (std::uint32_t d = 0; d < shape_.dim; ++d)
                        acc[g * acc_stride + d] += weight[g * kvtl::simd::attend_block + i] * value[d];
            }
        }

      private:
        static constexpr std::uint32_t most_dim = 256;

        /// Numbers [first, first + count) of a record's row.
        static void copy(const std::byte* record, std::uint32_t first, std::uint32_t count,
                         float* to) noexcept {
            std::uint32_t n = 0;
            std::memcpy(&n, record, sizeof n);
            const std::uint32_t there = n > first ? std::min(n - first, count) : 0;
            if (there != 0) std::memcpy(to, record + (first + 1) * sizeof(float), there * sizeof(float));
            std::fill(to + there, to + count, 0.0F);
        }
        kvtl::record_shape shape_{};
    };
};

/// leading_numbers that lose a quarter of every number whenever they are encoded: what an entry's numbers are
/// tells how often that was.
struct worn_numbers : leading_numbers {
    static constexpr std::string_view name = "worn_numbers";
    static constexpr double relative_error = 0.25;

    class state : public leading_numbers::state {
        using base = leading_numbers::state;

      public:
        using base::base;
        std::uint32_t encode_key(const float* row, std::uint32_t, std::byte* record) const noexcept {
            const std::uint32_t bytes = base::encode_key(row, 0, record);
            std::vector<float> numbers((bytes - sizeof(std::uint32_t)) / sizeof(float));
            if (numbers.empty()) return bytes;
            std::memcpy(numbers.data(), record + sizeof(std::uint32_t), bytes - sizeof(std::uint32_t));
            for (float& x : numbers) x *= 0.75F;
            std::memcpy(record + sizeof(std::uint32_t), numbers.data(), bytes - sizeof(std::uint32_t));
            return bytes;
        }
        std::uint32_t encode_value(const float* row, std::byte* record) const noexcept {
            return encode_key(row, 0, record);
        }
    };
};

} // namespace kvtl_test
