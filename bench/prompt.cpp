// The cost of prompts with a preset, as a multiple of their cost with `full`: attention, and all that the preset does of a
// prompt beside that (grouping, coding, writing).
//
//   kvtl-prompt [OPTIONS] POLICY...
//
// Shape:  llama3.2-1b's heads (32 query heads, 8 KV heads of 64), one thread. Made numbers, as in kvtl-checkpoint.
// Method: rounds of `full` and the policy in turn, each with a cache of its own, of which the second prompt counts. Presets that
//         evict get the prompt in one chunk, and so does the `full` beside them. 512 attended entries, 64 MiB or what the preset
//         needs to keep all.
// Prints: a line per policy: medians of seconds of processor time and of their ratio, and of the wall-clock ratio. --json: rows.
//         Exit status 0, 2 for bad usage.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "command.hpp"
#include "command_line.hpp"
#include "commit.hpp"
#include "made_rows.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

namespace {

using engine::insist;
using kvtl_bench::median;
using json = nlohmann::ordered_json;
constexpr const char* program = "kvtl-prompt";

struct options {
    std::vector<std::string> policies;
    std::size_t tokens = 4096, chunk = 512, rounds = 3;
    std::uint32_t layers = 1;
    std::string path = "prompt.kv", json_file;
};

struct seconds {
    double ran = 0; ///< of the process
    double wall = 0;
};
seconds now() {
    ::timespec ran{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ran);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now().time_since_epoch();
    return {static_cast<double>(ran.tv_sec) + static_cast<double>(ran.tv_nsec) * 1e-9, wall.count()};
}

/// One prompt, in chunks of `chunk` tokens.
seconds read_prompt(engine::kv_cache& cache, const kvtl::shape& model, const options& o, std::size_t chunk) {
    const kvtl::sequence_id seq = insist(cache.begin());
    kvtl_bench::made_rows data(model);
    std::vector<float> out(chunk * kvtl_bench::q_row(model));
    seconds sum;
    for (std::size_t first = 0; first < o.tokens; first += chunk) {
        const std::size_t n = std::min(chunk, o.tokens - first);
        for (std::uint32_t layer = 0; layer < o.layers; ++layer) {
            auto in = data.next(n);
            in.last_chunk = first + n == o.tokens;
            const seconds start = now();
            insist(cache.prefill(seq, layer, in, std::span(out).first(n * kvtl_bench::q_row(model)), 0));
            const seconds end = now();
            sum.ran += end.ran - start.ran, sum.wall += end.wall - start.wall;
        }
    }
    insist(cache.end(seq));
    return sum;
}

/// The second prompt of a cache. The first touch of a page costs time that is no cost of a preset. `full` touches its pages in
/// open(), so only second prompts are comparable.
seconds read_second_prompt(const std::string& policy, const options& o, std::size_t chunk) {
    kvtl::shape model = kvtl_bench::one_billion;
    model.layers = o.layers;
    const auto cache = kvtl_bench::open(policy, model, o.tokens + 64, 1, std::size_t{64} << 20, o.path);
    static_cast<void>(read_prompt(*cache, model, o, chunk));
    return read_prompt(*cache, model, o, chunk);
}

json measure(const std::string& policy, const options& o, const std::string& command) {
    const std::size_t chunk = engine::policy_wants(policy).evicts ? o.tokens : std::min(o.chunk, o.tokens);
    std::vector<double> ran, full, ratio, wall;
    for (std::size_t r = 0; r < o.rounds; ++r) {
        const seconds base = read_second_prompt("full", o, chunk), one = read_second_prompt(policy, o, chunk);
        ran.push_back(one.ran), full.push_back(base.ran);
        ratio.push_back(one.ran / base.ran), wall.push_back(one.wall / base.wall);
    }
    return {{"policy", policy},           {"tokens", o.tokens},         {"chunk", chunk},
            {"layers", o.layers},         {"rounds", o.rounds},         {"cpu_s", median(ran)},
            {"full_cpu_s", median(full)}, {"cpu_ratio", median(ratio)}, {"wall_ratio", median(wall)},
            {"commit", KVTL_COMMIT},      {"command", command}};
}

int measure_all(const options& o, const std::string& command) {
    for (const std::string& policy : o.policies) engine::require_policy(policy, "POLICY");
    engine::require_policy("full", "what is compared with");
    engine::require_writable(o.json_file, "--json");
    json rows = json::array();
    for (const std::string& policy : o.policies) {
        rows.push_back(measure(policy, o, command));
        const json& r = rows.back();
        if (o.json_file == "-") continue;
        std::printf(
            "%-24s %6.3f s, full %6.3f s: %5.2f x (wall clock %5.2f x), %zu tokens in chunks of %zu\n",
            policy.c_str(), r["cpu_s"].get<double>(), r["full_cpu_s"].get<double>(),
            r["cpu_ratio"].get<double>(), r["wall_ratio"].get<double>(), o.tokens,
            r["chunk"].get<std::size_t>());
        std::fflush(stdout);
    }
    if (!o.json_file.empty()) engine::write_output(o.json_file, rows.dump(1));
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        options o;
        CLI::App app("Measures what a prompt costs with presets, beside what it costs with `full`.", program);
        app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
        app.add_option("POLICY", o.policies, "presets to measure")->required();
        const auto number = [&](const char* name, auto& value, const char* what) {
            app.add_option(name, value, what)->capture_default_str()->check(engine::whole_number);
        };
        number("--tokens", o.tokens, "of the prompt");
        number("--chunk", o.chunk, "tokens of a chunk, but for presets that evict");
        number("--layers", o.layers, "of the model");
        number("--rounds", o.rounds, "of which medians are taken");
        app.add_option("--path", o.path, "file of the cache")->capture_default_str();
        app.add_option("--json", o.json_file, "write the rows as JSON; - for standard output");
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        for (const auto& [name, value] : {std::pair<const char*, std::size_t>{"--tokens", o.tokens},
                                          {"--chunk", o.chunk},
                                          {"--layers", o.layers},
                                          {"--rounds", o.rounds}})
            if (value == 0) throw engine::bad_input(std::string(name) + " is 0; valid: a positive number");
        return measure_all(o, kvtl_bench::command_of(program, argc, argv));
    });
}
