// Clusterer: k-means over the prompt; then clusters split when their variance exceeds the head's threshold
// (DynaKV §4, Algorithm 1).
//
// assign() only decides. The manager carries out a split if the cluster is resident. Otherwise the entry
// waits in the lane's buffer (the delayed split); when the buffer is full, the cluster with most pending
// entries is loaded into DRAM. Statistics are Welford's: n' = n+1, mean' = mean + (k-mean)/n', m2' = m2 +
// n/n' |k-mean|^2, variance = m2/n.
//
// Decided here, because the paper does not say:
//   - The threshold of a head is `threshold_scale` times the size-weighted mean variance of its first
//     clusters. With `threshold`, for comparison, all heads have one threshold; keys of some heads spread
//     several times as far as those of others.
//   - Clusters below 4 entries never split.
//   - A cluster at the largest size on storage splits as if its variance were exceeded.
//   - At 2 T / tokens_per_cluster clusters a split is refused, and the threshold rises by 10 %.
//
// Cost: assign() reads every mean once, O(U D). Memory: 8 bytes per lane.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/cluster_kmeans_static.hpp>
#include <kvtl/simd/moments.hpp>

namespace kvtl { inline namespace v0 {

struct variance_split {
    static constexpr std::string_view name = "variance_split";
    static constexpr granularity unit_of = granularity::head;
    static constexpr engine_input needs = engine_input::k;
    static constexpr bool needs_means = true;
    static constexpr bool updates_means = true;
    static constexpr bool clusters_prompt = true; ///< groups a lane once it has enough entries
    static constexpr bool adapts = true;
    static constexpr bool among_some = true;

    struct config {
        std::uint32_t tokens_per_cluster = prompt_clusters{}.tokens_per_cluster;
        float threshold_scale = 1.0F;       ///< tau_h as a multiple of the head's mean prompt variance
        std::uint32_t pending_entries = 16; ///< B_max per lane (the paper sweeps up to 16)
        std::uint32_t min_entries_to_cluster = prompt_clusters{}.min_entries_to_cluster;
        std::uint32_t segment = prompt_clusters{}.segment;
        std::uint64_t seed = prompt_clusters{}.seed;
        float threshold = 0.0F; ///< tau of all heads, squared key units; 0: each head has its own
        template <class Visit> void fields(Visit&& visit) {
            visit("tokens_per_cluster", tokens_per_cluster);
            visit("threshold_scale", threshold_scale);
            visit("pending_entries", pending_entries);
            visit("min_entries_to_cluster", min_entries_to_cluster);
            visit("segment", segment);
            visit("seed", seed);
            visit("threshold", threshold);
        }
    };

    struct lane {
        float threshold = 0;       ///< tau_h, squared key units
        std::uint32_t refused = 0; ///< splits refused for want of units or storage
    };

    static constexpr std::uint32_t smallest_split = 4; ///< entries, the new one included
    static constexpr float refusal_growth = 1.1F;

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept
            : prompt_{c.tokens_per_cluster, c.min_entries_to_cluster, c.segment, c.seed},
              scale_(c.threshold_scale), common_(c.threshold), buffer_(c.pending_entries) {}

        [[nodiscard]] static status check(const config& c) noexcept {
            if (!(c.threshold_scale > 0.0F && c.threshold_scale < 1e6F))
                return status::failure(errc::invalid_argument,
                                       "clusterer.threshold_scale is %g; valid: above 0, below 1e6",
                                       static_cast<double>(c.threshold_scale));
            if (!(c.threshold >= 0.0F && c.threshold < 1e30F))
                return status::failure(errc::invalid_argument,
                                       "clusterer.threshold is %g; valid: 0 (each head's own) to 1e30",
                                       static_cast<double>(c.threshold));
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
        /// Live clusters a lane of `tokens` tokens may have before splits are refused.
        [[nodiscard]] std::uint32_t unit_limit(std::uint32_t tokens) const noexcept {
            return 2 * prompt_.clusters(tokens);
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

        /// Fixes the head's threshold from its first clusters.
        void clustered(lane& l, const units_view& u) const noexcept {
            double m2 = 0, entries = 0;
            for (std::uint32_t i = 0; i < u.count; ++i) {
                m2 += static_cast<double>(u.unit[i].m2);
                entries += u.unit[i].entries;
            }
            l.threshold = common_ > 0.0F ? common_
                          : entries > 0  ? scale_ * static_cast<float>(m2 / entries)
                                         : 0.0F;
            l.refused = 0;
        }

        /// append: the variance with the entry stays within the threshold. split: it does not, or the cluster
        /// is as large as storage allows. open: the cluster is full and may not split, so the entry must go
        /// elsewhere.
        [[nodiscard]] growth judge(lane& l, const unit_record& c, float distance,
                                   const units_view& u) const noexcept {
            const bool over_full = c.entries + 1 > u.max_entries;
            const float n = static_cast<float>(c.entries);
            const float variance = (c.m2 + n / (n + 1.0F) * distance) / (n + 1.0F);
            if (!over_full && (variance <= l.threshold || c.entries + 1 < smallest_split))
                return growth::append;
            if (u.may_add && u.count + u.hidden < unit_limit(u.tokens)) return growth::split;
            l.threshold *= refusal_growth;
            ++l.refused;
            return over_full ? growth::open : growth::append;
        }

        [[nodiscard]] assignment assign(lane& l, const float* key, const units_view& u,
                                        std::span<float> distance) const noexcept {
            if (u.count == 0) return {none, growth::open};
            return assign_near(l, u.nearest_mean(key, distance.data()), key, u, distance);
        }
        /// The same when the nearest mean is known.
        [[nodiscard]] assignment assign_near(lane& l, const simd::neighbour& closest, const float* key,
                                             const units_view& u, std::span<float> distance) const noexcept {
            const auto nearest = static_cast<std::uint32_t>(closest.index);
            const growth how = judge(l, u.record(nearest), closest.distance, u);
            if (how != growth::open) return {nearest, how};
            u.mean_distances(key, distance.data());
            const std::uint32_t room = nearest_with_room(u, distance);
            if (room == none) return {nearest, growth::open}; // nothing has room: it waits for its cluster
            return {room, growth::append};
        }

      private:
        [[nodiscard]] static std::uint32_t nearest_with_room(const units_view& u,
                                                             std::span<const float> distance) noexcept {
            std::uint32_t best = none;
            for (std::uint32_t i = 0; i < u.count; ++i)
                if (u.record(i).entries + u.record(i).buffered < u.max_entries &&
                    (best == none || distance[i] < distance[best]))
                    best = i;
            return best;
        }

        prompt_clusters prompt_{};
        float scale_ = 1, common_ = 0;
        std::uint32_t buffer_ = 16;
    };
};

}} // namespace kvtl::v0
