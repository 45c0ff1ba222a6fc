// low_rank_keys: scores are Equation 1 of KVSwap; a full-rank adapter gives exact scores.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_low_rank_keys.hpp>

#include "contracts/index.hpp"
#include "support/calibrated.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

namespace index_low_rank_keys_test {

using namespace kvtl;

namespace {

/// States for lanes of every shape that the contract goes through, with the calibration each is bound to.
template <class P> struct bound {
    std::uint32_t rank;
    std::vector<std::unique_ptr<kvtl_test::calibrated>> calibration{};

    [[nodiscard]] auto operator()(const summary_shape& s) {
        const shape model{2, s.lane_heads * s.group, s.lane_heads, s.dim};
        const auto width = static_cast<std::uint32_t>(s.width());
        calibration.push_back(std::make_unique<kvtl_test::calibrated>(model, std::min(rank, width), s.dim));
        typename P::state state({rank}, {});
        state.bind(calibration.back()->view());
        return state;
    }
};

/// (q A_g) . (A^T k) in double precision
double equation_1(rows_view<f16> a, const auto& lane, const float* q, std::uint32_t h, std::uint32_t u,
                  std::uint32_t i) {
    double sum = 0;
    for (std::size_t j = 0; j < a.count; ++j)
        sum += oracle::dot(q, a.row(j) + h * lane.shape().dim, lane.shape().dim) *
               oracle::dot(a.row(j), lane.key(u, i), lane.shape().width());
    return sum;
}

template <class P> void check(std::uint32_t rank, double tolerance, std::size_t element_bytes) {
    bound<P> make{rank};
    kvtl_test::summarising_index_contract<P>(
        std::ref(make), tolerance,
        [&](const summary_shape& s) {
            return s.max_entries * std::min<std::size_t>(rank, s.width()) * element_bytes;
        },
        [&](const auto& lane, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t i) {
            return equation_1(make.calibration.back()->view().adapter(lane.layer), lane, q, h, u, i);
        });
}

} // namespace

TEST_CASE("low_rank_keys") {
    static_assert(layer_wide_only<low_rank_keys> && scores_linearly<low_rank_keys>);
    static_assert(contains(needs_of<low_rank_keys>(), engine_input::calibration));
    check<low_rank_keys>(16, 0x1p-9, 2);
    check<low_rank_keys_as<float>>(100, 1e-5, 4); // neither a multiple of a register nor of a block
}

TEST_CASE("full rank is exact, but for the adapter's rounding") {
    bound<low_rank_keys_as<float>> make{1000};
    kvtl_test::summarising_index_contract<low_rank_keys_as<float>>(
        std::ref(make), 0x1p-10, [](const summary_shape& s) { return s.max_entries * s.width() * 4; },
        [](const auto& lane, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t i) {
            return oracle::dot(q, lane.key(u, i, h), lane.shape().dim);
        });
}

TEST_CASE("a calibration of lower rank than configured is used as far as it goes") {
    const shape model{2, 4, 2, 16};
    const kvtl_test::calibrated few(model, 8, 1);
    low_rank_keys_as<float>::state s({24}, {});
    s.bind(few.view());
    kvtl_test::index_suite::lane<low_rank_keys_as<float>> x(s, {{2, 2, 16, 4}, 10, true}, 3);
    x.absorb_all();
    const auto q = oracle::normal_values<float>(2 * 16, 9);
    const auto got = x.score(q, 2, 1);
    for (std::uint32_t u = 0; u < 10; ++u)
        for (std::uint32_t i = 0; i < 4; ++i)
            CHECK(static_cast<double>(got[u * 4 + i]) ==
                  doctest::Approx(equation_1(few.view().adapter(1), x, q.data(), 1, u, i)).epsilon(1e-4));
}

TEST_CASE("the adapter is held as f16: scores are within its rounding of those by the file's numbers") {
    const shape model{2, 4, 2, 32};
    constexpr std::size_t width = 64, rank = 40;
    std::vector<float> adapter; // (2, rank, width), as the file has it
    for (const std::uint64_t seed : {5U, 6U}) {
        const auto all = kvtl_test::random_rotation(width, seed);
        adapter.insert(adapter.end(), all.begin(), all.begin() + rank * width);
    }
    calibration_writer out(model, 1);
    REQUIRE(out.add(calibration_kind::joint_adapter, rank, adapter));
    const std::string path = (std::filesystem::temp_directory_path() / "kvtl-adapter-of-floats").string();
    REQUIRE(out.write(path));
    const auto loaded = calibration::load(path, model);
    std::filesystem::remove(path);
    REQUIRE(loaded.ok());
    CHECK(loaded->bytes() == 2 * rank * width * sizeof(f16));

    low_rank_keys_as<float>::state s({rank}, {}); // keys as f32: what is off is the adapter
    s.bind(loaded->view());
    kvtl_test::index_suite::lane<low_rank_keys_as<float>> x(s, {{2, 2, 32, 4}, 50, true}, 3);
    x.absorb_all();
    const auto q = oracle::normal_values<float>(2 * 32, 9);
    double largest = 0;
    for (std::uint32_t h = 0; h < 2; ++h) {
        const auto got = x.score(q, 2, h);
        for (std::uint32_t g = 0; g < 2; ++g)
            for (std::uint32_t u = 0; u < 50; ++u)
                for (std::uint32_t i = 0; i < 4; ++i) {
                    const float *const query = &q[g * std::size_t{32}], *const key = x.key(u, i);
                    double exact = 0, magnitude = 0;
                    for (std::size_t j = 0; j < rank; ++j) {
                        const float* const a = &adapter[(x.layer * rank + j) * width];
                        exact += oracle::dot(query, a + h * 32, 32) * oracle::dot(a, key, width);
                        magnitude += oracle::dot_of_magnitudes(query, a + h * 32, 32) *
                                     oracle::dot_of_magnitudes(a, key, width);
                    }
                    const double off = std::fabs(oracle::value(got[(g * 50 + u) * 4 + i]) - exact);
                    CHECK(off <= 1.05 * 2 * 0x1p-11 * magnitude); // each number of A is used twice
                    largest = std::max(largest, off / magnitude);
                }
    }
    CHECK(largest > 0x1p-20); // an f32 adapter would be nearer than that
}

TEST_CASE("a query of the whole lane scores as much as all heads together") {
    const shape model{2, 6, 3, 16};
    const kvtl_test::calibrated bases(model, 20, 1);
    low_rank_keys_as<float>::state s({20}, {});
    s.bind(bases.view());
    kvtl_test::index_suite::lane<low_rank_keys_as<float>> x(s, {{3, 2, 16, 4}, 10, true}, 3);
    x.absorb_all();
    const auto q = oracle::normal_values<float>(3 * 16, 9);
    units_view all = x.table(0);
    all.dim = 3 * 16;
    std::vector<float> got(40), scratch(2 * 20);
    s.score(q.data(), 1, all, got, scratch);
    for (std::uint32_t u = 0; u < 10; ++u)
        for (std::uint32_t i = 0; i < 4; ++i) {
            double sum = 0;
            for (std::uint32_t h = 0; h < 3; ++h)
                sum += equation_1(bases.view().adapter(1), x, &q[h * std::size_t{16}], h, u, i);
            CHECK(static_cast<double>(got[u * 4 + i]) == doctest::Approx(sum).epsilon(1e-4));
        }
}

} // namespace index_low_rank_keys_test
