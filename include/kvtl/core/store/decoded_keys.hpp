// Units whose keys were decoded when they were read, as their records stay in memory (slots/compressor.hpp, home):
// keys are plain rows, values the codec's records.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/plain_rows.hpp>
#include <kvtl/slots/compressor.hpp>

#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// As much of a codec as attention over such a unit asks for.
template <class Compressor> class decoded_keys {
  public:
    using plain_type = typename Compressor::plain_type;
    using codec_type = typename Compressor::state;

    decoded_keys(const codec_type& values, const record_shape& shape) noexcept
        : keys_(shape), values_(values), row_bytes_(shape.width() * sizeof(plain_type)) {}

    void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
               std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
        keys_.score(q, q_stride, group, rows_of(keys), head, out, out_stride);
    }
    void accumulate(const float* weight, std::size_t group, const records_view& values, std::uint32_t head,
                    float* acc, std::size_t acc_stride) const noexcept {
        values_.accumulate(weight, group, values, head, acc, acc_stride);
    }
    void decode_keys(const records_view& keys, plain_type* rows) const noexcept {
        keys_.decode_keys(rows_of(keys), rows);
    }
    void decode_values(const records_view& values, plain_type* rows) const noexcept {
        values_.decode_values(values, rows);
    }

  private:
    /// A row for every entry, however many a record had.
    [[nodiscard]] records_view rows_of(const records_view& keys) const noexcept {
        return {keys.data, keys.count, row_bytes_};
    }

    plain_rows<plain_type> keys_;
    codec_type values_;
    std::size_t row_bytes_;
};

}} // namespace kvtl::v0
