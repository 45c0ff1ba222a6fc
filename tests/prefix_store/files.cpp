// The folder: what is found again, what is not a prefix, and what is damaged.
// SPDX-License-Identifier: MIT
#include "support/prefix_stores.hpp"

#include <algorithm>
#include <random>

namespace prefix_files_test {

using namespace kvtl_test;

namespace {

struct fixture {
    simulated_disk disk;
    pretend_cache cache{.disk = &disk};
    kvtl::prefix_store_config config{.folder = "f", .model = 7, .free_bytes = 0, .rewind_tokens = 2};

    [[nodiscard]] std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const auto& [name, f] : disk.seen)
            if (name.ends_with(".kvs")) names.push_back(name);
        return names;
    }
    void put(const std::string& name, const std::string& bytes) {
        auto f = std::make_shared<simulated_disk::file>();
        for (const char c : bytes) f->seen.push_back(static_cast<std::byte>(c));
        disk.seen[name] = f;
    }
};

} // namespace

TEST_CASE_FIXTURE(fixture, "a restart finds what was stored: texts, spaces, and who was stored last") {
    std::uint64_t now = 1;
    config.trunks = 3;
    config.clock = [&now] { return now; };
    const kvtl::prefix_space other{.tenant = "t"};
    std::uint64_t bytes = 0;
    {
        auto s = open_store(cache, config);
        for (std::uint32_t i = 0; i < 9; ++i, ++now)
            static_cast<void>(kept(s, cache, counting(1000 * (9 - i), 100), {.to_file = i % 2 == 0}));
        static_cast<void>(kept(s, cache, counting(1000, 150), {.space = other}));
        CHECK(s.flush().ok());
        bytes = s.statistics().file_bytes;
    }
    CHECK(cache.open.empty()); // a store ends its trunks
    const std::size_t reads = disk.operations;
    auto s = open_store(cache, config);
    CHECK(disk.operations - reads < 30 * 10);
    CHECK(s.statistics().prefixes == 10);
    CHECK(s.statistics().file_bytes == bytes);
    CHECK(s.statistics().refused == 0);
    for (std::uint32_t i = 1; i <= 9; ++i) CHECK(started(s, cache, counting(1000 * i, 200)).tokens == 100);
    CHECK(started(s, cache, counting(1000, 200), other).tokens == 150);
    CHECK(started(s, cache, counting(2000, 200), other).tokens == 0);
    CHECK(started(s, cache, counting(3000, 99)).tokens == 98); // two of the prefix are given up
    CHECK(started(s, cache, counting(3000, 98)).tokens == 0);  // three were needed
    check_counts(s, cache);
    SUBCASE("within smaller bounds the oldest leave") {
        { auto gone = std::move(s); }
        config.file_bytes = bytes / 2;
        auto t = open_store(cache, config);
        CHECK(t.statistics().file_bytes <= config.file_bytes);
        CHECK(started(t, cache, counting(9000, 200)).tokens == 0);
        CHECK(started(t, cache, counting(1000, 200)).tokens == 100);
        check_counts(t, cache);
    }
    SUBCASE("another model finds nothing of it, and may store the same texts beside it") {
        { auto gone = std::move(s); }
        config.model = 8;
        auto t = open_store(cache, config);
        CHECK(t.statistics().prefixes == 10);
        CHECK(started(t, cache, counting(1000, 200)).tokens == 0);
        static_cast<void>(kept(t, cache, counting(1000, 100)));
        CHECK(t.statistics().prefixes == 11);
        CHECK(started(t, cache, counting(1000, 200)).tokens == 100);
        CHECK(t.statistics().refused == 0);
    }
    SUBCASE("another identity is a miss with a sentence") {
        cache.identity = "another";
        const auto got = started(s, cache, counting(1000, 200));
        CHECK(got.from == kvtl::prefix_source::nothing);
        CHECK(s.statistics().refused == 1);
        CHECK(s.statistics().last_refusal.find("another") != std::string::npos);
        CHECK(s.statistics().prefixes == 10);
        CHECK(started(s, cache, counting(1000, 200)).from == kvtl::prefix_source::nothing);
        CHECK(s.statistics().refused == 1); // it is not tried again
    }
    SUBCASE("a cache of another identity stores the same texts beside it, with and without a trunk") {
        { auto gone = std::move(s); }
        const std::size_t before = files().size();
        cache.identity = "another";
        const std::uint32_t first = 1000;
        SUBCASE("after a start that found it") {
            config.trunks = 0;
            auto t = open_store(cache, config);
            CHECK(started(t, cache, counting(first, 200)).tokens == 0);
            static_cast<void>(kept(t, cache, counting(first, 100)));
            CHECK(t.statistics().refused == 1);
        }
        SUBCASE("at once") {
            config.trunks = 0;
            auto t = open_store(cache, config);
            static_cast<void>(kept(t, cache, counting(first, 100)));
            CHECK(t.statistics().refused == 1);
            CHECK(started(t, cache, counting(first, 200)).tokens == 100);
            check_counts(t, cache);
        }
        SUBCASE("as a trunk, whose file comes when it has to leave") {
            auto t = open_store(cache, config);
            static_cast<void>(kept(t, cache, counting(first, 100)));
            CHECK(t.flush().ok());
        }
        CHECK(files().size() == before + 1);
        for (const char* who : {"another", "pretend"}) { // each finds its own
            cache.identity = who;
            auto t = open_store(cache, config);
            CHECK(t.statistics().prefixes == 11);
            CHECK(started(t, cache, counting(first, 200)).tokens == 100);
        }
    }
    SUBCASE("a file of an earlier run counts as stored when it has been loaded, once") {
        { auto gone = std::move(s); }
        config.trunks = 0;
        auto t = open_store(cache, config);
        const std::size_t loads = cache.loads, saves = cache.saves;
        for (int i = 0; i < 2; ++i) static_cast<void>(kept(t, cache, counting(1000, 100)));
        CHECK(cache.loads == loads + 1);
        CHECK(cache.saves == saves);
        CHECK(t.statistics().prefixes == 10);
        check_counts(t, cache);
    }
    SUBCASE("a shorter prefix where the longer one cannot be loaded") {
        static_cast<void>(kept(s, cache, counting(1000, 140)));
        CHECK(s.flush().ok());
        CHECK(started(s, cache, counting(1000, 200)).tokens == 140);
        cache.window = 0; // nothing can be taken back
        CHECK(started(s, cache, counting(1000, 140)).tokens == 100);
        CHECK(s.statistics().refused == 1);
    }
}

TEST_CASE_FIXTURE(fixture, "foreign and damaged files stay, and are counted") {
    {
        auto s = open_store(cache, config);
        static_cast<void>(kept(s, cache, counting(0, 100)));
        static_cast<void>(kept(s, cache, counting(1000, 100)));
    }
    const auto both = files();
    REQUIRE(both.size() == 2);
    put("f/readme.txt", "hello");
    put("f/foreign.kvs", "no sequence of anybody");
    put("f/empty.kvs", "");
    put("f/" + std::string(32, 'a') + ".kvs.part", "");
    put("f/somebody.kvs.part", "");
    { // saved, but by no store
        auto alone = kvtl::basic_saved_file<simulated_file_ops>::create("f/alone.kvs", 4096, cache.ops());
        REQUIRE(alone.ok());
        REQUIRE(alone->commit({.tokens = 3}).ok());
        REQUIRE(alone->publish().ok());
    }
    auto& damaged = disk.seen[both[0]]->seen;
    SUBCASE("its superblocks") {
        std::fill_n(damaged.begin() + 40, 8000, std::byte{1});
    }
    SUBCASE("its root or note") {
        std::fill(damaged.begin() + 12288, damaged.end(), std::byte{1});
    }
    auto s = open_store(cache, config);
    const auto n = s.statistics();
    CHECK(n.foreign_files == 3);
    CHECK(n.damaged_files == 1);
    CHECK(n.refused == 4);
    CHECK(n.prefixes == 1);
    CHECK_FALSE(disk.seen.contains("f/" + std::string(32, 'a') + ".kvs.part")); // a draft of ours
    for (const char* name :
         {"f/readme.txt", "f/foreign.kvs", "f/empty.kvs", "f/alone.kvs", "f/somebody.kvs.part"})
        CHECK(disk.seen.contains(name));
    CHECK(disk.seen.contains(both[0]));
    static_cast<void>(kept(s, cache, counting(0, 100))); // anew, beside the damaged one
    static_cast<void>(kept(s, cache, counting(1000, 100)));
    CHECK(files().size() == 6);
    CHECK(started(s, cache, counting(0, 101)).tokens == 100);
    CHECK(started(s, cache, counting(1000, 101)).tokens == 100);
}

TEST_CASE_FIXTURE(fixture, "damage that the scan does not read is a miss, once") {
    auto s = open_store(cache, config);
    static_cast<void>(kept(s, cache, counting(0, 100)));
    static_cast<void>(kept(s, cache, counting(0, 60)));
    const auto longer = started(s, cache, counting(0, 200));
    CHECK(longer.tokens == 100);
    const auto of_100 = [&] {
        for (const std::string& name : files()) {
            auto file = kvtl::basic_saved_file<simulated_file_ops>::open(name, cache.ops());
            REQUIRE(file.ok());
            if (file->facts().tokens == 100) return name;
        }
        return std::string();
    }();
    SUBCASE("its entries, which come first") {
        disk.seen[of_100]->seen[8192] ^= std::byte{1};
        CHECK(started(s, cache, counting(0, 200)).tokens == 60);
        CHECK(s.statistics().damaged_files == 1);
    }
    SUBCASE("all of it is gone") {
        disk.seen.erase(of_100);
        CHECK(started(s, cache, counting(0, 200)).tokens == 60);
        CHECK(s.statistics().damaged_files == 0);
    }
    CHECK(s.statistics().refused == 1);
    CHECK(started(s, cache, counting(0, 200)).tokens == 60);
    CHECK(s.statistics().refused == 1); // it is no prefix any more
    CHECK(s.statistics().prefixes == 1);
    CHECK(s.hint(longer.prefix, {}).code() == kvtl::errc::absent);
}

TEST_CASE("a note gives back its label and its tokens, and refuses what contradicts it") {
    std::mt19937 random(5);
    simulated_disk disk;
    const auto saved = [&](const std::vector<std::byte>& note, std::uint64_t tokens) {
        auto file =
            kvtl::basic_saved_file<simulated_file_ops>::create("n" + std::to_string(random()), 4096, {&disk});
        REQUIRE(file.ok());
        REQUIRE(file->commit({.tokens = tokens, .note = note}).ok());
        REQUIRE(file->publish().ok());
        return *std::move(file);
    };
    const token_list tokens = counting(5, 300);
    const kvtl::prefix_label label{.model = 3,
                                   .made = 99,
                                   .tokens = 300,
                                   .space = {.tenant = "a", .adapter = "", .input = std::string("b\0c", 3)},
                                   .hashes = {{1, 2}, {3, 4}}};
    const auto note = kvtl::note_of(label, tokens);
    auto file = saved(note, 300);
    token_list read;
    const auto back = kvtl::read_label(file, &read);
    REQUIRE(back.ok());
    CHECK(back->model == 3);
    CHECK(back->made == 99);
    CHECK(back->tokens == 300);
    CHECK(back->space == label.space);
    CHECK(back->hashes == label.hashes);
    CHECK(read == tokens);
    for (int i = 0; i < 300; ++i) { // cut, grown or changed where it says how long it is
        auto wrong = note;
        const auto how = random() % 3;
        if (how == 0) wrong.resize(random() % note.size());
        if (how == 1) wrong.resize(note.size() + 1 + random() % 9);
        if (how == 2) wrong[8 + random() % 16] ^= static_cast<std::byte>(1U << random() % 8);
        auto bad = saved(wrong, 300);
        const auto refused = kvtl::read_label(bad);
        REQUIRE_FALSE(refused.ok());
        REQUIRE((refused.error().code == kvtl::errc::absent || refused.error().code == kvtl::errc::corrupt));
    }
    auto other = saved(note, 299);
    CHECK(kvtl::read_label(other).error().code == kvtl::errc::corrupt);
}

} // namespace prefix_files_test
