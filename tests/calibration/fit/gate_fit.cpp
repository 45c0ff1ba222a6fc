// Linear gates: weights that are known are found again, and what is fitted ranks entries as later attention
// does.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/fit/gate_fit.hpp>

#include "support/oracle.hpp"
#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
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

kvtl::gate_fit make(const kvtl::shape& model, const kvtl::gate_fit_options& options) {
    auto f = kvtl::gate_fit::make(model, options);
    REQUIRE_MESSAGE(f.ok(), (f.ok() ? std::string() : f.error().message));
    return *std::move(f);
}

} // namespace

TEST_CASE("the gate finds the direction that queries look in, and its strength") {
    kvtl::gate_fit fit = make(small, {.stride = 4, .distance = 50, .least = 8});
    const double strengths[] = {2.0, 5.0};
    for (std::uint32_t l = 0; l < 2; ++l) {
        const text t(strengths[l]);
        REQUIRE(fit.add(l, t.input()));
    }
    const auto fitted = fit.finish();
    REQUIRE(fitted);
    const auto& g = *fitted;
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
    kvtl::gate_fit fit = make(two, {.stride = 4, .distance = 50, .least = 8});
    kvtl::layer_input in;
    in.q = q, in.k = k, in.v = v;
    REQUIRE(fit.add(0, in));
    const auto fitted = fit.finish();
    REQUIRE(fitted);
    const auto& g = *fitted;
    const std::size_t key = 2 * dim; // of the first head, behind q
    CHECK(std::abs(static_cast<double>(g.weights[key + 1]) - 3 / std::sqrt(8.0)) < 0.05);
    CHECK(std::abs(static_cast<double>(g.weights[g.header.inputs + key + dim + 6]) - 4 / std::sqrt(8.0)) <
          0.05);
    CHECK(std::abs(static_cast<double>(g.weights[key + dim + 6])) < 0.05);
}

TEST_CASE("queries of 16 bits are fitted to as the numbers that they are") {
    const text t(1); // numbers that f16 holds
    std::vector<kvtl::f16> q;
    for (const float x : t.q) q.push_back(kvtl::from_float<kvtl::f16>(x));
    kvtl::gate_fit narrow = make(small, {}), wide = make(small, {});
    for (std::uint32_t l = 0; l < 2; ++l) {
        kvtl::layer_input in = t.input();
        REQUIRE(wide.add(l, in));
        in.q = q;
        REQUIRE(narrow.add(l, in));
    }
    CHECK(narrow.finish()->weights == wide.finish()->weights);
}

TEST_CASE("too few tokens, and inputs that make no sense, are refused") {
    CHECK(kvtl::gate_fit::make(small, {.stride = 0}).error().message == "stride is 0; valid: 1 or more");
    kvtl::gate_fit fit = make(small, {.stride = 4, .distance = 880, .least = 1});
    const text t(1);
    for (std::uint32_t l = 0; l < 2; ++l) REQUIRE(fit.add(l, t.input()));
    CHECK(fit.finish().error().message ==
          "the text is too short to fit gates of 32 inputs: layer 0 has 17 tokens that are seen again");
    const auto said = [&fit](std::uint32_t layer, const kvtl::layer_input& in) {
        return std::string(fit.add(layer, in).what());
    };
    CHECK(said(2, t.input()) == "gates: layer 2; valid: 0 to 1");
    kvtl::layer_input in = t.input();
    in.v = {};
    CHECK(said(0, in) ==
          "gates: layer 0: q, k and v have 14400, 7200 and 0 floats; valid: 16, 8 and 8 per token");
    auto broken = t.q;
    broken[7] = std::numeric_limits<float>::infinity();
    in = t.input(), in.q = broken;
    CHECK(said(0, in) == "gates: layer 0: a number is not finite");
}

TEST_CASE("gates are written as the cache reads them") {
    const kvtl_test::scratch_folder folder;
    kvtl::gate_fit fit = make(small, {.stride = 4, .distance = 50, .least = 8});
    const text t(1);
    for (std::uint32_t l = 0; l < 2; ++l) REQUIRE(fit.add(l, t.input()));
    const auto gates = fit.finish();
    REQUIRE(gates);
    REQUIRE(gates->write(folder.file("a.gates")));
    CHECK(std::filesystem::file_size(folder.file("a.gates")) == gates->header.blob_bytes());
    CHECK(gates->write(folder.file("no/a.gates")).code() == kvtl::errc::io_error);
}
