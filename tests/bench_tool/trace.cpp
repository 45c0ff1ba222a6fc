// Traces in the programs: a recording passes everything on, and what does not fit a workload is refused.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/trace_reader.hpp>
#include <kvtl/calibration/trace_writer.hpp>

#include "error.hpp"
#include "recording_cache.hpp"
#include "support/scratch_folder.hpp"
#include "support/small_trace.hpp"
#include "workload.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

using kvtl::trace_header;
using kvtl::trace_reader;
using kvtl_test::copy, kvtl_test::numbers, kvtl_test::scratch_folder, kvtl_test::write_small_trace;

namespace {

constexpr kvtl::shape small = kvtl_test::small_trace;

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const engine::bad_input& e) {
        return e.what();
    }
    return "";
}

/// Counts calls and keeps nothing.
struct counting_cache final : engine::kv_cache {
    int prefills = 0, attends = 0, prefetches = 0;
    bool wants_prefetch = false;

    kvtl::result<kvtl::sequence_id> begin() override { return kvtl::sequence_id{0, 1}; }
    kvtl::status prefill(kvtl::sequence_id, std::uint32_t, const kvtl::layer_input&, std::span<float>,
                         unsigned) noexcept override {
        ++prefills;
        return {};
    }
    kvtl::status attend(kvtl::sequence_id, std::uint32_t, const kvtl::layer_input&, std::span<float>,
                        unsigned) noexcept override {
        ++attends;
        return {};
    }
    kvtl::status prefetch(kvtl::sequence_id, std::uint32_t, std::span<const float>,
                          unsigned) noexcept override {
        ++prefetches;
        return {};
    }
    kvtl::status rewind(kvtl::sequence_id, std::size_t) noexcept override { return {}; }
    kvtl::status end(kvtl::sequence_id) noexcept override { return {}; }
    engine::cache_stats stats() const override { return {}; }
    unsigned shards() const noexcept override { return 2; }
    engine::cache_wants wants() const noexcept override { return {kvtl::engine_input::x, wants_prefetch}; }
};

} // namespace

TEST_CASE("a trace says in which pairs its keys were turned, and may be told") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    const auto neighbours = [&](std::uint32_t distance, bool told) {
        auto out = kvtl_test::create_trace(path, {.shape = small, .pair_distance = distance});
        for (std::uint32_t l = 0; l < small.layers; ++l) {
            const auto q = numbers(32, 0, l, 0), k = numbers(16, 0, l, 1), v = numbers(16, 0, l, 2);
            out.write(0, l, {.q = q, .k = k, .v = v});
        }
        REQUIRE(out.close(1, 1).ok());
        return bench::make_workload(
                   {.text = "trace:" + path, .shape = small, .tokens = 1, .rope_neighbours = told})
            ->neighbours();
    };
    CHECK(neighbours(1, false));
    CHECK_FALSE(neighbours(4, false)); // halves of 8
    CHECK_FALSE(neighbours(0, false));
    CHECK(neighbours(0, true));
    CHECK_FALSE(neighbours(4, true)); // it says so itself
}

TEST_CASE("a trace of another shape or length is refused with both") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    write_small_trace(path);
    auto other = small;
    other.layers = 4;
    const auto ask = [&](const kvtl::shape& shape, std::size_t tokens) {
        return message_of([&] {
            static_cast<void>(
                bench::make_workload({.text = "trace:" + path, .shape = shape, .tokens = tokens}));
        });
    };
    CHECK(ask(small, 5).empty());
    CHECK(ask(other, 5).find("has 3 layers") != std::string::npos);
    CHECK(ask(other, 5).find("expected 4 layers") != std::string::npos);
    CHECK(ask(small, 6).find("has 5 tokens; the context and all steps need 6") != std::string::npos);
    write_small_trace(path, trace_header::without_v);
    CHECK(ask(small, 5) == "trace " + path + " has no values, which are needed here");
}

TEST_CASE("a recording holds what the engine handed over, once, and passes it on") {
    for (const bool wanted : {false, true}) {
        const scratch_folder folder;
        const std::string path = folder.file("a.trc");
        counting_cache inner;
        inner.wants_prefetch = wanted;
        {
            engine::recording_cache cache(
                inner, path,
                {.shape = small, .fields = trace_header::has_k_pre | trace_header::has_prediction});
            CHECK(cache.wants().prefetch); // so that the engine makes predictions
            CHECK(contains(cache.wants().inputs, kvtl::engine_input::k_pre | kvtl::engine_input::x));
            const auto seq = *cache.begin();
            std::vector<float> out(64);
            const auto input = [&](std::size_t first, std::size_t n, std::uint32_t l, auto&& call) {
                std::vector<float> q, k, v, pre;
                for (std::size_t t = first; t < first + n; ++t) {
                    const auto add = [](std::vector<float>& to, const std::vector<float>& x) {
                        to.insert(to.end(), x.begin(), x.end());
                    };
                    add(q, numbers(32, t, l, 0)), add(k, numbers(16, t, l, 1));
                    add(v, numbers(16, t, l, 2)), add(pre, numbers(16, t, l, 3));
                }
                kvtl::layer_input in;
                in.q = q, in.k = k, in.v = v, in.k_pre = pre;
                for (unsigned shard = 0; shard < 2; ++shard) call(in, shard);
            };
            for (const auto& [first, n] : {std::pair{0U, 2U}, std::pair{2U, 1U}}) // two chunks
                for (std::uint32_t l = 0; l < 3; ++l)
                    input(first, n, l, [&](const auto& in, unsigned shard) {
                        CHECK(cache.prefill(seq, l, in, out, shard).ok());
                    });
            for (std::size_t t = 3; t < 5; ++t)
                for (std::uint32_t l = 0; l < 3; ++l) {
                    const auto guess = numbers(32, t, l + 1, 4);
                    for (unsigned shard = 0; shard < 2 && l + 1 < 3; ++shard)
                        CHECK(cache.prefetch(seq, l + 1, guess, shard).ok());
                    input(t, 1, l, [&](const auto& in, unsigned shard) {
                        CHECK(cache.attend(seq, l, in, out, shard).ok());
                    });
                }
            cache.finish();
        }
        CHECK(inner.prefills == 12);
        CHECK(inner.attends == 12);
        CHECK(inner.prefetches == (wanted ? 8 : 0));
        const std::string expected = folder.file("b.trc");
        write_small_trace(expected);
        trace_reader a = engine::insist(trace_reader::open(path)),
                     b = engine::insist(trace_reader::open(expected));
        CHECK(a.header().tokens == b.header().tokens);
        CHECK(a.header().prompt_tokens == b.header().prompt_tokens);
        for (std::size_t t = 0; t < 5; ++t)
            for (std::uint32_t l = 0; l < 3; ++l) {
                const auto x = engine::insist(a.read(t, l)), y = engine::insist(b.read(t, l));
                CHECK(copy(x.q) == copy(y.q));
                CHECK(copy(x.k) == copy(y.k));
                CHECK(copy(x.v) == copy(y.v));
                CHECK(copy(x.k_pre) == copy(y.k_pre));
                CHECK(copy(x.prediction) == copy(y.prediction));
            }
    }
}
