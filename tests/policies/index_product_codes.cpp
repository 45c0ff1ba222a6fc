// product_codes: a score is the product with the decoded key, whose parts are the nearest centroids.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_product_codes.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

#include <set>

namespace index_product_codes_test {

using namespace kvtl;

namespace {

using state = product_codes::state;
using lane = kvtl_test::index_suite::lane<product_codes>;

std::vector<float> decoded(const state& s, lane& x, std::uint32_t u, std::uint32_t i) {
    std::vector<float> key(x.shape().width());
    s.decode(x.view(), u, i, key.data());
    return key;
}
void fit(const state& s, lane& x) {
    struct alignas(64) line {
        std::byte bytes[64];
    };
    std::vector<line> memory(s.fit_scratch_bytes(x.shape(), x.all_keys().count) / 64 + 1);
    s.fit(x.view(), x.all_keys(), std::as_writable_bytes(std::span(memory)));
}

} // namespace

TEST_CASE("product_codes") {
    static_assert(fits_first_keys<product_codes> && scores_linearly<product_codes>);
    for (const product_codes::config& c :
         {product_codes::config{}, product_codes::config{.parts = 5, .bits = 4},
          product_codes::config{.parts = 1, .bits = 8, .sample = 50}}) {
        const state s(c, {});
        kvtl_test::summarising_index_contract<product_codes>(
            [&](const summary_shape&) { return s; }, 1e-6,
            [&](const summary_shape& shape) {
                return std::size_t{shape.max_entries} * shape.lane_heads * std::min(c.parts, shape.dim);
            },
            [&](auto& x, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t i) {
                return oracle::dot(q, &decoded(s, x, u, i)[std::size_t{h} * x.shape().dim], x.shape().dim);
            });
        CHECK(s.lane_bytes({3, 2, 40, 4}) == 64 + (std::size_t{1} << c.bits) * 3 * 40 * 4);
    }
}

TEST_CASE("every part is stored as its nearest centroid") {
    const state s({.parts = 2, .bits = 5}, {});
    lane x(s, {{2, 2, 24, 4}, 200, true}, 8);
    fit(s, x);
    x.absorb_all();
    for (std::uint32_t h = 0; h < 2; ++h)
        for (std::uint32_t part = 0; part < 2; ++part) {
            const std::size_t first = h * 24 + part * 12;
            std::set<std::vector<float>> used; // what keys decode to: the centroids
            for (std::uint32_t u = 0; u < 200; ++u)
                for (std::uint32_t i = 0; i < 4; ++i) {
                    const auto key = decoded(s, x, u, i);
                    used.insert(std::vector<float>(&key[first], &key[first] + 12));
                }
            CHECK(used.size() <= 32);
            CHECK(used.size() >= 28); // k-means leaves hardly one without points
            std::vector<float> book;
            for (const auto& centroid : used) book.insert(book.end(), centroid.begin(), centroid.end());
            const rows_view<float> centroids{book.data(), used.size(), 12, 12};
            for (std::uint32_t u = 0; u < 200; u += 7) {
                const auto key = decoded(s, x, u, 3);
                const double best = oracle::nearest(x.key(u, 3) + first, centroids).distance;
                CHECK(oracle::l2sq(&key[first], x.key(u, 3) + first, 12) <= best * (1 + 1e-5));
            }
        }
}

TEST_CASE("more centroids come closer to the keys") {
    double before = 1e300;
    for (const std::uint32_t bits : {1U, 3U, 5U, 8U}) {
        const state s({.parts = 4, .bits = bits}, {});
        lane x(s, {{1, 1, 32, 8}, 64, true}, 4);
        fit(s, x);
        x.absorb_all();
        double error = 0;
        for (std::uint32_t u = 0; u < 64; ++u)
            for (std::uint32_t i = 0; i < 8; ++i)
                error += oracle::l2sq(decoded(s, x, u, i).data(), x.key(u, i), 32);
        CHECK(error < 0.9 * before);
        before = error;
    }
}

TEST_CASE("without a prompt the first keys become the centroids") {
    const state s({.parts = 2, .bits = 4}, {});
    lane x(s, {{1, 1, 16, 1}, 40, true}, 6);
    x.absorb_all();
    for (std::uint32_t u = 0; u < 16; ++u)
        CHECK(decoded(s, x, u, 0) == std::vector<float>(x.key(u, 0), x.key(u, 0) + 16));
    std::set<float> heads;
    for (std::uint32_t u = 0; u < 16; ++u) heads.insert(x.key(u, 0)[0]);
    for (std::uint32_t u = 16; u < 40; ++u) CHECK(heads.count(decoded(s, x, u, 0)[0]) == 1);
}

TEST_CASE("as many centroids as keys decode exactly, and a short prompt leaves room for later keys") {
    const state s({.parts = 2, .bits = 6}, {});
    lane x(s, {{1, 1, 16, 2}, 20, true}, 7);
    fit(s, x); // 40 keys, 64 centroids
    x.absorb_all();
    for (std::uint32_t u = 0; u < 20; ++u)
        for (std::uint32_t i = 0; i < 2; ++i)
            for (std::uint32_t c = 0; c < 16; ++c)
                CHECK(decoded(s, x, u, i)[c] == doctest::Approx(x.key(u, i)[c]));
}

TEST_CASE("keys that are alike take one centroid, and leave room for those that come later") {
    const state s({.parts = 2, .bits = 3}, {}); // 8 centroids a part
    const summary_shape shape{1, 1, 8, 1};
    constexpr std::uint32_t early = 30, late = 7;
    // A prompt of two keys that repeat, whose second part is always the same; then keys that differ.
    std::vector<float> keys((early + late) * 8, 1.0F);
    for (std::uint32_t t = 0; t < early; ++t) std::fill_n(&keys[t * 8], 4, t % 3 == 0 ? 2.0F : -1.0F);
    for (std::uint32_t t = early; t < early + late; ++t)
        for (std::uint32_t c = 0; c < 8; ++c) keys[t * 8 + c] = static_cast<float>(t * (c + 1));
    for (const bool fitted : {true, false}) { // or absorbed without a prompt
        lane x(s, {shape, early + late, true}, 1);
        const summary_view view = x.view();
        if (fitted) {
            std::vector<std::byte> memory(s.fit_scratch_bytes(shape, early) + 64);
            const auto from = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
            s.fit(view, rows_view<float>{keys.data(), early, 8, 8}, std::span(memory).subspan(from));
        }
        for (std::uint32_t u = 0; u < early + late; ++u) {
            s.clear(view, u);
            s.absorb(view, u, 0, &keys[u * 8], nullptr);
        }
        for (std::uint32_t u = 0; u < early + late; ++u) {
            const auto key = decoded(s, x, u, 0);
            const bool whole = u < early + 6; // two and six are eight; the second part has room for one more
            CHECK(std::equal(key.begin() + (whole ? 0 : 4), key.end(), &keys[u * 8 + (whole ? 0 : 4)]));
        }
    }
}

} // namespace index_product_codes_test
