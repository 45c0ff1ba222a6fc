// low_rank_rebuild: units score as their mean key; keys of low rank before RoPE come back, and all keys at
// full rank.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_low_rank_rebuild.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

#include <complex>

using namespace kvtl;

namespace {

using exact = low_rank_rebuild_as<float>;
template <class P> using state_of = typename P::template state<geometry<shape{}>>;

template <class P> state_of<P> make(const summary_shape& s, const typename P::config& c) {
    const auto model = geometry<shape{}>::from({2, s.lane_heads * s.group, s.lane_heads, s.dim});
    REQUIRE(model.ok());
    return {c, *model};
}

/// RoPE as it is defined: a pair is a complex number, multiplied by exp(i position frequency).
std::vector<double> rotated(std::vector<double> x, const rope& r, double position) {
    const std::size_t dims = r.dims == 0 ? x.size() : r.dims;
    for (std::size_t p = 0; p < dims / 2; ++p) {
        const std::size_t a = r.neighbours ? 2 * p : p, b = r.neighbours ? 2 * p + 1 : p + dims / 2;
        const double angle =
            position * std::pow(r.theta, -2.0 * static_cast<double>(p) / static_cast<double>(dims));
        const auto turned = std::complex<double>(x[a], x[b]) * std::polar(1.0, angle);
        x[a] = turned.real();
        x[b] = turned.imag();
    }
    return x;
}

/// Keys after RoPE whose flat vectors before it span `rank` directions.
struct low_rank_lane {
    summary_shape shape;
    std::vector<float> keys; ///< (tokens, width) at positions 0, 1, ...

    low_rank_lane(const summary_shape& s, std::uint32_t tokens, std::uint32_t rank, const rope& r,
                  std::uint64_t seed)
        : shape(s) {
        const std::size_t width = s.width();
        const auto directions = oracle::normal_values<float>(rank * width, seed);
        oracle::generator random(seed + 1);
        for (std::uint32_t t = 0; t < tokens; ++t) {
            std::vector<double> pre(width, 0.0);
            for (std::uint32_t j = 0; j < rank; ++j) {
                const double c = random.normal() / (1.0 + j);
                for (std::size_t i = 0; i < width; ++i)
                    pre[i] += c * static_cast<double>(directions[j * width + i]);
            }
            for (std::uint32_t h = 0; h < s.lane_heads; ++h) {
                const auto first = pre.begin() + h * s.dim;
                for (const double x : rotated({first, first + s.dim}, r, t))
                    keys.push_back(static_cast<float>(x));
            }
        }
    }
};

struct alignas(64) line {
    std::byte bytes[64];
};

/// Fits to the first `prompt` tokens, absorbs all that come after the sinks, and returns the largest error of
/// a rebuilt key relative to its length.
template <class P>
double rebuild_error(const low_rank_lane& x, const typename P::config& c, std::uint32_t prompt) {
    const state_of<P> s = make<P>(x.shape, c);
    const std::size_t width = x.shape.width();
    const auto tokens = static_cast<std::uint32_t>(x.keys.size() / width), group = x.shape.max_entries;
    const std::uint32_t units = (tokens - c.first_position) / group;
    std::vector<line> lane(s.lane_bytes(x.shape) / 64 + 1), unit(units * s.unit_bytes(x.shape) / 64 + 1),
        scratch(s.fit_scratch_bytes(x.shape, tokens) / 64 + 1);
    const summary_view view{reinterpret_cast<std::byte*>(lane.data()),
                            reinterpret_cast<std::byte*>(unit.data()), s.unit_bytes(x.shape), x.shape};
    if (prompt != 0)
        s.fit(view, {x.keys.data(), prompt, width, width}, std::as_writable_bytes(std::span(scratch)));
    for (std::uint32_t u = 0; u < units; ++u) {
        s.clear(view, u);
        for (std::uint32_t i = 0; i < group; ++i) {
            const float* key = &x.keys[(c.first_position + u * group + i) * width];
            s.absorb(view, u, i, key, key);
        }
    }
    std::vector<float> key(width);
    oracle::largest_error worst;
    for (std::uint32_t u = 0; u < units; ++u)
        for (std::uint32_t i = 0; i < group; ++i) {
            s.rebuild(view, u, i, key.data());
            const float* original = &x.keys[(c.first_position + u * group + i) * width];
            worst.see(std::sqrt(oracle::l2sq(key.data(), original, width) /
                                oracle::dot(original, original, width)));
        }
    return worst.value();
}

} // namespace

TEST_CASE("low_rank_rebuild scores with the mean key") {
    static_assert(low_rank_rebuild::rebuilds_keys && detail::linear_in_query<low_rank_rebuild>());
    const auto mean_product = [](const auto& x, const float* q, std::uint32_t h, std::uint32_t u,
                                 std::uint32_t) {
        double sum = 0;
        for (std::uint32_t i = 0; i < x.entries(u); ++i) sum += oracle::dot(q, x.key(u, i, h), x.shape().dim);
        return sum / x.entries(u);
    };
    kvtl_test::summarising_index_contract<low_rank_rebuild>(
        [](const summary_shape& s) {
            return make<low_rank_rebuild>(s, {.rank = 20, .sample = 30, .iterations = 2});
        },
        0x1p-11,
        [](const summary_shape& s) {
            return 2 * (s.width() + s.max_entries * std::min<std::size_t>(20, s.width()));
        },
        mean_product);
}

TEST_CASE("keys of low rank before RoPE come back, later ones too, for every kind of RoPE") {
    for (const rope& r : {rope{}, rope{.theta = 500000.0, .neighbours = true}, rope{.dims = 16}})
        for (const std::uint32_t heads : {1U, 3U}) {
            const low_rank_lane x({heads, 2, 32, 4}, 300, 10, r, heads);
            for (const std::uint32_t sinks : {0U, 5U}) {
                const exact::config c{.rank = 10, .sample = 128, .first_position = sinks, .rope = r};
                CHECK(rebuild_error<exact>(x, c, 200) < 1e-4);
                const low_rank_rebuild::config f16{
                    .rank = 10, .sample = 128, .first_position = sinks, .rope = r};
                CHECK(rebuild_error<low_rank_rebuild>(x, f16, 200) < 3e-3);
            }
        }
}

TEST_CASE("the rotation, its pairing and the first position matter") {
    const rope r{.theta = 10000.0, .neighbours = true};
    const low_rank_lane x({1, 1, 32, 4}, 200, 6, r, 9);
    const exact::config right{.rank = 6, .first_position = 3, .rope = r};
    CHECK(rebuild_error<exact>(x, right, 200) < 1e-4);
    auto wrong = right;
    wrong.rope.neighbours = false;
    CHECK(rebuild_error<exact>(x, wrong, 200) > 0.1);
    wrong = right;
    wrong.rope.theta = 500.0;
    CHECK(rebuild_error<exact>(x, wrong, 200) > 0.1);
    wrong = right;
    wrong.rank = 4; // too few directions
    CHECK(rebuild_error<exact>(x, wrong, 200) > 0.1);
}

TEST_CASE("full rank is exact, whatever was fitted or not") {
    const low_rank_lane x({2, 1, 16, 2}, 100, 32, {}, 4);
    CHECK(rebuild_error<exact>(x, {.rank = 1000}, 100) < 1e-5);
    CHECK(rebuild_error<exact>(x, {.rank = 1000}, 3) < 1e-5); // fewer keys than directions
    CHECK(rebuild_error<exact>(x, {.rank = 1000}, 0) < 1e-5); // no prompt
}

TEST_CASE("far from the first position angles keep their digits") {
    rotation turn({}, 64);
    auto x = oracle::normal_values<float>(64, 3);
    const std::vector<double> pre(x.begin(), x.end());
    turn.turn(x.data(), 1, 64, 131071.0);
    const auto there = rotated(pre, {}, 131071.0);
    for (std::size_t i = 0; i < 64; ++i) CHECK(std::fabs(static_cast<double>(x[i]) - there[i]) < 1e-6);
    turn.turn(x.data(), 1, 64, -131071.0);
    for (std::size_t i = 0; i < 64; ++i) CHECK(std::fabs(static_cast<double>(x[i]) - pre[i]) < 1e-6);
}

TEST_CASE("orthonormal rows, even from dependent ones") {
    std::vector<float> y(6 * 8, 1.0F); // six times the same row
    for (std::size_t i = 0; i < 8; ++i) y[3 * 8 + i] = 0.0F;
    detail::orthonormalise(y.data(), 6, 8);
    for (std::size_t i = 0; i < 6; ++i)
        for (std::size_t j = 0; j < 6; ++j)
            CHECK(oracle::dot(&y[i * 8], &y[j * 8], 8) == doctest::Approx(i == j ? 1.0 : 0.0).epsilon(1e-5));
}
