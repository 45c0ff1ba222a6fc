// Who leaves, when, and what is counted: each bound and each rule by itself, and the order against a naive model.
// SPDX-License-Identifier: MIT
#include "support/prefix_stores.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace prefix_bounds_test {

using namespace kvtl_test;

namespace {

constexpr std::uint64_t day = 86400;

/// Of a file with 100 tokens: superblocks, root, identity, note, and one block of entries.
std::uint64_t file_of_100() {
    simulated_disk disk;
    pretend_cache cache{.disk = &disk};
    auto s = open_store(cache, {.folder = "f", .free_bytes = 0});
    static_cast<void>(kept(s, cache, counting(0, 100)));
    return s.statistics().file_bytes;
}

struct fixture {
    simulated_disk disk;
    pretend_cache cache{.disk = &disk};
    std::uint64_t now = 1000 * day;
    std::uint64_t file = file_of_100();

    kvtl::prefix_store_config config() {
        return {.folder = "f", .free_bytes = 0, .rewind_tokens = 0, .clock = [this] { return now; }};
    }
    [[nodiscard]] bool holds(pretend_store& s, std::uint32_t first) {
        return started(s, cache, counting(first, 101)).tokens == 100;
    }
};

bool says(const kvtl::error& e, kvtl::errc code, const std::string& text) {
    INFO(e.message);
    return e.code == code && e.message.find(text) != std::string::npos;
}

} // namespace

TEST_CASE_FIXTURE(fixture, "files stay within file_bytes, and the least recently used one leaves") {
    auto c = config();
    c.file_bytes = 3 * file + 100;
    auto s = open_store(cache, c);
    for (std::uint32_t i = 0; i < 3; ++i) static_cast<void>(kept(s, cache, counting(1000 * i, 100)));
    CHECK(holds(s, 0)); // used: 1000 leaves next
    static_cast<void>(kept(s, cache, counting(3000, 100)));
    CHECK(s.statistics().file_bytes == 3 * file);
    CHECK(holds(s, 0));
    CHECK_FALSE(holds(s, 1000));
    CHECK(holds(s, 2000));
    CHECK(holds(s, 3000));
    CHECK(s.statistics().evicted == 1);
    SUBCASE("one that is larger than all of it is refused, and nobody leaves for it") {
        const auto large = keep(s, cache, counting(9000, 9000));
        REQUIRE_FALSE(large.ok());
        CHECK(says(large.error(), kvtl::errc::disk_full, "file_bytes"));
        CHECK(holds(s, 0));
        CHECK(s.statistics().prefixes == 3);
        check_counts(s, cache);
    }
}

TEST_CASE_FIXTURE(fixture, "hints decide before use: steps, then priority; a pin before all of them") {
    auto c = config();
    c.file_bytes = 2 * file;
    auto s = open_store(cache, c);
    SUBCASE("fewest steps stay") {
        static_cast<void>(kept(s, cache, counting(0, 100), {.hints = {.steps = 1}}));
        static_cast<void>(kept(s, cache, counting(1000, 100), {.hints = {.steps = 5, .priority = 9}}));
        static_cast<void>(kept(s, cache, counting(2000, 100)));
        CHECK(holds(s, 0));
        CHECK_FALSE(holds(s, 1000));
    }
    SUBCASE("unknown is farthest") {
        static_cast<void>(kept(s, cache, counting(0, 100), {.hints = {.steps = 1'000'000}}));
        static_cast<void>(kept(s, cache, counting(1000, 100)));
        static_cast<void>(kept(s, cache, counting(2000, 100)));
        CHECK(holds(s, 0));
        CHECK_FALSE(holds(s, 1000));
    }
    SUBCASE("the highest priority stays") {
        static_cast<void>(kept(s, cache, counting(0, 100), {.hints = {.priority = 1}}));
        static_cast<void>(kept(s, cache, counting(1000, 100)));
        static_cast<void>(kept(s, cache, counting(2000, 100)));
        CHECK(holds(s, 0));
        CHECK_FALSE(holds(s, 1000));
    }
    SUBCASE("a pin holds until its deadline, and hint() takes it back") {
        const auto pinned =
            kept(s, cache, counting(0, 100), {.hints = {.priority = -1, .keep_until = now + 60}});
        static_cast<void>(kept(s, cache, counting(1000, 100), {.hints = {.steps = 0}}));
        static_cast<void>(kept(s, cache, counting(2000, 100)));
        CHECK(holds(s, 0));
        CHECK_FALSE(holds(s, 1000));
        SUBCASE("deadline") {
            now += 60;
        }
        SUBCASE("hint") {
            CHECK(s.hint(pinned, {.priority = -1}).ok());
        }
        static_cast<void>(kept(s, cache, counting(3000, 100)));
        CHECK_FALSE(holds(s, 0));
        CHECK(says(s.hint(pinned, {}), kvtl::errc::absent, "not stored"));
    }
    SUBCASE("of pinned ones the farthest deadline leaves") {
        static_cast<void>(kept(s, cache, counting(0, 100), {.hints = {.keep_until = now + 60}}));
        static_cast<void>(kept(s, cache, counting(1000, 100), {.hints = {.keep_until = now + 90}}));
        static_cast<void>(kept(s, cache, counting(2000, 100)));
        CHECK(holds(s, 0));
        CHECK_FALSE(holds(s, 1000));
    }
}

TEST_CASE_FIXTURE(fixture, "the disk keeps free_bytes, and nothing leaves in vain") {
    auto c = config();
    c.free_bytes = 1'000'000;
    disk.capacity = c.free_bytes + 5 * file / 2 + 4096; // the lock takes some bytes
    auto s = open_store(cache, c);
    const auto free = [&] { return disk.capacity - disk.used(); };
    for (std::uint32_t i = 0; i < 6; ++i) {
        static_cast<void>(kept(s, cache, counting(1000 * i, 100)));
        CHECK(free() >= c.free_bytes);
    }
    CHECK(s.statistics().prefixes == 2);
    CHECK(holds(s, 5000));
    CHECK(holds(s, 4000));
    disk.seen["other/file"] = std::make_shared<simulated_disk::file>();
    disk.seen["other/file"]->seen.resize(5 * file);
    const auto refused = keep(s, cache, counting(9000, 100));
    REQUIRE_FALSE(refused.ok());
    CHECK(says(refused.error(), kvtl::errc::disk_full, "free_bytes"));
    CHECK(s.statistics().prefixes == 2);
    CHECK(holds(s, 4000));
    check_counts(s, cache);
}

TEST_CASE_FIXTURE(
    fixture, "the first file, of which no size is expected, goes again if the disk has too little left") {
    auto c = config();
    c.free_bytes = 1'000'000;
    disk.capacity = c.free_bytes + file / 2;
    auto s = open_store(cache, c);
    const auto refused = keep(s, cache, counting(0, 100));
    REQUIRE_FALSE(refused.ok());
    CHECK(says(refused.error(), kvtl::errc::disk_full, "free_bytes"));
    CHECK(s.statistics().prefixes == 0);
    CHECK(disk.capacity - disk.used() >= c.free_bytes);
    CHECK_FALSE(holds(s, 0));
    check_counts(s, cache);
}

TEST_CASE_FIXTURE(fixture, "no save begins beyond write_bytes_per_day, also after a restart") {
    auto c = config();
    c.write_bytes_per_day = 2 * file; // superblocks are not counted
    std::optional<pretend_store> s(open_store(cache, c));
    static_cast<void>(kept(*s, cache, counting(0, 100)));
    static_cast<void>(kept(*s, cache, counting(1000, 100)));
    const std::uint64_t written = s->statistics().written_today;
    CHECK(written > file);
    CHECK(written <= c.write_bytes_per_day);
    CHECK(s->statistics().bytes_written == written);
    const auto refuses = [&] {
        const auto refused = keep(*s, cache, counting(2000, 100));
        REQUIRE_FALSE(refused.ok());
        CHECK(says(refused.error(), kvtl::errc::disk_full, "write_bytes_per_day"));
        CHECK(s->statistics().written_today == written);
    };
    refuses();
    s.reset();
    s.emplace(open_store(cache, c));
    refuses();
    SUBCASE("a text that is stored is not written again") {
        static_cast<void>(kept(*s, cache, counting(1000, 100)));
        CHECK(s->statistics().written_today == written);
    }
    SUBCASE("tomorrow") {
        now += day;
        CHECK(s->statistics().written_today == 0);
        static_cast<void>(kept(*s, cache, counting(2000, 100)));
        CHECK(s->statistics().written_today > 0);
        SUBCASE("and a clock that goes back does not give the day back") {
            now -= 2 * day;
            CHECK(s->statistics().written_today > 0);
        }
    }
    SUBCASE("a trunk that may not be written is evicted when it has to leave") {
        s.reset();
        c.trunks = 1;
        s.emplace(open_store(cache, c));
        static_cast<void>(kept(*s, cache, counting(2000, 100)));
        static_cast<void>(kept(*s, cache, counting(3000, 100)));
        CHECK_FALSE(holds(*s, 2000));
        CHECK(holds(*s, 3000));
        CHECK(s->statistics().evicted == 1);
        CHECK(s->statistics().last_refusal.find("write_bytes_per_day") != std::string::npos);
    }
}

TEST_CASE_FIXTURE(fixture,
                  "trunks are forked, go to files when they have to leave, and come back by prefetch()") {
    auto c = config();
    c.trunks = 2;
    auto s = open_store(cache, c);
    for (std::uint32_t i = 0; i < 3; ++i) static_cast<void>(kept(s, cache, counting(1000 * i, 100)));
    CHECK(cache.saves == 1); // the first one
    CHECK(s.statistics().demoted == 1);
    CHECK(started(s, cache, counting(0, 101)).from == kvtl::prefix_source::file);
    CHECK(started(s, cache, counting(1000, 101)).from == kvtl::prefix_source::trunk);
    CHECK(s.prefetch(counting(0, 150)).ok());
    CHECK(cache.saves == 2); // 2000, which was used longest ago
    CHECK(started(s, cache, counting(0, 101)).from == kvtl::prefix_source::trunk);
    CHECK(started(s, cache, counting(2000, 101)).from == kvtl::prefix_source::file);
    check_counts(s, cache);
    SUBCASE("one that has a file is not written again") {
        CHECK(s.prefetch(counting(2000, 150)).ok());
        CHECK(s.prefetch(counting(0, 150)).ok());
        CHECK(s.flush().ok());
        CHECK(cache.saves == 3);
    }
    SUBCASE("flush() writes those that have none, and forget() removes") {
        CHECK(s.flush().ok());
        CHECK(cache.saves == 3);
        CHECK(s.statistics().files == 3);
        const auto id = started(s, cache, counting(0, 101)).prefix;
        CHECK(s.forget(id).ok());
        CHECK_FALSE(holds(s, 0));
        CHECK(says(s.forget(id), kvtl::errc::absent, "not stored"));
        check_counts(s, cache);
    }
    SUBCASE("prefetch() of what is not stored, or is a trunk, does nothing") {
        const std::size_t loads = cache.loads;
        CHECK(s.prefetch(counting(5000, 10)).ok());
        CHECK(s.prefetch(counting(0, 101)).ok());
        CHECK(s.prefetch({}).ok());
        CHECK(cache.loads == loads);
    }
    SUBCASE("prefetch() of a prompt that ends before the prefix, with tokens to give up") {
        auto c2 = c;
        c2.rewind_tokens = 3;
        c2.folder = "g";
        auto t = open_store(cache, c2);
        for (std::uint32_t i = 0; i < 3; ++i) static_cast<void>(kept(t, cache, counting(1000 * i, 100)));
        CHECK(t.prefetch(counting(0, 98)).ok());
        const auto all = started(t, cache, counting(0, 120));
        CHECK(all.tokens == 100);
        CHECK(all.from == kvtl::prefix_source::trunk);
    }
}

TEST_CASE_FIXTURE(fixture, "where a trunk cannot be forked its file is loaded") {
    auto c = config();
    c.trunks = 1;
    auto s = open_store(cache, c);
    static_cast<void>(kept(s, cache, counting(0, 100), {.to_file = true}));
    cache.forks_refused = true;
    CHECK(started(s, cache, counting(0, 101)).from == kvtl::prefix_source::file);
    CHECK(s.statistics().refused == 1);
    disk.seen.erase(std::find_if(disk.seen.begin(), disk.seen.end(),
                                 [](const auto& f) { return f.first.ends_with(".kvs"); }));
    CHECK(started(s, cache, counting(0, 101)).from == kvtl::prefix_source::nothing);
    cache.forks_refused = false;
    CHECK(started(s, cache, counting(0, 101)).from == kvtl::prefix_source::trunk);
    check_counts(s, cache);
}

TEST_CASE_FIXTURE(fixture, "a store without a folder evicts trunks") {
    auto c = config();
    c.folder.clear();
    c.trunks = 2;
    auto s = open_store(cache, c);
    for (std::uint32_t i = 0; i < 3; ++i) static_cast<void>(kept(s, cache, counting(1000 * i, 100)));
    CHECK(disk.seen.empty());
    CHECK_FALSE(holds(s, 0));
    CHECK(holds(s, 1000));
    CHECK(s.flush().ok());
    CHECK(says(keep(s, cache, counting(0, 5), {.to_file = true}).error(), kvtl::errc::invalid_argument,
               "to_file"));
}

TEST_CASE_FIXTURE(fixture, "tables and tokens of trunks stay within memory_bytes") {
    auto c = config();
    c.trunks = 20;
    c.memory_bytes = 16 << 10;
    auto s = open_store(cache, c);
    for (std::uint32_t i = 0; i < 40; ++i) {
        static_cast<void>(kept(s, cache, counting(1000 * i, 700)));
        CHECK(s.statistics().memory_bytes <= c.memory_bytes);
    }
    CHECK(s.statistics().trunks > 0);
    CHECK(s.statistics().trunks < 6); // of 2,800 bytes each
    CHECK(s.statistics().files > 3);
    const auto large = keep(s, cache, counting(0, 5000));
    REQUIRE_FALSE(large.ok());
    CHECK(says(large.error(), kvtl::errc::bound_too_small, "memory_bytes"));
    CHECK(s.statistics().memory_bytes <= c.memory_bytes);
    check_counts(s, cache);
}

TEST_CASE_FIXTURE(fixture, "a turn replaces the one before: one trunk, one file") {
    auto c = config();
    c.file_bytes = 100 * file;
    kvtl::prefix_id last = 0;
    const auto turns = [&](pretend_store& s, bool to_file) {
        for (std::uint32_t i = 1; i <= 5; ++i)
            last = kept(s, cache, counting(0, 100 * i), {.to_file = to_file, .replaces = last});
        CHECK(s.statistics().prefixes == 1);
        CHECK(started(s, cache, counting(0, 600)).tokens == 500);
        CHECK(started(s, cache, counting(0, 300)).tokens == 0);
        CHECK(s.statistics().evicted == 0);
        check_counts(s, cache);
    };
    SUBCASE("files") {
        auto s = open_store(cache, c);
        turns(s, false);
        CHECK(s.statistics().files == 1);
        CHECK(disk.seen.size() == 2); // and the lock
    }
    SUBCASE("trunks") {
        c.trunks = 1;
        auto s = open_store(cache, c);
        turns(s, false);
        CHECK(s.statistics().demoted == 0);
        CHECK(cache.saves == 0);
    }
    SUBCASE("both") {
        c.trunks = 2;
        auto s = open_store(cache, c);
        turns(s, true);
        CHECK(s.statistics().trunks == 1);
        CHECK(s.statistics().files == 1);
    }
    SUBCASE("itself, which is nothing new, and one that is not there") {
        auto s = open_store(cache, c);
        last = kept(s, cache, counting(0, 100));
        CHECK(kept(s, cache, counting(0, 100), {.replaces = last}) == last);
        CHECK(says(keep(s, cache, counting(0, 10), {.replaces = 99}).error(), kvtl::errc::invalid_argument,
                   "replaces is 99"));
        CHECK(s.forget(last).ok());
        CHECK(kept(s, cache, counting(0, 110), {.replaces = last}) != last); // nothing to replace
    }
}

TEST_CASE_FIXTURE(fixture, "tokens are counted by what became of them") {
    auto c = config();
    c.trunks = 1;
    c.file_bytes = file;
    auto s = open_store(cache, c);
    static_cast<void>(started(s, cache, counting(0, 120)));
    static_cast<void>(kept(s, cache, counting(0, 100)));
    CHECK(started(s, cache, counting(0, 120)).from == kvtl::prefix_source::trunk);
    static_cast<void>(kept(s, cache, counting(1000, 100))); // 0 goes to its file
    CHECK(started(s, cache, counting(0, 110)).from == kvtl::prefix_source::file);
    static_cast<void>(kept(s, cache, counting(2000, 100))); // 1000 to its own: 0 is evicted
    CHECK(started(s, cache, counting(0, 150)).from == kvtl::prefix_source::nothing);
    const auto n = s.statistics();
    CHECK(n.starts == 4);
    CHECK(n.missed == 2);
    CHECK(n.forked == 1);
    CHECK(n.loaded == 1);
    CHECK(n.tokens_forked == 100);
    CHECK(n.tokens_reloaded == 100);
    CHECK(n.tokens_prefilled == 120 + 20 + 10 + 150);
    CHECK(n.tokens_prefilled_again == 100);
    CHECK(n.bytes_read == file);
    CHECK(n.bytes_written > file);
    CHECK(n.demoted == 2);
    CHECK(n.evicted == 1);
    CHECK(n.refused == 0);
}

TEST_CASE_FIXTURE(fixture, "bad input is one sentence, and changes nothing") {
    auto c = config();
    const auto opens = [&](kvtl::prefix_store_config bad) {
        return pretend_store::open(cache, std::move(bad), cache.ops());
    };
    CHECK(says(opens({}).error(), kvtl::errc::invalid_argument, "trunks"));
    CHECK(says(opens({.folder = "f", .file_bytes = 0}).error(), kvtl::errc::invalid_argument, "file_bytes"));
    auto s = open_store(cache, c);
    CHECK(says(opens(c).error(), kvtl::errc::file_refused, "another store"));
    const auto seq = cache.begin();
    cache.feed(*seq, counting(0, 10));
    CHECK(says(s.keep(*seq, {}).error(), kvtl::errc::invalid_argument, "tokens"));
    CHECK(says(s.keep(*seq, counting(0, 9)).error(), kvtl::errc::invalid_argument, "has 10"));
    CHECK(s.statistics().prefixes == 0);
    CHECK(started(s, cache, {}).tokens == 0);
    cache.slots = 1;
    CHECK_FALSE(s.start(counting(0, 5)).ok()); // as begin() says
}

TEST_CASE("trunks leave in the order of a naive model") {
    simulated_disk disk;
    pretend_cache cache{.disk = &disk};
    std::uint64_t now = 0;
    constexpr std::size_t most = 5;
    auto s = open_store(cache, {.trunks = most, .rewind_tokens = 0, .clock = [&now] { return now; }});
    struct line {
        kvtl::prefix_hints hints;
        std::size_t used;
    };
    std::map<std::uint32_t, line> model; // by the first token
    std::map<std::uint32_t, kvtl::prefix_id> ids;
    std::mt19937 random(3);
    std::size_t pinned_left = 0;
    for (std::size_t i = 1; i <= 20000; ++i, now += random() % 3) {
        const std::uint32_t who = static_cast<std::uint32_t>(random() % 12) * 1000;
        kvtl::prefix_hints h;
        if (random() % 2 == 0) h.steps = random() % 6;
        if (random() % 4 == 0) h.keep_until = now + random() % 20;
        h.priority = static_cast<int>(random() % 3);
        if (random() % 2 == 0 && model.contains(who)) {
            model[who].hints = h;
            REQUIRE(s.hint(ids[who], h).ok());
        } else {
            if (!model.contains(who) && model.size() == most) {
                std::vector<std::uint32_t> left; // by elimination, rule after rule
                for (const auto& [name, l] : model) left.push_back(name);
                const auto keep_if = [&](auto&& worst) {
                    std::vector<std::uint32_t> those;
                    for (const auto name : left)
                        if (worst(model[name])) those.push_back(name);
                    if (!those.empty()) left = those;
                };
                const auto most_of = [&](auto&& value) {
                    auto best = value(model[left.front()]);
                    for (const auto name : left) best = std::max(best, value(model[name]));
                    keep_if([&](const line& l) { return value(l) == best; });
                };
                keep_if([&](const line& l) { return l.hints.keep_until <= now; });
                if (model[left.front()].hints.keep_until > now) {
                    ++pinned_left;
                    most_of([](const line& l) { return l.hints.keep_until; });
                }
                most_of([](const line& l) { return l.hints.steps; });
                most_of([](const line& l) { return -l.hints.priority; });
                most_of([&](const line& l) { return i - l.used; });
                REQUIRE(left.size() == 1);
                model.erase(left.front());
            }
            model[who] = {h, i};
            ids[who] = kept(s, cache, counting(who, 3), {.hints = h});
        }
        std::set<std::uint32_t> held, expected;
        for (const auto& [name, l] : model) expected.insert(name);
        for (const auto& [slot, t] : cache.open) held.insert(t.front());
        REQUIRE(held == expected);
    }
    CHECK(pinned_left > 20);
}

} // namespace prefix_bounds_test
