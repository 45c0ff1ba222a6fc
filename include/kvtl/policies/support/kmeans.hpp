// k-means over stored rows: turns the keys of a prompt into clusters.
//
// What:   kmeans() groups n points into k clusters. limit_size() halves clusters that are too large to be
//         placed. order_alike() numbers them so that neighbours are alike. Squared Euclidean distance
//         throughout.
// Shapes: points (n, D) of E; centroids (k, D) f32, contiguous; labels (n).
// Cost:   flat: n k D multiply-adds per iteration. Two levels: 2 n sqrt(k) D per iteration, and n k D for
//         each polishing iteration. All memory is scratch: 13 bytes per point, 12 per cluster, 1 KiB per
//         dimension.
// Limits: deterministic: equal input gives equal bits on one architecture, on any number of threads. k <= n.
//         Float sums, finite points.
// Source: Lloyd (1982); seeds: k-means++ of Arthur and Vassilvitskii (2007), from a sample.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/lent_threads.hpp>
#include <kvtl/policies/support/halve.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/assign.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>

namespace kvtl { inline namespace v0 {

struct kmeans_config {
    std::uint64_t seed = 1;
    std::uint32_t max_iterations = 10;
    float min_gain = 0.01F;                 ///< stop once an iteration lowers the inertia by a smaller share
    std::uint32_t samples_per_centroid = 4; ///< points among which k-means++ looks for seeds, per cluster
    std::uint32_t flat_up_to = 8192;        ///< with more points, sqrt(k) coarse clusters are divided further
    std::uint32_t polish = 2; ///< iterations over all k clusters after the two levels, at least 1
    lent_threads threads{};   ///< that share distances to seeds and centroids; the result is the same
};

struct kmeans_result {
    std::uint32_t iterations = 0; ///< over all points (those within coarse clusters do not count)
    double inertia = 0;           ///< sum of squared distances of the points to their cluster's centroid
};

namespace detail {

/// A random number that depends on (seed, counter) only: no state to carry, nothing to get out of step.
[[nodiscard]] constexpr double random_unit(std::uint64_t seed, std::uint64_t counter) noexcept {
    std::uint64_t x = seed * 0x9E3779B97F4A7C15U + counter;
    for (const std::uint64_t odd : {0xBF58476D1CE4E5B9U, 0x94D049BB133111EBU}) {
        x ^= x >> 31;
        x *= odd;
        x ^= x >> 29;
    }
    return static_cast<double>((x ^ (x >> 32)) >> 11) * 0x1p-53;
}

/// Distances that are worth a thread of their own: to be asked and to be waited for takes some microseconds.
inline constexpr std::size_t kmeans_part = 256;

/// Points that are brought together for one call of kmeans_assign when they are scattered.
inline constexpr std::size_t kmeans_gather = 256;

/// Scratch of one run of Lloyd's iterations over up to n points and k clusters.
struct lloyd_memory {
    std::span<float> distance; ///< (n) to the own centroid; while seeding: of the sample to the nearest seed
    std::span<std::uint32_t> count; ///< (k) points per cluster
    std::span<float> half_norm;     ///< (k) ||centroid||^2 / 2
    std::span<std::byte> gathered;  ///< (up to 256, D) of E

    static lloyd_memory take(carver& c, std::size_t n, std::size_t dim, std::size_t k) noexcept {
        return {c.take<float>(n), c.take<std::uint32_t>(k), c.take<float>(k),
                c.take<std::byte>(std::clamp<std::size_t>(n / 32, 32, kmeans_gather) * dim * sizeof(float))};
    }
};

/// k-means++: each seed is a point of the sample, drawn with a probability proportional to its squared
/// distance to the nearest seed so far. The sample is one point from each of m equal stretches: of the whole
/// prompt, whatever drifts. `sample` lends room for m numbers.
template <class Arch, element E>
void kmeans_seeds(const row_set<E>& points, std::uint32_t k, const kmeans_config& config,
                  std::span<float> nearest, std::uint32_t* sample, float* centroids) noexcept {
    const std::size_t n = points.count(), dim = points.rows.dim;
    const std::size_t m = std::min(n, std::size_t{k} * std::max(config.samples_per_centroid, 1U));
    const std::size_t parts = config.threads.parts(m, kmeans_part);
    auto draw = [&, counter = std::uint64_t{0}]() mutable { return random_unit(config.seed, counter++); };
    for (std::size_t i = 0; i < m; ++i) {
        const std::size_t begin = i * n / m, end = (i + 1) * n / m;
        const auto offset = static_cast<std::size_t>(draw() * static_cast<double>(end - begin));
        sample[i] = static_cast<std::uint32_t>(begin + offset);
    }
    std::fill_n(nearest.data(), m, std::numeric_limits<float>::max());
    std::size_t chosen = std::min(m - 1, static_cast<std::size_t>(draw() * static_cast<double>(m)));
    for (std::uint32_t c = 0;; ++c) {
        float* seed = centroids + c * dim;
        simd::decode<Arch>(points.row(sample[chosen]), seed, dim);
        if (c + 1 == k) return;
        const auto measure = [&](std::size_t i) noexcept {
            return nearest[i] = std::min(nearest[i], simd::l2sq<Arch>(seed, points.row(sample[i]), dim));
        };
        double total = 0; // in the order of the sample, whoever measures
        if (parts <= 1)
            for (std::size_t i = 0; i < m; ++i) total += static_cast<double>(measure(i));
        else {
            config.threads.divide(m, parts, [&](std::size_t first, std::size_t end) noexcept {
                for (std::size_t i = first; i < end; ++i) static_cast<void>(measure(i));
            });
            for (std::size_t i = 0; i < m; ++i) total += static_cast<double>(nearest[i]);
        }
        double left = draw() * total;
        chosen = 0; // also when all points are equal to a seed: the surplus clusters will stay empty
        for (std::size_t i = 0; i < m && left >= 0; ++i)
            if (nearest[i] > 0) {
                chosen = i;
                left -= static_cast<double>(nearest[i]);
            }
    }
}

/// label and distance of every point for the present centroids.
template <class Arch, element E>
void lloyd_assign(const row_set<E>& points, std::uint32_t k, const float* centroids,
                  const lloyd_memory& memory, std::uint32_t* label, const lent_threads& threads) noexcept {
    const std::size_t n = points.count(), dim = points.rows.dim;
    for (std::uint32_t c = 0; c < k; ++c)
        memory.half_norm[c] = 0.5F * simd::dot<Arch>(centroids + c * dim, centroids + c * dim, dim);
    if (points.index.empty())
        return threads.divide(
            n, threads.parts(n, kmeans_part), [&](std::size_t first, std::size_t end) noexcept {
                simd::kmeans_assign<Arch>(points.rows.slice(first, end - first), centroids, k,
                                          memory.half_norm.data(), label + first, &memory.distance[first]);
            });
    E* gathered = reinterpret_cast<E*>(memory.gathered.data());
    const std::size_t at_once = memory.gathered.size() / (dim * sizeof(float));
    for (std::size_t first = 0; first < n; first += at_once) {
        const std::size_t some = std::min(at_once, n - first);
        for (std::size_t i = 0; i < some; ++i) std::copy_n(points.row(first + i), dim, gathered + i * dim);
        simd::kmeans_assign<Arch>(rows_view<E>{gathered, some, dim, dim}, centroids, k,
                                  memory.half_norm.data(), label + first, memory.distance.data() + first);
    }
}

/// Gives each empty cluster the point that is farthest from its centroid; the inertia can only fall. A
/// cluster stays empty when there are fewer different points than clusters.
template <element E>
void fill_empty(const row_set<E>& points, std::uint32_t k, const lloyd_memory& memory,
                std::uint32_t* label) noexcept {
    std::fill_n(memory.count.data(), k, 0U);
    for (std::size_t i = 0; i < points.count(); ++i) ++memory.count[label[i]];
    for (std::uint32_t c = 0; c < k; ++c) {
        if (memory.count[c] != 0) continue;
        std::size_t farthest = 0;
        float distance = 0;
        for (std::size_t i = 0; i < points.count(); ++i)
            if (memory.distance[i] > distance && memory.count[label[i]] > 1) {
                farthest = i;
                distance = memory.distance[i];
            }
        if (!(distance > 0)) return;
        --memory.count[label[farthest]];
        label[farthest] = c;
        memory.count[c] = 1;
        memory.distance[farthest] = 0;
    }
}

/// Moves each centroid to the mean of its points; returns the inertia. That of an empty cluster stays.
template <class Arch, element E>
[[nodiscard]] double lloyd_update(const row_set<E>& points, std::uint32_t k, const lloyd_memory& memory,
                                  const std::uint32_t* label, float* centroids) noexcept {
    const std::size_t dim = points.rows.dim;
    std::fill_n(memory.count.data(), k, 0U);
    double inertia = 0;
    for (std::size_t i = 0; i < points.count(); ++i) {
        const std::uint32_t c = label[i];
        float* mean = centroids + c * dim;
        if (memory.count[c] == 0) std::fill_n(mean, dim, 0.0F);
        float m2 = 0;
        simd::absorb<Arch>(points.row(i), dim, memory.count[c]++, mean, m2);
        inertia += static_cast<double>(m2);
    }
    return inertia;
}

/// Lloyd's iterations from the given centroids.
template <class Arch, element E>
[[nodiscard]] kmeans_result lloyd(const row_set<E>& points, std::uint32_t k, std::uint32_t max_iterations,
                                  const kmeans_config& config, const lloyd_memory& memory, float* centroids,
                                  std::uint32_t* label) noexcept {
    kmeans_result result{0, std::numeric_limits<double>::infinity()};
    while (result.iterations < max_iterations) {
        lloyd_assign<Arch>(points, k, centroids, memory, label, config.threads);
        fill_empty(points, k, memory, label);
        const double before = result.inertia;
        result.inertia = lloyd_update<Arch>(points, k, memory, label, centroids);
        ++result.iterations;
        if (!(result.inertia < before * (1.0 - static_cast<double>(config.min_gain)))) break;
    }
    return result;
}

/// Scratch of kmeans: that of Lloyd's iterations and, for two levels, the coarse clusters.
struct kmeans_memory {
    lloyd_memory lloyd;
    std::span<std::uint32_t> order;      ///< (n) points by coarse cluster
    std::span<std::uint32_t> fine_label; ///< (n) in that order, within the coarse cluster
    std::span<std::uint32_t> begin;      ///< (k + 1) where each cluster's points begin in `order`

    static kmeans_memory take(carver& c, std::size_t n, std::size_t dim, std::size_t k) noexcept {
        return {lloyd_memory::take(c, n, dim, k), c.take<std::uint32_t>(n), c.take<std::uint32_t>(n),
                c.take<std::uint32_t>(k + 1)};
    }
};

/// Sorts the points by label: begin[c] to begin[c + 1] are the places in `order` of cluster c, in point
/// order.
inline void group_by_label(const std::uint32_t* label, std::size_t n, std::size_t k, std::uint32_t* begin,
                           std::uint32_t* order) noexcept {
    std::fill_n(begin, k + 1, 0U);
    for (std::size_t i = 0; i < n; ++i) ++begin[label[i] + 1];
    std::partial_sum(begin, begin + k + 1, begin);
    for (std::size_t i = 0; i < n; ++i) order[begin[label[i]]++] = static_cast<std::uint32_t>(i);
    std::copy_backward(begin, begin + k, begin + k + 1); // each has moved to its end: the next one's begin
    begin[0] = 0;
}

/// Starting centroids for many clusters: sqrt(k) coarse clusters, each divided in proportion to its points.
template <class Arch, element E>
[[nodiscard]] std::uint32_t two_level_centroids(rows_view<E> points, std::uint32_t k,
                                                const kmeans_config& config, const kmeans_memory& memory,
                                                float* centroids, std::uint32_t* label) noexcept {
    const std::size_t n = points.count, dim = points.dim;
    const auto coarse = static_cast<std::uint32_t>(std::lround(std::sqrt(static_cast<double>(k))));
    kmeans_seeds<Arch>(row_set<E>{points, {}}, coarse, config, memory.lloyd.distance, label, centroids);
    const kmeans_result result = lloyd<Arch>(row_set<E>{points, {}}, coarse, config.max_iterations, config,
                                             memory.lloyd, centroids, label);
    group_by_label(label, n, coarse, memory.begin.data(), memory.order.data());

    std::uint32_t given = 0; // centroids so far; rounding the running total makes the shares add up to k
    kmeans_config fine = config;
    for (std::uint32_t j = 0; j < coarse; ++j) {
        const std::uint32_t begin = memory.begin[j], end = memory.begin[j + 1];
        if (begin == end) continue;
        const auto target = static_cast<std::uint32_t>((std::uint64_t{end} * k + n / 2) / n);
        const std::uint32_t share = std::min({std::max(target, given + 1) - given, end - begin, k - given});
        if (share == 0) break;
        const row_set<E> members{points, memory.order.subspan(begin, end - begin)};
        fine.seed = config.seed + j + 1;
        kmeans_seeds<Arch>(members, share, fine, memory.lloyd.distance, memory.fine_label.data(),
                           centroids + std::size_t{given} * dim);
        static_cast<void>(lloyd<Arch>(members, share, config.max_iterations, config, memory.lloyd,
                                      centroids + std::size_t{given} * dim, memory.fine_label.data()));
        given += share;
    }
    for (; given < k; ++given) // a copy attracts no point; fill_empty will move it to where it is needed
        std::copy_n(centroids, dim, centroids + std::size_t{given} * dim);
    return result.iterations;
}

} // namespace detail

/// Groups the points into k clusters: `labels`, and as `centroids` the mean of each. With more than
/// config.flat_up_to points it works in two levels, without comparing to flat k-means each time: the rule was
/// measured instead, on n = 9,000 to 32,768 points into n / 32 clusters, D = 64 and 128, four to six seeds.
/// On drifting mixtures of 40 to 200 topics and on shapeless data the inertia was on average at most 1.1 %
/// above that of flat k-means (4.2 % with polish = 1), in half to two thirds of the time; the worst single
/// run was 4 % above, where two seeds of flat k-means differ by 5 %. Data made of exactly k separate blobs
/// came out 8 to 18 % above on average, because coarse clusters get clusters by size, not by the blobs in
/// them: use flat there.
template <class Arch = simd::default_arch, element E>
kmeans_result kmeans(rows_view<E> points, std::uint32_t k, const kmeans_config& config,
                     std::span<std::byte> scratch, float* centroids, std::uint32_t* labels) noexcept {
    assert(k >= 1 && k <= points.count);
    carver carve(scratch);
    const auto memory = detail::kmeans_memory::take(carve, points.count, points.dim, k);
    assert(carve.used() <= scratch.size());
    const detail::row_set<E> all{points, {}};
    if (points.count <= config.flat_up_to) {
        detail::kmeans_seeds<Arch>(all, k, config, memory.lloyd.distance, labels, centroids);
        return detail::lloyd<Arch>(all, k, std::max(config.max_iterations, 1U), config, memory.lloyd,
                                   centroids, labels);
    }
    const std::uint32_t coarse =
        detail::two_level_centroids<Arch>(points, k, config, memory, centroids, labels);
    kmeans_result result =
        detail::lloyd<Arch>(all, k, std::max(config.polish, 1U), config, memory.lloyd, centroids, labels);
    result.iterations += coarse;
    return result;
}

// ------------------------------------------------------------------------------ neighbours that are alike

namespace detail {

/// Scratch of order_alike for k clusters.
struct order_memory {
    halve_memory halve;
    std::span<std::uint32_t> order, place; ///< (k) clusters in their new order; the new number of each
    std::span<std::uint8_t> side;          ///< (k)

    static order_memory take(carver& c, std::size_t dim, std::size_t k) noexcept {
        return {halve_memory::take(c, k, dim), c.take<std::uint32_t>(k), c.take<std::uint32_t>(k),
                c.take<std::uint8_t>(k)};
    }
};

/// Sorts the clusters `some` so that each half of them, each quarter and so on lies close together.
template <class Arch>
void order_half(rows_view<float> centroids, std::span<std::uint32_t> some, const order_memory& m) noexcept {
    const std::size_t n = some.size(), half = n / 2;
    if (n <= 2) return;
    static_cast<void>(
        halve_set<Arch>(row_set<float>{centroids, some}, half, n - half, m.halve, m.side.data()));
    std::size_t place[2] = {0, static_cast<std::size_t>(std::count(
                                   m.side.begin(), m.side.begin() + static_cast<std::ptrdiff_t>(n), 0))};
    const std::size_t zeros = place[1];
    for (std::size_t i = 0; i < n; ++i) m.halve.sorted[place[m.side[i]]++] = some[i];
    std::copy_n(m.halve.sorted.begin(), n, some.begin());
    order_half<Arch>(centroids, some.first(zeros), m);
    order_half<Arch>(centroids, some.subspan(zeros), m);
}

} // namespace detail

/// Numbers k clusters anew so that those with close numbers are alike: halved across their principal direction, the
/// halves again, down to pairs. What lies side by side in memory and on storage is then asked for together, and a
/// run of clusters has a mean that stands for all of them. `centroids`: (k, D), of the old numbers; cost: fifteen
/// passes over them per halving, O(k D log k), far below one iteration of k-means.
template <class Arch = simd::default_arch>
void order_alike(rows_view<float> centroids, std::size_t points, std::span<std::byte> scratch,
                 std::uint32_t* labels) noexcept {
    carver carve(scratch);
    const auto m = detail::order_memory::take(carve, centroids.dim, centroids.count);
    assert(carve.used() <= scratch.size());
    std::iota(m.order.begin(), m.order.end(), 0U);
    detail::order_half<Arch>(centroids, m.order, m);
    for (std::uint32_t i = 0; i < centroids.count; ++i) m.place[m.order[i]] = i;
    for (std::size_t i = 0; i < points; ++i) labels[i] = m.place[labels[i]];
}

// ------------------------------------------------------------------------------ a limit on the size

namespace detail {

/// Scratch of limit_size for n points and up to k clusters in the end.
struct limit_memory {
    halve_memory halve;
    std::span<std::uint32_t> order;       ///< (n) points by cluster
    std::span<std::uint32_t> begin, size; ///< (k + 1), (k) where each cluster lies in `order`
    std::span<std::uint8_t> side;         ///< (n)

    static limit_memory take(carver& c, std::size_t n, std::size_t dim, std::size_t k) noexcept {
        return {halve_memory::take(c, n, dim), c.take<std::uint32_t>(n), c.take<std::uint32_t>(k + 1),
                c.take<std::uint32_t>(k), c.take<std::uint8_t>(n)};
    }
};

} // namespace detail

/// The most clusters that limit_size makes of `clusters` over n points: a cluster that is divided falls into
/// pieces of at least half the limit on average.
[[nodiscard]] constexpr std::size_t limited_clusters(std::size_t n, std::size_t clusters,
                                                     std::size_t max_entries) noexcept {
    return clusters + 2 * n / max_entries;
}

/// Bytes of scratch that kmeans, order_alike and limit_size need for n points and k clusters, one after the other.
[[nodiscard]] inline std::size_t kmeans_scratch_bytes(std::size_t n, std::size_t dim,
                                                      std::size_t k) noexcept {
    carver group, order, limit;
    static_cast<void>(detail::kmeans_memory::take(group, n, dim, k));
    static_cast<void>(detail::order_memory::take(order, dim, k));
    static_cast<void>(detail::limit_memory::take(limit, n, dim, k));
    return std::max({group.used(), order.used(), limit.used()});
}

/// Halves clusters until none has more than `max_entries` points. Relabels: clusters keep their order, empty
/// ones are left out, what a cluster fell into stays together. Returns how many there are; every one has a point.
template <class Arch = simd::default_arch, element E>
std::uint32_t limit_size(rows_view<E> points, std::uint32_t clusters, std::uint32_t max_entries,
                         std::span<std::byte> scratch, std::uint32_t* labels) noexcept {
    const std::size_t n = points.count;
    assert(clusters >= 1 && max_entries >= 1);
    carver carve(scratch);
    const auto m =
        detail::limit_memory::take(carve, n, points.dim, limited_clusters(n, clusters, max_entries));
    assert(carve.used() <= scratch.size());
    detail::group_by_label(labels, n, clusters, m.begin.data(), m.order.data());
    for (std::uint32_t c = 0; c < clusters; ++c) m.size[c] = m.begin[c + 1] - m.begin[c];

    for (std::uint32_t c = 0; c < clusters; ++c)
        while (m.size[c] > max_entries) {
            const std::size_t size = m.size[c];
            const auto members = m.order.subspan(m.begin[c], size);
            // Two pieces if they can be small enough. Otherwise no crumbs: they would cost clusters, and
            // time.
            const bool last = size <= 2 * std::size_t{max_entries};
            const std::size_t min_side = last ? 1 : std::max<std::size_t>((max_entries + 1) / 2, size / 8);
            const std::size_t ones =
                detail::halve_set<Arch>(detail::row_set<E>{points, members}, min_side,
                                        last ? max_entries : size, m.halve, m.side.data());
            std::size_t place[2] = {0, size - ones};
            for (std::size_t i = 0; i < size; ++i) m.halve.sorted[place[m.side[i]]++] = members[i];
            std::copy_n(m.halve.sorted.begin(), size, members.begin());
            m.size[c] = static_cast<std::uint32_t>(size - ones);
            m.begin[clusters] = m.begin[c] + m.size[c];
            m.size[clusters] = static_cast<std::uint32_t>(ones);
            ++clusters;
        }
    std::uint32_t used = 0;
    const auto by_place = m.halve.sorted; // clusters with points, as these lie in `order`
    for (std::uint32_t c = 0; c < clusters; ++c)
        if (m.size[c] != 0) by_place[used++] = c;
    std::sort(by_place.begin(), by_place.begin() + used,
              [&](std::uint32_t a, std::uint32_t b) { return m.begin[a] < m.begin[b]; });
    for (std::uint32_t i = 0; i < used; ++i) {
        const std::uint32_t c = by_place[i];
        for (std::uint32_t j = 0; j < m.size[c]; ++j) labels[m.order[m.begin[c] + j]] = i;
    }
    return used;
}

#ifdef KVTL_INSTANCE
#define KVTL_KMEANS(E)                                                                                       \
    KVTL_INSTANCE kmeans_result kmeans<simd::default_arch, E>(rows_view<E>, std::uint32_t,                   \
                                                              const kmeans_config&, std::span<std::byte>,    \
                                                              float*, std::uint32_t*) noexcept;              \
    KVTL_INSTANCE std::uint32_t limit_size<simd::default_arch, E>(                                           \
        rows_view<E>, std::uint32_t, std::uint32_t, std::span<std::byte>, std::uint32_t*) noexcept;
KVTL_KMEANS(float)
KVTL_KMEANS(f16)
KVTL_KMEANS(bf16)
#undef KVTL_KMEANS
KVTL_INSTANCE void order_alike<simd::default_arch>(rows_view<float>, std::size_t, std::span<std::byte>,
                                                   std::uint32_t*) noexcept;
#endif

}} // namespace kvtl::v0
