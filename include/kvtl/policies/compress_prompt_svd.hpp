// Compressor: keys as a few coefficients in memory, in a basis that is fitted to the prompt; values as plain
// rows on storage (ShadowKV).
//
//   k_pre(entry) = RoPE^-1(k)           flat over the lane's heads: (lane heads * D)
//   c(entry)     = B k_pre              B: (r, lane heads * D), orthonormal, fitted to a lane's first keys
//   k(entry)    ~= RoPE(B^T c)          at the entry's position
//
// What:   keys have a lower rank before RoPE than after, so they are rotated back first. fit() finds B by
//         subspace iteration on the Gram matrix of an even sample, in float; the paper also runs an SVD per
//         sequence. With r = lane heads * D keys are exact up to rounding. A lane that was never fitted keeps
//         r of its channels, evenly spaced. Outlier chunks are chunks whose keys agree least with their mean
//         (support/outliers.hpp; among the lane's heads the one that agrees least decides). They keep their
//         exact keys beside the basis, for all heads or none, among the rows that fit() gets. The index
//         decides whether they are attended (index_landmark.hpp pins its own outliers, head by head). Chunks
//         are counted from token `skip` on: they are the units of a clusterer with groups of `chunk` tokens
//         after `skip` sinks.
// Record: of a key its position (4 bytes) and r coefficients in 16 bits; of a value the plain row.
// Bytes:  per lane 2 r lane heads D for B, and 64; per outlier chunk 4, and its keys as plain rows.
// Cost:   encode and decode: r lane heads D multiply-adds and D sines from a table. fit: W^2 (sample +
//         iterations r) multiply-adds with W = lane heads D, and W^2 + 2 W r floats of borrowed memory.
// Limits: the numbers of a row, all heads of a lane together, are at most max_width. The rows that fit() gets
//         are tokens 0, 1, ... of a sequence.
// Source: "ShadowKV", §4. Deviation: decoded tokens are encoded with the prompt's basis; the paper keeps them
//         whole.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/policies/support/kmeans.hpp>
#include <kvtl/policies/support/outliers.hpp>
#include <kvtl/policies/support/plain_rows.hpp>
#include <kvtl/policies/support/position_table.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/combine.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

namespace detail {

/// Makes the rows of y (n, width) orthonormal (Gram and Schmidt; twice is enough). A row that the earlier
/// ones span is replaced by the part of a coordinate direction that they do not: the result is always a
/// basis. n <= width.
inline void orthonormalise(float* y, std::size_t n, std::size_t width) noexcept {
    std::size_t coordinate = 0;
    for (std::size_t j = 0; j < n; ++j) {
        float* row = y + j * width;
        float before = simd::dot(row, row, width);
        for (;;) {
            for (int pass = 0; pass < 2; ++pass)
                for (std::size_t i = 0; i < j; ++i)
                    simd::axpy(-simd::dot(row, y + i * width, width), y + i * width, row, width);
            const float left = simd::dot(row, row, width);
            if (left > 1e-8F * before) { // above what rounding leaves of nothing
                simd::scale(1.0F / std::sqrt(left), row, width);
                break;
            }
            std::fill_n(row, width, 0.0F);
            row[coordinate++ % width] = before = 1.0F;
        }
    }
}

} // namespace detail

/// Plain: of plain rows. E: of coefficients and basis.
template <element Plain = f16, element E = f16> struct prompt_svd {
    static constexpr std::string_view name = "prompt_svd";
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::pre_rope;
    static constexpr home key_home = home::memory;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error =
        std::numeric_limits<double>::infinity(); // what the rank gives up
    static constexpr bool shares = true;
    static constexpr bool fits_lanes = true;
    static constexpr std::uint32_t max_width = 8192, most_outliers = 4096;
    /// A subspace that turns no further is exact: more only take time.
    static constexpr std::uint32_t most_iterations = 256;

    struct config {
        std::uint32_t rank = 160;     ///< r, at most lane heads * D
        std::uint32_t sample = 1024;  ///< keys that fit() looks at
        std::uint32_t iterations = 8; ///< of the subspace
        std::uint32_t outliers = 0;   ///< chunks whose keys stay exact
        std::uint32_t chunk = 8;      ///< tokens of these
        std::uint32_t skip = 4;       ///< tokens ahead of the first chunk
        std::vector<double>
            frequencies{};       ///< radians per position of each pair that RoPE turns; empty: base 10,000
        std::uint32_t dims = 0;  ///< channels of a head that turn, from the first (0: all)
        bool neighbours = false; ///< pairs are (0, 1), (2, 3), ... instead of (0, n), (1, n + 1), ...
        template <class Visit> void fields(Visit&& visit) {
            visit("rank", rank);
            visit("sample", sample);
            visit("iterations", iterations);
            visit("outliers", outliers);
            visit("chunk", chunk);
            visit("skip", skip);
        }
        template <class Visit> void tables(Visit&& visit) const {
            visit("frequencies", frequencies);
            visit("dims", dims);
            visit("neighbours", neighbours);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept
            : shape_(shape), rank_(std::min(c.rank, shape.width())), sample_(std::max(c.sample, 1U)),
              iterations_(std::max(c.iterations, 1U)), outliers_(c.outliers), chunk_(std::max(c.chunk, 1U)),
              skip_(c.skip), pairs_(rope_pairs(c, shape.dim)), values_(shape) {}

        /// Refuses a config that cannot work.
        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            if (c.rank == 0)
                return status::failure(errc::invalid_argument, "compressor.rank is 0; valid: 1 or more");
            if (shape.width() > max_width)
                return status::failure(errc::invalid_argument,
                                       "compressor: rows of %u numbers; valid: up to %u", shape.width(),
                                       max_width);
            if (c.sample == 0)
                return status::failure(errc::invalid_argument, "compressor.sample is 0; valid: 1 or more");
            if (c.iterations == 0 || c.iterations > most_iterations)
                return status::failure(errc::invalid_argument, "compressor.iterations is %u; valid: 1 to %u",
                                       c.iterations, most_iterations);
            if (c.outliers > most_outliers)
                return status::failure(errc::invalid_argument, "compressor.outliers is %u; valid: 0 to %u",
                                       c.outliers, most_outliers);
            if (c.chunk == 0 || c.chunk > 1024)
                return status::failure(errc::invalid_argument, "compressor.chunk is %u; valid: 1 to 1024",
                                       c.chunk);
            return check_rope(c, shape.dim);
        }
        /// Chunks that stay exact are the units that an index may pin.
        [[nodiscard]] static status check_units(const config& c, std::uint32_t unit_tokens,
                                                std::uint32_t sink_tokens) noexcept {
            if (c.outliers != 0 && c.chunk != unit_tokens)
                return status::failure(
                    errc::invalid_argument,
                    "compressor.chunk is %u; valid, with outliers: the tokens of a group, %u", c.chunk,
                    unit_tokens);
            if (c.outliers != 0 && c.skip != sink_tokens)
                return status::failure(errc::invalid_argument,
                                       "compressor.skip is %u; valid, with outliers: sink_tokens = %u",
                                       c.skip, sink_tokens);
            return {};
        }

        [[nodiscard]] record_bytes bytes() const noexcept {
            const std::size_t key = sizeof(std::uint32_t) + rank_ * sizeof(E);
            return {static_cast<std::uint32_t>((key + 3) / 4 * 4), values_.bytes().value};
        }
        [[nodiscard]] std::size_t shared_bytes(std::uint32_t max_tokens) const noexcept {
            return position_table::bytes(pairs_, max_tokens);
        }
        [[gnu::cold]] void share(const config& c, std::uint32_t max_tokens,
                                 std::span<std::byte> memory) noexcept {
            turns_ = rope_table(c, shape_.dim, max_tokens, memory);
        }
        [[nodiscard]] std::size_t lane_bytes() const noexcept {
            return outliers_at() + outlier_rows_at() +
                   std::size_t{outliers_} * chunk_ * shape_.width() * sizeof(Plain);
        }
        [[nodiscard]] std::size_t fit_scratch_bytes(std::size_t) const noexcept {
            carver c;
            static_cast<void>(take_fit(c));
            return c.used();
        }

        /// keys: (T, lane heads * D), the lane's first, at positions 0 to T - 1.
        template <element Row>
        void fit(std::byte* lane, rows_view<Row> keys, rows_view<Row>,
                 std::span<std::byte> scratch) const noexcept {
            const std::size_t width = shape_.width(), r = rank_;
            carver c(scratch);
            fit_memory m = take_fit(c);
            std::fill(m.gram.begin(), m.gram.end(), 0.0F);
            const std::size_t step = (keys.count + sample_ - 1) / sample_;
            for (std::size_t t = 0; t < keys.count; t += step) {
                simd::decode(keys.row(t), m.key.data(), width);
                turn_back(m.key.data(), static_cast<std::uint32_t>(t));
                for (std::size_t i = 0; i < width; ++i)
                    simd::axpy(m.key[i], m.key.data(), &m.gram[i * width], width);
            }
            // From random directions: each product with the Gram matrix turns them towards the greatest
            // energy.
            for (std::size_t i = 0; i < r * width; ++i)
                m.basis[i] = static_cast<float>(detail::random_unit(1, i) - 0.5);
            const rows_view<float> gram{m.gram.data(), width, width, width};
            for (std::uint32_t i = 0; i < iterations_; ++i) {
                detail::orthonormalise(m.basis.data(), r, width);
                simd::dot_group(m.basis.data(), r, width, gram, m.next.data(), width);
                std::swap(m.basis, m.next);
            }
            detail::orthonormalise(m.basis.data(), r, width);
            simd::encode(m.basis.data(), reinterpret_cast<E*>(lane + sizeof(header)), r * width);
            reinterpret_cast<header*>(lane)->fitted = 1;
            if (outliers_ != 0) keep_outliers(lane, keys, m);
        }
        [[nodiscard]] state at(const codec_lane& lane) const noexcept {
            state s = *this;
            s.basis_ = reinterpret_cast<const header*>(lane.fitted)->fitted == 0
                           ? nullptr
                           : reinterpret_cast<const E*>(lane.fitted + sizeof(header));
            s.exact_ = lane.fitted + outliers_at();
            s.exact_chunks_ = reinterpret_cast<const header*>(lane.fitted)->outliers;
            return s;
        }

        std::uint32_t encode_key(const Plain* row, std::uint32_t position, std::byte* record) const noexcept {
            std::array<float, max_width> x;
            simd::decode(row, x.data(), shape_.width());
            turn_back(x.data(), position);
            std::memcpy(record, &position, sizeof position);
            E* c = reinterpret_cast<E*>(record + sizeof position);
            if (basis_ != nullptr)
                detail::encode_products(x.data(), basis(), c);
            else
                for (std::uint32_t j = 0; j < rank_; ++j) c[j] = from_float<E>(x[channel(j)]);
            const std::size_t end = sizeof position + rank_ * sizeof(E);
            std::memset(record + end, 0, bytes().key - end);
            return bytes().key;
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            return values_.encode_value(row, record);
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            for (std::uint32_t head = 0; head < shape_.heads; ++head)
                rebuild(records, head, [&](std::size_t i, const float* x) {
                    simd::encode(x, rows + i * shape_.width() + std::size_t{head} * shape_.dim, shape_.dim);
                });
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            values_.decode_values(records, rows);
        }
        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            rebuild(keys, head, [&](std::size_t i, const float* x) {
                for (std::size_t g = 0; g < group; ++g)
                    out[g * out_stride + i] = simd::dot(q + g * q_stride, x, shape_.dim);
            });
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            values_.accumulate(weight, group, values, head, acc, acc_stride);
        }

      private:
        struct alignas(64) header {
            std::uint32_t fitted = 0;
            std::uint32_t outliers = 0;
        };
        struct fit_memory {
            std::span<float> gram;            ///< (width, width)
            std::span<float> basis, next;     ///< (r, width)
            std::span<float> key;             ///< (width)
            std::span<detail::outlier> worst; ///< (outliers + 1)
            std::span<float> chunk;           ///< (chunk, D)
        };
        [[nodiscard]] fit_memory take_fit(carver& c) const noexcept {
            const std::size_t width = shape_.width(), r = rank_;
            return {c.take<float>(width * width),
                    c.take<float>(r * width),
                    c.take<float>(r * width),
                    c.take<float>(width),
                    c.take<detail::outlier>(outliers_ + std::size_t{1}),
                    c.take<float>(outliers_ == 0 ? 0 : std::size_t{chunk_} * shape_.dim)};
        };

        // Behind the basis: the numbers of the outlier chunks, ascending, and their keys (outliers, chunk, width).
        [[nodiscard]] std::size_t outliers_at() const noexcept {
            return (sizeof(header) + std::size_t{rank_} * shape_.width() * sizeof(E) + 63) / 64 * 64;
        }
        [[nodiscard]] std::size_t outlier_rows_at() const noexcept {
            return (outliers_ * sizeof(std::uint32_t) + 63) / 64 * 64;
        }
        template <element Row>
        void keep_outliers(std::byte* lane, rows_view<Row> keys, fit_memory& m) const noexcept {
            const std::size_t width = shape_.width(), dim = shape_.dim;
            const std::size_t chunks = keys.count > skip_ ? (keys.count - skip_) / chunk_ : 0;
            m.worst[0].unit = 0;
            for (std::uint32_t c = 0; c < chunks; ++c) {
                float least = std::numeric_limits<float>::infinity();
                for (std::size_t h = 0; h < width; h += dim) {
                    float *rows = m.chunk.data(), *sum = m.key.data();
                    std::fill_n(sum, dim, 0.0F);
                    for (std::size_t t = 0; t < chunk_; ++t) {
                        simd::decode(keys.row(skip_ + c * chunk_ + t) + h, rows + t * dim, dim);
                        simd::add(rows + t * dim, sum, dim);
                    }
                    least = std::min(least, detail::agreement(rows, chunk_, dim, sum, dim));
                }
                detail::enlist(m.worst, {least, c});
            }
            const std::size_t n = m.worst[0].unit;
            auto* number = reinterpret_cast<std::uint32_t*>(lane + outliers_at());
            for (std::size_t i = 0; i < n; ++i) number[i] = m.worst[1 + i].unit;
            std::sort(number, number + n);
            auto* rows = reinterpret_cast<Plain*>(lane + outliers_at() + outlier_rows_at());
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t t = 0; t < chunk_; ++t, rows += width) {
                    simd::decode(keys.row(skip_ + number[i] * chunk_ + t), m.key.data(), width);
                    simd::encode(m.key.data(), rows, width);
                }
            reinterpret_cast<header*>(lane)->outliers = static_cast<std::uint32_t>(n);
        }
        /// The exact key of a token, (width), or null.
        [[nodiscard]] const Plain* exact(std::uint32_t position) const noexcept {
            if (exact_chunks_ == 0 || position < skip_) return nullptr;
            const std::uint32_t chunk = (position - skip_) / chunk_;
            const auto* first = reinterpret_cast<const std::uint32_t*>(exact_);
            const auto* at = std::lower_bound(first, first + exact_chunks_, chunk);
            if (at == first + exact_chunks_ || *at != chunk) return nullptr;
            const auto row = static_cast<std::size_t>(at - first) * chunk_ + (position - skip_) % chunk_;
            return reinterpret_cast<const Plain*>(exact_ + outlier_rows_at()) + row * shape_.width();
        }

        [[nodiscard]] rows_view<E> basis() const noexcept {
            return {basis_, rank_, shape_.width(), shape_.width()};
        }
        /// The channel that coefficient j is, in a lane that was never fitted.
        [[nodiscard]] std::uint32_t channel(std::uint32_t j) const noexcept {
            return static_cast<std::uint32_t>(std::uint64_t{j} * shape_.width() / rank_);
        }
        void turn_back(float* x, std::uint32_t position) const noexcept {
            for (std::uint32_t h = 0; h < shape_.heads; ++h)
                turns_.turn_back(x + std::size_t{h} * shape_.dim, position);
        }

        /// visit(i, x) for one head of every record, x: (D) at its position.
        template <class Visit>
        void rebuild(const records_view& records, std::uint32_t head, Visit&& visit) const noexcept {
            constexpr std::size_t at_once = 4;
            alignas(64) std::array<float, at_once * position_table::max_dim> x;
            std::array<simd::coefficient_row<E>, at_once> rows;
            const std::size_t dim = shape_.dim, from = std::size_t{head} * dim;
            for (std::size_t first = 0; first < records.count; first += at_once) {
                const std::size_t n = std::min(at_once, records.count - first);
                for (std::size_t i = 0; i < n; ++i) {
                    const std::byte* record = records.record(first + i);
                    rows[i] = {reinterpret_cast<const E*>(record + sizeof(std::uint32_t)), rank_};
                }
                if (basis_ != nullptr)
                    simd::combine_rows(rows.data(), n,
                                       rows_view<E>{basis_ + from, rank_, dim, shape_.width()}, x.data(),
                                       dim);
                else
                    for (std::size_t i = 0; i < n; ++i) put_channels(rows[i], from, &x[i * dim]);
                for (std::size_t i = 0; i < n; ++i) {
                    std::uint32_t position = 0;
                    std::memcpy(&position, records.record(first + i), sizeof position);
                    if (const Plain* key = exact(position))
                        simd::decode(key + from, &x[i * dim], dim);
                    else
                        turns_.turn(&x[i * dim], position);
                    visit(first + i, &x[i * dim]);
                }
            }
        }
        void put_channels(const simd::coefficient_row<E>& c, std::size_t from, float* x) const noexcept {
            std::fill_n(x, shape_.dim, 0.0F);
            for (std::uint32_t j = 0; j < rank_; ++j)
                if (channel(j) >= from && channel(j) < from + shape_.dim)
                    x[channel(j) - from] = to_float(c.data[j]);
        }

        record_shape shape_{};
        std::uint32_t rank_ = 0, sample_ = 1, iterations_ = 1, outliers_ = 0, chunk_ = 1, skip_ = 0,
                      pairs_ = 0;
        position_table turns_{};
        const E* basis_ = nullptr;         ///< (r, width); null where nothing was fitted
        const std::byte* exact_ = nullptr; ///< outlier chunks of the lane
        std::uint32_t exact_chunks_ = 0;
        plain_rows<Plain> values_{};
    };
};

}} // namespace kvtl::v0
