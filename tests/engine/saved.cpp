// Every preset goes on from a file as if nothing had happened.
//
// Run A goes on. Run B is saved and loaded, after the prompt, in mid-decode, after a turn and after a rewind, each time into
// another cache with other shards and other sequences beside it, and the sequence that was saved is ended. A and B agree to
// the bit where load() promises it. Run C is saved as often and goes on by itself: a save changes nothing.
// It is saved to one file again and again, which gets what has changed, and then has what a whole save of the same moment has.
// SPDX-License-Identifier: MIT
#include <kvtl/save/saved_file.hpp>

#include "preset_caches.hpp"

#include <cstring>

namespace {

using namespace kvtl_test;

constexpr std::size_t steps = 60;

constexpr run ample{.least = false, .name = "ample"};
constexpr std::size_t memory_mib = 96;

/// The first section in which two files differ; empty where there is none.
std::string difference_of_files(const std::string& one, const std::string& other) {
    auto a = kvtl::saved_file::open(one), b = kvtl::saved_file::open(other);
    REQUIRE_MESSAGE(a.ok(), (a.ok() ? std::string() : a.error().message));
    REQUIRE_MESSAGE(b.ok(), (b.ok() ? std::string() : b.error().message));
    if (a->sections().size() != b->sections().size()) return "number of sections";
    for (std::size_t i = 0; i < a->sections().size(); ++i) {
        const kvtl::saved_section x = a->sections()[i], y = b->sections()[i];
        const std::string name = std::string(kvtl::name_of(x.kind)) + " " + std::to_string(x.index);
        if (x.kind != y.kind || x.index != y.index || x.bytes != y.bytes) return name;
        const auto read = [](auto& file, const kvtl::saved_section& s) {
            std::vector<std::byte> bytes(s.bytes);
            require_ok(file.get(s, 0, bytes));
            if (s.kind != kvtl::section_kind::pages) return bytes;
            std::vector<kvtl::block_ref> refs(s.bytes / sizeof(kvtl::block_ref));
            std::memcpy(refs.data(), bytes.data(), s.bytes);
            bytes.resize(refs.size() * file.facts().page_bytes);
            require_ok(file.get_pages(refs, bytes));
            return bytes;
        };
        if (read(*a, x) != read(*b, y)) return name;
    }
    return "";
}

} // namespace

TEST_CASE("every preset goes on from a saved sequence, to the bit where that is promised") {
    const stream data;
    const scratch_file file;
    for (const auto policy : engine::policy_names()) {
        CAPTURE(policy);
        preset_caches caches(policy);
        kvtl::io_faults none;
        const record a = player(caches.open(1, 1, memory_mib), data, ample, none, steps).play(chunk);

        std::vector<std::string> whole; // saves of another run with these bits
        player wholly(caches.open(1, 1, memory_mib), data, ample, none, steps);
        wholly.play(chunk, [&](const std::string&) {
            whole.push_back(file.path() + "." + std::to_string(whole.size()));
            const auto facts = wholly.cache().save(wholly.sequence(), whole.back());
            REQUIRE_MESSAGE(facts.ok(), (facts.ok() ? std::string() : facts.error().message));
            CHECK(facts->generation == 1);
        });
        std::filesystem::remove(file.path());
        std::uint64_t generations = 0;
        player saved(caches.open(1, 1, memory_mib), data, ample, none, steps);
        const record c = saved.play(chunk, [&](const std::string& after) {
            CAPTURE(after);
            const auto facts = saved.cache().save(saved.sequence(), file.path());
            REQUIRE_MESSAGE(facts.ok(), (facts.ok() ? std::string() : facts.error().message));
            CHECK(facts->tokens == saved.tokens());
            CHECK(facts->generation == ++generations);
            REQUIRE(generations <= whole.size());
            CHECK(difference_of_files(file.path(), whole[generations - 1]) == "");
        });
        for (const std::string& path : whole) std::filesystem::remove(path);
        CHECK_MESSAGE(difference(a, c).empty(), "a save changed ", difference(a, c));

        bool all_exact = true;
        unsigned times = 0;
        player moved(caches.open(2, 1, memory_mib), data, ample, none, steps);
        const record b = moved.play(chunk, [&](const std::string& after) {
            CAPTURE(after);
            if (after.ends_with("10") || after.ends_with("30")) return;
            const auto facts = moved.cache().save(moved.sequence(), file.path());
            REQUIRE_MESSAGE(facts.ok(), (facts.ok() ? std::string() : facts.error().message));
            engine::kv_cache& next = caches.open(1 + times % 2, 2, memory_mib + 2 * times);
            ++times;
            const auto other = next.begin(); // the loaded one gets another slot
            REQUIRE(other.ok());
            const auto loaded = next.load(file.path());
            REQUIRE_MESSAGE(loaded.ok(), (loaded.ok() ? std::string() : loaded.error().message));
            CHECK(loaded->tokens == moved.tokens());
            all_exact = all_exact && loaded->exact;
            require_ok(moved.cache().end(moved.sequence()));
            moved.go_on_in(next, loaded->seq);
            caches.close_all_but_last();
        });
        CHECK(times > 5);
        if (all_exact)
            CHECK_MESSAGE(difference(a, b).empty(), "a loaded sequence differs at ", difference(a, b));

        if (all_exact)
            continue; // its bits depend on which units are in memory: equal caches go on with these, too
        const std::size_t prompt_chunk = chunk_of(policy, chunk, true);
        const record alone = player(caches.open(1, 1, 0), data, ample, none, steps).play(prompt_chunk);
        player hot(caches.open(1, 1, 0), data, ample, none, steps);
        all_exact = true;
        const record d = hot.play(prompt_chunk, [&](const std::string& after) {
            CAPTURE(after);
            const auto facts = hot.cache().save(hot.sequence(), file.path());
            REQUIRE_MESSAGE(facts.ok(), (facts.ok() ? std::string() : facts.error().message));
            engine::kv_cache& next = caches.open(1, 1, 0);
            const auto loaded = next.load(file.path());
            REQUIRE_MESSAGE(loaded.ok(), (loaded.ok() ? std::string() : loaded.error().message));
            all_exact = all_exact && loaded->exact;
            hot.go_on_in(next, loaded->seq);
            caches.close_all_but_last();
        });
        CHECK(all_exact == (policy.find("virtualised") == std::string_view::npos));
        if (all_exact)
            CHECK_MESSAGE(difference(alone, d).empty(), "in equal caches it differs at ",
                          difference(alone, d));
    }
}
