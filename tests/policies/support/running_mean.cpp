// The mean of a unit as it grows, against a sum in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/running_mean.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace {
using kvtl::detail::running_mean;

template <class E> struct lane {
    explicit lane(std::size_t w, std::size_t units)
        : width(w), memory(running_mean::bytes(w) / sizeof(running_mean) + 2), mean(units, std::vector<E>(w)),
          sum(units, std::vector<double>(w)), count(units, 0) {
        memory.back().unit = 4711;
    }
    void add(std::uint32_t unit, const std::vector<float>& key) {
        memory[0].absorb(unit, count[unit]++, key.data(), mean[unit].data(), width);
        for (std::size_t d = 0; d < width; ++d) sum[unit][d] += static_cast<double>(key[d]);
        CHECK(memory.back().unit == 4711); // nothing behind bytes()
    }
    [[nodiscard]] double error(std::uint32_t unit) const {
        oracle::largest_error e;
        for (std::size_t d = 0; d < width; ++d)
            e.see(oracle::value(mean[unit][d]) - sum[unit][d] / count[unit]);
        return e.value();
    }
    std::size_t width;
    std::vector<running_mean> memory;
    std::vector<std::vector<E>> mean;
    std::vector<std::vector<double>> sum;
    std::vector<std::uint32_t> count;
};
} // namespace

TEST_CASE("one unit after the other: the mean is rounded once, however many entries") {
    for (const std::size_t width : {1U, 63U, 64U, 65U, 200U}) {
        lane<kvtl::f16> x(width, 3);
        for (std::uint32_t u = 0; u < 3; ++u)
            for (std::uint64_t i = 0; i < 300; ++i) {
                auto key = oracle::normal_values(width, 1000 * u + i);
                for (float& k : key) k += 3.0F; // a mean that steps of f16 would stop following
                x.add(u, key);
            }
        for (std::uint32_t u = 0; u < 3; ++u) CHECK(x.error(u) < 0.0011); // half a step of f16 near 3
    }
}

TEST_CASE("units that grow in turn go on from their rounded means") {
    lane<kvtl::f16> half(96, 4);
    lane<float> full(96, 4);
    for (std::uint64_t i = 0; i < 50; ++i)
        for (std::uint32_t u = 0; u < 4; ++u) {
            const auto key = oracle::normal_values(96, 100 * i + u);
            half.add(u, key);
            full.add(u, key);
        }
    for (std::uint32_t u = 0; u < 4; ++u) {
        CHECK(full.error(u) < 1e-6);
        CHECK(half.error(u) < 5e-3);
    }
}

TEST_CASE("a unit that is begun again forgets what it had") {
    lane<float> x(16, 1);
    x.add(0, std::vector<float>(16, 5.0F));
    x.count[0] = 0;
    x.sum[0].assign(16, 0.0);
    x.add(0, std::vector<float>(16, 1.0F));
    CHECK(x.mean[0] == std::vector<float>(16, 1.0F));
}

TEST_CASE("a unit that has lost its latest entries goes on from the mean that it has then") {
    lane<float> x(16, 1);
    for (const float k : {1.0F, 3.0F, 8.0F}) x.add(0, std::vector<float>(16, k));
    x.mean[0].assign(16, 1.0F); // of the first entry, which is all that is left
    x.count[0] = 1;
    x.sum[0].assign(16, 1.0);
    x.add(0, std::vector<float>(16, 5.0F));
    CHECK(x.mean[0] == std::vector<float>(16, 3.0F));
}
