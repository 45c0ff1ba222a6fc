// lane: arrays that do not overlap, a ring, a buffer in order of arrival, and a block that may be moved.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/lane.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace core_store_lane_test {

using namespace kvtl;

namespace {

struct clusterer_lane {
    float threshold = 2.5F;
    std::uint32_t refused = 0;
};
using view = lane_view<f16, clusterer_lane>;

constexpr lane_sizes sizes{.width = 24,
                           .max_tokens = 100,
                           .max_units = 11,
                           .sinks = 3,
                           .window = 5,
                           .buffer = 6,
                           .runs = 4,
                           .ragged = true,
                           .weights = true,
                           .stream_pages = 9,
                           .centroid_bits = 8};

struct fixture {
    lane_sizes size;
    view::offsets at;
    std::vector<std::uint64_t> memory;

    explicit fixture(const lane_sizes& s) : size(s), at(view::offsets::make(s)), memory(bytes() / 8, 0) {}
    /// With the representatives behind the rest.
    [[nodiscard]] std::size_t bytes() const { return at.bytes + at.representative_bytes; }
    view lane() {
        auto* const block = reinterpret_cast<std::byte*>(memory.data());
        return {block, block + at.bytes, size, at};
    }
};

std::vector<f16> row(float x) {
    return std::vector<f16>(sizes.width, from_float<f16>(x));
}

} // namespace

TEST_CASE("arrays are aligned, apart, and make up the block") {
    fixture f(sizes);
    const view l = f.lane();
    struct piece {
        const void* at;
        std::size_t bytes;
    };
    const std::size_t row_bytes = sizes.width * sizeof(f16);
    const std::vector<piece> pieces{
        {&l.state(), sizeof(lane_state)},
        {&l.clusterer(), sizeof(clusterer_lane)},
        {&l.unit(0), 11 * sizeof(unit_record)},
        {&l.residency(0), 11 * sizeof(unit_residency)},
        {&l.extent(0), 11 * sizeof(unit_extent)},
        {&l.page_first(0), 9 * sizeof(std::uint32_t)},
        {l.chosen_before().data(), sizeof(std::uint64_t)},
        {&l.run(0), 4 * sizeof(std::uint32_t)},
        {&l.buffer_unit(0), 6 * sizeof(std::uint32_t)},
        {l.buffer_k(0), 6 * row_bytes},
        {l.buffer_v(0), 6 * row_bytes},
        {l.buffer_w(0), 6 * sizeof(float)},
        {f.memory.data() + (f.at.bytes + f.at.means) / 8, 11 * sizes.width},
        {f.memory.data() + (f.at.bytes + f.at.mean_scale) / 8, 11 * sizeof(float)},
        {l.sink_k(0), 3 * row_bytes},
        {l.sink_v(0), 3 * row_bytes},
        {l.window_k(0), 6 * row_bytes}, // one row more than the window: the current token
        {l.window_v(0), 6 * row_bytes},
        {l.sink_w(0), 3 * sizeof(float)},
        {l.window_w(0), 6 * sizeof(float)}};
    std::vector<int> owners(f.bytes(), 0);
    std::size_t needed = 0;
    const auto* begin = reinterpret_cast<const std::byte*>(f.memory.data());
    for (const piece& p : pieces) {
        const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(p.at) - begin);
        CHECK(offset % 64 == 0);
        REQUIRE(offset + p.bytes <= f.bytes());
        for (std::size_t i = 0; i < p.bytes; ++i) ++owners[offset + i];
        needed += (p.bytes + 63) / 64 * 64;
    }
    CHECK(*std::max_element(owners.begin(), owners.end()) == 1);
    CHECK(f.bytes() == needed);
    CHECK(f.at.metadata_bytes + f.at.buffer_bytes + f.at.index_bytes + f.at.window_bytes == f.at.bytes);
}

TEST_CASE("what a preset does not use costs nothing") {
    lane_sizes plain = sizes;
    plain.centroid_bits = 0;
    plain.ragged = plain.weights = false;
    plain.stream_pages = 0;
    const auto all = view::offsets::make(sizes), less = view::offsets::make(plain);
    CHECK(less.representative_bytes == 0);
    CHECK(all.representative_bytes >= 11 * (24 + sizeof(float)));
    CHECK(less.index_bytes == 0);
    CHECK(all.metadata_bytes - less.metadata_bytes >= 9 * sizeof(std::uint32_t) + 11 * sizeof(unit_extent));
    CHECK(all.buffer_bytes > less.buffer_bytes);
    CHECK(all.window_bytes - less.window_bytes >= (3 + 6) * sizeof(float));
    // A group is nothing but where it is now.
    const auto groups = lane_offsets<f16, clusterer_lane, group_record>::make(plain);
    CHECK(groups.residency == groups.units);
    CHECK(groups.metadata_bytes < less.metadata_bytes);
}

TEST_CASE("the parts of the representatives that say something are those of the units that there are") {
    lane_sizes s = sizes;
    s.index_unit = 10, s.index_tail = 30, s.estimator_unit = 7;
    fixture f(s);
    const view l = f.lane();
    using parts = std::vector<std::pair<std::size_t, std::size_t>>;
    const auto found = [&](std::uint32_t units) {
        l.state().units = units;
        parts all;
        l.each_representative_part([&](std::size_t begin, std::size_t end) { all.emplace_back(begin, end); });
        return all;
    };
    CHECK(found(0).empty());
    for (const std::uint32_t units : {1U, 4U, 11U}) {
        // 24 codes and a scale each, what the index keeps with what may lie behind the last, what the estimator keeps
        const std::size_t means = 0, scales = (11 * 24 + 63) / 64 * 64, index = scales + 64,
                          rest = index + (11 * 10 + 30 + 63) / 64 * 64;
        CHECK(found(units) == parts{{means, means + units * 24},
                                    {scales, scales + units * 4},
                                    {index, index + units * 10 + 30},
                                    {rest, rest + units * 7}});
    }
}

TEST_CASE("the window is a ring with one row to spare, the first tokens are sinks") {
    fixture f(sizes);
    const view l = f.lane();
    for (std::uint32_t t = 0; t < 3; ++t) {
        CHECK(l.arrival_k(t) == l.sink_k(t));
        CHECK(l.arrival_v(t) == l.sink_v(t));
    }
    for (std::uint32_t t = 3; t < 40; ++t) {
        CHECK(l.arrival_k(t) == l.window_k(t));
        CHECK(l.arrival_v(t) == l.window_v(t));
        CHECK(l.window_k(t) == l.window_k(t + 6));
        for (std::uint32_t other = t + 1; other < t + 6; ++other) CHECK(l.window_k(t) != l.window_k(other));
    }
}

TEST_CASE("the buffer keeps the order of arrival") {
    fixture f(sizes);
    const view l = f.lane();
    l.reset();
    l.state().units = 11;
    struct waiting {
        std::uint32_t unit;
        float key;
    };
    std::vector<waiting> expected;
    oracle::generator random(5);
    for (std::uint32_t i = 0; i < 400; ++i) {
        if (expected.size() < sizes.buffer && random.below(2) == 0) {
            const waiting w{static_cast<std::uint32_t>(random.below(11)), static_cast<float>(i)};
            l.push_buffer(w.unit, row(w.key).data(), row(-w.key).data());
            expected.push_back(w);
        } else if (!expected.empty()) {
            const std::size_t gone = random.below(expected.size());
            l.erase_buffer(static_cast<std::uint32_t>(gone));
            expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(gone));
        }
        REQUIRE(l.state().buffered == expected.size());
        std::vector<std::uint32_t> of_unit(11, 0);
        for (std::uint32_t b = 0; b < expected.size(); ++b) {
            REQUIRE(l.buffer_unit(b) == expected[b].unit);
            REQUIRE(to_float(l.buffer_k(b)[sizes.width - 1]) == expected[b].key);
            REQUIRE(to_float(l.buffer_v(b)[0]) == -expected[b].key);
            ++of_unit[expected[b].unit];
        }
        for (std::uint32_t u = 0; u < 11; ++u) REQUIRE(l.unit(u).buffered == of_unit[u]);
    }
}

TEST_CASE("tokens are in sinks, units, buffer or window, and nowhere twice") {
    fixture f(sizes);
    const view l = f.lane();
    l.state() = {.tokens = 50, .sinks = 3, .window_begin = 45, .buffered = 4};
    CHECK(l.entries_in_memory() == 3 + 5 + 4);
    CHECK(l.entries_in_units() == 45 - 3 - 4);
    CHECK(l.entries_in_memory() + l.entries_in_units() == 50);
}

TEST_CASE("a lane may be copied as bytes") {
    static_assert(std::is_trivially_copyable_v<unit_record> && std::is_trivially_copyable_v<lane_state>);
    fixture from(sizes), to(sizes);
    const view a = from.lane(), b = to.lane();
    a.reset();
    CHECK(a.clusterer().threshold == 2.5F);
    a.state().units = 2;
    a.unit(1).entries = 17;
    const std::vector<float> mean(24, 0.25F);
    a.means().set(1, mean.data());
    a.push_buffer(1, row(3).data(), row(4).data());
    std::memcpy(to.memory.data(), from.memory.data(), from.bytes());
    a.reset();
    CHECK(a.state().units == 0);
    CHECK(b.units().size() == 2);
    CHECK(b.units()[1].entries == 17);
    std::vector<float> copied(24);
    b.means().get(1, copied.data());
    CHECK(copied[23] == doctest::Approx(0.25));
    CHECK(b.buffer_unit(0) == 1);
    CHECK(to_float(b.buffer_v(0)[5]) == 4.0F);
}

TEST_CASE("a block whose tables become longer or shorter, in place, says what it said") {
    lane_sizes many = sizes;
    many.max_units = 300;
    many.index_unit = 12, many.index_tail = 100, many.estimator_unit = 8;
    const auto filled = [](void* at, std::size_t bytes, unsigned seed) {
        for (std::size_t i = 0; i < bytes; ++i)
            static_cast<std::byte*>(at)[i] = static_cast<std::byte>(seed + 7 * i);
    };
    const auto holds = [](const void* at, std::size_t bytes, unsigned seed) {
        for (std::size_t i = 0; i < bytes; ++i)
            if (static_cast<const std::byte*>(at)[i] != static_cast<std::byte>(seed + 7 * i)) return false;
        return true;
    };
    for (const std::uint32_t units : {0U, 1U, 40U})
        for (const auto& change : {std::pair{40U, 41U}, {40U, 300U}, {300U, 40U}, {41U, 40U}, {64U, 64U}}) {
            const std::uint32_t before = change.first, after = change.second;
            CAPTURE(units);
            CAPTURE(before);
            CAPTURE(after);
            const auto was = view::offsets::make(many, before), now = view::offsets::make(many, after);
            std::vector<std::uint64_t> memory(
                std::max(was.bytes + was.representative_bytes, now.bytes + now.representative_bytes) / 8);
            auto* const block = reinterpret_cast<std::byte*>(memory.data());
            const auto each = [&](const view::offsets& at, auto&& visit) {
                const view l(block, block + at.bytes, many, at);
                CHECK(l.table_rows() == at.rows);
                visit(block, at.units, 1U); // whatever lies in front of the tables
                visit(&l.unit(0), units * sizeof(unit_record), 2U);
                visit(&l.residency(0), units * sizeof(unit_residency), 3U);
                visit(&l.extent(0), units * sizeof(unit_extent), 4U);
                std::byte* const representatives = block + at.bytes;
                visit(representatives + at.means, units * many.width, 5U);
                visit(representatives + at.mean_scale, units * sizeof(float), 6U);
                visit(representatives + at.index_units, units * many.index_unit + many.index_tail, 7U);
                visit(representatives + at.estimator_units, units * many.estimator_unit, 8U);
            };
            each(was, filled);
            was.move(many, units, block, now, block);
            each(now,
                 [&](const void* at, std::size_t bytes, unsigned seed) { CHECK(holds(at, bytes, seed)); });
        }
}

} // namespace core_store_lane_test
