// Records in chained blocks against plain lists, under random pushes and cuts of several lanes, of one size and ragged.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/record_chain.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

namespace core_store_record_chain_test {

using namespace kvtl;

namespace {
struct entry {
    std::vector<std::byte> key, value;
    friend bool operator==(const entry&, const entry&) = default;
};
constexpr record_bytes most{40, 24};
constexpr std::uint32_t blocks = 30;

/// A pool and what its lanes should hold.
struct model {
    explicit model(bool is_ragged)
        : ragged(is_ragged), format(record_pool::format_of(most, ragged)),
          memory(std::size_t{blocks} * format.page_bytes), links(blocks), pool(format, memory, links),
          chains(4), lists(4) {}

    entry make(oracle::generator& random) const {
        const auto bytes = [&](std::uint32_t n) {
            std::vector<std::byte> all(ragged ? 4 * (1 + random.below(n / 4)) : n);
            for (auto& b : all) b = static_cast<std::byte>(random.below(256));
            return all;
        };
        return {bytes(most.key), bytes(most.value)};
    }
    bool push(std::size_t lane, const entry& e) {
        const record_bytes bytes{static_cast<std::uint32_t>(e.key.size()),
                                 static_cast<std::uint32_t>(e.value.size())};
        if (!pool.push(chains[lane], {e.key.data(), e.value.data(), bytes})) return false;
        lists[lane].push_back(e);
        return true;
    }
    void cut(std::size_t lane, std::size_t rows) {
        pool.cut(chains[lane], static_cast<std::uint32_t>(rows));
        lists[lane].resize(std::min(rows, lists[lane].size()));
    }
    /// Entry i of a lane begins with what was put there, in the views that attention gets.
    bool holds(std::size_t lane) const {
        const auto& list = lists[lane];
        std::size_t i = 0, bytes = 0;
        bool equal = chains[lane].rows == list.size();
        const auto compare = [&](const records_view& keys, const records_view& values) {
            equal = equal && keys.count == values.count && i + keys.count <= list.size();
            for (std::size_t j = 0; equal && j < keys.count; ++j, ++i)
                equal = std::memcmp(keys.record(j), list[i].key.data(), list[i].key.size()) == 0 &&
                        std::memcmp(values.record(j), list[i].value.data(), list[i].value.size()) == 0;
        };
        std::span<const std::byte> next; // what was said to come
        bool follows = true;
        pool.visit(chains[lane], [&](const records_view& keys, const records_view& values, auto coming) {
            follows =
                follows && (next.empty() ? i == 0 : keys.data >= next.data() && keys.data < &next.back());
            compare(keys, values);
            next = coming;
        });
        equal = equal && follows && next.empty();
        equal = equal && i == list.size();
        i = 0; // and piece by piece
        auto at = record_pool::begin(chains[lane]);
        for (std::uint32_t left = chains[lane].rows, n = 7; equal && left > 0; left -= n) {
            n = std::min(n, left);
            pool.read(at, n, compare);
        }
        for (const entry& e : list) bytes += e.key.size() + e.value.size();
        return equal && i == list.size() && chains[lane].bytes == bytes;
    }

    bool ragged;
    page_format format;
    std::vector<std::byte> memory;
    std::vector<std::uint32_t> links;
    record_pool pool;
    std::vector<record_chain> chains;
    std::vector<std::vector<entry>> lists;
};
} // namespace

TEST_CASE("lanes hold what was pushed, in its order, and what is cut is free again") {
    for (const bool ragged : {false, true}) {
        CAPTURE(ragged);
        model m(ragged);
        oracle::generator random(3);
        bool equal = true;
        std::size_t refused = 0;
        for (std::size_t step = 0; step < 20'000; ++step) {
            const std::size_t lane = random.below(4);
            if (random.below(200) != 0) {
                const entry e = m.make(random);
                if (!m.push(lane, e)) {
                    ++refused;
                    m.cut(lane, 0);
                }
            } else {
                m.cut(lane, random.below(m.lists[lane].size() + 1));
            }
            if (step % 97 == 0)
                for (std::size_t l = 0; l < 4; ++l) equal = equal && m.holds(l);
        }
        CHECK(equal);
        CHECK(refused > 0); // the pool was full at times, which changed nothing
        for (std::size_t l = 0; l < 4; ++l) m.cut(l, 0);
        CHECK(m.pool.used() == 0);
        CHECK(m.pool.used_peak() == blocks);
    }
}

TEST_CASE("a block holds as many entries as attention takes at once, and more that are short") {
    for (const bool ragged : {false, true}) {
        CAPTURE(ragged);
        model m(ragged);
        for (std::size_t i = 0; i < records_per_block; ++i)
            REQUIRE(m.push(0, {std::vector<std::byte>(most.key), std::vector<std::byte>(most.value)}));
        CHECK(m.pool.used() == 1);
        REQUIRE(m.push(0, {std::vector<std::byte>(most.key), std::vector<std::byte>(most.value)}));
        CHECK(m.pool.used() == 2);
    }
    model m(true);
    for (std::size_t i = 0; i < 2 * records_per_block; ++i)
        REQUIRE(m.push(0, {std::vector<std::byte>(16), std::vector<std::byte>(8)}));
    CHECK(m.pool.used() == 1);
}

TEST_CASE(
    "blocks that are promised are nobody else's, and a copy has the same entries in blocks of its own") {
    for (const bool ragged : {false, true}) {
        CAPTURE(ragged);
        oracle::generator random(7);
        model m(ragged);
        for (int i = 0; i < 350; ++i) REQUIRE(m.push(0, m.make(random)));
        m.cut(0, 320);
        const std::uint32_t need = m.pool.blocks_of(m.chains[0]), left = m.pool.size() - m.pool.used();
        CHECK(need == m.pool.used());
        CHECK_FALSE(m.pool.promise(left + 1));
        REQUIRE(m.pool.promise(need));
        while (m.push(1, m.make(random))) {
        }
        CHECK(m.pool.used() == m.pool.size() - need);
        m.chains[2] = m.pool.copy(m.chains[0]);
        m.lists[2] = m.lists[0];
        CHECK(m.pool.used() == m.pool.size());
        m.cut(0, 0); // it does not hang on what it was copied from
        for (int i = 0; i < 90; ++i) static_cast<void>(m.push(0, m.make(random)));
        for (std::size_t l = 0; l < 3; ++l) CHECK(m.holds(l));
        m.cut(2, 100);
        for (std::size_t l = 0; l < 3; ++l) CHECK(m.holds(l));
    }
}

} // namespace core_store_record_chain_test
