// Compressor: plain rows without the key channels of a head that matter least to the prompt's last queries (ThinK).
//
//   score(d) = ||K_d|| * sum over the group's queries g of ||Q_g,d||
//   k'       = the floor((1 - lambda) D) channels of k with the largest scores, in their order
//   q . k   ~= q' . k'
//
// What:   K_d is channel d of the prompt's keys, Q_g,d that of the last `queries` queries of query head g: a channel costs the
//         logits at most as much as the product of these lengths. Each KV head has channels of its own. Values stay whole. The
//         window is plain rows, so the latest keys stay whole too. A lane that was never fitted keeps evenly spaced channels.
// Record: of a key the kept numbers of each head; of a value the plain row. D = 64, lambda 0.4: 76 + 128 bytes instead of 256.
// Bytes:  per lane 2 bytes for each kept channel, and 4.
// Cost:   queries are gathered once per call, scores take (1 - lambda) D multiply-adds. fit: (T + 32 G) D multiply-adds per head.
// Error:  the part of a key that its pruned channels hold. lambda = 0 is exact.
// Limits: head_dim up to max_dim.
// Source: "ThinK: Thinner Key Cache by Query-Driven Pruning", section 3: the query-driven criterion, the last 32 queries, and
//         lambda of 0.4. Deviations: channels are those of the prompt's first chunk (with clusters, of the whole prompt; behind a
//         retention that drops, of what it kept, by the queries of the last chunk). Under a late budget only the last layer
//         comes with its queries, and the lengths of keys decide in the others. Decoded keys lose the same channels when they
//         leave the window; the paper keeps them whole.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/plain_rows.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Plain: of rows and of the kept numbers.
template <element Plain = f16> struct channel_pruned {
    static constexpr std::string_view name = "channel_pruned";
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error =
        std::numeric_limits<double>::infinity(); // what the pruned channels hold
    static constexpr bool fits_lanes = true;
    static constexpr bool fits_queries = true;
    static constexpr std::uint32_t max_dim = 1024;

    struct config {
        double pruned = 0.4;        ///< lambda: share of the key channels that is left out
        std::uint32_t queries = 32; ///< of the prompt, from its end, that score channels
        template <class Visit> void fields(Visit&& visit) {
            visit("pruned", pruned);
            visit("queries", queries);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept
            : shape_(shape), kept_(kept_of(c.pruned, shape.dim)), queries_(c.queries), values_(shape) {}

        /// Refuses a config that cannot work.
        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            if (!(c.pruned >= 0 && c.pruned < 1))
                return status::failure(errc::invalid_argument,
                                       "compressor.pruned is %g; valid: 0 or more, less than 1", c.pruned);
            if (kept_of(c.pruned, shape.dim) == 0)
                return status::failure(
                    errc::invalid_argument,
                    "compressor.pruned is %g; valid for head_dim %u: at most %g, one channel must stay",
                    c.pruned, shape.dim, (shape.dim - 1.0) / shape.dim);
            if (c.queries == 0)
                return status::failure(errc::invalid_argument, "compressor.queries is 0; valid: 1 or more");
            if (shape.dim > max_dim)
                return status::failure(errc::invalid_argument,
                                       "shape.head_dim is %u; valid for pruned channels: at most %u",
                                       shape.dim, max_dim);
            return {};
        }

        [[nodiscard]] record_bytes bytes() const noexcept {
            return {static_cast<std::uint32_t>(shape_.heads * kept_ * sizeof(Plain)), values_.bytes().value};
        }
        [[nodiscard]] std::size_t lane_bytes() const noexcept {
            return sizeof(std::uint32_t) + shape_.heads * kept_ * sizeof(std::uint16_t);
        }
        [[nodiscard]] std::size_t fit_scratch_bytes(std::size_t) const noexcept { return 0; }

        /// keys: (T, lane heads * D), T > 0. Without queries, the lengths of the keys decide.
        template <element Row>
        void fit(std::byte* lane, rows_view<Row> keys, rows_view<Row>, const prompt_queries& q,
                 std::span<std::byte>) const noexcept {
            std::array<double, max_dim> score, sum;
            std::array<std::uint16_t, max_dim> order;
            const std::uint32_t dim = shape_.dim;
            for (std::uint32_t h = 0; h < shape_.heads; ++h) {
                std::fill_n(score.data(), dim, q.count == 0 ? 1.0 : 0.0);
                const std::size_t begin = q.count - std::min<std::size_t>(q.count, queries_);
                for (std::uint32_t g = 0; q.count > 0 && g < q.group; ++g) {
                    std::fill_n(sum.data(), dim, 0.0);
                    const std::size_t head = q.first + std::size_t{h} * q.group + g;
                    q.q.visit([&](const auto* all) {
                        for (std::size_t t = begin; t < q.count; ++t)
                            add_squares(all + q.q.place((t * q.all + head) * dim), sum.data());
                    });
                    for (std::uint32_t d = 0; d < dim; ++d) score[d] += std::sqrt(sum[d]);
                }
                std::fill_n(sum.data(), dim, 0.0);
                for (std::size_t t = 0; t < keys.count; ++t)
                    add_squares(keys.row(t) + std::size_t{h} * dim, sum.data());
                for (std::uint32_t d = 0; d < dim; ++d) score[d] *= std::sqrt(sum[d]);
                const auto first = order.begin(), last = first + dim, kept = first + kept_;
                std::iota(first, last, std::uint16_t{0});
                std::partial_sort(first, kept, last, [&](std::uint16_t a, std::uint16_t b) {
                    return score[a] != score[b] ? score[a] > score[b] : a < b;
                });
                std::sort(first, kept);
                std::memcpy(lane + sizeof(std::uint32_t) + std::size_t{h} * kept_ * sizeof(std::uint16_t),
                            order.data(), kept_ * sizeof(std::uint16_t));
            }
            const std::uint32_t fitted = 1;
            std::memcpy(lane, &fitted, sizeof fitted);
        }
        [[nodiscard]] state at(const codec_lane& lane) const noexcept {
            state s = *this;
            std::uint32_t fitted = 0;
            std::memcpy(&fitted, lane.fitted, sizeof fitted);
            s.channels_ =
                fitted == 0 ? nullptr : reinterpret_cast<const std::uint16_t*>(lane.fitted + sizeof fitted);
            return s;
        }

        std::uint32_t encode_key(const Plain* row, std::uint32_t, std::byte* record) const noexcept {
            auto* out = reinterpret_cast<Plain*>(record);
            for (std::uint32_t h = 0; h < shape_.heads; ++h, row += shape_.dim)
                for (std::uint32_t i = 0; i < kept_; ++i) *out++ = row[channel(h, i)];
            return bytes().key;
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            return values_.encode_value(row, record);
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            std::fill_n(rows, records.count * shape_.width(), from_float<Plain>(0.0F));
            for (std::size_t i = 0; i < records.count; ++i) {
                const auto* in = reinterpret_cast<const Plain*>(records.record(i));
                for (std::uint32_t h = 0; h < shape_.heads; ++h, rows += shape_.dim)
                    for (std::uint32_t j = 0; j < kept_; ++j) rows[channel(h, j)] = *in++;
            }
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            values_.decode_values(records, rows);
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            constexpr std::size_t at_once = 4; // queries: as many as kernels take together
            float x[at_once * max_dim];
            const rows_view<Plain> rows{reinterpret_cast<const Plain*>(keys.data) + std::size_t{head} * kept_,
                                        keys.count, kept_, keys.stride / sizeof(Plain), keys.following};
            for (std::size_t g = 0; g < group; g += at_once) {
                const std::size_t n = std::min(at_once, group - g);
                for (std::uint32_t j = 0; j < kept_; ++j) {
                    const float* from = q + g * q_stride + channel(head, j);
                    for (std::size_t i = 0; i < n; ++i) x[i * kept_ + j] = from[i * q_stride];
                }
                simd::dot_group(x, n, kept_, rows, out + g * out_stride, out_stride);
            }
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            values_.accumulate(weight, group, values, head, acc, acc_stride);
        }

      private:
        [[nodiscard]] static std::uint32_t kept_of(double pruned, std::uint32_t dim) noexcept {
            return static_cast<std::uint32_t>(std::max(0.0, (1 - pruned) * dim + 1e-6));
        }
        template <element Row> void add_squares(const Row* row, double* sum) const noexcept {
            float x[max_dim];
            simd::decode(row, x, shape_.dim);
            for (std::uint32_t d = 0; d < shape_.dim; ++d)
                sum[d] += static_cast<double>(x[d]) * static_cast<double>(x[d]);
        }
        /// The channel of which a record holds number i of a head.
        [[nodiscard]] std::uint32_t channel(std::uint32_t head, std::uint32_t i) const noexcept {
            return channels_ != nullptr ? channels_[head * kept_ + i] : i * shape_.dim / kept_;
        }

        record_shape shape_{};
        std::uint32_t kept_ = 0; ///< channels of a head
        std::uint32_t queries_ = 0;
        const std::uint16_t* channels_ = nullptr; ///< (lane heads, kept); null where nothing was fitted
        plain_rows<Plain> values_{};
    };
};

}} // namespace kvtl::v0
