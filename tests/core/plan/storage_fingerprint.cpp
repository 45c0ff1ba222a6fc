// What tells cache files apart: what shapes their bytes, and nothing that only chooses among them.
// SPDX-License-Identifier: MIT
#include <kvtl/core/plan/planner.hpp>
#include <kvtl/core/plan/storage_fingerprint.hpp>
#include <kvtl/presets/clusterkv.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/token_topk.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <string>

namespace core_plan_storage_fingerprint_test {

namespace {

template <class Preset>
std::uint64_t print_of(const std::function<void(kvtl::cache_config<Preset>&)>& change = {}) {
    kvtl::cache_config<Preset> c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = 1000;
    c.memory_bytes = std::size_t{64} << 20;
    if (change) change(c);
    const auto g = kvtl::geometry::from(c.shape);
    const auto planned = kvtl::planner<Preset>::plan(c, *g, 4096);
    REQUIRE_MESSAGE(planned.ok(), (planned.ok() ? std::string() : planned.error().message));
    return kvtl::storage_fingerprint<Preset>(c, planned->plan);
}
using kvtl::presets::dynakv;
struct full_precision : dynakv {
    using compressor = kvtl::raw<float>;
};
struct elsewhere : dynakv {
    using layout = kvtl::unit_contiguous;
};
struct otherwise_chosen : dynakv {
    using selector = kvtl::topk<kvtl::reduce::softmax_sum>;
    using replacement = kvtl::lru;
    using io = kvtl::in_memory;
};
} // namespace

TEST_CASE("slots that shape stored bytes tell files apart") {
    const std::uint64_t all[] = {print_of<dynakv>(),
                                 print_of<full_precision>(),
                                 print_of<elsewhere>(),
                                 print_of<kvtl::presets::clusterkv>(),
                                 print_of<kvtl::presets::no_cluster>(),
                                 print_of<kvtl::presets::no_cluster_streamed>(),
                                 print_of<kvtl::presets::flexgen>()};
    for (std::size_t i = 0; i < std::size(all); ++i)
        for (std::size_t j = 0; j < i; ++j) {
            CAPTURE(i);
            CAPTURE(j);
            CHECK(all[i] != all[j]);
        }
}

TEST_CASE("fields that size units count, others do not") {
    const std::uint64_t plain = print_of<dynakv>();
    CHECK(print_of<dynakv>() == plain);
    CHECK(print_of<dynakv>([](auto& c) { c.clusterer.tokens_per_cluster = 64; }) != plain);
    CHECK(print_of<dynakv>([](auto& c) { c.clusterer.threshold_scale = 3; }) == plain);
    CHECK(print_of<dynakv>([](auto& c) { c.attention.scale = 3; }) == plain);
    CHECK(print_of<dynakv>([](auto& c) { c.attention.windows = {20, 0}; }) != plain);
    CHECK(print_of<dynakv>([](auto& c) { c.clusterer.pending_entries = 9; }) == plain);
    CHECK(print_of<dynakv>([](auto& c) { c.attend_tokens = 100; }) == plain);
    CHECK(print_of<dynakv>([](auto& c) { c.memory_bytes = std::size_t{80} << 20; }) == plain);
    CHECK(print_of<dynakv>([](auto& c) { c.window_tokens = 16; }) == plain);
}

TEST_CASE("choosing, caching, devices and retention are no part of it") {
    CHECK(print_of<otherwise_chosen>() == print_of<dynakv>());
    CHECK(print_of<kvtl::presets::snapkv_then_dynakv>() == print_of<dynakv>());
}

} // namespace core_plan_storage_fingerprint_test
