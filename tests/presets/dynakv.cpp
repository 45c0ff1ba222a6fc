// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"

template class kvtl::kv_manager<kvtl::presets::dynakv>;

namespace dynakv_test {

TEST_CASE("dynakv with the budget for everything is dense attention over f16 entries") {
    const kvtl_test::scratch_folder folder;
    kvtl_test::equals_dense<kvtl::dynakv>({.io = {.path = folder.file("a.kv")}});
}

} // namespace dynakv_test
