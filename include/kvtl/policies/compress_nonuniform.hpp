// Compressor: codes of 2, 3 or 4 bits whose levels were fitted offline, keys before RoPE with a range per channel, and
// outliers that are stored exactly.
//
// What:   number d of a row is middle + half range * level[code]. A key is rotated back to position 0 first. Its channels have
//         middles and half ranges in the calibration file. A value has one middle and one half range, of its numbers that have
//         a code. Levels are not evenly spaced; all heads of a layer share them. In each head some numbers are outliers: they
//         have no code and are stored as plain_type. Outliers of a key are the numbers furthest outside the range of their
//         channel; outliers of a value are the numbers furthest from its mean.
// Basis:  kinds nuq_keys and nuq_values of the calibration file (calibration/level_table.hpp).
// Record: of a key its position (4 bytes); for each head of the lane the outliers, D codes, of a value the middle and the half
//         range (bf16), and the places of the outliers (1 byte each); padded to a multiple of 4 bytes. D = 64, f16, one
//         outlier: 40 bytes each for key and value with 4 bits, 24 with 2, instead of 128.
// Error:  half of the distance of two levels, in half ranges, of numbers within the range. Numbers beyond it that are not
//         among the outliers become the first or the last level. A value's middle and half range are rounded to bf16 besides.
// Cost:   scores decode and rotate a block's keys, some 4 D operations each, and multiply them with the queries as floats;
//         sums decode each value once. Encoding compares a number with every level.
// Limits: head_dim up to max_dim. Keys must be rotated by one angle per pair and position, and not changed afterwards.
// Source: "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization" (Hooper et al. 2024, sections
//         3.1 to 3.5). Deviations: the number of outliers is fixed per head and token, so that records have one size, where the
//         paper has thresholds and ragged rows (its code caps them per token, over all heads); outliers take the place of
//         their codes; a value has a middle and a range per head. First tokens that stay exact are `sink_tokens`.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/policies/support/position_table.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/lookup.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Plain: what window, sinks and waiting entries are.
template <element Plain = f16> struct nonuniform {
    static constexpr std::string_view name = "nonuniform";
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::pre_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error =
        std::numeric_limits<double>::infinity(); // as ranges and levels fit
    static constexpr bool shares = true;
    static constexpr std::uint32_t calibrated =
        kind_bit(calibration_kind::nuq_keys) | kind_bit(calibration_kind::nuq_values);
    static constexpr std::uint32_t max_dim = 256;

    struct config {
        std::uint32_t bits = 4; ///< of a code: 2, 3 or 4
        float outliers = 0.01F; ///< share of a head's numbers that are kept as they are; 1 keeps all
        std::vector<double>
            frequencies{};       ///< radians per position of each pair that RoPE turns; empty: base 10,000
        std::uint32_t dims = 0;  ///< channels of a head that turn, from the first (0: all)
        bool neighbours = false; ///< pairs are (0, 1), (2, 3), ... instead of (0, n), (1, n + 1), ...
        template <class Visit> void fields(Visit&& visit) {
            visit("bits", bits);
            visit("outliers", outliers);
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
            : shape_(shape), bits_(c.bits), outliers_(level_table::outliers(c.outliers, shape.dim)),
              pairs_(rope_pairs(c, shape.dim)) {}

        /// Refuses a config that cannot work.
        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            if (c.bits < level_table::least_bits || c.bits > level_table::most_bits)
                return status::failure(errc::invalid_argument, "compressor.bits is %u; valid: 2, 3 or 4",
                                       c.bits);
            if (!(c.outliers >= 0 && c.outliers <= 1))
                return status::failure(errc::invalid_argument, "compressor.outliers is %g; valid: 0 to 1",
                                       static_cast<double>(c.outliers));
            if (shape.dim > max_dim)
                return status::failure(errc::invalid_argument,
                                       "compressor: heads of %u numbers; valid: up to %u", shape.dim,
                                       max_dim);
            return check_rope(c, shape.dim);
        }

        [[nodiscard]] record_bytes bytes() const noexcept {
            return {whole(sizeof(std::uint32_t) + shape_.heads * head_bytes<true>()),
                    whole(shape_.heads * head_bytes<false>())};
        }
        [[nodiscard]] std::size_t shared_bytes(std::uint32_t max_tokens) const noexcept {
            return position_table::bytes(pairs_, max_tokens);
        }
        [[gnu::cold]] void share(const config& c, std::uint32_t max_tokens,
                                 std::span<std::byte> memory) noexcept {
            turns_ = rope_table(c, shape_.dim, max_tokens, memory);
        }
        /// Refuses ranges of keys after RoPE, ranges below 0 and levels that do not ascend within [-1, 1].
        [[nodiscard, gnu::cold]] status check_calibration(const calibration_view& view) const {
            using kind = calibration_kind;
            if (!view.pre_rope(kind::nuq_keys))
                return status::failure(errc::file_refused,
                                       "calibration: nuq_keys were fitted to keys after RoPE; valid: before");
            for (std::uint32_t layer = 0; layer < view.layers(kind::nuq_keys); ++layer) {
                const rows_view<float> keys = view.basis(kind::nuq_keys, layer, 0);
                const std::size_t width = (keys.dim - level_table::levels) / 2;
                for (std::size_t c = 0; c < width; ++c)
                    if (keys.data[width + c] < 0)
                        return status::failure(
                            errc::file_refused,
                            "calibration: nuq_keys of layer %u: half range %zu is %g; valid: 0 or more",
                            layer, c, static_cast<double>(keys.data[width + c]));
                for (const auto& [k, levels] :
                     {std::pair(kind::nuq_keys, keys.data + 2 * width),
                      std::pair(kind::nuq_values, view.basis(kind::nuq_values, layer, 0).data)}) {
                    const float* own = levels + level_table::first(bits_);
                    const std::uint32_t n = level_table::count(bits_);
                    if (!(own[0] >= -1 && own[n - 1] <= 1 && std::is_sorted(own, own + n)))
                        return status::failure(
                            errc::file_refused,
                            "calibration: %s of layer %u: levels of %u bits do not ascend from -1 to 1",
                            kind_name(k).data(), layer, bits_);
                }
            }
            return {};
        }
        void bind(const calibration_view& view) noexcept {
            const rows_view<float> keys = view.basis(calibration_kind::nuq_keys, 0, 0);
            layer_width_ = (keys.dim - level_table::levels) / 2;
            middles_ = keys.data;
            ranges_ = middles_ + layer_width_;
            key_levels_ = ranges_ + layer_width_ + level_table::first(bits_);
            value_levels_ = view.basis(calibration_kind::nuq_values, 0, 0).data + level_table::first(bits_);
        }
        [[nodiscard]] state at(const codec_lane& lane) const noexcept {
            state s = *this;
            const std::size_t layer = lane.layer * (2 * layer_width_ + level_table::levels),
                              channel = std::size_t{lane.first_head} * shape_.dim;
            s.middles_ += layer + channel;
            s.ranges_ += layer + channel;
            s.key_levels_ += layer;
            s.value_levels_ += std::size_t{lane.layer} * level_table::levels;
            return s;
        }

        std::uint32_t encode_key(const Plain* row, std::uint32_t position, std::byte* record) const noexcept {
            std::memset(record, 0, bytes().key);
            std::memcpy(record, &position, sizeof position);
            numbers x, level;
            for (std::uint32_t h = 0; h < shape_.heads; ++h, row += shape_.dim) {
                simd::decode(row, x.data(), shape_.dim);
                turns_.turn_back(x.data(), position);
                const float *middle = middles_ + h * shape_.dim, *range = ranges_ + h * shape_.dim;
                for (std::uint32_t d = 0; d < shape_.dim; ++d) level[d] = level_of(x[d], middle[d], range[d]);
                const head_parts<true> to{record + key_at(h), *this};
                numbers distance;
                for (std::uint32_t d = 0; d < shape_.dim; ++d) distance[d] = std::fabs(level[d]);
                places found;
                pick_outliers(distance.data(), shape_.dim, outliers_, found.data());
                put(x, level, found, key_levels_, to);
            }
            return bytes().key;
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            std::memset(record, 0, bytes().value);
            numbers x, level;
            for (std::uint32_t h = 0; h < shape_.heads; ++h, row += shape_.dim) {
                simd::decode(row, x.data(), shape_.dim);
                const head_parts<false> to{record + value_at(h), *this};
                places found;
                const value_range r =
                    range_without_outliers(x.data(), shape_.dim, outliers_, level.data(), found.data());
                const auto middle = from_float<bf16>(r.middle), half = from_float<bf16>(r.half);
                to.set_range(middle, half);
                for (std::uint32_t d = 0; d < shape_.dim; ++d)
                    level[d] = level_of(x[d], to_float(middle), to_float(half));
                put(x, level, found, value_levels_, to);
            }
            return bytes().value;
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            decode(records, rows, &state::read_key);
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            decode(records, rows, &state::read_value);
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            constexpr std::size_t at_once = 4;
            alignas(64) std::array<float, at_once * max_dim> x;
            // Side by side: rows of a power of two apart would stand in each other's way in the cache.
            const std::size_t stride = (shape_.dim + 15) / 16 * 16;
            for (std::size_t first = 0; first < keys.count; first += at_once) {
                const std::size_t n = std::min(at_once, keys.count - first);
                for (std::size_t i = 0; i < n; ++i)
                    read_key(keys.record(first + i), head, x.data() + i * stride);
                simd::dot_group(q, group, q_stride, rows_view<float>{x.data(), n, shape_.dim, stride},
                                out + first, out_stride);
            }
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            numbers x;
            for (std::size_t i = 0; i < values.count; ++i) {
                read_value(values.record(i), head, x.data());
                for (std::size_t g = 0; g < group; ++g)
                    simd::axpy(weight[g * simd::attend_block + i], x.data(), acc + g * acc_stride,
                               shape_.dim);
            }
        }

      private:
        using place = std::uint8_t;
        static_assert(max_dim - 1 <= std::numeric_limits<place>::max());
        static_assert(max_dim % simd::codes_at_once == 0);
        using numbers = std::array<float, max_dim>;
        using places = std::array<place, max_dim>;

        /// read(record, head, numbers): read_key or read_value.
        void decode(const records_view& records, Plain* rows,
                    void (state::*read)(const std::byte*, std::uint32_t, float*)
                        const noexcept) const noexcept {
            numbers x;
            for (std::size_t i = 0; i < records.count; ++i)
                for (std::uint32_t h = 0; h < shape_.heads; ++h, rows += shape_.dim) {
                    (this->*read)(records.record(i), h, x.data());
                    simd::encode(x.data(), rows, shape_.dim);
                }
        }
        [[nodiscard]] static constexpr std::uint32_t whole(std::size_t bytes) noexcept {
            return static_cast<std::uint32_t>((bytes + 3) / 4 * 4);
        }
        [[nodiscard]] std::size_t code_bytes() const noexcept {
            return (shape_.dim + simd::codes_at_once - 1) / simd::codes_at_once * bits_;
        }
        template <bool Key> [[nodiscard]] std::size_t head_bytes() const noexcept {
            return outliers_ * (sizeof(Plain) + sizeof(place)) + code_bytes() + (Key ? 0 : 2 * sizeof(bf16));
        }
        [[nodiscard]] std::size_t key_at(std::uint32_t head) const noexcept {
            return sizeof(std::uint32_t) + head * head_bytes<true>();
        }
        [[nodiscard]] std::size_t value_at(std::uint32_t head) const noexcept {
            return head * head_bytes<false>();
        }

        /// Where the parts of a head are in its record.
        template <bool Key, class Byte = std::byte> struct head_parts {
            Byte *outliers, *codes, *range, *places;
            head_parts(Byte* head, const state& s) noexcept
                : outliers(head), codes(outliers + s.outliers_ * sizeof(Plain)),
                  range(codes + s.code_bytes()), places(range + (Key ? 0 : 2 * sizeof(bf16))) {}
            void set_range(bf16 middle, bf16 half) const noexcept {
                std::memcpy(range, &middle, sizeof middle);
                std::memcpy(range + sizeof middle, &half, sizeof half);
            }
        };

        /// In half ranges from the middle. A number of a channel without a range is infinitely far out, or at 0.
        [[nodiscard]] static float level_of(float x, float middle, float range) noexcept {
            const float off = x - middle;
            if (range >= std::numeric_limits<float>::min()) return off / range;
            return off == 0 ? 0.0F : std::copysign(std::numeric_limits<float>::infinity(), off);
        }
        template <bool Key>
        void put(const numbers& x, const numbers& level, const places& found, const float* levels,
                 const head_parts<Key>& to) const noexcept {
            const std::uint32_t last = level_table::count(bits_) - 1;
            for (std::uint32_t d = 0; d < shape_.dim; ++d) {
                std::uint32_t code = 0; // of the nearest level; of two the lower one
                for (std::uint32_t l = 0; l < last; ++l)
                    code += level[d] > 0.5F * levels[l] + 0.5F * levels[l + 1] ? 1U : 0U;
                const std::size_t bit = d * bits_;
                to.codes[bit / 8] |= static_cast<std::byte>(code << (bit % 8));
                if (bit % 8 + bits_ > 8)
                    to.codes[bit / 8 + 1] |= static_cast<std::byte>(code >> (8 - bit % 8));
            }
            for (std::uint32_t i = 0; i < outliers_; ++i) {
                constexpr float largest = largest_of<Plain>();
                const Plain number = from_float<Plain>(std::clamp(x[found[i]], -largest, largest));
                std::memcpy(to.outliers + i * sizeof number, &number, sizeof number);
                std::memcpy(to.places + i * sizeof(place), &found[i], sizeof(place));
            }
        }

        /// x: the levels of a head's codes.
        void expand(const std::byte* codes, const float* levels, float* x) const noexcept {
            if (bits_ == 4) return simd::expand_levels<4>(codes, shape_.dim, levels, x);
            if (bits_ == 3) return simd::expand_levels<3>(codes, shape_.dim, levels, x);
            simd::expand_levels<2>(codes, shape_.dim, levels, x);
        }
        template <bool Key>
        void put_back_outliers(const head_parts<Key, const std::byte>& from, float* x) const noexcept {
            for (std::uint32_t i = 0; i < outliers_; ++i) {
                Plain number;
                std::memcpy(&number, from.outliers + i * sizeof number, sizeof number);
                x[std::to_integer<std::size_t>(from.places[i])] = to_float(number);
            }
        }
        /// x (max_dim): the key of a head at its position.
        void read_key(const std::byte* record, std::uint32_t head, float* x) const noexcept {
            const head_parts<true, const std::byte> from{record + key_at(head), *this};
            expand(from.codes, key_levels_, x);
            const float *middle = middles_ + head * shape_.dim, *range = ranges_ + head * shape_.dim;
            for (std::uint32_t d = 0; d < shape_.dim; ++d) x[d] = middle[d] + range[d] * x[d];
            put_back_outliers(from, x);
            std::uint32_t position = 0;
            std::memcpy(&position, record, sizeof position);
            turns_.turn(x, position);
        }
        void read_value(const std::byte* record, std::uint32_t head, float* x) const noexcept {
            const head_parts<false, const std::byte> from{record + value_at(head), *this};
            expand(from.codes, value_levels_, x);
            bf16 middle, range;
            std::memcpy(&middle, from.range, sizeof middle);
            std::memcpy(&range, from.range + sizeof middle, sizeof range);
            const float m = to_float(middle), r = to_float(range);
            constexpr float largest = largest_of<Plain>(); // a rounded range may lead beyond it
            for (std::uint32_t d = 0; d < shape_.dim; ++d) x[d] = std::clamp(m + r * x[d], -largest, largest);
            put_back_outliers(from, x);
        }

        record_shape shape_{};
        std::uint32_t bits_ = level_table::most_bits, outliers_ = 0, pairs_ = 0;
        position_table turns_{};
        // Of the lane's first head, and of its layer.
        const float *middles_ = nullptr, *ranges_ = nullptr, *key_levels_ = nullptr, *value_levels_ = nullptr;
        std::size_t layer_width_ = 0; ///< channels of a layer
    };
};

}} // namespace kvtl::v0
