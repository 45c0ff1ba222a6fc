// SPDX-License-Identifier: MIT
#include <kvtl/presets/full.hpp>

#include "support/cache_fixture.hpp"

template class kvtl::kv_manager<kvtl::presets::full>;

namespace full_test {

TEST_CASE("full is dense attention over f16 entries") {
    kvtl_test::equals_dense<kvtl::full>();
}

TEST_CASE("full reads and writes nothing, and counts its window as memory") {
    using cache = kvtl::full;
    const kvtl::shape shape{2, 4, 2, 64};
    const kvtl_test::drift data(shape, 200, 1);
    auto full = kvtl_test::open_cache<cache>({.shape = shape, .max_tokens = 200, .memory_bytes = 4 << 20});
    kvtl_test::reader<cache> one(full, data);
    one.prefill(150, 70);
    one.decode(50);
    CHECK(one.error() < kvtl_test::exact);
    const kvtl::statistics s = full.stats();
    CHECK(s.reads == 0);
    CHECK(s.writes == 0);
    CHECK(s.storage_bytes == 0);
    CHECK(s.bytes_by_part.window >= std::size_t{200} * 2 * 2 * 64 * 2 * 2);
    CHECK(s.bytes_by_part.frames == 0);
    one.rewind(120); // everything is window
    one.decode(10);
    one.rewind(90);
    one.decode(30);
    CHECK(one.error() < kvtl_test::exact);
}

} // namespace full_test
