// Rows in chained blocks against a plain list, under random pushes, removals and cuts of several lanes.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/row_pool.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

namespace core_store_row_pool_test {

namespace {
struct remembered {
    std::uint32_t a = 0;
    float b = 0;
};
struct row {
    std::uint32_t token;
    float score, key, value, weight;
    remembered record;
};
constexpr std::uint32_t dim = 12, blocks = 40;
} // namespace

TEST_CASE_TEMPLATE("lanes hold what was put there, and free blocks are counted", E, float, kvtl::f16) {
    using pool_t = kvtl::row_pool<E, remembered>;
    constexpr kvtl::record_bytes most{dim * sizeof(E), dim * sizeof(E)};
    std::vector<std::byte> memory(blocks * pool_t::block_bytes(most) + 64);
    auto* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    std::vector<std::uint32_t> links(blocks), table(blocks);
    pool_t pool(std::span(aligned, blocks * pool_t::block_bytes(most)), links, most);
    std::vector<kvtl::block_chain> chain(5);
    std::vector<std::vector<row>> model(5);
    oracle::generator random(7);
    bool equal = true, counted = true;
    for (std::uint32_t step = 0; step < 20'000; ++step) {
        const std::size_t lane = random.below(5);
        auto& list = model[lane];
        const kvtl::kept_rows held(pool, chain[lane], table);
        const std::size_t what = random.below(20);
        if (what < 13 && (list.size() % 16 != 0 || pool.free_blocks() > 0)) {
            const row r{step,
                        static_cast<float>(step % 100),
                        static_cast<float>(step % 7),
                        static_cast<float>(step % 11),
                        static_cast<float>(step % 3),
                        {step, 2.0F}};
            const std::uint32_t i = held.push(r.token);
            held.score(i) = r.score;
            held.log_weight(i) = r.weight;
            held.record(i) = r.record;
            std::fill_n(held.key(i), dim, kvtl::from_float<E>(r.key));
            std::fill_n(held.value(i), dim, kvtl::from_float<E>(r.value));
            list.push_back(r);
        } else if (what < 18 && !list.empty()) {
            const std::size_t i = random.below(list.size());
            held.remove(static_cast<std::uint32_t>(i));
            list[i] = list.back();
            list.pop_back();
        } else if (what == 18 && random.below(20) == 0) {
            const std::size_t n = random.below(list.size() + 1);
            held.truncate(static_cast<std::uint32_t>(n));
            list.resize(n);
        } else if (what == 19 && random.below(20) == 0) {
            pool.release(chain[lane]);
            list.clear();
        }
        if (step % 50 != 0) continue;
        std::size_t used = 0;
        for (std::size_t l = 0; l < 5; ++l) {
            const kvtl::kept_rows rows(pool, chain[l], table);
            used += kvtl::blocks_for(model[l].size());
            equal = equal && rows.size() == model[l].size();
            std::uint32_t seen = 0;
            rows.pieces(
                0, rows.size(), [&](std::uint32_t first, auto keys, auto values, const float* weight) {
                    equal = equal && first == seen && keys.count == values.count;
                    for (std::uint32_t i = 0; i < keys.count; ++i) {
                        const row& r = model[l][first + i];
                        const auto *k = reinterpret_cast<const E*>(keys.record(i)),
                                   *v = reinterpret_cast<const E*>(values.record(i));
                        equal = equal && kvtl::to_float(k[dim - 1]) == r.key &&
                                kvtl::to_float(v[0]) == r.value && weight[i] == r.weight &&
                                rows.token(first + i) == r.token && rows.score(first + i) == r.score &&
                                rows.record(first + i).a == r.record.a;
                    }
                    seen += static_cast<std::uint32_t>(keys.count);
                });
            equal = equal && seen == rows.size();
        }
        counted = counted && pool.free_blocks() == blocks - used;
    }
    CHECK(equal);
    CHECK(counted);
    CHECK(pool.used_peak() == blocks);
}

TEST_CASE("smaller records share the pool: a block has as many as fit, and each chain keeps its rows") {
    using pool_t = kvtl::row_pool<float, remembered>;
    constexpr kvtl::record_bytes most{dim * sizeof(float), dim * sizeof(float)}, small{12, 8};
    const std::size_t block = pool_t::block_bytes(most);
    const kvtl::row_format format = pool_t::format_within(small, block);
    CHECK(format.rows > kvtl::rows_per_block);
    CHECK(format.bytes <= block);
    CHECK(pool_t::format_within(most, block).rows == kvtl::rows_per_block);
    // Another row's records, token, score, log-weight and what is remembered would not fit.
    CHECK((format.rows + 1) * (small.entry() + 12 + sizeof(remembered)) + 64 > block);
    std::vector<std::byte> memory(8 * block + 64);
    auto* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    std::vector<std::uint32_t> links(8), one(8), two(8);
    pool_t pool(std::span(aligned, 8 * block), links, most);
    kvtl::block_chain large, little;
    const kvtl::kept_rows rows(pool, large, one);
    const kvtl::kept_rows<pool_t, 0> demoted(pool, little, two, format);
    const auto fill = [](const auto& of, std::uint32_t i, std::uint32_t x) {
        std::memset(of.key_record(i), static_cast<int>(x % 251), of.format().most.key);
        std::memset(of.value_record(i), static_cast<int>(x % 241), of.format().most.value);
        of.score(i) = static_cast<float>(x);
        of.record(i) = {x, 3.0F};
    };
    const auto is = [](const auto& of, std::uint32_t i, std::uint32_t x) {
        const auto byte = [](const std::byte* b) { return static_cast<std::uint32_t>(*b); };
        return of.token(i) == x && of.score(i) == static_cast<float>(x) && of.record(i).a == x &&
               byte(of.key_record(i)) == x % 251 &&
               byte(of.key_record(i) + of.format().most.key - 1) == x % 251 &&
               byte(of.value_record(i) + of.format().most.value - 1) == x % 241;
    };
    for (std::uint32_t x = 0; x < 40; ++x) {
        fill(rows, rows.push(x), x);
        fill(demoted, demoted.push(1000 + x), 1000 + x);
    }
    CHECK(large.blocks == kvtl::blocks_for(40));
    CHECK(little.blocks == kvtl::blocks_for(40, format.rows));
    bool equal = true;
    for (std::uint32_t x = 0; x < 40; ++x) equal = equal && is(rows, x, x) && is(demoted, x, 1000 + x);
    CHECK(equal);
    std::uint32_t seen = 0;
    demoted.pieces(0, 40, [&](std::uint32_t first, auto keys, auto values, const float*) {
        CHECK(first == seen);
        CHECK(keys.count == values.count);
        seen += static_cast<std::uint32_t>(keys.count);
    });
    CHECK(seen == 40);
    demoted.remove(3);
    CHECK(is(demoted, 3, 1039));
    demoted.truncate(0);
    rows.truncate(0);
    CHECK(pool.free_blocks() == 8);
}

} // namespace core_store_row_pool_test
