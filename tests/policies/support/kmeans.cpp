// k-means against a naive one in double precision, and what clusters must always satisfy.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/kmeans.hpp>

#include "support/lending.hpp"
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <set>

namespace kmeans_test {

namespace {

/// Keys of a text that drifts: topics follow each other in bursts, their centres wander, dimensions differ in
/// scale.
template <kvtl::element E>
oracle::table<E> drifting(std::size_t n, std::size_t dim, std::size_t topics, std::uint64_t seed) {
    oracle::generator random(seed);
    std::vector<double> centre(topics * dim), scale(dim);
    for (double& x : centre) x = random.normal();
    for (double& x : scale) x = random.uniform(0.3, 1.8);
    oracle::table<E> points(n, dim, dim + 3, seed);
    std::size_t topic = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (random.uniform() < 0.1) topic = random.below(topics);
        for (std::size_t d = 0; d < dim; ++d) {
            centre[topic * dim + d] += 0.02 * random.normal();
            const double x = scale[d] * (centre[topic * dim + d] + 0.5 * random.normal());
            points.row(i)[d] = kvtl::from_float<E>(static_cast<float>(x));
        }
    }
    return points;
}

/// Squared distance of a point to a mean in double precision.
template <class E> double squared_distance(const double* mean, const E* x, std::size_t dim) {
    double sum = 0;
    for (std::size_t d = 0; d < dim; ++d)
        sum += (oracle::value(x[d]) - mean[d]) * (oracle::value(x[d]) - mean[d]);
    return sum;
}

struct clustering {
    std::vector<float> centroids;
    std::vector<std::uint32_t> labels;
    kvtl::kmeans_result result;
};

template <class E>
clustering cluster(kvtl::rows_view<E> points, std::uint32_t k, const kvtl::kmeans_config& config = {}) {
    clustering c{std::vector<float>(k * points.dim), std::vector<std::uint32_t>(points.count, 999999U), {}};
    std::vector<std::byte> scratch(kvtl::kmeans_scratch_bytes(points.count, points.dim, k) + 64,
                                   std::byte{0x7F});
    const std::size_t used = scratch.size() - 64;
    c.result =
        kvtl::kmeans(points, k, config, std::span(scratch).first(used), c.centroids.data(), c.labels.data());
    CHECK(std::all_of(scratch.begin() + std::ptrdiff_t(used), scratch.end(),
                      [](std::byte b) { return b == std::byte{0x7F}; }));
    return c;
}

std::vector<std::size_t> sizes_of(const std::vector<std::uint32_t>& labels, std::size_t k) {
    std::vector<std::size_t> size(k, 0);
    for (const std::uint32_t l : labels) ++size.at(l);
    return size;
}

/// Sum of squared distances to the means of the clusters, from the labels alone.
template <class E>
double inertia_of(kvtl::rows_view<E> points, const std::vector<std::uint32_t>& labels, std::size_t k) {
    std::vector<double> mean(k * points.dim, 0.0);
    const std::vector<std::size_t> size = sizes_of(labels, k);
    for (std::size_t i = 0; i < points.count; ++i)
        for (std::size_t d = 0; d < points.dim; ++d)
            mean[labels[i] * points.dim + d] +=
                oracle::value(points.row(i)[d]) / static_cast<double>(size[labels[i]]);
    double sum = 0;
    for (std::size_t i = 0; i < points.count; ++i)
        sum += squared_distance(mean.data() + labels[i] * points.dim, points.row(i), points.dim);
    return sum;
}

/// Lloyd's iterations as in the textbook.
template <class E>
std::vector<std::uint32_t> naive_lloyd(kvtl::rows_view<E> points, std::size_t k, std::vector<double> mean,
                                       unsigned iterations) {
    std::vector<std::uint32_t> label(points.count);
    for (unsigned round = 0; round < iterations; ++round) {
        const kvtl::rows_view<double> centroids{mean.data(), k, points.dim, points.dim};
        std::vector<double> next(mean.size(), 0.0);
        std::vector<double> count(k, 0.0);
        for (std::size_t i = 0; i < points.count; ++i) {
            double best = std::numeric_limits<double>::infinity();
            for (std::size_t c = 0; c < k; ++c)
                if (const double d = squared_distance(centroids.row(c), points.row(i), points.dim);
                    d < best) {
                    best = d;
                    label[i] = static_cast<std::uint32_t>(c);
                }
            count[label[i]] += 1;
            for (std::size_t d = 0; d < points.dim; ++d)
                next[label[i] * points.dim + d] += oracle::value(points.row(i)[d]);
        }
        for (std::size_t c = 0; c < k; ++c) {
            REQUIRE(count[c] > 0);
            for (std::size_t d = 0; d < points.dim; ++d)
                mean[c * points.dim + d] = next[c * points.dim + d] / count[c];
        }
    }
    return label;
}

} // namespace

TEST_CASE_TEMPLATE("threads that share the work change no bit of it", E, float, kvtl::f16) {
    for (const std::size_t n : {200U, 600U, 3000U}) // too few to share, seeds or not, two levels
        for (const std::uint32_t k : {5U, 40U, 150U}) {
            kvtl::kmeans_config config;
            config.flat_up_to = 2000;
            const auto points = drifting<E>(n, 24, 12, n + k);
            const clustering alone = cluster(points.view(), k, config);
            for (const unsigned count : {2U, 3U, 8U}) {
                kvtl_test::lending pool(count);
                config.threads = pool.threads();
                const clustering together = cluster(points.view(), k, config);
                CHECK(together.labels == alone.labels);
                CHECK(together.centroids == alone.centroids);
                CHECK(together.result.inertia == alone.result.inertia);
                CHECK((pool.calls() > 0) == (n >= 512));
            }
        }
}

TEST_CASE_TEMPLATE("the labels of textbook k-means from the same seeds", E, float, kvtl::f16, kvtl::bf16) {
    for (const unsigned k : {1U, 2U, 7U, 40U}) {
        const auto points = drifting<E>(1200, 24, 12, k);
        kvtl::kmeans_config config;
        config.max_iterations = 4;
        config.min_gain = -1.0F; // never stop early: both do four
        const clustering c = cluster(points.view(), k, config);
        CHECK(c.result.iterations == 4);

        std::vector<float> seeds(k * 24), nearest(1200);
        std::vector<std::uint32_t> sample(1200);
        kvtl::detail::kmeans_seeds<kvtl::simd::default_arch>(kvtl::detail::row_set<E>{points.view(), {}}, k,
                                                             config, nearest, sample.data(), seeds.data());
        const auto expected = naive_lloyd(points.view(), k, {seeds.begin(), seeds.end()}, 4);
        CHECK(c.labels == expected);
        CHECK(c.result.inertia == doctest::Approx(inertia_of(points.view(), expected, k)).epsilon(1e-5));
    }
}

TEST_CASE("centroids are the means of their points; equal input gives equal bits; the seed matters") {
    const auto points = drifting<kvtl::f16>(3000, 64, 30, 1);
    for (const std::uint32_t flat_up_to : {8192U, 0U}) { // flat, then in two levels
        kvtl::kmeans_config config;
        config.flat_up_to = flat_up_to;
        const std::uint32_t k = 94;
        const clustering a = cluster(points.view(), k, config), b = cluster(points.view(), k, config);
        CHECK(a.labels == b.labels);
        CHECK(std::memcmp(a.centroids.data(), b.centroids.data(), a.centroids.size() * sizeof(float)) == 0);
        std::vector<double> mean(k * 64, 0.0);
        const auto size = sizes_of(a.labels, k);
        CHECK(*std::min_element(size.begin(), size.end()) >= 1);
        for (std::size_t i = 0; i < 3000; ++i)
            for (std::size_t d = 0; d < 64; ++d)
                mean[a.labels[i] * 64 + d] +=
                    oracle::value(points.view().row(i)[d]) / double(size[a.labels[i]]);
        double worst = 0;
        for (std::size_t i = 0; i < mean.size(); ++i)
            worst = std::max(worst, std::fabs(mean[i] - static_cast<double>(a.centroids[i])));
        CHECK(worst < 1e-5);
        config.seed = 2;
        CHECK(cluster(points.view(), k, config).labels != a.labels);
    }
}

TEST_CASE("the inertia never rises, and the last gains stop the iterations") {
    const auto points = drifting<float>(2000, 32, 20, 5);
    double last = std::numeric_limits<double>::infinity();
    for (std::uint32_t rounds = 1; rounds <= 12; ++rounds) {
        kvtl::kmeans_config config;
        config.max_iterations = rounds;
        config.min_gain = -1.0F;
        const clustering c = cluster(points.view(), 62, config);
        CHECK(c.result.iterations == rounds);
        CHECK(c.result.inertia <= last * (1 + 1e-6));
        CHECK(c.result.inertia == doctest::Approx(inertia_of(points.view(), c.labels, 62)).epsilon(1e-5));
        last = c.result.inertia;
    }
    kvtl::kmeans_config stop;
    stop.max_iterations = 100;
    stop.min_gain = 0.01F;
    CHECK(cluster(points.view(), 62, stop).result.iterations < 12);
}

TEST_CASE("better than cutting the prompt into stretches, far better than a random partition") {
    const auto points = drifting<kvtl::f16>(4096, 64, 25, 9);
    const std::uint32_t k = 128;
    std::vector<std::uint32_t> random_label(4096), stretch(4096);
    oracle::generator random(1);
    for (std::uint32_t i = 0; i < 4096; ++i) {
        random_label[i] = static_cast<std::uint32_t>(random.below(k));
        stretch[i] = i / 32;
    }
    const double inertia = cluster(points.view(), k).result.inertia;
    CHECK(inertia < 0.5 * inertia_of(points.view(), random_label, k));
    CHECK(inertia < 0.8 * inertia_of(points.view(), stretch, k));
}

TEST_CASE("two levels stay within 3 % of flat on a drifting mixture") {
    for (const std::size_t topics : {10U, 60U}) {
        const auto points = drifting<kvtl::f16>(9000, 64, topics, topics);
        kvtl::kmeans_config flat;
        flat.flat_up_to = 9000;
        const clustering f = cluster(points.view(), 281, flat), two = cluster(points.view(), 281);
        CHECK(two.labels != f.labels); // or the switch is broken
        CHECK(two.result.inertia < 1.03 * f.result.inertia);
        CHECK(two.result.inertia ==
              doctest::Approx(inertia_of(points.view(), two.labels, 281)).epsilon(1e-5));
    }
}

TEST_CASE("clusters whose seeds are equal go to the points that need them") {
    oracle::table<float> points(2000, 16, 16, 3,
                                0.0); // a crowd of equal points, which is all that the sample sees
    for (std::size_t i = 0; i < 8; ++i) points.row(250 * i + 8)[i] = 100.0F; // and eight lone ones
    kvtl::kmeans_config config;
    config.samples_per_centroid = 1;
    const clustering c = cluster(points.view(), 16, config);
    CHECK(c.result.inertia == 0.0);
    const auto size = sizes_of(c.labels, 16);
    for (std::size_t i = 0; i < 8; ++i) CHECK(size[c.labels[250 * i + 8]] == 1);
}

TEST_CASE("an empty cluster takes the farthest point, but never another cluster's only one") {
    const oracle::table<float> points(4, 2, 2, 1);
    std::vector<float> distance = {9.0F, 1.0F, 2.0F, 0.5F}, half_norm(3);
    std::vector<std::uint32_t> label = {0, 1, 1, 1}, count(3);
    const kvtl::detail::lloyd_memory memory{distance, count, half_norm, {}};
    kvtl::detail::fill_empty(kvtl::detail::row_set<float>{points.view(), {}}, 3, memory, label.data());
    CHECK(label == std::vector<std::uint32_t>{0, 1, 2, 1});
}

TEST_CASE("fewer different points than clusters: every point exact, surplus clusters empty") {
    oracle::table<kvtl::f16> points(300, 20, 20, 3);
    for (std::size_t i = 5; i < 300; ++i) std::copy_n(points.row(i % 5), 20, points.row(i));
    for (const std::uint32_t flat_up_to : {8192U, 0U}) {
        kvtl::kmeans_config config;
        config.flat_up_to = flat_up_to;
        const clustering c = cluster(points.view(), 40, config);
        CHECK(c.result.inertia == doctest::Approx(0.0).epsilon(1e-9));
        for (std::size_t i = 0; i < 300; ++i) CHECK(c.labels[i] == c.labels[i % 5]);
        CHECK(std::set<std::uint32_t>(c.labels.begin(), c.labels.end()).size() == 5);
    }
    CHECK(cluster(points.view().slice(0, 5), 5).result.inertia == 0.0); // k = n
}

// ------------------------------------------------------------------------------------- order_alike

namespace {
/// Mean squared distance of centroids whose numbers are next to each other.
double apart(const std::vector<float>& centroids, const std::vector<std::uint32_t>& number, std::size_t dim) {
    const std::size_t k = number.size();
    std::vector<const float*> by_number(k);
    for (std::size_t c = 0; c < k; ++c) by_number[number[c]] = &centroids[c * dim];
    double sum = 0;
    for (std::size_t i = 1; i < k; ++i)
        for (std::size_t d = 0; d < dim; ++d) {
            const double x = static_cast<double>(by_number[i][d]) - static_cast<double>(by_number[i - 1][d]);
            sum += x * x / static_cast<double>(k - 1);
        }
    return sum;
}
} // namespace

TEST_CASE("clusters are numbered so that neighbours are alike; none is lost, none mixed") {
    for (const std::uint32_t k : {1U, 2U, 3U, 37U, 128U}) {
        const auto points = drifting<kvtl::f16>(2000, 48, 12, k);
        const clustering c = cluster(points.view(), k);
        std::vector<std::uint32_t> labels = c.labels, number(k, k);
        std::vector<std::byte> scratch(kvtl::kmeans_scratch_bytes(2000, 48, k));
        kvtl::order_alike({c.centroids.data(), k, 48, 48}, 2000, scratch, labels.data());
        for (std::size_t i = 0; i < labels.size(); ++i) {
            REQUIRE(labels[i] < k);
            if (number[c.labels[i]] == k) number[c.labels[i]] = labels[i];
            REQUIRE(number[c.labels[i]] == labels[i]);
        }
        CHECK(std::set<std::uint32_t>(number.begin(), number.end()).size() == k);
        if (k < 37) continue;
        std::vector<std::uint32_t> as_they_came(k);
        std::iota(as_they_came.begin(), as_they_came.end(), 0U);
        CHECK(apart(c.centroids, number, 48) < 0.7 * apart(c.centroids, as_they_came, 48));
    }
}

TEST_CASE("clusters on a line are numbered along it, one way or the other") {
    constexpr std::uint32_t k = 32;
    std::vector<float> centroids(k * 8, 1.0F);
    std::vector<std::uint32_t> labels(k);
    for (std::uint32_t i = 0; i < k; ++i) { // 11 and 32 have no common divisor: every place is taken
        centroids[i * 8 + 3] = static_cast<float>(i * 11 % k);
        labels[i] = i;
    }
    std::vector<std::byte> scratch(kvtl::kmeans_scratch_bytes(k, 8, k));
    kvtl::order_alike({centroids.data(), k, 8, 8}, k, scratch, labels.data());
    for (std::uint32_t i = 0; i < k; ++i) {
        // Halves, quarters and so on lie together, down to pairs.
        const std::uint32_t place = i * 11 % k;
        for (std::uint32_t j = 0; j < k; ++j)
            if (labels[j] / 2 == labels[i] / 2) CHECK(j * 11 % k / 2 == place / 2);
    }
}

// -------------------------------------------------------------------------------------- limit_size

namespace {

template <class E>
std::uint32_t limit(kvtl::rows_view<E> points, std::uint32_t k, std::uint32_t max_entries,
                    std::vector<std::uint32_t>& labels) {
    const std::size_t most = kvtl::limited_clusters(points.count, k, max_entries);
    std::vector<std::byte> scratch(kvtl::kmeans_scratch_bytes(points.count, points.dim, most),
                                   std::byte{0x7F});
    const std::uint32_t used = kvtl::limit_size(points, k, max_entries, scratch, labels.data());
    CHECK(used <= most);
    const auto size = sizes_of(labels, used);
    CHECK(*std::max_element(size.begin(), size.end()) <= max_entries);
    CHECK(*std::min_element(size.begin(), size.end()) >= 1);
    return used;
}

} // namespace

TEST_CASE("clusters are cut down to the limit; those within it stay whole, empty ones go") {
    const auto points = drifting<kvtl::f16>(3000, 32, 10, 3);
    for (const std::uint32_t max_entries : {1U, 7U, 64U, 200U, 5000U}) {
        std::vector<std::uint32_t> labels = cluster(points.view(), 40).labels;
        for (std::uint32_t& l : labels) l = l * 2 + 1; // every other cluster of 81 is empty
        const std::vector<std::uint32_t> before = labels;
        const auto old_size = sizes_of(before, 81);
        const std::uint32_t used = limit(points.view(), 81, max_entries, labels);
        if (max_entries == 5000) CHECK(used == 40);
        std::set<std::pair<std::uint32_t, std::uint32_t>>
            pairs; // (new, old): no piece mixes two old clusters
        for (std::size_t i = 0; i < labels.size(); ++i) pairs.emplace(labels[i], before[i]);
        CHECK(pairs.size() == used);
        for (std::uint32_t c = 0; c < 81; ++c) {
            const auto pieces =
                std::count_if(pairs.begin(), pairs.end(), [c](const auto& p) { return p.second == c; });
            if (old_size[c] <= max_entries)
                CHECK(pieces == (old_size[c] != 0 ? 1 : 0));
            else
                CHECK(pieces <= static_cast<std::ptrdiff_t>(2 * old_size[c] / max_entries));
        }
    }
}

TEST_CASE("what a cluster fell into stays together") {
    const auto points = drifting<kvtl::f16>(1500, 32, 10, 4);
    std::vector<std::uint32_t> labels = cluster(points.view(), 30).labels;
    const std::vector<std::uint32_t> before = labels;
    const std::uint32_t used = limit(points.view(), 30, 20, labels);
    std::vector<std::uint32_t> parent(used);
    for (std::size_t i = 0; i < labels.size(); ++i) parent[labels[i]] = before[i];
    CHECK(used > 60);
    CHECK(std::is_sorted(parent.begin(), parent.end()));
}

TEST_CASE("equal points and lone outliers do not break the limit or the bound on the count") {
    oracle::table<float> points(2000, 16, 16, 3, 0.0);
    std::vector<std::uint32_t> labels(2000, 0);
    CHECK(limit(points.view(), 1, 64, labels) <= 63);
    for (std::size_t i = 0; i < 2000; i += 10)
        points.row(i)[i % 16] = std::exp(0.01F * static_cast<float>(i));
    std::fill(labels.begin(), labels.end(), 0U);
    CHECK(limit(points.view(), 1, 64, labels) <= 63);
    std::fill(labels.begin(), labels.end(), 0U);
    std::vector<std::uint32_t> again = labels;
    CHECK(limit(points.view(), 1, 33, labels) == limit(points.view(), 1, 33, again));
    CHECK(labels == again);
}

} // namespace kmeans_test
