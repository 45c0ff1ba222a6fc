// SPDX-License-Identifier: MIT
#include <kvtl/presets/estimate.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"

using any_model = kvtl::geometry<kvtl::shape{}>;

template class kvtl::kv_manager<kvtl::presets::dynakv_estimate, any_model>;

TEST_CASE("dynakv_estimate with the budget for everything is dense attention over f16 entries") {
    const kvtl_test::scratch_folder folder;
    kvtl_test::equals_dense<kvtl::dynakv_estimate<any_model>>({.io = {.path = folder.file("a.kv")}});
}

TEST_CASE("at a small budget the estimate is closer to dense attention than what dynakv reads") {
    const kvtl_test::scratch_folder folder;
    const kvtl_test::drift data({2, 4, 2, 64}, 900, 12);
    const auto error = [&]<class Cache>(Cache*) {
        typename Cache::config c;
        c.shape = data.shape();
        c.max_tokens = 900;
        c.attend_tokens = 96;
        c.memory_bytes = std::size_t{16} << 20;
        c.clusterer.found_entries = 128;
        c.io.path = folder.file("b.kv");
        auto cache = kvtl_test::open_cache<Cache>(c);
        kvtl_test::reader<Cache> one(cache, data, 0);
        one.prefill(500);
        one.decode(400);
        double sum = 0;
        const std::size_t prompt = 500 * data.query_floats() * 2;
        for (std::size_t t = 520; t < 900; t += 20)
            for (std::size_t l = 0; l < 2; ++l) {
                const auto dense = kvtl_test::dense_attention<kvtl::f16>(data, l, t);
                const float* out = &one.outputs()[prompt + ((t - 500) * 2 + l) * data.query_floats()];
                for (std::size_t i = 0; i < dense.size(); ++i)
                    sum += std::pow(static_cast<double>(out[i]) - dense[i], 2);
            }
        return std::sqrt(sum);
    };
    const double without = error(static_cast<kvtl::dynakv<any_model>*>(nullptr));
    const double with = error(static_cast<kvtl::dynakv_estimate<any_model>*>(nullptr));
    MESSAGE("error without " << without << ", with the estimate " << with);
    CHECK(with < 0.6 * without);
}
