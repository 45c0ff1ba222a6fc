// kvtl-tune: measures this device and this processor and searches KVSwap's parameters for every batch size
// and context length (tuner.hpp says how).
//
//   kvtl-tune --shape llama3.2-1b --memory-mib 64 --max-context 16384 --batch 1,4 --json kvswap.json
//
// A table, and for every line of it the options that kvtl-run, kvtl-eval and kvtl-bench decode take for that.
// JSON: {"device","io","direct","shape","alpha","delta","attend_tokens","reuse_source","read_us":[...],
// "entries":[{"batch","context","sigma","rank","group_tokens","groups","reuse_slots","memory_bytes":{parts},
// "io_us","model_us","predicted_us","hidden"}]}; times are those of one layer and step.
// Exit status: 0, 2 for what can never work (bad usage, unreadable file, impossible value), 1 for a run that
// fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/unit.hpp>
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "error.hpp"
#include "gguf.hpp"
#include "measure.hpp"
#include "model.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "reuse.hpp"
#include "run_header.hpp"
#include "shapes.hpp"
#include "suggestion.hpp"
#include "tuner.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>

namespace {

using engine::bad_input;
using engine::require;

constexpr const char* program = "kvtl-tune";

struct arguments {
    std::string model;
    std::string shape_name;
    kvtl::shape shape;
    double memory_mib = 0;
    std::string contexts = "16384";
    std::string batches = "1";
    engine::tuning_limits limits;
    double layer_us = 0;
    std::string trace;
    std::string io = "uring";
    std::string path = "./kvtl-tune-" + std::to_string(::getpid()) + ".kv";
    std::string device = "native";
    std::uint64_t file_mib = 256;
    std::string json_file;
};

void define_options(CLI::App& app, arguments& a) {
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    app.add_option("-m,--model", a.model, "GGUF file whose shape is meant");
    app.add_option("--shape", a.shape_name, "one of " + bench::list_shapes());
    app.add_option("--layers", a.shape.layers, "shape by hand");
    app.add_option("--query-heads", a.shape.query_heads);
    app.add_option("--kv-heads", a.shape.kv_heads);
    app.add_option("--head-dim", a.shape.head_dim);
    app.add_option("--memory-mib", a.memory_mib, "memory of the cache at the largest batch");
    app.add_option("--max-context", a.contexts,
                   "context lengths, by commas; one alone: also its half, a quarter, "
                   "... down to 4096")
        ->capture_default_str();
    app.add_option("--batch", a.batches, "batch sizes, by commas; the largest gets all of the memory")
        ->capture_default_str();
    app.add_option("--attend-tokens", a.limits.attend_tokens, "M x G")->capture_default_str();
    app.add_option("--sigma-max", a.limits.largest_sigma, "largest compression of the index")
        ->capture_default_str();
    app.add_option("--group-max", a.limits.largest_group, "largest group")->capture_default_str();
    app.add_option("--alpha", a.limits.alpha, "share of the reads that need not be hidden")
        ->capture_default_str();
    app.add_option("--delta", a.limits.delta, "reuse slots added at a time")->capture_default_str();
    app.add_option("--layer-us", a.layer_us, "compute of a layer besides attention, per sequence")
        ->capture_default_str();
    app.add_option("--trace", a.trace, "recorded trace that reuse is measured on (kvtl-run --record-trace)");
    app.add_option("--io", a.io, "uring, posix or memory")->capture_default_str();
    app.add_option("--path", a.path, "file to measure on (default ./kvtl-tune-PID.kv)");
    app.add_option("--device", a.device, "native, or a profile that the device is slowed down to")
        ->capture_default_str();
    app.add_option("--file-mib", a.file_mib, "size of that file")->capture_default_str();
    app.add_option("--json", a.json_file, "write the result as JSON; - for standard output");
    for (const char* name : {"--layers", "--query-heads", "--kv-heads", "--head-dim", "--attend-tokens",
                             "--sigma-max", "--group-max", "--delta", "--file-mib"})
        app.get_option(name)->check(engine::whole_number);
    for (auto* option : app.get_options()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

/// Whole numbers between commas, increasing, each within [1, most].
std::vector<std::uint64_t> numbers(const std::string& text, const char* option, std::uint64_t most) {
    std::vector<std::uint64_t> all;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, ',');) {
        const bool whole = engine::whole_number(part).empty() && part.size() <= 12;
        const std::uint64_t n = whole ? std::stoull(part) : 0;
        require(n >= 1 && n <= most, std::string(option) + ": '" + part +
                                         "'; valid: whole numbers from 1 to " + std::to_string(most));
        all.push_back(n);
    }
    require(!all.empty(), std::string(option) + ": no number given");
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

kvtl::shape shape_of(const arguments& a) {
    const bool by_hand = a.shape != kvtl::shape{};
    const int ways = (a.model.empty() ? 0 : 1) + (a.shape_name.empty() ? 0 : 1) + (by_hand ? 1 : 0);
    require(ways == 1,
            "no single shape: give one of -m FILE, --shape NAME, or --layers, --query-heads, --kv-heads "
            "and --head-dim");
    if (!a.model.empty()) {
        const engine::gguf_file file(a.model);
        return engine::model(file).hyper().shape;
    }
    if (by_hand) {
        const auto g = kvtl::geometry::from(a.shape);
        if (!g) throw bad_input(g.error().message);
        return a.shape;
    }
    const auto* known = bench::find_shape(a.shape_name);
    require(known != nullptr, "--shape: unknown shape '" + a.shape_name + "'; " +
                                  engine::valid_names(a.shape_name, bench::shape_names));
    return known->shape;
}

void check(const arguments& a) {
    const auto within = [](const char* name, double value, double least, double most) {
        std::ostringstream text;
        text << name << " is " << value << "; valid: " << least << " to " << most;
        require(value >= least && value <= most, text.str());
    };
    require(a.memory_mib > 0 && a.memory_mib <= 1 << 24, "--memory-mib: valid: more than 0, up to 16777216");
    within("--attend-tokens", a.limits.attend_tokens, 1, 65536);
    within("--sigma-max", a.limits.largest_sigma, 1, 1024);
    within("--group-max", a.limits.largest_group, 1, 256);
    within("--alpha", a.limits.alpha, 0, 1);
    within("--delta", a.limits.delta, 1, 65536);
    within("--layer-us", a.layer_us, 0, 1e9);
    within("--file-mib", static_cast<double>(a.file_mib), 16, 1 << 20);
    engine::require_io(a.io);
    require(!a.path.empty() || a.io == "memory", "--path: the path is empty");
    engine::require_device(a.device);
    engine::require_writable(a.json_file, "--json");
}

/// Share of the chosen groups that C slots hold, by C / M. Measured with reuse_rates() on a trace of tiny-2k
/// over the project's prose (1500 tokens of prompt, 250 decoded, M x G = 96, G = 4); the rates hardly depend
/// on G or M x G.
const std::vector<std::pair<double, double>> usual_reuse = {{0, 0},      {0.25, .211}, {0.5, .332}, {1, .548},
                                                            {1.5, .669}, {2, .731},    {3, .801},   {4, .837},
                                                            {6, .886},   {8, .913}};

/// A table by C / M, constant behind its last place.
auto reuse_by_share(std::vector<std::pair<double, double>> table) {
    const double last = table.back().first;
    return [p = engine::piecewise(std::move(table)), last](std::uint32_t, std::uint32_t groups,
                                                           std::uint32_t slots) {
        return p.at(std::min(last, static_cast<double>(slots) / groups));
    };
}

std::vector<std::pair<double, double>> reuse_of_trace(const arguments& a) {
    kvtl::trace_reader trace = engine::insist(kvtl::trace_reader::open(a.trace));
    constexpr std::uint32_t group = 4;
    const std::uint32_t groups = (a.limits.attend_tokens + group - 1) / group;
    std::vector<std::uint32_t> slots;
    for (const auto& [share, rate] : usual_reuse)
        slots.push_back(static_cast<std::uint32_t>(std::lround(share * groups)));
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    const auto rates = engine::reuse_rates(trace, group, a.limits.attend_tokens, slots);
    std::vector<std::pair<double, double>> table;
    for (std::size_t i = 0; i < slots.size(); ++i)
        table.emplace_back(static_cast<double>(slots[i]) / groups, rates[i]);
    return table;
}

/// Reads of G tokens' keys and values, `n` at once: measured at powers of two of both, linear between.
struct read_table {
    std::map<std::uint32_t, engine::piecewise> by_group;
    nlohmann::json rows = nlohmann::json::array();

    [[nodiscard]] double us(std::uint32_t group, double reads) const {
        std::vector<std::pair<double, double>> at;
        for (const auto& [g, p] : by_group) at.emplace_back(g, p.at(reads));
        return std::max(0.0, engine::piecewise(at).at(group));
    }
};

read_table measure_reads(const arguments& a, const kvtl::shape& shape, std::uint32_t batch,
                         nlohmann::json& facts) {
    const std::uint64_t token_bytes = 2ULL * shape.kv_heads * shape.head_dim * a.limits.element_bytes;
    const auto reads_of = [&](std::uint32_t g) { return (a.limits.attend_tokens + g - 1) / g * batch; };
    std::vector<std::uint32_t> groups;
    for (std::uint32_t g = 1; g < a.limits.largest_group; g *= 2) groups.push_back(g);
    groups.push_back(a.limits.largest_group);

    engine::read_options options;
    options.io = a.io;
    options.path = a.path;
    options.file_bytes = a.file_mib << 20;
    options.device = *kvtl::find_device(a.device);
    options.most_reads = reads_of(1);
    for (const std::uint32_t g : groups)
        options.batch_bytes = std::max(options.batch_bytes, reads_of(g) * (g * token_bytes + 4096));
    require(a.limits.largest_group * token_bytes <= options.file_bytes / 16,
            "--file-mib: a group of " + std::to_string(a.limits.largest_group * token_bytes) +
                " bytes is too large to read 16 of it");

    engine::progress_bar bar("reads", groups.size());
    engine::read_meter meter(options, program);
    facts = {{"io", meter.io()}, {"direct", meter.device_info().direct}};
    read_table table;
    for (const std::uint32_t g : groups) {
        std::vector<std::pair<double, double>> points = {{0, 0}};
        for (std::uint32_t n = 1;; n = std::min(2 * n, reads_of(g))) {
            const double us = meter.read_us(g * token_bytes, n, n > 1024 ? 3 : 7);
            points.emplace_back(n, us);
            table.rows.push_back({{"group_tokens", g}, {"bytes", g * token_bytes}, {"reads", n}, {"us", us}});
            if (n == reads_of(g)) break;
        }
        table.by_group[g] = engine::piecewise(points);
        bar.update(table.by_group.size());
    }
    return table;
}

nlohmann::json to_json(const engine::tuned_entry& e) {
    const auto& m = e.memory;
    return {{"batch", e.batch},
            {"context", e.context},
            {"sigma", e.sigma},
            {"rank", e.rank},
            {"group_tokens", e.group_tokens},
            {"groups", e.groups},
            {"reuse_slots", e.reuse_slots},
            {"memory_bytes",
             {{"index", m.index},
              {"adapter", m.adapter},
              {"reuse", m.reuse},
              {"transit", m.transit},
              {"rolling", m.rolling},
              {"tables", m.tables},
              {"total", m.total()}}},
            {"io_us", e.io_us},
            {"model_us", e.model_us},
            {"predicted_us", e.predicted_us},
            {"hidden", e.hidden}};
}

void print_table(std::FILE* out, const std::vector<engine::tuned_entry>& entries) {
    std::fprintf(out, "%5s %8s %6s %5s %4s %5s %5s %9s %9s %9s\n", "batch", "context", "sigma", "rank", "G",
                 "M", "C", "MiB", "us/layer", "reads");
    for (const engine::tuned_entry& e : entries)
        std::fprintf(out, "%5u %8llu %6u %5u %4u %5u %5u %9.2f %9.0f %9s\n", e.batch,
                     static_cast<unsigned long long>(e.context), e.sigma, e.rank, e.group_tokens, e.groups,
                     e.reuse_slots, static_cast<double>(e.memory.total()) / (1 << 20), e.predicted_us,
                     e.hidden ? "hidden" : "wait");
    std::fprintf(out, "sigma: compression of the index, to rank directions. G: tokens of a group. M: groups "
                      "read per step. C: "
                      "groups that\nare kept for later steps, per sequence and layer; the cache makes of its "
                      "memory as many "
                      "as fit.\n");
}

/// What other programs take for a line of the table. Budgets there count the rolling buffer, which is a group.
void print_options(std::FILE* out, const arguments& a, const std::vector<engine::tuned_entry>& entries) {
    for (const engine::tuned_entry& e : entries) {
        const std::uint32_t attended = (e.groups + 1) * e.group_tokens;
        const double share = a.memory_mib * e.batch / a.limits.largest_batch;
        std::fprintf(out,
                     "\n# batch %u, context %llu, with bases of kvtl-calibrate --rank %u\n"
                     "--attend-tokens %u --memory-mib %g --set kvswap.clusterer.group_tokens=%u "
                     "--set kvswap.cache.window_tokens=%u --set kvswap.index.rank=%u\n",
                     e.batch, static_cast<unsigned long long>(e.context), e.rank, attended, share,
                     e.group_tokens, e.group_tokens, e.rank);
    }
}

void run(arguments a) {
    check(a);
    const kvtl::shape shape = shape_of(a);
    const auto batches = numbers(a.batches, "--batch", 1024);
    auto contexts = numbers(a.contexts, "--max-context", 1U << 24);
    if (contexts.size() == 1)
        for (std::uint64_t c = contexts[0] / 2; c >= 4096; c /= 2) contexts.insert(contexts.begin(), c);
    a.limits.memory_bytes = static_cast<std::uint64_t>(a.memory_mib * (1 << 20));
    a.limits.largest_batch = static_cast<std::uint32_t>(batches.back());
    a.limits.record_bytes = sizeof(kvtl::unit_record) + sizeof(kvtl::unit_residency);

    engine::delays delays;
    delays.reuse = reuse_by_share(a.trace.empty() ? usual_reuse : reuse_of_trace(a));
    delays.rest = [&](std::uint32_t batch) { return a.layer_us * batch; };
    // Whatever is wrong with the memory is found before anything is measured.
    delays.read = [](std::uint32_t, double) { return 0.0; };
    delays.attend = [](std::uint32_t) { return 0.0; };
    delays.score = [](std::uint64_t, std::uint32_t) { return 0.0; };
    for (const std::uint64_t b : batches)
        for (const std::uint64_t c : contexts)
            static_cast<void>(engine::tune(shape, a.limits, delays, static_cast<std::uint32_t>(b), c));

    nlohmann::json facts;
    const read_table reads = measure_reads(a, shape, a.limits.largest_batch, facts);
    engine::print_header(
        program, {.model = a.model.empty() ? a.shape_name : a.model,
                  .shape = shape,
                  .policies = {"kvswap"},
                  .memory_mib = {a.memory_mib},
                  .device = a.device + " device by " +
                            engine::device_words(facts["io"].get<std::string>(), facts["direct"].get<bool>()),
                  .threads = 1});
    delays.read = [&](std::uint32_t group, double n) { return reads.us(group, n); };
    const double attend = engine::attend_us(shape, a.limits.attend_tokens);
    delays.attend = [=](std::uint32_t) { return attend; };
    // Scoring streams the index: its time is taken to grow with S, and measured by rank.
    const std::uint64_t probe = std::min<std::uint64_t>(contexts.back(), 8192);
    const std::uint32_t width = shape.kv_heads * shape.head_dim;
    std::map<std::uint32_t, double> by_rank; // one measurement per rank
    for (std::uint32_t sigma = 1; sigma <= a.limits.largest_sigma && sigma <= width; sigma *= 2)
        by_rank[std::max(1U, width / sigma)] = 0;
    for (auto& [rank, us] : by_rank) us = engine::score_us(shape, probe, rank);
    const engine::piecewise score(std::vector<std::pair<double, double>>(by_rank.begin(), by_rank.end()));
    delays.score = [&](std::uint64_t context, std::uint32_t rank) {
        return std::max(0.0, score.at(rank)) * static_cast<double>(context) / static_cast<double>(probe);
    };

    nlohmann::json out = {{"device", a.device},
                          {"io", facts["io"]},
                          {"direct", facts["direct"]},
                          {"shape",
                           {{"layers", shape.layers},
                            {"query_heads", shape.query_heads},
                            {"kv_heads", shape.kv_heads},
                            {"head_dim", shape.head_dim}}},
                          {"alpha", a.limits.alpha},
                          {"delta", a.limits.delta},
                          {"attend_tokens", a.limits.attend_tokens},
                          {"memory_bytes", a.limits.memory_bytes},
                          {"reuse_source", a.trace.empty() ? "tiny-2k" : a.trace},
                          {"attend_us", attend},
                          {"read_us", reads.rows},
                          {"entries", nlohmann::json::array()}};
    std::vector<engine::tuned_entry> entries;
    for (const std::uint64_t b : batches)
        for (const std::uint64_t c : contexts) {
            const auto e = engine::tune(shape, a.limits, delays, static_cast<std::uint32_t>(b), c);
            entries.push_back(e);
            out["entries"].push_back(to_json(e));
        }
    std::FILE* const table = a.json_file == "-" ? stderr : stdout;
    print_table(table, entries);
    print_options(table, a, entries);
    if (!a.json_file.empty()) engine::write_output(a.json_file, out.dump());
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        CLI::App app("Measures this machine and searches KVSwap's parameters for it.", program);
        define_options(app, a);
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        run(std::move(a));
        return 0;
    });
}
