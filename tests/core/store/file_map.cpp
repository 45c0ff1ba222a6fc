// file_map: every page of every shard has a place of its own, and pages of one step lie side by side.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/transfers.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace core_store_file_map_test {

TEST_CASE("pages of all shards lie behind the superblock, nowhere twice, those in front before all others") {
    constexpr std::uint32_t shards = 3, pages = 23, in_front = 7, step = 5, bytes = 512;
    for (const std::uint32_t front_steps : {0U, 2U}) {
        const std::uint32_t all = pages + (front_steps > 0 ? in_front : 0);
        std::vector<std::uint64_t> places;
        std::uint64_t last_in_front = 0, first_behind = UINT64_MAX;
        for (std::uint32_t shard = 0; shard < shards; ++shard) {
            const kvtl::file_map map{.data_offset = 4096,
                                     .page_bytes = bytes,
                                     .step_pages = step,
                                     .shard = shard,
                                     .shards = shards,
                                     .front = pages,
                                     .front_steps = front_steps};
            for (std::uint32_t p = 0; p < all; ++p) {
                const std::uint64_t at = map.offset(p);
                CHECK(at >= 4096);
                CHECK(at % bytes == 0);
                places.push_back(at);
                if (p >= pages)
                    last_in_front = std::max(last_in_front, at);
                else
                    first_behind = std::min(first_behind, at);
                for (std::uint32_t q = p + 1; q < all; ++q) {
                    const bool one_step =
                        (p < pages) == (q < pages) &&
                        (p < pages ? p / step == q / step : (p - pages) / step == (q - pages) / step);
                    CHECK(map.same_step(p, q) == one_step);
                    if (one_step) CHECK(map.offset(q) - at == std::uint64_t{q - p} * bytes);
                }
            }
        }
        std::sort(places.begin(), places.end());
        CHECK(std::adjacent_find(places.begin(), places.end()) == places.end());
        CHECK(last_in_front < first_behind);
    }
}

TEST_CASE("a page lies beyond 4 GiB where that many are in front of it") {
    constexpr std::uint32_t step = 1U << 14, bytes = 4096,
                            page = (3U << 21) + 5; // 24 GiB of a shard's own pages
    for (std::uint32_t shard = 0; shard < 2; ++shard) {
        const kvtl::file_map map{.data_offset = 4096,
                                 .page_bytes = bytes,
                                 .step_pages = step,
                                 .shard = shard,
                                 .shards = 2,
                                 .front = UINT32_MAX,
                                 .front_steps = 0};
        const std::uint64_t steps = std::uint64_t{page / step} * 2 + shard;
        CHECK(map.offset(page) == 4096 + (steps * step + page % step) * std::uint64_t{bytes});
    }
}

} // namespace core_store_file_map_test
