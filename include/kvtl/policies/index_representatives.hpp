// Index: a unit is represented by a few of its own keys (InfLLM, blocks of 128 with 4 representative tokens).
//
//   score(q, unit) = sum over its representatives r of q . k_r          (representatives, as in the paper)
//                  = the largest of them                                (best_representative)
//
// The paper takes the keys that the queries of the local window attended most. An index sees only keys and
// must guess these, per KV head:
//
//   spread    the key farthest from the unit's mean, then always the one farthest from those taken: they span
//             the unit, so one of them is near the best key for any direction of a query (Gonzalez)
//   nearest   the keys nearest to the mean: the usual content of the unit
//   largest   the keys with the largest norm: any query that agrees at all scores high
//
// Attention mass of the best eighth of the units, relative to the largest mass of any eighth, with r = 4, on
// keys of drifting topics (D = 64, 1,536 entries; queries of two sharpnesses):
//
//                         units of 16, largest   sum         units of 64, largest   sum
//   spread                0.94-0.98              0.81-0.88   0.83-0.87              0.76-0.77
//   nearest               0.37-0.62                          0.24-0.52
//   largest               0.89-0.89              0.87-0.87   0.78-0.82              0.77-0.80
//   mean key              0.73-0.87                          0.50-0.69
//
// Bytes:  per unit and KV head 2 r D (f16); per lane the keys of the unit that is being built, 2 max_entries
//         D per head, and 4 max_entries.
// Cost:   score() r D per unit and query; choosing r entries D per unit and head, once, when the unit is
//         complete.
// Limits: until a unit is complete, and if units grow over several turns, its first r keys represent it.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

enum class representative : std::uint32_t { spread, nearest, largest };

template <bool Best> struct representatives_as {
    static constexpr std::string_view name = Best ? "best_representative" : "representatives";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool linear = !Best;
    struct config {
        std::uint32_t count = 4; ///< r, at most the entries of a unit
        representative chosen = representative::spread;
        template <class Visit> void fields(Visit&& visit) { visit("count", count); }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : config_(c) {}

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return count(shape) * shape.width() * sizeof(f16);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape& shape) const noexcept {
            return memory(shape, nullptr).bytes;
        }
        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape, std::uint32_t) const noexcept {
            return std::size_t{shape.group} * block * count(shape);
        }
        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            std::fill_n(view.of<f16>(u), count(view.shape) * view.shape.width(), f16{});
        }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            const std::size_t width = view.shape.width();
            const parts lane = memory(view.shape, view.lane);
            if (i < count(view.shape)) simd::encode(key, view.of<f16>(u) + i * width, width);
            if (i == 0) *lane.building = {u, 0};
            if (lane.building->unit != u || lane.building->entries != i) return;
            simd::encode(key, lane.keys + i * width, width);
            if (++lane.building->entries == view.shape.max_entries)
                for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h) choose(view, u, h, lane);
        }

        /// out: (queries, U)
        void score(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            const summary_shape& shape = u.summary.shape;
            const std::size_t dim = shape.dim, r = count(shape);
            const rows_view<f16> all{u.summary.of<f16>(0) + u.head * dim, u.count * r, dim, shape.width()};
            for (std::uint32_t first = 0; first < u.count; first += block) {
                const std::uint32_t units = std::min(block, u.count - first);
                simd::dot_group(q, queries, dim, all.slice(first * r, units * r), scratch.data(), units * r);
                const float* product = scratch.data();
                for (std::uint32_t g = 0; g < queries; ++g)
                    for (std::uint32_t i = first; i < first + units; ++i, product += r) {
                        const std::size_t n = std::min<std::size_t>(r, std::max(u.entries(i), 1U));
                        float total = product[0];
                        for (std::size_t j = 1; j < n; ++j)
                            total = Best ? std::max(total, product[j]) : total + product[j];
                        out[std::size_t{g} * u.count + i] = total;
                    }
            }
        }

      private:
        static constexpr std::uint32_t block = 64; ///< units whose products are held at a time

        struct alignas(64) progress {
            std::uint32_t unit = 0, entries = 0;
        };
        /// A lane's memory: the unit that is being built.
        struct parts {
            progress* building = nullptr;
            f16* keys = nullptr;       ///< (max_entries, width)
            float* distance = nullptr; ///< (max_entries)
            float* mean = nullptr;     ///< (D)
            std::size_t bytes = 0;
        };

        [[nodiscard]] std::size_t count(const summary_shape& shape) const noexcept {
            return std::clamp(config_.count, 1U, shape.max_entries);
        }
        [[nodiscard]] static parts memory(const summary_shape& shape, std::byte* lane) noexcept {
            const auto lines = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
            const std::size_t distance =
                                  sizeof(progress) + lines(shape.max_entries * shape.width() * sizeof(f16)),
                              mean = distance + lines(shape.max_entries * sizeof(float));
            parts p;
            p.bytes = mean + lines(shape.dim * sizeof(float));
            if (lane == nullptr) return p;
            p.building = reinterpret_cast<progress*>(lane);
            p.keys = reinterpret_cast<f16*>(lane + sizeof(progress));
            p.distance = reinterpret_cast<float*>(lane + distance);
            p.mean = reinterpret_cast<float*>(lane + mean);
            return p;
        }

        /// Picks head h's representatives among the keys of a complete unit. An entry's merit is its
        /// distance: from the mean (spread's first, nearest), from the nearest one taken (spread), or from
        /// zero (largest).
        void choose(const summary_view& view, std::uint32_t u, std::uint32_t h,
                    const parts& lane) const noexcept {
            const std::size_t dim = view.shape.dim, width = view.shape.width(), n = view.shape.max_entries;
            const rows_view<f16> keys{lane.keys + h * dim, n, dim, width};
            std::fill_n(lane.mean, dim, 0.0F);
            if (config_.chosen != representative::largest) {
                for (std::size_t i = 0; i < n; ++i)
                    simd::axpy(1.0F / static_cast<float>(n), keys.row(i), lane.mean, dim);
            }
            simd::l2sq_rows(lane.mean, keys, lane.distance);
            const float sign = config_.chosen == representative::nearest ? -1.0F : 1.0F;
            simd::scale(sign, lane.distance, n);
            for (std::size_t j = 0; j < count(view.shape); ++j) {
                const auto best = static_cast<std::size_t>(
                    std::max_element(lane.distance, lane.distance + n) - lane.distance);
                std::copy_n(keys.row(best), dim, view.of<f16>(u) + j * width + h * dim);
                if (config_.chosen == representative::spread) {
                    simd::decode(keys.row(best), lane.mean, dim);
                    for (std::size_t i = 0; i < n; ++i) {
                        const float apart = simd::l2sq(lane.mean, keys.row(i), dim);
                        lane.distance[i] = j == 0 ? apart : std::min(lane.distance[i], apart);
                    }
                }
                lane.distance[best] = -std::numeric_limits<float>::infinity();
            }
        }

        config config_{};
    };
};

using representatives = representatives_as<false>;
using best_representative = representatives_as<true>;

}} // namespace kvtl::v0
