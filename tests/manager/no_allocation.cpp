// Nothing is allocated after open(): every way to get memory is counted, also while calls fail.
// SPDX-License-Identifier: MIT
#include <kvtl/io/backends.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/count_allocations.hpp"

#include <cstddef>

using namespace kvtl_test;

namespace {

template <class Preset> struct switched : Preset { using io = kvtl::any_io; };

/// Every call there is, through clustering, splits, eviction and reuse; the test's own memory is made before.
template <class Cache> void busy(const kvtl::any_io::config& io, std::uint32_t layers = 2) {
    const kvtl::shape small{layers, 4, 2, 64};
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 400;
    c.max_sequences = 2;
    c.share = true;
    c.attend_tokens = 96;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.min_entries_to_cluster = 64;
    c.memory_bytes = least_memory<Cache>(c) + (std::size_t{768} << 10); // little, but a selection fits
    c.io = io;
    const drift data(small, 400, 41);
    auto cache = open_cache<Cache>(c);
    std::vector<float> out(100 * data.query_floats());
    const std::vector<float> bad(data.query_floats(), NAN);
    const std::span<float> row = std::span(out).first(data.query_floats());
    std::uint64_t splits = 0, accepted = 0;
    kvtl::status trouble; // the first call that did not do what it should
    const auto fine = [&](const kvtl::status& s) {
        if (trouble.ok() && !s.ok()) trouble = s;
    };
    const auto refused = [&](const kvtl::status& s) { accepted += s.ok() ? 1U : 0U; };
    std::size_t rows = 0;

    const std::uint64_t before = kvtl_test::allocations;
    for (int round = 0; round < 2; ++round) {
        auto first = cache.begin(), second = cache.begin();
        if (!first.ok() || !second.ok()) break;
        const kvtl::sequence_id a = *first, b = *second;
        for (std::size_t chunk = 0; chunk < 2; ++chunk)
            for (std::size_t l = 0; l < small.layers; ++l) {
                auto in = data.input(l, chunk * 100, 100);
                in.last_chunk = chunk == 1;
                fine(cache.prefill(a, l, in, out));
            }
        for (std::size_t t = 0; t < 150; ++t)
            for (std::size_t l = 0; l < small.layers; ++l) {
                fine(cache.before_query(a, l));
                fine(cache.prefetch(a, l, data.q(l, t % 3 == 0 ? t : 200 + t)));
                fine(cache.prefetch({&b, 1}, l, data.q(l, t)));
                fine(cache.attend(a, l, data.input(l, 200 + t), row));
                fine(cache.attend(b, l, data.input(l, t), row)); // clustered on the way
            }
        for (std::size_t l = 0; l < small.layers; ++l) {
            auto in = data.input(l, 350);
            in.q = {};
            fine(cache.append(a, l, in));
            fine(cache.select(a, l, data.q(l, 350),
                              [&](std::size_t, auto keys, auto) { rows += keys.count; }));
            fine(cache.prefill(a, l, data.input(l, 351, 20), std::span(out).first(20 * data.query_floats())));
            in.q = bad;
            refused(cache.attend(a, l, in, row));
        }
        fine(cache.rewind(a, 3));
        refused(cache.rewind(a, 300));
        fine(cache.retry_writes(a));
        splits = cache.stats().splits;
        fine(cache.end(a));
        fine(cache.end(b));
        refused(cache.end(b));
    }
    const std::uint64_t during = kvtl_test::allocations - before;

    CHECK(during == 0);
    CHECK_MESSAGE(trouble.ok(), std::string(trouble.what()));
    CHECK(accepted == 0);
    CHECK(splits > 0);
    CHECK(rows > 0);
}

} // namespace

TEST_CASE("the counter counts") {
    const std::uint64_t before = kvtl_test::allocations;
    auto* volatile p = new int(1);
    delete p;
    CHECK(kvtl_test::allocations > before);
}

TEST_CASE("a manager allocates nothing after open") {
    const scratch_folder folder;
    using pages = kvtl::kv_manager<switched<kvtl::presets::dynakv>>;
    busy<pages>(kvtl::any_backend({.use = kvtl::backend::memory}));
    busy<pages>(kvtl::any_backend({.use = kvtl::backend::posix, .path = folder.file("a.kv")}));
    using in_turn = kvtl::kv_manager<switched<kvtl::presets::dynakv_virtualised>>;
    busy<in_turn>(kvtl::any_backend({.use = kvtl::backend::memory}), 4);
    busy<in_turn>(kvtl::any_backend({.use = kvtl::backend::posix, .path = folder.file("a.kv")}), 4);
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
    busy<in_turn>(kvtl::any_backend({.use = kvtl::backend::uring, .path = folder.file("a.kv")}), 4);
    busy<pages>(kvtl::any_backend({.use = kvtl::backend::uring, .path = folder.file("a.kv")}));
#endif
}
