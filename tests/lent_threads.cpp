// Threads of an engine: every piece of work is done once, and the library has no opinion about who does it.
// SPDX-License-Identifier: MIT
#include <kvtl/lent_threads.hpp>

#include "support/lending.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <vector>

using kvtl_test::lending;

TEST_CASE("work is divided into parts that are worth it, and no more than there are threads") {
    lending pool(4);
    const kvtl::lent_threads none, some = pool.threads();
    for (const std::size_t n : {0U, 1U, 511U, 512U, 1000000U}) CHECK(none.parts(n, 256) == 1);
    CHECK(some.parts(0, 256) == 1);
    CHECK(some.parts(511, 256) == 1);
    CHECK(some.parts(512, 256) == 2);
    CHECK(some.parts(1023, 256) == 3);
    CHECK(some.parts(1 << 20, 256) == 4);
    CHECK(lending(1).threads().parts(1 << 20, 256) == 1);
}

TEST_CASE("every piece is done once") {
    lending pool(3);
    for (const std::size_t n : {1U, 2U, 7U, 1000U})
        for (const std::size_t parts : {1U, 2U, 3U, 7U}) {
            std::vector<std::atomic<int>> done(n);
            pool.threads().divide(n, parts, [&](std::size_t first, std::size_t end) noexcept {
                for (std::size_t i = first; i < end; ++i) ++done[i];
            });
            for (const auto& d : done) CHECK(d == 1);
        }
    CHECK(pool.calls() == 12); // of sixteen, four had one part
}
