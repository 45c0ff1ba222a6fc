// A codec for tests that writes down all that a store tells it: the entry's position, the lane's layer and first head, and
// what was fitted to the lane, in front of the row. Decoding checks the lane; the rest is for whoever looks at records.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <cmath>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace kvtl_test {

/// Fits: lanes are fitted to their prompts, and to the queries of the last chunk.
template <bool Fits> struct marked_rows_as {
    static constexpr std::string_view name = "marked_rows";
    using plain_type = float;
    static constexpr kvtl::key_domain domain = kvtl::key_domain::pre_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error = 0;
    static constexpr bool fits_lanes = Fits, fits_queries = Fits;
    struct config {};

    struct marks {
        std::uint32_t position = 0, layer = 0, first_head = 0, fitted_rows = 0;
    };

    /// What is fitted to a lane.
    struct fit_marks {
        std::uint32_t rows = 0, queries = 0;
        float first_query = 0; ///< the lane's first number of the first of them
    };

    class state {
      public:
        state() = default;
        state(const config&, const kvtl::record_shape& shape) noexcept : shape_(shape) {}

        [[nodiscard]] kvtl::record_bytes bytes() const noexcept {
            const auto row = static_cast<std::uint32_t>(sizeof(marks) + shape_.width() * sizeof(float));
            return {row, row};
        }
        [[nodiscard]] std::size_t lane_bytes() const noexcept { return sizeof(fit_marks); }
        [[nodiscard]] std::size_t fit_scratch_bytes(std::size_t rows) const noexcept { return 4 * rows; }
        void fit(std::byte* lane, kvtl::rows_view<float> keys, kvtl::rows_view<float> values,
                 const kvtl::prompt_queries& q, std::span<std::byte> scratch) const noexcept {
            if (scratch.size() < fit_scratch_bytes(keys.count)) return; // too little: nothing is fitted
            std::memset(scratch.data(), 0xA5, fit_scratch_bytes(keys.count));
            const fit_marks m{static_cast<std::uint32_t>(keys.count), static_cast<std::uint32_t>(q.count),
                              q.q.as<float>()[q.q.place(std::size_t{q.first} * shape_.dim)]};
            if (values.count == keys.count) std::memcpy(lane, &m, sizeof m);
        }
        [[nodiscard]] state at(const kvtl::codec_lane& lane) const noexcept {
            state s = *this;
            s.marks_ = {0, lane.layer, lane.first_head, 0};
            std::memcpy(&s.marks_.fitted_rows, lane.fitted, sizeof s.marks_.fitted_rows);
            return s;
        }
        std::uint32_t encode_key(const float* row, std::uint32_t position, std::byte* record) const noexcept {
            marks m = marks_;
            m.position = position;
            std::memcpy(record, &m, sizeof m);
            std::memcpy(record + sizeof m, row, shape_.width() * sizeof(float));
            return bytes().key;
        }
        std::uint32_t encode_value(const float* row, std::byte* record) const noexcept {
            return encode_key(row, 0, record);
        }
        void decode_keys(const kvtl::records_view& records, float* rows) const noexcept {
            for (std::size_t i = 0; i < records.count; ++i, rows += shape_.width())
                std::memcpy(rows, row_of(records, i), shape_.width() * sizeof(float));
        }
        void decode_values(const kvtl::records_view& records, float* rows) const noexcept {
            decode_keys(records, rows);
        }
        void score(const float* q, std::size_t q_stride, std::size_t group, const kvtl::records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            for (std::size_t i = 0; i < keys.count; ++i)
                for (std::size_t g = 0; g < group; ++g)
                    out[g * out_stride + i] = kvtl::simd::dot(
                        q + g * q_stride, row_of(keys, i) + std::size_t{head} * shape_.dim, shape_.dim);
        }
        void accumulate(const float* weight, std::size_t group, const kvtl::records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            for (std::size_t i = 0; i < values.count; ++i)
                for (std::size_t g = 0; g < group; ++g)
                    kvtl::simd::axpy(weight[g * kvtl::simd::attend_block + i],
                                     row_of(values, i) + std::size_t{head} * shape_.dim, acc + g * acc_stride,
                                     shape_.dim);
        }

      private:
        /// The row of a record of this lane; of another lane's, NaN, which no result survives.
        [[nodiscard]] const float* row_of(const kvtl::records_view& records, std::size_t i) const noexcept {
            static const std::vector<float> wrong(4096, NAN);
            marks m;
            std::memcpy(&m, records.record(i), sizeof m);
            if (m.layer != marks_.layer || m.first_head != marks_.first_head) return wrong.data();
            return reinterpret_cast<const float*>(records.record(i) + sizeof m);
        }

        kvtl::record_shape shape_{};
        marks marks_{};
    };
};
using marked_rows = marked_rows_as<true>;

} // namespace kvtl_test
