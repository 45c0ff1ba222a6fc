// Who takes part in a comparison: names, bounds too small, failures midway.
// SPDX-License-Identifier: MIT
#include "contenders.hpp"

#include "error.hpp"
#include "gguf.hpp"

#include <doctest/doctest.h>

#include <string>

namespace {

const std::string data = std::string(KVTL_SOURCE_DIR) + "/examples/data/";

struct fixture {
    engine::gguf_file file{data + "tiny-2k.gguf"};
    engine::model model{file};
    engine::tokenizer words{file};
    engine::thread_pool pool{2};
    engine::cache_options options;
    std::string io = "memory";

    fixture() {
        options.shape = model.hyper().shape;
        options.max_tokens = 600;
        options.memory_bytes = 16 << 20;
        options.attend_tokens = 128;
        options.io = "memory";
    }
    [[nodiscard]] eval::contender make(const std::string& policy, std::size_t memory_bytes = 16 << 20,
                                       bool reference = false) const {
        eval::contender c{.options = options, .reference = reference, .error = {}};
        c.options.policy = policy;
        c.options.memory_bytes = memory_bytes;
        return c;
    }
};

TEST_CASE("names") {
    CHECK(eval::parse_policies("quest,full,quest") == std::vector<std::string>{"quest", "full"});
    CHECK(eval::parse_policies("all").size() == engine::policy_names().size());
    CHECK_THROWS_AS((void)eval::parse_policies("magic"), engine::bad_input);
    CHECK_THROWS_AS((void)eval::parse_policies(""), engine::bad_input);
    CHECK(eval::built_in("full"));
    CHECK(!eval::built_in("magic"));
}

TEST_CASE_FIXTURE(fixture, "a bound too small keeps one out, not the others") {
    std::vector<eval::contender> all{make("full"), make("dynakv", 100000), make("dynakv")};
    (void)eval::try_all(all, io, "test");
    CHECK(all[0].error.empty());
    CHECK(all[1].error.find("needs at least") != std::string::npos);
    CHECK(all[1].options.memory_bytes == 100000);
    CHECK(all[2].error.empty());
    CHECK_NOTHROW(eval::require_any(all, {"full", "dynakv"}));

    all.pop_back();
    CHECK_NOTHROW(eval::require_any(all, {"full"}));
    CHECK_THROWS_AS(eval::require_any(all, {"dynakv"}), engine::bad_input);
    CHECK_THROWS_AS(eval::require_any(all, {"full", "dynakv"}), engine::bad_input); // full needs no bound
    CHECK_NOTHROW(eval::require_finished(all));
}

TEST_CASE_FIXTURE(fixture,
                  "evicting at the prompt's end fits a bound below the whole cache when decode is short") {
    if (!engine::policy_wants("snapkv_group").evicts) return; // not built in
    const eval::task_options text{
        .prose_file = data + "prose.txt", .limit = 1, .nll_prefill = 500, .nll_tokens = 600};
    const std::vector<eval::task> tasks{eval::make_task("nll:builtin", words, 2048, text)};
    // 600 tokens are 1.76 MiB of f16; 64 that survive and 99 that are decoded are 0.48.
    std::vector<eval::contender> all{make("snapkv_group", 1 << 20), make("snapkv_group", 1 << 20)};
    all[0].options.keep_tokens = all[1].options.keep_tokens = 64;
    all[1].options.settings.push_back(
        {"snapkv_group", "cache", "prefill_tokens", "100"}); // too short: it wins
    const auto wants = eval::try_all(all, io, "test", tasks);
    CHECK(all[0].error.empty());
    CHECK(all[1].error.find("needs at least") != std::string::npos);
    eval::evaluator evaluator(model, words, pool, options, wants, "test");
    const auto rows = eval::run_task(evaluator, tasks[0], all, true);
    CHECK(!rows[0].error);
    CHECK(rows[0].keep_tokens == 64);
    CHECK(rows[0].resident_bytes_peak.value() <= 1 << 20);
    CHECK(rows[0].kept_bytes.value() == doctest::Approx((64 + 99) * 3072.0));
    CHECK_NOTHROW(eval::require_finished(all));
}

TEST_CASE_FIXTURE(fixture, "a reference line gets the memory it needs, but no more than that cures") {
    std::vector<eval::contender> all{make("dynakv", 100000, true)};
    (void)eval::try_all(all, io, "test");
    CHECK(all[0].error.empty());
    CHECK(all[0].options.memory_bytes > 100000);
    std::vector<eval::contender> half{make("dynakv", all[0].options.memory_bytes / 2)};
    (void)eval::try_all(half, io, "test");
    CHECK(!half[0].error.empty());

    std::vector<eval::contender> hopeless{make("dynakv", 100000, true)};
    hopeless[0].options.settings.push_back({"dynakv", "index", "nonsense", "1"});
    (void)eval::try_all(hopeless, io, "test");
    CHECK(hopeless[0].error.find("no such field") != std::string::npos);
    CHECK(hopeless[0].options.memory_bytes == 100000);
}

TEST_CASE_FIXTURE(fixture,
                  "one that fails midway leaves its reason, and the next what it would find without it") {
    const eval::task_options text{
        .prose_file = data + "prose.txt", .limit = 2, .nll_prefill = 200, .nll_tokens = 300};
    const auto t = eval::make_task("nll:builtin", words, 2048, text);
    std::vector<eval::contender> all{make("dynakv"), make("dynakv"), make("dynakv")};
    all[1].options.max_tokens = 250; // the 251st token is refused
    const auto wants = eval::try_all(all, io, "test");
    eval::evaluator evaluator(model, words, pool, options, wants, "test");
    const auto rows = eval::run_task(evaluator, t, all, true);
    REQUIRE(rows.size() == 3);
    CHECK(!rows[0].error);
    REQUIRE(rows[1].error);
    CHECK(rows[1].error->find("max_tokens") != std::string::npos);
    CHECK(rows[1].policy == "dynakv");
    CHECK(rows[1].attend_tokens == 128);
    CHECK(!rows[1].nll);
    CHECK(rows[0].nll.value() > 0);
    CHECK(rows[2].nll.value() == doctest::Approx(rows[0].nll.value()).epsilon(1e-9));
    CHECK(rows[2].mass_recall.value() == doctest::Approx(rows[0].mass_recall.value()).epsilon(1e-6));
    CHECK_THROWS_AS(eval::require_finished(all), engine::run_failure);
}

} // namespace
