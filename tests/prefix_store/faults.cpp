// A disk that fails at any operation, once or from then on, and a power cut at any: what was stored is found, with its own
// tokens; a keep() that failed has added nothing.
// SPDX-License-Identifier: MIT
#include "support/prefix_stores.hpp"

#include <cerrno>
#include <optional>
#include <vector>

namespace prefix_faults_test {

using namespace kvtl_test;

namespace {

constexpr std::size_t stored = 4;

token_list text_of(std::uint32_t i) {
    return counting(1000 * i, 60 + i);
}

/// Four prefixes: of the first two the files are on the disk, the others are trunks.
struct fixture {
    simulated_disk disk;
    pretend_cache cache{.disk = &disk};
    kvtl::prefix_store_config config{.folder = "f", .trunks = 2, .free_bytes = 0, .rewind_tokens = 0};
    std::optional<pretend_store> store;

    fixture() {
        store.emplace(open_store(cache, config));
        for (std::uint32_t i = 0; i < stored; ++i) static_cast<void>(kept(*store, cache, text_of(i)));
        REQUIRE(store->statistics().files == 2);
    }
    [[nodiscard]] std::size_t found(std::uint32_t i) {
        token_list prompt = text_of(i);
        prompt.push_back(1);
        return started(*store, cache, prompt).tokens;
    }
    /// Of the first four; returns how many are there.
    std::size_t check_all() {
        std::size_t there = 0;
        for (std::uint32_t i = 0; i < stored; ++i) {
            const std::size_t n = found(i);
            REQUIRE((n == 0 || n == text_of(i).size()));
            there += n != 0;
        }
        return there;
    }
};

enum class call { keep, keep_to_file, replace, prefetch, flush, start };

/// Runs a call on a disk that fails at its operation `at`. Returns whether it came so far.
bool fails_at(call which, std::size_t at, bool once) {
    fixture f;
    token_list prompt = text_of(0);
    prompt.push_back(1);
    const kvtl::prefix_id first = started(*f.store, f.cache, prompt).prefix;
    f.disk.fails_at = f.disk.operations + at;
    f.disk.fails_until = once ? f.disk.fails_at + 1 : SIZE_MAX;
    kvtl::status s;
    std::optional<kvtl::prefix_id> made;
    const token_list fresh = text_of(9);
    switch (which) {
    case call::keep:
    case call::keep_to_file:
    case call::replace: {
        kvtl::keep_options o{.to_file = which != call::keep};
        if (which == call::replace) o.replaces = first;
        const auto id = keep(*f.store, f.cache, fresh, o);
        if (id)
            made = *id;
        else
            s = id.error();
        break;
    }
    case call::prefetch:
        s = f.store->prefetch(text_of(0));
        break;
    case call::flush:
        s = f.store->flush();
        break;
    case call::start: {
        const std::size_t there = f.found(0);
        REQUIRE((there == 0 || there == text_of(0).size())); // a miss is no error
        break;
    }
    }
    const bool reached = f.disk.operations >= f.disk.fails_at;
    f.disk.fails_at = f.disk.fails_until = 0;
    CAPTURE(std::string(s.what()));
    if (!s) {
        REQUIRE((s.code() == kvtl::errc::io_error || s.code() == kvtl::errc::file_refused));
        REQUIRE(reached);
    }
    if (once) check_counts(*f.store, f.cache); // a file that cannot be removed is found by the next open()
    const std::size_t there = f.check_all();
    if (which == call::replace) // the file may have been taken over
        REQUIRE((there == stored - 1 || (there == stored && !made)));
    else
        REQUIRE(there == stored);
    REQUIRE(f.found(9) == (made ? fresh.size() : 0));
    REQUIRE(f.store->statistics().prefixes == there + (made ? 1 : 0));
    // and it goes on
    REQUIRE(f.store->flush().ok());
    static_cast<void>(kept(*f.store, f.cache, fresh));
    REQUIRE(f.store->flush().ok());
    f.store.reset();
    REQUIRE(f.cache.open.empty());
    f.store.emplace(open_store(f.cache, f.config));
    REQUIRE(f.check_all() >= there); // or what could not be read came back
    REQUIRE(f.found(9) == fresh.size());
    check_counts(*f.store, f.cache);
    return reached;
}

} // namespace

TEST_CASE("an operation of the disk fails: what is stored stays, and a failed keep() adds nothing") {
    for (const call which :
         {call::keep, call::keep_to_file, call::replace, call::prefetch, call::flush, call::start})
        for (const bool once : {true, false}) {
            CAPTURE(static_cast<int>(which));
            CAPTURE(once);
            std::size_t at = 1;
            for (; fails_at(which, at, once); ++at) CAPTURE(at);
            CHECK(at > 5); // from file and folder there is as much to do
        }
}

TEST_CASE("the power goes off in any operation: files that were complete are found again") {
    std::size_t at = 1, survivors = 0;
    for (bool cut = true; cut; ++at) {
        fixture f;
        f.disk.random.seed(at);
        f.disk.cut_at = f.disk.operations + at;
        static_cast<void>(keep(*f.store, f.cache, text_of(9), {.to_file = true}));
        static_cast<void>(f.store->flush());
        cut = f.disk.operations >= f.disk.cut_at;
        f.disk.cut_at = 0;
        f.disk.power_cut();
        f.store.reset();
        f.store.emplace(open_store(f.cache, f.config));
        REQUIRE(f.store->statistics().damaged_files == 0);
        const std::size_t there = f.check_all();
        REQUIRE(there >= 2); // a save returns when it is on the disk
        survivors += there;
        const std::size_t fresh = f.found(9);
        REQUIRE((fresh == 0 || fresh == text_of(9).size()));
        if (!cut) REQUIRE((there == stored && fresh != 0));
        check_counts(*f.store, f.cache);
    }
    CHECK(survivors > 2 * at);
}

} // namespace prefix_faults_test
