// kvtl-agents: agents with tool calls share an engine that has room for some of their sequences. How long do their jobs take,
// by who has to leave?
//
//   kvtl-agents --memory-tokens 4000                     files for the others
//   kvtl-agents --memory-tokens 4000 --file-tokens 0     no files: they are read again
//   kvtl-agents --trace FILE                             lines of: agent ready_s new_tokens output_tokens tool tool_s
//
// Rates:  those of the embedded model with dynakv_estimate: 1,207 tokens are read in 0.327 s and loaded in 8.6 ms
//         (bench/results/log/saved.md), and 161 tokens a second are decoded (README.md, the table of the demo).
// Prints: a line per policy: mean and longest time of a job, tokens by what became of them. --json: rows with the rates, the
//         commit and the command (bench/results/data/agents.json). Exit status 0, 2 for bad usage.
// SPDX-License-Identifier: MIT
#include "agents.hpp"

#include <kvtl/version.hpp>

#include "command.hpp"
#include "commit.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using json = nlohmann::ordered_json;

constexpr const char* program = "kvtl-agents";

/// A line about what is wrong, and the exit status.
int fail(const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", program, what.c_str());
    return 2;
}

struct arguments {
    bench::agent_costs costs{.prefill_tokens_per_s = 1207 / 0.327,
                             .load_tokens_per_s = 1207 / 0.0086,
                             .decode_tokens_per_s = 161,
                             .memory_tokens = 4000,
                             .file_tokens = 1'000'000};
    std::uint64_t seed = 1, traces = 20;
    std::string trace, json_file;
};

void define(CLI::App& app, arguments& a) {
    app.add_option("--trace", a.trace,
                   "a file of calls instead of generated ones, one per line: `agent ready_s new_tokens "
                   "output_tokens tool tool_s`; ready_s is read for the first call of an agent only");
    app.add_option("--traces", a.traces, "number of generated traces; the program prints means over them")
        ->capture_default_str();
    app.add_option("--seed", a.seed, "of the first trace")->capture_default_str();
    app.add_option("--memory-tokens", a.costs.memory_tokens, "tokens of sequences that fit into memory")
        ->capture_default_str();
    app.add_option("--file-tokens", a.costs.file_tokens, "tokens that fit into files; 0: no files")
        ->capture_default_str();
    app.add_option("--prefill-rate", a.costs.prefill_tokens_per_s, "tokens per second")
        ->capture_default_str();
    app.add_option("--load-rate", a.costs.load_tokens_per_s, "tokens per second")->capture_default_str();
    app.add_option("--decode-rate", a.costs.decode_tokens_per_s, "tokens per second")->capture_default_str();
    app.add_option("--ttl-quantile", a.costs.time_to_live,
                   "share of a tool's durations that a pin of time_to_live outlasts")
        ->capture_default_str();
    app.add_option("--json", a.json_file, "write the rows as JSON; - for standard output");
}

/// The jobs of a file, or what is wrong with it.
std::vector<bench::agent_job> read_trace(const std::string& path, std::string& wrong) {
    std::ifstream in(path);
    if (!in.is_open()) wrong = "--trace: cannot open " + path;
    std::map<std::string, bench::agent_job> jobs;
    std::string line;
    for (std::size_t number = 1; wrong.empty() && std::getline(in, line); ++number) {
        if (line.empty() || line.front() == '#') continue;
        std::istringstream words(line);
        std::string agent, rest;
        double ready_s = -1;
        std::int64_t new_tokens = -1, output_tokens = -1, tool = -1; // `>>` gives unsigned ones for -1, too
        bench::agent_turn turn;
        const bool read(words >> agent >> ready_s >> new_tokens >> output_tokens >> tool >> turn.tool_s);
        if (!read || words >> rest || ready_s < 0 || turn.tool_s < 0 ||
            !std::in_range<std::uint32_t>(new_tokens) || !std::in_range<std::uint32_t>(output_tokens) ||
            !std::in_range<std::uint32_t>(tool))
            wrong = "--trace: line " + std::to_string(number) +
                    "; valid: agent ready_s new_tokens output_tokens tool tool_s, none negative, tokens and "
                    "tool less than 2^32";
        turn.new_tokens = static_cast<std::uint32_t>(new_tokens);
        turn.output_tokens = static_cast<std::uint32_t>(output_tokens);
        turn.tool = static_cast<std::uint32_t>(tool);
        bench::agent_job& job = jobs[agent];
        if (job.turns.empty()) job.ready_s = ready_s;
        job.turns.push_back(turn);
    }
    if (wrong.empty() && jobs.empty()) wrong = "--trace: " + path + " has no calls; valid: at least one line";
    std::vector<bench::agent_job> all;
    for (auto& [name, job] : jobs) all.push_back(std::move(job));
    return all;
}

/// What is wrong with the numbers; empty where nothing is.
std::string check(const arguments& a) {
    for (const auto& [name, rate] : {std::pair("--prefill-rate", a.costs.prefill_tokens_per_s),
                                     std::pair("--load-rate", a.costs.load_tokens_per_s),
                                     std::pair("--decode-rate", a.costs.decode_tokens_per_s)})
        if (!(rate > 0 && rate < 1e12)) return std::string(name) + ": valid: more than 0, less than 10^12";
    if (!(a.costs.time_to_live >= 0 && a.costs.time_to_live <= 1)) return "--ttl-quantile: valid: 0 to 1";
    if (a.traces < 1 || a.traces > 10000) return "--traces: valid: 1 to 10000";
    return "";
}

json row_of(const arguments& a, const std::string& command, bench::agent_policy policy,
            const std::vector<std::vector<bench::agent_job>>& traces) {
    double mean = 0, longest = 0, calls = 0, in_memory = 0, prefilled = 0, again = 0, reloaded = 0,
           written = 0;
    for (const auto& jobs : traces) {
        const auto r = bench::agent_simulation(jobs, a.costs, policy).run();
        mean += r.mean_job_s, longest += r.longest_job_s;
        calls += static_cast<double>(r.calls), in_memory += static_cast<double>(r.in_memory);
        prefilled += static_cast<double>(r.tokens_prefilled),
            again += static_cast<double>(r.tokens_prefilled_again);
        reloaded += static_cast<double>(r.tokens_reloaded), written += static_cast<double>(r.tokens_written);
    }
    const auto n = static_cast<double>(traces.size());
    return {{"policy", bench::agent_policy_names[static_cast<std::size_t>(policy)]},
            {"mean_job_s", mean / n},
            {"longest_job_s", longest / n},
            {"calls", calls / n},
            {"in_memory", in_memory / n},
            {"tokens_prefilled", prefilled / n},
            {"tokens_prefilled_again", again / n},
            {"tokens_reloaded", reloaded / n},
            {"tokens_written", written / n},
            {"memory_tokens", a.costs.memory_tokens},
            {"file_tokens", a.costs.file_tokens},
            {"prefill_tokens_per_s", a.costs.prefill_tokens_per_s},
            {"load_tokens_per_s", a.costs.load_tokens_per_s},
            {"decode_tokens_per_s", a.costs.decode_tokens_per_s},
            {"commit", KVTL_COMMIT},
            {"machine", "any: simulated"},
            {"command", command}};
}

} // namespace

int main(int argc, char** argv) {
    arguments a;
    CLI::App app("Simulates agents with tool calls on one engine, and compares rules for who leaves memory.",
                 program);
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    define(app, a);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& e) {
        return app.exit(e);
    } catch (const CLI::ParseError& e) {
        return fail(e.what());
    }
    if (const std::string wrong = check(a); !wrong.empty()) return fail(wrong);
    std::vector<std::vector<bench::agent_job>> traces;
    std::string wrong;
    if (!a.trace.empty())
        traces.push_back(read_trace(a.trace, wrong));
    else
        for (std::uint64_t i = 0; i < a.traces; ++i) traces.push_back(bench::made_up_agents(a.seed + i));
    if (!wrong.empty()) return fail(wrong);

    json rows = json::array();
    for (std::size_t p = 0; p < std::size(bench::agent_policy_names); ++p)
        rows.push_back(row_of(a, kvtl_bench::command_of(program, argc, argv),
                              static_cast<bench::agent_policy>(p), traces));
    if (a.json_file != "-") {
        std::printf("%-16s %10s %10s %14s %10s %8s %9s\n", "policy", "mean job", "longest", "in memory",
                    "prefilled", "again", "reloaded");
        for (const json& r : rows)
            std::printf("%-16s %8.2f s %8.2f s %5.1f of %5.1f %10.0f %8.0f %9.0f\n",
                        r["policy"].get<std::string>().c_str(), r["mean_job_s"].get<double>(),
                        r["longest_job_s"].get<double>(), r["in_memory"].get<double>(),
                        r["calls"].get<double>(), r["tokens_prefilled"].get<double>(),
                        r["tokens_prefilled_again"].get<double>(), r["tokens_reloaded"].get<double>());
    }
    if (a.json_file == "-") std::printf("%s\n", rows.dump(1).c_str());
    if (a.json_file.empty() || a.json_file == "-") return 0;
    std::ofstream out(a.json_file);
    out << rows.dump(1) << '\n';
    return out.flush() ? 0 : fail("--json: cannot write " + a.json_file);
}
