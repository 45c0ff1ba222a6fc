// Loops with constant bounds.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/unroll.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <type_traits>
#include <vector>

namespace simd_unroll_test {

using kvtl::simd::unrolled, kvtl::simd::with_dim;

TEST_CASE("indices come in order, as constants") {
    std::vector<std::size_t> seen;
    unrolled<5>([&](auto i) {
        static_assert(decltype(i)::value < 5);
        seen.push_back(i);
    });
    CHECK(seen == std::vector<std::size_t>{0, 1, 2, 3, 4});
    unrolled<0>([&](auto) { seen.clear(); });
    CHECK(seen.size() == 5);
}

TEST_CASE("the commonest head sizes are constants, others numbers") {
    for (const std::size_t dim : std::vector<std::size_t>{1, 63, 64, 65, 80, 128, 256}) {
        CAPTURE(dim);
        std::size_t value = 0;
        bool is_constant = false;
        with_dim(dim, [&](auto d) {
            value = d;
            is_constant = !std::is_same_v<decltype(d), std::size_t>;
        });
        CHECK(value == dim);
        CHECK(is_constant == (dim == 64 || dim == 128));
    }
}

} // namespace simd_unroll_test
