// A small decode run: the rows that the documentation promises, and the arithmetic that refuses large ones.
// SPDX-License-Identifier: MIT
#include "decode.hpp"

#include <kvtl/calibration/trace_writer.hpp>

#include "contracts/io.hpp"
#include "error.hpp"
#include "random_reads.hpp"
#include "recall_samples.hpp"
#include "scratch_files.hpp"
#include "size_probe.hpp"
#include "workload.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

using bench::decode_options;
using kvtl_test::scratch_folder;

namespace {

decode_options small_run(const scratch_folder& folder) {
    decode_options o;
    o.shape = bench::find_shape("tiny-2k")->shape;
    o.context = 300;
    o.steps = 16;
    o.memory_mib = {4};
    o.attend_tokens = {96};
    o.kv_path = folder.file("run.kv");
    o.io = "posix";
    return o;
}

const auto ignore = [](const nlohmann::ordered_json&) {};

bool built_in(std::string_view policy) {
    return engine::policy_wants(policy).inputs != kvtl::engine_input{};
}

/// What the options' workload would give, as a file that does not have the keys before RoPE.
void record(const decode_options& o, const std::string& path) {
    const std::size_t tokens = o.context + decode_options::warm_up + o.steps;
    const auto w = bench::make_workload({.text = o.workload,
                                         .shape = o.shape,
                                         .prompt_tokens = o.context,
                                         .tokens = tokens,
                                         .rope_base = o.rope_base});
    auto out = kvtl::trace_writer::create(
        path, {.shape = o.shape, .fields = kvtl::trace_header::has_prediction, .pair_distance = 1});
    REQUIRE(out.ok());
    std::vector<float> q(w->query_floats()), k(w->key_floats()), v(k.size()), guess(q.size());
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::uint32_t l = 0; l < o.shape.layers; ++l) {
            w->rows(0, l, t, 1, {.q = q, .k = k, .v = v, .prediction = guess});
            out->write(t, l, {.q = q, .k = k, .v = v}, guess);
        }
    REQUIRE(out->close(o.context, tokens).ok());
}

} // namespace

TEST_CASE("rows have every key, for each policy and device") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.policies = {"dynakv", "full"};
    o.devices = {"native", "emmc"};
    for (const bool interleave : {false, true}) {
        o.interleave = interleave;
        std::size_t announced = 0;
        const auto rows = bench::run_decode(o, [&](const auto&) { ++announced; });
        REQUIRE(rows.size() == 4);
        CHECK(announced == 4);
        for (const auto& row : rows) {
            for (const char* key : {"policy",
                                    "shape",
                                    "context",
                                    "batch",
                                    "steps",
                                    "device",
                                    "simulated",
                                    "config",
                                    "prefill_s",
                                    "step_ms_median",
                                    "step_ms_p99",
                                    "tokens_per_s",
                                    "phase_us",
                                    "products",
                                    "read_bytes_per_step",
                                    "useful_bytes_per_step",
                                    "wasted_bytes",
                                    "reads_per_step",
                                    "mean_read_entries",
                                    "hit_rate",
                                    "reuse_rate",
                                    "selectable_entries",
                                    "empty_choices",
                                    "scored_per_step",
                                    "compared_per_step",
                                    "opened_per_step",
                                    "unpredicted_choices",
                                    "units",
                                    "splits",
                                    "delayed_splits",
                                    "forced_loads",
                                    "mean_unit_entries",
                                    "bytes_written",
                                    "bytes_written_per_step",
                                    "bytes_written_per_token_and_layer",
                                    "write_amplification",
                                    "write_amplification_since_open",
                                    "bytes_moved_by_updates",
                                    "bytes_moved_by_appends",
                                    "bytes_moved_by_staying_children",
                                    "bytes_moved_by_leaving_children",
                                    "storage_bytes",
                                    "resident_bytes_peak",
                                    "cpu_s_per_step",
                                    "kept_bytes",
                                    "bytes_per_entry",
                                    "bytes_by_part",
                                    "raw_cache_bytes",
                                    "share_by_part",
                                    "mass_recall",
                                    "size_probe",
                                    "probe_before",
                                    "probe_after",
                                    "probe_before_threads",
                                    "probe_after_threads"})
                CHECK_MESSAGE(row.contains(key), key);
            for (const char* key : {"append", "score", "choose", "fetch_wait", "attend", "maintain", "evict"})
                CHECK_MESSAGE(row["phase_us"].contains(key), key);
            CHECK(row["steps"] == 16);
            // A prompt, and the steps of each device that shares it: whether emmc does depends on this machine.
            // 6 layers, 2 heads and 64 dimensions; K and V in f16.
            const auto sharing = std::count_if(rows.begin(), rows.end(), [&](const auto& other) {
                return other["policy"] == row["policy"] && other["simulated"] == row["simulated"];
            });
            CHECK(row["raw_cache_bytes"] == (300 + sharing * (8 + 16)) * 6 * 2 * 64 * 4);
            double parts = 0;
            for (const auto& [part, bytes] : row["bytes_by_part"].items()) {
                parts += bytes.get<double>();
                CHECK(row["share_by_part"][part].get<double>() ==
                      doctest::Approx(bytes.get<double>() / row["raw_cache_bytes"].get<double>()));
            }
            CHECK(row["share_by_part"]["total"].get<double>() ==
                  doctest::Approx(parts / row["raw_cache_bytes"].get<double>()));
            CHECK(row["shape"] == "tiny-2k");
            CHECK(row["step_ms_median"].get<double>() > 0);
            CHECK(row["tokens_per_s"].get<double>() ==
                  doctest::Approx(1000 / row["step_ms_median"].get<double>()));
            CHECK(row["config"]["attend_tokens"] == 96);
            // One thread that waits for the device or works, and once more what the system does for it.
            CHECK(row["cpu_s_per_step"].get<double>() > 0);
            CHECK(row["cpu_s_per_step"].get<double>() < 20e-3 * row["step_ms_median"].get<double>());
            // K and V of 64 numbers in f16, and what a policy's records have beside them.
            CHECK(row["bytes_per_entry"].get<double>() == doctest::Approx(256).epsilon(.1));
            CHECK(row["kept_bytes"].get<double>() >= 324 * 6 * 2 * 256);
            const double written = row["bytes_written"].get<double>();
            CHECK(row["bytes_written_per_token_and_layer"].get<double>() ==
                  doctest::Approx(written / 16 / 6));
            CHECK(row["write_amplification"].get<double>() == doctest::Approx(written / 16 / 6 / 512));
            if (row["policy"] == "full") // keeps its entries in memory
                CHECK(row["write_amplification_since_open"] == 0);
            else // every entry of the prompt, less the window
                CHECK(row["write_amplification_since_open"].get<double>() > .8);
            const double recall = row["mass_recall"].get<double>();
            if (row["policy"] == "full") { // attends everything there is
                CHECK(recall == doctest::Approx(1).epsilon(1e-4));
            } else {
                CHECK(recall > 0.3);
                CHECK(recall < 0.999);
            }
        }
        std::size_t dynakv = 0;
        for (const auto& row : rows)
            if (row["policy"] == "dynakv") {
                ++dynakv;
                CHECK(row["resident_bytes_peak"].get<double>() <= 4 << 20);
                CHECK(row["storage_bytes"].get<double>() > 0);
                CHECK(row["config"].contains("clusterer.tokens_per_cluster"));
            }
        CHECK(dynakv == 2);
        CHECK(std::filesystem::is_empty(folder.path())); // nothing stays behind
    }
}

TEST_CASE("caches are told how the workload turns keys, of a trace by its header") {
    if (!built_in("shadowkv")) return; // it turns the prompt's keys back itself
    const scratch_folder folder;
    auto o = small_run(folder);
    o.shape = {.layers = 1, .query_heads = 8, .kv_heads = 8, .head_dim = 64};
    o.rope_base = 500'000;
    o.context = 1536, o.attend_tokens = {256}, o.memory_mib = {16};
    o.policies = {"shadowkv"}, o.io = "memory", o.fit = false;
    const double found = bench::run_decode(o, ignore)[0]["mass_recall"];
    CHECK(found > 0.87); // .79 with the wrong pairs
    record(o, folder.file("same.trc"));
    o.workload = "trace:" + folder.file("same.trc");
    CHECK(bench::run_decode(o, ignore)[0]["mass_recall"].get<double>() ==
          doctest::Approx(found).epsilon(.02));
}

TEST_CASE("a policy that fails midway is a row that says so, and the others go on") {
    const scratch_folder folder;
    auto o = small_run(folder);
    const std::string trace = folder.file("short.trc");
    o.steps = 8, o.compute_us_per_layer = {0, 1}; // two rows of each, behind one prompt
    o.shape.layers = 2;
    auto longer = o;
    longer.steps = 2 * o.steps + decode_options::warm_up;
    record(longer, trace);
    const auto records = std::filesystem::file_size(trace) - kvtl::trace_header::bytes;
    const auto cut_to = [&](std::size_t tokens) {
        std::filesystem::resize_file(trace, kvtl::trace_header::bytes + records / 332 * tokens);
    };
    o.workload = "trace:" + trace;
    o.policies = {"full", "dynakv"};
    for (const bool interleave : {false, true}) {
        CAPTURE(interleave);
        record(longer, trace);
        o.interleave = interleave;
        std::size_t seen = 0;
        const auto rows = bench::run_decode(o, [&](const auto&) {
            if (++seen == 2)
                cut_to(interleave ? 320 : 100); // behind both first rows, in a step; or before a prompt
        });
        REQUIRE(rows.size() == 4);
        CHECK(seen == 4);
        for (std::size_t i = 0; i < 4; ++i) {
            const auto& row = rows[i];
            CHECK(row["policy"] == o.policies[interleave ? i % 2 : i / 2]);
            CHECK(row["error"].is_null() == (i < 2));
            if (i < 2) continue;
            CHECK(row["midway"] == true);
            CHECK(row["error"].get<std::string>().find("short.trc") != std::string::npos);
        }
        CHECK_THROWS_WITH_AS(bench::require_finished(rows), doctest::Contains("failed midway: "),
                             engine::run_failure);
        std::filesystem::remove(trace);
        CHECK(std::filesystem::is_empty(folder.path()));
    }
    CHECK_NOTHROW(bench::require_finished({}));
}

TEST_CASE("budgets of memory share a prompt and its file, the largest first") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.policies = {"dynakv", "full"};
    o.fit = false;
    o.memory_mib = {2.5, 6, 1.9};
    o.compute_us_per_layer = {0, 1}; // two rows a budget
    o.steps = 8;
    const auto rows_of = [&](bool keep_file) {
        o.keep_file = keep_file;
        return bench::run_decode(o, ignore);
    };
    const auto each = rows_of(false), kept = rows_of(true);
    REQUIRE(kept.size() + 2 == each.size()); // what cannot be is one row a budget
    const auto of = [](const auto& rows, const std::string& policy) {
        std::vector<nlohmann::ordered_json> some;
        std::copy_if(rows.begin(), rows.end(), std::back_inserter(some),
                     [&](const auto& row) { return row["policy"] == policy && row["error"].is_null(); });
        return some;
    };
    const auto dynakv = of(kept, "dynakv");
    REQUIRE(dynakv.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) {
        const auto& row = dynakv[i];
        const double mib = std::array{6.0, 2.5, 1.9}[i / 2];
        CHECK(row["config"]["memory_mib"].get<double>() == doctest::Approx(mib));
        CHECK(row["config"]["keep_file"] == true);
        CHECK(row["device"] == "native");
        CHECK(row["steps"] == o.steps);
        CHECK(row["position"] ==
              o.context + i * (decode_options::warm_up + o.steps) + decode_options::warm_up);
        CHECK(row["prefill_s"] == dynakv[0]["prefill_s"]); // the same one
        std::uint64_t bytes = 0;
        for (const auto& part : row["bytes_by_part"]) bytes += part.template get<std::uint64_t>();
        CHECK(bytes <= static_cast<std::uint64_t>(mib * (1 << 20)));
        CHECK(row["resident_bytes_peak"] <= bytes);
    }
    CHECK(dynakv[4]["bytes_by_part"]["frames"] < dynakv[2]["bytes_by_part"]["frames"]);
    CHECK(dynakv[2]["bytes_by_part"]["frames"] < dynakv[0]["bytes_by_part"]["frames"]);
    CHECK(of(each, "dynakv")[2]["prefill_s"] != of(each, "dynakv")[0]["prefill_s"]);
    // What has no frames to give up says so, and its first rows stand.
    CHECK(of(kept, "full").size() == 2);
    std::size_t refused = 0;
    for (const auto& row : kept)
        if (row["policy"] == "full" && row["config"]["memory_mib"] != 6) {
            CHECK(row["error"].get<std::string>().find("nothing of this cache lies on storage") !=
                  std::string::npos);
            ++refused;
        }
    CHECK(refused == 2);
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("mass_recall looks at every layer in turn, however long a run is") {
    for (const std::size_t steps : {64U, 1000U, 1024U, 4096U, 100'000U})
        for (const std::size_t layers : {1U, 2U, 7U, 16U}) {
            CAPTURE(steps);
            CAPTURE(layers);
            bench::recall_samples samples;
            std::vector<std::size_t> seen(layers);
            std::size_t all = 0;
            for (std::size_t step = 0; step < steps; ++step) { // a run that ends early has samples, too
                CHECK(all >= std::min<std::size_t>(64, (step + 7) / 8));
                if (!samples.has(step)) continue;
                ++all;
                for (std::size_t l = 0; l < layers; ++l) seen[l] += samples.has_layer(l, layers) ? 1 : 0;
                samples.take();
            }
            CHECK(all >= 8);
            CHECK(all <= 64 * 11);
            const auto [least, most] = std::minmax_element(seen.begin(), seen.end());
            CHECK(*least > 0);
            CHECK(*most - *least <= 1);
        }
}

TEST_CASE("a signal removes every file, and more than it could remove are refused") {
    const scratch_folder folder;
    std::vector<std::unique_ptr<bench::scratch_file>> files;
    const auto name = [&] {
        files.push_back(
            std::make_unique<bench::scratch_file>(folder.file("x" + std::to_string(files.size()))));
    };
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        while (files.size() < 100) name(), std::ofstream(files.back()->path()) << "x";
        ::raise(SIGTERM);
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM));
    CHECK(std::filesystem::is_empty(folder.path()));

    while (files.size() < 512) name();
    CHECK_THROWS_WITH_AS(name(), doctest::Contains("512 files are open already"), engine::bad_input);
    files.pop_back();
    CHECK_NOTHROW(name());
}

TEST_CASE("threads share the work and change no choice") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.policies = {"dynakv", "kvswap"}; // heads are divided; kvswap's lie together
    const auto alone = bench::run_decode(o, ignore);
    o.threads = 2;
    o.memory_mib = {8};
    const auto both = bench::run_decode(o, ignore);
    o.threads = 1;
    o.shards = 2;
    const auto in_turn = bench::run_decode(o, ignore);
    o.threads = 2;
    o.shards = 1;
    const auto lent = bench::run_decode(o, ignore); // the second one only helps with a prompt
    REQUIRE(lent.size() == alone.size());
    REQUIRE(both.size() == alone.size());
    REQUIRE(in_turn.size() == alone.size());
    for (std::size_t i = 0; i < both.size(); ++i) {
        CAPTURE(both[i]["policy"]);
        CHECK(alone[i]["threads"] == 1);
        CHECK(both[i]["threads"] == (both[i]["policy"] == "dynakv" ? 2 : 1));
        CHECK(both[i]["shards"] == both[i]["threads"]);
        CHECK(both[i]["lent_threads"] == 2 - both[i]["threads"].get<int>());
        CHECK(in_turn[i]["threads"] == 1);
        CHECK(in_turn[i]["shards"] == both[i]["shards"]);
        CHECK(lent[i]["shards"] == 1);
        CHECK(lent[i]["lent_threads"] == 1);
        CHECK(lent[i]["units"] == alone[i]["units"]);
        CHECK(lent[i]["mass_recall"] == alone[i]["mass_recall"]);
        CHECK(in_turn[i]["mass_recall"] == alone[i]["mass_recall"]);
        CHECK(both[i]["mass_recall"] == alone[i]["mass_recall"]);
        CHECK(both[i]["units"] == alone[i]["units"]);
        CHECK(both[i]["mean_unit_entries"] == alone[i]["mean_unit_entries"]);
    }
}

TEST_CASE("bases are made up with as many directions as a setting wants") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.io = "memory";
    o.policies = {"kvswap"};
    o.fit = false;
    o.settings = {{"kvswap", "index", "rank", "100"}}; // of 128; 64 are fitted otherwise
    const auto rows = bench::run_decode(o, ignore);
    REQUIRE(rows.size() == 1);
    CHECK(rows[0]["error"].is_null());
    CHECK(rows[0]["config"]["index.rank"] == "100");
    CHECK(rows[0]["unpredicted_choices"] == 16 * 2); // layers 0 and 1
}

TEST_CASE("prompt queries reach what wants them, and only the last chunk has some") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.io = "memory";
    o.policies = {"dynakv"};
    const auto with = bench::run_decode(o, ignore);
    o.prompt_queries = false;
    const auto without = bench::run_decode(o, ignore);
    // Clusters lie elsewhere and are the same.
    CHECK(with[0]["mass_recall"] == without[0]["mass_recall"]);
    CHECK(with[0]["units"] == without[0]["units"]);
    CHECK(with[0]["splits"] == without[0]["splits"]);
    CHECK(with[0]["reads_per_step"] != without[0]["reads_per_step"]);
}

TEST_CASE("layers that have memory in turn are announced, unless the engine is one that does not") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.io = "memory";
    o.policies = {"dynakv_virtualised"};
    const auto with = bench::run_decode(o, ignore);
    o.announce = false;
    const auto without = bench::run_decode(o, ignore);
    CHECK(with[0]["unannounced_layers"] == 0);
    CHECK(without[0]["unannounced_layers"] == o.steps * o.shape.layers);
    // Nothing else depends on it.
    for (const char* key : {"mass_recall", "units", "hit_rate", "hot_set_bytes_per_step"})
        CHECK_MESSAGE(with[0][key] == without[0][key], key);
    CHECK_FALSE(with[0]["registered_file"].get<bool>());
    CHECK_FALSE(with[0]["registered_arena"].get<bool>());
}

TEST_CASE("policies that evict: prompt in one chunk, a row per --keep-tokens, what is made up is named") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.io = "memory";
    o.memory_mib = {2};
    o.keep_tokens = {128, 192};
    const std::vector<std::pair<std::string, std::vector<std::string>>> stand_ins = {
        {"full", {}},
        {"h2o", {}},
        {"snapkv_group", {}},
        {"locret", {"random gates"}},
        {"trim_kv", {"random gates", "queries as x"}},
        {"attention_gate", {"random gates", "queries as x"}},
        {"lookahead_probe", {"predicted queries as probes"}},
        {"external_mask", {"random mask"}}};
    for (const auto& stand_in : stand_ins) {
        const std::string& policy = stand_in.first;
        if (engine::policy_wants(policy).inputs == kvtl::engine_input{}) continue; // not built in
        CAPTURE(policy);
        o.policies = {policy};
        const auto rows = bench::run_decode(o, ignore);
        const bool evicts = policy != "full";
        REQUIRE(rows.size() == (evicts ? 2 : 1));
        for (std::size_t i = 0; evicts && i < 2; ++i) {
            const auto& config = rows[i]["config"];
            CHECK(config["keep_tokens"] == o.keep_tokens[i]);
            CHECK(config["cache.prefill_tokens"] == "300");
            CHECK(config.contains("stand_ins") == !stand_in.second.empty());
            if (!stand_in.second.empty()) CHECK(config["stand_ins"] == stand_in.second);
            // 6 layers, 2 heads; decoded entries stay where a policy evicts at the prompt's end only
            const std::size_t kept = rows[i]["kept_entries"].get<std::size_t>();
            if (policy != "external_mask" && policy != "attention_gate") // of which some is not wanted at all
                CHECK(kept >= 12 * o.keep_tokens[i]);
            CHECK(kept <= 12 * (o.keep_tokens[i] + 24));
            CHECK(rows[i]["resident_bytes_peak"].get<double>() <= 2 << 20);
        }
        CHECK(std::filesystem::is_empty(folder.path()));
    }
    CHECK(bench::needs(o, {"h2o"}, false).disk == 0);
}

TEST_CASE("a device that is faster than this one is imitated in memory") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.io = "memory"; // no native device to compare with: nothing is written at all
    o.devices = {"native", "ufs40"};
    const auto rows = bench::run_decode(o, ignore);
    REQUIRE(rows.size() == 2);
    CHECK(rows[0]["device"] == "native");
    CHECK(rows[0]["simulated"] == false);
    CHECK(rows[1]["device"] == "ufs40");
    CHECK(rows[1]["simulated"] == true);
    CHECK(rows[1]["io"] == "memory");
    CHECK(rows[1]["probe_before"].is_null());
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("rows of several threads say what as many queues read") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.policies = {"quest"};
    o.threads = 1;
    CHECK(bench::run_decode(o, ignore)[0]["probe_before_threads"].is_null()); // that is the other probe
    o.threads = 2;
    const auto rows = bench::run_decode(o, ignore);
    for (const char* key : {"probe_before", "probe_after", "probe_before_threads", "probe_after_threads"}) {
        CAPTURE(key);
        CHECK(rows[0][key]["iops_4k"].get<double>() > 0);
        CHECK(rows[0][key]["mb_per_s_128k"].get<double>() > 0);
    }
    o.io = "memory";
    CHECK(bench::run_decode(o, ignore)[0]["probe_after_threads"].is_null());
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("all queues of a reader read at once") {
    // Each waits 10 ms for each of its reads: 100 reads per s of one queue, up to 300 of three, and 100 one after the other.
    bench::random_reader three(
        {.path = {},
         .io = "memory",
         .size = 1 << 20,
         .queues = 3,
         .limit = std::make_shared<kvtl::throttle>(kvtl::device_profile{.latency_us = 10'000})});
    const bench::read_speed one = three.run(4096, 1, 10);
    CHECK(one.iops <= 100);
    bench::read_speed all;
    for (int i = 0; i < 5 && all.iops <= 150; ++i)
        all = three.run_together(4096, 1, 10); // others may compute
    CHECK(all.iops > 150);
    CHECK(all.iops <= 300);
    CHECK(all.mb_per_s == doctest::Approx(all.iops * 4096e-6));
}

TEST_CASE("equal seeds give equal work") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.io = "memory";
    o.batch = 2;
    const auto a = bench::run_decode(o, ignore), b = bench::run_decode(o, ignore);
    o.workload = "drift:2";
    const auto c = bench::run_decode(o, ignore);
    for (const char* key : {"read_bytes_per_step", "useful_bytes_per_step", "hit_rate", "bytes_written"})
        CHECK_MESSAGE(a[0][key] == b[0][key], key);
    CHECK(a[0]["useful_bytes_per_step"] != c[0]["useful_bytes_per_step"]);
    CHECK(a[0]["batch"] == 2);
}

TEST_CASE("a run says what it needs and is refused when that is not there") {
    const scratch_folder folder;
    auto o = small_run(folder);
    const std::vector<std::string> one = {"dynakv"}, two = {"dynakv", "dynakv_lru"};
    const double raw = (300.0 + 8 + 16) * 6 * 2 * 64 * 4; // K and V in f16
    const double disk = bench::needs(o, one, false).disk; // whole pages of 2.5 times the records
    CHECK(disk > 2.5 * raw);
    CHECK(disk < 3.5 * raw);
    CHECK(bench::needs(o, two, false).disk == 2 * disk);
    CHECK(bench::needs(o, one, false).memory > 4 << 20);
    CHECK(bench::needs(o, one, true).disk == 0);
    CHECK(bench::needs(o, one, true).memory > bench::needs(o, one, false).memory + raw);
    CHECK(bench::needs(o, {"full"}, false).disk == 0);

    o.shape = bench::find_shape("llama3-8b")->shape;
    o.context = 1 << 20;
    o.batch = 4096; // half a petabyte
    CHECK_THROWS_WITH_AS(static_cast<void>(bench::run_decode(o, ignore)),
                         doctest::Contains("80 % of what is free"), engine::bad_input);
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("policies take turns as far as they fit together") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.policies = {"dynakv", "full", "dynakv_lru", "dynakv_static"};
    using rounds = std::vector<std::vector<std::string>>;
    const double disk = bench::needs(o, {"dynakv"}, false).disk / 0.8;
    const double memory = bench::needs(o, o.policies, false).memory / 0.8;
    const auto plan = [&](double disks) {
        return bench::plan_rounds(o, {.disk = disks * disk, .memory = memory}, false);
    };
    CHECK(plan(9) == rounds{{"dynakv"}, {"full"}, {"dynakv_lru"}, {"dynakv_static"}});
    o.interleave = true;
    CHECK(plan(3.01) == rounds{o.policies});
    CHECK(plan(2.01) == rounds{{"dynakv", "full", "dynakv_lru"}, {"dynakv_static"}});
    CHECK(plan(1.01) == rounds{{"dynakv", "full"}, {"dynakv_lru"}, {"dynakv_static"}});
    CHECK_THROWS_AS(static_cast<void>(plan(0.99)), engine::bad_input);
    CHECK_THROWS_AS(
        static_cast<void>(bench::plan_rounds(o, {.disk = 9 * disk, .memory = memory / 100}, false)),
        engine::bad_input);
}

TEST_CASE("a bound that is too small for any policy is an error before anything runs") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.policies = {"dynakv_lru", "dynakv"};
    o.memory_mib = {0.05};
    std::size_t rows = 0;
    CHECK_THROWS_WITH_AS(static_cast<void>(bench::run_decode(o, [&](const auto&) { ++rows; })),
                         doctest::Contains("needs at least"), engine::bad_input);
    CHECK(rows == 0);
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a bound that is too small for one policy is a row that says so, and the others run") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.policies = {"dynakv", "full"};
    o.memory_mib = {0.05, 8};
    std::vector<std::string> seen;
    const auto rows = bench::run_decode(
        o, [&](const auto& row) { seen.push_back(row["error"].is_null() ? "ran" : "refused"); });
    CHECK(seen == std::vector<std::string>{"refused", "ran", "ran", "ran"});
    REQUIRE(rows.size() == 4);
    CHECK(rows[0]["policy"] == "dynakv");
    CHECK(rows[0]["config"]["memory_mib"] == 0.05);
    CHECK(rows[0]["error"].get<std::string>().find("needs at least") != std::string::npos);
    CHECK(rows[1]["policy"] == "full");
    CHECK(rows[2]["policy"] == "dynakv");
    CHECK(rows[2]["config"]["memory_mib"] == 8.0);
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("the least memory of a policy opens it, one KiB less does not") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.io = "memory";
    o.fit = false;
    o.steps = 3;
    o.keep_tokens = {128, 192};
    o.attend_tokens = {64, 96};
    o.policies = {"dynakv"};
    auto rows = bench::least_memory(o);
    REQUIRE(rows.size() == 2); // it keeps everything
    CHECK(rows[0].with == "64 attended");
    CHECK(rows[1].with == "96 attended");
    REQUIRE(rows[1].need.ok());
    CHECK(std::filesystem::is_empty(folder.path()));
    const std::uint64_t least = rows[1].need->total();
    o.attend_tokens = {96};
    o.memory_mib = {static_cast<double>(least) / (1 << 20)};
    const auto ran = bench::run_decode(o, ignore);
    REQUIRE(ran.size() == 1);
    CHECK(ran[0]["raw_cache_bytes"] == rows[1].need->raw_cache);
    o.memory_mib = {static_cast<double>(least - 1024) / (1 << 20)};
    CHECK_THROWS_WITH_AS(static_cast<void>(bench::run_decode(o, ignore)),
                         doctest::Contains("what would help most: "), engine::bad_input);
}

TEST_CASE("shapes are those of the models") {
    for (const auto& m : bench::model_shapes) {
        CHECK(m.shape.query_heads % m.shape.kv_heads == 0);
        CHECK(bench::find_shape(m.name) == &m);
    }
    CHECK(bench::find_shape("gpt-5") == nullptr);
    const auto& s = bench::find_shape("qwen2.5-1.5b")->shape;
    CHECK(s == kvtl::shape{.layers = 28, .query_heads = 12, .kv_heads = 2, .head_dim = 128});
}

TEST_CASE("mapped_file attends all of a file and keeps to its memory") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.shape = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 64};
    o.context = 1500; // of each head two pieces of 128 KiB, and one that grows
    o.memory_mib = {.75};
    o.policies = {"mapped_file"};
    const auto rows = bench::run_decode(o, ignore);
    REQUIRE(rows.size() == 1);
    const auto& row = rows[0];
    REQUIRE(row["error"].is_null());
    CHECK(row["io"] == "mmap");
    CHECK(row["config"]["mapped_file.bounded_by"].get<std::string>().find("MADV_PAGEOUT") == 0);
    CHECK(row["mass_recall"].get<double>() > 0.999);
    // What the kernel reads ahead may come after its piece was paged out: a piece for each of the 4 heads, of 12 in all.
    CHECK(row["resident_bytes_peak"].get<double>() <= (.75 + .5) * (1 << 20));
    CHECK(row["hit_rate"].get<double>() < 0.5);
    CHECK_FALSE(std::filesystem::exists(folder.file("run.kv")));

    CHECK(row["kept_bytes"].is_null()); // it has no records
    CHECK(row["bytes_per_entry"].is_null());

    o.memory_mib = {.5};
    CHECK_THROWS_WITH_AS(static_cast<void>(bench::run_decode(o, ignore)), doctest::Contains("655360 or more"),
                         engine::bad_input);
    o.memory_mib = {.75};
    o.devices = {"emmc"};
    CHECK_THROWS_WITH_AS(static_cast<void>(bench::run_decode(o, ignore)),
                         doctest::Contains("--device native"), engine::bad_input);
}

TEST_CASE("of the sizes that attend as much as the largest the fastest is taken, if it is clearly faster") {
    using bench::choice_of, bench::tried_size;
    const auto size = [](double ms, std::optional<double> mass, const char* rank) {
        return tried_size{.step_ms = ms, .mass = mass, .settings = {{"index.rank", rank}, {"seed", "1"}}};
    };
    const auto taken = [](const std::vector<tried_size>& tried) { return choice_of(tried).turns; };
    CHECK(taken({}) == 0);
    CHECK(choice_of({}).tried.is_null());
    CHECK(taken({size(10, .5, "32"), size(8, .491, "16"), size(7, .489, "8")}) == 1);
    CHECK(taken({size(10, .5, "32"), size(9.6, .5, "16")}) == 0);
    CHECK(taken({size(10, .5, "32"), size(9, .5, "16"), size(8.9, .5, "8"), size(9.2, .6, "4")}) == 2);
    CHECK(taken({size(10, .5, "32"), size(5, std::nullopt, "16")}) == 0);
    const auto choice = choice_of({size(10, .5, "32"), size(8, .5, "16")});
    REQUIRE(choice.tried.size() == 2);
    CHECK(choice.tried[0].dump() ==
          R"({"step_ms":10.0,"mass_recall":0.5,"settings":{"index.rank":"32"},"taken":false})");
    CHECK(choice.tried[1]["taken"] == true);
}

TEST_CASE("sizes are tried where there is a knob, and the row says which") {
    const scratch_folder folder;
    auto o = small_run(folder);
    o.policies = {"dynakv", "full"};
    const auto rows = bench::run_decode(o, ignore);
    REQUIRE(rows.size() == 2);
    const auto& tried = rows[0]["size_probe"];
    REQUIRE(tried.size() >= 2);
    CHECK(tried.size() <= 3);
    CHECK(std::count_if(tried.begin(), tried.end(), [](const auto& t) { return t["taken"] == true; }) == 1);
    for (std::size_t i = 0; i < tried.size(); ++i) {
        CHECK(tried[i]["step_ms"] > 0);
        CHECK(tried[i]["mass_recall"] > 0);
        const std::string tokens = tried[i]["settings"]["clusterer.tokens_per_cluster"];
        CHECK(tokens == std::to_string(16U << i));
        if (tried[i]["taken"] == true) CHECK(rows[0]["config"]["clusterer.tokens_per_cluster"] == tokens);
    }
    CHECK(rows[1]["size_probe"].is_null());
    o.policies = {"dynakv"};
    o.size_candidates = 1;
    CHECK(bench::run_decode(o, ignore)[0]["size_probe"].is_null());
    o.size_candidates = 3;
    o.fit = false;
    CHECK(bench::run_decode(o, ignore)[0]["size_probe"].is_null());
}
