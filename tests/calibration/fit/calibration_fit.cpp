// The fits against a plain singular value decomposition of the samples and against what they promise.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/calibration.hpp>
#include <kvtl/calibration/fit/calibration_fit.hpp>
#include <kvtl/calibration/fit/fitted_bases.hpp>

#include "support/oracle.hpp"
#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

using kvtl::calibration_fit;
using kvtl::fitted_bases;
using kvtl::shape;

namespace {

constexpr shape small{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
constexpr std::size_t dim = 8, key_row = 16, query_row = 32;

using doubles = std::vector<double>;

/// Squares of the singular values, decreasing, of the `n` columns from each of `firsts` of these rows, one below the other:
/// one-sided Jacobi rotations of the columns.
doubles energies(const std::vector<float>& rows, std::size_t row, std::initializer_list<std::size_t> firsts,
                 std::size_t n) {
    std::vector<doubles> column(n);
    for (const std::size_t first : firsts)
        for (std::size_t t = 0; t < rows.size() / row; ++t)
            for (std::size_t i = 0; i < n; ++i)
                column[i].push_back(static_cast<double>(rows[t * row + first + i]));
    const auto dot = [](const doubles& x, const doubles& y) {
        return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
    };
    for (int sweep = 0; sweep < 40; ++sweep)
        for (std::size_t p = 0; p < n; ++p)
            for (std::size_t q = p + 1; q < n; ++q) {
                const double along = dot(column[p], column[q]);
                if (std::fabs(along) < 1e-300) continue;
                const double zeta = (dot(column[q], column[q]) - dot(column[p], column[p])) / (2 * along);
                const double t = (zeta < 0 ? -1 : 1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
                const double c = 1 / std::sqrt(1 + t * t), sine = c * t;
                for (std::size_t i = 0; i < column[p].size(); ++i) {
                    const double x = column[p][i], y = column[q][i];
                    column[p][i] = c * x - sine * y, column[q][i] = sine * x + c * y;
                }
            }
    doubles values;
    for (const doubles& x : column) values.push_back(dot(x, x));
    std::sort(values.rbegin(), values.rend());
    return values;
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

calibration_fit make(const kvtl::fit_options& options) {
    auto f = calibration_fit::make(small, options);
    REQUIRE_MESSAGE(f.ok(), (f.ok() ? std::string() : f.error().message));
    return *std::move(f);
}
void add(calibration_fit& f, std::uint32_t layer, const kvtl::layer_input& in) {
    const kvtl::status s = f.add(layer, in);
    REQUIRE_MESSAGE(s.ok(), s.what());
}
fitted_bases finish(const calibration_fit& f) {
    auto out = f.finish();
    REQUIRE_MESSAGE(out.ok(), (out.ok() ? std::string() : out.error().message));
    return *std::move(out);
}

struct samples {
    std::vector<float> keys[2], queries[2];
    explicit samples(std::size_t tokens = 90) {
        for (std::uint64_t l = 0; l < 2; ++l) {
            keys[l] = stretched(tokens, key_row, 10 + l);
            queries[l] = stretched(tokens, query_row, 20 + l);
        }
    }
    [[nodiscard]] kvtl::layer_input layer(std::size_t l) const {
        kvtl::layer_input in;
        in.q = queries[l], in.k = keys[l];
        return in;
    }
    [[nodiscard]] fitted_bases fit(const kvtl::fit_options& options = {.pair_distance = 1}) const {
        calibration_fit f = make(options);
        for (std::uint32_t l = 0; l < 2; ++l) add(f, l, layer(l));
        return finish(f);
    }
};

void check_orthonormal(const float* rows, std::size_t count, std::size_t n) {
    for (std::size_t i = 0; i < count; ++i)
        for (std::size_t j = 0; j <= i; ++j)
            CHECK(product(rows + i * n, rows + j * n, n) == doctest::Approx(i == j ? 1 : 0).epsilon(1e-6));
}

} // namespace

TEST_CASE("the bases are orthonormal") {
    const fitted_bases f = samples().fit();
    for (std::size_t l = 0; l < 2; ++l) {
        check_orthonormal(f.adapter.data() + l * key_row * key_row, key_row, key_row);
        for (std::size_t h = 0; h < 2; ++h) {
            check_orthonormal(f.pca.data() + (l * 2 + h) * dim * dim, dim, dim);
            check_orthonormal(f.skew.data() + (l * 2 + h) * dim * dim, dim, dim);
        }
    }
}

TEST_CASE("fewer samples than directions still give a whole basis") {
    const fitted_bases f = samples(5).fit();
    check_orthonormal(f.adapter.data(), key_row, key_row);
    CHECK(std::accumulate(f.energy[0].spectrum.begin(), f.energy[0].spectrum.begin() + 5, 0.0) ==
          doctest::Approx(1).epsilon(1e-9));
}

TEST_CASE("rank r loses the tail of the singular values, of the keys as they were given") {
    const samples s;
    const fitted_bases full = s.fit();
    for (std::size_t l = 0; l < 2; ++l) {
        const doubles values = energies(s.keys[l], key_row, {0}, key_row);
        for (std::size_t r = 1; r <= key_row; ++r) {
            const double reported =
                std::accumulate(full.energy[l].spectrum.begin(),
                                full.energy[l].spectrum.begin() + static_cast<std::ptrdiff_t>(r), 0.0);
            CHECK(reported == doctest::Approx(share(values, r)).epsilon(1e-9));
            double lost = 0; // measured on the keys, with the rounded directions
            for (std::size_t t = 0; t < 90; ++t) {
                const float* k = s.keys[l].data() + t * key_row;
                doubles rest(k, k + key_row);
                for (std::size_t j = 0; j < r; ++j) {
                    const float* direction = full.adapter.data() + (l * key_row + j) * key_row;
                    const double x = product(direction, k, key_row);
                    for (std::size_t i = 0; i < key_row; ++i)
                        rest[i] -= x * static_cast<double>(direction[i]);
                }
                lost += std::inner_product(rest.begin(), rest.end(), rest.begin(), 0.0);
            }
            const double all = std::accumulate(values.begin(), values.end(), 0.0);
            CHECK(lost / all == doctest::Approx(1 - share(values, r)).epsilon(1e-5));
        }
        double pca = 0, skew = 0;
        for (std::size_t h = 0; h < 2; ++h) {
            pca += share(energies(s.keys[l], key_row, {h * dim}, dim), dim / 4) / 2;
            skew +=
                share(energies(s.queries[l], query_row, {h * 2 * dim, (h * 2 + 1) * dim}, dim), dim / 4) / 2;
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
    calibration_fit f = make({});
    const samples other(tokens);
    for (std::uint32_t l = 0; l < 2; ++l) {
        kvtl::layer_input in = other.layer(l);
        in.k_pre = keys, in.v = keys;
        add(f, l, in);
    }
    const fitted_bases made = finish(f);
    const doubles values = energies(keys, key_row, {0}, key_row);
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
    const fitted_bases full = s.fit(), part = s.fit({.rank = 5, .pair_distance = 1});
    REQUIRE(part.adapter.size() == 2 * 5 * key_row);
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t i = 0; i < 5 * key_row; ++i)
            CHECK(part.adapter[l * 5 * key_row + i] == full.adapter[l * key_row * key_row + i]);
    CHECK(part.energy[0].adapter < 1);
    CHECK(full.energy[0].adapter == doctest::Approx(1));
}

TEST_CASE("all directions reproduce every inner product of query and key") {
    const samples s;
    const fitted_bases f = s.fit();
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
    calibration_fit f = make({});
    for (std::uint32_t l = 0; l < 2; ++l)
        for (const auto& [first, n] : {std::pair<std::size_t, std::size_t>{0, 50}, {50, 40}})
            add(f, l, s.layer(l).rows(first, n, 90));
    const fitted_bases pieces = finish(f), whole = s.fit();
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
        calibration_fit f = make({.channels = 2, .pair_distance = distance});
        kvtl::layer_input in;
        in.q = queries, in.k = keys;
        add(f, 0, in), add(f, 1, in);
        const fitted_bases out = finish(f);
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
    const fitted_bases f = s.fit({.pair_distance = 1, .query_map = true});
    REQUIRE(f.query_map.size() == query_row * query_row);
    oracle::largest_error error;
    for (std::size_t i = 0; i < map.size(); ++i)
        error.see(static_cast<double>(f.query_map[i]) - static_cast<double>(map[i]));
    CHECK(error.value() < 1e-4);
    CHECK(f.energy[1].query_map == doctest::Approx(1).epsilon(1e-4));
    s.queries[1] =
        oracle::normal_values(300 * query_row, 43); // unrelated: nothing but the noise is explained
    CHECK(s.fit({.pair_distance = 1, .query_map = true}).energy[1].query_map < 0.2);
}

TEST_CASE("value norms are what the output projection makes of a value") {
    constexpr std::size_t width = 40; // M
    calibration_fit f = make({});
    std::vector<std::vector<float>> w;
    for (std::uint32_t l = 0; l < small.layers; ++l) {
        add(f, l, samples(20).layer(l));
        w.push_back(stretched(width, query_row, 50 + l));
        if (l == 0) { // the rows in two parts
            REQUIRE(f.add_output_projection(l, {w[l].data(), 15, query_row, query_row}));
            REQUIRE(
                f.add_output_projection(l, {w[l].data() + 15 * query_row, width - 15, query_row, query_row}));
        } else {
            REQUIRE(f.add_output_projection(l, {w[l].data(), width, query_row, query_row}));
        }
    }
    const auto bases = f.finish();
    REQUIRE(bases);
    REQUIRE(bases->value_norms.size() == std::size_t{2} * 2 * dim * dim);
    const auto values = oracle::normal_values(10 * dim, 60);
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t h = 0; h < 2; ++h)
            for (std::size_t t = 0; t < 10; ++t) {
                const float* v = &values[t * dim];
                double exact = 0, got = 0;
                for (std::size_t g = 0; g < 2; ++g)
                    for (std::size_t m = 0; m < width; ++m) {
                        const double x = product(&w[l][m * query_row + (2 * h + g) * dim], v, dim);
                        exact += x * x / 2;
                    }
                for (std::size_t i = 0; i < dim; ++i) {
                    const double x = product(&bases->value_norms[((l * 2 + h) * dim + i) * dim], v, dim);
                    got += x * x;
                }
                CHECK(std::sqrt(got) == doctest::Approx(std::sqrt(exact)).epsilon(1e-5));
            }
    const kvtl_test::scratch_folder here;
    REQUIRE(bases->write(here.file("a.cal"), 7));
    const auto read = kvtl::calibration::load(here.file("a.cal"), small,
                                              {.kinds = kvtl::kind_bit(kvtl::calibration_kind::value_norms)});
    REQUIRE(read);
    CHECK(read->view().basis(kvtl::calibration_kind::value_norms, 1, 1).row(7)[7] ==
          bases->value_norms.back());
}

namespace {

/// Numbers in half ranges and their weights.
struct weighted {
    doubles y, weight;
    [[nodiscard]] double error(const doubles& levels) const {
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            double least = 1e30;
            for (const double l : levels) least = std::min(least, (y[i] - l) * (y[i] - l));
            sum += weight[i] * least;
        }
        return sum;
    }
    /// The best of some k-means, each from random numbers, ascending.
    [[nodiscard]] doubles best(std::size_t n) const {
        oracle::generator random(n);
        doubles found;
        double least = 1e30;
        for (int start = 0; start < 20; ++start) {
            doubles levels(n);
            for (double& l : levels) l = y[random.below(y.size())];
            for (int turn = 0; turn < 30; ++turn) {
                doubles sum(n, 0.0), all(n, 0.0);
                for (std::size_t i = 0; i < y.size(); ++i) {
                    std::size_t nearest = 0;
                    for (std::size_t l = 1; l < n; ++l)
                        if (std::fabs(y[i] - levels[l]) < std::fabs(y[i] - levels[nearest])) nearest = l;
                    sum[nearest] += weight[i] * y[i], all[nearest] += weight[i];
                }
                for (std::size_t l = 0; l < n; ++l)
                    if (all[l] > 0) levels[l] = sum[l] / all[l];
            }
            if (const double now = error(levels); now < least) least = now, found = levels;
        }
        std::sort(found.begin(), found.end());
        return found;
    }
    void check(const float* table) const {
        // Levels of 2 bits are those of k-means, stretched from the mean.
        const doubles two(table, table + 4), means = best(4);
        double all = 0, mean = 0, square = 0, product = 0;
        for (std::size_t i = 0; i < y.size(); ++i) all += weight[i], mean += weight[i] * y[i];
        mean /= all;
        for (std::size_t i = 0; i < y.size(); ++i) {
            double nearest = means[0];
            for (const double l : means)
                if (std::fabs(y[i] - l) < std::fabs(y[i] - nearest)) nearest = l;
            square += weight[i] * (y[i] - mean) * (y[i] - mean);
            product += weight[i] * (y[i] - mean) * (nearest - mean);
        }
        CHECK(square > 1.02 * product);
        for (std::size_t l = 0; l < 4; ++l)
            CHECK(std::fabs(two[l] - std::clamp(mean + square / product * (means[l] - mean), -1.0, 1.0)) <
                  0.03);
        for (const std::size_t n : {8U, 16U}) {
            const doubles levels(table + n - 4, table + 2 * n - 4);
            CHECK(std::is_sorted(levels.begin(), levels.end()));
            CHECK(levels.front() >= -1);
            CHECK(levels.back() <= 1);
            CHECK(error(levels) < 1.01 * error(best(n))); // bins are 1/256 wide
        }
    }
};

} // namespace

TEST_CASE("ranges leave out 1 % of a channel, and levels have no larger error than k-means finds") {
    constexpr std::size_t tokens = 401;
    const auto keys = stretched(tokens, key_row, 80), values = stretched(tokens, key_row, 81);
    calibration_fit f = make({});
    for (std::uint32_t l = 0; l < 2; ++l) {
        kvtl::layer_input in = samples(tokens).layer(l);
        const kvtl::layer_input none;
        in.q = none.q, in.k = keys, in.k_pre = l == 0 ? keys : values, in.v = values;
        add(f, l, in);
    }
    const fitted_bases made = finish(f);
    REQUIRE(made.nuq_keys.size() == 2 * (2 * key_row + 28));
    REQUIRE(made.nuq_values.size() == 2 * 28);
    const float* table = made.nuq_keys.data();
    weighted all, of_values;
    for (std::size_t c = 0; c < key_row; ++c) {
        std::vector<float> column(tokens);
        for (std::size_t t = 0; t < tokens; ++t) column[t] = keys[t * key_row + c];
        std::sort(column.begin(), column.end());
        const double least = static_cast<double>(column[2]), most = static_cast<double>(column[398]),
                     half = (most - least) / 2;
        CHECK(static_cast<double>(table[c]) == doctest::Approx((least + most) / 2).epsilon(1e-6));
        CHECK(static_cast<double>(table[key_row + c]) == doctest::Approx(half).epsilon(1e-6));
        for (std::size_t t = 2; t < 399; ++t) {
            all.y.push_back((static_cast<double>(column[t]) - (least + most) / 2) / half);
            all.weight.push_back(half * half);
        }
    }
    all.check(table + 2 * key_row);
    // Heads have 8 numbers, of which 1 % is none: all are within.
    for (std::size_t at = 0; at < values.size(); at += dim) {
        const auto [least, most] = std::minmax_element(&values[at], &values[at] + dim);
        const double middle = (static_cast<double>(*least) + static_cast<double>(*most)) / 2,
                     half = (static_cast<double>(*most) - static_cast<double>(*least)) / 2;
        for (std::size_t d = 0; d < dim; ++d) {
            of_values.y.push_back((static_cast<double>(values[at + d]) - middle) / half);
            of_values.weight.push_back(half * half);
        }
    }
    of_values.check(made.nuq_values.data());
    const kvtl_test::scratch_folder here;
    REQUIRE(made.write(here.file("a.cal"), 7));
    const auto read = kvtl::calibration::load(here.file("a.cal"), small);
    REQUIRE(read);
    CHECK(read->view().pre_rope(kvtl::calibration_kind::nuq_keys));
    CHECK(read->view().basis(kvtl::calibration_kind::nuq_keys, 1, 0).row(0)[2 * key_row + 27] ==
          made.nuq_keys.back());
    CHECK(read->view().basis(kvtl::calibration_kind::nuq_values, 1, 0).row(0)[27] == made.nuq_values.back());
}

TEST_CASE("levels are fitted to every second token of a long text, in whatever pieces it comes") {
    constexpr std::size_t tokens = 2 * kvtl::level_fit::most_tokens - 3;
    const auto keys = oracle::normal_values(tokens * key_row, 90), values = stretched(tokens, key_row, 91);
    std::vector<float> second_keys, second_values;
    for (std::size_t t = 0; t < tokens; t += 2) {
        second_keys.insert(second_keys.end(), &keys[t * key_row], &keys[t * key_row] + key_row);
        second_values.insert(second_values.end(), &values[t * key_row], &values[t * key_row] + key_row);
    }
    kvtl::level_fit whole(small), pieces(small), second(small);
    whole.add(keys, values);
    second.add(second_keys, second_values);
    const std::size_t cut = 4999 * key_row;
    pieces.add(std::span(keys).first(cut), std::span(values).first(cut));
    pieces.add(std::span(keys).subspan(cut), std::span(values).subspan(cut));
    const auto table = [](const kvtl::level_fit& f) {
        std::vector<float> out;
        f.append_keys(out), f.append_values(out);
        return out;
    };
    CHECK(table(whole) == table(second));
    CHECK(table(pieces) == table(second));
}

TEST_CASE("keys and values that never change have a range of 0 and evenly spaced levels") {
    kvtl::level_fit fit(small);
    const std::vector<float> same(10 * key_row, 3.0F);
    fit.add(same, same);
    std::vector<float> out;
    fit.append_keys(out);
    CHECK(out[0] == 3.0F);
    CHECK(out[key_row] == 0.0F);
    CHECK(out[2 * key_row] == -1.0F);
    CHECK(out[2 * key_row + 2] == doctest::Approx(1.0 / 3));
    CHECK(out.back() == 1.0F);
}

TEST_CASE("output projections that make no sense are refused, and some layers' alone") {
    calibration_fit f = make({});
    for (std::uint32_t l = 0; l < small.layers; ++l) add(f, l, samples(20).layer(l));
    std::vector<float> w = stretched(4, query_row, 70);
    const auto refused = [](const kvtl::status& s, const char* part) {
        CAPTURE(s.what());
        CHECK(s.code() == kvtl::errc::invalid_argument);
        CHECK(std::string(s.what()).find(part) != std::string::npos);
    };
    refused(f.add_output_projection(2, {w.data(), 4, query_row, query_row}), "layers 0 to 1");
    refused(f.add_output_projection(0, {w.data(), 0, query_row, query_row}), "1 or more rows of 32");
    refused(f.add_output_projection(0, {w.data(), 4, key_row, query_row}), "rows of 16");
    w[50] = std::numeric_limits<float>::infinity();
    refused(f.add_output_projection(0, {w.data(), 4, query_row, query_row}), "not finite");
    const auto without = f.finish();
    REQUIRE(without);
    CHECK(without->value_norms.empty());
    REQUIRE(f.add_output_projection(0, {w.data(), 1, query_row, query_row}));
    const auto some = f.finish();
    REQUIRE(!some);
    CHECK(some.error().message.find("layer 1 has no output projection") != std::string::npos);
}

TEST_CASE("a fit is written and read back") {
    const kvtl_test::scratch_folder folder;
    const std::string path = folder.file("a.cal");
    const fitted_bases f =
        samples().fit({.rank = 6, .pair_distance = 4, .pre_rope = false, .query_map = true});
    REQUIRE(f.write(path, 77));
    const auto loaded = kvtl::calibration::load(path, small, {.fingerprint = 77});
    REQUIRE(loaded);
    const auto& v = loaded->view();
    CHECK(v.rank(kvtl::calibration_kind::joint_adapter) == 6);
    CHECK(!v.pre_rope(kvtl::calibration_kind::joint_adapter));
    CHECK(v.adapter(1).row(5)[15] == kvtl::from_float<kvtl::f16>(f.adapter.back()));
    CHECK(v.pca_basis(1, 1).row(7)[7] == f.pca.back());
    CHECK(v.skew_basis(1, 1).row(7)[7] == f.skew.back());
    CHECK(v.channels(1, 1).back() == f.channels.back());
    CHECK(v.pair_distance() == 4);
    CHECK(v.query_map(1).row(31)[31] == f.query_map.back());
    const kvtl::status nowhere = f.write("/nowhere/at/all.cal", 1);
    CHECK(nowhere.code() == kvtl::errc::io_error);
    CHECK(std::string(nowhere.what()) == "cannot write /nowhere/at/all.cal.part: No such file or directory");
}

TEST_CASE("what is not recorded is left out, and the keys may be those before RoPE") {
    const kvtl_test::scratch_folder folder;
    const std::string path = folder.file("a.cal");
    const samples s;
    calibration_fit f = make({.pre_rope = true});
    for (std::uint32_t l = 0; l < 2; ++l) {
        kvtl::layer_input in;
        in.k_pre = s.keys[l];
        add(f, l, in);
    }
    const fitted_bases out = finish(f);
    CHECK(out.adapter == s.fit().adapter);
    REQUIRE(out.write(path, 0));
    const auto loaded = kvtl::calibration::load(path, small, {});
    REQUIRE(loaded);
    using kind = kvtl::calibration_kind;
    CHECK(loaded->view().pre_rope(kind::joint_adapter));
    CHECK(loaded->view().has(kind::pca_basis));
    for (const kind k :
         {kind::skew_basis, kind::channels, kind::query_map, kind::joint_keys, kind::head_values})
        CHECK(!loaded->view().has(k));
}

TEST_CASE("keys and queries of 16 bits are fitted to as the numbers that they are") {
    struct numbers {
        std::vector<kvtl::bf16> narrow;
        std::vector<float> wide;
        explicit numbers(const std::vector<float>& in) {
            for (const float x : in) {
                narrow.push_back(kvtl::from_float<kvtl::bf16>(x));
                wide.push_back(kvtl::to_float(narrow.back()));
            }
        }
    };
    const samples s;
    calibration_fit narrow = make({}), wide = make({});
    for (std::uint32_t l = 0; l < 2; ++l) {
        const numbers k(s.keys[l]), q(s.queries[l]);
        kvtl::layer_input in;
        in.k = k.narrow, in.q = q.narrow;
        add(narrow, l, in);
        in.k = k.wide, in.q = q.wide;
        add(wide, l, in);
    }
    CHECK(finish(narrow).adapter == finish(wide).adapter);
    CHECK(finish(narrow).skew == finish(wide).skew);
    CHECK(!finish(narrow).skew.empty());
}

TEST_CASE("options and samples that make no sense are refused, and change nothing") {
    const auto refusal = [](const shape& model, const kvtl::fit_options& options) {
        const auto f = calibration_fit::make(model, options);
        return f ? std::string() : f.error().message;
    };
    CHECK(refusal(small, {.rank = 17}) == "rank is 17; valid: 1 to 16, or 0 for the default");
    CHECK(refusal(small, {.channels = 5}) == "channels is 5; valid: 1 to 4, or 0 for the default");
    CHECK(refusal(small, {.pair_distance = 5}) == "pair_distance is 5; valid: 1 to 4, or 0 for the default");
    CHECK(refusal({2, 4, 2, 7}, {}) == "shape.head_dim is 7; valid: even numbers");
    CHECK(refusal({2, 4, 0, 8}, {}) == "shape.kv_heads is 0; valid: 1 to 65536");

    const samples s;
    calibration_fit f = make({.pair_distance = 1, .query_map = true});
    const auto said = [&f](std::uint32_t layer, const kvtl::layer_input& in) {
        return std::string(f.add(layer, in).what());
    };
    kvtl::layer_input in = s.layer(0);
    CHECK(said(2, in) == "calibration: layer 2; valid: 0 to 1");
    CHECK(said(0, {}) == "calibration: layer 0: k has 0 numbers; valid: multiples of 16");
    in.k = std::span(s.keys[0]).first(key_row + 1);
    CHECK(said(0, in) == "calibration: layer 0: k has 17 numbers; valid: multiples of 16");
    in.k = std::span(s.keys[0]).first(key_row);
    CHECK(said(0, in) == "calibration: layer 0: q has 2880 numbers; valid for 1 tokens: 32");
    auto broken = s.keys[0];
    broken[100] = std::numeric_limits<float>::quiet_NaN();
    in = s.layer(0), in.k = broken;
    CHECK(said(0, in) == "calibration: layer 0: a number of k is not finite");
    in.k = s.keys[0], in.q = {};
    CHECK(said(0, in) == "calibration: layer 0: the query map needs q");
    CHECK(said(1, s.layer(1)) ==
          "calibration: layer 1: the query map needs these tokens of layer 0 just before");

    CHECK(f.finish().error().message == "calibration: layer 0 has no samples");
    add(f, 0, s.layer(0));
    CHECK(f.finish().error().message == "calibration: layer 1 has no samples");
    add(f, 1, s.layer(1));
    CHECK(finish(f).adapter == s.fit().adapter); // nothing was left of what was refused

    calibration_fit partly = make({});
    for (std::uint32_t l = 0; l < 2; ++l) add(partly, l, s.layer(l));
    in = s.layer(0), in.q = {};
    add(partly, 0, in);
    CHECK(partly.finish().error().message == "calibration: layer 0 has queries of 90 of its 180 tokens; "
                                             "valid: of all tokens in all layers, or of none");
}
