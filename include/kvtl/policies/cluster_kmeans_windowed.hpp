// Clusterer: k-means over segments of the prompt. During decode entries wait in the window until there are
// enough of them, and then become separate clusters ("local update": ClusterKV, RetroInfer).
//
// Clusters never change once they are made. If a paper uses cosine similarity, directions are clustered
// instead of keys: rows are scaled to length 1 (for RetroInfer after the segment's mean was subtracted) and
// grouped by Euclidean k-means. On the unit sphere it ranks centroids as cosine does, up to their length. The
// means of the units are means of the keys themselves.
//
// Pending entries are attended and so count in attend_tokens: at most a quarter of it may be pending, or
// smallest_batch if that is more. A shorter batch makes proportionally fewer clusters.
//
// Cost: a batch of W entries into C clusters: O(W C D) per iteration, once every W tokens.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/cluster_kmeans_static.hpp>
#include <kvtl/policies/support/units_that_stay.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/moments.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

/// The numbers in which the papers differ. These are a preset's defaults of the config.
struct window_plan {
    std::uint32_t tokens_per_cluster = 16; ///< of the prompt; the largest cluster has twice as many
    std::uint32_t segment = 8192;          ///< prompt entries that are clustered together
    std::uint32_t window = 1024;           ///< decoded entries that are clustered together, at most
    std::uint32_t window_clusters = 64;    ///< clusters made of a full window
    std::uint32_t smallest_batch = 16;     ///< decoded entries clustered together, however few are attended
    bool centred = true;                   ///< directions from the mean rather than from 0
};

template <window_plan Plan = window_plan{}> struct kmeans_windowed {
    static constexpr std::string_view name = "kmeans_windowed";
    static constexpr granularity unit_of = granularity::head;
    static constexpr engine_input needs = engine_input::k;
    static constexpr bool needs_means = true;
    static constexpr bool updates_means = true;
    static constexpr bool clusters_prompt = true;
    static constexpr bool adapts = false;

    struct config {
        std::uint32_t tokens_per_cluster = Plan.tokens_per_cluster;
        std::uint32_t segment = Plan.segment;
        std::uint32_t window = Plan.window;
        std::uint32_t window_clusters = Plan.window_clusters;
        std::uint32_t smallest_batch = Plan.smallest_batch;
        bool centred = Plan.centred;
        std::uint64_t seed = 1;
        template <class Visit> void fields(Visit&& visit) {
            visit("tokens_per_cluster", tokens_per_cluster);
            visit("segment", segment);
            visit("window", window);
            visit("window_clusters", window_clusters);
            visit("smallest_batch", smallest_batch);
            visit("centred", centred);
            visit("seed", seed);
        }
        /// Clusters of twice the size, those of decoded entries too, so that there are half as many units.
        /// False, and nothing changed, when that would be more than `most` tokens per cluster.
        bool coarsen(std::uint32_t most) noexcept {
            if (tokens_per_cluster > most / 2 || tokens_per_cluster > segment / 4) return false;
            tokens_per_cluster *= 2;
            window_clusters = std::max(1U, window_clusters / 2);
            smallest_batch *= 2;
            return true;
        }
    };
    struct lane {};

    class state : public units_that_stay<lane> {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : c_(c) {}

        [[nodiscard]] static status check(const config& c) noexcept {
            if (c.tokens_per_cluster < 4 || c.tokens_per_cluster > 4096)
                return status::failure(errc::invalid_argument,
                                       "clusterer.tokens_per_cluster is %u; valid: 4 to 4096",
                                       c.tokens_per_cluster);
            if (c.segment > (1U << 20) || c.segment < 2 * c.tokens_per_cluster)
                return status::failure(errc::invalid_argument, "clusterer.segment is %u; valid: %u to %u",
                                       c.segment, 2 * c.tokens_per_cluster, 1U << 20);
            if (c.window == 0 || c.window > (1U << 14))
                return status::failure(errc::invalid_argument, "clusterer.window is %u; valid: 1 to %u",
                                       c.window, 1U << 14);
            if (c.window_clusters == 0 || c.window_clusters > c.window)
                return status::failure(errc::invalid_argument,
                                       "clusterer.window_clusters is %u; valid: 1 to window (%u)",
                                       c.window_clusters, c.window);
            if (c.smallest_batch == 0 || c.smallest_batch > (1U << 14))
                return status::failure(errc::invalid_argument,
                                       "clusterer.smallest_batch is %u; valid: 1 to %u", c.smallest_batch,
                                       1U << 14);
            return {};
        }
        [[nodiscard]] std::uint32_t max_entries() const noexcept { return 2 * c_.tokens_per_cluster; }
        /// Whatever part of the tokens was prompt and what was decoded in batches of any size.
        [[nodiscard]] std::uint32_t max_units(std::uint32_t tokens) const noexcept {
            const std::uint32_t whole =
                tokens / c_.segment * units_of(c_.segment, prompt_clusters(c_.segment));
            const std::uint32_t rest = tokens % c_.segment;
            // Small batches make one cluster, larger ones their share of window_clusters, rounded down.
            const std::uint32_t small = tokens / least_batch();
            const auto share =
                static_cast<std::uint32_t>(std::uint64_t{tokens} * c_.window_clusters / c_.window);
            const std::uint32_t decoded = units_of(tokens, std::max(small, share));
            return std::max(whole + units_of(rest, prompt_clusters(rest)), decoded) + 2;
        }
        [[nodiscard]] std::uint32_t sequential_entries() const noexcept { return c_.tokens_per_cluster; }

        /// Entries that leave the window together, if the window may hold up to `most` beyond its size.
        [[nodiscard]] std::uint32_t batch_entries(std::uint32_t most) const noexcept {
            return std::clamp(most, least_batch(), c_.window);
        }
        /// Units that a batch of n entries can make at most.
        [[nodiscard]] std::uint32_t batch_units(std::uint32_t n) const noexcept {
            return units_of(n, batch_clusters(n));
        }
        [[nodiscard]] std::uint32_t segment_entries() const noexcept { return c_.segment; }
        [[nodiscard]] std::uint32_t least_segment() const noexcept {
            return std::min(c_.segment, std::max(512U, 2 * c_.tokens_per_cluster));
        }
        [[nodiscard]] std::size_t scratch_bytes(std::uint32_t entries, std::uint32_t dim) const noexcept {
            const std::uint32_t n = std::min(entries, c_.segment);
            return group_bytes(n, dim, prompt_clusters(n));
        }
        [[nodiscard]] std::size_t batch_scratch_bytes(std::uint32_t n, std::uint32_t dim) const noexcept {
            return group_bytes(n, dim, batch_clusters(n));
        }

        /// The prompt's keys (n, D), segment by segment; fills `label` (n) and returns the number of
        /// clusters.
        template <class Element>
        [[nodiscard]] std::uint32_t group(rows_view<Element> keys, std::span<std::byte> scratch,
                                          std::uint32_t* label,
                                          const lent_threads& threads = {}) const noexcept {
            std::uint32_t units = 0;
            for (std::size_t first = 0; first < keys.count; first += c_.segment) {
                const auto n =
                    static_cast<std::uint32_t>(std::min<std::size_t>(c_.segment, keys.count - first));
                const std::uint32_t of_segment =
                    cluster(keys.slice(first, n), prompt_clusters(n), scratch, label + first, threads);
                for (std::size_t i = first; i < first + n; ++i) label[i] += units;
                units += of_segment;
            }
            return units;
        }
        /// The same for entries that leave the window together.
        template <class Element>
        [[nodiscard]] std::uint32_t group_batch(rows_view<Element> keys, std::span<std::byte> scratch,
                                                std::uint32_t* label) const noexcept {
            return cluster(keys, batch_clusters(static_cast<std::uint32_t>(keys.count)), scratch, label);
        }

      private:
        [[nodiscard]] std::uint32_t least_batch() const noexcept {
            return std::min(c_.smallest_batch, c_.window);
        }
        [[nodiscard]] std::uint32_t prompt_clusters(std::uint32_t n) const noexcept {
            return std::max(1U, n / c_.tokens_per_cluster);
        }
        [[nodiscard]] std::uint32_t batch_clusters(std::uint32_t n) const noexcept {
            return std::max(1U,
                            static_cast<std::uint32_t>(std::uint64_t{n} * c_.window_clusters / c_.window));
        }
        /// After limit_size.
        [[nodiscard]] std::uint32_t units_of(std::uint32_t n, std::uint32_t clusters) const noexcept {
            return static_cast<std::uint32_t>(limited_clusters(n, clusters, max_entries()));
        }
        [[nodiscard]] std::size_t group_bytes(std::uint32_t n, std::uint32_t dim,
                                              std::uint32_t k) const noexcept {
            carver c;
            static_cast<void>(c.take<float>(std::size_t{n} * dim));
            static_cast<void>(c.take<float>(std::size_t{k + 1} * dim));
            static_cast<void>(c.take<std::byte>(kmeans_scratch_bytes(n, dim, units_of(n, k))));
            return c.used();
        }

        template <class Element>
        [[nodiscard]] std::uint32_t cluster(rows_view<Element> keys, std::uint32_t k,
                                            std::span<std::byte> scratch, std::uint32_t* label,
                                            const lent_threads& threads = {}) const noexcept {
            const std::size_t n = keys.count, dim = keys.dim;
            carver c(scratch);
            const auto direction = c.take<float>(n * dim);
            const auto centroids = c.take<float>((k + std::size_t{1}) * dim);
            const auto rest =
                c.take<std::byte>(kmeans_scratch_bytes(n, dim, units_of(static_cast<std::uint32_t>(n), k)));
            float* mean = centroids.data() + k * dim;
            float m2 = 0;
            if (c_.centred)
                for (std::uint32_t i = 0; i < n; ++i) simd::absorb(keys.row(i), dim, i, mean, m2);
            for (std::size_t i = 0; i < n; ++i) {
                float* row = &direction[i * dim];
                simd::decode(keys.row(i), row, dim);
                simd::axpy(-1.0F, mean, row, dim);
                const float length = std::sqrt(simd::dot(row, row, dim));
                if (length > 0) simd::scale(1.0F / length, row, dim);
            }
            const rows_view<float> rows{direction.data(), n, dim, dim};
            kmeans_config how;
            how.seed = c_.seed;
            how.threads = threads;
            static_cast<void>(kmeans(rows, k, how, rest, centroids.data(), label));
            order_alike(rows_view<float>{centroids.data(), k, dim, dim}, n, rest, label);
            return limit_size(rows, k, max_entries(), rest, label);
        }

        config c_{};
    };
};

}} // namespace kvtl::v0
