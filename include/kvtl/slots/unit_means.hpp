// The mean keys of a lane's units, in 32, 16 or 8 bits per number.
//
// What:   clusterers place entries by them, indices score them, and estimators estimate with them. 8 bits:
//         codes with one scale per unit, its largest magnitude / 127, so the error of a number is at most
//         half a scale. 16 bits: f16.
// Shapes: (U, D); D: numbers of the lane, or of one head of it.
// Cost:   score(), distances() and nearest() read every mean once: D, 2 D or 4 D bytes and, for codes, a scale.
// Limits: stored means are rounded. The running sum of a growing unit is not (core/store/summaries.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/nearest_code.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// A view; owns nothing.
class unit_means {
  public:
    unit_means() = default;
    /// `numbers`: (U, stride) of `bits` each; `scale`: (U), for 8 bits only.
    unit_means(std::byte* numbers, float* scale, std::uint32_t bits, std::uint32_t dim,
               std::size_t stride) noexcept
        : data_(numbers), scale_(scale), stride_(stride), dim_(dim), bits_(bits) {}
    /// A read-only view of means that are kept elsewhere as floats.
    explicit unit_means(rows_view<float> rows) noexcept
        : data_(const_cast<std::byte*>(reinterpret_cast<const std::byte*>(rows.data))), stride_(rows.stride),
          dim_(static_cast<std::uint32_t>(rows.dim)) {}

    [[nodiscard]] static constexpr bool valid_bits(std::uint32_t bits) noexcept {
        return bits == 8 || bits == 16 || bits == 32;
    }
    [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr; }
    [[nodiscard]] std::uint32_t dim() const noexcept { return dim_; }
    [[nodiscard]] std::uint32_t bits() const noexcept { return bits_; }
    /// Numbers [first, first + n) of every mean, for example those of one head.
    [[nodiscard]] unit_means columns(std::size_t first, std::uint32_t n) const noexcept {
        unit_means some = *this;
        if (data_ != nullptr) some.data_ += first * bits_ / 8;
        some.dim_ = n;
        return some;
    }

    /// The means from unit `first` on.
    [[nodiscard]] unit_means from(std::uint32_t first) const noexcept {
        unit_means some = *this;
        if (data_ != nullptr) some.data_ += first * stride_ * bits_ / 8;
        if (scale_ != nullptr) some.scale_ += first;
        return some;
    }

    /// out: (D)
    void get(std::uint32_t u, float* out) const noexcept {
        if (bits_ == 32) std::copy_n(row<float>(u), dim_, out);
        if (bits_ == 16) simd::decode(row<f16>(u), out, dim_);
        if (bits_ == 8) simd::dequantise(row<std::int8_t>(u), scale_[u], out, dim_);
    }
    /// Stores `mean` (D), rounded, as the whole mean of unit u.
    void set(std::uint32_t u, const float* mean) const noexcept {
        if (bits_ == 32) std::copy_n(mean, dim_, row<float>(u));
        if (bits_ == 16) simd::encode(mean, row<f16>(u), dim_);
        if (bits_ == 8) scale_[u] = simd::quantise(mean, row<std::int8_t>(u), dim_);
    }
    void copy(std::uint32_t from, std::uint32_t to) const noexcept {
        std::copy_n(row<std::byte>(from), std::size_t{dim_} * bits_ / 8, row<std::byte>(to));
        if (bits_ == 8) scale_[to] = scale_[from];
    }
    /// Pointer to the mean of unit u; for 32 bits only.
    [[nodiscard]] float* floats(std::uint32_t u) const noexcept { return row<float>(u); }

    /// out[i * U + j] = query i . mean j, for j < U. q: (queries, D)
    void score(const float* q, std::uint32_t queries, std::uint32_t units, float* out) const noexcept {
        score_run(q, queries, units, out, units);
    }
    /// out[i * n + j] = query i . mean some[j], for the n ascending units of `some`.
    void score(const float* q, std::uint32_t queries, std::span<const std::uint32_t> some,
               float* out) const noexcept {
        for_runs(some, [&](std::size_t at, std::uint32_t first, std::uint32_t n) {
            from(first).score_run(q, queries, n, out + at, some.size());
        });
    }
    /// out[j] = |key - mean j|^2, for j < U. key: (D)
    void distances(const float* key, std::uint32_t units, float* out) const noexcept {
        if (bits_ == 32) simd::l2sq_rows(key, rows<float>(units), out);
        if (bits_ == 16) simd::l2sq_rows(key, rows<f16>(units), out);
        if (bits_ == 8) simd::l2sq_codes(key, rows<std::int8_t>(units), scale_, out);
    }
    /// out[j] = |key - mean some[j]|^2, for the ascending units of `some`.
    void distances(const float* key, std::span<const std::uint32_t> some, float* out) const noexcept {
        for_runs(some, [&](std::size_t at, std::uint32_t first, std::uint32_t n) {
            from(first).distances(key, n, out + at);
        });
    }
    /// The mean nearest to `key` (D) among the first `units` >= 1, by the distances that distances()
    /// computes. scratch: (U)
    [[nodiscard]] simd::neighbour nearest(const float* key, std::uint32_t units,
                                          float* scratch) const noexcept {
        if (bits_ == 8) return simd::nearest_code(key, rows<std::int8_t>(units), scale_, scratch);
        return bits_ == 16 ? simd::nearest_row(key, rows<f16>(units))
                           : simd::nearest_row(key, rows<float>(units));
    }

  private:
    void score_run(const float* q, std::uint32_t queries, std::uint32_t units, float* out,
                   std::size_t out_stride) const noexcept {
        if (bits_ == 32) simd::dot_group(q, queries, dim_, rows<float>(units), out, out_stride);
        if (bits_ == 16) simd::dot_group(q, queries, dim_, rows<f16>(units), out, out_stride);
        if (bits_ != 8) return;
        simd::dot_group(q, queries, dim_, rows<std::int8_t>(units), out, out_stride);
        for (std::uint32_t i = 0; i < queries; ++i) simd::multiply(scale_, out + i * out_stride, units);
    }
    /// Calls visit(position in `some`, first unit, number of units) for each run of adjacent units. Runs may
    /// lie anywhere in memory, so the next ones are prefetched while one is visited.
    template <class Visit> void for_runs(std::span<const std::uint32_t> some, Visit&& visit) const noexcept {
        const std::size_t row_bytes = std::size_t{dim_} * bits_ / 8, ahead = 1 + asked_ahead / row_bytes;
        for (std::size_t at = 0, end = 0, asked = 0; at < some.size(); at = end) {
            do ++end;
            while (end < some.size() && some[end] == some[end - 1] + 1);
            for (; asked < std::min(some.size(), end + ahead); ++asked) {
                for (std::size_t byte = 0; byte < row_bytes; byte += 64)
                    __builtin_prefetch(row<std::byte>(some[asked]) + byte);
                if (scale_ != nullptr &&
                    (asked == 0 || some[asked] % 16 == 0 || some[asked] != some[asked - 1] + 1))
                    __builtin_prefetch(scale_ + some[asked]);
            }
            visit(at, some[at], static_cast<std::uint32_t>(end - at));
        }
    }
    static constexpr std::size_t asked_ahead = 4096; ///< bytes of means that are prefetched

    template <class T> [[nodiscard]] T* row(std::uint32_t u) const noexcept {
        return reinterpret_cast<T*>(data_ + u * stride_ * bits_ / 8);
    }
    template <class T> [[nodiscard]] rows_view<T> rows(std::uint32_t units) const noexcept {
        return {row<T>(0), units, dim_, stride_};
    }

    std::byte* data_ = nullptr;
    float* scale_ = nullptr;
    std::size_t stride_ = 0; ///< numbers
    std::uint32_t dim_ = 0;
    std::uint32_t bits_ = 32;
};

}} // namespace kvtl::v0
