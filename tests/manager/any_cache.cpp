// any_cache: presets chosen at run time give the bits, the saves and the errors that their own types give.
// SPDX-License-Identifier: MIT
#include <kvtl/io/backends.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/scratch_folder.hpp"

#include <array>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace manager_any_cache_test {

using namespace kvtl_test;

namespace {

template <class Preset> using cache_of = kvtl::kv_manager<on_device<Preset, kvtl::in_memory>>;
using kvtl::presets::dynakv;
using kvtl::presets::quest;
using kvtl::presets::snapkv_group;
using any = kvtl::any_cache<kvtl::f16>;

static_assert(!std::is_copy_constructible_v<any> && std::is_nothrow_move_constructible_v<any> &&
              std::is_nothrow_move_assignable_v<any>);
static_assert(std::is_nothrow_constructible_v<any, cache_of<dynakv>&&>);
static_assert(!std::is_constructible_v<any, cache_of<dynakv>&>); // taking it over is said
static_assert(!std::is_constructible_v<kvtl::any_cache<kvtl::bf16>, cache_of<dynakv>&&>);

constexpr kvtl::shape model{2, 4, 2, 64};
constexpr std::size_t prompt = 96, all = 160;

template <class Cache> typename Cache::config settings() {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = all;
    c.max_sequences = 3;
    c.memory_bytes = std::size_t{4} << 20;
    c.attend_tokens = 64;
    if constexpr (kvtl::drops_entries<typename Cache::preset>) c.keep_tokens = 48, c.prefill_tokens = prompt;
    return c;
}
template <class Cache> Cache opened() {
    auto cache = Cache::open(settings<Cache>());
    REQUIRE_MESSAGE(cache.ok(), (cache.ok() ? std::string() : cache.error().message));
    return *std::move(cache);
}
template <class Preset> kvtl::result<any> open_as() {
    auto cache = cache_of<Preset>::open(settings<cache_of<Preset>>());
    if (!cache) return cache.error();
    return kvtl::any_cache(*std::move(cache));
}

/// Outputs of the prompt.
template <class Cache>
std::vector<float> read_prompt(Cache& cache, kvtl::sequence_id seq, const drift& data) {
    std::vector<float> out(prompt * data.query_floats());
    for (std::size_t l = 0; l < model.layers; ++l) {
        auto in = data.input(l, 0, prompt);
        in.last_chunk = true;
        require_ok(cache.prefill(seq, l, in, out));
    }
    return out;
}

/// Outputs of some steps from token `from` on.
template <class Cache>
std::vector<float> steps(Cache& cache, kvtl::sequence_id seq, const drift& data, std::size_t from) {
    std::vector<float> out;
    for (std::size_t t = from; t < from + 8; ++t)
        for (std::size_t l = 0; l < model.layers; ++l) {
            out.resize(out.size() + data.query_floats());
            const auto row = std::span(out).last(data.query_floats());
            require_ok(t % 2 == 0 ? cache.attend(seq, l, data.input(l, t), row)
                                  : cache.shard(0).attend(seq, l, data.input(l, t), row));
        }
    return out;
}
/// Everything that both types can do, in one order. Returns all outputs.
template <class Cache> std::vector<float> play(Cache& cache, const std::string& path) {
    const drift data(model, all, 7);
    const auto seq = *cache.begin();
    std::vector<float> out = read_prompt(cache, seq, data);
    const auto add = [&](const std::vector<float>& more) { out.insert(out.end(), more.begin(), more.end()); };
    add(steps(cache, seq, data, prompt));
    const auto facts = cache.save(seq, path);
    REQUIRE_MESSAGE(facts.ok(), (facts.ok() ? std::string() : facts.error().message));
    const auto branch = cache.fork(seq);
    REQUIRE(branch.ok());
    const kvtl::status shared = cache.set_share(*branch, 0.5F);
    out.push_back(static_cast<float>(shared.code()));
    add(steps(cache, *branch, data, prompt + 8));
    const kvtl::status smaller = cache.resize(cache.memory().least);
    out.push_back(static_cast<float>(smaller.code()));
    out.push_back(static_cast<float>(cache.memory().now));
    add(steps(cache, seq, data, prompt + 16));
    require_ok(cache.end(*branch));
    const auto again = cache.load(path);
    REQUIRE_MESSAGE(again.ok(), (again.ok() ? std::string() : again.error().message));
    CHECK(again->tokens == prompt + 8);
    add(steps(cache, again->seq, data, prompt + 24));
    return out;
}

} // namespace

TEST_CASE_TEMPLATE("any_cache: the calls have the bits and the errors of the preset's own type", Preset,
                   dynakv, quest, snapkv_group) {
    const scratch_folder folder;
    auto own = opened<cache_of<Preset>>();
    auto erased = open_as<Preset>();
    REQUIRE(erased.ok());
    CHECK(erased->preset() == Preset::name);
    CHECK(play(*erased, folder.file("any")) == play(own, folder.file("own")));
}

TEST_CASE(
    "any_cache: a table from names to presets opens them, and they read each other's files as their own") {
    const scratch_folder folder;
    constexpr std::array<std::pair<std::string_view, kvtl::result<any> (*)()>, 3> table{
        {{"dynakv", &open_as<dynakv>}, {"quest", &open_as<quest>}, {"snapkv_group", &open_as<snapkv_group>}}};
    std::vector<any> caches;
    for (const auto& [name, open] : table) {
        auto cache = open();
        REQUIRE_MESSAGE(cache.ok(), (cache.ok() ? std::string() : cache.error().message));
        CHECK(cache->preset() == name);
        caches.push_back(*std::move(cache)); // and the vector moves those that it has
    }
    for (any& cache : caches) static_cast<void>(play(cache, folder.file(std::string(cache.preset()))));

    auto typed = opened<cache_of<dynakv>>();
    const auto own = typed.load(folder.file("dynakv"));
    REQUIRE_MESSAGE(own.ok(), (own.ok() ? std::string() : own.error().message));
    const auto other = caches[1].load(folder.file("dynakv"));
    REQUIRE(!other.ok());
    CHECK(other.error().code == kvtl::errc::file_refused);
}

TEST_CASE("any_cache: what it takes over goes on with its sequences") {
    auto cache = opened<cache_of<dynakv>>();
    const drift data(model, all, 7);
    const auto seq = *cache.begin();
    static_cast<void>(read_prompt(cache, seq, data));
    any erased = std::move(cache);
    CHECK(erased.tokens(seq, 0) == prompt);
    CHECK(steps(erased, seq, data, prompt).size() == 8 * model.layers * data.query_floats());
    cache = opened<cache_of<dynakv>>(); // the place may be used again
    CHECK(cache.begin().ok());
}

} // namespace manager_any_cache_test
