// pca_channels and skewed_channels: scores are products in the leading channels of the bases; all channels
// are exact.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_rotated_channels.hpp>

#include "contracts/index.hpp"
#include "support/calibrated.hpp"

#include <doctest/doctest.h>

#include <numeric>

namespace index_rotated_channels_test {

using namespace kvtl;

namespace {

template <class P> struct bound {
    typename P::config config;
    std::vector<std::unique_ptr<kvtl_test::calibrated>> calibration{};

    [[nodiscard]] auto operator()(const summary_shape& s) {
        const shape model{2, s.lane_heads * s.group, s.lane_heads, s.dim};
        calibration.push_back(std::make_unique<kvtl_test::calibrated>(model, 4, s.dim));
        typename P::state state(config, {});
        state.bind(calibration.back()->view());
        return state;
    }
};

/// The product in the first `channels` rows of the basis, of which the query's `read` largest count.
double product(rows_view<float> basis, std::size_t channels, std::size_t read, const float* q,
               const float* k) {
    std::vector<double> of_q, of_k;
    for (std::size_t j = 0; j < std::min(channels, basis.count); ++j) {
        of_q.push_back(oracle::dot(basis.row(j), q, basis.dim));
        of_k.push_back(oracle::dot(basis.row(j), k, basis.dim));
    }
    std::vector<std::size_t> order(of_q.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return std::fabs(of_q[a]) > std::fabs(of_q[b]); });
    order.resize(std::min(read, order.size()));
    double sum = 0;
    for (const std::size_t j : order) sum += of_q[j] * of_k[j];
    return sum;
}

template <class P>
void check(const typename P::config& config, std::size_t read, double tolerance, std::size_t element_bytes) {
    bound<P> make{config};
    kvtl_test::summarising_index_contract<P>(
        std::ref(make), tolerance,
        [&](const summary_shape& s) {
            return s.max_entries * s.lane_heads * std::min(config.channels, s.dim) * element_bytes;
        },
        [&](const auto& lane, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t i) {
            const calibration_view& c = make.calibration.back()->view();
            return product(P::skewed ? c.skew_basis(1, h) : c.pca_basis(1, h), config.channels, read, q,
                           lane.key(u, i, h));
        });
}

} // namespace

TEST_CASE("pca_channels") {
    static_assert(scores_linearly<pca_channels> && !layer_wide_only<pca_channels>);
    check<pca_channels>({10}, 1000, 0x1p-9, 2);
    check<rotated_channels<calibration_kind::pca_basis, float>>({70}, 1000, 1e-5, 4);
}

TEST_CASE("skewed_channels") {
    static_assert(!scores_linearly<skewed_channels>);
    check<skewed_channels>({20, 7}, 7, 0x1p-9, 2);
    check<rotated_channels<calibration_kind::skew_basis, float>>({64, 13}, 13, 1e-5, 4);
}

TEST_CASE("all channels are exact") {
    const auto exact = [](const auto& lane, const float* q, std::uint32_t h, std::uint32_t u,
                          std::uint32_t i) { return oracle::dot(q, lane.key(u, i, h), lane.shape().dim); };
    const auto bytes = [](const summary_shape& s) { return s.max_entries * s.width() * 4; };
    using pca = rotated_channels<calibration_kind::pca_basis, float>;
    bound<pca> make_pca{{1000}};
    kvtl_test::summarising_index_contract<pca>(std::ref(make_pca), 1e-5, bytes, exact);
    using skew = rotated_channels<calibration_kind::skew_basis, float>;
    bound<skew> make_skew{{1000, 1000}};
    kvtl_test::summarising_index_contract<skew>(std::ref(make_skew), 1e-5, bytes, exact);
}

TEST_CASE("each KV head of the model has its own basis, whichever lane it is in") {
    const kvtl_test::calibrated c({2, 4, 4, 16}, 4, 77);
    using pca = rotated_channels<calibration_kind::pca_basis, float>;
    pca::state s({5}, {});
    s.bind(c.view());
    for (const std::uint32_t heads : {1U, 2U})
        for (std::uint32_t first = 0; first < 4; first += heads) {
            kvtl_test::index_suite::lane<pca> x(s, {{heads, 1, 16, 2}, 6, true}, 3);
            x.first_head = first;
            x.absorb_all();
            const auto q = oracle::normal_values<float>(16, 9);
            const auto got = x.score(q, 1, heads - 1);
            for (std::uint32_t i = 0; i < 12; ++i)
                CHECK(static_cast<double>(got[i]) ==
                      doctest::Approx(product(c.view().pca_basis(1, first + heads - 1), 5, 5, q.data(),
                                              x.key(i / 2, i % 2, heads - 1)))
                          .epsilon(1e-4));
        }
}

TEST_CASE("the largest magnitudes stay, ties go to the lower index") {
    std::vector<float> scratch(8);
    const auto kept = [&](std::vector<float> x, std::size_t n) {
        detail::keep_largest_magnitudes(x, n, scratch);
        return x;
    };
    const std::vector<float> x = {1, -5, 2, 5, 0, -2, 2, 4};
    CHECK(kept(x, 0) == std::vector<float>(8, 0.0F));
    CHECK(kept(x, 1) == std::vector<float>{0, -5, 0, 0, 0, 0, 0, 0});
    CHECK(kept(x, 2) == std::vector<float>{0, -5, 0, 5, 0, 0, 0, 0});
    CHECK(kept(x, 5) == std::vector<float>{0, -5, 2, 5, 0, -2, 0, 4});
    CHECK(kept(x, 7) == std::vector<float>{1, -5, 2, 5, 0, -2, 2, 4});
    CHECK(kept(x, 8) == x);
    CHECK(kept(x, 100) == x);
}

} // namespace index_rotated_channels_test
