// What the programs share: what a mistyped name was meant to be, which model is taken, how policies are listed, how many
// tokens are generated, the header, rows as comma-separated values.
// SPDX-License-Identifier: MIT
#include "csv.hpp"
#include "error.hpp"
#include "generate.hpp"
#include "model_choice.hpp"
#include "policy_list.hpp"
#include "run_header.hpp"
#include "suggestion.hpp"
#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace engine;

TEST_CASE("edit distance: insertions, deletions, replacements, neighbours exchanged") {
    CHECK(edit_distance("", "") == 0);
    CHECK(edit_distance("", "abc") == 3);
    CHECK(edit_distance("abc", "") == 3);
    CHECK(edit_distance("kvswap", "kvswap") == 0);
    CHECK(edit_distance("kitten", "sitting") == 3);
    CHECK(edit_distance("dynkav", "dynakv") == 1); // one exchange
    CHECK(edit_distance("ca", "abc") == 3);        // a place is edited once
    CHECK(edit_distance(std::string(1000, 'a'), std::string(1000, 'b')) == 64);
}

TEST_CASE("the name that was meant is near, and the first of those") {
    const std::vector<std::string> names = {"full", "dynakv", "dynakv_lru", "quest"};
    CHECK(nearest("dynkv", names) == "dynakv");
    CHECK(nearest("dynakv_lur", names) == "dynakv_lru");
    CHECK(nearest("ful", names) == "full");
    CHECK(nearest("magic", names).empty());
    CHECK(nearest("", names).empty());
    CHECK(nearest("q", names).empty());
    CHECK(nearest("ab", std::vector<std::string>{"ac", "bb"}) == "ac");
    CHECK(valid_names("qest", names) == "did you mean 'quest'? valid: full, dynakv, dynakv_lru, quest");
    CHECK(valid_names("magic", names) == "valid: full, dynakv, dynakv_lru, quest");
}

TEST_CASE("policies are listed below the heading of their family") {
    const std::vector<policy_entry> all = {{"full", "exact: all", "in memory"},
                                           {"h2o", "eviction: dropped", "H2O"},
                                           {"tova", "eviction: dropped", "TOVA"}};
    CHECK(grouped_list(all) ==
          "# exact: all\nfull  in memory\n\n# eviction: dropped\nh2o   H2O\ntova  TOVA\n");
    CHECK(grouped_list({}).empty());
}

TEST_CASE("a file is taken from the first folder that has one") {
    const kvtl_test::scratch_folder empty, first, second;
    for (const auto* folder : {&first, &second}) std::ofstream(folder->file("model.gguf")) << "x";
    std::filesystem::create_directory(empty.file("model.gguf")); // no file
    const std::string no = empty.file(""), one = first.file(""), two = second.file("");
    CHECK(find_file("model.gguf", std::vector{std::string(), no, one, two}) == first.file("model.gguf"));
    CHECK(find_file("model.gguf", std::vector{two, one}) == second.file("model.gguf"));
    CHECK(find_file("model.gguf", std::vector{no}) == "");
    CHECK(find_file("other.gguf", std::vector{one, two}) == "");
}

TEST_CASE("as many tokens are generated as the context has room for") {
    CHECK(room_for(8, 500, 512, "test") == 8);
    CHECK(room_for(12, 500, 512, "test") == 12);
    CHECK(room_for(13, 500, 512, "test") == 12);
    CHECK(room_for(0, 512, 512, "test") == 0);
    CHECK_THROWS_WITH_AS(static_cast<void>(room_for(1, 512, 512, "test")),
                         "prompt of 512 tokens fills the context of 512", bad_input);
    CHECK_THROWS_WITH_AS(static_cast<void>(room_for(0, 513, 512, "test")),
                         "prompt of 513 tokens is longer than the context of 512", bad_input);
}

TEST_CASE("the header says what a program runs on") {
    run_facts facts{.model = "models/tiny.gguf",
                    .shape = {.layers = 6, .query_heads = 4, .kv_heads = 1, .head_dim = 64},
                    .policies = {"full", "dynakv"},
                    .memory_mib = {64, .5},
                    .device = device_words("uring", true),
                    .threads = 1};
    CHECK(header_line(facts) ==
          "tiny.gguf (6 layers, 4 query heads, 1 KV head of 64), full, dynakv, 64 and 0.5 MiB, "
          "uring (direct), 1 thread");
    facts.policies = {"a", "b", "c", "d", "e"};
    facts.device = device_words("memory", false);
    facts.threads = 2;
    CHECK(header_line(facts) == "tiny.gguf (6 layers, 4 query heads, 1 KV head of 64), 5 policies, 64 and "
                                "0.5 MiB, memory, 2 threads");
}

TEST_CASE("rows become lines, and what lies deeper columns of its own") {
    CHECK(to_csv(R"([{"policy": "full", "n": 3, "x": 0.25, "ok": true, "none": null},
                     {"policy": "dynakv", "n": 4, "phase": {"append": 1, "score": 2}, "ci": [0.5, 1]}])") ==
          "policy,n,x,ok,none,phase.append,phase.score,ci.0,ci.1\n"
          "full,3,0.25,true,,,,,\n"
          "dynakv,4,,,,1,2,0.5,1");
    CHECK(to_csv(R"([{"a,b": "say \"no\"", "c": "two\nlines", "d": "a b"}])") ==
          "\"a,b\",c,d\n\"say \"\"no\"\"\",\"two\nlines\",a b");
    CHECK(to_csv("[]").empty());
}
