// The price of a checkpoint: decode steps, and a save to the sequence's file every so many tokens, with the waiting for the disk
// on a thread of its own (saved_file::publish). Then what the last one spares: it is loaded.
//
//   kvtl-checkpoint [POLICY [TOKENS [EVERY [COMPUTE_US_PER_LAYER [FILE [HEAD_DIM [LAYERS [ATTENTION]]]]]]]
//
// Shape:  16 layers, 32 query heads, 8 KV heads of 64, as llama3.2-1b has them; with heads of 128 and 32 layers llama3-8b's.
//         512 attended entries, one thread. Normal numbers around a centre that moves, so that clusters grow.
//         COMPUTE_US_PER_LAYER spins for the model's other work. ATTENTION 0: the prompt is taken without attention, as a long one's
//         would take hours.
// Prints: a line of the prompt, which has no compute of the model but its attention, if any; a line of the first save, of which all is
//         written; a line of the median of the later ones: bytes written, ms of save(), ms until it was on the disk, and the
//         share of save() in the steps between two saves; the same in processor time, of which other programs take nothing; and
//         the median time of five loads from the page cache.
// SPDX-License-Identifier: MIT
#include <kvtl/save/saved_file.hpp>
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "made_rows.hpp"

#include <CLI/CLI.hpp>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

namespace {

using engine::insist;
using kvtl_bench::median;
constexpr std::size_t rounds = 9, loads = 5;
using seconds = std::chrono::duration<double>;
using steady = std::chrono::steady_clock;

struct options {
    std::string policy = "dynakv";
    std::size_t tokens = 8192, every = 64;
    double compute_us = 0;
    bool attention = true; ///< of the prompt
    std::string path = "checkpoint.kvs";
    kvtl::shape model = kvtl_bench::one_billion;

    [[nodiscard]] std::size_t q_row() const { return kvtl_bench::q_row(model); }
    [[nodiscard]] std::size_t k_row() const { return kvtl_bench::k_row(model); }
};

/// Milliseconds that this thread has run.
double processor_ms() {
    ::timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

int measure(const options& o) {
    const kvtl::shape& model = o.model;
    const auto opened = kvtl_bench::open(o.policy, model, o.tokens + (rounds + 1) * o.every, 1,
                                         std::size_t{64} << 20, o.path + ".cache");
    engine::kv_cache& cache = *opened;
    const kvtl::sequence_id seq = insist(cache.begin());
    kvtl_bench::made_rows data(model);
    std::vector<float> out(o.attention ? o.tokens * o.q_row() : 0);
    double prompt = 0;
    for (std::uint32_t l = 0; l < model.layers; ++l) {
        const auto in = data.next(o.tokens);
        const auto start = steady::now();
        insist(cache.prefill(seq, l, in, out, 0));
        prompt += seconds(steady::now() - start).count();
    }
    std::printf("%s, %zu tokens in %u layers with heads of %u: %s of the prompt %.2f s\n", o.policy.c_str(),
                o.tokens, model.layers, model.head_dim, o.attention ? "attention" : "storing", prompt);
    out.resize(o.q_row());
    const auto whole = insist(cache.save(seq, o.path));
    std::printf("%s, %zu tokens, all: %.1f MiB written\n", o.policy.c_str(), o.tokens,
                static_cast<double>(whole.written_bytes) / (1U << 20));

    {
        kvtl::saved_file file = insist(kvtl::saved_file::open(o.path));
        std::vector<double> mib, save, publish, share, save_ran, share_ran;
        std::future<double> on_disk;
        for (std::size_t r = 0; r < rounds; ++r) {
            double steps = 0, steps_ran = 0;
            for (std::size_t t = 0; t < o.every; ++t)
                for (std::uint32_t l = 0; l < model.layers; ++l) {
                    const auto in = data.next(1);
                    const double ran = processor_ms();
                    const auto start = steady::now();
                    insist(cache.attend(seq, l, in, out, 0));
                    const auto until =
                        steady::now() + std::chrono::duration_cast<steady::duration>(
                                            std::chrono::duration<double, std::micro>(o.compute_us));
                    while (o.compute_us > 0 && steady::now() < until) {
                    }
                    steps += seconds(steady::now() - start).count();
                    steps_ran += processor_ms() - ran;
                }
            if (on_disk.valid()) publish.push_back(on_disk.get());
            const double ran = processor_ms();
            const auto start = steady::now();
            const auto facts = insist(cache.save(seq, file));
            const double took = seconds(steady::now() - start).count();
            save_ran.push_back(processor_ms() - ran);
            mib.push_back(static_cast<double>(facts.written_bytes) / (1U << 20));
            save.push_back(took * 1e3);
            share.push_back(took / steps * 100);
            share_ran.push_back(save_ran.back() / steps_ran * 100);
            on_disk = std::async(std::launch::async, [&file] {
                const auto begin = steady::now();
                insist(file.publish());
                return seconds(steady::now() - begin).count() * 1e3;
            });
        }
        publish.push_back(on_disk.get());
        std::printf(
            "%s, every %zu tokens, medians of %zu: %.1f MiB written, %.1f ms, on the disk %.1f ms later, "
            "%.1f %% of the steps\n",
            o.policy.c_str(), o.every, rounds, median(mib), median(save), median(publish), median(share));
        std::printf("%s, in processor time: %.1f ms, %.1f %% of the steps\n", o.policy.c_str(),
                    median(save_ran), median(share_ran));
    } // closes the file
    insist(cache.end(seq));
    std::vector<double> load;
    for (std::size_t i = 0; i < loads; ++i) {
        const auto start = steady::now();
        const auto loaded = insist(cache.load(o.path));
        load.push_back(seconds(steady::now() - start).count());
        insist(cache.end(loaded.seq));
    }
    std::printf("%s, loaded in %.1f ms, which is 1 of %.1f parts of the prompt's %s\n", o.policy.c_str(),
                median(load) * 1e3, prompt / median(load), o.attention ? "attention" : "storing");
    std::filesystem::remove(o.path);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program("kvtl-checkpoint", [&] {
        options o;
        CLI::App app("Measures decode steps with a save every so many tokens, and the load of the last save.",
                     "kvtl-checkpoint");
        app.set_version_flag("--version", "kvtl-checkpoint " KVTL_VERSION_STRING);
        const auto number = [&app](const char* name, auto& to, const char* help) {
            app.add_option(name, to, help)->capture_default_str()->check(engine::whole_number);
        };
        app.add_option("POLICY", o.policy, "preset that keeps the cache")->capture_default_str();
        number("TOKENS", o.tokens, "of the prompt");
        number("EVERY", o.every, "tokens between two saves");
        app.add_option("COMPUTE_US_PER_LAYER", o.compute_us,
                       "spins for so long per layer, as a model would compute")
            ->capture_default_str()
            ->check(CLI::NonNegativeNumber);
        app.add_option("FILE", o.path, "that is saved to")->capture_default_str();
        number("HEAD_DIM", o.model.head_dim, "numbers per head");
        number("LAYERS", o.model.layers, "of the model");
        app.add_option("ATTENTION", o.attention, "0: the prompt is taken without attention")
            ->capture_default_str();
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        if (o.tokens == 0 || o.every == 0)
            throw engine::bad_input("TOKENS is " + std::to_string(o.tokens) + ", EVERY " +
                                    std::to_string(o.every) + "; valid: two positive numbers");
        return measure(o);
    });
}
