// Index: `centroid` with a coarse level above it. Units with adjacent numbers form a block with a mean. Only
// units of the best blocks are scored.
//
// k-means numbers the clusters of a prompt so that neighbours are alike (policies/support/kmeans.hpp). So the
// mean of units_per_block units represents each of them. The best blocks are probed: at least probe_percent
// of all blocks, and at least so many that they hold probe_entries times the entries that may be chosen, if
// units have average size. If that is every block, or a lane has fewer than least_units units, nothing is
// narrowed, and the choice is `centroid`'s, bit for bit. An entry that leaves the window looks for its
// cluster in the nearest blocks. Clusters from splits during decode have the latest numbers, and form blocks
// in the order of their creation.
//
// Bytes:  D + 4 per block, beside the means.
// Cost:   scores: U / units_per_block + probe_percent of U rows instead of U; likewise for an entry that
//         joins a cluster. The mean of a block whose units changed is summed again when it is next needed.
// Limits: a unit that differs from its block may be missed: bench/results has the recall.
// Source: the inverted file of Jegou, Douze, Schmid (2011), §IV, with its lists side by side in memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_centroid.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/codes.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/topk.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvtl { inline namespace v0 {

struct two_level_centroid : centroid {
    static constexpr std::string_view name = "two_level_centroid";
    static constexpr bool summarises = true;
    static constexpr bool scores_lanes = true;
    static constexpr bool narrows = true;

    struct config {
        std::uint32_t least_units =
            4096; ///< 0 or more: a lane with fewer is scored as a whole, which takes less
        std::uint32_t units_per_block = 16;
        std::uint32_t probe_percent = 10; ///< of a lane's blocks are probed, at least
        std::uint32_t probe_entries = 8;  ///< what they hold at least, as a multiple of what may be chosen
        std::uint32_t near_blocks = 4;    ///< in which an entry looks for its cluster
        template <class Visit> void fields(Visit&& visit) {
            visit("least_units", least_units);
            visit("units_per_block", units_per_block);
            visit("probe_percent", probe_percent);
            visit("probe_entries", probe_entries);
            visit("near_blocks", near_blocks);
        }
    };

    class state : public centroid::state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : c_(c) {}

        [[nodiscard]] static status check(const config& c) noexcept {
            if (c.units_per_block < 4 || c.units_per_block > 256 || c.units_per_block % 4 != 0)
                return status::failure(errc::invalid_argument,
                                       "index.units_per_block is %u; valid: multiples of 4 from 4 to 256",
                                       c.units_per_block);
            if (c.probe_percent < 1 || c.probe_percent > 100)
                return status::failure(errc::invalid_argument, "index.probe_percent is %u; valid: 1 to 100",
                                       c.probe_percent);
            if (c.probe_entries < 1 || c.probe_entries > 1024)
                return status::failure(errc::invalid_argument, "index.probe_entries is %u; valid: 1 to 1024",
                                       c.probe_entries);
            if (c.near_blocks < 1 || c.near_blocks > 1024)
                return status::failure(errc::invalid_argument, "index.near_blocks is %u; valid: 1 to 1024",
                                       c.near_blocks);
            return {};
        }

        // A block's mean lies in the bytes of its units: a scale and D codes. The tail is for the last block, which may
        // have few units.
        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return (row_bytes(shape) + c_.units_per_block - 1) / c_.units_per_block;
        }
        [[nodiscard]] static std::size_t tail_bytes(const summary_shape& shape) noexcept {
            return row_bytes(shape);
        }
        [[nodiscard]] static std::size_t lane_bytes(const summary_shape&) noexcept { return 0; }

        // Whatever changes a unit changes the mean of its block.
        void clear(const summary_view& view, std::uint32_t u) const noexcept { forget(view, u); }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t, const float*,
                    const float*) const noexcept {
            forget(view, u);
        }

        void score(const float* q, std::uint32_t queries, const units_view& u,
                   std::span<float> out) const noexcept {
            u.mean_scores(q, queries, out.data());
        }

        /// The units of the blocks whose means have the greatest products with any of the queries (queries, width).
        [[nodiscard]] std::uint32_t narrow(const float* q, std::uint32_t queries, const units_view& u,
                                           std::uint32_t budget, const narrowing& x) const noexcept {
            const std::uint32_t blocks = blocks_of(u);
            const std::uint32_t share = (blocks * c_.probe_percent + 99) / 100;
            if (u.hidden != 0 || u.count < c_.least_units || share >= blocks) return 0;
            assert(2 * std::size_t{blocks} <= x.score.size()); // two rows, from four units a block on
            for (std::uint32_t b = 0; b < blocks; ++b)
                if (std::isnan(scale_of(u.summary, b))) sum_up(u, b, x);
            // A block's mean is read once for as many queries as there is room for beside the best of all.
            float *const best = x.score.data(), *const scores = best + blocks;
            const auto rows = static_cast<std::uint32_t>(x.score.size() / blocks - 1);
            std::fill_n(best, blocks, lowest);
            for (std::uint32_t i = 0; i < queries; i += rows) {
                const std::uint32_t n = std::min(rows, queries - i);
                simd::dot_group(q + std::size_t{i} * u.dim, n, u.dim, codes_of(u, 0, blocks), scores, blocks);
                for (std::uint32_t b = 0; b < blocks; ++b)
                    for (std::uint32_t j = 0; j < n; ++j)
                        best[b] = std::max(best[b], scores[j * blocks + b] * scale_of(u.summary, b));
            }
            const std::uint32_t units = units_in_best(u, share, std::uint64_t{budget} * c_.probe_entries, x);
            static_assert(2 * sizeof(unit_record) <= 64);
            if (u.unit != nullptr) // what chooses among them reads their records: two lie in a line or less
                for (std::uint32_t i = 0; i < units; i += 2) simd::prefetch_later(u.unit + x.unit[i]);
            x.note(std::uint64_t{queries} * blocks, blocks,
                   (units + c_.units_per_block - 1) / c_.units_per_block);
            return units;
        }

        /// The units of the blocks whose means are nearest to the key (width).
        [[nodiscard]] std::uint32_t near(const float* key, const units_view& u,
                                         const narrowing& x) const noexcept {
            const std::uint32_t blocks = blocks_of(u);
            if (u.hidden != 0 || u.count < c_.least_units || c_.near_blocks >= blocks) return 0;
            assert(2 * std::size_t{blocks} <= x.score.size());
            float* const scale = x.score.data() + blocks;
            for (std::uint32_t b = 0; b < blocks; ++b) {
                if (std::isnan(scale_of(u.summary, b))) sum_up(u, b, x);
                scale[b] = scale_of(u.summary, b);
            }
            simd::l2sq_codes(key, codes_of(u, 0, blocks), scale, x.score.data());
            simd::scale(-1.0F, x.score.data(), blocks);
            return units_in_best(u, c_.near_blocks, 0, x);
        }

      private:
        [[nodiscard]] std::uint32_t blocks_of(const units_view& u) const noexcept {
            return (u.count + c_.units_per_block - 1) / c_.units_per_block;
        }
        [[nodiscard]] static std::size_t row_bytes(const summary_shape& shape) noexcept {
            return sizeof(float) + shape.width();
        }
        [[nodiscard]] float& scale_of(const summary_view& view, std::uint32_t b) const noexcept {
            return *view.of<float>(b * c_.units_per_block);
        }
        /// Of `n` blocks from `first` on.
        [[nodiscard]] rows_view<std::int8_t> codes_of(const units_view& u, std::uint32_t first,
                                                      std::uint32_t n) const noexcept {
            return {reinterpret_cast<const std::int8_t*>(&scale_of(u.summary, first) + 1), n, u.dim,
                    c_.units_per_block * u.summary.stride};
        }

        /// A block whose scale is a NaN is summed up before it is used.
        void forget(const summary_view& view, std::uint32_t u) const noexcept {
            scale_of(view, u / c_.units_per_block) = std::numeric_limits<float>::quiet_NaN();
        }
        void sum_up(const units_view& u, std::uint32_t b, const narrowing& x) const noexcept {
            float& scale = scale_of(u.summary, b);
            float *const sum = x.mean.data(), *const mean = sum + u.dim;
            const std::uint32_t first = b * c_.units_per_block,
                                end = std::min(u.count, first + c_.units_per_block);
            std::fill_n(sum, u.dim, 0.0F);
            for (std::uint32_t i = first; i < end; ++i) {
                u.mean.get(i, mean);
                simd::add(mean, sum, u.dim);
            }
            simd::scale(1.0F / static_cast<float>(end - first), sum, u.dim);
            scale = simd::quantise(sum, reinterpret_cast<std::int8_t*>(&scale + 1), u.dim);
        }

        /// The units of at least `least` blocks with the best scores, as many as hold `entries` entries where units have
        /// as many as the lane's have on average: its tokens, those in the window too, stand for what they hold.
        [[nodiscard]] std::uint32_t units_in_best(const units_view& u, std::uint32_t least,
                                                  std::uint64_t entries, const narrowing& x) const noexcept {
            const std::uint32_t blocks = blocks_of(u);
            if (holds_all(u, entries)) return 0;
            const std::uint64_t units = entries * u.count / std::max(u.tokens, 1U) + 1;
            const auto probed = static_cast<std::uint32_t>(std::min<std::uint64_t>(
                blocks, std::max<std::uint64_t>(least, units / c_.units_per_block + 1)));
            if (probed == blocks) return 0;
            static_cast<void>(simd::top_k_by_index(x.score.data(), blocks, probed, x.order.data(), x.keys));
            std::uint32_t n = 0;
            for (std::uint32_t i = 0; i < probed; ++i) {
                const std::uint32_t first = x.order[i] * c_.units_per_block,
                                    end = std::min(u.count, first + c_.units_per_block);
                for (std::uint32_t unit = first; unit < end; ++unit) x.unit[n++] = unit;
            }
            return n;
        }

        /// `entries` are all of the lane's. Reads no more records than it takes to know.
        [[nodiscard]] static bool holds_all(const units_view& u, std::uint64_t entries) noexcept {
            if (entries < u.count) return false; // a unit has an entry at least
            std::uint64_t held = 0;
            for (std::uint32_t i = 0; i < u.count && held <= entries; ++i) held += u.entries(i);
            return held <= entries;
        }

        static constexpr float lowest = -std::numeric_limits<float>::infinity();
        config c_{};
    };
};

}} // namespace kvtl::v0
