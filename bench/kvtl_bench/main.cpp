// kvtl-bench: what a cache policy costs on a device.
//
//   kvtl-bench decode --shape llama3.2-1b --context 16384 --policies dynakv,dynakv_lru --device native,emmc
//   kvtl-bench io --path ./io.bin --block 4096 --depth 32 --io uring
//   kvtl-bench reuse --shape llama3.2-1b --context 4096 --memory-mib 32
//   kvtl-bench workload --trace run.trc
//   kvtl-bench compare before.json after.json
//
// Exit status: 0, 2 for what can never work (bad usage, unreadable file, too large for this machine), 1 for a
// run that fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "compare.hpp"
#include "csv.hpp"
#include "decode.hpp"
#include "decode_page.hpp"
#include "error.hpp"
#include "mapped_file.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "random_reads.hpp"
#include "reuse.hpp"
#include "run_header.hpp"
#include "shapes.hpp"
#include "suggestion.hpp"
#include "tuned_file.hpp"
#include "workload.hpp"
#include "workload_report.hpp"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

namespace {

using engine::bad_input;
using engine::require;
using json = nlohmann::ordered_json;

constexpr const char* program = "kvtl-bench";

struct decode_arguments {
    bench::decode_options options;
    std::vector<std::uint32_t> sizes = {0, 0, 0, 0}; ///< L, H, HQ, D given one by one
    std::vector<std::string> settings;
    std::string tuned;
    std::string json_file, csv_file, html_file;
    bool least_memory = false;
};

struct io_arguments {
    bench::random_reader::config file;
    std::uint64_t size_mib = 256;
    std::uint32_t block = 4096;
    unsigned depth = 32;
    std::uint64_t reads = 20'000;
    std::string device = "native";
    std::string json_file;
};

struct workload_arguments {
    bench::report_options options;
    std::string json_file;
};

struct compare_arguments {
    std::string first, second;
    std::string json_file;
};

void take_last(CLI::App& app) {
    for (auto* option : app.get_options())
        if (option->get_items_expected_max() == 1 && option->get_name() != "--set")
            option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

/// What the data are like: decode and reuse.
void define_model(CLI::App* d, decode_arguments& a) {
    auto& o = a.options;
    d->add_option("--shape", o.shape_name, "one of " + bench::list_shapes())->capture_default_str();
    d->add_option("--layers", a.sizes[0], "layers, instead of those of --shape")->check(engine::whole_number);
    d->add_option("--kv-heads", a.sizes[1], "KV heads, likewise")->check(engine::whole_number);
    d->add_option("--query-heads", a.sizes[2], "query heads, likewise")->check(engine::whole_number);
    d->add_option("--head-dim", a.sizes[3], "elements of a head, likewise")->check(engine::whole_number);
    d->add_option("--context", o.context, "tokens of the prompt")
        ->check(engine::whole_number)
        ->capture_default_str();
    d->add_option("--workload", o.workload, bench::workload_help())->capture_default_str();
    d->add_flag(
        "--rope-neighbours", o.rope_neighbours,
        "keys of a trace that does not say so were rotated in pairs (0, 1), (2, 3), ..., as models of "
        "arch llama do");
    d->add_option("--attend-tokens", o.attend_tokens,
                  "entries each head attends per step (a list: a row each)")
        ->delimiter(',')
        ->check(engine::whole_number);
    d->add_option(
         "--keep-tokens", o.keep_tokens,
         "entries per head that survive where policies evict (a list: a row each; default: as many as are "
         "attended)")
        ->delimiter(',')
        ->check(engine::whole_number);
    d->add_option("--memory-mib", o.memory_mib, "memory of the whole cache in MiB (a list: a row each)")
        ->delimiter(',');
    d->add_option("--io", o.io, "uring, posix or memory")->capture_default_str();
    d->add_option("--kv-path", o.kv_path,
                  "files of the caches begin with this (default ./kvtl-bench-PID.kv)");
    d->add_flag("!--no-fit", o.fit,
                "keep the size knobs of the papers, also when an index takes over half of the memory");
    d->add_flag("!--no-prompt-queries", o.prompt_queries,
                "prompts come without queries: layouts do not learn what is retrieved together, selectors "
                "that calibrate on them refuse");
    d->add_option("--set", a.settings, "POLICY.SLOT.FIELD=VALUE: change a policy's config (repeatable)")
        ->allow_extra_args(false);
    d->add_option("--json", a.json_file, "write the rows as JSON; - for standard output");
}

CLI::App* define_decode(CLI::App& app, decode_arguments& a) {
    auto* d = app.add_subcommand("decode", "the KV path on model-shaped data, without weights");
    auto& o = a.options;
    define_model(d, a);
    d->add_option("--size-candidates", o.size_candidates,
                  "sizes of an index that are tried before one is taken, from the largest that fits on: the "
                  "fastest that attends as much; 1: the largest, as for policies that --set or --tuned is "
                  "given for (with --no-fit there is nothing to take)")
        ->check(CLI::Range(1U, 16U))
        ->capture_default_str();
    d->add_option("--batch", o.batch, "sequences")->check(engine::whole_number)->capture_default_str();
    d->add_option("--steps", o.steps, "measured steps, after 8 to warm up")
        ->check(engine::whole_number)
        ->capture_default_str();
    d->add_option("--max-seconds", o.max_seconds, "of measured steps per row; at least 3 steps are made")
        ->capture_default_str();
    d->add_option(
         "--policies", o.policies,
         "presets, separated by commas; all for every one; mapped_file for full attention over a file "
         "that the system pages in")
        ->delimiter(',');
    d->add_option("--device", o.devices, "native, nvme, ufs40, ufs31, emmc (a list: a row each)")
        ->delimiter(',');
    d->add_option(
         "--compute-us-per-layer", o.compute_us_per_layer,
         "spin this long per layer, for the model's other work (a list: a row each, behind one prompt)")
        ->delimiter(',')
        ->capture_default_str();
    d->add_flag(
        "!--no-announce", o.announce,
        "the engine never says that it is about to compute a layer's query: layers that have memory in turn "
        "are read in behind the step of the one before");
    d->add_option("--threads", o.threads, "threads; without --shards each has a shard of every cache")
        ->check(engine::whole_number)
        ->capture_default_str();
    d->add_option(
         "--shards", o.shards,
         "shards of every cache, taken by whichever thread is free; 0: one for each thread. Threads of "
         "which there are more only share the clustering of a prompt")
        ->check(engine::whole_number);
    d->add_flag(
        "--least-memory", a.least_memory,
        "print the smallest memory that each policy can be opened with (its sizes as they are, not made "
        "to fit), and end");
    d->add_option("--tuned", a.tuned, "what kvtl-tune --json wrote: settings of kvswap; --set changes them");
    d->add_option("--csv", a.csv_file, "write the rows as comma-separated values; - for standard output");
    d->add_option("--html", a.html_file, "write a page that shows where the steps spend their time");
    d->add_flag("--interleave", o.interleave, "policies take turns step by step, on the same data");
    d->add_flag("--keep-file", o.keep_file,
                "budgets of --memory-mib share a prompt and its file: the largest comes first, then the open "
                "cache gives memory back (with --no-fit)");
    d->add_option("--calibration", o.calibration,
                  "bases for policies that need some (default: fitted to another seed)");
    d->add_option("--gates", o.gates, "gate weights for policies that need some (default: random)");
    take_last(*d);
    return d;
}

CLI::App* define_reuse(CLI::App& app, decode_arguments& a) {
    auto* r = app.add_subcommand("reuse", "which units DynaKV asks for again, what replacement policies make "
                                          "of that, and what other placements would read and move");
    a.options.io = "memory"; // nothing here depends on the device
    define_model(r, a);
    r->add_option("--steps", a.options.steps, "decoded tokens")
        ->check(engine::whole_number)
        ->capture_default_str();
    take_last(*r);
    return r;
}

CLI::App* define_io(CLI::App& app, io_arguments& a) {
    auto* i = app.add_subcommand("io", "random reads of a file, like an fio job");
    a.file.path = "./kvtl-bench-" + std::to_string(::getpid()) + ".io";
    i->add_option("--path", a.file.path, "the file; made, written, and removed at the end");
    i->add_flag("--keep", a.file.keep_file, "leave the file there, for fio to read the same one");
    i->add_flag("--reuse", a.file.written, "read the file that --keep left there, without writing it again");
    i->add_option("--seed", a.file.seed, "of the places that are read")
        ->check(engine::whole_number)
        ->capture_default_str();
    i->add_option("--size", a.size_mib, "of the file, in MiB")
        ->check(engine::whole_number)
        ->capture_default_str();
    i->add_option("--block", a.block, "bytes of a read")->check(engine::whole_number)->capture_default_str();
    i->add_option("--depth", a.depth, "reads in flight")->check(engine::whole_number)->capture_default_str();
    i->add_option("--reads", a.reads, "reads in all")->check(engine::whole_number)->capture_default_str();
    i->add_option("--io", a.file.io, "uring, posix or memory")->capture_default_str();
    i->add_option("--device", a.device, "native, nvme, ufs40, ufs31, emmc")->capture_default_str();
    i->add_option("--json", a.json_file, "write the result as JSON; - for standard output");
    take_last(*i);
    return i;
}

CLI::App* define_workload(CLI::App& app, workload_arguments& a) {
    auto* w = app.add_subcommand("workload", "how close the generated workload is to a recorded trace");
    w->add_option("--trace", a.options.trace,
                  "a trace of kvtl-run --record-trace; without it only the generator");
    w->add_option("--seed", a.options.seed, "of the generator")
        ->check(engine::whole_number)
        ->capture_default_str();
    w->add_option("--tokens", a.options.tokens,
                  "look at the first N tokens (default: all of the trace, or 2048)")
        ->check(engine::whole_number);
    w->add_option("--json", a.json_file, "write both as JSON; - for standard output");
    take_last(*w);
    return w;
}

CLI::App* define_compare(CLI::App& app, compare_arguments& a) {
    auto* c = app.add_subcommand("compare", "rows of two files of decode or of kvtl-eval, as ratios");
    c->add_option("A.json", a.first, "what --json wrote first");
    c->add_option("B.json", a.second, "what it wrote then");
    c->add_option("--json", a.json_file, "write the comparison as JSON; - for standard output");
    take_last(*c);
    return c;
}

void complete(decode_arguments& a) {
    auto& o = a.options;
    const bench::model_shape* model = bench::find_shape(o.shape_name);
    require(model != nullptr, "--shape: unknown shape '" + o.shape_name + "'; " +
                                  engine::valid_names(o.shape_name, bench::shape_names));
    o.shape = model->shape;
    o.rope_base = model->rope_base;
    std::uint32_t* const fields[] = {&o.shape.layers, &o.shape.kv_heads, &o.shape.query_heads,
                                     &o.shape.head_dim};
    for (std::size_t i = 0; i < 4; ++i)
        if (a.sizes[i] != 0) *fields[i] = a.sizes[i], o.shape_name = "custom";
    if (o.shape_name == "custom")
        o.shape_name = std::to_string(o.shape.layers) + "x" + std::to_string(o.shape.kv_heads) + "x" +
                       std::to_string(o.shape.query_heads) + "x" + std::to_string(o.shape.head_dim);
    if (auto good = kvtl::geometry::from(o.shape); !good) throw bad_input(good.error().message);
    require(o.shape.head_dim % 2 == 0, "--head-dim: valid: an even number, for RoPE");
    require(o.context >= 1 && o.context <= 1U << 24, "--context: valid: 1 to 16777216");
    require(o.batch >= 1 && o.batch <= 4096, "--batch: valid: 1 to 4096");
    require(o.threads >= 1 && o.threads <= o.shape.kv_heads,
            "--threads: valid: 1 to the model's KV heads, " + std::to_string(o.shape.kv_heads));
    require(o.shards <= o.shape.kv_heads,
            "--shards: valid: 0 (one for each thread), or 1 to the model's KV heads, " +
                std::to_string(o.shape.kv_heads));
    require(o.steps >= 3 && o.steps <= 1U << 20, "--steps: valid: 3 to 1048576");
    require(o.max_seconds > 0 && o.max_seconds <= 1e6, "--max-seconds: valid: more than 0, up to 1000000");
    for (const double us : o.compute_us_per_layer)
        require(us >= 0 && us <= 1e6, "--compute-us-per-layer: valid: 0 to 1000000");
    for (const auto n : o.attend_tokens) require(n > 0, "--attend-tokens: valid: 1 or more");
    for (const auto n : o.keep_tokens)
        require(n > 0 || o.keep_tokens.size() == 1, "--keep-tokens: valid: 1 or more");
    for (const auto m : o.memory_mib)
        require(m > 0 && m <= 1 << 24, "--memory-mib: valid: more than 0, up to 16777216");
    require(!o.keep_file || !o.fit,
            "--keep-file: valid: with --no-fit, as sizes that fit differ with the memory");
    if (o.policies == std::vector<std::string>{"all"}) {
        o.policies.clear();
        for (const auto name : engine::policy_names()) o.policies.emplace_back(name);
    }
    for (const auto& p : o.policies)
        if (p != bench::mapped_file_name) engine::require_policy(p, "--policies");
    for (const auto& d : o.devices) engine::require_device(d);
    engine::require_io(o.io);
    o.settings = engine::tuned_settings(a.tuned, o.policies, o.shape, o.batch, o.context + o.steps);
    for (const auto& text : a.settings) o.settings.push_back(engine::parse_setting(text));
    engine::require_running(o.settings, o.policies);
    if (o.kv_path.empty()) o.kv_path = "./kvtl-bench-" + std::to_string(::getpid()) + ".kv";
    engine::require_writable(a.json_file, "--json");
    engine::require_writable(a.csv_file, "--csv");
    require(a.csv_file != "-" || a.json_file != "-", "--csv: - is standard output, which --json has already");
    require(a.csv_file.empty() || !a.least_memory, "--csv: valid: without --least-memory");
    engine::require_writable(a.html_file, "--html");
    require(a.html_file != "-", "--html: valid: a file");
    require(a.html_file.empty() || !a.least_memory, "--html: valid: without --least-memory");
}

double number(const json& value) {
    return value.is_number() ? value.get<double>() : 0;
}

void print_row(const json& r) {
    if (!r["error"].is_null()) { // the first line of the reason, and the last, which says what helps
        const auto why = r["error"].get<std::string>();
        const std::size_t first = why.find('\n'), last = why.rfind('\n');
        std::printf("%-24s %-7s  %s\n", r["policy"].get<std::string>().c_str(),
                    r["device"].get<std::string>().c_str(), why.substr(0, first).c_str());
        if (last != std::string::npos) std::printf("%-24s %s\n", "", why.substr(last + 1).c_str());
        return;
    }
    char hit[16] = "   -"; // nothing is chosen
    if (r["hit_rate"].is_number()) std::snprintf(hit, sizeof hit, "%.2f", number(r["hit_rate"]));
    std::printf(
        "%-24s %-7s%s %9.3f ms %9.1f tok/s %9.1f KiB in %7.1f reads/step  hit %s  %7.1f MiB  %7.1f ms CPU\n",
        r["policy"].get<std::string>().c_str(), r["device"].get<std::string>().c_str(),
        r["simulated"].get<bool>() ? "*" : " ", number(r["step_ms_median"]), number(r["tokens_per_s"]),
        number(r["read_bytes_per_step"]) / 1024, number(r["reads_per_step"]), hit,
        number(r["resident_bytes_peak"]) / (1 << 20), number(r["cpu_s_per_step"]) * 1e3);
    if (const double compute = number(r["config"]["compute_us_per_layer"]); compute > 0)
        std::printf("%-24s %.0f us of compute per layer\n", "", compute);
    engine::memory_use memory;
    for (const auto& [part, bytes] : r["bytes_by_part"].items())
        memory.parts.emplace_back(part, bytes.get<std::uint64_t>());
    memory.raw_cache = r["raw_cache_bytes"].get<std::uint64_t>();
    std::printf("%-24s memory: %s\n", "", engine::memory_line(memory).c_str());
    if (const json& one = r["probe_before"], &all = r["probe_before_threads"]; !all.is_null())
        std::printf("%-24s device: all threads read %.2f x what one reads (4 KiB), %.2f x (128 KiB)\n", "",
                    number(all["iops_4k"]) / number(one["iops_4k"]),
                    number(all["mb_per_s_128k"]) / number(one["mb_per_s_128k"]));
    std::fflush(stdout);
}

void print_header(const bench::decode_options& o) {
    std::string devices;
    for (const std::string& name : o.devices) devices += (devices.empty() ? "" : " and ") + name;
    engine::print_header(program, {.model = o.shape_name,
                                   .shape = o.shape,
                                   .policies = o.policies,
                                   .memory_mib = o.memory_mib,
                                   .device = devices + " device by " + o.io,
                                   .threads = o.threads});
}

void run_reuse(decode_arguments& a) {
    complete(a);
    const bool table = a.json_file != "-";
    const json rows = bench::run_reuse(a.options, [&](const json& row) {
        if (table) bench::print_reuse(row);
    });
    if (!a.json_file.empty()) engine::write_output(a.json_file, rows.dump(1));
}

void run(decode_arguments& a) {
    complete(a);
    if (a.least_memory) {
        engine::print_least(bench::least_memory(a.options), a.json_file);
        return;
    }
    const bool table = a.json_file != "-" && a.csv_file != "-";
    std::set<std::string> noted;
    const json rows = bench::run_decode(
        a.options,
        [&](const json& row) {
            if (table) print_row(row);
            if (const std::string policy = row.at("policy"); noted.insert(policy).second)
                engine::note_products(program, policy, row.value("products", ""));
        },
        [&] { print_header(a.options); });
    if (!a.json_file.empty()) engine::write_output(a.json_file, rows.dump(1));
    if (!a.csv_file.empty()) engine::write_output(a.csv_file, engine::to_csv(rows.dump()));
    if (!a.html_file.empty()) engine::write_output(a.html_file, bench::decode_page(rows));
    bench::require_finished(rows);
}

void run(io_arguments& a) {
    engine::require_io(a.file.io);
    engine::require_device(a.device);
    require(a.block >= 4096 && a.block % 4096 == 0 && a.block <= 1U << 26,
            "--block: valid: multiples of 4096 up to 67108864");
    require(a.depth >= 1 && a.depth <= 1024, "--depth: valid: 1 to 1024");
    require(std::uint64_t{a.block} * a.depth <= std::uint64_t{1} << 30,
            "--block x --depth: valid: up to 1 GiB");
    require(a.reads >= 1 && a.reads <= std::uint64_t{1} << 40, "--reads: valid: 1 or more");
    require(a.size_mib >= 1 && a.size_mib <= 1U << 24, "--size: valid: 1 to 16777216");
    a.file.size = a.size_mib << 20;
    require(a.file.size >= a.block, "--size: the file is smaller than a block");
    engine::require_writable(a.json_file, "--json");
    const bool memory = a.file.io == "memory";
    const double room =
        memory ? bench::available_memory_bytes() : bench::free_disk_bytes(a.file.path, "--path");
    require(!a.file.written || !memory, "--reuse: valid: with --io uring or posix");
    require(a.file.written || static_cast<double>(a.file.size) <= 0.8 * room,
            std::string("--size: more than 80 % of the free ") + (memory ? "memory" : "disk"));
    a.file.max_depth = a.depth;
    a.file.max_block = a.block;
    const auto limit = std::make_shared<kvtl::throttle>();
    a.file.limit = limit;

    engine::progress_bar writing("file", a.file.size);
    bench::random_reader reader(a.file, [&](std::uint64_t done) { writing.update(done); });
    writing.clear();
    limit->set(*kvtl::find_device(a.device));
    engine::progress_bar reading("reads", a.reads);
    const auto s = reader.run(a.block, a.depth, a.reads, [&](std::uint64_t done) { reading.update(done); });
    reading.clear();
    const kvtl::io_device_info facts = reader.device_info();
    const json result = {{"io", reader.io()},
                         {"direct", facts.direct},
                         {"registered_file", facts.registered_file},
                         {"registered_arena", facts.registered_arena},
                         {"device", a.device},
                         {"size", a.file.size},
                         {"block", a.block},
                         {"depth", a.depth},
                         {"reads", a.reads},
                         {"mb_per_s", s.mb_per_s},
                         {"iops", s.iops},
                         {"cpu_us_per_io", s.cpu_us_per_io}};
    if (a.json_file != "-")
        std::printf("%s%s: %u bytes x %u in flight: %.1f MB/s, %.0f IOPS, %.2f us of CPU per read\n",
                    reader.io().c_str(), facts.direct ? " (direct)" : "", a.block, a.depth, s.mb_per_s,
                    s.iops, s.cpu_us_per_io);
    if (!a.json_file.empty()) engine::write_output(a.json_file, result.dump());
}

void run(workload_arguments& a) {
    engine::require_writable(a.json_file, "--json");
    const json result = bench::report_workload(a.options);
    if (a.json_file != "-") bench::print_report(result);
    if (!a.json_file.empty()) engine::write_output(a.json_file, result.dump(1));
}

void run(const compare_arguments& a) {
    require(!a.first.empty() && !a.second.empty(),
            "compare: two files are needed: kvtl-bench compare A.json B.json");
    engine::require_writable(a.json_file, "--json");
    const json result = bench::compare_rows(bench::read_rows(a.first), bench::read_rows(a.second));
    if (a.json_file != "-") bench::print_comparison(result);
    if (!a.json_file.empty()) engine::write_output(a.json_file, result.dump(1));
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        decode_arguments decode, reuse;
        io_arguments io;
        workload_arguments workload;
        compare_arguments compare;
        bool list_policies = false;
        CLI::App app("Measures kvtl's cache policies and storage backends.", program);
        app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
        app.add_flag("--list-policies", list_policies, "print the presets that are built in");
        app.require_subcommand(0, 1);
        const auto* d = define_decode(app, decode);
        const auto* r = define_reuse(app, reuse);
        const auto* i = define_io(app, io);
        const auto* w = define_workload(app, workload);
        const auto* c = define_compare(app, compare);
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        if (list_policies)
            engine::print_policies();
        else if (d->parsed())
            run(decode);
        else if (r->parsed())
            run_reuse(reuse);
        else if (i->parsed())
            run(io);
        else if (w->parsed())
            run(workload);
        else if (c->parsed())
            run(compare);
        else
            return engine::fail(program, 2, "no command; valid: decode, reuse, io, workload, compare");
        return 0;
    });
}
