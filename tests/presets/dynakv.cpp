// SPDX-License-Identifier: MIT
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"

namespace {
using any_model = kvtl::geometry<kvtl::shape{}>;

struct in_float : kvtl::presets::dynakv {
    using compressor = kvtl::raw<float>;
    using io = kvtl::in_memory;
};
} // namespace

template class kvtl::kv_manager<kvtl::presets::dynakv, any_model>;

TEST_CASE("dynakv with the budget for everything is dense attention") {
    kvtl_test::equals_dense<kvtl::kv_manager<in_float, any_model>>();
}

TEST_CASE("dynakv on a file, in f16, is dense attention over rounded entries") {
    const kvtl_test::scratch_folder folder;
    using cache = kvtl::dynakv<any_model>;
    kvtl_test::run_scenario<cache>({.prompt = 700, .chunk = 300, .decode = 60, .turn = 50, .turn_decode = 10, .smallest = true},
                                   {.io = {.path = folder.file("a.kv")}});
}
