// Compressor: every token has its own number of coefficients, for its key and for its value, in separate
// bases.
//
// What:   x~ = x U for the pre-RoPE key row of a token, and for its value row. The first rho coefficients are
//         stored in 16 bits. Rule chooses rho for each token, key and value (support/rank_rules.hpp). The
//         decoded x is the sum of the first rho rows of the inverse of U, weighted by the coefficients. Keys
//         are then rotated to their position. The engine hands over keys after RoPE. They are rotated back as
//         config describes, starting from their rounding to plain_type. This does not fit models that change
//         a key after its rotation, or that rotate by anything other than one angle per pair and position.
// Basis:  from the calibration file. coupling::layer: one basis for all KV heads of a layer side by side
//         (kinds joint_keys, joint_values; for trained rules gated_keys, gated_values), for lanes of a whole
//         layer. coupling::head: one per KV head (head_keys, head_values). Trained bases come with an
//         inverse; the others are orthonormal.
// Record: of a key its position (4 bytes); of key and value for each basis rho (2 bytes) and rho coefficients
//         (2 bytes each), padded to a multiple of 4 bytes. If the rule has one rank for all tokens
//         (low_rank), there is no rho, and records have one size.
// Cost:   scores rebuild the keys of a block of entries in registers, rho * D multiply-adds each. Values are
//         summed as coefficients and multiplied by the basis once per block. Encoding multiplies a row by the
//         whole basis, and once more by the basis of a gate.
// Limits: the numbers of a row, all heads of a lane together, are at most max_row_width.
// Source: "DynaKV" (token-adaptive low-rank compression), Eq. 1-8, with its gates or a rule that needs no training.
//         "Palu", J-LRD, with one rank for all: keys and values are linear in the layer's input, so
//         truncating the projections under the second moment of the inputs equals truncating the rows under
//         their own.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/policies/support/position_table.hpp>
#include <kvtl/policies/support/rank_rules.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/combine.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

/// What one basis spans: all heads of a layer, or each of its own.
enum class coupling : std::uint8_t { layer, head };

template <coupling Coupling, class Rule = keep_energy, element Plain = f16> struct token_adaptive_rank {
    static constexpr std::string_view name = Rule::fixed ? "low_rank" : "token_adaptive_rank";
    using plain_type = Plain;
    using coefficient = f16;
    static constexpr key_domain domain = key_domain::pre_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = !Rule::fixed;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error =
        std::numeric_limits<double>::infinity(); // as much as the rule gives up
    static constexpr bool joint = Coupling == coupling::layer;
    static constexpr bool layer_wide_only = joint;
    static constexpr bool shares = true;
    static_assert(joint || !Rule::trained,
                  "[kvtl] compressor: gates span the heads of a layer: coupling::layer");
    static constexpr calibration_kind key_basis = Rule::trained ? calibration_kind::gated_keys
                                                  : joint       ? calibration_kind::joint_keys
                                                                : calibration_kind::head_keys;
    static constexpr calibration_kind value_basis = Rule::trained ? calibration_kind::gated_values
                                                    : joint       ? calibration_kind::joint_values
                                                                  : calibration_kind::head_values;
    static constexpr std::uint32_t calibrated = kind_bit(key_basis) | kind_bit(value_basis);

    struct config : Rule::config {
        std::vector<double>
            frequencies{};       ///< radians per position of each pair that RoPE turns; empty: base 10,000
        std::uint32_t dims = 0;  ///< channels of a head that turn, from the first (0: all)
        bool neighbours = false; ///< pairs are (0, 1), (2, 3), ... instead of (0, n), (1, n + 1), ...
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
            : shape_(shape), rule_(c), pairs_(rope_pairs(c, shape.dim)) {
            if constexpr (Rule::trained) rate_ = c.rate;
        }

        /// Refuses a config that cannot work.
        [[nodiscard]] static status check(const config& c, const record_shape& shape) noexcept {
            const auto wrong = errc::invalid_argument;
            if (status s = Rule::check(c); !s) return s;
            if (shape.width() > max_row_width)
                return status::failure(wrong, "compressor: rows of %u numbers; valid: up to %u",
                                       shape.width(), max_row_width);
            return check_rope(c, shape.dim);
        }

        [[nodiscard]] record_bytes bytes() const noexcept {
            const std::uint32_t most = Rule::fixed ? rule_.rank(nullptr, span_width(), {}) : span_width();
            const auto rows = static_cast<std::uint32_t>(spans() * (rho_bytes + most * sizeof(coefficient)));
            return {whole(rows + static_cast<std::uint32_t>(sizeof(std::uint32_t))), whole(rows)};
        }
        [[nodiscard]] std::size_t shared_bytes(std::uint32_t max_tokens) const noexcept {
            return position_table::bytes(pairs_, max_tokens);
        }
        [[gnu::cold]] void share(const config& c, std::uint32_t max_tokens,
                                 std::span<std::byte> memory) noexcept {
            turns_ = rope_table(c, shape_.dim, max_tokens, memory);
        }
        /// Checks that the file holds the bases and gates that the config describes.
        [[nodiscard, gnu::cold]] status check_calibration(const calibration_view& view) const {
            if constexpr (Rule::trained)
                if (const float there = view.rate(key_basis); !(std::fabs(there - rate_) <= 0.005F))
                    return status::failure(errc::file_refused,
                                           "compressor.rate is %g; the gates were trained for %g",
                                           static_cast<double>(rate_), static_cast<double>(there));
            if (!view.pre_rope(key_basis))
                return status::failure(errc::file_refused,
                                       "calibration: %s were fitted to keys after RoPE; valid: before",
                                       kind_name(key_basis).data());
            if (status s = view.check_inverse(key_basis); !s) return s;
            return view.check_inverse(value_basis);
        }
        void bind(const calibration_view& view) noexcept {
            keys_ = directions(view, key_basis);
            values_ = directions(view, value_basis);
            const rows_view<float> one = view.basis(key_basis, 0, 0);
            layer_floats_ = one.count * one.dim * (joint ? 1 : view.heads(key_basis));
        }
        [[nodiscard]] state at(const codec_lane& lane) const noexcept {
            state s = *this;
            const std::size_t skip = lane.layer * layer_floats_ +
                                     (joint ? 0 : std::size_t{lane.first_head} * span_width() * span_width());
            s.keys_.move(skip);
            s.values_.move(skip);
            return s;
        }

        std::uint32_t encode_key(const Plain* row, std::uint32_t position, std::byte* record) const noexcept {
            std::array<float, max_row_width> x;
            simd::decode(row, x.data(), shape_.width());
            for (std::uint32_t h = 0; h < shape_.heads; ++h)
                turns_.turn_back(x.data() + std::size_t{h} * shape_.dim, position);
            std::memcpy(record, &position, sizeof position);
            return put(x.data(), keys_, record, sizeof position);
        }
        std::uint32_t encode_value(const Plain* row, std::byte* record) const noexcept {
            std::array<float, max_row_width> x;
            simd::decode(row, x.data(), shape_.width());
            return put(x.data(), values_, record, 0);
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            rebuild(records, sizeof(std::uint32_t), keys_.rebuild,
                    [&](std::size_t i, std::uint32_t head, float* x) {
                        turns_.turn(x, position_of(records.record(i)));
                        simd::encode(x, rows + i * shape_.width() + std::size_t{head} * shape_.dim,
                                     shape_.dim);
                    });
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            rebuild(records, 0, values_.rebuild, [&](std::size_t i, std::uint32_t head, float* x) {
                simd::encode(x, rows + i * shape_.width() + std::size_t{head} * shape_.dim, shape_.dim);
            });
        }

        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            rebuild_head(keys, sizeof(std::uint32_t), keys_.rebuild, head,
                         [&](std::size_t first, const rows_view<float>& some, float* x) {
                             for (std::size_t i = 0; i < some.count; ++i)
                                 turns_.turn(x + i * some.stride, position_of(keys.record(first + i)));
                             simd::dot_group(q, group, q_stride, some, out + first, out_stride);
                         });
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            constexpr std::size_t depth = 256, at_once = 4;
            std::array<simd::coefficient_row<coefficient>, simd::attend_block> rows;
            std::uint32_t most = 0;
            for (std::size_t i = 0; i < values.count; ++i) {
                rows[i] = row_of(values.record(i), 0, joint ? 0 : head);
                most = std::max(most, rows[i].count);
            }
            std::array<float, at_once * depth> sums;
            std::array<float, at_once * most_dim> rebuilt;
            for (std::size_t g = 0; g < group; g += at_once) {
                const std::size_t n = std::min(at_once, group - g);
                for (std::uint32_t first = 0; first < most; first += depth) {
                    const std::uint32_t some = std::min<std::uint32_t>(depth, most - first);
                    simd::spectral_sums(weight + g * simd::attend_block, n, simd::attend_block, rows.data(),
                                        values.count, first, some, sums.data(), depth);
                    std::array<simd::coefficient_row<float>, at_once> spectrum;
                    for (std::size_t j = 0; j < n; ++j) spectrum[j] = {sums.data() + j * depth, some};
                    simd::combine_rows(spectrum.data(), n, columns(values_.rebuild, head).slice(first, some),
                                       rebuilt.data(), most_dim);
                    for (std::size_t j = 0; j < n; ++j)
                        for (std::uint32_t d = 0; d < shape_.dim; ++d)
                            acc[(g + j) * acc_stride + d] += rebuilt[j * most_dim + d];
                }
            }
        }

      private:
        static constexpr std::uint32_t most_dim = position_table::max_dim;
        static constexpr std::size_t rho_bytes = Rule::fixed ? 0 : sizeof(std::uint16_t);

        /// The first basis of a kind.
        struct basis_pair {
            rows_view<float> project{}; ///< (n, n): row j makes coefficient j
            rows_view<float> rebuild{}; ///< (n, n): row j is what coefficient j stands for
            rank_gate gate{};

            void move(std::size_t floats) noexcept {
                project.data += floats;
                rebuild.data += floats;
                if constexpr (Rule::trained) gate.weights.data += floats, gate.bias += floats;
            }
        };
        [[nodiscard]] basis_pair directions(const calibration_view& view, calibration_kind k) const noexcept {
            if constexpr (Rule::trained) {
                const gated_basis b = view.gated(k, 0);
                return {b.project, b.rebuild, {b.gate, b.bias}};
            } else {
                const rows_view<float> b = view.basis(k, 0, 0);
                return {b, b, {}};
            }
        }
        [[nodiscard]] static constexpr std::uint32_t whole(std::uint32_t bytes) noexcept {
            return (bytes + 3) / 4 * 4;
        }
        [[nodiscard]] std::uint32_t spans() const noexcept { return joint ? 1 : shape_.heads; }
        [[nodiscard]] std::uint32_t span_width() const noexcept {
            return joint ? shape_.width() : shape_.dim;
        }
        [[nodiscard]] static std::uint32_t position_of(const std::byte* record) noexcept {
            std::uint32_t position = 0;
            std::memcpy(&position, record, sizeof position);
            return position;
        }
        /// The coefficients of one basis in a record whose ranks begin at byte `at`.
        [[nodiscard]] simd::coefficient_row<coefficient> row_of(const std::byte* record, std::size_t at,
                                                                std::uint32_t span) const noexcept {
            if constexpr (Rule::fixed) {
                const std::uint32_t rank = rule_.rank(nullptr, span_width(), {});
                return {reinterpret_cast<const coefficient*>(record + at) + std::size_t{span} * rank, rank};
            }
            for (;; --span) {
                std::uint16_t rank = 0;
                std::memcpy(&rank, record + at, sizeof rank);
                at += sizeof rank;
                assert(rank <= span_width());
                if (span == 0) return {reinterpret_cast<const coefficient*>(record + at), rank};
                at += rank * sizeof(coefficient);
            }
        }
        [[nodiscard]] rows_view<float> basis_of(const rows_view<float>& first,
                                                std::uint32_t span) const noexcept {
            return {first.data + std::size_t{span} * first.count * first.dim, first.count, first.dim,
                    first.stride};
        }
        /// The columns of the basis that belong to one head.
        [[nodiscard]] rows_view<float> columns(const rows_view<float>& basis,
                                               std::uint32_t head) const noexcept {
            if constexpr (joint)
                return {basis.data + std::size_t{head} * shape_.dim, basis.count, shape_.dim, basis.stride};
            else
                return basis_of(basis, head);
        }

        std::uint32_t put(const float* x, const basis_pair& basis, std::byte* record,
                          std::size_t at) const noexcept {
            std::array<float, max_row_width> c;
            const std::uint32_t n = span_width();
            for (std::uint32_t span = 0; span < spans(); ++span) {
                simd::dot_rows(x + std::size_t{span} * n, basis_of(basis.project, span), c.data());
                constexpr float largest = 65504.0F; // of 16 bits
                for (std::uint32_t i = 0; i < n; ++i) c[i] = std::clamp(c[i], -largest, largest);
                const auto rank = static_cast<std::uint16_t>(rule_.rank(c.data(), n, basis.gate));
                std::memcpy(record + at, &rank, rho_bytes);
                at += rho_bytes;
                simd::encode(c.data(), reinterpret_cast<coefficient*>(record + at), rank);
                at += rank * sizeof(coefficient);
            }
            const std::uint32_t end = whole(static_cast<std::uint32_t>(at));
            std::memset(record + at, 0, end - at);
            return end;
        }

        /// visit(first, x, where x is) for one head of a few records from `first` on, x: (n, D) before RoPE.
        template <class Visit>
        void rebuild_head(const records_view& records, std::size_t at, const rows_view<float>& basis,
                          std::uint32_t head, Visit&& visit) const noexcept {
            constexpr std::size_t at_once = 4;
            alignas(64) std::array<float, at_once * most_dim> x;
            // Side by side: rows a page apart would stand in each other's way in the cache.
            const std::size_t stride = (shape_.dim + 15) / 16 * 16;
            std::array<simd::coefficient_row<coefficient>, at_once> rows;
            // A record says where it ends, so that all but the first would be waited for.
            for (std::size_t i = 0; i < records.count; ++i) simd::prefetch(records.record(i));
            for (std::size_t first = 0; first < records.count; first += at_once) {
                const std::size_t n = std::min(at_once, records.count - first);
                for (std::size_t i = 0; i < n; ++i)
                    rows[i] = row_of(records.record(first + i), at, joint ? 0 : head);
                simd::combine_rows(rows.data(), n, columns(basis, head), x.data(), stride);
                visit(first, rows_view<float>{x.data(), n, shape_.dim, stride}, x.data());
            }
        }
        /// visit(i, head, x) for every head of every record.
        template <class Visit>
        void rebuild(const records_view& records, std::size_t at, const rows_view<float>& basis,
                     Visit&& visit) const noexcept {
            for (std::uint32_t head = 0; head < shape_.heads; ++head)
                rebuild_head(records, at, basis, head,
                             [&](std::size_t first, const rows_view<float>& some, float* x) {
                                 for (std::size_t i = 0; i < some.count; ++i)
                                     visit(first + i, head, x + i * some.stride);
                             });
        }

        record_shape shape_{};
        Rule rule_{};
        std::uint32_t pairs_ = 0;
        position_table turns_{};
        float rate_ = 0; ///< of trained gates
        basis_pair keys_{}, values_{};
        std::size_t layer_floats_ = 0; ///< of the bases of a layer
    };
};

template <coupling Coupling, element Plain = f16>
using low_rank = token_adaptive_rank<Coupling, fixed_rank, Plain>;

}} // namespace kvtl::v0
