// Clusterer: k-means over the prompt. Later entries join the nearest cluster, and clusters never change
// otherwise.
//
// DynaKV's Figure 1(a) and Table 5 compare with this "static update" (PQCache and Squeezed Attention update
// their clusters this way). Centroids do not move after the prompt. A cluster that has reached the largest
// size on storage continues in a sibling with the same centroid.
//
// Cost: group() is Lloyd's algorithm, O(n C D) per iteration; assign() reads every centroid once, O(U D).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/cluster_single_tokens.hpp>
#include <kvtl/policies/support/kmeans.hpp>
#include <kvtl/simd/distance.hpp>

#include <algorithm>

namespace kvtl { inline namespace v0 {

/// Settings that the k-means clusterers share: the grouping of a prompt, and the size from which a lane is
/// grouped.
struct prompt_clusters {
    std::uint32_t tokens_per_cluster = 16; ///< mean entries of a prompt cluster; the largest is twice this
    std::uint32_t min_entries_to_cluster = 512; ///< a lane is clustered once it has this many entries
    std::uint32_t segment = 8192;               ///< entries of a prompt that are clustered together, at most
    std::uint64_t seed = 1;                     ///< of k-means++

    [[nodiscard]] static status check(const prompt_clusters& c) noexcept {
        if (c.tokens_per_cluster < 4 || c.tokens_per_cluster > 4096)
            return status::failure(errc::invalid_argument,
                                   "clusterer.tokens_per_cluster is %u; valid: 4 to 4096",
                                   c.tokens_per_cluster);
        if (c.min_entries_to_cluster < 2 * c.tokens_per_cluster || c.min_entries_to_cluster > (1U << 20))
            return status::failure(errc::invalid_argument,
                                   "clusterer.min_entries_to_cluster is %u; valid: %u to %u",
                                   c.min_entries_to_cluster, 2 * c.tokens_per_cluster, 1U << 20);
        if (c.segment < c.min_entries_to_cluster || c.segment > (1U << 20))
            return status::failure(errc::invalid_argument,
                                   "clusterer.segment is %u; valid: %u (min_entries_to_cluster) to %u",
                                   c.segment, c.min_entries_to_cluster, 1U << 20);
        return {};
    }
    [[nodiscard]] std::uint32_t max_entries() const noexcept { return 2 * tokens_per_cluster; }
    [[nodiscard]] std::uint32_t clusters(std::size_t entries) const noexcept {
        return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(entries / tokens_per_cluster));
    }
    /// An oversized cluster falls into pieces of more than tokens_per_cluster entries on average, so limiting
    /// sizes at most doubles the count.
    [[nodiscard]] std::uint32_t prompt_units(std::size_t entries) const noexcept {
        return 2 * clusters(entries) + 1;
    }
    [[nodiscard]] std::size_t scratch_bytes(std::uint32_t entries, std::uint32_t dim) const noexcept {
        return centroid_bytes(entries, dim) + kmeans_scratch_bytes(entries, dim, prompt_units(entries));
    }
    [[nodiscard]] std::size_t centroid_bytes(std::size_t entries, std::size_t dim) const noexcept {
        return (clusters(entries) * dim * sizeof(float) + 63) / 64 * 64;
    }

    /// Clusters `keys` (n, D): fills `label` (n) and returns the number of clusters, none empty, none larger
    /// than max_entries().
    template <class Element>
    [[nodiscard]] std::uint32_t group(rows_view<Element> keys, std::span<std::byte> scratch,
                                      std::uint32_t* label, const lent_threads& threads) const noexcept {
        auto* centroids = reinterpret_cast<float*>(scratch.data());
        const auto rest = scratch.subspan(centroid_bytes(keys.count, keys.dim));
        kmeans_config c;
        c.seed = seed;
        c.threads = threads;
        const std::uint32_t k = clusters(keys.count);
        static_cast<void>(kmeans(keys, k, c, rest, centroids, label));
        order_alike(rows_view<float>{centroids, k, keys.dim, keys.dim}, keys.count, rest, label);
        return limit_size(keys, k, max_entries(), rest, label);
    }
};

struct kmeans_static {
    static constexpr std::string_view name = "kmeans_static";
    static constexpr granularity unit_of = granularity::head;
    static constexpr engine_input needs = engine_input::k;
    static constexpr bool needs_means = true;
    static constexpr bool updates_means = false;  ///< centroids are frozen once the lane is clustered
    static constexpr bool clusters_prompt = true; ///< groups a lane once it has enough entries
    static constexpr bool adapts = false;
    static constexpr bool among_some = true;

    struct config {
        std::uint32_t tokens_per_cluster = prompt_clusters{}.tokens_per_cluster;
        std::uint32_t min_entries_to_cluster = prompt_clusters{}.min_entries_to_cluster;
        std::uint32_t segment = prompt_clusters{}.segment;
        std::uint32_t pending_entries = 16; ///< entries per lane that may wait in DRAM for their unit
        std::uint64_t seed = prompt_clusters{}.seed;
        template <class Visit> void fields(Visit&& visit) {
            visit("tokens_per_cluster", tokens_per_cluster);
            visit("min_entries_to_cluster", min_entries_to_cluster);
            visit("segment", segment);
            visit("pending_entries", pending_entries);
            visit("seed", seed);
        }
    };
    struct lane {};

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept
            : prompt_{c.tokens_per_cluster, c.min_entries_to_cluster, c.segment, c.seed},
              buffer_(c.pending_entries) {}

        [[nodiscard]] static status check(const config& c) noexcept {
            if (c.pending_entries == 0 || c.pending_entries > 4096)
                return status::failure(errc::invalid_argument,
                                       "clusterer.pending_entries is %u; valid: 1 to 4096",
                                       c.pending_entries);
            return prompt_clusters::check(
                {c.tokens_per_cluster, c.min_entries_to_cluster, c.segment, c.seed});
        }
        [[nodiscard]] std::uint32_t max_entries() const noexcept { return prompt_.max_entries(); }
        [[nodiscard]] std::uint32_t max_units(std::uint32_t tokens) const noexcept {
            return prompt_.prompt_units(tokens) + 2;
        }
        [[nodiscard]] bool ready(std::uint32_t entries) const noexcept {
            return entries >= prompt_.min_entries_to_cluster;
        }
        [[nodiscard]] std::uint32_t segment_entries() const noexcept { return prompt_.segment; }
        [[nodiscard]] std::uint32_t least_segment() const noexcept { return prompt_.min_entries_to_cluster; }
        [[nodiscard]] std::size_t scratch_bytes(std::uint32_t entries, std::uint32_t dim) const noexcept {
            return prompt_.scratch_bytes(entries, dim);
        }
        [[nodiscard]] std::uint32_t sequential_entries() const noexcept { return prompt_.tokens_per_cluster; }
        [[nodiscard]] std::uint32_t pending_entries() const noexcept { return buffer_; }

        template <class Element>
        [[nodiscard]] std::uint32_t group(rows_view<Element> keys, std::span<std::byte> scratch,
                                          std::uint32_t* label,
                                          const lent_threads& threads = {}) const noexcept {
            return prompt_.group(keys, scratch, label, threads);
        }
        void clustered(lane&, const units_view&) const noexcept {}

        [[nodiscard]] growth judge(lane&, const unit_record& unit, float,
                                   const units_view& u) const noexcept {
            return unit.entries < u.max_entries ? growth::append : growth::open;
        }

        /// Nearest centroid; ties and siblings resolve to the lowest index with room. `distance` has u.count
        /// floats.
        [[nodiscard]] assignment assign(lane&, const float* key, const units_view& u,
                                        std::span<float> distance) const noexcept {
            if (u.count == 0) return {none, growth::open};
            u.mean_distances(key, distance.data());
            std::uint32_t nearest = 0, with_room = none;
            for (std::uint32_t i = 0; i < u.count; ++i) {
                if (distance[i] < distance[nearest]) nearest = i;
                if (u.record(i).entries + u.record(i).buffered < u.max_entries &&
                    (with_room == none || distance[i] < distance[with_room]))
                    with_room = i;
            }
            if (with_room != none && (distance[with_room] <= distance[nearest] || !u.may_add))
                return {with_room, growth::append};
            return {nearest, growth::open};
        }

      private:
        prompt_clusters prompt_{};
        std::uint32_t buffer_ = 16;
    };
};

}} // namespace kvtl::v0
