// What every estimator promises: what it adds is its definition in double precision, for every query that did
// not attend a unit and for no other, whatever lies in scratch; nothing where everything was attended. One
// that estimates nothing (`nothing`) asks for nothing.
//
//   estimator_contract<mean_value>([](const auto& lane, head, g, u) { return stand_in{logit, value}; });
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/slots/estimator.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

namespace estimator_suite {

/// The entry that stands for each entry of a unit: its logit (the count comes on top) and its value.
struct stand_in {
    double logit = 0;
    std::vector<double> value;
    double tilt = 0; ///< what the unit's weight counts for in the lane's value correction
};

struct shape_of_test {
    std::uint32_t group = 2, dim = 64, units = 33, heads = 1;
    double query_scale = 1.5;
};

/// A lane of units with known entries, and everything that an estimator is shown of it.
template <class Policy> struct lane_of_units {
    using state = typename Policy::state;
    using row = std::vector<float>;

    /// `equal`: all entries of a unit have one key and one value (that f16 can hold). `moving`: the lane's memory moves
    /// while the units grow. `follow`: how far values go along with their keys.
    lane_of_units(shape_of_test s, bool equal, typename Policy::config config = {}, bool moving = false,
                  double follow = 0)
        : shape(s), codes(keeps_codes(config)),
          policy(config, *kvtl::geometry::from({1, s.group * s.heads, s.heads, s.dim})),
          width(s.heads * s.dim), sizes{s.heads, s.group, s.dim, 40}, record(s.units), key(s.units),
          value(s.units), mean(std::size_t{s.units} * width), attended(s.units, 0) {
        oracle::generator random(s.units * 100 + s.dim + s.group);
        const auto draw = [&](double scale) { return static_cast<float>(scale * random.normal()); };
        q.resize(std::size_t{s.heads} * s.group * s.dim);
        for (float& x : q) x = draw(s.query_scale);
        for (std::uint32_t u = 0; u < s.units; ++u) {
            record[u].entries = static_cast<std::uint32_t>(1 + random.below(40));
            row centre(width), same(width);
            for (float& x : centre) x = to_float(from_float<f16>(draw(1)));
            for (float& x : same) x = to_float(from_float<f16>(draw(1)));
            for (std::uint32_t i = 0; i < record[u].entries; ++i) {
                row k = centre, v = same;
                if (!equal)
                    for (std::uint32_t d = 0; d < width; ++d) // not as wide in all directions
                        k[d] += draw((u % 2 == 0 ? 0.1 : 0.8) * (d % 3 == 0 ? 1.5 : 0.7)),
                            v[d] +=
                            draw(follow > 0 ? 0.01 : 0.4) + static_cast<float>(follow) * (k[d] - centre[d]);
                key[u].push_back(k), value[u].push_back(v);
            }
            float m2 = 0;
            for (std::uint32_t i = 0; i < record[u].entries; ++i)
                simd::absorb(key[u][i].data(), width, i, &mean[std::size_t{u} * width], m2);
            record[u].m2 = m2;
        }
        lane_bytes.resize(policy.lane_bytes(sizes) / sizeof(line) + 1);
        unit_bytes.resize(policy.unit_bytes(sizes) * s.units / sizeof(line) + 1);
        if constexpr (requires { policy.running_bytes(sizes); })
            running_lines = policy.running_bytes(sizes) / sizeof(line) + 1;
        running.resize(running_lines * s.units);
        cross.resize(std::size_t{s.heads} * s.dim * s.dim);
        row grown(mean.size()); // mean keys of what units have so far
        // Units grow in turn, as in decode.
        for (std::uint32_t u = 0; u < s.units; ++u) policy.clear(summary(u), u);
        for (std::uint32_t i = 0; i < 40; ++i)
            for (std::uint32_t u = 0; u < s.units; ++u)
                if (i < record[u].entries) {
                    if (moving && (u + i) % 7 == 0) move();
                    if constexpr (requires { policy.resume(summary(u), u, i); })
                        if (i > 0 && i == record[u].entries / 2) policy.resume(summary(u), u, i);
                    float* const so_far = &grown[std::size_t{u} * width];
                    if constexpr (gathers_entries<Policy>)
                        if (i > 0)
                            policy.gather(summary(u), {key[u][i].data(), value[u][i].data(), so_far, i});
                    policy.absorb(summary(u), u, i, key[u][i].data(), value[u][i].data());
                    float ignored = 0;
                    simd::absorb(key[u][i].data(), width, i, so_far, ignored);
                }
        mean_key.resize(mean.size()), all_values.resize(width);
        spread.resize(width);
        double total = 0;
        for (std::uint32_t u = 0; u < s.units; ++u) total += static_cast<double>(key[u].size());
        for (std::uint32_t u = 0; u < s.units; ++u)
            for (std::uint32_t d = 0; d < width; ++d) {
                const auto n = static_cast<double>(key[u].size());
                for (const row& entry : key[u])
                    mean_key[std::size_t{u} * width + d] += static_cast<double>(entry[d]) / n;
                for (const row& entry : key[u])
                    spread[d] += static_cast<float>(
                        std::pow(static_cast<double>(entry[d]) - mean_key[std::size_t{u} * width + d], 2));
                if (keeps_values() && total > 0) all_values[d] += n / total * kept_value(u, d);
            }
        for (std::uint32_t u = 0; u < s.units; ++u)
            for (std::size_t i = 0; i < key[u].size(); ++i)
                for (std::uint32_t h = 0; h < s.heads; ++h)
                    for (std::uint32_t a = 0; a < s.dim; ++a)
                        for (std::uint32_t b = 0; b < s.dim; ++b)
                            cross[(std::size_t{h} * s.dim + a) * s.dim + b] +=
                                (static_cast<double>(key[u][i][h * s.dim + a]) -
                                 mean_key[std::size_t{u} * width + h * s.dim + a]) *
                                static_cast<double>(value[u][i][h * s.dim + b]);
    }

    /// All that is kept of the lane goes to other addresses; where it was there is nonsense.
    void move() {
        for (std::vector<line>* part : {&lane_bytes, &unit_bytes, &running}) {
            std::vector<line> elsewhere = *part;
            std::memset(part->data(), 0x5A, part->size() * sizeof(line));
            *part = std::move(elsewhere);
        }
    }
    /// The config says that mean values are signed bytes.
    [[nodiscard]] static bool keeps_codes(const typename Policy::config& config) {
        if constexpr (requires { config.bits; }) return config.bits == 8;
        static_cast<void>(config);
        return false;
    }
    /// A unit's bytes have room for mean values, as f16 or as codes.
    [[nodiscard]] bool keeps_values() const { return policy.unit_bytes(sizes) >= (codes ? 1 : 2) * width; }

    /// With the running bytes of unit u.
    [[nodiscard]] summary_view summary(std::uint32_t u = 0) {
        return {reinterpret_cast<std::byte*>(lane_bytes.data()),
                reinterpret_cast<std::byte*>(unit_bytes.data()),
                policy.unit_bytes(sizes),
                sizes,
                0,
                0,
                reinterpret_cast<std::byte*>(&running[u * running_lines])};
    }
    /// Query g of `head` attends unit u exactly.
    [[nodiscard]] bool sees(std::uint32_t head, std::uint32_t g, std::uint32_t u) const {
        return (attended[u] >> (head * shape.group + g) & 1) != 0;
    }
    [[nodiscard]] double scale() const { return 1.0 / std::sqrt(static_cast<double>(shape.dim)); }

    /// What was attended, then the policy's estimate: the output of every query of a head, and its state.
    [[nodiscard]] std::vector<float> output(std::uint32_t head, std::vector<float>* state_before = nullptr,
                                            std::vector<float>* state_after = nullptr, float garbage = 0.0F) {
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
        const rows_view<float> means{mean.data() + head * shape.dim, shape.units, shape.dim, width};
        units_view units{record.data(), shape.units, unit_means(means), shape.dim, 40};
        units.summary = summary();
        units.head = head;
        if (kvtl::needs_spread<Policy>) units.spread = spread;
        std::vector<float> own(policy.scratch_floats(sizes, shape.units) + 8, garbage);
        std::fill(own.end() - 8, own.end(), 77.0F);
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
        const std::byte* unit =
            reinterpret_cast<const std::byte*>(unit_bytes.data()) + u * policy.unit_bytes(sizes);
        if (!codes) return static_cast<double>(to_float(reinterpret_cast<const f16*>(unit)[d]));
        const std::byte* of_head = unit + d / shape.dim * (policy.unit_bytes(sizes) / shape.heads);
        return code_scale(of_head) * reinterpret_cast<const std::int8_t*>(of_head)[d % shape.dim];
    }
    /// Codes of a head, then their scale.
    [[nodiscard]] double code_scale(const std::byte* of_head) const {
        float scale = 0;
        std::memcpy(&scale, of_head + (shape.dim + 3) / 4 * 4, sizeof scale);
        return static_cast<double>(scale);
    }
    /// The largest that rounding may make of a mean value: half a step.
    [[nodiscard]] double half_step(std::uint32_t u, std::uint32_t head) const {
        const std::byte* unit =
            reinterpret_cast<const std::byte*>(unit_bytes.data()) + u * policy.unit_bytes(sizes);
        return code_scale(unit + head * (policy.unit_bytes(sizes) / shape.heads)) / 2;
    }
    [[nodiscard]] double dot(const float* a, const float* b) const { return oracle::dot(a, b, shape.dim); }

    /// (D): the mean over all entries in units of the values as they are kept.
    [[nodiscard]] std::vector<double> mean_value(std::uint32_t head) const {
        const auto first = all_values.begin() + std::ptrdiff_t{head} * shape.dim;
        return {first, first + shape.dim};
    }
    /// (D): of unit u, as it is kept.
    [[nodiscard]] std::vector<double> value_of(std::uint32_t head, std::uint32_t u) const {
        std::vector<double> v;
        for (std::uint32_t d = 0; d < shape.dim; ++d)
            v.push_back(kept_value(u, std::size_t{head} * shape.dim + d));
        return v;
    }
    /// The logit of a query for the mean key of unit u.
    [[nodiscard]] double mean_logit(std::uint32_t head, std::uint32_t g, std::uint32_t u) const {
        double logit = 0;
        for (std::uint32_t d = 0; d < shape.dim; ++d)
            logit += static_cast<double>(query(head, g)[d]) *
                     mean_key[std::size_t{u} * width + std::size_t{head} * shape.dim + d];
        return logit * scale();
    }
    [[nodiscard]] const float* query(std::uint32_t head, std::uint32_t g) const {
        return &q[(std::size_t{head} * shape.group + g) * shape.dim];
    }

    /// The output in double precision: entries that were attended, and for every other unit the entry that
    /// stands for all of its own. `stands_in(lane, head, g, u)`: what that is; a unit for which it is nothing
    /// is left out.
    template <class StandsIn>
    [[nodiscard]] std::vector<double> expected(std::uint32_t head, const StandsIn& stands_in) const {
        std::vector<double> out;
        const std::size_t at = std::size_t{head} * shape.dim;
        for (std::uint32_t g = 0; g < shape.group; ++g) {
            double sum = 0, tilt = 0, squares = 0;
            std::vector<double> acc(shape.dim);
            for (std::uint32_t u = 0; u < shape.units; ++u) {
                if (sees(head, g, u)) {
                    for (std::size_t i = 0; i < key[u].size(); ++i) {
                        const double w = std::exp(scale() * dot(query(head, g), &key[u][i][at]));
                        sum += w;
                        for (std::uint32_t d = 0; d < shape.dim; ++d)
                            acc[d] += w * static_cast<double>(value[u][i][at + d]);
                    }
                } else if (const std::optional<stand_in> one = stands_in(*this, head, g, u)) {
                    const double w = static_cast<double>(key[u].size()) * std::exp(one->logit);
                    sum += w;
                    tilt += w * one->tilt;
                    for (std::uint32_t d = 0; d < shape.dim; ++d) acc[d] += w * one->value[d];
                }
            }
            for (const float x : spread) squares += static_cast<double>(x);
            if (tilt > 0)
                for (std::uint32_t a = 0; a < shape.dim; ++a)
                    for (std::uint32_t b = 0; b < shape.dim; ++b)
                        acc[b] += tilt * scale() / squares * static_cast<double>(query(head, g)[a]) *
                                  cross[(at + a) * shape.dim + b];
            for (const double x : acc) out.push_back(x / sum);
        }
        return out;
    }

    struct alignas(64) line {
        std::byte bytes[64];
    };
    shape_of_test shape;
    bool codes; ///< mean values are
    state policy;
    std::uint32_t width;
    summary_shape sizes;
    std::vector<unit_record> record;
    std::vector<std::vector<row>> key, value;
    std::vector<float> mean;
    std::vector<double> mean_key, all_values; ///< (U, width) and (width), by definition
    std::vector<std::uint64_t> attended;
    std::vector<double> cross; ///< (heads, D, D) sum of (key - mean key of its unit) value^T
    std::vector<float> spread; ///< (width) squared distances to units' means, by dimension
    std::vector<float> q;
    std::vector<line> lane_bytes, unit_bytes, running;
    std::size_t running_lines = 1; ///< of a unit
};

inline double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
    return worst;
}

/// Each query attends its own third of the units.
template <class Lane> void attend_some(Lane& x) {
    oracle::generator random(5);
    for (std::uint64_t& mask : x.attended)
        for (std::uint32_t bit = 0; bit < x.shape.heads * x.shape.group; ++bit)
            if (random.below(3) == 0) mask |= std::uint64_t{1} << bit;
}

inline bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class P, class StandsIn> void is_its_definition(const StandsIn& stands_in, double tolerance) {
    for (const std::uint32_t group : {1U, 4U, 7U})
        for (const std::uint32_t units : {1U, 31U, 33U, 64U})
            for (const std::uint32_t heads : {1U, 2U}) {
                CAPTURE(group);
                CAPTURE(units);
                CAPTURE(heads);
                lane_of_units<P> x({group, units % 2 == 0 ? 80U : 64U, units, heads}, false);
                for (const bool some : {false, true}) {
                    if (some) attend_some(x);
                    for (std::uint32_t h = 0; h < heads; ++h)
                        CHECK(largest_difference(x.output(h), x.expected(h, stands_in)) < tolerance);
                }
            }
}

/// The same bits whatever lies in scratch and whichever head comes first.
template <class P> void remembers_nothing() {
    lane_of_units<P> x({3, 64, 70, 2}, false);
    attend_some(x);
    const auto first = x.output(0), second = x.output(1);
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(same_floats(x.output(1, nullptr, nullptr, nan), second));
    CHECK(same_floats(x.output(0, nullptr, nullptr, nan), first));
}

/// The same bits when the lane's memory has moved while the units grew.
template <class P> void survives_a_move() {
    const shape_of_test shape{3, 64, 33, 2};
    lane_of_units<P> still(shape, false), moving(shape, false, {}, true);
    attend_some(still), attend_some(moving);
    moving.move();
    for (std::uint32_t h = 0; h < 2; ++h) CHECK(same_floats(moving.output(h), still.output(h)));
}

/// Where every query attended every unit, and where units have no entries, the state keeps its bits.
template <class P> void adds_nothing_where_nothing_is_missing() {
    lane_of_units<P> x({3, 64, 40}, false);
    std::fill(x.attended.begin(), x.attended.end(), std::uint64_t{0b111});
    std::vector<float> before, after;
    static_cast<void>(x.output(0, &before, &after));
    CHECK(same_floats(before, after));
    lane_of_units<P> half({3, 64, 40}, false);
    for (std::uint32_t u = 0; u < 40; ++u)
        if (u % 2 == 0)
            half.attended[u] = 0b111;
        else
            half.record[u].entries = 0;
    static_cast<void>(half.output(0, &before, &after));
    CHECK(same_floats(before, after));
}

} // namespace estimator_suite

/// `tolerance`: for one that keeps what it learns in 16 bits.
template <class P, class StandsIn>
void estimator_contract(const StandsIn& stands_in, double tolerance = 2e-5) {
    using namespace estimator_suite;
    CHECK(!std::string_view(P::name).empty());
    if constexpr (!kvtl::estimates<P>) {
        static_assert(!kvtl::summarises<P>);
        static_assert(needs_of<P>() == engine_input::nothing);
        static_assert(std::is_empty_v<typename P::state>);
    } else {
        static_assert(contains(needs_of<P>(), engine_input::q | engine_input::k));
        static_assert(std::is_trivially_copyable_v<typename P::state>);
        SUBCASE("is its definition") {
            is_its_definition<P>(stands_in, tolerance);
        }
        SUBCASE("remembers nothing") {
            remembers_nothing<P>();
        }
        SUBCASE("survives a move of the lane's memory") {
            survives_a_move<P>();
        }
        SUBCASE("adds nothing where nothing is missing") {
            adds_nothing_where_nothing_is_missing<P>();
        }
        SUBCASE("large logits neither overflow nor lose anything") {
            lane_of_units<P> x({2, 64, 40, 1, 60.0}, false);
            attend_some(x);
            const auto out = x.output(0);
            CHECK(std::all_of(out.begin(), out.end(), [](float f) { return std::isfinite(f); }));
        }
    }
}
/// For one that estimates nothing.
template <class P> void estimator_contract() {
    static_assert(!kvtl::estimates<P>, "say what stands in for a unit");
    estimator_contract<P>([] {});
}

} // namespace kvtl_test
