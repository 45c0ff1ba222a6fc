// Plain rows as a codec: a record is the row itself. The codec of `raw`, and of entries that have no records.
//
// Cost:   attention reads the rows with the kernels of simd/attend.hpp; encoding is a copy.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvtl { inline namespace v0 {

template <element Element> class plain_rows {
  public:
    plain_rows() = default;
    explicit plain_rows(const record_shape& shape) noexcept : shape_(shape) {}

    [[nodiscard]] record_bytes bytes() const noexcept { return {row_bytes(), row_bytes()}; }
    std::uint32_t encode_key(const Element* row, std::uint32_t, std::byte* record) const noexcept {
        std::memcpy(record, row, row_bytes());
        return row_bytes();
    }
    std::uint32_t encode_value(const Element* row, std::byte* record) const noexcept {
        return encode_key(row, 0, record);
    }
    void decode_keys(const records_view& records, Element* rows) const noexcept {
        if (records.stride == row_bytes()) {
            std::memcpy(rows, records.data, records.count * row_bytes());
            return;
        }
        for (std::size_t i = 0; i < records.count; ++i)
            std::memcpy(rows + i * shape_.width(), records.record(i), row_bytes());
    }
    void decode_values(const records_view& records, Element* rows) const noexcept {
        decode_keys(records, rows);
    }

    [[gnu::always_inline]] void score(const float* q, std::size_t q_stride, std::size_t group,
                                      const records_view& keys, std::uint32_t head, float* out,
                                      std::size_t out_stride) const noexcept {
        simd::score_rows<simd::default_arch>(q, group, q_stride, rows_of(keys, head), out, out_stride);
    }
    /// score() of any number of keys, which are read in one stream where they are many (simd/dot.hpp).
    void score_run(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
        simd::dot_group(q, group, q_stride, rows_of(keys, head), out, out_stride);
    }
    [[gnu::always_inline]] void accumulate(const float* weight, std::size_t group, const records_view& values,
                                           std::uint32_t head, float* acc,
                                           std::size_t acc_stride) const noexcept {
        simd::accumulate_rows<simd::default_arch>(weight, group, rows_of(values, head), acc, acc_stride);
    }

    /// score() and accumulate() with relaxed products, for simd/attend.hpp's attend_rounded.
    using rounded_type = Element;
    template <class Rounded>
    void score_rounded(const Rounded& q, std::size_t begin, std::size_t group, const records_view& keys,
                       std::uint32_t head, float* out, std::size_t out_stride)
        const noexcept requires simd::has_relaxed_products<simd::default_arch, Element> {
        simd::score_rounded(q, begin, group, rows_of(keys, head), out, out_stride);
    }
    void accumulate_relaxed(const float* weight, std::size_t group, const records_view& values,
                            std::uint32_t head, float* acc, std::size_t acc_stride)
        const noexcept requires simd::has_relaxed_products<simd::default_arch, Element> {
        simd::accumulate_relaxed<simd::default_arch, Element>(weight, group, rows_of(values, head), acc,
                                                              acc_stride);
    }

  private:
    [[nodiscard]] std::uint32_t row_bytes() const noexcept {
        return static_cast<std::uint32_t>(shape_.width() * sizeof(Element));
    }
    [[nodiscard]] rows_view<Element> rows_of(const records_view& records, std::uint32_t head) const noexcept {
        return {reinterpret_cast<const Element*>(records.data) + std::size_t{head} * shape_.dim,
                records.count, shape_.dim, records.stride / sizeof(Element), records.following};
    }

    record_shape shape_{};
};

}} // namespace kvtl::v0
