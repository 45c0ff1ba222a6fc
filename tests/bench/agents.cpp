// The simulator of agents: steps to execution with exact hints are Belady's rule, and Belady's rule is the optimum where sizes
// are equal; and a trace that can be followed by hand.
// SPDX-License-Identifier: MIT
#include "../../bench/agents.hpp"

#include "../../bench/belady.hpp"

#include <doctest/doctest.h>

namespace bench_agents_test {

namespace {

using bench::agent_policy;

bench::agent_result run(std::span<const bench::agent_job> jobs, const bench::agent_costs& costs,
                        agent_policy policy) {
    return bench::agent_simulation(jobs, costs, policy).run();
}

/// Sequences of one token each, so that memory_tokens counts agents.
std::vector<bench::agent_job> of_one_token(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<bench::agent_job> jobs(3 + random() % 6);
    for (auto& job : jobs) {
        job.ready_s = static_cast<double>(random() % 100) / 7;
        job.turns.resize(1 + random() % 12);
        for (auto& turn : job.turns) turn = {.tool_s = static_cast<double>(random() % 1000) / 31};
        job.turns.front().new_tokens = 1;
    }
    return jobs;
}

} // namespace

TEST_CASE("with exact hints steps to execution are Belady's rule, which is the optimum for equal sizes") {
    std::uint64_t better_than_lru = 0, hits = 0;
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
        CAPTURE(seed);
        const auto jobs = of_one_token(seed);
        const bench::agent_costs costs{.prefill_tokens_per_s = 5,
                                       .load_tokens_per_s = 50,
                                       .decode_tokens_per_s = 1,
                                       .memory_tokens = 1 + seed % 5,
                                       .file_tokens = seed % 2 * 100};
        const auto steps = run(jobs, costs, agent_policy::steps);
        CHECK(steps == run(jobs, costs, agent_policy::belady));
        std::vector<bench::access> sequence;
        for (const std::uint32_t a : steps.order) sequence.push_back({.unit = a});
        CHECK(steps.in_memory == bench::farthest_next_use(sequence, costs.memory_tokens));
        const auto lru = run(jobs, costs, agent_policy::lru);
        hits += steps.in_memory;
        better_than_lru += lru.in_memory < steps.in_memory;
    }
    CHECK(hits > 1000);
    CHECK(better_than_lru > 100); // so the rules do differ
}

TEST_CASE("steps are Belady's rule for sequences of any size, too") {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        const auto jobs = bench::made_up_agents(seed);
        CHECK(jobs.size() >= 8);
        CHECK(jobs.size() <= 10);
        const bench::agent_costs costs{.prefill_tokens_per_s = 3000,
                                       .load_tokens_per_s = 100000,
                                       .decode_tokens_per_s = 100,
                                       .memory_tokens = 2000 + 100 * seed,
                                       .file_tokens = seed % 3 * 3000};
        const auto steps = run(jobs, costs, agent_policy::steps);
        CHECK(steps == run(jobs, costs, agent_policy::belady));
        CHECK_FALSE(steps == run(jobs, costs, agent_policy::lru));
    }
}

TEST_CASE("two agents that take turns, by hand") {
    // Each: 100 tokens and 10 of output, a tool of 1 s, 10 tokens and 10 of output. Prefill 100, load 1,000, decode 10 a second.
    const bench::agent_job job{.turns = {{.new_tokens = 100, .output_tokens = 10, .tool_s = 1},
                                         {.new_tokens = 10, .output_tokens = 10}}};
    const std::vector<bench::agent_job> jobs{job, job};
    bench::agent_costs costs{.prefill_tokens_per_s = 100,
                             .load_tokens_per_s = 1000,
                             .decode_tokens_per_s = 10,
                             .memory_tokens = 300};
    SUBCASE("both fit: a at 2 s and 4 to 5.1 s, b at 4 s and 5.1 to 6.2 s") {
        const auto r = run(jobs, costs, agent_policy::lru);
        CHECK(r.longest_job_s == doctest::Approx(6.2));
        CHECK(r.mean_job_s == doctest::Approx((5.1 + 6.2) / 2));
        CHECK(r.in_memory == 2);
        CHECK(r.tokens_prefilled == 220);
        CHECK(r.tokens_prefilled_again == 0);
    }
    SUBCASE("one fits and the other is read again: 1.1 s each") {
        costs.memory_tokens = 200;
        const auto r = run(jobs, costs, agent_policy::lru);
        // a is read again at 4 s, which makes b leave; a is done at 6.2 s, and b is read again
        CHECK(r.longest_job_s == doctest::Approx(8.4));
        CHECK(r.tokens_prefilled_again == 220);
        CHECK(r.in_memory == 0);
    }
    SUBCASE("or loaded: 0.11 s each") {
        costs.memory_tokens = 200, costs.file_tokens = 1000;
        const auto r = run(jobs, costs, agent_policy::lru);
        CHECK(r.longest_job_s == doctest::Approx(6.2 + 0.22));
        CHECK(r.tokens_reloaded == 220);
        CHECK(r.tokens_written == 220);
    }
}

TEST_CASE("a pin keeps an agent whose tool is fast") {
    // Agent 0 comes every second, and between two of its calls come two others, which stay away for long. Two fit.
    std::vector<bench::agent_job> jobs(1);
    for (int t = 0; t < 8; ++t) jobs[0].turns.push_back({.new_tokens = t == 0 ? 10U : 0U, .tool_s = 1});
    for (int other = 0; other < 16; ++other)
        jobs.push_back({.ready_s = 0.25 + 0.5 * other,
                        .turns = {{.new_tokens = 10, .tool = 1, .tool_s = 100}, {.new_tokens = 1}}});
    const bench::agent_costs costs{.prefill_tokens_per_s = 1e6,
                                   .load_tokens_per_s = 1e6,
                                   .decode_tokens_per_s = 1e6,
                                   .memory_tokens = 20};
    const auto lru = run(jobs, costs, agent_policy::lru), pins = run(jobs, costs, agent_policy::time_to_live);
    CHECK(lru.in_memory == 0);  // the others come back in the order in which they left
    CHECK(pins.in_memory == 6); // agent 0 from its third call on: its tool was seen once
}

} // namespace bench_agents_test
