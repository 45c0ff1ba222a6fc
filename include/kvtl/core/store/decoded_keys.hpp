// Units whose keys were decoded when they were read, as their records stay in memory (slots/compressor.hpp, home):
// keys are plain rows, values the codec's records.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// As much of a codec as attention over such a unit asks for.
template <class Compressor, class Geometry> class decoded_keys {
  public:
    using plain_type = typename Compressor::plain_type;
    using codec_type = typename Compressor::template state<Geometry>;

    decoded_keys(const codec_type& values, const record_shape& shape) noexcept
        : values_(values), shape_(shape) {}

    void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
               std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
        simd::score_rows<simd::default_arch>(
            q, group, q_stride,
            rows_view<plain_type>{rows_of(keys) + std::size_t{head} * shape_.dim, keys.count, shape_.dim,
                                  shape_.width()},
            out, out_stride);
    }
    void accumulate(const float* weight, std::size_t group, const records_view& values, std::uint32_t head,
                    float* acc, std::size_t acc_stride) const noexcept {
        values_.accumulate(weight, group, values, head, acc, acc_stride);
    }
    void decode_keys(const records_view& keys, plain_type* rows) const noexcept {
        std::copy_n(rows_of(keys), keys.count * shape_.width(), rows);
    }
    void decode_values(const records_view& values, plain_type* rows) const noexcept {
        values_.decode_values(values, rows);
    }

  private:
    [[nodiscard]] static const plain_type* rows_of(const records_view& keys) noexcept {
        return reinterpret_cast<const plain_type*>(keys.data);
    }

    codec_type values_;
    record_shape shape_;
};

}} // namespace kvtl::v0
