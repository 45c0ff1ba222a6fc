// What every position policy promises: one that moves nothing asks for nothing; one that moves turns a query
// back by exactly the rotation that the model gave it, so that its products with stored keys are those of a
// distance that is so much shorter.
//
//   position_contract<original>({});
//   position_contract<rolling>(config, [](std::vector<double> x, double positions) { return x rotated; });
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/slots/position.hpp>

#include "support/guarded_bytes.hpp"
#include "support/oracle.hpp"
#include "support/settings.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

namespace kvtl_test {

namespace position_suite {

template <class P> using state_of = typename P::state;

template <class P> void declares() {
    static_assert(kvtl::position_for<P>);
    static_assert(std::is_trivially_copyable_v<state_of<P>>);
    CHECK(!std::string_view(P::name).empty());
    CHECK(setting_names(typename P::config{}).size() <= 4);
}

/// Heads of normal numbers, as the model would have rotated them to `position`.
template <class Rotate>
std::vector<float> rotated(std::uint32_t heads, std::uint32_t dim, double position, std::uint64_t seed,
                           const Rotate& rotate) {
    const auto x = oracle::normal_values(std::size_t{heads} * dim, seed);
    std::vector<float> all;
    for (std::uint32_t h = 0; h < heads; ++h)
        for (const double y : rotate(std::vector<double>(&x[h * dim], &x[h * dim] + dim), position))
            all.push_back(static_cast<float>(y));
    return all;
}
inline double length(const float* x, std::size_t n) {
    return std::sqrt(oracle::dot(x, x, n));
}

} // namespace position_suite

/// `rotate(x, positions)`: a head in double precision, turned forwards as the model does it.
template <class P, class Rotate>
void position_contract(const typename P::config& config, std::uint32_t dim, const Rotate& rotate) {
    using namespace position_suite;
    declares<P>();
    static_assert(P::moves);
    REQUIRE(state_of<P>::check(config, dim).ok());
    guarded_bytes memory(state_of<P>::bytes(dim)), used(state_of<P>::bytes(dim), 0x5A);
    state_of<P> s(config, dim, memory.memory()), other(config, dim, used.memory());
    std::vector<std::vector<float>> results;
    struct question {
        std::uint32_t heads, at, back;
    };
    const std::vector<question> questions = {{1, 0, 0},     {4, 100, 0},         {2, 100, 100}, {3, 7, 3},
                                             {1, 5000, 17}, {4, 131072, 131000}, {2, 100, 100}, {8, 64, 1}};
    const auto turn = [&](state_of<P>& turning, const question& x, const std::vector<float>& q) {
        std::vector<float> out(q.size() + 8, -12345.0F);
        turning.turn_back(q.data(), x.heads, x.back, out.data());
        CHECK(std::all_of(out.end() - 8, out.end(), [](float f) { return f == -12345.0F; }));
        out.resize(q.size());
        return out;
    };
    oracle::largest_error turned, products, lengths;
    for (const question& x : questions) {
        const auto q = rotated(x.heads, dim, x.at, 1, rotate);
        const auto expected = rotated(x.heads, dim, static_cast<double>(x.at) - x.back, 1, rotate);
        const auto key = rotated(1, dim, 3, 2, rotate);
        const auto out = turn(s, x, q);
        for (std::uint32_t h = 0; h < x.heads; ++h) {
            const float* got = &out[h * dim];
            const double size = length(&q[h * dim], dim);
            for (std::uint32_t d = 0; d < dim; ++d)
                turned.relative(static_cast<double>(got[d]), static_cast<double>(expected[h * dim + d]),
                                size);
            products.relative(oracle::dot(got, key.data(), dim),
                              oracle::dot(&expected[h * dim], key.data(), dim),
                              size * length(key.data(), dim));
            lengths.relative(length(got, dim), size);
        }
        if (x.back == 0) CHECK(out == q);
        results.push_back(out);
    }
    CHECK(turned.value() < 5e-7); // q comes rounded to float
    CHECK(products.value() < 5e-7);
    CHECK(lengths.value() < 5e-7);
    // In the other order, on memory that was used: the same bits.
    for (std::size_t i = questions.size(); i-- > 0;)
        CHECK(turn(other, questions[i], rotated(questions[i].heads, dim, questions[i].at, 1, rotate)) ==
              results[i]);
    CHECK(memory.intact());
    CHECK(used.intact());
}
/// For one that moves nothing.
template <class P> void position_contract(const typename P::config& config) {
    using namespace position_suite;
    declares<P>();
    static_assert(!P::moves);
    CHECK(state_of<P>::bytes(128) == 0);
    CHECK(state_of<P>::check(config, 128).ok());
    CHECK(kvtl::needs_of<P>() == kvtl::engine_input::nothing);
}

} // namespace kvtl_test
