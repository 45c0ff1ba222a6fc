// Several conversations in one context are as each is alone: prompts of unequal length, one that ends early, one that
// goes back.
// SPDX-License-Identifier: MIT
#include "hook_fixture.hpp"
#include "support/scratch_folder.hpp"
#include "tiny_models.hpp"

using namespace hook;

namespace {

tokens slice(const tokens& all, std::size_t first, std::size_t n) {
    const std::size_t end = std::min(all.size(), first + n);
    return {all.begin() + static_cast<std::ptrdiff_t>(std::min(first, end)),
            all.begin() + static_cast<std::ptrdiff_t>(end)};
}

void four_conversations(llama_model* model, const std::string& policy, const std::vector<tokens>& prompts) {
    side_by_side s(model, settings_for(4), side_by_side::by_name(everything(policy)));
    // Prompts side by side, up to 60 tokens of each in a batch: the short ones decode while the long ones are read.
    std::vector<std::size_t> read(4);
    std::vector<llama_token> next(4);
    std::vector<int> decoded(4);
    for (int round = 0; round < 14; ++round) {
        std::vector<piece> batch;
        for (llama_seq_id q = 3; q >= 0; --q) {
            const auto i = static_cast<std::size_t>(q);
            if (q == 1 && round >= 6) continue; // ended early
            if (read[i] < prompts[i].size()) {
                const tokens some = slice(prompts[i], read[i], 60);
                read[i] += some.size();
                batch.push_back({q, some, read[i] == prompts[i].size() ? wish::last : wish::none});
            } else {
                batch.push_back({q, {next[i]}});
                ++decoded[i];
            }
        }
        const tokens chosen = s.feed(batch);
        for (std::size_t i = 0; i < batch.size(); ++i)
            next[static_cast<std::size_t>(batch[i].seq)] = chosen[i];
        if (round == 5) s.end(1);
        if (round == 10) { // sequence 0 takes steps back, the others do not notice
            const auto back = s.rewind(0, s.attached->held(0) - 3);
            CHECK_MESSAGE(back.ok(), back.what());
            next[0] = 300;
        }
        if (round == 11) s.prompt(1, slice(prompts[2], 5, 30)); // the free place is taken again
    }
    CHECK(decoded[0] > 8);
    CHECK(decoded[3] > 5);
    CHECK(s.wrong == 0);
    s.report(policy);
}

} // namespace

TEST_CASE("four conversations of the embedded model in one context") {
    const std::vector<tokens> prompts{prose(embedded(), 60), prose(embedded(), 10, 2000),
                                      prose(embedded(), 350, 4000), prose(embedded(), 230, 8000)};
    for (const std::string policy : {"full", "dynakv"}) {
        CAPTURE(policy);
        four_conversations(embedded(), policy, prompts);
    }
}

TEST_CASE("four conversations of models with windows and sinks") {
    const kvtl_test::scratch_folder folder;
    for (const std::string architecture : {"gemma3", "gpt-oss"}) {
        CAPTURE(architecture);
        const std::string path = folder.file("model.gguf");
        REQUIRE(tiny_models::write(path, {.architecture = architecture}));
        const model_ptr model = load(path);
        std::vector<tokens> prompts(4);
        const std::size_t lengths[] = {60, 10, 350, 230};
        for (std::size_t i = 0; i < 4; ++i)
            for (std::size_t t = 0; t < lengths[i]; ++t)
                prompts[i].push_back(static_cast<llama_token>(261 + (t * t * 7 + 13 * i) % 251));
        four_conversations(model.get(), "dynakv", prompts);
    }
}

TEST_CASE("a batch of prompts of all sequences is one graph") {
    for (const unsigned threads : {1U, 2U}) {
        side_by_side s(embedded(), settings_for(4, threads), side_by_side::by_name(everything("dynakv")));
        s.feed({{0, prose(embedded(), 10)},
                {1, prose(embedded(), 30, 1000)},
                {2, prose(embedded(), 7, 2000)},
                {3, prose(embedded(), 20, 3000)}});
        s.feed({{2, {300}}, {0, {301}}, {3, {302, 303, 304}, wish::all}, {1, {305}}});
        CHECK(s.wrong == 0);
        CHECK(s.attached->held(3) == 23);
    }
}

TEST_CASE("a branch that the cache made goes on as a sequence of llama.cpp") {
    side_by_side s(embedded(), settings_for(2), side_by_side::by_name(everything("full")));
    const tokens ids = prose(embedded(), 300);
    CHECK_FALSE(s.attached->name_of(0).has_value());
    const llama_token next = s.prompt(0, ids);
    CHECK(s.prompt(1, ids) == next); // for the plain side; the cache forgets it:
    REQUIRE(s.attached->end(1).ok());
    CHECK_FALSE(s.attached->name_of(1).has_value());

    auto branch = s.attached->cache().fork(*s.attached->name_of(0));
    REQUIRE(branch.ok());
    CHECK(std::string(s.attached->adopt(0, *branch, ids.size()).what()).find("one that was ended") !=
          std::string::npos);
    CHECK(std::string(s.attached->adopt(2, *branch, ids.size()).what()).find("0 to 1") != std::string::npos);
    REQUIRE(s.attached->adopt(1, *branch, ids.size()).ok());
    CHECK(s.attached->held(1) == static_cast<llama_pos>(ids.size()));
    s.steps(1, next, 5);
    s.steps(0, s.prompt(0, {300, 301, 302}), 5); // a further turn of the parent
    s.prompt(1, {303, 304});
    CHECK(s.wrong == 0);
    s.end(1);
    s.steps(0, 305, 3);
    CHECK(s.wrong == 0);
}
