// The kernels beside their limits, in turn on the same data.
//
// Over rows that no cache holds the limit is the bandwidth of a loop of wide loads over the same bytes; over rows in the L1
// (16 KiB) or L2 cache (256 KiB) it is the rate of multiply-adds that never leave the registers. A multiply-add counts as
// two operations, the subtraction of a squared distance as none: it has units of its own on the processors we know.
// Results are tested elsewhere (tests/simd); here only the clock is read.
// SPDX-License-Identifier: MIT
#include "kernel_limits.hpp"

#include <kvtl/simd/assign.hpp>
#include <kvtl/simd/distance.hpp>

#include "kernel_data.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <regex>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kernels {
namespace {

/// The i-th of n shares of them.
template <number E> rows_view<E> share(rows_view<E> rows, std::size_t i, std::size_t n) {
    const std::size_t first = rows.count * i / n;
    return rows.slice(first, rows.count * (i + 1) / n - first);
}

class table {
  public:
    table(const limits_options& options, const std::regex& filter) : options_(&options), filter_(filter) {
        std::printf("%-28s %10s %10s %7s\n", "kernel", "reached", "limit", "share");
    }
    [[nodiscard]] bool wants(const std::string& name) const { return std::regex_search(name, filter_); }
    [[nodiscard]] std::size_t rows() const { return rows_; }
    [[nodiscard]] std::size_t threads() const { return options_->threads; }

    /// A kernel that reads `bytes` bytes from `from` on, against loads of the same: kernel(i, n) the i-th of n shares, each
    /// on a thread.
    template <class F>
    void memory(const std::string& name, const std::byte* from, double bytes, const F& kernel) {
        const auto loads = [&](std::size_t i, std::size_t n) {
            const std::size_t each = static_cast<std::size_t>(bytes) / n / 64 * 64;
            read_all(from + i * each, each);
        };
        double fastest = std::numeric_limits<double>::infinity(), limit = fastest;
        for (std::size_t r = 0; r < options_->rounds; ++r) {
            limit = std::min(limit, seconds([&] { on_threads(threads(), loads); }));
            fastest = std::min(fastest, seconds([&] { on_threads(threads(), kernel); }));
        }
        print(name, bytes * 1e-9 / fastest, bytes * 1e-9 / limit, "GB/s");
    }

    /// A kernel of so many operations, repeated for a few milliseconds, against multiply-adds in registers.
    template <class F> void compute(const std::string& name, double operations, F&& kernel) {
        const auto repeats = static_cast<std::size_t>(std::max(1.0, 2e8 / operations));
        double fastest = std::numeric_limits<double>::infinity(), peak = 0;
        kernel();
        for (std::size_t r = 0; r < 2 * options_->rounds; ++r) {
            double done = 0;
            const double limit = seconds([&] { done = multiply_add(6e7); });
            peak = std::max(peak, done * 1e-9 / limit);
            fastest = std::min(fastest, seconds([&] {
                                   for (std::size_t i = 0; i < repeats; ++i) kernel();
                               }));
        }
        print(name, operations * static_cast<double>(repeats) * 1e-9 / fastest, peak, "GFLOP/s");
    }

  private:
    void print(const std::string& name, double reached, double limit, const char* unit) {
        std::printf("%-28s %10.1f %10.1f %6.0f%%  %s\n", name.c_str(), reached, limit, 100 * reached / limit,
                    unit);
        std::fflush(stdout);
        ++rows_;
    }

    const limits_options* options_;
    std::regex filter_;
    std::size_t rows_ = 0;
};

constexpr std::size_t at_once = 1024; ///< rows of one call over memory: their results stay in the cache

template <number E> void from_memory(table& out, std::size_t bytes) {
    std::vector<std::string> wanted;
    for (const std::size_t dim : head_sizes)
        for (const char* kernel : {"dot", "l2sq", "attend"})
            if (auto name = named<E>(kernel, dim, "/mem"); out.wants(name)) wanted.push_back(name);
    if (wanted.empty()) return;
    const auto has = [&](const std::string& name) {
        return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    };
    const rows_memory<E> memory(bytes);
    for (const std::size_t dim : head_sizes) {
        const auto rows = memory.rows(dim);
        const auto q = oracle::normal_values(dim, 2);
        const std::vector<float> scale(at_once, 1.0F / 30);
        const auto sweep = [&](auto&& kernel) { // kernel(rows, room for their results)
            return [&rows, kernel](std::size_t part, std::size_t parts) {
                const auto own = share(rows, part, parts);
                std::vector<float> result(at_once);
                for (std::size_t i = 0; i < own.count; i += at_once)
                    kernel(own.slice(i, std::min(at_once, own.count - i)), result.data());
            };
        };
        if (const auto name = named<E>("dot", dim, "/mem"); has(name))
            out.memory(name, memory.bytes(), bytes_of(rows), sweep([&](rows_view<E> some, float* result) {
                           simd::dot_rows(q.data(), some, result);
                       }));
        if (const auto name = named<E>("l2sq", dim, "/mem"); has(name))
            out.memory(name, memory.bytes(), bytes_of(rows), sweep([&](rows_view<E> some, float* result) {
                           if constexpr (element<E>)
                               simd::l2sq_rows(q.data(), some, result);
                           else
                               simd::l2sq_codes(q.data(), some, scale.data(), result);
                       }));
        if (const auto name = named<E>("attend", dim, "/mem"); has(name)) {
            std::vector<attention<E>> groups(out.threads(), attention<E>(4, dim));
            const auto keys = memory.rows(dim, 0, 2), values = memory.rows(dim, 1, 2);
            out.memory(name, memory.bytes(), bytes_of(keys) + bytes_of(values),
                       [&](std::size_t i, std::size_t n) {
                           groups[i].over(share(keys, i, n), share(values, i, n));
                       });
        }
    }
}

template <number E> void from_cache(table& out, const char* level, std::size_t bytes) {
    const rows_memory<E> memory(bytes);
    for (const std::size_t dim : head_sizes) {
        const auto rows = memory.rows(dim);
        const auto numbers = static_cast<double>(rows.count * dim);
        for (const std::size_t group : {std::size_t{4}, std::size_t{8}}) {
            const std::string rest = "/g=" + std::to_string(group) + "/" + level;
            const auto q = oracle::normal_values(group * dim, 2);
            std::vector<float> result(group * rows.count);
            if (const auto name = named<E>("dot", dim, rest); out.wants(name))
                out.compute(name, 2 * numbers * static_cast<double>(group),
                            [&] { simd::dot_group(q.data(), group, dim, rows, result.data(), rows.count); });
            if (const auto name = named<E>("attend", dim, rest); out.wants(name)) {
                attention<E> heads(group, dim);
                const auto keys = memory.rows(dim, 0, 2), values = memory.rows(dim, 1, 2);
                out.compute(name, 2 * numbers * static_cast<double>(group),
                            [&] { heads.over(keys, values); });
            }
        }
        const auto q = oracle::normal_values(dim, 2);
        const std::vector<float> scale(rows.count, 1.0F / 30);
        std::vector<float> result(rows.count);
        if (const auto name = named<E>("l2sq", dim, std::string("/") + level); out.wants(name))
            out.compute(name, 2 * numbers, [&] {
                if constexpr (element<E>)
                    simd::l2sq_rows(q.data(), rows, result.data());
                else
                    simd::l2sq_codes(q.data(), rows, scale.data(), result.data());
            });
        if constexpr (element<E>) {
            constexpr std::size_t count = 256; // centroids
            if (const auto name = named<E>("assign", dim, std::string("/") + level); out.wants(name)) {
                const auto centroids = oracle::normal_values(count * dim, 4);
                std::vector<float> half(count);
                for (std::size_t c = 0; c < count; ++c)
                    half[c] = 0.5F * simd::dot(&centroids[c * dim], &centroids[c * dim], dim);
                std::vector<std::uint32_t> label(rows.count);
                out.compute(name, 2 * numbers * count, [&] {
                    simd::kmeans_assign(rows, centroids.data(), count, half.data(), label.data(),
                                        result.data());
                });
            }
        }
    }
}

template <number E> void all_of(table& out, std::size_t bytes) {
    from_memory<E>(out, bytes);
    if (out.threads() > 1) return; // caches are each core's own
    from_cache<E>(out, "L1", std::size_t{16} << 10);
    from_cache<E>(out, "L2", std::size_t{256} << 10);
}

} // namespace

int print_limits(const limits_options& options) {
    std::regex filter;
    if (!compile(options.filter, filter)) {
        std::fprintf(stderr, "kvtl-kernels: --limits=%s is no regular expression\n", options.filter.c_str());
        return 2;
    }
    table out(options, filter);
    const std::size_t bytes = options.mib << 20;
    all_of<float>(out, bytes);
    all_of<f16>(out, bytes);
    all_of<bf16>(out, bytes);
    all_of<std::int8_t>(out, bytes);
    if (out.rows() == 0) {
        std::fprintf(stderr, "kvtl-kernels: --limits=%s matches none of dot, l2sq, attend and assign%s\n",
                     options.filter.c_str(), options.threads > 1 ? " over rows in memory (--threads)" : "");
        return 2;
    }
    return 0;
}

} // namespace kernels
