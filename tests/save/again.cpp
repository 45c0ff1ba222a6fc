// Ten thousand generations of one file: it stays as small as it should, and always has the sequence.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/save/saved_file.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/simulated_disk.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace save_again_test {

using namespace kvtl_test;

namespace {

using cache_type = kvtl::kv_manager<without_file<kvtl::presets::dynakv>>;
using file_type = kvtl::basic_saved_file<simulated_file_ops>;
constexpr kvtl::shape shape{1, 1, 1, 16};
constexpr std::size_t generations = 10'000, prompt = 200;

cache_type opened() {
    cache_type::config c;
    c.shape = shape;
    c.max_tokens = prompt + generations;
    c.attend_tokens = 64;
    c.max_sequences = 1;
    c.memory_bytes = std::size_t{8} << 20;
    c.clusterer.min_entries_to_cluster = 64;
    return open_cache<cache_type>(c);
}

} // namespace

TEST_CASE("a file stays within its bound over ten thousand generations") {
    const drift data(shape, prompt + generations, 4);
    cache_type cache = opened();
    reader<cache_type> one(cache, data, 0);
    one.prefill(prompt);
    simulated_disk disk;
    auto file = file_type::create("seq", 4096, {&disk});
    REQUIRE(file.ok());
    std::uint64_t most_written = 0, written = 0;
    for (std::size_t i = 0; i < generations; ++i) {
        one.decode(1);
        const auto facts = cache.save(one.id(), *file);
        REQUIRE(facts.ok());
        require_ok(file->publish());
        REQUIRE(facts->generation == i + 1);
        written += facts->written_bytes;
        if (i > 0) most_written = std::max(most_written, facts->written_bytes);
        if (i % 1000 != 999) continue;
        CAPTURE(i);
        simulated_disk another;
        auto whole = file_type::create("seq", 4096, {&another});
        REQUIRE(whole.ok());
        cache_type other = opened();
        const auto loaded = other.load(*file);
        REQUIRE(loaded.ok());
        const auto hash = kvtl::shard_access::identity_hash(cache, one.id()),
                   there = kvtl::shard_access::identity_hash(other, loaded->seq);
        REQUIRE((hash.ok() && there.ok()));
        CHECK(*hash == *there);
        const auto all =
            other.save(loaded->seq, *whole); // a save of the other sequence: this one's last stays
        REQUIRE(all.ok());
        CHECK(facts->written_bytes < all->written_bytes / 2);
        CHECK(facts->bytes <= all->bytes + 2 * most_written); // two generations and their difference
    }
    MESSAGE("written per generation: ", written / generations, " bytes, file: ", file->facts().bytes);
}

} // namespace save_again_test
