// What kernels are measured on, beside the machine's limits and beside other libraries: rows, names, attention, a clock.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/attention.hpp>
#include <kvtl/simd/codes.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/packed.hpp>

#include "line_allocator.hpp"
#include "support/oracle.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace kernels {

using namespace kvtl;
using simd::number;
using arch = simd::default_arch;

/// What the compiler may not leave out.
inline void keep(float& x) {
    asm volatile("" : "+x"(x) : : "memory");
}

/// Of the clock on the wall, what f() takes.
template <class F> double seconds(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

using wide = simd::floats<arch>;
inline constexpr std::size_t lanes = simd::floats_per_register<arch>;

/// The sum of all registers of the bytes, as floats whatever they are: a plain wide read.
inline void read_all(const std::byte* at, std::size_t bytes) {
    constexpr std::size_t at_once = 8, step = at_once * lanes * sizeof(float);
    wide sum[at_once];
    for (wide& s : sum) s = wide(0.0F);
    const auto* p = reinterpret_cast<const float*>(at);
    for (std::size_t i = 0; i + step <= bytes; i += step, p += at_once * lanes)
        simd::unrolled<at_once>([&](auto j) { sum[j] = sum[j] + simd::load<arch>(p + j * lanes); });
    wide total(0.0F);
    for (const wide& s : sum) total = total + s;
    float result = simd::reduce_add<arch>(total);
    keep(result);
}

/// Multiply-adds of whole registers that depend on nothing but themselves: as many as make up `operations`, two each. Returns
/// how many operations that were.
inline double multiply_add(double operations) {
    constexpr std::size_t chains = 12;
    const auto repeats = static_cast<std::size_t>(operations / (2.0 * static_cast<double>(chains * lanes)));
    wide sum[chains];
    for (std::size_t i = 0; i < chains; ++i) sum[i] = wide(static_cast<float>(i));
    float half = 0.5F;
    keep(half);
    const wide factor(half);
    for (std::size_t r = 0; r < repeats; ++r)
        simd::unrolled<chains>([&](auto i) { sum[i] = simd::fma<arch>(sum[i], factor, factor); });
    wide total(0.0F);
    for (const wide& s : sum) total = total + s;
    float result = simd::reduce_add<arch>(total);
    keep(result);
    return 2.0 * static_cast<double>(chains * repeats * lanes);
}

/// f(i, threads) for each of them at once; the caller's is the first.
template <class F> void on_threads(std::size_t threads, const F& f) {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back([&f, i, threads] { f(i, threads); });
    f(std::size_t{0}, threads);
}

/// Rows of one element type: `bytes` of them, a few random numbers again and again, in memory as a cache reserves it: much of
/// it in large pages.
template <number E> class rows_memory {
  public:
    explicit rows_memory(std::size_t bytes)
        : memory_(reserved(bytes)), count_(bytes / sizeof(E)),
          first_(reinterpret_cast<E*>(memory_.memory().data())) {
        constexpr std::size_t period = 1 << 16;
        const auto numbers = oracle::normal_values<f16>(period, 1);
        for (std::size_t i = 0; i < std::min(period, count_); ++i)
            if constexpr (std::is_same_v<E, std::int8_t>)
                first_[i] = static_cast<E>(std::clamp(30 * to_float(numbers[i]), -127.0F, 127.0F));
            else
                first_[i] = from_float<E>(to_float(numbers[i]));
        for (std::size_t i = period; i < count_; i += period)
            std::memcpy(first_ + i, first_, std::min(period, count_ - i) * sizeof(E));
    }
    rows_memory(const rows_memory&) = delete;
    rows_memory& operator=(const rows_memory&) = delete;

    /// Part `part` of `parts` equal ones, as rows.
    [[nodiscard]] rows_view<E> rows(std::size_t dim, std::size_t part = 0, std::size_t parts = 1) const {
        const std::size_t count = count_ / dim / parts;
        return {first_ + part * count * dim, count, dim, dim};
    }
    [[nodiscard]] const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(first_); }
    [[nodiscard]] std::byte* bytes() { return reinterpret_cast<std::byte*>(first_); }

  private:
    static reservation reserved(std::size_t bytes) {
        auto made = reservation::make(bytes);
        if (made) return std::move(*made);
        std::fprintf(stderr, "kvtl-kernels: %s\n", made.error().message.c_str());
        std::exit(1);
    }
    reservation memory_;
    std::size_t count_;
    E* first_;
};

template <number E> std::string_view type_name() {
    if constexpr (std::is_same_v<E, std::int8_t>)
        return "int8";
    else
        return element_name<E>();
}

template <number E> double bytes_of(rows_view<E> rows) {
    return static_cast<double>(rows.count * rows.dim * sizeof(E));
}

/// Attention of a group over rows: those of codes as the int8_row codec does it, with a scale for each.
template <number E> class attention {
  public:
    attention(std::size_t group, std::size_t dim, bool relaxed = false)
        : group_(group), relaxed_(relaxed), q_(oracle::normal_values(group * dim, 3)), out_(group * dim),
          scaled_(group * simd::attend_block),
          state_(partial_floats(static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(dim))),
          scratch_(simd::attend_scratch_floats(group)) {}

    void over(rows_view<E> keys, rows_view<E> values) {
        const auto dim = static_cast<std::uint32_t>(keys.dim);
        const partial part = partial_at(state_.data(), static_cast<std::uint32_t>(group_), dim);
        const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
        reset(part);
        if constexpr (element<E>) {
            simd::attend_rows(q_.data(), dim, {scale, 0, relaxed_}, keys, values, nullptr, part, scratch_);
        } else {
            const auto scale_scores = [](std::size_t n, std::size_t count, float* s) {
                for (std::size_t g = 0; g < count; ++g)
                    for (std::size_t i = 0; i < n; ++i) s[g * simd::attend_block + i] *= code_scale;
            };
            const auto scale_weights = [&](std::size_t count, const float* s) {
                for (std::size_t i = 0; i < count * simd::attend_block; ++i) scaled_[i] = s[i] * code_scale;
            };
            if constexpr (simd::has_relaxed_products<arch, E>)
                if (relaxed_) {
                    simd::attend_rounded<arch, E>(
                        q_.data(), dim, keys.count, scale, nullptr, part, scratch_, simd::all_queries,
                        [&](const auto& rounded, std::size_t first, std::size_t n, std::size_t begin,
                            std::size_t count, float* s) {
                            simd::score_rounded<arch, E>(rounded, begin, count, keys.slice(first, n), s,
                                                         simd::attend_block);
                            scale_scores(n, count, s);
                        },
                        [&](std::size_t first, std::size_t n, std::size_t count, const float* s, float* acc) {
                            scale_weights(count, s);
                            simd::accumulate_relaxed<arch>(scaled_.data(), count, values.slice(first, n), acc,
                                                           dim);
                        });
                    return finish(part, out_.data(), dim);
                }
            simd::attend_blocks<arch>(
                keys.count, scale, nullptr, part, scratch_, simd::all_queries,
                [&](std::size_t first, std::size_t n, std::size_t, std::size_t count, float* s) {
                    simd::score_rows<arch>(q_.data(), count, dim, keys.slice(first, n), s,
                                           simd::attend_block);
                    scale_scores(n, count, s);
                },
                [&](std::size_t first, std::size_t n, std::size_t count, const float* s, float* acc) {
                    scale_weights(count, s);
                    simd::accumulate_rows<arch>(scaled_.data(), count, values.slice(first, n), acc, dim);
                });
        }
        finish(part, out_.data(), dim);
    }
    [[nodiscard]] const float* queries() const { return q_.data(); }
    [[nodiscard]] const std::vector<float>& result() const { return out_; }

  private:
    static constexpr float code_scale = 1.0F / 30;
    std::size_t group_;
    bool relaxed_;
    std::vector<float> q_, out_, scaled_;
    bench::line_floats state_, scratch_;
};

/// The same over rows of 4-bit codes, as the int4_group codec does it.
class packed_attention {
  public:
    packed_attention(std::size_t group, std::size_t dim)
        : group_(group), q_(oracle::normal_values(group * dim, 3)), out_(group * dim),
          state_(partial_floats(static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(dim))),
          scratch_(simd::attend_scratch_floats(group)) {}

    void over(const simd::packed_rows<4, false>& keys, const simd::packed_rows<4, false>& values) {
        const auto dim = static_cast<std::uint32_t>(keys.dim);
        const partial part = partial_at(state_.data(), static_cast<std::uint32_t>(group_), dim);
        const auto some = [](auto rows, std::size_t first, std::size_t n) {
            rows.following = rows.count - first - n;
            rows.data += first * rows.stride;
            rows.count = n;
            return rows;
        };
        reset(part);
        simd::attend_blocks<arch>(
            keys.count, 1.0F / std::sqrt(static_cast<float>(dim)), nullptr, part, scratch_, simd::all_queries,
            [&](std::size_t first, std::size_t n, std::size_t begin, std::size_t count, float* s) {
                simd::score_packed<arch>(q_.data() + begin * dim, count, dim, some(keys, first, n), s,
                                         simd::attend_block);
            },
            [&](std::size_t first, std::size_t n, std::size_t count, const float* s, float* acc) {
                simd::accumulate_packed<arch>(s, count, some(values, first, n), acc, dim);
            });
        finish(part, out_.data(), dim);
    }
    [[nodiscard]] const float* queries() const { return q_.data(); }
    [[nodiscard]] const std::vector<float>& result() const { return out_; }

  private:
    std::size_t group_;
    std::vector<float> q_, out_;
    bench::line_floats state_, scratch_;
};

inline constexpr std::size_t head_sizes[] = {64, 80, 96, 128, 256};

template <number E> std::string named(const char* kernel, std::size_t dim, const std::string& rest) {
    return std::string(kernel) + "/" + std::string(type_name<E>()) + "/" + std::to_string(dim) + rest;
}

/// std::regex reports what is wrong by an exception.
inline bool compile(const std::string& text, std::regex& filter) {
    try {
        filter = std::regex(text);
    } catch (const std::regex_error&) {
        return false;
    }
    return true;
}

} // namespace kernels
