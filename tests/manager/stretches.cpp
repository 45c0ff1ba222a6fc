// Prompts attend longer stretches of rows where memory has room: the same bits as with the least memory.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/int8.hpp>
#include <kvtl/presets/quest.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <cstddef>
#include <vector>

namespace manager_stretches_test {

using namespace kvtl_test;

TEST_CASE_TEMPLATE("a prompt has the same bits whatever memory there is", Preset, kvtl::presets::quest,
                   kvtl::presets::flexgen, kvtl::presets::full_int8) {
    using cache_t = kvtl::kv_manager<without_file<Preset>>;
    constexpr kvtl::shape model{2, 4, 2, 64};
    const drift data(model, 1100, 51);
    typename cache_t::config c;
    c.shape = model;
    c.max_tokens = 1100;
    c.attend_tokens = 1100;
    const std::size_t least = least_memory<cache_t>(c);
    std::vector<float> outputs;
    for (const std::size_t more : {std::size_t{0}, std::size_t{24} << 20, std::size_t{128} << 20}) {
        c.memory_bytes = least + more;
        auto cache = open_cache<cache_t>(c);
        CHECK(cache.stats().bytes_by_part.total() <= c.memory_bytes);
        reader<cache_t> one(cache, data, more == 0 ? 7 : 0);
        one.prefill(700, 300);
        one.prefill(300); // a further turn
        if (more == 0) {
            CHECK(one.error() < 0.1); // codes of bytes
            outputs = one.outputs();
        }
        CHECK(same_bits(one.outputs(), outputs));
    }
    const auto scratch = [&](std::size_t more) {
        c.memory_bytes = least + more;
        return open_cache<cache_t>(c).stats().bytes_by_part.scratch;
    };
    CHECK(scratch(std::size_t{128} << 20) >= scratch(0) + 100'000); // else nothing is tested
}

TEST_CASE("heads of one number: what 128 tokens have seen fits, too") {
    using cache_t = kvtl::kv_manager<without_file<kvtl::presets::full_int8>>;
    constexpr kvtl::shape model{1, 64, 1, 1};
    const drift data(model, 400, 52);
    typename cache_t::config c;
    c.shape = model;
    c.max_tokens = 400;
    c.attend_tokens = 400;
    c.memory_bytes = least_memory<cache_t>(c);
    auto cache = open_cache<cache_t>(c);
    reader<cache_t> one(cache, data, 7);
    one.prefill(200, 200);
    one.prefill(200, 200);
    CHECK(one.error() < 0.1);
}

} // namespace manager_stretches_test
