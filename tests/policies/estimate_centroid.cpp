// centroid_estimate and centroid_estimate_spread: one pseudo-entry per unit that a query did not attend, with
// the weight of all its entries. SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/policies/estimate_centroid.hpp>
#include <kvtl/presets/estimate.hpp>

#include "contracts/estimator.hpp"
#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/recording_io.hpp"

#include <numeric>

namespace estimate_centroid_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::estimator_suite;

namespace {

/// The unit's mean key and value.
constexpr auto first_order = [](const auto& x, std::uint32_t head, std::uint32_t g,
                                std::uint32_t u) -> std::optional<stand_in> {
    return stand_in{x.mean_logit(head, g, u), x.value_of(head, u)};
};
/// And what the spread of the keys adds to the mean of exp(logit), and to the values.
constexpr auto with_moments = [](const auto& x, std::uint32_t head, std::uint32_t g,
                                 std::uint32_t u) -> std::optional<stand_in> {
    // Units have the lane's shape, and a size of their own (policies/support/spread_gain.hpp).
    const auto n = static_cast<double>(x.key[u].size());
    double along = 0, all = 0, m2 = 0;
    for (std::uint32_t d = 0; d < x.width; ++d) {
        all += static_cast<double>(x.spread[d]);
        const double mean = x.mean_key[std::size_t{u} * x.width + d];
        for (const auto& k : x.key[u]) m2 += std::pow(static_cast<double>(k[d]) - mean, 2);
    }
    for (std::uint32_t d = 0; d < x.shape.dim; ++d)
        along += std::pow(static_cast<double>(x.query(head, g)[d]), 2) *
                 static_cast<double>(x.spread[std::size_t{head} * x.shape.dim + d]);
    const double sigma = all > 0 ? x.scale() * std::sqrt(along / all * m2 / n) : 0.0,
                 bend = std::sqrt(std::log(n));
    const double square = std::min(sigma, bend);
    const double gain = square * square / 2 + std::sqrt(1 + 2 * (sigma - square)) - 1;
    return stand_in{x.mean_logit(head, g, u) + gain, x.value_of(head, u),
                    m2 / n * (sigma > bend ? bend / sigma : 1.0)};
};
/// Without the value correction.
constexpr auto second_order = [](const auto& x, std::uint32_t head, std::uint32_t g,
                                 std::uint32_t u) -> std::optional<stand_in> {
    auto one = with_moments(x, head, g, u);
    one->tilt = 0;
    return one;
};

} // namespace

TEST_CASE("centroid_estimate") {
    estimator_contract<centroid_estimate>(first_order);
}

TEST_CASE("centroid_estimate_spread") {
    estimator_contract<centroid_estimate_spread>(second_order);
}

TEST_CASE("moment_estimate") {
    estimator_contract<moment_estimate>(with_moments, 1e-3);
}

TEST_CASE("the value correction brings estimates closer to what reading would have given") {
    // Values that follow their keys: what a unit's mean value leaves out is the same direction everywhere.
    const auto error = []<class P>(P*) {
        double sum = 0;
        for (const std::uint32_t units : {30U, 60U}) {
            lane_of_units<P> x({2, 64, units, 1, 0.7}, false, {.bits = 16}, false, 1.0);
            auto all = x;
            std::fill(all.attended.begin(), all.attended.end(), ~std::uint64_t{0});
            const auto truth = all.expected(0, first_order);
            const auto out = x.output(0);
            for (std::size_t i = 0; i < truth.size(); ++i)
                sum += std::pow(static_cast<double>(out[i]) - truth[i], 2);
        }
        return sum;
    };
    const double without = error(static_cast<centroid_estimate_spread*>(nullptr)),
                 with = error(static_cast<moment_estimate*>(nullptr));
    MESSAGE("squared error without " << without << ", with the correction " << with);
    CHECK(with < 0.25 * without);
}

TEST_CASE("the price of a unit is the error that its formula says") {
    lane_of_units<moment_estimate> x({3, 64, 70}, false);
    const std::uint32_t units = x.shape.units, group = x.shape.group;
    std::vector<float> memory(partial_floats(group, 64)), out(units, 0.0F);
    const partial kept = partial_at(memory.data(), group, 64);
    reset(kept);
    for (std::uint32_t g = 0; g < group; ++g) kept.max[g] = 1.0F + static_cast<float>(g), kept.sum[g] = 2.5F;
    const rows_view<float> means{x.mean.data(), units, 64, 64};
    units_view view{x.record.data(), units, unit_means(means), 64, 40};
    view.summary = x.summary();
    view.spread = x.spread;
    std::vector<float> own(x.policy.scratch_floats(x.sizes, units));
    x.policy.price({x.q.data(), group, static_cast<float>(x.scale()), view, x.attended, own, {}}, kept, out);
    // By definition. Values are those that were gathered: all but the first of each unit.
    double n = 0, squares = 0;
    std::vector<double> mean(64);
    for (std::uint32_t u = 0; u < units; ++u)
        for (std::size_t i = 1; i < x.value[u].size(); ++i, n += 1)
            for (std::uint32_t d = 0; d < 64; ++d) {
                squares += std::pow(static_cast<double>(x.value[u][i][d]), 2);
                mean[d] += static_cast<double>(x.value[u][i][d]);
            }
    double variance = squares / n;
    for (const double m : mean) variance -= m / n * (m / n);
    std::vector<double> expected(units);
    for (std::uint32_t g = 0; g < group; ++g) {
        double along = 0, all_squares = 0;
        for (std::uint32_t d = 0; d < 64; ++d) {
            along += std::pow(static_cast<double>(x.query(0, g)[d]), 2) * static_cast<double>(x.spread[d]);
            all_squares += static_cast<double>(x.spread[d]);
        }
        const auto sigma = [&](std::uint32_t u) {
            return x.scale() *
                   std::sqrt(along / all_squares * static_cast<double>(x.record[u].m2) / x.record[u].entries);
        };
        double all = 2.5 * std::exp(1.0 + g);
        for (std::uint32_t u = 0; u < units; ++u)
            all += x.record[u].entries * std::exp(second_order(x, 0, g, u)->logit);
        for (std::uint32_t u = 0; u < units; ++u) {
            const double bend = std::sqrt(std::log(static_cast<double>(x.record[u].entries))),
                         wide = 2 * 1.5 * sigma(u), square = std::min(wide, bend);
            const double gain = square * (wide - square / 2) / 2;
            expected[u] += variance * std::exp(2 * (x.mean_logit(0, g, u) + gain)) / (all * all) *
                           (1 - std::exp(-sigma(u) * sigma(u)));
        }
    }
    for (std::uint32_t u = 0; u < units; ++u)
        CHECK(static_cast<double>(out[u]) == doctest::Approx(expected[u]).epsilon(1e-3));
}

TEST_CASE_TEMPLATE("units of equal entries are estimated exactly", P, centroid_estimate,
                   centroid_estimate_spread) {
    for (const shape_of_test s : {shape_of_test{}, shape_of_test{4, 80, 7}, shape_of_test{1, 128, 64}}) {
        lane_of_units<P> x(s, true, {.bits = 16});
        std::vector<double> read;
        for (const bool some : {false, true}) {
            if (some) attend_some(x);
            auto all = x; // the same lane with every entry read
            std::fill(all.attended.begin(), all.attended.end(), ~std::uint64_t{0});
            read = all.expected(0, first_order);
            CHECK(largest_difference(x.output(0), read) < 5e-6);
        }
    }
}

TEST_CASE("a share or a number of bits that cannot be is refused") {
    const auto opened = [](centroid_estimate_spread::config estimator) {
        kv_manager<presets::dynakv_estimate>::config c;
        c.shape = {1, 2, 1, 64};
        c.max_tokens = 400;
        c.memory_bytes = std::size_t{4} << 20;
        c.estimator = estimator;
        const auto least = kv_manager<presets::dynakv_estimate>::least_memory(c);
        return least.ok() ? std::string() : least.error().message;
    };
    CHECK(opened({}).empty());
    CHECK(opened({.share = 0.0F, .bits = 16}).empty());
    CHECK(opened({.share = 1.5F}) == "estimator.share is 1.5; valid: 0 to 1");
    CHECK(opened({.share = std::nanf("")}).find("; valid: 0 to 1") != std::string::npos);
    CHECK(opened({.bits = 4}) == "estimator.bits is 4; valid: 8 and 16");
}

TEST_CASE("a unit that grows between others keeps its mean value") {
    lane_of_units<centroid_estimate> x({2, 64, 50, 2}, false);
    double worst = 0;
    for (std::uint32_t u = 0; u < 50; ++u)
        for (std::uint32_t d = 0; d < 128; ++d) {
            double mean = 0;
            for (const auto& v : x.value[u])
                mean += static_cast<double>(v[d]) / static_cast<double>(x.value[u].size());
            worst = std::max(worst, std::fabs(mean - x.kept_value(u, d)) / x.half_step(u, d / 64));
        }
    CHECK(worst < 2.01); // rounded, and half-way gone on with what was rounded
    CHECK(worst > 0);
}

TEST_CASE("the spread brings estimates closer to what reading would have given") {
    double plain = 0, with_spread = 0;
    for (const std::uint32_t units : {30U, 60U, 90U}) {
        lane_of_units<centroid_estimate> a({4, 64, units}, false);
        lane_of_units<centroid_estimate_spread> b({4, 64, units}, false);
        auto all = a;
        std::fill(all.attended.begin(), all.attended.end(), ~std::uint64_t{0});
        const auto truth = all.expected(0, first_order);
        const auto x = a.output(0), y = b.output(0);
        for (std::size_t i = 0; i < truth.size(); ++i) {
            plain += std::pow(static_cast<double>(x[i]) - truth[i], 2);
            with_spread += std::pow(static_cast<double>(y[i]) - truth[i], 2);
        }
    }
    CHECK(with_spread < 0.7 * plain);
}

TEST_CASE("with a share only the best of the units that were not attended are estimated") {
    for (const float share : {0.0F, 0.1F, 0.5F}) {
        CAPTURE(share);
        lane_of_units<centroid_estimate> x({2, 64, 60}, false, {.share = share});
        for (std::uint32_t u = 0; u < 60; u += 4) x.attended[u] = 0b11;
        std::vector<double> score(60);
        std::vector<std::uint32_t> order;
        for (std::uint32_t u = 0; u < 60; ++u) {
            for (std::uint32_t g = 0; g < 2; ++g) score[u] += x.dot(&x.q[g * 64], &x.mean[u * 64]);
            if (u % 4 != 0) order.push_back(u);
        }
        std::sort(order.begin(), order.end(), [&](auto a, auto b) { return score[a] > score[b]; });
        order.resize(std::min(order.size(), static_cast<std::size_t>(std::lround(share * 60))));
        const auto best = [&](std::uint32_t u) {
            return std::find(order.begin(), order.end(), u) != order.end();
        };
        CHECK(largest_difference(x.output(0), x.expected(0, [&](const auto& l, auto h, auto g, auto u) {
                  return best(u) ? first_order(l, h, g, u) : std::nullopt;
              })) < 2e-5);
    }
}

namespace {
struct recorded : presets::dynakv_estimate {
    using compressor = raw<float>;
    using io = recording;
};
} // namespace

TEST_CASE("after splits and appends the mean values are those of the units' entries") {
    const shape one_head{1, 2, 1, 64};
    const drift data(one_head, 1400, 9, {.numbered = true});
    const auto log = std::make_shared<io_log>();
    using cache_type = kv_manager<recorded>;
    cache_type::config c;
    c.shape = one_head;
    c.max_tokens = 1400;
    c.attend_tokens = 160;
    c.memory_bytes = std::size_t{4} << 20;
    c.io.log = log;
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(400, 150);
    one.decode(950);
    REQUIRE(cache.stats().splits > 10);
    const lane_content lane = look_at(cache, *log, data, 0, 0);
    REQUIRE(lane.complete());
    const auto block = kvtl::shard_access::of(cache, 0).store().at(0);
    const summary_view kept = block.estimator_summary({1, 2, 64, 32}, 0, 0);
    double worst = 0;
    for (std::uint32_t u = 0; u < lane.units.size(); ++u)
        for (std::uint32_t d = 1; d < 64; ++d) { // number 0 of a value is its token
            double mean = 0;
            for (const std::uint32_t t : lane.units[u])
                mean +=
                    static_cast<double>(data.value(0, t, 0)[d]) / static_cast<double>(lane.units[u].size());
            float scale = 0; // codes of a head, then their scale
            std::memcpy(&scale, kept.of<std::byte>(u) + 64, sizeof scale);
            const double got = static_cast<double>(scale) * kept.of<std::int8_t>(u)[d];
            worst = std::max(worst, std::fabs(mean - got) / static_cast<double>(scale));
        }
    CHECK(worst <
          1.01); // half a code from rounding, half a code from a page that was begun on the rounded mean
}

} // namespace estimate_centroid_test
