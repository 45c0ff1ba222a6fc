// Every preset goes on from a file as if nothing had happened.
//
// Run A goes on. Run B is saved and loaded, after the prompt, in mid-decode, after a turn and after a rewind, each time into
// another cache with other shards and other sequences beside it, and the sequence that was saved is ended. A and B agree to
// the bit where load() promises it. Run C is saved as often and goes on by itself: a save changes nothing.
// SPDX-License-Identifier: MIT
#include "preset_caches.hpp"

namespace {

using namespace kvtl_test;

constexpr std::size_t steps = 60;

constexpr run ample{.least = false, .name = "ample"};
constexpr std::size_t memory_mib = 96;

} // namespace

TEST_CASE("every preset goes on from a saved sequence, to the bit where that is promised") {
    const stream data;
    const scratch_file file;
    for (const auto policy : engine::policy_names()) {
        CAPTURE(policy);
        preset_caches caches(policy);
        kvtl::io_faults none;
        const record a = player(caches.open(1, 1, memory_mib), data, ample, none, steps).play(chunk);

        player saved(caches.open(1, 1, memory_mib), data, ample, none, steps);
        const record c = saved.play(chunk, [&](const std::string& after) {
            CAPTURE(after);
            const auto facts = saved.cache().save(saved.sequence(), file.path());
            REQUIRE_MESSAGE(facts.ok(), (facts.ok() ? std::string() : facts.error().message));
            CHECK(facts->tokens == saved.tokens());
        });
        CHECK_MESSAGE(difference(a, c).empty(), "a save changed ", difference(a, c));

        bool exact = true;
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
            exact = exact && loaded->exact;
            require_ok(moved.cache().end(moved.sequence()));
            moved.go_on_in(next, loaded->seq);
            caches.close_all_but_last();
        });
        CHECK(times > 5);
        if (exact) CHECK_MESSAGE(difference(a, b).empty(), "a loaded sequence differs at ", difference(a, b));
    }
}
