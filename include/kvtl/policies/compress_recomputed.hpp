// Compressor: an entry is stored as the input of its layer, and the engine computes its keys and values again.
//
// What:   k = rope(W_k x) and v = W_v x, so x holds all that attention reads of a token in this layer. The record is x, as
//         the engine passes it (layer_input::x). config.recompute returns keys or values of up to 32 tokens of one KV head.
// Record: the token's position (4 bytes), then M numbers of `Record`. There is no record of the value.
// Error:  float: none, if the engine computes a token's keys and values in the same order whatever tokens are beside it.
//         Rows are rounded to `Plain` as when they came, so outputs have the bits of plain rows. f16 or bf16: x is rounded.
// Bytes:  4 + M * sizeof(Record) per token and layer, instead of 2 * H * D * sizeof(Plain). With equal types that pays if
//         M < 2 * H * D. Multi-head attention has H * D = M: half the bytes. Four query heads per KV head: M = 4 * H * D, twice
//         the bytes of keys and values. A float record over f16 rows needs M < H * D, so it pays in neither. Window and sinks
//         take both: x is there only when a token comes, so its record waits beside its row.
// Cost:   a step computes keys and values of all tokens behind the window: 2 * M * H * D multiply-adds per token and layer,
//         and attention takes 2 * HQ * D. A prompt's chunk computes those before it once for every 64 of its tokens.
// Limits: presets that keep every entry in memory; window and sinks are plain rows. Layers do not share caches.
// Source: KV-Direct, "The Residual Stream Is All You Need: On the Redundancy of the KV Cache in Transformer Inference" (2026,
//         abstract). Deviation: the paper keeps one residual per token for all layers. From one residual only the keys and
//         values of its own layer follow without attention; those of later layers take a forward pass. Here each layer has
//         a record of its own.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// Keys or values of one KV head, which an engine computes from inputs of its layer.
struct recompute_rows {
    std::uint32_t layer = 0;                  ///< of the model
    std::uint32_t head = 0;                   ///< KV head of the layer
    bool values = false;                      ///< false: keys, rotated to their positions
    std::size_t count = 0;                    ///< n, 1 to 32
    const std::uint32_t* positions = nullptr; ///< (n) tokens, ascending, perhaps with gaps
    const float* x = nullptr;                 ///< (n, M) as layer_input::x had them
    float* out = nullptr;                     ///< (n, D)
};

/// Record: of x. Plain: what window and sinks are, and what keys and values are rounded to.
template <element Record = float, element Plain = f16> struct recomputed {
    static constexpr std::string_view name = std::is_same_v<Record, float> ? "recomputed_f32"
                                             : std::is_same_v<Record, f16> ? "recomputed_f16"
                                                                           : "recomputed_bf16";
    using plain_type = Plain;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = false;
    static constexpr double relative_error =
        std::is_same_v<Record, float> ? 0.0 : std::numeric_limits<double>::infinity(); // the weights decide
    static constexpr bool encodes_input = true;
    static constexpr bool layer_wide_only = true; ///< all heads of a layer have one x
    static constexpr bool shares = true;          ///< scratch of the rows that are computed
    static constexpr engine_input needs = engine_input::x;
    static constexpr std::uint32_t max_width = 1U << 20;

    struct config {
        /// The engine's function. It must not call the cache. Shards call it concurrently, each for its own sequences.
        void (*recompute)(void* engine, const recompute_rows& rows) noexcept = nullptr;
        void* engine = nullptr;  ///< first argument of `recompute`; must outlive the cache
        std::uint32_t width = 0; ///< M: numbers of x per token
        template <class Visit> void fields(Visit&& visit) { visit("width", width); }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const record_shape& shape) noexcept : config_(c), shape_(shape) {}

        [[nodiscard]] static status check(const config& c, const record_shape&) noexcept {
            if (c.recompute == nullptr)
                return status::failure(errc::invalid_argument,
                                       "compressor.recompute is null; valid: the engine's function that "
                                       "computes keys and values from x");
            if (c.width == 0 || c.width > max_width)
                return status::failure(errc::invalid_argument,
                                       "compressor.width is %u; valid: the numbers of x per token, 1 to %u",
                                       c.width, max_width);
            return {};
        }
        [[nodiscard]] record_bytes bytes() const noexcept {
            return {static_cast<std::uint32_t>(sizeof(std::uint32_t) + config_.width * sizeof(Record)), 0};
        }
        [[nodiscard]] state at(const codec_lane& lane) const noexcept {
            state s = *this;
            s.layer_ = lane.layer;
            s.first_head_ = lane.first_head;
            return s;
        }
        [[nodiscard]] std::size_t shared_bytes(std::uint32_t) const noexcept {
            return simd::attend_block *
                   ((config_.width + std::size_t{shape_.dim}) * sizeof(float) + shape_.dim * sizeof(Plain));
        }
        /// memory: shared_bytes(), aligned to 4; it must outlive the state.
        void share(const config&, std::uint32_t, std::span<std::byte> memory) noexcept {
            x_ = reinterpret_cast<float*>(memory.data());
            out_ = x_ + simd::attend_block * config_.width;
            plain_ = reinterpret_cast<Plain*>(out_ + simd::attend_block * shape_.dim);
        }

        [[nodiscard]] std::uint32_t input_numbers() const noexcept { return config_.width; }
        [[nodiscard]] status check_arrival(const layer_input& in, std::size_t tokens) const noexcept {
            const std::size_t want = tokens * config_.width;
            if (in.x.size() != want)
                return status::failure(errc::invalid_argument, "x has %zu numbers; valid: tokens * %u = %zu",
                                       in.x.size(), config_.width, want);
            if (!simd::all_finite<Record>(in.x.data(), in.x.size()))
                return status::failure(errc::invalid_argument,
                                       "x holds a NaN, an infinity or a number beyond %s; valid: finite "
                                       "numbers",
                                       element_name<Record>().data());
            return {};
        }
        std::uint32_t encode_input(const float* x, std::uint32_t position, std::byte* record) const noexcept {
            std::memcpy(record, &position, sizeof position);
            simd::encode(x, reinterpret_cast<Record*>(record + sizeof position), config_.width);
            return bytes().key;
        }
        void decode_keys(const records_view& records, Plain* rows) const noexcept {
            decode(records, false, rows);
        }
        void decode_values(const records_view& records, Plain* rows) const noexcept {
            decode(records, true, rows);
        }
        void score(const float* q, std::size_t q_stride, std::size_t group, const records_view& keys,
                   std::uint32_t head, float* out, std::size_t out_stride) const noexcept {
            simd::score_rows<simd::default_arch>(q, group, q_stride, compute(keys, head, false), out,
                                                 out_stride);
        }
        void accumulate(const float* weight, std::size_t group, const records_view& values,
                        std::uint32_t head, float* acc, std::size_t acc_stride) const noexcept {
            simd::accumulate_rows<simd::default_arch>(weight, group, compute(values, head, true), acc,
                                                      acc_stride);
        }

      private:
        /// Rows of one head of the lane, at most attend_block; they last until the next call.
        [[nodiscard]] rows_view<Plain> compute(const records_view& records, std::uint32_t head,
                                               bool values) const noexcept {
            std::array<std::uint32_t, simd::attend_block> positions;
            for (std::size_t i = 0; i < records.count; ++i) {
                const std::byte* record = records.record(i);
                std::memcpy(&positions[i], record, sizeof positions[i]);
                simd::decode(reinterpret_cast<const Record*>(record + sizeof positions[i]),
                             x_ + i * config_.width, config_.width);
            }
            config_.recompute(config_.engine, {.layer = layer_,
                                               .head = first_head_ + head,
                                               .values = values,
                                               .count = records.count,
                                               .positions = positions.data(),
                                               .x = x_,
                                               .out = out_});
            simd::encode(out_, plain_, records.count * shape_.dim);
            return {plain_, records.count, shape_.dim, shape_.dim};
        }
        void decode(const records_view& records, bool values, Plain* rows) const noexcept {
            for (std::size_t first = 0; first < records.count; first += simd::attend_block) {
                const records_view some =
                    records.slice(first, std::min(simd::attend_block, records.count - first));
                for (std::uint32_t h = 0; h < shape_.heads; ++h) {
                    const rows_view<Plain> of_head = compute(some, h, values);
                    for (std::size_t i = 0; i < some.count; ++i)
                        std::copy_n(of_head.row(i), shape_.dim,
                                    rows + (first + i) * shape_.width() + std::size_t{h} * shape_.dim);
                }
            }
        }

        config config_{};
        record_shape shape_{};
        std::uint32_t layer_ = 0, first_head_ = 0;
        float *x_ = nullptr, *out_ = nullptr; ///< (32, M) and (32, D), of the shard
        Plain* plain_ = nullptr;              ///< (32, D), likewise
    };
};

}} // namespace kvtl::v0
