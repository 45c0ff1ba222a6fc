// Estimates against double precision: one pseudo-entry per unit that a query did not attend, with the weight
// of all its entries.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/remain_mean_value.hpp>
#include <kvtl/presets/estimate.hpp>

#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/recording_io.hpp"

#include <numeric>

using namespace kvtl_test;
using namespace kvtl;

namespace {

using any_model = geometry<shape{}>;

struct shape_of_test {
    std::uint32_t group = 2, dim = 64, units = 33, heads = 1;
};

/// A lane of units with known entries, and everything that a remainder is shown of it.
template <class Policy> struct lane_of_units {
    using state = typename Policy::template state<any_model>;
    using row = std::vector<float>;

    /// `equal`: all entries of a unit have one key and one value (that f16 can hold).
    lane_of_units(shape_of_test s, bool equal, typename Policy::config config = {})
        : shape(s), policy(config, *any_model::from({1, s.group * s.heads, s.heads, s.dim})),
          width(s.heads * s.dim), sizes{s.heads, s.group, s.dim, 40}, record(s.units), key(s.units),
          value(s.units), mean(std::size_t{s.units} * width), attended(s.units, 0) {
        oracle::generator random(s.units * 100 + s.dim + s.group);
        const auto draw = [&](double scale) { return static_cast<float>(scale * random.normal()); };
        q.resize(std::size_t{s.heads} * s.group * s.dim);
        for (float& x : q) x = draw(1.5);
        for (std::uint32_t u = 0; u < s.units; ++u) {
            record[u].entries = static_cast<std::uint32_t>(1 + random.below(40));
            row centre(width), same(width);
            for (float& x : centre) x = to_float(from_float<f16>(draw(1)));
            for (float& x : same) x = to_float(from_float<f16>(draw(1)));
            for (std::uint32_t i = 0; i < record[u].entries; ++i) {
                row k = centre, v = same;
                if (!equal)
                    for (std::uint32_t d = 0; d < width; ++d)
                        k[d] += draw(u % 2 == 0 ? 0.1 : 0.8), v[d] += draw(0.4);
                key[u].push_back(k), value[u].push_back(v);
            }
            float m2 = 0;
            for (std::uint32_t i = 0; i < record[u].entries; ++i)
                simd::absorb(key[u][i].data(), width, i, &mean[std::size_t{u} * width], m2);
            record[u].m2 = m2;
        }
        lane_bytes.resize(policy.lane_bytes(sizes) / sizeof(line) + 1);
        unit_bytes.resize(policy.unit_bytes(sizes) * s.units / sizeof(line) + 1);
        // Units grow in turn, as in decode.
        for (std::uint32_t u = 0; u < s.units; ++u) policy.clear(summary(), u);
        for (std::uint32_t i = 0; i < 40; ++i)
            for (std::uint32_t u = 0; u < s.units; ++u)
                if (i < record[u].entries)
                    policy.absorb(summary(), u, i, key[u][i].data(), value[u][i].data());
    }

    [[nodiscard]] summary_view summary() {
        return {reinterpret_cast<std::byte*>(lane_bytes.data()),
                reinterpret_cast<std::byte*>(unit_bytes.data()), policy.unit_bytes(sizes), sizes};
    }
    /// Query g of `head` attends unit u exactly.
    [[nodiscard]] bool sees(std::uint32_t head, std::uint32_t g, std::uint32_t u) const {
        return (attended[u] >> (head * shape.group + g) & 1) != 0;
    }
    [[nodiscard]] double scale() const { return 1.0 / std::sqrt(static_cast<double>(shape.dim)); }

    /// What was attended, then the policy's estimate: the output of every query of a head, and its state.
    [[nodiscard]] std::vector<float> output(std::uint32_t head, std::vector<float>* state_before = nullptr,
                                            std::vector<float>* state_after = nullptr) {
        std::vector<float> memory(partial_floats(shape.group, shape.dim)),
            scratch(simd::attend_scratch_floats(shape.group));
        const partial p = partial_at(memory.data(), shape.group, shape.dim);
        reset(p);
        const float* queries = &q[std::size_t{head} * shape.group * shape.dim];
        for (std::uint32_t u = 0; u < shape.units; ++u)
            for (std::size_t i = 0; i < key[u].size(); ++i) {
                const rows_view<float> k{&key[u][i][head * shape.dim], 1, shape.dim, shape.dim},
                    v{&value[u][i][head * shape.dim], 1, shape.dim, shape.dim};
                simd::attend_rows(queries, shape.dim, static_cast<float>(scale()), k, v, nullptr, p, scratch,
                                  attended[u] >> (head * shape.group));
            }
        if (state_before != nullptr) *state_before = memory;
        units_view units{record.data(), shape.units, mean.data() + head * shape.dim, shape.dim, width, 40};
        units.summary = summary();
        units.head = head;
        std::vector<float> own(policy.scratch_floats(sizes, shape.units) + 8, 77.0F);
        policy.add({queries, shape.group, static_cast<float>(scale()), units, attended,
                    std::span(own).first(own.size() - 8), scratch},
                   p);
        CHECK(std::all_of(own.end() - 8, own.end(), [](float x) { return x == 77.0F; }));
        if (state_after != nullptr) *state_after = memory;
        std::vector<float> out(std::size_t{shape.group} * shape.dim);
        finish(p, out.data(), shape.dim);
        return out;
    }

    /// The mean value as it is kept: other tests say how close that is to the mean.
    [[nodiscard]] double kept_value(std::uint32_t u, std::size_t d) const {
        const auto* kept = reinterpret_cast<const f16*>(
            reinterpret_cast<const std::byte*>(unit_bytes.data()) + u * policy.unit_bytes(sizes));
        return static_cast<double>(to_float(kept[d]));
    }
    [[nodiscard]] double dot(const float* a, const float* b) const { return oracle::dot(a, b, shape.dim); }

    /// The definition, in double precision. `estimated(u)`: the unit may be estimated at all.
    template <class Estimated>
    [[nodiscard]] std::vector<double> expected(std::uint32_t head, bool spread, bool pooled,
                                               const Estimated& estimated) const {
        std::vector<double> out(std::size_t{shape.group} * shape.dim), everything(shape.dim);
        double total = 0;
        const std::size_t at = std::size_t{head} * shape.dim;
        std::vector<std::vector<double>> k(shape.units), v(shape.units);
        for (std::uint32_t u = 0; u < shape.units; ++u) {
            k[u].resize(shape.dim), v[u].resize(shape.dim);
            const auto n = static_cast<double>(key[u].size());
            for (std::uint32_t d = 0; d < shape.dim; ++d) {
                for (const row& entry : key[u]) k[u][d] += static_cast<double>(entry[at + d]) / n;
                v[u][d] = kept_value(u, at + d);
                everything[d] += n * v[u][d];
            }
            total += static_cast<double>(key[u].size());
        }
        for (double& x : everything) x /= total;
        for (std::uint32_t g = 0; g < shape.group; ++g) {
            const float* query = &q[(std::size_t{head} * shape.group + g) * shape.dim];
            double sum = 0;
            std::vector<double> acc(shape.dim);
            for (std::uint32_t u = 0; u < shape.units; ++u) {
                const auto n = static_cast<double>(key[u].size());
                if (sees(head, g, u)) {
                    for (std::size_t i = 0; i < key[u].size(); ++i) {
                        const double w = std::exp(scale() * dot(query, &key[u][i][at]));
                        sum += w;
                        for (std::uint32_t d = 0; d < shape.dim; ++d)
                            acc[d] += w * static_cast<double>(value[u][i][at + d]);
                    }
                } else if (estimated(u)) {
                    double logit = 0;
                    for (std::uint32_t d = 0; d < shape.dim; ++d)
                        logit += static_cast<double>(query[d]) * k[u][d];
                    logit *= scale();
                    if (spread) {
                        const double variance = scale() * scale() * dot(query, query) *
                                                static_cast<double>(record[u].m2) / (n * shape.dim);
                        logit += variance <= std::log(n)
                                     ? variance / 2
                                     : std::sqrt(variance * std::log(n)) - std::log(n) / 2;
                    }
                    const double w = n * std::exp(logit);
                    sum += w;
                    for (std::uint32_t d = 0; d < shape.dim; ++d)
                        acc[d] += w * (pooled ? everything[d] : v[u][d]);
                }
            }
            for (std::uint32_t d = 0; d < shape.dim; ++d) out[g * shape.dim + d] = acc[d] / sum;
        }
        return out;
    }

    struct alignas(64) line {
        std::byte bytes[64];
    };
    shape_of_test shape;
    state policy;
    std::uint32_t width;
    summary_shape sizes;
    std::vector<unit_record> record;
    std::vector<std::vector<row>> key, value;
    std::vector<float> mean;
    std::vector<std::uint64_t> attended;
    std::vector<float> q;
    std::vector<line> lane_bytes, unit_bytes;
};

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
    return worst;
}

constexpr auto every_unit = [](std::uint32_t) { return true; };

/// Each query attends its own third of the units.
template <class Lane> void attend_some(Lane& x) {
    oracle::generator random(5);
    for (std::uint64_t& mask : x.attended)
        for (std::uint32_t bit = 0; bit < x.shape.heads * x.shape.group; ++bit)
            if (random.below(3) == 0) mask |= std::uint64_t{1} << bit;
}

} // namespace

TEST_CASE_TEMPLATE("units of equal entries are estimated exactly", P, centroid_estimate,
                   centroid_estimate_spread) {
    for (const shape_of_test s : {shape_of_test{}, shape_of_test{4, 80, 7}, shape_of_test{1, 128, 64}}) {
        lane_of_units<P> x(s, true);
        std::vector<double> read;
        for (const bool some : {false, true}) {
            if (some) attend_some(x);
            auto all = x; // the same lane with every entry read
            std::fill(all.attended.begin(), all.attended.end(), ~std::uint64_t{0});
            read = all.expected(0, false, false, every_unit);
            CHECK(largest_difference(x.output(0), read) < 5e-6);
        }
    }
}

TEST_CASE_TEMPLATE("nothing is added where everything was attended", P, centroid_estimate,
                   centroid_estimate_spread, mean_value) {
    lane_of_units<P> x({3, 64, 40}, false);
    std::fill(x.attended.begin(), x.attended.end(), std::uint64_t{0b111});
    std::vector<float> before, after;
    static_cast<void>(x.output(0, &before, &after));
    CHECK(same_bits(before, after));
}

TEST_CASE_TEMPLATE("counts, masks and groups against the definition", P, centroid_estimate,
                   centroid_estimate_spread, mean_value) {
    constexpr bool spread = std::is_same_v<P, centroid_estimate_spread>,
                   pooled = std::is_same_v<P, mean_value>;
    for (const std::uint32_t group : {1U, 2U, 4U, 7U})
        for (const std::uint32_t units : {1U, 31U, 32U, 33U, 100U})
            for (const std::uint32_t heads : {1U, 2U}) {
                CAPTURE(group);
                CAPTURE(units);
                CAPTURE(heads);
                lane_of_units<P> x({group, units % 2 == 0 ? 80U : 64U, units, heads}, false);
                for (const bool some : {false, true}) {
                    if (some) attend_some(x);
                    for (std::uint32_t h = 0; h < heads; ++h)
                        CHECK(largest_difference(x.output(h), x.expected(h, spread, pooled, every_unit)) <
                              2e-5);
                }
            }
}

TEST_CASE("a unit that grows between others keeps its mean value") {
    lane_of_units<centroid_estimate> x({2, 64, 50, 2}, false);
    double worst = 0;
    for (std::uint32_t u = 0; u < 50; ++u)
        for (std::uint32_t d = 0; d < 128; ++d) {
            double mean = 0;
            for (const auto& v : x.value[u])
                mean += static_cast<double>(v[d]) / static_cast<double>(x.value[u].size());
            worst = std::max(worst, std::fabs(mean - x.kept_value(u, d)));
        }
    CHECK(worst < 6e-3); // f16, rounded at each of up to 40 appends
    CHECK(worst > 0);
}

TEST_CASE("the spread brings estimates closer to what reading would have given") {
    double plain = 0, with_spread = 0;
    for (const std::uint32_t units : {30U, 60U, 90U}) {
        lane_of_units<centroid_estimate> a({4, 64, units}, false);
        lane_of_units<centroid_estimate_spread> b({4, 64, units}, false);
        auto all = a;
        std::fill(all.attended.begin(), all.attended.end(), ~std::uint64_t{0});
        const auto truth = all.expected(0, false, false, every_unit);
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
        CHECK(largest_difference(x.output(0), x.expected(0, false, false, best)) < 2e-5);
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
    using cache_type = kv_manager<recorded, any_model>;
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
    const auto block = cache.inspect(0).store().at(0);
    const summary_view kept = block.remainder_summary({1, 2, 64, 32}, 0, 0);
    double worst = 0;
    for (std::uint32_t u = 0; u < lane.units.size(); ++u)
        for (std::uint32_t d = 1; d < 64; ++d) { // number 0 of a value is its token
            double mean = 0;
            for (const std::uint32_t t : lane.units[u])
                mean +=
                    static_cast<double>(data.value(0, t, 0)[d]) / static_cast<double>(lane.units[u].size());
            worst = std::max(worst, std::fabs(mean - static_cast<double>(to_float(kept.of<f16>(u)[d]))));
        }
    CHECK(worst < 4e-3); // f16, rounded at every append
}
