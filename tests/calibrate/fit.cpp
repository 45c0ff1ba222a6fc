// The fits against a plain Jacobi eigenvalue iteration and against what they promise.
// SPDX-License-Identifier: MIT
#include "fit.hpp"

#include <kvtl/calibration/calibration.hpp>

#include "error.hpp"
#include "support/oracle.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

using engine::calibration_fit;
using engine::fitted;
using kvtl::shape;

namespace {

constexpr shape small{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
constexpr std::size_t dim = 8, key_row = 16, query_row = 32;

using doubles = std::vector<double>;

/// Eigenvalues of a symmetric matrix (n, n), decreasing: cyclic Jacobi rotations.
doubles eigenvalues(doubles a, std::size_t n) {
    for (int sweep = 0; sweep < 60; ++sweep)
        for (std::size_t p = 0; p < n; ++p)
            for (std::size_t q = p + 1; q < n; ++q) {
                if (std::fabs(a[p * n + q]) < 1e-300) continue;
                const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
                const double t = (theta < 0 ? -1 : 1) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
                const double c = 1 / std::sqrt(t * t + 1), s = t * c;
                for (std::size_t i = 0; i < n; ++i) {
                    const double x = a[i * n + p], y = a[i * n + q];
                    a[i * n + p] = c * x - s * y, a[i * n + q] = s * x + c * y;
                }
                for (std::size_t i = 0; i < n; ++i) {
                    const double x = a[p * n + i], y = a[q * n + i];
                    a[p * n + i] = c * x - s * y, a[q * n + i] = s * x + c * y;
                }
            }
    doubles values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = a[i * n + i];
    std::sort(values.rbegin(), values.rend());
    return values;
}

/// sum over the rows of x x^T, for the `n` columns from `first`.
void add_gram(doubles& gram, const std::vector<float>& rows, std::size_t row, std::size_t first,
              std::size_t n) {
    gram.resize(n * n);
    for (std::size_t t = 0; t < rows.size() / row; ++t)
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = 0; j < n; ++j)
                gram[i * n + j] += static_cast<double>(rows[t * row + first + i]) *
                                   static_cast<double>(rows[t * row + first + j]);
}

double product(const float* a, const float* b, std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
}

double share(const doubles& values, std::size_t first) {
    const auto end = values.begin() + static_cast<std::ptrdiff_t>(first);
    return std::accumulate(values.begin(), end, 0.0) / std::accumulate(values.begin(), values.end(), 0.0);
}

/// Rows whose columns have very different scales and depend on each other.
std::vector<float> stretched(std::size_t tokens, std::size_t row, std::uint64_t seed) {
    auto values = oracle::normal_values(tokens * row, seed);
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t i = 0; i < row; ++i) {
            float& v = values[t * row + i];
            v = v / static_cast<float>(1 + i) + (i > 0 ? 0.5F * values[t * row + i - 1] : 0.3F);
        }
    return values;
}

struct samples {
    std::vector<float> keys[2], queries[2];
    explicit samples(std::size_t tokens = 90) {
        for (std::uint64_t l = 0; l < 2; ++l) {
            keys[l] = stretched(tokens, key_row, 10 + l);
            queries[l] = stretched(tokens, query_row, 20 + l);
        }
    }
    [[nodiscard]] fitted fit(const engine::fit_options& options = {}) const {
        calibration_fit f(small, options);
        f.add(0, keys[0], queries[0]);
        f.add(1, keys[1], queries[1], queries[0]);
        return f.finish();
    }
};

void check_orthonormal(const float* rows, std::size_t count, std::size_t n) {
    for (std::size_t i = 0; i < count; ++i)
        for (std::size_t j = 0; j <= i; ++j)
            CHECK(product(rows + i * n, rows + j * n, n) == doctest::Approx(i == j ? 1 : 0).epsilon(1e-6));
}

} // namespace

TEST_CASE("the bases are orthonormal") {
    const fitted f = samples().fit();
    for (std::size_t l = 0; l < 2; ++l) {
        check_orthonormal(f.adapter.data() + l * key_row * key_row, key_row, key_row);
        for (std::size_t h = 0; h < 2; ++h) {
            check_orthonormal(f.pca.data() + (l * 2 + h) * dim * dim, dim, dim);
            check_orthonormal(f.skew.data() + (l * 2 + h) * dim * dim, dim, dim);
        }
    }
}

TEST_CASE("fewer samples than directions still give a whole basis") {
    const fitted f = samples(5).fit();
    check_orthonormal(f.adapter.data(), key_row, key_row);
    CHECK(std::accumulate(f.energy[0].spectrum.begin(), f.energy[0].spectrum.begin() + 5, 0.0) ==
          doctest::Approx(1).epsilon(1e-9));
}

TEST_CASE("the first r directions keep the sum of the r largest eigenvalues") {
    const samples s;
    const fitted full = s.fit();
    for (std::size_t l = 0; l < 2; ++l) {
        doubles gram;
        add_gram(gram, s.keys[l], key_row, 0, key_row);
        const doubles values = eigenvalues(gram, key_row);
        for (std::size_t r = 1; r <= key_row; ++r) {
            const double reported =
                std::accumulate(full.energy[l].spectrum.begin(),
                                full.energy[l].spectrum.begin() + static_cast<std::ptrdiff_t>(r), 0.0);
            CHECK(reported == doctest::Approx(share(values, r)).epsilon(1e-9));
            double kept = 0, all = 0; // measured on the keys, with the rounded directions
            for (std::size_t t = 0; t < 90; ++t) {
                const float* k = s.keys[l].data() + t * key_row;
                all += product(k, k, key_row);
                for (std::size_t j = 0; j < r; ++j) {
                    const double x = product(full.adapter.data() + (l * key_row + j) * key_row, k, key_row);
                    kept += x * x;
                }
            }
            CHECK(kept / all == doctest::Approx(share(values, r)).epsilon(1e-5));
        }
        double pca = 0, skew = 0;
        for (std::size_t h = 0; h < 2; ++h) {
            doubles of_keys, of_queries;
            add_gram(of_keys, s.keys[l], key_row, h * dim, dim);
            for (std::size_t g = 0; g < 2; ++g)
                add_gram(of_queries, s.queries[l], query_row, (h * 2 + g) * dim, dim);
            pca += share(eigenvalues(of_keys, dim), dim / 4) / 2;
            skew += share(eigenvalues(of_queries, dim), dim / 4) / 2;
        }
        CHECK(full.energy[l].pca_quarter == doctest::Approx(pca).epsilon(1e-9));
        CHECK(full.energy[l].skew_quarter == doctest::Approx(skew).epsilon(1e-9));
    }
}

TEST_CASE("truncating rows in their basis is truncating the projection that makes them, as well as any can") {
    constexpr std::size_t tokens = 120, inputs = 24;
    const auto x = stretched(tokens, inputs, 41), w = oracle::normal_values(inputs * key_row, 42);
    std::vector<float> keys(tokens * key_row);
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t i = 0; i < key_row; ++i) {
            double sum = 0;
            for (std::size_t j = 0; j < inputs; ++j)
                sum += static_cast<double>(x[t * inputs + j]) * static_cast<double>(w[j * key_row + i]);
            keys[t * key_row + i] = static_cast<float>(sum);
        }
    calibration_fit f(small, {});
    const samples other;
    for (std::uint32_t l = 0; l < 2; ++l) {
        f.add(l, other.keys[l], other.queries[l], l > 0 ? other.queries[0] : std::vector<float>{});
        f.add_entries(l, keys, keys);
    }
    const fitted made = f.finish();
    doubles gram;
    add_gram(gram, keys, key_row, 0, key_row);
    const doubles values = eigenvalues(gram, key_row);
    for (const std::size_t rank : {3U, 8U, 13U}) {
        const float* basis = made.joint_keys.data(); // of layer 0, most important first
        doubles projector(key_row * key_row, 0.0), smaller(inputs * key_row, 0.0);
        for (std::size_t r = 0; r < rank; ++r)
            for (std::size_t i = 0; i < key_row; ++i)
                for (std::size_t j = 0; j < key_row; ++j)
                    projector[i * key_row + j] += static_cast<double>(basis[r * key_row + i]) *
                                                  static_cast<double>(basis[r * key_row + j]);
        for (std::size_t a = 0; a < inputs; ++a) // W P, of this rank
            for (std::size_t i = 0; i < key_row; ++i)
                for (std::size_t j = 0; j < key_row; ++j)
                    smaller[a * key_row + j] +=
                        static_cast<double>(w[a * key_row + i]) * projector[i * key_row + j];
        double lost = 0, apart = 0;
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t i = 0; i < key_row; ++i) {
                double row = 0, projected = 0;
                for (std::size_t j = 0; j < key_row; ++j)
                    row += static_cast<double>(keys[t * key_row + j]) * projector[j * key_row + i];
                for (std::size_t a = 0; a < inputs; ++a)
                    projected += static_cast<double>(x[t * inputs + a]) * smaller[a * key_row + i];
                const double off = row - static_cast<double>(keys[t * key_row + i]);
                lost += off * off;
                apart = std::max(apart, std::fabs(row - projected));
            }
        CHECK(apart < 1e-4);
        // No projection of this rank loses less of what it makes of these inputs (Eckart and Young).
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(rank);
        CHECK(lost == doctest::Approx(std::accumulate(first, values.end(), 0.0)).epsilon(1e-4));
    }
}

TEST_CASE("a smaller rank is a prefix of a larger one") {
    const samples s;
    const fitted full = s.fit(), part = s.fit({.rank = 5});
    REQUIRE(part.adapter.size() == 2 * 5 * key_row);
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t i = 0; i < 5 * key_row; ++i)
            CHECK(part.adapter[l * 5 * key_row + i] == full.adapter[l * key_row * key_row + i]);
    CHECK(part.energy[0].adapter < 1);
    CHECK(full.energy[0].adapter == doctest::Approx(1));
}

TEST_CASE("all directions reproduce every inner product of query and key") {
    const samples s;
    const fitted f = s.fit();
    oracle::largest_error joint, pca, skew;
    for (std::size_t t = 0; t < 20; ++t)
        for (std::size_t h = 0; h < 4; ++h) {
            const float* q = s.queries[1].data() + t * query_row + h * dim;
            const float* k = s.keys[1].data() + (89 - t) * key_row;
            const std::size_t head = h / 2;
            const double exact = product(q, k + head * dim, dim);
            const double scale = std::sqrt(product(q, q, dim) * product(k, k, key_row));
            double by_joint = 0, by_pca = 0, by_skew = 0;
            for (std::size_t j = 0; j < key_row; ++j) {
                const float* row = f.adapter.data() + (key_row + j) * key_row;
                by_joint += product(row + head * dim, q, dim) * product(row, k, key_row);
            }
            for (std::size_t j = 0; j < dim; ++j) {
                const std::size_t at = ((2 + head) * dim + j) * dim;
                by_pca +=
                    product(f.pca.data() + at, q, dim) * product(f.pca.data() + at, k + head * dim, dim);
                by_skew +=
                    product(f.skew.data() + at, q, dim) * product(f.skew.data() + at, k + head * dim, dim);
            }
            joint.relative(by_joint, exact, scale);
            pca.relative(by_pca, exact, scale);
            skew.relative(by_skew, exact, scale);
        }
    CHECK(joint.value() < 1e-6);
    CHECK(pca.value() < 1e-6);
    CHECK(skew.value() < 1e-6);
}

TEST_CASE("texts may come in pieces") {
    const samples s;
    calibration_fit f(small, {});
    for (const std::size_t l : {0U, 1U})
        for (const auto& [first, n] : {std::pair<std::size_t, std::size_t>{0, 50}, {50, 40}})
            f.add(static_cast<std::uint32_t>(l), std::span(s.keys[l]).subspan(first * key_row, n * key_row),
                  std::span(s.queries[l]).subspan(first * query_row, n * query_row));
    const fitted pieces = f.finish(), whole = s.fit();
    CHECK(pieces.tokens == 90);
    for (std::size_t i = 0; i < whole.adapter.size(); ++i)
        CHECK(pieces.adapter[i] == doctest::Approx(whole.adapter[i]).epsilon(1e-4));
}

TEST_CASE("the pairs that carry the scores are found") {
    for (const std::uint32_t distance : {1U, 4U}) {
        auto keys = oracle::normal_values(200 * key_row, 31),
             queries = oracle::normal_values(200 * query_row, 32);
        const std::uint32_t telling[2] = {3, 1}; // by KV head
        for (std::size_t h = 0; h < 2; ++h) {
            const auto [a, b] = kvtl::pair_elements(telling[h], distance);
            for (std::size_t t = 0; t < 200; ++t)
                for (const std::uint32_t e : {a, b}) keys[t * key_row + h * dim + e] *= 6;
        }
        calibration_fit f(small, {.channels = 2, .pair_distance = distance});
        f.add(0, keys, queries);
        f.add(1, keys, queries);
        const fitted out = f.finish();
        REQUIRE(out.channels.size() == 2 * 2 * 2);
        for (std::size_t l = 0; l < 2; ++l)
            for (std::size_t h = 0; h < 2; ++h) {
                CHECK(out.channels[(l * 2 + h) * 2] == telling[h]);
                CHECK(out.channels[(l * 2 + h) * 2 + 1] != telling[h]);
            }
        CHECK(out.energy[0].channels >
              0.3); // one pair finds most of the top tenth, the other what chance does
    }
}

TEST_CASE("a linear map between the layers' queries is found") {
    samples s(300);
    const auto map = oracle::normal_values(query_row * query_row, 41, 0.2);
    s.queries[0] = oracle::normal_values(300 * query_row, 42);
    for (std::size_t t = 0; t < 300; ++t)
        for (std::size_t i = 0; i < query_row; ++i)
            s.queries[1][t * query_row + i] = static_cast<float>(
                product(map.data() + i * query_row, s.queries[0].data() + t * query_row, query_row));
    const fitted f = s.fit({.query_map = true});
    REQUIRE(f.query_map.size() == query_row * query_row);
    oracle::largest_error error;
    for (std::size_t i = 0; i < map.size(); ++i)
        error.see(static_cast<double>(f.query_map[i]) - static_cast<double>(map[i]));
    CHECK(error.value() < 1e-4);
    CHECK(f.energy[1].query_map == doctest::Approx(1).epsilon(1e-4));
    s.queries[1] =
        oracle::normal_values(300 * query_row, 43); // unrelated: nothing but the noise is explained
    CHECK(s.fit({.query_map = true}).energy[1].query_map < 0.2);
}

TEST_CASE("a fit is written and read back") {
    const std::string path =
        (std::filesystem::temp_directory_path() / ("kvtl-fit-" + std::to_string(::getpid()) + ".cal"))
            .string();
    const fitted f = samples().fit({.rank = 6, .pre_rope = true, .query_map = true});
    f.write(path, 77);
    const auto loaded = kvtl::calibration::load(path, small, {.fingerprint = 77});
    std::filesystem::remove(path);
    REQUIRE(loaded);
    const auto& v = loaded->view();
    CHECK(v.rank(kvtl::calibration_kind::joint_adapter) == 6);
    CHECK(v.pre_rope(kvtl::calibration_kind::joint_adapter));
    CHECK(!v.pre_rope(kvtl::calibration_kind::skew_basis));
    CHECK(v.adapter(1).row(5)[15] == f.adapter.back());
    CHECK(v.pca_basis(1, 1).row(7)[7] == f.pca.back());
    CHECK(v.skew_basis(1, 1).row(7)[7] == f.skew.back());
    CHECK(v.channels(1, 1).back() == f.channels.back());
    CHECK(v.query_map(1).row(31)[31] == f.query_map.back());
    CHECK_THROWS_AS(f.write("/nowhere/at/all.cal", 1), engine::run_failure);
}

TEST_CASE("options and samples that make no sense are refused") {
    CHECK_THROWS_WITH_AS(calibration_fit(small, {.rank = 17}),
                         "rank is 17; valid: 1 to 16, or 0 for the default", engine::bad_input);
    CHECK_THROWS_WITH_AS(calibration_fit(small, {.channels = 5}),
                         "channels is 5; valid: 1 to 4, or 0 for the default", engine::bad_input);
    const samples s;
    calibration_fit f(small, {.query_map = true});
    CHECK_THROWS_AS(f.add(0, std::span(s.keys[0]).first(key_row + 1), s.queries[0]), engine::bad_input);
    f.add(0, s.keys[0], s.queries[0]);
    CHECK_THROWS_AS(f.add(1, s.keys[1], s.queries[1]), engine::bad_input);
    CHECK_THROWS_WITH_AS(static_cast<void>(calibration_fit(small, {}).finish()),
                         "calibration: layer 0 has no samples", engine::bad_input);
}
