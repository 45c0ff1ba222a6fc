// SPDX-License-Identifier: MIT
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/best.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/decode_error.hpp"
#include "support/random_layer.hpp"

template class kvtl::kv_manager<kvtl::presets::kvtl_best>;

namespace best_test {

namespace {
struct over_f16 : kvtl::presets::kvtl_best {
    using compressor = kvtl::raw<kvtl::f16>;
};
} // namespace

TEST_CASE("kvtl_best with the budget for everything is dense attention over what it stores") {
    const kvtl_test::scratch_folder folder;
    kvtl_test::equals_dense<kvtl::kv_manager<over_f16>>({.io = {.path = folder.file("a.kv")}});
}

TEST_CASE("at an equal number of entries kvtl_best errs less than dynakv_estimate") {
    const double estimate = kvtl_test::decode_error<kvtl::dynakv_estimate>(),
                 best = kvtl_test::decode_error<kvtl::kvtl_best>();
    MESSAGE("error of dynakv_estimate " << estimate << ", of kvtl_best " << best);
    CHECK(best < 0.8 * estimate);
}

namespace {
/// The outputs of decoding 60 tokens behind a prompt of 500, all of it in memory.
struct played {
    std::vector<float> outputs;
    double error = 0;
};
played play(const kvtl_test::drift& data, std::uint32_t centroid_bits, bool prefetch) {
    struct in_ram : kvtl::presets::kvtl_best {
        using io = kvtl::in_memory;
    };
    using cache_type = kvtl::kv_manager<in_ram>;
    cache_type::config c;
    c.shape = data.shape();
    c.max_tokens = 600;
    c.attend_tokens = 96;
    c.memory_bytes = std::size_t{32} << 20;
    c.centroid_bits = centroid_bits;
    auto cache = kvtl_test::open_cache<cache_type>(c);
    kvtl_test::reader<cache_type> one(cache, data, 1);
    one.prefill(500);
    for (int i = 0; i < 60; ++i)
        one.step([&](std::size_t layer) {
            if (prefetch) kvtl_test::require_ok(cache.prefetch(one.id(), layer, data.q(layer, one.tokens())));
        });
    return {one.outputs(), one.error()};
}
} // namespace

TEST_CASE("kvtl_best: a prefetch is a hint, even with the true query") {
    const kvtl_test::drift data({2, 4, 2, 64}, 600, 5);
    CHECK(kvtl_test::same_bits(play(data, 8, true).outputs, play(data, 8, false).outputs));
}

TEST_CASE("kvtl_best: centroids of 32 bits serve as well as those of 8") {
    const kvtl_test::drift data({2, 4, 2, 64}, 600, 5);
    const double rounded = play(data, 8, false).error, exact = play(data, 32, false).error;
    MESSAGE("largest error with 8 bits " << rounded << ", with 32 " << exact);
    CHECK(exact < 1.3 * rounded);
}

TEST_CASE("kvtl_best: a prompt that the engine attends needs no queries") {
    const kvtl_test::drift data({1, 4, 2, 64}, 300, 5);
    const kvtl_test::scratch_folder folder;
    kvtl::kvtl_best::config c;
    c.shape = data.shape();
    c.max_tokens = 300;
    c.memory_bytes = std::size_t{16} << 20;
    c.io.path = folder.file("a.kv");
    auto cache = kvtl_test::open_cache<kvtl::kvtl_best>(c);
    auto in = data.input(0, 0, 200);
    in.q = {};
    kvtl_test::require_ok(cache.prefill(*cache.begin(), 0, in, {}));
}

} // namespace best_test
