// Position: kept keys have consecutive positions, as if the dropped tokens between them had never existed
// (StreamingLLM).
//
// What:   attention with rotary embeddings depends only on the distance between query and key. If d tokens
//         between them are dropped, their distance in the cache is smaller by d. Rotating the query back by d
//         positions has exactly this effect, for every run of entries without dropped ones inside. Stored
//         keys never change. So nothing drifts, no key is stored twice, and keys before RoPE are not needed.
// Cost:   one rotated query group per run of neighbouring tokens: one per step for sinks and a window.
// Limits: plain rotary embeddings (any frequencies, partial ones too). The engine rotates q and k by their
//         true positions, with enough precision for these positions.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/slots/position.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

struct rolling {
    static constexpr std::string_view name = "rolling";
    static constexpr bool moves = true;
    struct config {
        double base = 10000.0;             ///< theta: pair i turns by base^(-2 i / dims) per position
        std::uint32_t dims = 0;            ///< numbers of a head that are rotated, from the first (0: all)
        bool neighbours = false;           ///< pairs are (0, 1), (2, 3), ... instead of (0, dims / 2), ...
        std::vector<double> frequencies{}; ///< (dims / 2) instead of base
        template <class Visit> void fields(Visit&& visit) {
            visit("base", base);
            visit("dims", dims);
            visit("neighbours", neighbours);
        }
        template <class Visit> void tables(Visit&& visit) const { visit("frequencies", frequencies); }
    };
    class state {
      public:
        state() = default;
        state(const config& c, std::uint32_t dim, std::span<std::byte> memory) noexcept
            : dim_(dim), neighbours_(c.neighbours) {
            const std::uint32_t dims = c.dims == 0 ? dim : c.dims;
            carver carve(memory);
            frequency_ = carve.take<double>(dim / 2).first(dims / 2);
            cosine_ = carve.take<float>(dim / 2).first(dims / 2);
            sine_ = carve.take<float>(dim / 2).first(dims / 2);
            for (std::uint32_t i = 0; i < frequency_.size(); ++i)
                frequency_[i] = !c.frequencies.empty()
                                    ? c.frequencies[i]
                                    : std::pow(c.base, -2.0 * i / static_cast<double>(dims));
            std::fill(cosine_.begin(), cosine_.end(), 1.0F);
        }
        [[nodiscard]] static std::size_t bytes(std::uint32_t dim) noexcept {
            carver carve;
            static_cast<void>(carve.take<double>(dim / 2));
            static_cast<void>(carve.take<float>(dim / 2));
            static_cast<void>(carve.take<float>(dim / 2));
            return carve.used();
        }
        [[nodiscard]] static status check(const config& c, std::uint32_t dim) noexcept {
            const std::uint32_t dims = c.dims == 0 ? dim : c.dims;
            if (dims > dim || dims % 2 != 0)
                return status::failure(errc::invalid_argument,
                                       "position.dims is %u; valid: an even number up to head_dim = %u", dims,
                                       dim);
            if (!c.frequencies.empty() && c.frequencies.size() != dims / 2)
                return status::failure(errc::invalid_argument,
                                       "position.frequencies has %zu numbers; valid: one per pair (%u)",
                                       c.frequencies.size(), dims / 2);
            for (std::size_t i = 0; i < c.frequencies.size(); ++i)
                if (!std::isfinite(c.frequencies[i]))
                    return status::failure(errc::invalid_argument,
                                           "position.frequencies of pair %zu is %g; valid: a finite number",
                                           i, c.frequencies[i]);
            if (!(c.base > 0.0 && c.base < 1e12))
                return status::failure(errc::invalid_argument, "position.base is %g; valid: above 0", c.base);
            return {};
        }

        /// out = q turned back by `positions`; q, out: (heads, D).
        void turn_back(const float* q, std::uint32_t heads, std::uint32_t positions, float* out) noexcept {
            if (positions != turned_) { // all lanes of a step ask for the same few
                for (std::size_t i = 0; i < frequency_.size(); ++i) {
                    const double angle = frequency_[i] * positions;
                    cosine_[i] = static_cast<float>(std::cos(angle));
                    sine_[i] = static_cast<float>(std::sin(angle));
                }
                turned_ = positions;
            }
            std::copy_n(q, std::size_t{heads} * dim_, out);
            const std::size_t pairs = frequency_.size(), step = neighbours_ ? 2 : 1,
                              apart = neighbours_ ? 1 : pairs;
            for (std::uint32_t h = 0; h < heads; ++h, out += dim_)
                for (std::size_t i = 0; i < pairs; ++i) {
                    float &a = out[i * step], &b = out[i * step + apart];
                    const float turned = a * cosine_[i] + b * sine_[i];
                    b = b * cosine_[i] - a * sine_[i];
                    a = turned;
                }
        }

      private:
        std::uint32_t dim_ = 0;
        bool neighbours_ = false;
        std::uint32_t turned_ = 0;
        std::span<double> frequency_;
        std::span<float> cosine_, sine_;
    };
};

}} // namespace kvtl::v0
