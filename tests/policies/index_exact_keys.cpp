// exact_keys and sole_keys: scores are those of the stored keys; rebuilt keys are the absorbed ones.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_exact_keys.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

using namespace kvtl;

namespace {

template <class P> using state_of = typename P::template state<geometry<shape{}>>;

template <class P> void check(double tolerance, std::size_t element_bytes) {
    kvtl_test::summarising_index_contract<P>(
        [](const summary_shape&) { return state_of<P>(); }, tolerance,
        [&](const summary_shape& s) { return s.max_entries * s.width() * element_bytes; },
        [](const auto& lane, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t i) {
            return oracle::dot(q, lane.key(u, i, h), lane.shape().dim);
        });
}

} // namespace

TEST_CASE("exact_keys") {
    static_assert(detail::linear_in_query<exact_keys>() && !exact_keys::rebuilds_keys);
    check<exact_keys>(0x1p-11, 2); // f16 keeps eleven digits
    check<sole_keys>(0x1p-11, 2);
    check<keys_in_memory<float, false>>(1e-6, 4);
}

TEST_CASE("sole_keys gives back every key") {
    static_assert(sole_keys::rebuilds_keys);
    const state_of<sole_keys> s;
    kvtl_test::index_suite::lane<sole_keys> x(s, {{3, 2, 20, 4}, 9, true}, 5);
    x.absorb_all();
    std::vector<float> key(60);
    for (std::uint32_t u = 0; u < 9; ++u)
        for (std::uint32_t i = 0; i < 4; ++i) {
            s.rebuild(x.view(), u, i, key.data());
            for (std::size_t c = 0; c < 60; ++c) REQUIRE(key[c] == to_float(from_float<f16>(x.key(u, i)[c])));
        }
}
