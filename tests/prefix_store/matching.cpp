// The longest stored prefix, against a look at all of them: random texts of few tokens in many spaces, which share what they
// begin with. 10^5 operations, or as many as KVTL_PREFIX_OPERATIONS says.
// SPDX-License-Identifier: MIT
#include "support/prefix_stores.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <random>

namespace prefix_matching_test {

using namespace kvtl_test;

namespace {

/// A text, and who may see it.
struct known {
    token_list tokens;
    kvtl::prefix_space space;
};

std::size_t operations() {
    const char* asked = std::getenv("KVTL_PREFIX_OPERATIONS");
    return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 100000;
}

/// Eight values, and no space.
struct colliding_hash {
    static kvtl::hash128 begin(std::uint64_t, const kvtl::prefix_space&) { return {}; }
    static kvtl::hash128 next(kvtl::hash128 h, std::uint32_t token) { return {(h[0] * 3 + token) % 8, 0}; }
};

/// Any trace of operations, against a look at all that was kept and not evicted. Bounds hold after each of them.
template <class Store> kvtl::prefix_statistics finds_the_longest(std::size_t n, std::uint64_t seed) {
    simulated_disk disk;
    pretend_cache cache{.disk = &disk};
    std::uint64_t now = 86400;
    const kvtl::prefix_store_config config{.folder = "f",
                                           .model = 7,
                                           .trunks = 6,
                                           .file_bytes = 40 * 20480,
                                           .free_bytes = 0,
                                           .memory_bytes = 48 << 10,
                                           .rewind_tokens = 3,
                                           .clock = [&now] { return now; }};
    auto s = open_store<Store>(cache, config);
    std::mt19937_64 random(seed);
    const std::vector<kvtl::prefix_space> spaces = {{},
                                                    {.tenant = "a"},
                                                    {.adapter = "a"},
                                                    {.input = "a"},
                                                    {.tenant = "a", .adapter = "b"},
                                                    {.tenant = "ab"},
                                                    {.tenant = "b", .adapter = "a"}};
    std::map<kvtl::prefix_id, known> all;
    std::map<kvtl::prefix_id, kvtl::prefix_hints> hints;
    std::size_t hits = 0, evicted = 0, given_up = 0;
    const auto make = [&] { // two kinds of tokens: many texts begin alike
        token_list t(1 + random() % 24);
        for (auto& x : t) x = random() % 8 == 0;
        return t;
    };
    for (std::size_t i = 0; i < n; ++i, ++now) {
        const kvtl::prefix_space& space = spaces[random() % spaces.size()];
        token_list t = make();
        if (random() % 4 == 0) { // of one that is known, and on
            for (const auto& [id, k] : all)
                if (k.space == space && random() % 3 == 0) {
                    const token_list more = make();
                    t = k.tokens;
                    t.insert(t.end(), more.begin(),
                             more.begin() + static_cast<std::ptrdiff_t>(more.size() / 2));
                    break;
                }
        }
        std::erase_if(all, [&](const auto& one) {
            const bool gone = !s.hint(one.first, hints[one.first]);
            evicted += gone;
            return gone;
        });
        switch (random() % 8) {
        default: {
            std::size_t longest = 0;
            for (const auto& [id, k] : all)
                for (std::size_t cut = 0; cut <= config.rewind_tokens && cut < k.tokens.size(); ++cut) {
                    const std::size_t have = k.tokens.size() - cut;
                    if (k.space == space && have > longest && have < t.size() &&
                        std::equal(k.tokens.begin(), k.tokens.begin() + static_cast<std::ptrdiff_t>(have),
                                   t.begin()))
                        longest = have;
                }
            const auto got = started(s, cache, t, space);
            REQUIRE(got.tokens == longest);
            REQUIRE((got.from == kvtl::prefix_source::nothing) == (longest == 0));
            if (longest == 0) break;
            REQUIRE(all.at(got.prefix).space == space);
            given_up += all.at(got.prefix).tokens.size() != longest;
            ++hits;
            break;
        }
        case 0:
        case 1: {
            kvtl::keep_options o{.space = space, .to_file = random() % 8 == 0};
            if (random() % 2 == 0) o.hints.steps = random() % 50;
            if (random() % 8 == 0) o.hints.keep_until = now + random() % 100;
            o.hints.priority = static_cast<int>(random() % 3);
            const auto id = kept(s, cache, t, o);
            if (all.contains(id)) REQUIRE(all[id].tokens == t);
            all[id] = {t, space};
            hints[id] = o.hints;
            break;
        }
        case 2:
            REQUIRE(s.prefetch(t, space).ok());
            break;
        case 3:
            if (!all.empty()) {
                const auto id =
                    std::next(all.begin(), static_cast<std::ptrdiff_t>(random() % all.size()))->first;
                if (random() % 8 == 0)
                    REQUIRE(s.forget(id).ok());
                else
                    hints[id].steps = random() % 50, static_cast<void>(s.hint(id, hints[id]));
            }
            break;
        }
        const auto now_is = s.statistics();
        REQUIRE(now_is.trunks <= config.trunks);
        REQUIRE(now_is.trunks == cache.open.size());
        REQUIRE(now_is.file_bytes <= config.file_bytes);
        REQUIRE(now_is.memory_bytes <= config.memory_bytes);
        if (i % 64 == 0) check_counts(s, cache);
    }
    const auto end = s.statistics();
    MESSAGE(n, " operations, ", hits, " hits, ", given_up, " with tokens given up, ", evicted,
            " prefixes that left, ", end.forked, " forked, ", end.loaded, " loaded");
    CHECK(end.forked > n / 100);
    CHECK(end.loaded > n / 100);
    CHECK(given_up > n / 1000);
    CHECK(evicted > n / 100);
    CHECK(end.refused == 0);
    CHECK(end.tokens_prefilled_again > 0);
    return end;
}

} // namespace

TEST_CASE("start() finds the longest stored prefix, and none of another space") {
    CHECK(finds_the_longest<pretend_store>(operations(), 1).collisions == 0);
}
TEST_CASE("a hash that collides costs comparisons, and never gives another prompt's sequence") {
    using store = kvtl::prefix_store<pretend_cache, simulated_file_ops, colliding_hash>;
    CHECK(finds_the_longest<store>(operations() / 10, 2).collisions > operations() / 10);
}

} // namespace prefix_matching_test
