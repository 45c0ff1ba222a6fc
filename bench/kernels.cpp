// kvtl-kernels: speed of every SIMD kernel and element type.
//
//   kvtl-kernels --benchmark_filter='dot/f16'    what to run, a regular expression over the names
//   kvtl-kernels --json out.json                 (- for standard output)
//   kvtl-kernels --limits[=REGEX]                beside what the machine can do: kernel_limits.hpp
//   kvtl-kernels --limits[=REGEX] --threads N    of rows in memory, N threads together
//   kvtl-kernels --rivals[=REGEX]                beside other libraries' kernels: kernel_rivals.hpp
//   kvtl-kernels --rivals[=REGEX] --threads N    of attention, a KV head on each of N threads
//   kvtl-kernels --rivals[=REGEX] --json FILE    the same, and the rows in FILE
//
// Exit status: 2 for bad usage and a filter that nothing matches, 1 where a kernel fails its check.
//
// All other options are Google Benchmark's. Names are kernel/element/dim[/parameter=value]. Row kernels
// run over rows of 256 KiB, which stay in the L2 cache; names with /mem run over 64 MiB. GB/s counts
// bytes of stored elements read or written once, GFLOP/s two per multiply-add. Each benchmark first
// checks its kernel against a double-precision sum and fails if they differ.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/assign.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/attention.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/causal.hpp>
#include <kvtl/simd/checksum.hpp>
#include <kvtl/simd/combine.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/dot_columns.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/simd/topk.hpp>
#include <kvtl/version.hpp>

#include "kernel_limits.hpp"
#include "kernel_rivals.hpp"
#include "line_allocator.hpp"
#include "support/oracle.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

using namespace kvtl;
using benchmark::State;

constexpr std::size_t cached_bytes = 256 << 10, memory_bytes = 64 << 20;

/// What one iteration reads or writes, and computes.
void report(State& state, double bytes, double flops) {
    using benchmark::Counter;
    if (bytes > 0) state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsIterationInvariantRate);
    if (flops > 0) state.counters["GFLOP/s"] = Counter(flops * 1e-9, Counter::kIsIterationInvariantRate);
}

bool all_agree = true; ///< no kernel has failed its check

/// False, and the benchmark fails, unless got is within `tolerance` of exact, relative to `scale`.
bool agrees(State& state, double got, double exact, double scale, double tolerance = 1e-5) {
    if (std::fabs(got - exact) <= tolerance * scale) return true;
    all_agree = false;
    state.SkipWithError(
        ("result is " + std::to_string(got) + ", should be " + std::to_string(exact)).c_str());
    return false;
}

template <class F> void measure(State& state, F&& kernel) {
    for (auto _ : state) {
        kernel();
        benchmark::ClobberMemory();
    }
}

template <class F> void add(const std::string& name, F run) {
    benchmark::RegisterBenchmark(name.c_str(), run);
}

template <element E> std::string named(const char* kernel, std::size_t dim) {
    return std::string(kernel) + "/" + std::string(element_name<E>()) + "/" + std::to_string(dim);
}

/// Random rows of `bytes` bytes. Large tables repeat a small one: random numbers take longer than measuring.
template <element E> std::vector<E> rows_of(std::size_t bytes, std::size_t dim) {
    const std::size_t n = bytes / (sizeof(E) * dim) * dim;
    std::vector<E> rows = oracle::normal_values<E>(std::min(n, cached_bytes / sizeof(E) / dim * dim), 1);
    const std::size_t period = rows.size();
    rows.resize(n);
    for (std::size_t i = period; i < n; ++i) rows[i] = rows[i - period];
    return rows;
}

// ---------------------------------------------------------------------------- rows against a query

template <element E> void dot_rows(State& state, std::size_t dim, std::size_t group, std::size_t bytes) {
    const auto memory = rows_of<E>(bytes, dim);
    const rows_view<E> rows{memory.data(), memory.size() / dim, dim, dim};
    const auto q = oracle::normal_values(group * dim, 2);
    std::vector<float> out(group * rows.count);
    simd::dot_group(q.data(), group, dim, rows, out.data(), rows.count);
    const float* last = q.data() + (group - 1) * dim;
    if (!agrees(state, out.back(), oracle::dot(last, rows.row(rows.count - 1), dim),
                static_cast<double>(dim)))
        return;
    measure(state, [&] { simd::dot_group(q.data(), group, dim, rows, out.data(), rows.count); });
    report(state, static_cast<double>(memory.size() * sizeof(E)),
           2.0 * static_cast<double>(memory.size() * group));
}

template <element E> void dot_columns(State& state, std::size_t width, std::size_t group) {
    const auto memory = rows_of<E>(cached_bytes, width * simd::column_block);
    const std::size_t count = memory.size() / width;
    const simd::columns_view<E> rows{memory.data(), count, width, 0, width};
    const auto q = oracle::normal_values(group * width, 2);
    std::vector<float> out(group * count);
    const auto kernel = [&] { simd::dot_columns(q.data(), group, width, rows, out.data(), count); };
    kernel();
    double exact = 0; // the last row: the last number of each column of the last block
    for (std::size_t c = 0; c < width; ++c)
        exact += oracle::value(q[(group - 1) * width + c]) *
                 oracle::value(memory[memory.size() - (width - 1 - c) * simd::column_block - 1]);
    if (!agrees(state, out.back(), exact, static_cast<double>(width))) return;
    measure(state, kernel);
    report(state, static_cast<double>(memory.size() * sizeof(E)),
           2.0 * static_cast<double>(memory.size() * group));
}

template <element E> void l2sq_rows(State& state, std::size_t dim) {
    const auto memory = rows_of<E>(cached_bytes, dim);
    const rows_view<E> rows{memory.data(), memory.size() / dim, dim, dim};
    const auto q = oracle::normal_values(dim, 2);
    std::vector<float> out(rows.count);
    simd::l2sq_rows(q.data(), rows, out.data());
    const double exact = oracle::l2sq(q.data(), rows.row(rows.count - 1), dim);
    if (!agrees(state, out.back(), exact, exact)) return;
    measure(state, [&] { simd::l2sq_rows(q.data(), rows, out.data()); });
    report(state, static_cast<double>(memory.size() * sizeof(E)), 3.0 * static_cast<double>(memory.size()));
}

template <element E> void nearest_row(State& state, std::size_t dim) {
    const auto memory = rows_of<E>(cached_bytes, dim);
    const rows_view<E> rows{memory.data(), memory.size() / dim, dim, dim};
    const auto q = oracle::normal_values(dim, 2);
    simd::neighbour found = simd::nearest_row(q.data(), rows);
    if (!agrees(state, static_cast<double>(found.index),
                static_cast<double>(oracle::nearest(q.data(), rows).index), 1))
        return;
    measure(state, [&] { benchmark::DoNotOptimize(found = simd::nearest_row(q.data(), rows)); });
    report(state, static_cast<double>(memory.size() * sizeof(E)), 3.0 * static_cast<double>(memory.size()));
}

template <element E> void kmeans_assign(State& state, std::size_t dim, std::size_t count) {
    const oracle::table<E> points(2048, dim, dim, 1);
    const auto centroids = oracle::normal_values(count * dim, 2);
    std::vector<float> half(count), distance(points.count);
    std::vector<std::uint32_t> label(points.count);
    for (std::size_t c = 0; c < count; ++c)
        half[c] = 0.5F * simd::dot(centroids.data() + c * dim, centroids.data() + c * dim, dim);
    const auto run = [&] {
        simd::kmeans_assign(points.view(), centroids.data(), count, half.data(), label.data(),
                            distance.data());
    };
    run();
    const rows_view<float> all{centroids.data(), count, dim, dim};
    const double nearest = oracle::nearest(points.view().row(2047), all).distance;
    if (!agrees(state, distance[2047], nearest, nearest)) return;
    measure(state, run);
    report(state, static_cast<double>(points.memory.size() * sizeof(E)),
           2.0 * static_cast<double>(points.memory.size() * count));
}

// ------------------------------------------------------------------------------------ flat vectors

template <element E> void axpy(State& state, std::size_t dim) {
    const auto memory = rows_of<E>(cached_bytes, dim);
    std::vector<float> y(dim, 1.0F);
    simd::axpy(2.0F, memory.data(), y.data(), dim);
    if (!agrees(state, y[dim - 1], 2 * oracle::value(memory[dim - 1]) + 1, 1)) return;
    measure(state, [&] {
        for (std::size_t i = 0; i < memory.size(); i += dim)
            simd::axpy(0.5F, memory.data() + i, y.data(), dim);
    });
    report(state, static_cast<double>(memory.size() * sizeof(E)), 2.0 * static_cast<double>(memory.size()));
}

template <element E> void encode(State& state) {
    const auto in = oracle::normal_values(cached_bytes / 4, 1);
    std::vector<E> out(in.size());
    simd::encode(in.data(), out.data(), in.size());
    if (!agrees(state, oracle::value(out.back()), oracle::value(from_float<E>(in.back())), 0)) return;
    measure(state, [&] { simd::encode(in.data(), out.data(), in.size()); });
    report(state, static_cast<double>(in.size() * sizeof(E)), 0);
}

template <element E> void decode(State& state) {
    const auto in = oracle::normal_values<E>(cached_bytes / 4, 1);
    std::vector<float> out(in.size());
    simd::decode(in.data(), out.data(), in.size());
    if (!agrees(state, oracle::value(out.back()), oracle::value(in.back()), 0)) return;
    measure(state, [&] { simd::decode(in.data(), out.data(), in.size()); });
    report(state, static_cast<double>(in.size() * sizeof(E)), 0);
}

void all_finite(State& state) {
    const auto x = oracle::normal_values(cached_bytes / 4, 1);
    bool finite = simd::all_finite(x.data(), x.size());
    if (!agrees(state, finite, 1, 0)) return;
    measure(state, [&] { benchmark::DoNotOptimize(finite = simd::all_finite(x.data(), x.size())); });
    report(state, static_cast<double>(x.size() * sizeof(float)), 0);
}

template <element E> void absorb(State& state, std::size_t dim) {
    const auto memory = rows_of<E>(cached_bytes, dim);
    const rows_view<E> rows{memory.data(), memory.size() / dim, dim, dim};
    std::vector<float> mean(dim, 0.0F);
    float m2 = 0;
    const auto run = [&] {
        m2 = 0;
        for (std::size_t i = 0; i < rows.count; ++i)
            simd::absorb(rows.row(i), dim, static_cast<std::uint32_t>(i), mean.data(), m2);
    };
    run();
    const double exact = oracle::moments_of(rows).m2;
    if (!agrees(state, m2, exact, exact, 1e-4)) return;
    measure(state, run);
    report(state, static_cast<double>(memory.size() * sizeof(E)), 5.0 * static_cast<double>(memory.size()));
}

template <element E> void mean_and_m2(State& state, std::size_t dim) {
    const auto memory = rows_of<E>(cached_bytes, dim);
    const rows_view<E> rows{memory.data(), memory.size() / dim, dim, dim};
    std::vector<float> mean(dim);
    const double exact = oracle::moments_of(rows).m2;
    if (!agrees(state, simd::mean_and_m2(rows, mean.data()), exact, exact, 1e-4)) return;
    measure(state, [&] { benchmark::DoNotOptimize(simd::mean_and_m2(rows, mean.data())); });
    report(state, static_cast<double>(memory.size() * sizeof(E)), 4.0 * static_cast<double>(memory.size()));
}

// -------------------------------------------------------------------------------- scores and pages

void top_k(State& state, std::size_t n, std::size_t k) {
    const auto score = oracle::normal_values(n, 1);
    std::vector<std::uint32_t> out(k);
    std::vector<std::uint64_t> scratch(simd::top_k_scratch(n, k));
    simd::top_k(score.data(), n, k, out.data(), scratch);
    if (!agrees(state, out == oracle::top_k(score.data(), n, k), 1, 0)) return;
    measure(state, [&] { simd::top_k(score.data(), n, k, out.data(), scratch); });
}
void top_k_by_index(State& state, std::size_t n, std::size_t k) {
    const auto score = oracle::normal_values(n, 9);
    std::vector<std::uint32_t> out(k);
    std::vector<std::uint64_t> scratch(simd::top_k_scratch(n, k));
    simd::top_k_by_index(score.data(), n, k, out.data(), scratch);
    auto expected = oracle::top_k(score.data(), n, k);
    std::sort(expected.begin(), expected.end());
    if (!agrees(state, out == expected, 1, 0)) return;
    measure(state, [&] { simd::top_k_by_index(score.data(), n, k, out.data(), scratch); });
    report(state, static_cast<double>(n * sizeof(float)), 0);
}

void max_of(State& state, std::size_t n) {
    const auto x = oracle::normal_values(n, 1);
    if (!agrees(state, simd::max_of(x.data(), n), *std::max_element(x.begin(), x.end()), 0)) return;
    measure(state, [&] { benchmark::DoNotOptimize(simd::max_of(x.data(), n)); });
    report(state, static_cast<double>(n * sizeof(float)), 0);
}

void exp_shifted_sum(State& state, std::size_t n) {
    const auto logits = oracle::normal_values(n, 1);
    double exact = 0;
    for (const float x : logits) exact += std::exp(oracle::value(x) - 4);
    auto x = logits;
    if (!agrees(state, simd::exp_shifted_sum(x.data(), n, 4.0F), exact, exact)) return;
    measure(state, [&] { // in place: the weights of one round are harmless logits of the next
        benchmark::DoNotOptimize(simd::exp_shifted_sum(x.data(), n, 0.5F));
    });
    report(state, static_cast<double>(n * sizeof(float)), 0);
}

void log_sum_exp(State& state, std::size_t n) {
    const auto x = oracle::normal_values(n, 1);
    double exact = 0;
    for (const float v : x) exact += std::exp(oracle::value(v));
    if (!agrees(state, simd::log_sum_exp(x.data(), n), std::log(exact), 1)) return;
    measure(state, [&] { benchmark::DoNotOptimize(simd::log_sum_exp(x.data(), n)); });
    report(state, static_cast<double>(n * sizeof(float)), 0);
}

void page_checksum(State& state, std::size_t bytes) {
    std::vector<std::byte> page(bytes);
    const std::uint32_t zeros = simd::page_checksum(page.data(), bytes);
    page[bytes / 2] = std::byte{1};
    if (!agrees(state, simd::page_checksum(page.data(), bytes) != zeros, 1, 0)) return;
    measure(state, [&] { benchmark::DoNotOptimize(simd::page_checksum(page.data(), bytes)); });
    report(state, static_cast<double>(bytes), 0);
}

// --------------------------------------------------------------------------------------- attention

/// Decode: one query group over T rows of K and V.
template <element E> void attend(State& state, std::uint32_t dim, std::uint32_t group, std::size_t tokens) {
    const oracle::table<E> k(tokens, dim, dim, 1), v(tokens, dim, dim, 2);
    const auto q = oracle::normal_values(group * dim, 3);
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    bench::line_floats memory(partial_floats(group, dim)), scratch(simd::attend_scratch_floats(group));
    std::vector<float> out(group * dim);
    const partial part = partial_at(memory.data(), group, dim);
    const auto run = [&] {
        reset(part);
        simd::attend_rows(q.data(), dim, scale, k.view(), v.view(), nullptr, part, scratch);
        finish(part, out.data(), dim);
    };
    run();
    const float* last = q.data() + (group - 1) * dim;
    if (!agrees(state, out.back(), oracle::attend(last, oracle::value(scale), k.view(), v.view()).back(), 1))
        return;
    measure(state, run);
    const double numbers = 2.0 * static_cast<double>(tokens * dim);
    report(state, numbers * sizeof(E), 2.0 * numbers * group);
}

/// Prefill: T queries per head over the T rows, each up to its own.
template <element E>
void attend_causal(State& state, std::size_t dim, std::size_t group, std::size_t tokens) {
    const oracle::table<E> k(tokens, dim, dim, 1), v(tokens, dim, dim, 2);
    const auto q = oracle::normal_values(tokens * group * dim, 3);
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    std::vector<float> out(q.size()), scratch(simd::causal_scratch_floats(dim));
    const auto run = [&] {
        simd::attend_causal(q, group * dim, group, scale, tokens, k.view(), v.view(), 0, out, group * dim,
                            scratch);
    };
    run();
    const float* last = q.data() + q.size() - dim;
    if (!agrees(state, out.back(), oracle::attend(last, oracle::value(scale), k.view(), v.view()).back(), 1))
        return;
    measure(state, run);
    const double pairs =
        static_cast<double>(group) * static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
    report(state, 0, 4.0 * pairs * static_cast<double>(dim));
}

// ----------------------------------------------------------------- low rank: coefficients and a basis

/// `count` records of `rank` numbers each, as far apart as their bytes allow, and the rows that point into them.
struct coefficients {
    coefficients(std::size_t count, std::size_t rank)
        : numbers(oracle::normal_values<f16>(count * rank, 1)), rows(count) {
        for (std::size_t i = 0; i < count; ++i)
            rows[i] = {numbers.data() + i * rank, static_cast<std::uint32_t>(rank)};
    }
    std::vector<f16> numbers;
    std::vector<simd::coefficient_row<f16>> rows;
};

constexpr std::size_t low_rank_rows = 32; ///< at once: a block of attention

/// Keys of a head of `dim` rebuilt from a rank of 128 numbers.
void combine_rows(State& state, std::size_t rank, std::size_t dim) {
    const coefficients from(low_rank_rows, rank);
    const oracle::table<float> basis(128, dim, dim, 2);
    std::vector<float> out(low_rank_rows * dim);
    const auto run = [&] {
        simd::combine_rows(from.rows.data(), low_rank_rows, basis.view(), out.data(), dim);
    };
    run();
    double exact = 0;
    for (std::size_t r = 0; r < rank; ++r)
        exact += oracle::value(from.rows.back().data[r]) * oracle::value(basis.view().row(r)[dim - 1]);
    if (!agrees(state, out.back(), exact, static_cast<double>(rank))) return;
    measure(state, run);
    report(state, static_cast<double>(from.numbers.size() * sizeof(f16)),
           2.0 * static_cast<double>(low_rank_rows * rank * dim));
}

/// Coefficients of values summed for `group` queries, which the basis multiplies once.
void spectral_sums(State& state, std::size_t rank, std::size_t group) {
    const coefficients from(low_rank_rows, rank);
    const auto weight = oracle::normal_values(group * low_rank_rows, 2);
    std::vector<float> sums(group * rank, 0.0F);
    const auto run = [&] {
        simd::spectral_sums(weight.data(), group, low_rank_rows, from.rows.data(), low_rank_rows, 0, rank,
                            sums.data(), rank);
    };
    run();
    double exact = 0;
    for (std::size_t i = 0; i < low_rank_rows; ++i)
        exact += oracle::value(weight[(group - 1) * low_rank_rows + i]) *
                 oracle::value(from.rows[i].data[rank - 1]);
    if (!agrees(state, sums.back(), exact, static_cast<double>(low_rank_rows))) return;
    measure(state, run);
    report(state, static_cast<double>(from.numbers.size() * sizeof(f16)),
           2.0 * static_cast<double>(low_rank_rows * rank * group));
}

// ------------------------------------------------------------------------------------------- names

template <element E> void add_for_element() {
    const std::string type(element_name<E>());
    for (const std::size_t dim : {std::size_t{64}, std::size_t{80}, std::size_t{96}, std::size_t{128}}) {
        add(named<E>("dot", dim), [dim](State& s) { dot_rows<E>(s, dim, 1, cached_bytes); });
        add(named<E>("l2sq", dim), [dim](State& s) { l2sq_rows<E>(s, dim); });
    }
    for (const std::size_t group : {std::size_t{1}, std::size_t{4}}) { // short rows: along them, and across
        add(named<E>("dot_group", 32) + "/g=" + std::to_string(group),
            [=](State& s) { dot_rows<E>(s, 32, group, cached_bytes); });
        add(named<E>("dot_columns", 32) + "/g=" + std::to_string(group),
            [=](State& s) { dot_columns<E>(s, 32, group); });
    }
    for (const std::size_t dim : {std::size_t{64}, std::size_t{128}}) {
        add(named<E>("dot", dim) + "/mem", [dim](State& s) { dot_rows<E>(s, dim, 1, memory_bytes); });
        for (const std::size_t group : {std::size_t{4}, std::size_t{7}})
            add(named<E>("dot_group", dim) + "/g=" + std::to_string(group),
                [=](State& s) { dot_rows<E>(s, dim, group, cached_bytes); });
        add(named<E>("nearest_row", dim), [dim](State& s) { nearest_row<E>(s, dim); });
        for (const std::size_t k : {std::size_t{2}, std::size_t{32}, std::size_t{256}})
            add(named<E>("kmeans_assign", dim) + "/k=" + std::to_string(k),
                [=](State& s) { kmeans_assign<E>(s, dim, k); });
        add(named<E>("axpy", dim), [dim](State& s) { axpy<E>(s, dim); });
        add(named<E>("absorb", dim), [dim](State& s) { absorb<E>(s, dim); });
        add(named<E>("mean_and_m2", dim), [dim](State& s) { mean_and_m2<E>(s, dim); });
        for (const std::uint32_t group : {1U, 4U, 8U})
            add(named<E>("attend", dim) + "/g=" + std::to_string(group) + "/T=4096",
                [=](State& s) { attend<E>(s, static_cast<std::uint32_t>(dim), group, 4096); });
        add(named<E>("attend_causal", dim) + "/g=4/T=1024",
            [dim](State& s) { attend_causal<E>(s, dim, 4, 1024); });
    }
    add("encode/" + type, encode<E>);
    add("decode/" + type, decode<E>);
}

void add_all() {
    add_for_element<float>();
    add_for_element<f16>();
    add_for_element<bf16>();
    for (const std::size_t rank : {std::size_t{26}, std::size_t{64}}) { // of 128 numbers: 20 % and half
        const std::string of = "/rank=" + std::to_string(rank);
        add(named<f16>("combine_rows", 64) + of, [rank](State& s) { combine_rows(s, rank, 64); });
        for (const std::size_t group : {std::size_t{2}, std::size_t{4}})
            add(named<f16>("spectral_sums", 128) + of + "/g=" + std::to_string(group),
                [=](State& s) { spectral_sums(s, rank, group); });
    }
    add("all_finite", all_finite);
    for (const std::size_t k : {std::size_t{16}, std::size_t{64}, std::size_t{256}, std::size_t{1024}})
        add("topk/32768/k=" + std::to_string(k), [k](State& s) { top_k(s, 32768, k); });
    add("topk/4096/k=64", [](State& s) { top_k(s, 4096, 64); });
    add("topk/8192/k=512", [](State& s) { top_k(s, 8192, 512); });
    add("topk_by_index/8192/k=512", [](State& s) { top_k_by_index(s, 8192, 512); });
    add("max_of/4096", [](State& s) { max_of(s, 4096); });
    add("exp_shifted_sum/4096", [](State& s) { exp_shifted_sum(s, 4096); });
    add("log_sum_exp/4096", [](State& s) { log_sum_exp(s, 4096); });
    for (const std::size_t bytes : {std::size_t{4096}, std::size_t{16384}, std::size_t{65536}})
        add("page_checksum/" + std::to_string(bytes), [bytes](State& s) { page_checksum(s, bytes); });
}

} // namespace

int main(int argc, char** argv) {
    const auto refuse = [](const std::string& why) {
        std::fprintf(stderr, "kvtl-kernels: %s\n", why.c_str());
        return 2;
    };
    std::vector<std::string> arguments;
    std::optional<std::string> limits, rivals, file;
    std::optional<std::size_t> threads;
    for (int i = 0; i < argc; ++i) {
        const std::string_view argument = argv[i];
        if (argument == "--version") {
            std::puts("kvtl-kernels " KVTL_VERSION_STRING);
            return 0;
        }
        const bool of_limits = argument == "--limits" || argument.starts_with("--limits=");
        if (of_limits || argument == "--rivals" || argument.starts_with("--rivals=")) {
            (of_limits ? limits : rivals) = argument.substr(std::min<std::size_t>(argument.size(), 9));
        } else if (argument == "--threads") {
            const std::string_view number = i + 1 < argc ? argv[++i] : "";
            std::size_t n = 0;
            const auto [end, why] = std::from_chars(number.data(), number.data() + number.size(), n);
            if (why != std::errc() || end != number.data() + number.size() || n < 1 || n > 1024)
                return refuse("--threads is '" + std::string(number) + "'; valid: 1 to 1024");
            threads = n;
        } else if (argument != "--json") {
            arguments.emplace_back(argument);
        } else {
            if (i + 1 == argc) return refuse("--json needs a file name, or - for standard output");
            file = argv[++i];
        }
    }
    if (file && limits) return refuse("--json: valid: without --limits");
    if (threads && !limits && !rivals) return refuse("--threads: valid: with --limits or --rivals");
    if (limits) return kernels::print_limits({.filter = *limits, .threads = threads.value_or(1)});
    if (rivals)
        return kernels::print_rivals(
            {.file = file.value_or(""), .filter = *rivals, .threads = threads.value_or(1)});
    if (file == "-") {
        arguments.emplace_back("--benchmark_format=json");
    } else if (file) {
        if (!std::ofstream(*file, std::ios::app)) return refuse("--json: cannot write " + *file);
        arguments.emplace_back("--benchmark_out_format=json");
        arguments.emplace_back("--benchmark_out=" + *file);
    }
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    int count = static_cast<int>(pointers.size());
    benchmark::Initialize(&count, pointers.data());
    if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
    benchmark::AddCustomContext("kvtl", KVTL_VERSION_STRING);
    benchmark::AddCustomContext("arch", simd::default_arch::name());
    add_all();
    const std::size_t ran = benchmark::RunSpecifiedBenchmarks(); // says so where nothing matches
    benchmark::Shutdown();
    return ran == 0 ? 2 : all_agree ? 0 : 1;
}
