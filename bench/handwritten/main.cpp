// kvtl-handwritten: what composition costs. A composed cache and a loop written by hand take turns on the same tokens.
//
//   kvtl-handwritten --shape llama3.2-1b --context 8192 --attend-tokens 512 --memory-mib 96 --steps 200
//
// Exit status: 0, 2 for what can never work, 1 where outputs differ or a run fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "comparison.hpp"
#include "dynakv_loop.hpp"
#include "error.hpp"
#include "program.hpp"
#include "suggestion.hpp"
#include "workload.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>

namespace {

using engine::require;
using json = nlohmann::ordered_json;

constexpr const char* program = "kvtl-handwritten";
constexpr std::array<std::string_view, 2> written = {"dynakv", "kvswap"};

struct arguments {
    bench::comparison_options options;
    std::string shape = "tiny-2k", json_file;
    std::vector<std::string> policies = {"dynakv", "kvswap"};
    std::uint32_t layers = 0;
    bool list_policies = false;
};

void define(CLI::App& app, arguments& a) {
    auto& o = a.options;
    app.add_option("--policies", a.policies, "dynakv, kvswap (a list: a row each)")->delimiter(',');
    app.add_option("--shape", a.shape, "one with heads of 64 numbers: llama3.2-1b, tiny-2k")
        ->capture_default_str();
    app.add_option("--layers", a.layers, "layers, instead of those of --shape")->check(engine::whole_number);
    app.add_option("--context", o.context, "tokens of the prompt")
        ->check(engine::whole_number)
        ->capture_default_str();
    app.add_option("--steps", o.steps, "timed steps, after 8 to warm up")
        ->check(engine::whole_number)
        ->capture_default_str();
    app.add_option("--attend-tokens", o.attend_tokens, "entries each head attends per step")
        ->check(engine::whole_number)
        ->capture_default_str();
    app.add_option("--memory-mib", o.memory_mib, "memory of the whole cache in MiB")->capture_default_str();
    app.add_option("--workload", o.workload, bench::workload_help())->capture_default_str();
    app.add_flag("--list-policies", a.list_policies, "print the policies that a loop is written for");
    app.add_option("--json", a.json_file, "write the rows as JSON; - for standard output");
}

void complete(arguments& a) {
    auto& o = a.options;
    const bench::model_shape* model = bench::find_shape(a.shape);
    require(model != nullptr,
            "--shape: unknown shape '" + a.shape + "'; " + engine::valid_names(a.shape, bench::shape_names));
    o.shape = model->shape, o.rope_base = model->rope_base;
    if (a.layers > 0) o.shape.layers = a.layers;
    if (auto good = kvtl::geometry::from(o.shape); !good) throw engine::bad_input(good.error().message);
    require(o.shape.head_dim == bench::dynakv_loop::dim, "--shape: heads of " + a.shape + " have " +
                                                             std::to_string(o.shape.head_dim) +
                                                             " numbers; the loops are written for 64");
    for (const std::string& p : a.policies)
        require(std::find(written.begin(), written.end(), p) != written.end(),
                "--policies: no loop is written for '" + p + "'; valid: dynakv, kvswap");
    require(o.context >= 1024 && o.context <= 1U << 20, "--context: valid: 1024 to 1048576");
    require(o.attend_tokens >= 1 && o.attend_tokens <= 1U << 20, "--attend-tokens: valid: 1 to 1048576");
    require(o.steps >= 6 && o.steps <= 1U << 20, "--steps: valid: 6 to 1048576");
    require(o.memory_mib > 0 && o.memory_mib <= 1 << 20, "--memory-mib: valid: more than 0, up to 1048576");
    o.scratch = "./" + std::string(program) + "-" + std::to_string(::getpid());
    engine::require_writable(a.json_file, "--json");
}

json pair_of(const std::optional<bench::interval>& i) {
    return i ? json{i->low, i->high} : json(nullptr);
}

json row_of(const arguments& a, const bench::comparison& c) {
    return {{"policy", a.options.policy},
            {"shape", a.shape},
            {"layers", a.options.shape.layers},
            {"context", a.options.context},
            {"attend_tokens", a.options.attend_tokens},
            {"memory_mib", a.options.memory_mib},
            {"steps", c.steps},
            {"equal_steps", c.equal_steps},
            {"composed_ms", c.composed_ms},
            {"composed_ms_ci95", pair_of(c.composed)},
            {"handwritten_ms", c.handwritten_ms},
            {"handwritten_ms_ci95", pair_of(c.handwritten)},
            {"ratio", c.ratio},
            {"ratio_ci95", pair_of(c.of_ratio)},
            {"composed_read_bytes_per_step", c.composed_bytes},
            {"handwritten_read_bytes_per_step", c.handwritten_bytes}};
}

void print(const std::string& policy, const bench::comparison& c) {
    const bench::interval r = c.of_ratio.value_or(bench::interval{});
    std::printf(
        "%-8s composed %8.3f ms  by hand %8.3f ms  ratio %.4f (%.4f to %.4f)  %.0f and %.0f KiB read  "
        "the same bits in %zu of %zu steps\n",
        policy.c_str(), c.composed_ms, c.handwritten_ms, c.ratio, r.low, r.high, c.composed_bytes / 1024,
        c.handwritten_bytes / 1024, c.equal_steps, c.steps);
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        CLI::App app("Composed caches against the same steps written by hand.", program);
        app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
        define(app, a);
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        if (a.list_policies) {
            for (const std::string_view name : written) std::printf("%s\n", std::string(name).c_str());
            return 0;
        }
        complete(a);
        json rows = json::array();
        bool equal = true;
        for (const std::string& policy : a.policies) {
            a.options.policy = policy;
            const bench::comparison c = bench::compare_with_handwritten(a.options);
            equal = equal && c.equal_steps == c.steps;
            rows.push_back(row_of(a, c));
            if (a.json_file != "-") print(policy, c);
        }
        if (!a.json_file.empty()) engine::write_output(a.json_file, rows.dump(1));
        return equal ? 0 : engine::fail(program, 1, "outputs differ");
    });
}
