// entry_tile: entries come out as they went in, with the queries that attend them; long units are not gathered.
// SPDX-License-Identifier: MIT
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/step/entry_tile.hpp>
#include <kvtl/presets/infinigen.hpp>
#include <kvtl/presets/pqcache.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace core_step_entry_tile_test {

using namespace kvtl;

namespace {
using types = cache_types<presets::pqcache>;
using tile_t = entry_tile<types>;

lane_sizes sizes_of(std::uint32_t width) {
    lane_sizes s;
    s.width = width;
    s.record = {width * 2, width * 2};
    return s;
}
} // namespace

TEST_CASE("units below half a block are gathered") {
    CHECK(tile_t::gathers(1));
    CHECK(tile_t::gathers(15));
    CHECK_FALSE(tile_t::gathers(16));
    carver none_needed;
    CHECK_FALSE(tile_t::take(none_needed, sizes_of(64), 16).in_use());
    CHECK(none_needed.used() == 0);
}

TEST_CASE("entries lie in the order of their coming, a block of them, each with its queries") {
    for (const std::uint32_t width : {2U, 64U, 80U, 1024U}) {
        CAPTURE(width);
        const lane_sizes s = sizes_of(width);
        carver count;
        static_cast<void>(tile_t::take(count, s, 1));
        std::vector<std::byte> memory(count.used() + 64);
        carver c(memory);
        tile_t tile = tile_t::take(c, s, 1);
        REQUIRE(tile.in_use());
        for (int round = 0; round < 2; ++round) {
            tile.clear();
            CHECK(tile.rows() == 0);
            std::vector<f16> row(width);
            for (std::uint32_t i = 0; i < simd::attend_block; ++i) {
                CHECK_FALSE(tile.full());
                for (f16& x : row) x = from_float<f16>(static_cast<float>(100 * round + static_cast<int>(i)));
                const auto* bytes = reinterpret_cast<const std::byte*>(row.data());
                tile.put(7, {bytes, bytes, s.record}, i % 3 == 0 ? 21U : 4U);
                CHECK(tile.one_mask() == (i == 0));
            }
            CHECK(tile.full());
            CHECK(tile.lane() == 7);
            CHECK(tile.any_mask() == 21);
            CHECK(tile.alike(1) == 17); // queries 0 and 4 attend the same entries
            CHECK(tile.alike(16) == 17);
            CHECK(tile.alike(4) == 4);
            CHECK(tile.keys().count == simd::attend_block);
            CHECK(tile.values().count == simd::attend_block);
            float bias[simd::attend_block];
            tile.absence(1, bias);
            for (std::uint32_t i = 0; i < simd::attend_block; ++i) {
                const auto expected = static_cast<float>(100 * round + static_cast<int>(i));
                for (const auto& view : {tile.keys(), tile.values()}) {
                    const auto* stored = reinterpret_cast<const f16*>(view.record(i));
                    CHECK(to_float(stored[0]) == expected);
                    CHECK(to_float(stored[width - 1]) == expected);
                }
                CHECK((i % 3 == 0 ? bias[i] == 0.0F : std::isinf(bias[i])));
            }
            tile.absence(4, bias);
            for (const float b : bias) CHECK(b == 0.0F);
        }
    }
}

TEST_CASE("entries that lie behind each other come at once") {
    const lane_sizes s = sizes_of(80);
    carver count;
    static_cast<void>(tile_t::take(count, s, 4));
    std::vector<std::byte> memory(count.used() + 64);
    carver c(memory);
    tile_t tile = tile_t::take(c, s, 4);
    std::vector<f16> k(4 * 80), v(4 * 80);
    for (std::size_t i = 0; i < k.size(); ++i)
        k[i] = from_float<f16>(static_cast<float>(i)), v[i] = from_float<f16>(static_cast<float>(i) + 0.5F);
    const entry_record first{reinterpret_cast<const std::byte*>(k.data()),
                             reinterpret_cast<const std::byte*>(v.data()), s.record};
    tile.put(3, first, 1, 1);
    tile.put(3, first, 6, 4);
    CHECK(tile.rows() == 5);
    CHECK(tile.room() == simd::attend_block - 5);
    CHECK(tile.alike(2) == 6);
    for (std::uint32_t i = 0; i < 5; ++i) {
        const std::size_t row = i == 0 ? 0 : i - 1; // the first came twice
        const auto* key = reinterpret_cast<const f16*>(tile.keys().record(i));
        const auto* value = reinterpret_cast<const f16*>(tile.values().record(i));
        CHECK(to_float(key[0]) == static_cast<float>(row * 80));
        CHECK(to_float(value[79]) == static_cast<float>(row * 80 + 79) + 0.5F);
    }
}

} // namespace core_step_entry_tile_test
