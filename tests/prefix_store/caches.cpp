// Real caches and real files: a sequence that start() returns goes on as one that was never stored.
// SPDX-License-Identifier: MIT
#include <kvtl/prefix_store.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/shadowkv.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/scratch_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace prefix_caches_test {

using namespace kvtl_test;

namespace {

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::size_t prompt = 150, steps = 40, max_tokens = 260;

using rows = kvtl::kv_manager<kvtl::presets::full>;
using pages = kvtl::kv_manager<f32_on<kvtl::presets::quest, kvtl::in_memory>>;
using clusters = kvtl::kv_manager<f32_on<kvtl::presets::dynakv, kvtl::in_memory>>;

const drift& stream() {
    static const drift made(small, max_tokens, 5);
    return made;
}
template <class Cache> Cache open(std::size_t attend_tokens) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.max_sequences = 4;
    c.attend_tokens = attend_tokens;
    c.memory_bytes = std::size_t{32} << 20;
    if constexpr (requires { c.clusterer.min_entries_to_cluster; }) c.clusterer.min_entries_to_cluster = 64;
    return open_cache<Cache>(c);
}
/// Token t of the stream.
std::vector<std::uint32_t> tokens(std::size_t n) {
    std::vector<std::uint32_t> t(n);
    std::iota(t.begin(), t.end(), 7);
    return t;
}
template <class Cache> kvtl::prefix_store<Cache> open_store(Cache& cache, const std::string& folder) {
    auto opened =
        kvtl::prefix_store<Cache>::open(cache, {.folder = folder, .model = 3, .trunks = 1, .free_bytes = 0});
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
    return *std::move(opened);
}

/// Goes on where start() begins, and returns what the steps behind the prompt gave.
template <class Cache>
std::vector<float> goes_on(Cache& cache, kvtl::prefix_store<Cache>& store, std::size_t given,
                           std::size_t expected, kvtl::prefix_source from, double* error) {
    reader<Cache> one(cache, stream(), error != nullptr ? 1 : 0);
    one.end();
    const auto start = store.start(tokens(given));
    REQUIRE_MESSAGE(start.ok(), (start.ok() ? std::string() : start.error().message));
    REQUIRE(start->tokens == expected);
    REQUIRE(start->from == from);
    one.go_on_in(start->seq);
    one.advance(start->tokens);
    one.check_tokens();
    one.decode(prompt - start->tokens); // what start() has taken back
    const std::size_t before = one.outputs().size();
    one.decode(steps);
    if (error != nullptr) *error = one.error();
    one.end();
    return {one.outputs().begin() + static_cast<std::ptrdiff_t>(before), one.outputs().end()};
}

/// everything: all entries are attended, so that every preset equals dense attention. Otherwise bits are compared.
template <class Cache> void continues(bool everything) {
    const scratch_folder folder;
    const std::size_t attend = everything ? max_tokens : 64;
    auto plain = open<Cache>(attend);
    reader<Cache> a(plain, stream(), 0);
    a.prefill(prompt);
    const std::size_t before = a.outputs().size();
    a.decode(steps);
    const std::vector<float> expected(a.outputs().begin() + static_cast<std::ptrdiff_t>(before),
                                      a.outputs().end());
    const auto check = [&](Cache& cache, kvtl::prefix_store<Cache>& store, std::size_t given, std::size_t has,
                           kvtl::prefix_source from) {
        double error = 0;
        const auto out = goes_on(cache, store, given, has, from, everything ? &error : nullptr);
        if (everything)
            CHECK(error < exact);
        else
            CHECK(same_bits(out, expected));
    };
    {
        auto cache = open<Cache>(attend);
        auto store = open_store(cache, folder.path());
        reader<Cache> b(cache, stream(), 0);
        b.prefill(prompt);
        const auto id = store.keep(b.id(), tokens(prompt));
        REQUIRE_MESSAGE(id.ok(), (id.ok() ? std::string() : id.error().message));
        b.decode(steps);
        if (!everything) CHECK(same_bits(b.outputs(), a.outputs())); // being stored changes nothing
        b.end();
        check(cache, store, prompt + 20, prompt, kvtl::prefix_source::trunk);
        check(cache, store, prompt + 1, prompt, kvtl::prefix_source::trunk);
        check(cache, store, prompt, prompt - 1,
              kvtl::prefix_source::trunk); // the last token is left to the engine
        const auto no = store.keep(*cache.begin(), tokens(prompt + 1));
        REQUIRE_FALSE(no.ok());
        CHECK(no.error().code == kvtl::errc::invalid_argument);
        require_ok(store.flush());
    }
    auto other = open<Cache>(attend);
    auto store = open_store(other, folder.path());
    CHECK(store.statistics().prefixes == 1);
    check(other, store, prompt + 20, prompt, kvtl::prefix_source::file);
    check(other, store, prompt, prompt - 1, kvtl::prefix_source::file);
    require_ok(store.prefetch(tokens(prompt)));
    check(other, store, prompt + 20, prompt, kvtl::prefix_source::trunk);
    CHECK(store.statistics().refused == 0);
    CHECK(store.statistics().bytes_read > 0);
}

} // namespace

TEST_CASE("full: the continuation is that of the prompt, to the bit") {
    continues<rows>(false);
}
TEST_CASE("quest: the continuation is that of the prompt, to the bit") {
    continues<pages>(false);
}
TEST_CASE("quest: the continuation is exact attention") {
    continues<pages>(true);
}
TEST_CASE("dynakv: the continuation is exact attention where all is attended") {
    continues<clusters>(true);
}

TEST_CASE("a cache with other settings misses, with the sentence of load()") {
    const scratch_folder folder;
    {
        auto cache = open<pages>(64);
        auto store = open_store(cache, folder.path());
        reader<pages> b(cache, stream(), 0);
        b.prefill(prompt);
        REQUIRE(store.keep(b.id(), tokens(prompt), {.to_file = true}).ok());
    }
    auto cache = open<clusters>(64);
    auto store = open_store(cache, folder.path());
    const auto start = store.start(tokens(prompt + 1));
    REQUIRE(start.ok());
    CHECK(start->tokens == 0);
    CHECK(store.statistics().refused == 1);
    CHECK(store.statistics().last_refusal.find("when the sequence was saved") != std::string::npos);
    reader<clusters> c(cache, stream(), 0);
    c.prefill(prompt);
    REQUIRE(store.keep(c.id(), tokens(prompt), {.to_file = true}).ok()); // the same text, beside it
    CHECK(store.statistics().files == 2);
    CHECK(store.start(tokens(prompt + 1))->tokens == prompt);
}

TEST_CASE("turns into one file write what has changed") {
    const scratch_folder folder;
    auto cache = open<pages>(64);
    auto opened = kvtl::prefix_store<pages>::open(cache, {.folder = folder.path(), .free_bytes = 0});
    REQUIRE(opened.ok());
    reader<pages> b(cache, stream(), 0);
    b.prefill(prompt);
    auto id = opened->keep(b.id(), tokens(prompt));
    REQUIRE(id.ok());
    const std::uint64_t all = opened->statistics().bytes_written;
    std::uint64_t last = all;
    for (std::size_t turn = 1; turn <= 4; ++turn) {
        b.decode(10);
        id = opened->keep(b.id(), tokens(prompt + 10 * turn), {.replaces = *id});
        REQUIRE_MESSAGE(id.ok(), (id.ok() ? std::string() : id.error().message));
        const std::uint64_t now = opened->statistics().bytes_written;
        CHECK(now - last < all * 3 / 4);
        last = now;
    }
    CHECK(opened->statistics().prefixes == 1);
    CHECK(opened->start(tokens(max_tokens))->tokens == prompt + 40);
}

TEST_CASE("reuse_of() names what a preset loses when a prompt comes in two parts") {
    using kvtl::prefix_reuse;
    namespace p = kvtl::presets;
    CHECK(kvtl::reuse_of<p::full>() == prefix_reuse::exact);
    CHECK(kvtl::reuse_of<p::quest>() == prefix_reuse::exact);
    CHECK(kvtl::reuse_of<p::dynakv>() == prefix_reuse::other_clusters);
    CHECK(kvtl::reuse_of<p::shadowkv>() == prefix_reuse::other_clusters); // bases of a prompt
    CHECK(kvtl::reuse_of<p::snapkv_group>() == prefix_reuse::question_blind);
    CHECK(std::string(kvtl::name_of(kvtl::reuse_of<p::snapkv_group>())) == "question_blind");
}

} // namespace prefix_caches_test
