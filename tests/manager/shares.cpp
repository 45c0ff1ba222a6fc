// Sequences divide the frames of a cache by weight: no frame is lost, none has less than it needs, and what each holds is as
// before.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "contracts/io.hpp" // scratch_folder
#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <cmath>
#include <map>
#include <memory>

namespace manager_shares_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape model{2, 4, 2, 64};
constexpr std::size_t max_tokens = 1000;

template <class Preset>
using in_memory_cache = kvtl::kv_manager<without_file<Preset>, kvtl::engine_inputs_for<without_file<Preset>>>;

template <class Cache> typename Cache::config roomy(std::uint32_t sequences, std::size_t more = std::size_t{1} << 20) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = max_tokens;
    c.attend_tokens = 96;
    c.max_sequences = sequences;
    if constexpr (requires { c.clusterer.tokens_per_cluster; }) c.clusterer.tokens_per_cluster = 8;
    c.memory_bytes = least_memory<Cache>(c) + more;
    return c;
}

/// Frames of the pool of each sequence in a shard, in the order of their slots.
template <class Cache> std::vector<std::uint32_t> frames_of(Cache& cache, unsigned shard = 0) {
    std::vector<std::uint32_t> n;
    for (const auto& pool : kvtl::shard_access::of(cache, shard).store().pools()) n.push_back(pool.there());
    return n;
}
std::uint32_t sum(const std::vector<std::uint32_t>& of) {
    std::uint32_t n = 0;
    for (const std::uint32_t i : of) n += i;
    return n;
}
} // namespace

TEST_CASE_TEMPLATE("frames follow weights, and every token is attended as before", Preset, kvtl::presets::dynakv,
                   kvtl::presets::quest) {
    using cache_type = in_memory_cache<Preset>;
    auto c = roomy<cache_type>(3);
    c.attend_tokens = max_tokens + 1; // everything, so that nothing may be lost
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(model, max_tokens, 3);
    auto cache = open_cache<cache_type>(c);
    const auto at_first = frames_of(cache);
    reader<cache_type> one(cache, data, 5), two(cache, data, 5);
    one.prefill(400);
    two.decode(100);
    CHECK(frames_of(cache) == at_first); // nobody has asked for shares
    require_ok(cache.set_share(one.id(), 3));
    const auto now = frames_of(cache);
    CHECK(sum(now) == sum(at_first));
    CHECK(now[2] == 0);
    CHECK(std::fabs(now[0] - 3.0 * now[1]) <= 3.0);
    one.decode(20), two.decode(20);
    require_ok(cache.set_share(two.id(), 3));
    CHECK(std::fabs(static_cast<double>(frames_of(cache)[0]) - frames_of(cache)[1]) <= 1.0);
    one.decode(20), two.decode(20);
    reader<cache_type> three(cache, data, 5);
    CHECK(std::fabs(frames_of(cache)[0] - 3.0 * frames_of(cache)[2]) <= 3.0);
    three.prefill(300, 128);
    three.decode(20), one.decode(20), two.decode(20);
    two.end();
    CHECK(frames_of(cache)[1] == 0);
    CHECK(sum(frames_of(cache)) == sum(at_first));
    one.decode(20), three.decode(20);
    one.check_tokens(), three.check_tokens();
    CHECK(std::max({one.error(), two.error(), three.error()}) < exact);
}

} // namespace manager_shares_test
