// Episodes of a conversation: the groups, medoids and nearest episode that their definitions give, in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/store/episodes.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace episodes_test {

namespace {
constexpr std::size_t width = 24, topics = 5, windows = 60;

/// Windows about topics, of any length: a direction for each topic, and noise. Window i has topic i * 7 % 5.
std::vector<float> conversation(std::uint64_t seed, float noise) {
    const auto means = oracle::normal_values(topics * width, seed);
    auto rows = oracle::normal_values(windows * width, seed + 1);
    for (std::size_t i = 0; i < windows; ++i)
        for (std::size_t d = 0; d < width; ++d)
            rows[i * width + d] = (means[i * 7 % topics * width + d] + noise * rows[i * width + d]) *
                                  static_cast<float>(1 + i % 4);
    return rows;
}
std::vector<double> direction(const float* x) {
    std::vector<double> unit(x, x + width);
    double square = 0;
    for (const double v : unit) square += v * v;
    for (double& v : unit) v /= std::sqrt(square);
    return unit;
}
double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t d = 0; d < width; ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
    return sum;
}
/// The mean direction of the windows of an episode.
std::vector<double> mean_of(const std::vector<float>& rows, const kvtl::episodes& e, std::size_t episode) {
    std::vector<double> mean(width, 0.0);
    double n = 0;
    for (std::size_t i = 0; i < windows; ++i) {
        if (e.labels()[i] != episode) continue;
        const auto unit = direction(&rows[i * width]);
        for (std::size_t d = 0; d < width; ++d) mean[d] += unit[d];
        ++n;
    }
    for (double& m : mean) m /= n;
    return mean;
}
std::string message(const auto& r) {
    return r ? std::string("accepted") : r.error().message;
}
} // namespace

TEST_CASE("episodes: topics that differ are told apart, and medoids are the windows nearest to the mean") {
    const auto rows = conversation(81, 0.3F);
    const auto found = kvtl::episodes::cluster(rows, width, {.episodes = topics, .medoids = 3});
    REQUIRE_MESSAGE(found.ok(), message(found));
    REQUIRE(found->size() == topics);
    for (std::size_t i = 0; i < windows; ++i)
        for (std::size_t j = 0; j < i; ++j)
            CHECK((found->labels()[i] == found->labels()[j]) == (i * 7 % topics == j * 7 % topics));
    for (std::size_t e = 0; e < topics; ++e) {
        const auto mean = mean_of(rows, *found, e);
        std::vector<std::uint32_t> order;
        for (std::uint32_t i = 0; i < windows; ++i)
            if (found->labels()[i] == e) order.push_back(i);
        REQUIRE(order.size() == windows / topics);
        std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
            return distance(direction(&rows[a * width]), mean) < distance(direction(&rows[b * width]), mean);
        });
        order.resize(3);
        std::sort(order.begin(), order.end());
        CHECK(*found->medoids(e) == order);
        // A question about the topic of the episode, of any length.
        const auto question = conversation(81, 0.5F);
        CHECK(*found->nearest(std::span(question).subspan(order[0] * width, width)) == e);
    }
    const auto all = kvtl::episodes::cluster(rows, width, {.episodes = topics, .medoids = 100});
    CHECK(all->medoids(0)->size() == windows / topics);
}

TEST_CASE("episodes: no window is nearer to another mean, and equal input gives equal episodes") {
    const auto rows = conversation(83, 2.0F); // topics that overlap
    const kvtl::episodes_config c{.episodes = 4, .seed = 7};
    const auto found = kvtl::episodes::cluster(rows, width, c),
               again = kvtl::episodes::cluster(rows, width, c);
    CHECK(std::equal(found->labels().begin(), found->labels().end(), again->labels().begin()));
    double inertia = 0;
    for (std::size_t i = 0; i < windows; ++i) {
        std::vector<double> far;
        for (std::size_t e = 0; e < 4; ++e)
            far.push_back(distance(direction(&rows[i * width]), mean_of(rows, *found, e)));
        CHECK(far[found->labels()[i]] <= *std::min_element(far.begin(), far.end()) + 1e-5);
        inertia += far[found->labels()[i]];
        CHECK(*found->nearest(std::span(rows).subspan(i * width, width)) == found->labels()[i]);
    }
    // The best of several starts is no worse than the first.
    const auto one = kvtl::episodes::cluster(rows, width, {.episodes = 4, .starts = 1, .seed = 7});
    double first = 0;
    for (std::size_t i = 0; i < windows; ++i)
        first += distance(direction(&rows[i * width]), mean_of(rows, *one, one->labels()[i]));
    CHECK(inertia <= first + 1e-4);
    const auto single = kvtl::episodes::cluster(rows, width, {.episodes = 1});
    CHECK(std::set<std::uint32_t>(single->labels().begin(), single->labels().end()).size() == 1);
}

TEST_CASE("episodes: bad input gets one clear sentence") {
    auto rows = conversation(85, 0.3F);
    CHECK(message(kvtl::episodes::cluster(std::span(rows).first(100), width)) ==
          "episodes: embeddings has 100 numbers; valid: a positive multiple of width = 24");
    CHECK(message(kvtl::episodes::cluster(rows, 0)).find("width = 0") != std::string::npos);
    CHECK(message(kvtl::episodes::cluster(std::span(rows).first(3 * width), width)) ==
          "episodes: episodes is 4; valid: 1 to 3, the number of windows");
    CHECK(message(kvtl::episodes::cluster(rows, width, {.medoids = 0})) ==
          "episodes: medoids is 0 and starts is 10; valid: 1 or more");
    const auto found = kvtl::episodes::cluster(rows, width);
    CHECK(message(found->medoids(4)) == "medoids: episode is 4; valid: 0 to 3");
    CHECK(message(found->nearest(std::span(rows).first(23))) ==
          "nearest: embedding has 23 numbers; valid: 24");
    rows[5] = std::numeric_limits<float>::quiet_NaN();
    CHECK(message(found->nearest(std::span(rows).first(width))) ==
          "nearest: embedding holds a number that is not finite");
    CHECK(message(kvtl::episodes::cluster(rows, width)) ==
          "episodes: embeddings holds a number that is not finite");
}

} // namespace episodes_test
