// Score: how little a key resembles the others: the negative cosine to the mean of all keys' directions
// (KeyDiff). Deviation: computed over the whole prompt at its end; the paper processes it in blocks of 128.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <cmath>

namespace kvtl { inline namespace v0 {

struct key_difference : score_defaults {
    static constexpr std::string_view name = "key_difference";
    static constexpr score_source source = score_source::keys;
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            constexpr std::size_t piece = 64; // of a row, so that no row of unknown length is needed
            const std::size_t dim = lane.keys.dim;
            float mean[piece];
            double length = 0; // squared, of the mean direction
            std::fill(out.begin(), out.end(), 0.0F);
            for (std::size_t d = 0; d < dim; d += piece) {
                const std::size_t n = std::min(piece, dim - d);
                std::fill_n(mean, n, 0.0F);
                for (std::uint32_t t = 0; t < lane.tokens(); ++t)
                    simd::axpy(1.0F / norm(lane.keys.row(t), dim), lane.keys.row(t) + d, mean, n);
                for (std::uint32_t t = 0; t < lane.tokens(); ++t)
                    out[t] -= simd::dot(mean, lane.keys.row(t) + d, n);
                length += static_cast<double>(simd::dot(mean, mean, n));
            }
            const auto size = static_cast<float>(std::sqrt(length));
            for (std::uint32_t t = 0; t < lane.tokens(); ++t)
                out[t] /= std::max(size * norm(lane.keys.row(t), dim), 1e-30F);
        }

      private:
        template <element E> static float norm(const E* key, std::size_t dim) noexcept {
            float sum = 0;
            for (std::size_t d = 0; d < dim; ++d) sum += to_float(key[d]) * to_float(key[d]);
            return std::max(std::sqrt(sum), 1e-30F);
        }
    };
};

}} // namespace kvtl::v0
