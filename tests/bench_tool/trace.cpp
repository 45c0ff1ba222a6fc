// Traces: what is written comes back, a recording passes everything on, and broken files say what is wrong.
// SPDX-License-Identifier: MIT
#include "trace.hpp"

#include <kvtl/element.hpp>

#include "contracts/io.hpp"
#include "error.hpp"
#include "recording_cache.hpp"
#include "workload.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

using engine::trace_header;
using engine::trace_reader;
using engine::trace_writer;
using kvtl_test::scratch_folder;

namespace {

constexpr kvtl::shape small = {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 8};

/// Numbers that f16 holds exactly, different for every (token, layer, tensor, place).
std::vector<float> numbers(std::size_t n, std::size_t token, std::size_t layer, std::size_t tensor) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i)
        x[i] = static_cast<float>((token * 131 + layer * 37 + tensor * 11 + i * 3) % 2048) / 64.0F - 16.0F;
    return x;
}

std::vector<float> copy(std::span<const float> x) {
    return {x.begin(), x.end()};
}

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const engine::bad_input& e) {
        return e.what();
    }
    return "";
}

/// 5 tokens, of which 3 are the prompt.
void write_small(const std::string& path,
                 std::uint32_t fields = trace_header::has_k_pre | trace_header::has_prediction) {
    trace_writer out(path, small, fields);
    for (std::size_t t = 0; t < 5; ++t)
        for (std::uint32_t l = 0; l < 3; ++l) {
            const auto q = numbers(32, t, l, 0), k = numbers(16, t, l, 1), v = numbers(16, t, l, 2),
                       pre = numbers(16, t, l, 3), guess = numbers(32, t, l, 4);
            out.write(t, l, {q, k, v, pre, guess});
        }
    out.close(3, 5);
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
    engine::cache_wants wants() const noexcept override { return {kvtl::signal::x, wants_prefetch}; }
};

} // namespace

TEST_CASE("a trace gives back what was written") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    write_small(path);
    trace_reader in(path);
    CHECK(in.header().shape == small);
    CHECK(in.header().tokens == 5);
    CHECK(in.header().prompt_tokens == 3);
    for (const std::size_t t : {4U, 0U, 3U, 2U})
        for (std::uint32_t l = 0; l < 3; ++l) {
            const auto e = in.read(t, l);
            CHECK(copy(e.q) == numbers(32, t, l, 0));
            CHECK(copy(e.k) == numbers(16, t, l, 1));
            CHECK(copy(e.v) == numbers(16, t, l, 2));
            CHECK(copy(e.k_pre) == numbers(16, t, l, 3));
            if (t >= 3 && l > 0)
                CHECK(copy(e.prediction) == numbers(32, t, l, 4));
            else
                CHECK(e.prediction.empty());
        }
    CHECK_THROWS_AS(static_cast<void>(in.read(5, 0)), engine::run_failure);
    CHECK_THROWS_AS(static_cast<void>(in.read(0, 3)), engine::run_failure);

    write_small(path, 0);
    trace_reader bare(path);
    CHECK(copy(bare.read(1, 1).v) == numbers(16, 1, 1, 2));
    CHECK(bare.read(4, 1).k_pre.empty());
    CHECK(bare.read(4, 1).prediction.empty());
}

TEST_CASE("broken traces are refused with the reason") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    write_small(path);
    const auto size = std::filesystem::file_size(path);
    const auto refusal = [&] { return message_of([&] { trace_reader in(path); }); };
    CHECK(refusal().empty());

    std::filesystem::resize_file(path, size - 1);
    CHECK(refusal().find("cut short: " + std::to_string(size - 1) + " of " + std::to_string(size) +
                         " bytes") != std::string::npos);
    std::filesystem::resize_file(path, 100);
    CHECK(refusal().find("cut short") != std::string::npos);
    std::filesystem::resize_file(path, 10);
    CHECK(refusal().find("not a trace") != std::string::npos);
    std::ofstream(path) << std::string(5000, 'x');
    CHECK(refusal().find("not a trace") != std::string::npos);
    std::filesystem::remove(path);
    CHECK(refusal().find("No such file") != std::string::npos);
    CHECK(message_of([&] { trace_reader in(folder.path()); }).find("not a regular file") !=
          std::string::npos);

    { // a run that was interrupted: records, but no header
        trace_writer out(path, small, 0);
        const auto q = numbers(32, 0, 0, 0), k = numbers(16, 0, 0, 1);
        out.write(0, 0, {.q = q, .k = k, .v = k, .k_pre = {}, .prediction = {}});
    }
    CHECK(refusal().find("never finished") != std::string::npos);

    write_small(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);
    file.put(9);
    file.close();
    CHECK(refusal().find("version 9; valid: 1") != std::string::npos);

    write_small(path);
    file.open(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(48); // the element type
    file.put(1);
    file.close();
    CHECK(refusal().find("numbers of element type 1; valid: 0, f16") != std::string::npos);
}

TEST_CASE("a number that is not finite is refused where it is read") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    {
        trace_writer out(path, small, 0);
        const auto q = numbers(32, 0, 0, 0), k = numbers(16, 0, 0, 1);
        for (std::size_t t = 0; t < 2; ++t)
            for (std::uint32_t l = 0; l < 3; ++l) {
                auto v = k;
                if (t == 1 && l == 2) v[3] = 1e6F; // beyond f16
                out.write(t, l, {.q = q, .k = k, .v = v, .k_pre = {}, .prediction = {}});
            }
        out.close(1, 2);
    }
    trace_reader in(path);
    CHECK(message_of([&] { static_cast<void>(in.read(1, 1)); }).empty());
    CHECK(message_of([&] { static_cast<void>(in.read(1, 2)); }) ==
          "trace " + path + ": token 1, layer 2: a number is not finite");
}

TEST_CASE("a trace of another shape or length is refused with both") {
    const scratch_folder folder;
    const std::string path = folder.file("a.trc");
    write_small(path);
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
    CHECK(message_of([&] { trace_writer out("no/such/folder/x.trc", small, 0); }).find("cannot write") !=
          std::string::npos);
}

TEST_CASE("a recording holds what the engine handed over, once, and passes it on") {
    for (const bool wanted : {false, true}) {
        const scratch_folder folder;
        const std::string path = folder.file("a.trc");
        counting_cache inner;
        inner.wants_prefetch = wanted;
        {
            engine::recording_cache cache(inner, small, path);
            CHECK(cache.wants().prefetch); // so that the engine makes predictions
            CHECK(contains(cache.wants().signals, kvtl::signal::k_pre | kvtl::signal::x));
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
        write_small(expected);
        trace_reader a(path), b(expected);
        CHECK(a.header().tokens == b.header().tokens);
        CHECK(a.header().prompt_tokens == b.header().prompt_tokens);
        for (std::size_t t = 0; t < 5; ++t)
            for (std::uint32_t l = 0; l < 3; ++l) {
                const auto x = a.read(t, l), y = b.read(t, l);
                CHECK(copy(x.q) == copy(y.q));
                CHECK(copy(x.k) == copy(y.k));
                CHECK(copy(x.v) == copy(y.v));
                CHECK(copy(x.k_pre) == copy(y.k_pre));
                CHECK(copy(x.prediction) == copy(y.prediction));
            }
    }
}
