// A disk that fills while a prompt comes in: the call says so before it takes its tokens, what came before stays, and
// once there is room the same call goes through and nothing can be told from a run with room enough. On a real file,
// whose size the system limits.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/posix_file.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"

#include <sys/resource.h>

namespace manager_full_disk_test {

using namespace kvtl_test;

namespace {

/// Files of f32 entries: they grow by 64 MiB at a time, which 1024 tokens of this shape fill.
template <class Preset> struct on_file : Preset {
    using compressor = kvtl::raw<float>;
    using io = kvtl::posix_file;
};
template <class Preset> using cache_of = kvtl::kv_manager<on_file<Preset>>;

constexpr kvtl::shape model{8, 8, 8, 128};
constexpr std::size_t prompt = 1500, chunk = 500, tokens = prompt + 20;
constexpr ::rlim_t step = ::rlim_t{64} << 20;

/// Files may grow so far; the limit that was there comes back at the end.
class file_limit {
  public:
    file_limit() { REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0); }
    ~file_limit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
    file_limit(const file_limit&) = delete;
    file_limit& operator=(const file_limit&) = delete;
    void set(::rlim_t bytes) {
        const ::rlimit tight{bytes, before_.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
    }

  private:
    ::rlimit before_ = {};
};

template <class Cache> typename Cache::config config_on(const std::string& path) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = tokens;
    c.attend_tokens = 128;
    c.memory_bytes = 2 * *Cache::least_memory(c) + (std::size_t{8} << 20);
    c.io.path = path;
    c.io.direct = false; // wherever the tests run
    return c;
}

/// A prompt in chunks, without attention, and some steps. `failed` is called for each call that finds the disk full, which
/// is then repeated. Returns the outputs of the steps.
template <class Cache, class Failed>
std::vector<float> run(Cache& cache, const drift& data, Failed&& failed) {
    const auto seq = *cache.begin();
    std::vector<float> out(data.query_floats()), outputs;
    const auto until_it_goes = [&](std::size_t layer, std::size_t before, std::size_t n, auto&& call) {
        for (kvtl::status s = call(); !s.ok(); s = call()) {
            REQUIRE_MESSAGE(s.code() == kvtl::errc::disk_full, std::string(s.what()));
            for (std::size_t l = 0; l < model.layers; ++l)
                CHECK(cache.tokens(seq, l) == (l < layer ? before + n : before));
            failed(s);
        }
    };
    for (std::size_t first = 0; first < prompt; first += chunk)
        for (std::size_t l = 0; l < model.layers; ++l) {
            auto in = data.input(l, first, chunk);
            in.last_chunk = first + chunk == prompt;
            until_it_goes(l, first, chunk, [&] { return cache.prefill(seq, l, in, {}); });
            REQUIRE(cache.tokens(seq, l) == first + chunk);
        }
    for (std::size_t t = prompt; t < tokens; ++t)
        for (std::size_t l = 0; l < model.layers; ++l) {
            until_it_goes(l, t, 1, [&] { return cache.attend(seq, l, data.input(l, t), out); });
            outputs.insert(outputs.end(), out.begin(), out.end());
        }
    return outputs;
}

template <class Preset> void fills_up() {
    using cache_t = cache_of<Preset>;
    const scratch_folder folder;
    const drift data(model, tokens, 5);
    auto c = config_on<cache_t>(folder.file("a.kv"));
    std::vector<float> should;
    {
        auto cache = open_cache<cache_t>(c);
        should = run(cache, data, [](const kvtl::status& s) { FAIL(std::string(s.what())); });
        REQUIRE(cache.stats().storage_bytes > step); // else nothing is tested
    }
    auto cache = open_cache<cache_t>(c);
    file_limit limit;
    ::rlim_t room = 4096;
    limit.set(room);
    std::size_t failures = 0;
    const auto outputs = run(cache, data, [&](const kvtl::status& s) {
        CHECK(std::string(s.what()).find("ulimit -f") != std::string::npos);
        ++failures;
        room += step; // somebody made a little room
        limit.set(room);
    });
    CHECK(failures >= 2); // before the first entry, and with entries there
    CHECK(same_bits(outputs, should));
}

/// A prompt for which there is no room takes none away from a sequence that is there: it goes on, before and after the
/// other one is ended.
template <class Preset> void leaves_others_alone(bool in_chunks) {
    using cache_t = cache_of<Preset>;
    const scratch_folder folder;
    const drift data(model, tokens, 6);
    auto c = config_on<cache_t>(folder.file("b.kv"));
    c.max_sequences = 2;
    c.memory_bytes = 2 * *cache_t::least_memory(c) + (std::size_t{8} << 20);
    auto cache = open_cache<cache_t>(c);
    file_limit limit;
    limit.set(4096 + step);
    const auto there = *cache.begin(), late = *cache.begin();
    for (std::size_t l = 0; l < model.layers; ++l)
        require_ok(cache.prefill(there, l, data.input(l, 0, 200), {}));
    kvtl::status s;
    const auto& pages = kvtl::shard_access::of(cache, 0).store().layout();
    for (std::size_t l = 0; l < model.layers && s.ok(); ++l) {
        auto in = data.input(l, 0, prompt);
        in.last_chunk = !in_chunks;
        const std::uint32_t top = pages.top(), used = pages.used();
        s = cache.prefill(late, l, in, {});
        if (s.ok()) continue;
        CHECK(pages.top() == top); // the file need not reach as far as it would have had to
        CHECK(pages.used() == used);
    }
    REQUIRE(s.code() == kvtl::errc::disk_full);
    std::vector<float> out(data.query_floats());
    const auto goes_on = [&] {
        for (std::size_t t = cache.tokens(there, 0), end = t + 40; t < end; ++t)
            for (std::size_t l = 0; l < model.layers; ++l)
                require_ok(cache.attend(there, l, data.input(l, t), out));
    };
    if (pages.top() < step / 4096 - 3000)
        goes_on(); // the layers that did come may have taken what room there was
    require_ok(cache.end(late));
    goes_on();
}

} // namespace

TEST_CASE_TEMPLATE("a prompt that finds no room does not stop other sequences", Preset, kvtl::presets::dynakv,
                   kvtl::presets::dynakv_unit_contiguous, kvtl::presets::quest) {
    leaves_others_alone<Preset>(false);
    leaves_others_alone<Preset>(true);
}

TEST_CASE("units in pages") {
    fills_up<kvtl::presets::dynakv>();
}
TEST_CASE("groups of consecutive entries") {
    fills_up<kvtl::presets::quest>();
}

} // namespace manager_full_disk_test
