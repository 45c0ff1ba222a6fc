// The softmax state: pieces of any size, merged in any grouping, equal the whole.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/attention.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cstring>

namespace simd_attention_test {

namespace {

/// A partial that owns its memory and can see entries one at a time, in double precision.
struct owned {
    std::vector<float> memory;
    kvtl::partial view;

    owned(std::uint32_t group, std::uint32_t dim) : memory(kvtl::partial_floats(group, dim), -7.0F) {
        view = kvtl::partial_at(memory.data(), group, dim);
        kvtl::reset(view);
    }
};

TEST_CASE("partials take whole cache lines, and their parts do not overlap") {
    for (const std::uint32_t group : {1U, 2U, 3U, 4U, 7U, 64U})
        for (const std::uint32_t dim : {1U, 8U, 63U, 64U, 80U, 128U}) {
            const std::size_t floats = kvtl::partial_floats(group, dim);
            CHECK(floats % 16 == 0);
            CHECK(floats >= std::size_t{group} * (dim + 2));
            CHECK(floats < std::size_t{group} * (dim + 2) + 16);
            std::vector<float> memory(floats, -7.0F);
            const kvtl::partial p = kvtl::partial_at(memory.data(), group, dim);
            CHECK(p.acc == memory.data()); // the longest part, and the one that registers go over
            std::fill_n(p.acc, std::size_t{group} * dim, 1.0F);
            std::fill_n(p.max, group, 2.0F);
            std::fill_n(p.sum, group, 3.0F);
            CHECK(std::count(memory.begin(), memory.end(), 1.0F) == std::ptrdiff_t(group) * dim);
            CHECK(std::count(memory.begin(), memory.end(), 2.0F) == group);
            CHECK(std::count(memory.begin(), memory.end(), 3.0F) == group);
        }
}

/// Entries of one query head: a logit and a value row each.
struct entries {
    std::vector<double> logit;
    std::vector<std::vector<double>> value;

    entries(std::size_t n, std::size_t dim, double spread, std::uint64_t seed) {
        oracle::generator random(seed);
        for (std::size_t i = 0; i < n; ++i) {
            logit.push_back(spread * random.normal());
            value.emplace_back();
            for (std::size_t d = 0; d < dim; ++d) value.back().push_back(random.normal());
        }
    }
    /// The state of entries [begin, end), of which every query head g sees logit + g.
    void see(const kvtl::partial& p, std::size_t begin, std::size_t end) const {
        for (std::uint32_t g = 0; g < p.group; ++g) {
            if (begin == end) continue;
            const double max =
                *std::max_element(logit.begin() + std::ptrdiff_t(begin), logit.begin() + std::ptrdiff_t(end));
            double sum = 0;
            std::vector<double> acc(p.dim, 0.0);
            for (std::size_t i = begin; i < end; ++i) {
                const double w = std::exp(logit[i] - max);
                sum += w;
                for (std::size_t d = 0; d < p.dim; ++d) acc[d] += w * value[i][d];
            }
            p.max[g] = static_cast<float>(max + g);
            p.sum[g] = static_cast<float>(sum);
            for (std::size_t d = 0; d < p.dim; ++d) p.acc[g * p.dim + d] = static_cast<float>(acc[d]);
        }
    }
    [[nodiscard]] std::vector<double> softmax() const {
        const double max = *std::max_element(logit.begin(), logit.end());
        double sum = 0;
        std::vector<double> w;
        for (const double x : logit) sum += w.emplace_back(std::exp(x - max));
        for (double& x : w) x /= sum;
        return w;
    }
};

} // namespace

TEST_CASE("a fresh state is empty: zeros out, no mass, and merging it changes no bit") {
    owned a(3, 20), b(3, 20);
    std::vector<float> out(3 * 24, 5.0F);
    kvtl::finish(a.view, out.data(), 24);
    for (std::size_t g = 0; g < 3; ++g)
        for (std::size_t d = 0; d < 24; ++d) CHECK(out[g * 24 + d] == (d < 20 ? 0.0F : 5.0F));
    CHECK(kvtl::mass(a.view, b.view, 0) == 0.0F);
    kvtl::merge(a.view, b.view);
    CHECK(a.view.sum[1] == 0.0F); // -inf - -inf must not get anywhere
    CHECK(a.view.max[1] == -std::numeric_limits<float>::infinity());

    entries(9, 20, 3.0, 1).see(a.view, 0, 9);
    const std::vector<float> before = a.memory;
    kvtl::merge(a.view, b.view);
    CHECK(std::memcmp(before.data(), a.memory.data(), before.size() * sizeof(float)) == 0);
    kvtl::merge(b.view, a.view); // into an empty one: takes over the other
    CHECK(std::memcmp(before.data(), b.memory.data(), before.size() * sizeof(float)) == 0);
    CHECK(kvtl::mass(a.view, a.view, 2) == doctest::Approx(1.0));
}

TEST_CASE("merged pieces equal softmax over all entries, and their masses add up to one") {
    for (const double spread : {0.0, 1.0, 30.0, 1e4, 1e30})
        for (const std::uint32_t dim : {1U, 15U, 16U, 33U, 64U, 128U})
            for (const std::uint32_t group : {1U, 3U, 8U}) {
                const std::size_t n = 40;
                const entries all(n, dim, spread, dim + group);
                const std::vector<double> w = all.softmax();
                oracle::generator random(group);
                std::vector<owned> pieces;
                std::vector<std::size_t> begin = {0};
                while (begin.back() < n) { // sizes 0 to 9: some pieces are empty
                    const std::size_t end = std::min(n, begin.back() + random.below(10));
                    all.see(pieces.emplace_back(group, dim).view, begin.back(), end);
                    begin.push_back(end);
                }
                owned forward(group, dim), backward(group, dim);
                for (std::size_t i = 0; i < pieces.size(); ++i) {
                    kvtl::merge(forward.view, pieces[i].view);
                    kvtl::merge(backward.view, pieces[pieces.size() - 1 - i].view);
                }
                std::vector<float> out(group * dim), reversed(group * dim);
                kvtl::finish(forward.view, out.data(), dim);
                kvtl::finish(backward.view, reversed.data(), dim);
                double worst = 0;
                for (std::size_t g = 0; g < group; ++g)
                    for (std::size_t d = 0; d < dim; ++d) {
                        double expected = 0;
                        for (std::size_t i = 0; i < n; ++i) expected += w[i] * all.value[i][d];
                        // A float max of 1e4 moves a weight by its rounding: 1e4 * 6e-8.
                        for (const float got : {out[g * dim + d], reversed[g * dim + d]})
                            worst = std::max(worst, std::fabs(static_cast<double>(got) - expected));
                    }
                CHECK(worst < (spread == 1e4 ? 5e-3 : 2e-5));
                double share = 0, expected_first = 0;
                for (const owned& p : pieces)
                    share += static_cast<double>(kvtl::mass(p.view, forward.view, group - 1));
                CHECK(share == doctest::Approx(1.0).epsilon(1e-5));
                for (std::size_t i = 0; i < begin[1]; ++i) expected_first += w[i];
                CHECK(static_cast<double>(kvtl::mass(pieces[0].view, forward.view, 0)) ==
                      doctest::Approx(expected_first).epsilon(1e-3));
            }
}

TEST_CASE("n equal entries weigh n times one") {
    owned one(1, 4), other(1, 4);
    entries e(1, 4, 0.0, 3);
    e.see(one.view, 0, 1);
    for (int i = 0; i < 3; ++i) kvtl::merge(other.view, one.view);
    CHECK(other.view.sum[0] == 3.0F);
    CHECK(kvtl::mass(one.view, other.view, 0) == doctest::Approx(1.0 / 3.0));
}

} // namespace simd_attention_test
