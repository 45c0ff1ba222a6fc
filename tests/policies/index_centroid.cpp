// centroid: the score is the inner product with the unit's mean.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_centroid.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

namespace index_centroid_test {

using namespace kvtl;

TEST_CASE("centroid") {
    static_assert(centroid::needs_means && contains(needs_of<centroid>(), engine_input::q | engine_input::k));
    kvtl_test::index_contract<centroid>(
        {}, [](const float* q, const float* mean, std::size_t dim) { return oracle::dot(q, mean, dim); });
}

} // namespace index_centroid_test
