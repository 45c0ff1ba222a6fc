// What the programs share: what a mistyped name was meant to be, which model is taken, how policies are listed, how many
// tokens are generated, the header, rows as comma-separated values, settings from a file of kvtl-tune.
// SPDX-License-Identifier: MIT
#include "csv.hpp"
#include "error.hpp"
#include "generate.hpp"
#include "model_choice.hpp"
#include "policy_list.hpp"
#include "run_header.hpp"
#include "suggestion.hpp"
#include "support/scratch_folder.hpp"
#include "tuned_file.hpp"

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
    CHECK(valid_names("magic", names, 4) == "valid: full, dynakv, dynakv_lru, quest");
    CHECK(valid_names("qest", names, 2) == "did you mean 'quest'? valid: full, dynakv and 2 more");
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
    CHECK(header_line({.model = "a",
                       .shape = {1, 2, 1, 8},
                       .policies = {},
                       .memory_mib = {},
                       .device = "",
                       .threads = 3}) == "a (1 layer, 2 query heads, 1 KV head of 8), 3 threads");
    facts.policies = {"a", "b", "c", "d", "e"};
    CHECK(device_words("uring", true, true) == "uring (a file in memory)");
    facts.device = device_words("memory", false, true);
    facts.threads = 2;
    CHECK(header_line(facts) == "tiny.gguf (6 layers, 4 query heads, 1 KV head of 64), 5 policies, 64 and "
                                "0.5 MiB, memory, 2 threads");
}

TEST_CASE("settings of kvtl-tune: the entry that is large enough, else the largest") {
    const kvtl_test::scratch_folder folder;
    const std::string file = folder.file("tuned.json");
    const kvtl::shape shape{.layers = 6, .query_heads = 4, .kv_heads = 2, .head_dim = 64};
    const std::vector<std::string> policies = {"dynakv", "kvswap"};
    const auto write = [&](const std::string& text) { std::ofstream(file, std::ios::trunc) << text; };
    const auto entry = [](int batch, int context, int group) {
        return R"({"batch":)" + std::to_string(batch) + R"(,"context":)" + std::to_string(context) +
               R"(,"group_tokens":)" + std::to_string(group) + R"(,"rank":)" + std::to_string(10 * group) +
               "}";
    };
    const std::string head =
        R"({"shape":{"layers":6,"query_heads":4,"kv_heads":2,"head_dim":64},"entries":[)";
    write(head + entry(1, 4096, 1) + "," + entry(1, 8192, 2) + "," + entry(4, 8192, 3) + "," +
          entry(4, 4096, 4) + "]}");
    const auto group = [&](std::size_t batch, std::size_t tokens) {
        return tuned_settings(file, policies, shape, batch, tokens).front().value;
    };
    CHECK(group(1, 100) == "1");
    CHECK(group(1, 4096) == "1");
    CHECK(group(1, 4097) == "2");
    CHECK(group(1, 99999) == "2");
    CHECK(group(2, 4096) == "4");
    CHECK(group(9, 5000) == "3");
    const auto all = tuned_settings(file, policies, shape, 4, 4096);
    REQUIRE(all.size() == 3);
    for (const setting& s : all) CHECK(s.policy == "kvswap");
    CHECK(all[1].slot + "." + all[1].field + "=" + all[1].value == "cache.window_tokens=4");
    CHECK(all[2].slot + "." + all[2].field + "=" + all[2].value == "index.rank=40");

    CHECK(tuned_settings("", {}, shape, 1, 1).empty());
    const auto refused = [&](const std::string& name, const kvtl::shape& s, std::span<const std::string> p) {
        CHECK_THROWS_AS(static_cast<void>(tuned_settings(name, p, s, 1, 1)), bad_input);
    };
    refused(file, shape, std::span(policies).first(1));
    refused(file, {.layers = 5, .query_heads = 4, .kv_heads = 2, .head_dim = 64}, policies);
    refused(folder.file("missing.json"), shape, policies);
    for (const std::string& text :
         {std::string(), head + "]}", std::string("[]"), head + R"({"batch":1}]})", head + "1]}",
          head + R"({"batch":1,"context":-1,"group_tokens":1,"rank":1}]})"}) {
        write(text);
        refused(file, shape, policies);
    }
    write(R"({"entries":[)" + entry(1, 4096, 1) + "]}");
    refused(file, shape, policies);
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
