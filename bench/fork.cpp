// The price of a branch: fork(), the first token of the branch, which copies what the two do not share, and a later one.
//
//   kvtl-fork [POLICY [TOKENS [FILE]]]
//
// Shape:  llama3.2-1b (16 layers, 32 query heads, 8 KV heads of 64), 512 attended entries, one thread. The prompt is taken
//         without attention. Made numbers, as in kvtl-checkpoint. FILE: of the cache.
// Prints: medians of several branches, one after the other, each ended before the next: ms of fork(), of its first token in all
//         layers, and of the tokens behind it (median), with the bytes that the fork moved on storage by then; then ms of a fork
//         that nobody uses, with its end.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "made_rows.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using engine::insist;
using kvtl_bench::median;
constexpr kvtl::shape model = kvtl_bench::one_billion;
constexpr std::size_t q_row = kvtl_bench::q_row(model);
constexpr std::size_t rounds = 7, tokens_behind = 15;
using steady = std::chrono::steady_clock;

struct options {
    std::string policy = "dynakv";
    std::size_t tokens = 32768;
    std::string path = "fork.kv";
};

template <class F> double ms_of(F&& f) {
    const auto start = steady::now();
    f();
    return std::chrono::duration<double, std::milli>(steady::now() - start).count();
}

int measure(const options& o) {
    const auto opened = kvtl_bench::open(o.policy, model, o.tokens + 64, 2, std::size_t{512} << 20, o.path);
    engine::kv_cache& cache = *opened;
    const kvtl::sequence_id seq = insist(cache.begin());
    kvtl_bench::made_rows data(model);
    for (std::uint32_t l = 0; l < model.layers; ++l)
        insist(cache.prefill(seq, l, data.next(o.tokens), {}, 0));
    std::vector<float> out(q_row);
    const auto token_of = [&](kvtl::sequence_id who) {
        double ms = 0;
        for (std::uint32_t l = 0; l < model.layers; ++l) {
            const auto in = data.next(1);
            ms += ms_of([&] { insist(cache.attend(who, l, in, out, 0)); });
        }
        return ms;
    };
    for (std::size_t t = 0; t < tokens_behind; ++t) static_cast<void>(token_of(seq));
    std::vector<double> fork, first, later, mib, unused;
    for (std::size_t r = 0; r < rounds; ++r) {
        const std::uint64_t before = cache.stats().detail.bytes_moved_by_forks;
        kvtl::sequence_id branch;
        const auto make = [&] { branch = insist(cache.fork(seq)); };
        unused.push_back(ms_of([&] { make(), insist(cache.end(branch)); }));
        fork.push_back(ms_of(make));
        first.push_back(token_of(branch));
        for (std::size_t t = 0; t < tokens_behind; ++t) later.push_back(token_of(branch));
        mib.push_back(static_cast<double>(cache.stats().detail.bytes_moved_by_forks - before) / (1U << 20));
        insist(cache.end(branch));
    }
    std::printf("%s, %zu tokens, medians of %zu: fork %.3f ms, its first token %.2f ms, a later one %.2f ms, "
                "%.2f MiB "
                "moved; fork and end %.3f ms\n",
                o.policy.c_str(), o.tokens, rounds, median(fork), median(first), median(later), median(mib),
                median(unused));
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program("kvtl-fork", [&] {
        options o;
        CLI::App app(
            "Measures a branch of a long sequence: fork(), the first token of the branch, and later ones.",
            "kvtl-fork");
        app.set_version_flag("--version", "kvtl-fork " KVTL_VERSION_STRING);
        app.add_option("POLICY", o.policy, "preset that keeps the cache")->capture_default_str();
        app.add_option("TOKENS", o.tokens, "of the prompt")
            ->capture_default_str()
            ->check(engine::whole_number);
        app.add_option("FILE", o.path, "of the cache")->capture_default_str();
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        if (o.tokens == 0) throw engine::bad_input("TOKENS is 0; valid: a positive number");
        return measure(o);
    });
}
