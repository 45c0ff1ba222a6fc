// no_cluster_streamed keeps no key in memory and must not be told from no_cluster by what it returns: every
// bit is the same. What it reads, what it costs in memory, and what happens when a read of keys fails.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/policies/index_exact_keys.hpp>
#include <kvtl/presets/token_topk.hpp>

#include "support/cache_fixture.hpp"

#include <memory>
#include <utility>

namespace token_topk_test {

using namespace kvtl_test;

namespace {

template <class Preset> struct testing : Preset { using io = kvtl::faulty<kvtl::in_memory>; };
using in_memory_cache = kvtl::kv_manager<testing<kvtl::presets::no_cluster>>;
using streamed_cache = kvtl::kv_manager<testing<kvtl::presets::no_cluster_streamed>>;

/// Several tokens per unit, all heads of a layer together, every query head's softmax: what else may stream.
struct streamed_groups : testing<kvtl::presets::no_cluster_streamed> {
    static constexpr std::string_view name = "streamed_groups";
    using clusterer = kvtl::layer_groups<5>;
    using selector = kvtl::topk<kvtl::reduce::softmax_sum>;
    using compressor = kvtl::raw<float>;
};
/// The same with a copy of the keys in memory.
struct scored_groups : streamed_groups {
    static constexpr std::string_view name = "scored_groups";
    using index = kvtl::exact_keys_as<float>;
};
using streamed_layers = kvtl::kv_manager<streamed_groups>;
using scored_layers = kvtl::kv_manager<scored_groups>;

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::size_t max_tokens = 900;

template <class Cache> typename Cache::config config_for(bool smallest = true) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = 96;
    c.window_tokens = 8;
    c.memory_bytes = smallest ? least_memory<Cache>(c) : std::size_t{16} << 20;
    return c;
}

/// What the steps after a prompt and after a turn return. (Prompts and turns attend everything, and sum it up
/// page by page or token by token, as storage has it.)
template <class Cache, class Decode>
std::vector<float> run(Cache& cache, const drift& data, Decode&& decode) {
    reader<Cache> one(cache, data, 0);
    std::vector<float> steps;
    for (const auto& [prompt, n] : {std::pair{500U, 150U}, std::pair{60U, 60U}}) {
        one.prefill(prompt, 170);
        const auto before = static_cast<std::ptrdiff_t>(one.outputs().size());
        decode(one, n);
        steps.insert(steps.end(), one.outputs().begin() + before, one.outputs().end());
    }
    one.check_tokens();
    one.end();
    return steps;
}
template <class Cache> std::vector<float> run(const typename Cache::config& c, const drift& data) {
    auto cache = open_cache<Cache>(c);
    return run(cache, data, [](auto& one, std::size_t n) { one.decode(n); });
}

} // namespace

TEST_CASE("with the budget for everything streamed keys are dense attention") {
    SUBCASE("tokens") {
        equals_dense<kvtl::kv_manager<testing<kvtl::presets::no_cluster_streamed>>>();
    }
    SUBCASE("groups of layers") {
        equals_dense<streamed_layers>();
    }
}

TEST_CASE("streamed keys choose what keys in memory choose, to the bit") {
    const drift data(small, max_tokens, 51);
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        CHECK(same_bits(run<streamed_cache>(config_for<streamed_cache>(smallest), data),
                        run<in_memory_cache>(config_for<in_memory_cache>(smallest), data)));
        CHECK(same_bits(run<streamed_layers>(config_for<streamed_layers>(smallest), data),
                        run<scored_layers>(config_for<scored_layers>(smallest), data)));
    }
}

TEST_CASE("a step reads the keys of the whole context, and little else, in long runs") {
    constexpr kvtl::shape one_head{1, 4, 1, 64};
    constexpr std::size_t context = 6000, steps = 64, rows = 4096 / (64 * 2);
    const drift data(one_head, context + steps, 52);
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        streamed_cache::config c;
        c.shape = one_head;
        c.max_tokens = context + steps;
        c.attend_tokens = 64;
        c.memory_bytes = smallest ? least_memory<streamed_cache>(c) : std::size_t{16} << 20;
        auto cache = open_cache<streamed_cache>(c);
        reader<streamed_cache> one(cache, data, 0);
        one.prefill(context);
        const kvtl::statistics before = cache.stats();
        one.decode(steps);
        const kvtl::statistics after = cache.stats();
        const std::uint64_t key_pages = (context - c.window_tokens) / rows;
        const double pages = static_cast<double>(after.read_bytes - before.read_bytes) / 4096 / steps;
        const double reads = static_cast<double>(after.reads - before.reads) / steps;
        MESSAGE(key_pages << " pages of keys; per step " << pages << " pages in " << reads << " reads");
        CHECK(pages >= static_cast<double>(key_pages));
        // A chosen token that is not resident costs its two pages, and gaps that are read through.
        CHECK(pages < 1.5 * static_cast<double>(key_pages));
        CHECK(reads < pages / 4);
    }
}

namespace {
struct linear_layers : testing<kvtl::presets::no_cluster_streamed> {
    static constexpr std::string_view name = "linear_layers";
    using clusterer = kvtl::layer_groups<4>;
};
} // namespace

TEST_CASE("keys of all heads are read once where the reduction is linear") {
    using cache_type = kvtl::kv_manager<linear_layers>;
    cache_type::config c;
    c.shape = {1, 16, 8, 64};
    c.max_tokens = 1100;
    c.attend_tokens = 64;
    c.memory_bytes = least_memory<cache_type>(c);
    const drift data(c.shape, c.max_tokens, 57);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(1000);
    const kvtl::statistics before = cache.stats();
    one.decode(10);
    const std::uint64_t keys = 10ULL * 1000 * 8 * 64 * sizeof(cache_type::element_type);
    CHECK(cache.stats().read_bytes - before.read_bytes > keys * 9 / 10);
    CHECK(cache.stats().read_bytes - before.read_bytes < keys * 3 / 2);
}

TEST_CASE("the least memory holds no keys") {
    streamed_cache::config c;
    c.shape = small;
    c.max_tokens = 1 << 16;
    c.attend_tokens = 96;
    in_memory_cache::config m;
    m.shape = c.shape, m.max_tokens = c.max_tokens, m.attend_tokens = c.attend_tokens;
    const std::size_t cache_bytes = c.max_tokens * small.layers * small.kv_heads * small.head_dim * 2 * 2;
    const std::size_t streamed = least_memory<streamed_cache>(c), held = least_memory<in_memory_cache>(m);
    MESSAGE("cache " << cache_bytes << ", streamed " << streamed << ", in memory " << held);
    CHECK(streamed < cache_bytes / 8);
    CHECK(held > cache_bytes / 2);
}

TEST_CASE("reading ahead changes no bit of streamed keys") {
    const drift data(small, max_tokens, 53);
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        auto c = config_for<streamed_cache>(smallest);
        const auto play = [&](auto&& before) {
            auto cache = open_cache<streamed_cache>(c);
            reader<streamed_cache> one(cache, data, 0);
            one.prefill(500);
            for (int i = 0; i < 80; ++i) one.step([&](std::size_t layer) { before(cache, one, layer); });
            return one.outputs();
        };
        const auto expected = play([](auto&, auto&, std::size_t) {});
        c.io.faults = std::make_shared<kvtl::io_faults>();
        c.io.faults->hold_percent = 60; // completions come late and in another order
        CHECK(same_bits(expected, play([&](auto& cache, auto& one, std::size_t layer) {
                            require_ok(cache.prefetch(one.id(), layer, data.q(layer, one.tokens())));
                        })));
        CHECK(same_bits(expected, play([&](auto& cache, auto& one, std::size_t layer) { // a wrong guess
                            require_ok(cache.prefetch(one.id(), layer, data.q(layer, one.tokens() - 40)));
                            const std::size_t other = (layer + 1) % small.layers; // holds frames meanwhile
                            require_ok(cache.prefetch(one.id(), other, data.q(other, one.tokens() - 90)));
                        })));
    }
}

TEST_CASE("a read of keys that fails changes nothing, and the call may come again") {
    const drift data(small, max_tokens, 54);
    auto c = config_for<streamed_cache>();
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto& f = *c.io.faults;
    const auto play = [&](bool fail, std::size_t& failures) {
        auto cache = open_cache<streamed_cache>(c);
        reader<streamed_cache> one(cache, data, 0);
        one.prefill(500);
        std::size_t nth = 0;
        for (int i = 0; i < 60; ++i)
            one.step([&](std::size_t layer) {
                if (!fail) return;
                const auto q = data.q(layer, one.tokens());
                std::vector<float> out(data.query_floats(), NAN);
                const auto refused = [&](kvtl::errc code, auto&& call) {
                    const kvtl::statistics before = cache.stats();
                    const kvtl::status s = call();
                    f.fail_read.first = f.corrupt_read = kvtl::io_faults::never;
                    CHECK(s.code() == code);
                    failures += s.ok() ? 0 : 1;
                    const kvtl::statistics after = cache.stats();
                    CHECK(cache.tokens(one.id(), layer) == one.tokens());
                    CHECK(after.steps == before.steps);
                    CHECK(after.chosen_units == before.chosen_units);
                    CHECK(after.useful_bytes == before.useful_bytes);
                    CHECK(after.units == before.units);
                };
                // Any of the reads of a call: the first lane's keys, a later lane's, chosen pages.
                const auto attend = [&] {
                    return cache.attend(one.id(), layer, data.input(layer, one.tokens()), out);
                };
                f.fail_read.first = f.reads.load() + nth++ % 3;
                refused(kvtl::errc::io_error, attend);
                f.corrupt_read = f.reads.load() + nth % 2;
                refused(kvtl::errc::corrupt, attend);
                f.fail_read.first = f.reads.load();
                refused(kvtl::errc::io_error, [&] { return cache.prefetch(one.id(), layer, q); });
                f.fail_read.first = f.reads.load();
                refused(kvtl::errc::io_error,
                        [&] { return cache.select(one.id(), layer, q, [](std::size_t, auto, auto) {}); });
            });
        CHECK(kvtl::shard_access::of(cache, 0).store().page_pools()[0].in_use() <=
              small.layers * small.kv_heads * 2);
        return one.outputs();
    };
    std::size_t failures = 0;
    const auto expected = play(false, failures);
    CHECK(failures == 0);
    CHECK(same_bits(play(true, failures), expected));
    CHECK(failures == 60 * 2 * 4);
}

TEST_CASE("a write of keys or values that fails loses nothing, and a sequence gives every page back") {
    const drift data(small, max_tokens, 55);
    auto c = config_for<streamed_cache>();
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto& f = *c.io.faults;
    const auto expected = run<streamed_cache>(c, data);
    auto cache = open_cache<streamed_cache>(c);
    auto& store = kvtl::shard_access::of(cache, 0).store();
    for (int round = 0; round < 2; ++round) {
        std::size_t refused = 0;
        const auto steps = run(cache, data, [&](auto& one, std::size_t n) {
            for (std::size_t i = 0; i < n; ++i) {
                f.fail_write.first = f.writes.load() + i % 3;
                one.step([&](std::size_t) {
                    if (!store.has_failed_writes(store.write_pool(0))) return;
                    ++refused;
                    f.fail_write.first = kvtl::io_faults::never;
                    require_ok(cache.retry_writes(one.id()));
                });
            }
            f.fail_write.first = kvtl::io_faults::never;
            require_ok(cache.retry_writes(one.id()));
        });
        CHECK(refused > 2);
        CHECK(same_bits(steps, expected));
        CHECK(store.layout().used() == 0);
        CHECK(store.write_pool(0).in_use() == 0);
    }
}

} // namespace token_topk_test
