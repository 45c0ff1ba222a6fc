// statistics: sums that forget no counter, and the rates made of them.
// SPDX-License-Identifier: MIT
#include <kvtl/statistics.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace kvtl;

TEST_CASE("a sum takes every counter, and leaves the parts of the reservation alone") {
    static_assert(std::is_trivially_copyable_v<statistics>);
    constexpr std::size_t counters = (sizeof(statistics) - sizeof(memory_parts)) / sizeof(std::uint64_t);
    std::vector<std::uint64_t> numbers(counters), sum(counters);
    for (std::size_t i = 0; i < counters; ++i) numbers[i] = 1000 + i * i;
    statistics a, b;
    std::memcpy(static_cast<void*>(&a), numbers.data(), counters * sizeof(std::uint64_t));
    b = a;
    a.bytes_by_part.frames = 5;
    b.bytes_by_part.frames = 7;
    a += b;
    std::memcpy(sum.data(), &a, counters * sizeof(std::uint64_t));
    for (std::size_t i = 0; i < counters; ++i) CHECK(sum[i] == 2 * numbers[i]);
    CHECK(a.bytes_by_part.frames == 5);
}

TEST_CASE("the parts add up") {
    const memory_parts p{.index = 1,
                         .metadata = 2,
                         .window = 4,
                         .buffers = 8,
                         .tails = 16,
                         .scratch = 32,
                         .frames = 64,
                         .calibration = 128};
    CHECK(p.total() == 255);
    std::size_t sum = 0, count = 0;
    p.each([&](std::string_view, std::size_t bytes) { sum += bytes, ++count; });
    CHECK(sum == p.total());
    CHECK(count == 8);
    CHECK(p.share(p.index) == 0.0); // of nothing
    memory_parts q = p;
    q.raw_cache = 512;
    CHECK(q.share(q.calibration) == 0.25);
    CHECK(q.total() == 255); // it is no part
}

TEST_CASE("rates") {
    statistics s;
    CHECK(s.hit_rate() == 1.0); // nothing was missed
    CHECK(s.mean_read_entries() == 0.0);
    s.chosen_bytes = 400;
    s.resident_chosen_bytes = 100;
    s.decode_reads = 8;
    s.read_entries = 100;
    CHECK(s.mean_selectable_entries() == 0.0);
    s.choices = 4;
    s.selectable_entries = 90;
    CHECK(s.mean_selectable_entries() == 22.5);
    s += s;
    CHECK(s.choices == 8);
    CHECK(s.mean_selectable_entries() == 22.5);
    s.empty_choices = 1;
    s += s;
    CHECK(s.empty_choices == 2);
    CHECK(s.hit_rate() == 0.25);
    CHECK(s.mean_read_entries() == 12.5);
}
