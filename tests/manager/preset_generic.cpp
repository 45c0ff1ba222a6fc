// What an engine relies on that changes presets by a typedef: one config, one order of calls, errors in its own words,
// a file no larger than what was announced, and a device that may fall silent.
// SPDX-License-Identifier: MIT
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/posix_file.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/quest.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

namespace manager_preset_generic_test {

using namespace kvtl_test;

namespace {

template <class Preset, class Io> using cache_of = kvtl::kv_manager<on_device<Preset, Io>>;

constexpr kvtl::shape model{2, 4, 2, 64};

bool contains(const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
}

} // namespace

TEST_CASE_TEMPLATE("one config, and no token inside an unfinished prompt", Cache, kvtl::full,
                   cache_of<kvtl::presets::dynakv, kvtl::posix_file>,
                   cache_of<kvtl::presets::quest, kvtl::posix_file>, kvtl::tova) {
    const scratch_folder folder;
    auto opened = Cache::open({.shape = model,
                               .max_tokens = 200,
                               .memory_bytes = 8 << 20,
                               .attend_tokens = 200,
                               .io = {.path = folder.file("a.kv"), .direct = false}});
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
    Cache& cache = *opened;
    const drift data(model, 200, 3);
    const auto seq = *cache.begin();
    std::vector<float> out(100 * data.query_floats());
    const auto prefill = [&](std::size_t first, std::size_t n, bool last) {
        for (std::size_t l = 0; l < model.layers; ++l) {
            auto in = data.input(l, first, n);
            in.last_chunk = last;
            require_ok(cache.prefill(seq, l, in, std::span(out).first(n * data.query_floats())));
        }
    };
    const auto attend = [&](std::size_t t) {
        kvtl::status s;
        for (std::size_t l = 0; l < model.layers && s.ok(); ++l)
            s = cache.attend(seq, l, data.input(l, t), std::span(out).first(data.query_floats()));
        return s;
    };
    prefill(0, 50, false);
    const kvtl::status refused = attend(50);
    CHECK(refused.code() == kvtl::errc::invalid_argument);
    CHECK(contains(refused.what(), "50 tokens wait for a prefill with last_chunk = true"));
    CHECK(cache.tokens(seq, 0) == 50);
    prefill(50, 50, true);
    require_ok(attend(100));
    prefill(101, 20, false); // a further turn goes the way of decode: nothing waits
    require_ok(attend(121));
    require_ok(cache.end(seq));
}

TEST_CASE_TEMPLATE("what cannot be given up is said in the words of the call", Cache,
                   cache_of<kvtl::presets::dynakv, kvtl::in_memory>, kvtl::tova) {
    auto cache =
        open_cache<Cache>({.shape = model, .max_tokens = 200, .memory_bytes = 8 << 20, .attend_tokens = 60});
    const drift data(model, 200, 3);
    reader<Cache> one(cache, data, 0);
    one.prefill(100);
    one.decode(10);
    const kvtl::status to = cache.rewind_to(one.id(), 20);
    CHECK(to.code() == kvtl::errc::out_of_range);
    CHECK(contains(to.what(), "rewind_to: tokens is 20; "));
    CHECK(contains(to.what(), "110"));
    const kvtl::status by = cache.rewind(one.id(), 90);
    CHECK(contains(by.what(), "rewind: n is 90; "));
    one.end();
}

TEST_CASE("sinks as long as the cache leave the latest token, whose query is observed, in the window") {
    using cache_t = kvtl::tova;
    cache_t::config c{.shape = model, .max_tokens = 8, .memory_bytes = 8 << 20, .attend_tokens = 8};
    c.sink_tokens = 9;
    const auto refused = cache_t::open(c);
    REQUIRE_FALSE(refused.ok());
    CHECK(contains(refused.error().message, "sink_tokens is 9; valid: 0 to max_tokens (8)"));
    c.sink_tokens = 8;
    auto cache = open_cache<cache_t>(c);
    const drift data(model, 8, 3);
    reader<cache_t> one(cache, data);
    one.prefill(3); // shorter than the sinks
    one.decode(5);
    CHECK(one.error() < exact);
}

TEST_CASE("a suggestion fits, where one setting can be enough") {
    using cache_t = cache_of<kvtl::presets::dynakv, kvtl::in_memory>;
    cache_t::config c;
    c.shape = model;
    c.max_tokens = 20000;
    c.memory_bytes = *cache_t::least_memory(c) * 3 / 5; // half of the tokens are still too many
    auto fewer = c;
    while (*cache_t::least_memory(fewer) > c.memory_bytes) fewer.max_tokens /= 2;
    REQUIRE(fewer.max_tokens < c.max_tokens / 2);
    const auto refused = cache_t::open(c);
    REQUIRE_FALSE(refused.ok());
    const std::string& text = refused.error().message;
    CAPTURE(text);
    const std::string suggestion = "max_tokens " + std::to_string(fewer.max_tokens) +
                                   " instead of 20000 (needs " +
                                   std::to_string(*cache_t::least_memory(fewer)) + " bytes";
    CHECK(text.find(suggestion) != std::string::npos);
    CHECK(contains(text, "fitted(config)"));
    CHECK(cache_t::open(fewer).ok());
}

namespace {

/// Files may grow so far, in this scope.
class file_limit {
  public:
    explicit file_limit(::rlim_t bytes) {
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
        const ::rlimit tight{bytes, before_.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
    }
    ~file_limit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
    file_limit(const file_limit&) = delete;
    file_limit& operator=(const file_limit&) = delete;

  private:
    ::rlimit before_ = {};
};

} // namespace

TEST_CASE_TEMPLATE("a file takes about what storage_bytes() says, also with several shards", Cache,
                   cache_of<kvtl::presets::dynakv, kvtl::posix_file>,
                   cache_of<kvtl::presets::quest, kvtl::posix_file>) {
    const scratch_folder folder;
    for (const unsigned shards : {1U, 2U}) {
        CAPTURE(shards);
        const std::string path = folder.file("a.kv");
        typename Cache::config c{.shape = model,
                                 .max_tokens = 400,
                                 .memory_bytes = 8 << 20,
                                 .attend_tokens = 128,
                                 .shards = shards,
                                 .io = {.path = path, .direct = false}};
        const std::uint64_t announced = *Cache::storage_bytes(c);
        REQUIRE(announced < (4 << 20));
        const std::uint64_t most =
            announced + shards * (std::uint64_t{1} << 19) + 4096; // a request more for each
        const drift data(model, 400, 3);
        std::vector<float> outputs;
        const auto run = [&] {
            auto cache = open_cache<Cache>(c);
            reader<Cache> one(cache, data, 0);
            one.prefill(300, 100);
            one.decode(60);
            struct ::stat found {};
            REQUIRE(::stat(path.c_str(), &found) == 0);
            CHECK(static_cast<std::uint64_t>(found.st_size) <= most);
            if (outputs.empty()) outputs = one.outputs();
            CHECK(same_bits(outputs, one.outputs()));
            return cache.stats().storage_bytes;
        };
        const std::uint64_t used = run();
        // A disk with room for little more than what is used gives that in smaller steps.
        if (shards > 1) continue;
        const file_limit limit(4096 + used + (256 << 10));
        run();
    }
}

TEST_CASE("a device that does not answer is named, and the cache is over") {
    using cache_t = cache_of<kvtl::presets::dynakv, kvtl::faulty<kvtl::in_memory>>;
    auto faults = std::make_shared<kvtl::io_faults>();
    cache_t::config c{.shape = model, .max_tokens = 400, .attend_tokens = 128};
    c.io.faults = faults;
    c.io_timeout_ms = 1234;
    c.memory_bytes = least_memory<cache_t>(c);
    auto cache = open_cache<cache_t>(c);
    const drift data(model, 400, 3);
    reader<cache_t> one(cache, data, 0);
    one.prefill(300);
    faults->fail_read.error = kvtl::io_no_answer;
    faults->fail_read.count = 1;
    faults->fail_read.first = faults->reads.load();
    std::vector<float> out(data.query_floats());
    for (int i = 0; i < 3; ++i) { // only the first of them has asked the device
        const kvtl::status s = cache.attend(one.id(), 0, data.input(0, 300), out);
        CHECK(s.code() == kvtl::errc::io_error);
        CHECK(contains(s.what(),
                       "the device did not answer within io_timeout_ms = 1234; valid: close the cache"));
    }
    CHECK(faults->reads.load() > 0);
    one.end();
}

} // namespace manager_preset_generic_test
