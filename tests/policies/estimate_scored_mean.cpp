// scored_mean: what a query did not attend becomes one entry at the mean value, with the mass that its scores say.
// SPDX-License-Identifier: MIT
#include <kvtl/geometry.hpp>
#include <kvtl/policies/estimate_scored_mean.hpp>
#include <kvtl/simd/attend.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace estimate_scored_mean_test {

using namespace kvtl;

namespace {

using state = scored_mean::state;

struct alignas(64) line {
    std::byte bytes[64];
};

/// Units of up to max_entries entries of a lane, and what an estimator is shown of them.
struct lane_of_units {
    summary_shape sizes;
    std::uint32_t units = 0;
    std::vector<line> memory;
    std::vector<float> value; ///< (U, max_entries, width)
    std::vector<float> score; ///< (G, U, max_entries), -inf where there is no entry
    std::vector<unit_record> record;
    std::vector<std::uint64_t> attended;

    lane_of_units(const summary_shape& s, std::uint32_t n, std::uint64_t seed)
        : sizes(s), units(n), memory(state().lane_bytes(s) / 64 + 1),
          value(oracle::normal_values<float>(std::size_t{n} * s.max_entries * s.width(), seed)),
          score(oracle::normal_values<float>(std::size_t{s.group} * n * s.max_entries, seed + 1)), record(n),
          attended(n) {
        oracle::generator random(seed + 2);
        for (float& x : score) x *= 20.0F; // logits of a few
        for (std::uint32_t u = 0; u < n; ++u) {
            record[u].entries = static_cast<std::uint32_t>(1 + random.below(s.max_entries));
            attended[u] = random.below(4);
            for (std::uint32_t g = 0; g < s.group; ++g)
                for (std::uint32_t i = record[u].entries; i < s.max_entries; ++i)
                    score[at(g, u, i)] = -std::numeric_limits<float>::infinity();
        }
    }
    [[nodiscard]] std::size_t at(std::uint32_t g, std::uint32_t u, std::uint32_t i) const {
        return (std::size_t{g} * units + u) * sizes.max_entries + i;
    }
    [[nodiscard]] const float* value_of(std::uint32_t u, std::uint32_t i) const {
        return &value[(std::size_t{u} * sizes.max_entries + i) * sizes.width()];
    }
    [[nodiscard]] summary_view summary() {
        return {reinterpret_cast<std::byte*>(memory.data()), nullptr, 0, sizes, 0, 0, nullptr};
    }
    void absorb() {
        for (std::uint32_t u = 0; u < units; ++u) {
            state().clear(summary(), u);
            for (std::uint32_t i = 0; i < record[u].entries; ++i)
                state().absorb(summary(), u, i, nullptr, value_of(u, i));
        }
    }
    /// What one attended entry of this logit and values of 1 becomes.
    [[nodiscard]] std::vector<float> output(float logit) {
        std::vector<float> of_partial(partial_floats(sizes.group, sizes.dim)),
            out(std::size_t{sizes.group} * sizes.dim), scratch(state().scratch_floats(sizes, units));
        const partial p = partial_at(of_partial.data(), sizes.group, sizes.dim);
        reset(p);
        for (std::uint32_t g = 0; g < sizes.group; ++g) {
            p.max[g] = logit, p.sum[g] = 1.0F;
            std::fill_n(p.acc + std::size_t{g} * sizes.dim, sizes.dim, 1.0F);
        }
        units_view u;
        u.unit = record.data();
        u.count = units;
        u.dim = sizes.dim;
        u.max_entries = sizes.max_entries;
        u.summary = summary();
        const float scale = 1.0F / std::sqrt(static_cast<float>(sizes.dim));
        state().add({nullptr, sizes.group, scale, u, attended, scratch, {}, score}, p);
        finish(p, out.data(), sizes.dim);
        return out;
    }
};

} // namespace

TEST_CASE("scored_mean: the missing mass at the mean value, for every query its own") {
    static_assert(estimator_for<scored_mean>);
    CHECK(state().unit_bytes({}) == 0);
    for (const summary_shape& s : {summary_shape{1, 2, 64, 1}, summary_shape{1, 1, 12, 5}})
        for (const std::uint32_t units : {1U, 64U, 131U}) {
            lane_of_units x(s, units, units + s.dim);
            x.absorb();
            std::vector<double> mean(s.dim, 0.0);
            double entries = 0;
            for (std::uint32_t u = 0; u < units; ++u)
                for (std::uint32_t i = 0; i < x.record[u].entries; ++i, entries += 1)
                    for (std::uint32_t d = 0; d < s.dim; ++d)
                        mean[d] += static_cast<double>(x.value_of(u, i)[d]);
            for (double& m : mean) m /= entries;
            for (const float logit :
                 {-40.0F, 3.0F, 60.0F}) { // the missing mass beside nothing, some, much more
                const auto got = x.output(logit);
                oracle::largest_error worst;
                for (std::uint32_t g = 0; g < s.group; ++g) {
                    double mass = 0;
                    for (std::uint32_t u = 0; u < units; ++u)
                        for (std::uint32_t i = 0; (x.attended[u] >> g & 1) == 0 && i < x.record[u].entries;
                             ++i)
                            mass += std::exp(static_cast<double>(x.score[x.at(g, u, i)]) /
                                             std::sqrt(static_cast<double>(s.dim)));
                    const double own = std::exp(static_cast<double>(logit));
                    for (std::uint32_t d = 0; d < s.dim; ++d)
                        worst.see(static_cast<double>(got[g * s.dim + d]) -
                                  (own + mass * mean[d]) / (own + mass));
                }
                CHECK(worst.value() < 1e-5);
            }
        }
}

TEST_CASE("scored_mean: nothing where everything was attended; a new lane begins anew") {
    lane_of_units x({1, 2, 16, 1}, 20, 5);
    x.absorb();
    const auto before = x.output(0.0F);
    x.absorb(); // unit 0 is cleared: the sums of the lane before are gone
    CHECK(x.output(0.0F) == before);
    std::fill(x.attended.begin(), x.attended.end(), ~std::uint64_t{0});
    for (const float y : x.output(0.0F)) CHECK(y == 1.0F);
}

} // namespace estimate_scored_mean_test
