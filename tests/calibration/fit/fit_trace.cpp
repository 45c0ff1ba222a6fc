// Fits to recorded traces: the same bases as of the numbers themselves, in pieces, of as much as is asked for.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/fit/fit_trace.hpp>
#include <kvtl/calibration/trace_writer.hpp>

#include "support/oracle.hpp"
#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using kvtl::calibration_fit;
using kvtl::trace_header;
using kvtl::trace_reader;

namespace {

constexpr kvtl::shape small{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
constexpr std::size_t tokens = 70;

/// Numbers that f16 holds, so that a trace gives back the same.
std::vector<float> rounded(std::size_t n, std::uint64_t seed) {
    auto x = oracle::normal_values(n, seed);
    for (float& v : x) v = kvtl::to_float(kvtl::from_float<kvtl::f16>(v));
    return x;
}

struct recording {
    std::vector<float> q[2], k[2], v[2], k_pre[2];

    recording() {
        for (std::uint64_t l = 0; l < 2; ++l) {
            q[l] = rounded(tokens * 32, 10 + l), k[l] = rounded(tokens * 16, 20 + l);
            v[l] = rounded(tokens * 16, 30 + l), k_pre[l] = rounded(tokens * 16, 40 + l);
        }
    }
    [[nodiscard]] kvtl::layer_input layer(std::size_t l) const {
        return {.q = q[l], .k = k[l], .v = v[l], .k_pre = k_pre[l]};
    }
    void write(const std::string& path, std::uint32_t fields) const {
        auto out = kvtl::trace_writer::create(path, {.shape = small, .fields = fields});
        REQUIRE(out);
        for (std::uint32_t l = 0; l < 2; ++l) out->write(0, l, layer(l));
        REQUIRE(out->close(tokens, tokens));
    }
};

kvtl::fitted_bases fitted_to(const std::string& path, const kvtl::fit_options& options,
                             const kvtl::trace_pieces& pieces) {
    auto trace = trace_reader::open(path);
    auto fit = calibration_fit::make(small, options);
    REQUIRE((trace && fit));
    const kvtl::status added = add_trace(*fit, *trace, pieces);
    REQUIRE_MESSAGE(added.ok(), added.what());
    auto out = fit->finish();
    REQUIRE(out);
    return *std::move(out);
}

/// By hand: the rows [0, n) of each layer, in pieces of so many.
kvtl::fitted_bases fitted(const recording& r, const kvtl::fit_options& options, std::size_t n,
                          std::size_t piece) {
    auto fit = calibration_fit::make(small, options);
    REQUIRE(fit);
    for (std::size_t first = 0; first < n; first += piece)
        for (std::uint32_t l = 0; l < 2; ++l)
            REQUIRE(fit->add(l, r.layer(l).rows(first, std::min(piece, n - first), tokens)));
    auto out = fit->finish();
    REQUIRE(out);
    return *std::move(out);
}

} // namespace

TEST_CASE("a trace is fitted to as the numbers in it are") {
    const kvtl_test::scratch_folder folder;
    const std::string path = folder.file("a.trace");
    const recording r;
    r.write(path, trace_header::has_k_pre);
    const kvtl::fit_options options{.rank = 9, .pair_distance = 4, .query_map = true};
    for (const auto& [n, piece] :
         {std::pair<std::size_t, std::size_t>{tokens, 2048}, {tokens, 32}, {40, 16}}) {
        const auto mine = fitted_to(path, options, {.max_tokens = n, .piece_tokens = piece});
        const auto same = fitted(r, options, n, piece);
        CHECK(mine.tokens == n);
        CHECK(mine.adapter == same.adapter);
        CHECK(mine.pca == same.pca);
        CHECK(mine.skew == same.skew);
        CHECK(mine.channels == same.channels);
        CHECK(mine.query_map == same.query_map);
        CHECK(mine.joint_keys == same.joint_keys);
        CHECK(mine.head_values == same.head_values);
    }
    CHECK(fitted_to(path, options, {}).adapter != fitted_to(path, options, {.max_tokens = 30}).adapter);
}

TEST_CASE("keys alone make what keys alone are needed for") {
    const kvtl_test::scratch_folder folder;
    const std::string path = folder.file("a.trace");
    recording().write(path, trace_header::without_q | trace_header::without_v);
    const auto out = fitted_to(path, {.pair_distance = 4}, {});
    CHECK(out.adapter.size() == 2 * 16 * 16);
    CHECK(out.pca.size() == 2 * 2 * 8 * 8);
    CHECK((out.skew.empty() && out.channels.empty() && out.joint_keys.empty()));
}

TEST_CASE("pieces of nothing, another shape and broken records are refused") {
    const kvtl_test::scratch_folder folder;
    const std::string path = folder.file("a.trace");
    recording r;
    r.k[1][5 * 16 + 3] = 1e6F; // of token 5, beyond f16
    r.write(path, 0);
    auto trace = trace_reader::open(path);
    auto fit = calibration_fit::make(small);
    auto other = calibration_fit::make({.layers = 2, .query_heads = 4, .kv_heads = 1, .head_dim = 32});
    REQUIRE((trace && fit && other));
    CHECK(std::string(add_trace(*fit, *trace, {.piece_tokens = 0}).what()) ==
          "piece_tokens is 0; valid: 1 or more");
    CHECK(std::string(add_trace(*fit, *trace).what()) ==
          "trace " + path + ": token 5, layer 1: a number is not finite");
    CHECK(std::string(add_trace(*other, *trace, {.max_tokens = 4}).what()) ==
          "trace " + path +
              " has 2 layers, 4 query heads, 2 KV heads of 8; expected 2 layers, 4 query heads, 1 KV heads "
              "of 32");
}
