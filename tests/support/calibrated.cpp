// Random orthonormal bases. SPDX-License-Identifier: MIT
#include "support/calibrated.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

namespace kvtl_test {

namespace {

std::vector<float> made_rotation(std::size_t n, std::uint64_t seed) {
    oracle::generator random(seed);
    const auto dot = [n](const double* x, const double* y) { return std::inner_product(x, x + n, y, 0.0); };
    std::vector<double> a(n * n);
    for (double& x : a) x = random.normal();
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t pass = 0; pass < 2; ++pass)
            for (std::size_t j = 0; j < i; ++j) {
                const double along = dot(&a[i * n], &a[j * n]);
                for (std::size_t c = 0; c < n; ++c) a[i * n + c] -= along * a[j * n + c];
            }
        const double length = std::sqrt(dot(&a[i * n], &a[i * n]));
        for (std::size_t c = 0; c < n; ++c) a[i * n + c] /= length;
    }
    std::vector<float> rows(n * n);
    std::transform(a.begin(), a.end(), rows.begin(), [](double x) { return static_cast<float>(x); });
    return rows;
}

} // namespace

std::vector<float> random_rotation(std::size_t n, std::uint64_t seed) {
    static std::map<std::pair<std::size_t, std::uint64_t>, std::vector<float>>
        known; // every preset asks for the same
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    auto& rows = known[{n, seed}];
    if (rows.empty()) rows = made_rotation(n, seed);
    return rows;
}

} // namespace kvtl_test
