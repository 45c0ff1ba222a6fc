// Every preset can be forked, and branches do not notice each other.
//
//   parent   prompt ─┬─▶ 30 steps ───▶ 30 steps ─▶ turn ─▶ rewind ─▶ 10 steps     goes on with its branches beside it
//   a        ├ after the prompt ─┬──▶ ended behind the turn, before its branch
//   b        └ likewise ─────────┼┬─▶ to the end
//   c, d     of a and of b, in mid-decode ─▶ to the end
//
// All take the same tokens. Where load() promises the same bits, parent and branches have those of a sequence that was never
// forked. Else those that were made at one moment agree: a with b, and c with d.
// SPDX-License-Identifier: MIT
#include "preset_caches.hpp"

namespace {

using namespace kvtl_test;

constexpr std::size_t steps = 60;
constexpr run ample{.least = false, .name = "ample"};
constexpr std::size_t sequences = 10,
                      memory_mib = 256; // where sequences are divided each shard has half of them

/// No decision of the preset depends on which units are in memory: load() says so, in a cache with other frames.
bool goes_on_exactly(engine::kv_cache& cache, kvtl::sequence_id seq, const std::string& path,
                     engine::kv_cache& other) {
    const auto saved = cache.save(seq, path);
    REQUIRE_MESSAGE(saved.ok(), (saved.ok() ? std::string() : saved.error().message));
    const auto loaded = other.load(path);
    REQUIRE_MESSAGE(loaded.ok(), (loaded.ok() ? std::string() : loaded.error().message));
    return loaded->exact;
}

} // namespace

TEST_CASE("every preset can be forked, and its branches go on as sequences of their own") {
    const stream data;
    const scratch_file file;
    std::size_t exact_presets = 0;
    for (const auto policy : engine::policy_names()) {
        CAPTURE(policy);
        preset_caches caches(policy);
        kvtl::io_faults none;
        const record alone = player(caches.open(1, 1, memory_mib), data, ample, none, steps).play(chunk);

        player tree(caches.open(2, sequences, memory_mib), data, ample, none, steps);
        engine::kv_cache& cache = tree.cache();
        bool to_the_bit = false;
        std::vector<player::follower> ended;
        const auto fork = [&](kvtl::sequence_id seq) {
            const auto branch = cache.fork(seq);
            REQUIRE_MESSAGE(branch.ok(), (branch.ok() ? std::string() : branch.error().message));
            tree.follow(*branch);
        };
        const record parent = tree.play(chunk, [&](const std::string& after) {
            CAPTURE(after);
            if (after == "prompt to " + std::to_string(prompt)) {
                to_the_bit =
                    goes_on_exactly(cache, tree.sequence(), file.path(), caches.open(1, 1, memory_mib / 8));
                fork(tree.sequence());
                fork(tree.sequence());
            } else if (after == "step 30") {
                fork(tree.followers()[0].seq);
                fork(tree.followers()[1].seq);
            } else if (after == "turn") {
                ended.push_back(tree.part_with(0));
                require_ok(cache.end(ended[0].seq));
            }
        });
        while (!tree.followers().empty()) {
            ended.push_back(tree.part_with(0));
            require_ok(cache.end(ended.back().seq));
        }
        REQUIRE(ended.size() == 4);
        for (const auto& f : ended) CHECK(f.out.size() > 3);
        const auto &a = ended[0], &b = ended[1], &c = ended[2], &d = ended[3];
        CHECK_MESSAGE(difference(b.out, a.out).empty(), "branches differ at ", difference(b.out, a.out));
        CHECK_MESSAGE(difference(c.out, d.out).empty(), "branches of branches differ at ",
                      difference(c.out, d.out));
        if (!to_the_bit) continue;
        ++exact_presets;
        CHECK_MESSAGE(difference(alone, parent).empty(), "a fork changed ", difference(alone, parent));
        for (const auto& f : ended)
            CHECK_MESSAGE(difference(alone, f.out, f.first).empty(), "a branch differs at ",
                          difference(alone, f.out, f.first));
    }
    CHECK(exact_presets > engine::policy_names().size() / 2);
}
