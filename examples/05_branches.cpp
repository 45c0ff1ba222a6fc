// Five answers to one document: the document is read once, and each answer is a branch of it.
//
// Features: fork, end of the trunk before its branches, save of one branch. Prints the time of the prefill, of the forks and
// of the answers, and the storage that the branches add to that of the document.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr kvtl::shape model{.layers = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 64};
constexpr std::size_t document = 3000, answers = 5, answer = 40;
constexpr std::size_t q_row = 8 * 64, k_row = 2 * 64;

/// Stands for the weights: numbers of the right shapes.
struct rows {
    std::vector<float> q, k, v;
};
rows project(std::size_t tokens) {
    static std::mt19937 random(1);
    static std::normal_distribution<float> normal;
    rows r{std::vector<float>(tokens * q_row), std::vector<float>(tokens * k_row),
           std::vector<float>(tokens * k_row)};
    for (auto* tensor : {&r.q, &r.k, &r.v})
        for (float& x : *tensor) x = normal(random);
    return r;
}

void require(const kvtl::status& s) {
    if (!s) std::fprintf(stderr, "%s\n", s.what()), std::exit(1);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

int main() {
    auto opened = kvtl::dynakv::open({.shape = model,
                                      .max_tokens = 4096,
                                      .max_sequences = 1 + answers, // the document and its branches
                                      .memory_bytes = 48 << 20,
                                      .attend_tokens = 256,
                                      .share = true, // one pool of frames, instead of equal parts
                                      .io = {.path = "branches.kv"}});
    if (!opened) return std::fprintf(stderr, "%s\n", opened.error().message.c_str()), 1;
    kvtl::dynakv cache = std::move(*opened);

    const auto trunk = cache.begin();
    auto start = std::chrono::steady_clock::now();
    for (std::size_t layer = 0; layer < model.layers; ++layer) {
        const rows r = project(document);
        std::vector<float> out(r.q.size());
        require(cache.prefill(*trunk, layer, {.q = r.q, .k = r.k, .v = r.v}, out));
    }
    const double prefill = seconds_since(start);
    const double of_document = static_cast<double>(cache.stats().storage_bytes) / (1 << 20);

    start = std::chrono::steady_clock::now();
    std::vector<kvtl::sequence_id> branches;
    for (std::size_t i = 0; i < answers; ++i) {
        const auto branch = cache.fork(*trunk);
        if (!branch) return std::fprintf(stderr, "%s\n", branch.error().message.c_str()), 1;
        branches.push_back(*branch);
    }
    const double forks = seconds_since(start);
    require(cache.end(*trunk)); // what the branches share stays

    start = std::chrono::steady_clock::now();
    for (std::size_t t = 0; t < answer; ++t)
        for (const auto branch : branches)
            for (std::size_t layer = 0; layer < model.layers; ++layer) {
                const rows r = project(1);
                std::vector<float> out(q_row);
                require(cache.attend(branch, layer, {.q = r.q, .k = r.k, .v = r.v}, out));
            }
    const double decode = seconds_since(start);

    if (const auto saved = cache.save(branches[0], "branches.kvs"); !saved) // the best answer, for tomorrow
        return std::fprintf(stderr, "%s\n", saved.error().message.c_str()), 1;
    std::remove("branches.kvs");

    std::printf("%zu tokens read once in %.0f ms; %zu branches in %.1f ms; %zu tokens each in %.0f ms\n"
                "%.1f MiB on flash for the document, %.1f MiB with the branches\n",
                document, prefill * 1e3, answers, forks * 1e3, answer, decode * 1e3, of_document,
                static_cast<double>(cache.stats().storage_bytes) / (1 << 20));
}
