// A saved file on a disk that fails, lies, loses power and turns bits: what comes back is the last published generation or
// the one that was being published, byte for byte, or an error.
// SPDX-License-Identifier: MIT
#include <kvtl/save/saved_file.hpp>

#include <doctest/doctest.h>
#include <support/saved_model.hpp>
#include <support/simulated_disk.hpp>

#include <limits>

namespace save_saved_file_faults_test {

using namespace kvtl;
using namespace kvtl_test;

namespace {

using file_type = basic_saved_file<simulated_file_ops>;
constexpr std::size_t for_ever = std::numeric_limits<std::size_t>::max();

/// Generations 1, 2, ... of a small sequence; [0] is empty.
std::vector<saved_model> generations(std::size_t n, std::size_t most_bytes = 9000, std::size_t most = 12) {
    std::mt19937_64 random(21);
    std::vector<saved_model> all(1);
    while (all.size() <= n) all.push_back(saved_model::next(all.back(), random, most_bytes, 2, most));
    return all;
}

/// How far a run has come.
struct progress {
    std::uint64_t published = 0; ///< publish() said so
    std::uint64_t begun = 0;     ///< publish() was called
};

/// Saves generation after generation, in one object and in a new one. After an error it goes on in every way that an engine
/// might: publishes again, abandons and writes again, opens the file again. It ends at the fourth error in a row.
progress run(simulated_disk& disk, const std::vector<saved_model>& all) {
    progress p;
    std::optional<file_type> file;
    std::mt19937_64 random(4);
    for (int errors = 0; errors < 4;) {
        if (!file) {
            auto opened = file_type::open("seq", {&disk});
            if (!opened && opened.error().code == errc::absent)
                opened = file_type::create("seq", 4096, {&disk});
            if (!opened) {
                ++errors;
                continue;
            }
            file.emplace(*std::move(opened));
        }
        const std::uint64_t g =
            file->facts().generation + 1; // more than was published, perhaps: then it may still go
        if (g == all.size()) break;
        if (g % 3 == 0 && errors == 0) { // one that comes to nothing
            (void)write_model(*file, all[1], {}, random);
            file->abandon();
        }
        if (auto s = write_model(*file, all[g], all[g - 1], random); !s) {
            file->abandon();
            if (++errors > 1) file.reset();
            continue;
        }
        p.begun = std::max(p.begun, g);
        if (!file->publish() && !file->publish()) { // trying again must not succeed with blocks that are lost
            file->abandon();
            ++errors;
            continue;
        }
        p.published = g;
        errors = 0;
        if (g % 2 == 0) file.reset();
    }
    return p;
}

/// What is on the disk is a generation of `p`, whole. Then the next one is saved on top of it.
void check_left(simulated_disk& disk, const std::vector<saved_model>& all, const progress& p) {
    disk.fails_at = disk.fails_until = disk.lost_sync = 0;
    std::uint64_t g = 0;
    std::mt19937_64 random(9);
    {
        auto file = file_type::open("seq", {&disk});
        if (!file) {
            REQUIRE_MESSAGE(p.published == 0, file.error().message);
            REQUIRE_MESSAGE(file.error().code == errc::absent, file.error().message);
            file = file_type::create("seq", 4096, {&disk});
            REQUIRE_MESSAGE(file.ok(), file.error().message);
        }
        g = file->facts().generation;
        REQUIRE(g >= p.published);
        REQUIRE(g <= std::max(p.begun, p.published));
        if (g != 0) {
            bool differs = false;
            const auto s = read_model(*file, all[g], differs);
            REQUIRE_MESSAGE(s.ok(), s.what());
            REQUIRE_FALSE(differs);
        }
        if (g + 1 == all.size()) return;
        const auto s = write_model(*file, all[g + 1], all[g], random);
        REQUIRE_MESSAGE(s.ok(), s.what());
        const auto published = file->publish();
        REQUIRE_MESSAGE(published.ok(), published.what());
    }
    auto file = file_type::open("seq", {&disk});
    REQUIRE_MESSAGE(file.ok(), file.error().message);
    bool differs = false;
    const auto s = read_model(*file, all[g + 1], differs);
    REQUIRE_MESSAGE(s.ok(), s.what());
    REQUIRE_FALSE(differs);
}

/// Operations of a run in which nothing fails.
std::size_t operations_of(const std::vector<saved_model>& all) {
    simulated_disk disk;
    const auto p = run(disk, all);
    REQUIRE(p.published + 1 == all.size());
    return disk.operations;
}

} // namespace

TEST_CASE("the N-th operation fails, once or from then on, and the generation before is there") {
    const auto all = generations(5);
    const std::size_t operations = operations_of(all);
    REQUIRE(operations > 100);
    std::size_t recovered = 0;
    for (std::size_t n = 1; n <= operations; ++n)
        for (const bool once : {true, false})
            for (const int error : {EIO, ENOSPC}) {
                CAPTURE(n);
                CAPTURE(once);
                simulated_disk disk;
                disk.fails_at = n;
                disk.fails_until = once ? n + 1 : for_ever;
                disk.error = error;
                const auto p = run(disk, all);
                if (p.begun + 1 == all.size()) ++recovered;
                if (!once) REQUIRE(p.published + 1 < all.size() + (n + 3 > operations ? 1 : 0));
                check_left(disk, all, p);
            }
    CHECK(recovered >= 2 * (operations - 3)); // one error stops nobody
}

TEST_CASE("a power cut after any operation leaves the last published generation or the next") {
    const auto all = generations(5);
    const std::size_t operations = operations_of(all);
    std::uint64_t older = 0, newer = 0;
    for (std::size_t n = 1; n <= operations + 1; ++n)
        for (std::uint64_t seed = 1; seed <= 6; ++seed) {
            CAPTURE(n);
            CAPTURE(seed);
            simulated_disk disk;
            disk.fails_at = n;
            disk.fails_until = for_ever;
            disk.random.seed(seed);
            const auto p = run(disk, all);
            disk.random.seed(n * 100 + seed);
            disk.power_cut();
            if (p.begun > p.published) {
                auto file = file_type::open("seq", {&disk});
                ++(file.ok() && file->facts().generation == p.begun ? newer : older);
            }
            check_left(disk, all, p);
        }
    CHECK(older > 20); // cuts while a superblock is on its way are few
    CHECK(newer > 1);
}

TEST_CASE("an error and a power cut later on") {
    const auto all = generations(6);
    const std::size_t operations = operations_of(all);
    std::mt19937_64 random(31);
    for (int i = 0; i < 2500; ++i) {
        // A sync that failed and dropped its blocks, and then a cut, is what this is about.
        const std::size_t error_at = random() % operations + 1, cut_at = error_at + 1 + random() % 60;
        CAPTURE(error_at);
        CAPTURE(cut_at);
        simulated_disk disk;
        disk.fails_at = error_at;
        disk.fails_until = error_at + 1;
        disk.cut_at = cut_at;
        const auto p = run(disk, all);
        disk.cut_at = 0;
        disk.random.seed(static_cast<std::uint64_t>(i));
        disk.power_cut();
        check_left(disk, all, p);
    }
}

TEST_CASE("a disk that lies is found out, or it did not matter") {
    const auto all = generations(5);
    const std::size_t operations = operations_of(all);
    std::uint64_t detected = 0, harmless = 0;
    const auto check = [&](auto lie) {
        for (std::size_t n = 1; n <= operations; ++n)
            for (const bool cut : {false, true}) {
                CAPTURE(n);
                simulated_disk disk;
                disk.*lie = n;
                disk.random.seed(n);
                const auto p = run(disk, all);
                disk.*lie = 0;
                if (cut) disk.power_cut();
                auto file = file_type::open("seq", {&disk});
                if (!file) {
                    REQUIRE((file.error().code == errc::corrupt || file.error().code == errc::absent ||
                             file.error().code == errc::file_refused));
                    ++detected;
                    continue;
                }
                const std::uint64_t g = file->facts().generation;
                REQUIRE(g <= std::max(p.begun, p.published));
                bool differs = false;
                const auto s = read_model(*file, all[g], differs);
                REQUIRE_FALSE(differs);
                REQUIRE((s.ok() || s.code() == errc::corrupt));
                ++(s.ok() && g == p.published ? harmless : detected);
            }
    };
    check(&simulated_disk::lost_write);
    check(&simulated_disk::misdirected_write);
    check(&simulated_disk::misdirected_read);
    check(&simulated_disk::lost_sync);
    CHECK(detected > 50);
    CHECK(harmless > 50);
}

TEST_CASE("reads from elsewhere, and reads that fail, are errors") {
    const auto all = generations(2, 60000);
    simulated_disk disk;
    REQUIRE(run(disk, all).published == 2);
    std::uint64_t bad = 0;
    for (std::size_t n = 1;; ++n)
        for (const bool elsewhere : {false, true}) {
            CAPTURE(n);
            disk.operations = 0;
            disk.fails_at = elsewhere ? 0 : n;
            disk.fails_until = elsewhere ? 0 : n + 1;
            disk.misdirected_read = elsewhere ? n : 0;
            bool differs = false;
            auto file = file_type::open("seq", {&disk});
            const auto s = file ? read_model(*file, all[file->facts().generation], differs)
                                : status::failure(file.error().code, "%s", file.error().message.c_str());
            REQUIRE_FALSE(differs);
            if (s.ok()) {
                if (file->facts().generation == 2 && !file->facts().damaged && disk.operations < n) {
                    CHECK(bad > 20);
                    return;
                }
            } else {
                ++bad;
                REQUIRE((s.code() == (elsewhere ? errc::corrupt : errc::io_error) || n <= 6));
            }
        }
}

TEST_CASE("any bit that turns is noticed, or bears nothing") {
    const auto all = generations(4, 20000, 24);
    simulated_disk disk;
    REQUIRE(run(disk, all).published == 4);
    auto& bytes = disk.seen.at("seq")->seen;
    std::mt19937_64 random(77);
    std::uint64_t corrupt = 0, older = 0, harmless = 0;
    saved_superblock newest;
    std::memcpy(&newest, bytes.data(), sizeof newest);
    REQUIRE(newest.generation == 4);
    // Half of the flips are in superblocks and the root, which are few.
    const std::size_t few[] = {0, 4096, newest.root_block * std::size_t{4096}};
    for (int i = 0; i < 10000; ++i) {
        const std::size_t within = i % 6 == 4 ? newest.root_bytes : sizeof newest,
                          at = i % 2 == 0 ? few[i % 6 / 2] + random() % within : random() % bytes.size();
        const auto bit = static_cast<std::byte>(1U << random() % 8);
        CAPTURE(at);
        bytes[at] ^= bit;
        auto file = file_type::open("seq", {&disk});
        REQUIRE_MESSAGE(file.ok(), file.error().message); // one of two generations is left
        const std::uint64_t g = file->facts().generation;
        bool differs = false;
        const auto s = read_model(*file, all[g], differs);
        REQUIRE_FALSE(differs);
        if (!s) {
            REQUIRE(s.code() == errc::corrupt);
            ++corrupt;
        } else if (g != 4) {
            REQUIRE(g == 3);
            REQUIRE(file->facts().damaged);
            ++older;
        } else {
            ++harmless;
        }
        bytes[at] ^= bit;
    }
    CHECK(corrupt > 1000);
    CHECK(older > 100);
    CHECK(harmless > 1000);
}

TEST_CASE("blocks of another time or place do not pass") {
    const auto all = generations(4, 20000, 24);
    simulated_disk disk, before;
    REQUIRE(run(disk, all).published == 4);
    const auto two = generations(2, 20000, 24);
    REQUIRE(run(before, two).published == 2);
    auto& bytes = disk.seen.at("seq")->seen;
    const auto& old = before.seen.at("seq")->seen;
    const auto good = bytes;
    const std::size_t blocks = bytes.size() / 4096;
    std::uint64_t noticed = 0;
    std::mt19937_64 random(6);
    for (int i = 0; i < 2000; ++i) {
        const bool stale = i % 2 == 0;
        const std::size_t to = random() % blocks, from = stale ? to : random() % blocks;
        const auto& source = stale ? old : good;
        if ((from + 1) * 4096 > source.size()) continue;
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from * 4096), 4096,
                    bytes.begin() + static_cast<std::ptrdiff_t>(to * 4096));
        auto file = file_type::open("seq", {&disk});
        if (file) {
            bool differs = false;
            const auto s = read_model(*file, all[file->facts().generation], differs);
            REQUIRE_FALSE(differs);
            if (!s || file->facts().generation != 4) ++noticed;
        } else {
            ++noticed;
        }
        bytes = good;
    }
    CHECK(noticed > 300);
}

TEST_CASE("a newer generation whose root is gone gives way to the one before, which is saved to again") {
    const auto all = generations(5);
    simulated_disk disk;
    REQUIRE(run(disk, generations(4)).published == 4);
    auto& bytes = disk.seen.at("seq")->seen;
    saved_superblock s;
    std::memcpy(&s, bytes.data(), sizeof s);
    REQUIRE(s.generation == 4);
    bytes[std::size_t{s.root_block} * 4096 + 3] ^= std::byte{1};
    std::mt19937_64 random(2);
    auto file = file_type::open("seq", {&disk});
    REQUIRE(file.ok());
    CHECK(file->facts().generation == 3);
    CHECK(file->facts().damaged);
    REQUIRE(write_model(*file, all[5], all[3], random).ok());
    REQUIRE(file->publish().ok());
    CHECK(file->facts().generation == 4);
    CHECK_FALSE(file->facts().damaged);
    bool differs = false;
    REQUIRE(read_model(*file, all[5], differs).ok());
    CHECK_FALSE(differs);
}

TEST_CASE("a disk that may only be read") {
    const auto all = generations(2);
    simulated_disk disk;
    REQUIRE(run(disk, all).published == 2);
    disk.read_only = true;
    auto file = file_type::open("seq", {&disk});
    REQUIRE(file.ok());
    bool differs = false;
    CHECK(read_model(*file, all[2], differs).ok());
    const auto s = file->put(section_kind::lane, 0, {});
    CHECK(s.code() == errc::file_refused);
    CHECK(std::string(s.what()).find("'seq': it may only be read; save to another file") !=
          std::string::npos);
    const auto made = file_type::create("new", 4096, {&disk});
    REQUIRE_FALSE(made.ok());
    CHECK(made.error().code == errc::file_refused);
    CHECK(made.error().message.find("name a path that may be written") != std::string::npos);
}

} // namespace save_saved_file_faults_test
