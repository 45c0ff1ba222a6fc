// What the records of tokens would take, by the codec of a preset alone: no cache, no budget, sinks and window included.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/preset.hpp>

#include "kv_cache.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace engine {

/// For presets whose records have sizes of their own and need no prompt to be fitted to.
template <class Preset> class record_sizer final : public record_sizes {
    using compressor = typename Preset::compressor;
    using codec = typename compressor::state;
    using plain = typename compressor::plain_type;

  public:
    static constexpr bool possible =
        compressor::ragged && compressor::granule == 1 && !kvtl::codec_fits_lanes<compressor>;
    using config = typename compressor::config;

    /// A config, shape and file that kv_manager::open() took. Fails where the file is gone.
    [[nodiscard, gnu::cold]] static kvtl::result<std::unique_ptr<record_sizes>>
    open(const config& c, const kvtl::shape& shape, std::size_t max_tokens, const std::string& calibration) {
        auto s = std::make_unique<record_sizer>();
        s->shape_ = shape;
        s->heads_ = kvtl::layer_wide<Preset> ? shape.kv_heads : 1;
        s->codec_ = codec(c, kvtl::record_shape{s->heads_, shape.head_dim});
        if constexpr (kvtl::codec_shares<compressor>) {
            const auto tokens = static_cast<std::uint32_t>(max_tokens);
            s->tables_.resize(s->codec_.shared_bytes(tokens) / sizeof(float) + 1);
            s->codec_.share(c, tokens, std::as_writable_bytes(std::span(s->tables_)));
        }
        if constexpr (kvtl::calibrated_kinds<compressor>() != 0) {
            auto loaded = kvtl::calibration::load(calibration, shape);
            if (!loaded) return loaded.error();
            s->calibration_.emplace(*std::move(loaded));
            s->codec_.bind(s->calibration_->view());
        }
        return std::unique_ptr<record_sizes>(std::move(s));
    }

    void add(std::uint32_t layer, std::span<const float> k, std::span<const float> v,
             std::span<std::uint32_t> keys, std::span<std::uint32_t> values) const override {
        const std::size_t width = std::size_t{heads_} * shape_.head_dim;
        std::vector<plain> row(width);
        const kvtl::record_bytes most = codec_.bytes();
        std::vector<std::byte> record(std::max(most.key, most.value));
        for (std::uint32_t head = 0; head < shape_.kv_heads; head += heads_) {
            const codec of_lane = lane(layer, head);
            for (std::size_t i = 0; i < keys.size(); ++i) {
                const std::size_t at = (i * shape_.kv_heads + head) * shape_.head_dim;
                kvtl::simd::encode(k.data() + at, row.data(), width);
                keys[i] += of_lane.encode_key(row.data(), static_cast<std::uint32_t>(i), record.data());
                kvtl::simd::encode(v.data() + at, row.data(), width);
                values[i] += of_lane.encode_value(row.data(), record.data());
            }
        }
    }

  private:
    [[nodiscard]] codec lane(std::uint32_t layer, std::uint32_t head) const {
        if constexpr (kvtl::codec_per_lane<compressor>)
            return codec_.at({.layer = layer, .first_head = head});
        else
            return codec_;
    }

    kvtl::shape shape_{};
    std::uint32_t heads_ = 1; ///< of a record
    codec codec_{};
    std::vector<float> tables_;
    std::optional<kvtl::calibration> calibration_;
};

} // namespace engine
