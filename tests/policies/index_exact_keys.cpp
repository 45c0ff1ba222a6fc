// exact_keys: scores are those of the absorbed keys.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_exact_keys.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

namespace index_exact_keys_test {

using namespace kvtl;

namespace {

template <class P> using state_of = typename P::state;

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
    static_assert(scores_linearly<exact_keys>);
    check<exact_keys>(0x1p-11, 2); // f16 keeps eleven digits
    check<exact_keys_as<float>>(1e-6, 4);
}

} // namespace index_exact_keys_test
