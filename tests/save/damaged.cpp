// Sequences of real caches on a disk that turns bits, fails and lies: rows, fixed groups and clusters. A load gives the
// sequence of a published generation, to the last byte of its identity, or an error and no sequence; a save that fails changes
// nothing of its sequence.
//
// KVTL_FLIPS=10000 build/test/bin/test_save_damaged     as many turned bits for each preset (here 400)
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/save/saved_file.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/simulated_disk.hpp"

#include <cstdlib>
#include <limits>
#include <optional>

namespace save_damaged_test {

using namespace kvtl_test;

namespace {

using file_type = kvtl::basic_saved_file<simulated_file_ops>;
constexpr kvtl::shape shape{2, 2, 1, 16};
constexpr std::size_t prompt = 150, more = 20;
constexpr std::size_t for_ever = std::numeric_limits<std::size_t>::max();

/// A cache that saves, and one that loads.
template <class Preset> class caches {
  public:
    using cache_type = kvtl::kv_manager<without_file<Preset>>;

    /// What the sequence is when generation 1 or 2 is saved; [0] is nothing.
    std::uint64_t hashes[3] = {};

    caches() {
        simulated_disk disk;
        REQUIRE(run(disk).published == 2);
        operations = disk.operations;
    }

    struct progress {
        std::uint64_t published = 0, begun = 0;
    };
    /// Saves a sequence and, some tokens later, again; gives up a file at the first error. Then loads what is there.
    progress run(simulated_disk& disk) {
        progress p;
        reader<cache_type> one(from_, data_, 0);
        one.prefill(prompt);
        std::optional<file_type> file;
        for (const std::uint64_t g : {1U, 2U}) {
            const std::uint64_t before = hash_of(from_, one.id());
            if (hashes[g] == 0) hashes[g] = before;
            REQUIRE(hashes[g] == before); // whatever the save before came to
            if (!file) {
                auto made =
                    g == 1 ? file_type::create("seq", 4096, {&disk}) : file_type::open("seq", {&disk});
                if (made) file.emplace(*std::move(made));
            }
            if (file && file->facts().generation + 1 == g) {
                const auto saved = from_.save(one.id(), *file);
                if (saved) p.begun = g;
                if (saved && file->publish())
                    p.published = g;
                else
                    file.reset();
            }
            REQUIRE(hash_of(from_, one.id()) == before);
            one.decode(more);
        }
        file.reset();
        one.end();
        const auto g = load(disk);
        REQUIRE(g <= p.begun);
        return p;
    }

    /// The generation that is loaded, 0 where there is an error. REQUIREs that it is that generation.
    std::uint64_t load(simulated_disk& disk) {
        auto file = file_type::open("seq", {&disk});
        if (!file) return 0;
        const std::uint64_t g = file->facts().generation;
        const auto loaded = to_.load(*file);
        if (!loaded) return 0;
        REQUIRE((g == 1 || g == 2));
        REQUIRE(hash_of(to_, loaded->seq) == hashes[g]);
        REQUIRE(to_.end(loaded->seq).ok());
        return g;
    }
    /// A cache that refused a file has room for as many sequences as before, and they are right.
    void check_clean(simulated_disk& good) {
        for (int i = 0; i < 2; ++i) REQUIRE(load(good) == 2);
    }

    std::size_t operations = 0; ///< of a run in which nothing fails

  private:
    static cache_type opened() {
        typename cache_type::config c;
        c.shape = shape;
        c.max_tokens = prompt + 2 * more;
        c.attend_tokens = 64;
        c.max_sequences = 1;
        c.window_tokens = 8;
        if constexpr (requires { c.clusterer.min_entries_to_cluster; })
            c.clusterer.min_entries_to_cluster = 64;
        c.memory_bytes = std::size_t{4} << 20;
        return open_cache<cache_type>(c);
    }
    static std::uint64_t hash_of(cache_type& cache, kvtl::sequence_id seq) {
        const auto hash = kvtl::shard_access::identity_hash(cache, seq);
        REQUIRE(hash.ok());
        return *hash;
    }

    drift data_{shape, prompt + 2 * more, 8};
    cache_type from_ = opened(), to_ = opened();
};

template <class Preset> void turn_bits() {
    const char* const asked = std::getenv("KVTL_FLIPS");
    const std::size_t flips = asked == nullptr ? 400 : std::strtoull(asked, nullptr, 10);
    caches<Preset> c;
    simulated_disk disk, good;
    REQUIRE(c.run(disk).published == 2);
    REQUIRE(c.run(good).published == 2);
    auto& bytes = disk.seen.at("seq")->seen;
    std::mt19937_64 random(12);
    std::size_t newest = 0, older = 0, refused = 0;
    for (std::size_t i = 0; i < flips; ++i) {
        // A quarter of them in superblocks, which are few bytes.
        const std::size_t at = i % 4 == 0 ? random() % 2 * 4096 + random() % sizeof(kvtl::saved_superblock)
                                          : random() % bytes.size();
        const auto bit = static_cast<std::byte>(1U << random() % 8);
        CAPTURE(at);
        bytes[at] ^= bit;
        switch (c.load(disk)) {
        case 2:
            ++newest;
            break;
        case 1:
            ++older;
            break;
        default:
            ++refused;
        }
        bytes[at] ^= bit;
        if (i % 100 == 0) c.check_clean(good);
    }
    c.check_clean(good);
    MESSAGE(flips, " bits: ", refused, " refused, ", older, " gave the generation before, ", newest,
            " bore nothing");
    CHECK(refused > flips / 10);
    CHECK(older > flips / 20);
    CHECK(newest > flips / 20);
}

template <class Preset> void fail_each_operation() {
    caches<Preset> c;
    std::size_t whole = 0, none = 0;
    const auto left = [&](simulated_disk& disk, const typename caches<Preset>::progress& p, bool lied) {
        disk.fails_at = disk.fails_until = 0;
        const std::uint64_t g = c.load(disk);
        REQUIRE(g <= p.begun);
        if (!lied) REQUIRE(g >= p.published);
        ++(g == 2 ? whole : none);
    };
    REQUIRE(c.operations > 30);
    for (std::size_t n = 1; n <= c.operations; ++n) {
        CAPTURE(n);
        for (const int error : {EIO, ENOSPC})
            for (const std::size_t until : {n + 1, for_ever})
                for (const bool cut : {false, true}) {
                    simulated_disk disk;
                    disk.fails_at = n, disk.fails_until = until, disk.error = error;
                    const auto p = c.run(disk);
                    if (cut) disk.power_cut();
                    left(disk, p, false);
                }
        for (const auto lie : {&simulated_disk::lost_write, &simulated_disk::misdirected_write,
                               &simulated_disk::misdirected_read, &simulated_disk::lost_sync})
            for (const bool cut : {false, true}) {
                simulated_disk disk;
                disk.*lie = n;
                disk.random.seed(n);
                const auto p = c.run(disk);
                disk.*lie = 0;
                if (cut) disk.power_cut();
                left(disk, p, true);
            }
    }
    CHECK(whole > c.operations);
    CHECK(none > c.operations);
}

} // namespace

TEST_CASE("any bit of a saved sequence that turns is noticed, or bears nothing") {
    turn_bits<kvtl::presets::full>();   // rows
    turn_bits<kvtl::presets::quest>();  // groups
    turn_bits<kvtl::presets::dynakv>(); // units
}

TEST_CASE("each operation of save, save again and load fails or lies") {
    fail_each_operation<kvtl::presets::full>();
    fail_each_operation<kvtl::presets::quest>();
    fail_each_operation<kvtl::presets::dynakv>();
}

} // namespace save_damaged_test
