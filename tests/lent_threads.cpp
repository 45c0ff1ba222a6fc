// Threads of an engine: every piece of work is done once, and the library has no opinion about who does it.
// SPDX-License-Identifier: MIT
#include <kvtl/lent_threads.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "support/lending.hpp"
#include "support/on_device.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
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

TEST_CASE("what does not do every piece once is refused when a cache is opened") {
    lending pool(3);
    kvtl::lent_threads threads;
    CHECK(threads.check().ok()); // none are lent
    threads = pool.threads();
    CHECK(threads.check().ok());
    threads.count = kvtl::lent_threads{}.count; // nobody has said how many: not one, which would lend nothing
    CHECK(std::string(threads.check().what()) == "threads.count is 0; valid: 1 or more");
    threads.count = 3;
    threads.run = [](void*, std::size_t n, kvtl::lent_threads::task f, void* with) noexcept {
        for (std::size_t i = 1; i < n; ++i) f(with, i);
    };
    CHECK(threads.check().code() == kvtl::errc::invalid_argument);
    CHECK(std::string(threads.check().what()).find("did piece 0 of 8 0 times; valid: once each") !=
          std::string::npos);
    threads.run = [](void*, std::size_t n, kvtl::lent_threads::task f, void* with) noexcept {
        for (std::size_t i = 0; i <= n; ++i) f(with, i % n);
    };
    CHECK(std::string(threads.check().what()).find("did piece 0 of 8 2 times") != std::string::npos);
    using cache = kvtl::kv_manager<kvtl_test::without_file<kvtl::presets::dynakv>>;
    typename cache::config c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = 500;
    c.attend_tokens = 96;
    c.memory_bytes = std::size_t{8} << 20;
    c.threads = threads;
    const auto opened = cache::open(c);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().message.find("threads.run did piece 0") != std::string::npos);
}
