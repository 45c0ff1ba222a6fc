// Linear gates: weights that are known are found again, and what is fitted ranks entries as later attention
// does.
// SPDX-License-Identifier: MIT
#include "gate_fit.hpp"

#include "error.hpp"
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace {

constexpr kvtl::shape small{.layers = 2, .query_heads = 2, .kv_heads = 1, .head_dim = 8};
constexpr std::size_t tokens = 900, dim = 8;

/// All queries look in one direction, so that an entry's later attention grows with its key's part in it: the
/// log of the relative mass is that part times a constant, plus one. The strength differs by layer.
struct text {
    std::vector<float> q, k, v;
    explicit text(double strength)
        : q(tokens * 2 * dim), k(oracle::normal_values(tokens * dim, 71, 0.5)),
          v(oracle::normal_values(tokens * dim, 72)) {
        for (std::size_t i = 0; i < tokens * 2; ++i) q[i * dim + 3] = static_cast<float>(strength);
    }
    [[nodiscard]] kvtl::layer_input input() const {
        kvtl::layer_input in;
        in.q = q, in.k = k, in.v = v;
        return in;
    }
};

} // namespace

TEST_CASE("the gate finds the direction that queries look in, and its strength") {
    engine::gate_fit fit(small, {.stride = 4, .distance = 50, .least = 8});
    const double strengths[] = {2.0, 5.0};
    for (std::uint32_t l = 0; l < 2; ++l) fit.add(l, text(strengths[l]).input());
    const auto g = fit.finish();
    REQUIRE(g.header.inputs == (2 + 2) * dim);
    REQUIRE(g.weights.size() == 2 * g.header.layer_floats());
    for (std::size_t l = 0; l < 2; ++l) {
        CHECK(g.explained[l] > 0.99);
        const float* w = g.weights.data() + l * g.header.layer_floats();
        for (std::size_t i = 2 * dim; i < g.header.inputs; ++i) { // q is the same for all: no say
            const double expected = i == 2 * dim + 3 ? strengths[l] / std::sqrt(8.0) : 0;
            CHECK(std::abs(static_cast<double>(w[i]) - expected) < 0.03);
        }
    }
}

TEST_CASE("the gate speaks for the entries of its own head") {
    constexpr kvtl::shape two{.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 8};
    const auto k = oracle::normal_values(tokens * 2 * dim, 73, 0.5),
               v = oracle::normal_values(tokens * 2 * dim, 74);
    std::vector<float> q(tokens * 2 * dim);
    for (std::size_t t = 0; t < tokens; ++t) q[t * 2 * dim + 1] = 3, q[(t * 2 + 1) * dim + 6] = 4;
    engine::gate_fit fit(two, {.stride = 4, .distance = 50, .least = 8});
    kvtl::layer_input in;
    in.q = q, in.k = k, in.v = v;
    fit.add(0, in);
    const auto g = fit.finish();
    const std::size_t key = 2 * dim; // of the first head, behind q
    CHECK(std::abs(static_cast<double>(g.weights[key + 1]) - 3 / std::sqrt(8.0)) < 0.05);
    CHECK(std::abs(static_cast<double>(g.weights[g.header.inputs + key + dim + 6]) - 4 / std::sqrt(8.0)) <
          0.05);
    CHECK(std::abs(static_cast<double>(g.weights[key + dim + 6])) < 0.05);
}

TEST_CASE("a text with too few tokens is refused") {
    engine::gate_fit fit(small, {.stride = 4, .distance = 880, .least = 1});
    for (std::uint32_t l = 0; l < 2; ++l) fit.add(l, text(1).input());
    CHECK_THROWS_AS(static_cast<void>(fit.finish()), engine::bad_input);
}
