// Sines and cosines of every position that a cache may hold, in two short tables: angle(p) = angle(256 a) +
// angle(b).
//
// What:   rotates keys by their positions and back, in single precision within 3 ulp of each product.
// Bytes:  8 * pairs * (256 + max_tokens / 256): 0.1 MB for heads of 128 and 32,768 tokens.
// Cost:   10 multiplications per pair, a register of pairs at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvtl { inline namespace v0 {

class position_table {
  public:
    static constexpr std::uint32_t step = 256;
    static constexpr std::uint32_t max_dim = 1024; ///< of a head

    position_table() = default;

    [[nodiscard]] static std::size_t bytes(std::uint32_t pairs, std::uint32_t max_tokens) noexcept {
        return 2 * sizeof(float) * pairs * (std::size_t{step} + max_tokens / step + 1);
    }
    /// frequencies: (pairs) radians per position. memory: bytes(), aligned to 4; it must outlive the table.
    [[gnu::cold]] position_table(std::span<std::byte> memory, std::span<const double> frequencies,
                                 std::uint32_t max_tokens, bool neighbours) noexcept
        : table_(reinterpret_cast<float*>(memory.data())),
          pairs_(static_cast<std::uint32_t>(frequencies.size())), neighbours_(neighbours) {
        const std::size_t rows = std::size_t{step} + max_tokens / step + 1;
        for (std::size_t i = 0; i < rows; ++i) {
            const double position =
                i < step ? static_cast<double>(i) : static_cast<double>(step) * static_cast<double>(i - step);
            for (std::uint32_t pair = 0; pair < pairs_; ++pair) {
                row(i)[pair] = static_cast<float>(std::cos(position * frequencies[pair]));
                row(i)[pairs_ + pair] = static_cast<float>(std::sin(position * frequencies[pair]));
            }
        }
    }

    /// x: (at least 2 * pairs) of one head, turned to `position`.
    void turn(float* x, std::uint32_t position) const noexcept { turn_by<1>(x, position); }
    /// ... and away from it.
    void turn_back(float* x, std::uint32_t position) const noexcept { turn_by<-1>(x, position); }

  private:
    [[nodiscard]] float* row(std::size_t i) const noexcept { return table_ + 2 * i * pairs_; }

    template <int Sign> void turn_by(float* x, std::uint32_t position) const noexcept {
        const float *low = row(position % step), *high = row(step + position / step);
        if (neighbours_) return turn_neighbours<Sign>(x, low, high);
        using F = simd::floats<simd::default_arch>;
        constexpr std::size_t lane_count = simd::floats_per_register<simd::default_arch>;
        const auto some = [&](std::size_t i, auto get, auto put) __attribute__((always_inline)) {
            const F cl = get(low + i), sl = get(low + pairs_ + i), ch = get(high + i),
                    sh = get(high + pairs_ + i);
            const F c = ch * cl - sh * sl;
            const F s = (sh * cl + ch * sl) * F(static_cast<float>(Sign));
            const F a = get(x + i), b = get(x + pairs_ + i);
            put(x + i, a * c - b * s);
            put(x + pairs_ + i, b * c + a * s);
        };
        // Whole registers apart: what is stored under a mask cannot be loaded again without waiting for it.
        std::size_t i = 0;
        for (; i + lane_count <= pairs_; i += lane_count)
            some(
                i, [](const float* p) { return simd::load<simd::default_arch>(p); },
                [](float* p, const F& v) { simd::store<simd::default_arch>(p, v); });
        if (const std::size_t n = pairs_ - i; n != 0)
            some(
                i, [n](const float* p) { return simd::load_part<simd::default_arch>(p, n); },
                [n](float* p, const F& v) { simd::store_part<simd::default_arch>(p, v, n); });
    }

    /// The compilers' own vectors: eight pairs, whatever the registers.
    template <int Sign> void turn_neighbours(float* x, const float* low, const float* high) const noexcept {
        using eight __attribute__((vector_size(32))) = float;
        using pairs __attribute__((vector_size(64))) = float;
        constexpr float s_ = static_cast<float>(Sign);
        constexpr pairs signs = {-s_, s_, -s_, s_, -s_, s_, -s_, s_, -s_, s_, -s_, s_, -s_, s_, -s_, s_};
        std::uint32_t i = 0;
        for (; i + 8 <= pairs_; i += 8) {
            eight cl, sl, ch, sh;
            std::memcpy(&cl, low + i, sizeof cl);
            std::memcpy(&sl, low + pairs_ + i, sizeof sl);
            std::memcpy(&ch, high + i, sizeof ch);
            std::memcpy(&sh, high + pairs_ + i, sizeof sh);
            const eight c = ch * cl - sh * sl, s = sh * cl + ch * sl;
            const pairs cc = __builtin_shufflevector(c, c, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            const pairs ss = __builtin_shufflevector(s, s, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            pairs v;
            std::memcpy(&v, x + 2 * i, sizeof v);
            const pairs other =
                __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
            v = v * cc + other * (ss * signs);
            std::memcpy(x + 2 * i, &v, sizeof v);
        }
        for (; i < pairs_; ++i) {
            const float c = high[i] * low[i] - high[pairs_ + i] * low[pairs_ + i];
            const float s = s_ * (high[pairs_ + i] * low[i] + high[i] * low[pairs_ + i]);
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * c - b * s;
            x[2 * i + 1] = b * c + a * s;
        }
    }

    float* table_ = nullptr;
    std::uint32_t pairs_ = 0;
    bool neighbours_ = false;
};

// How policies that turn rows describe RoPE, as fields of their config: frequencies, dims, neighbours.

/// Pairs of a head's channels that turn.
template <class Config> [[nodiscard]] std::uint32_t rope_pairs(const Config& c, std::uint32_t dim) noexcept {
    return (c.dims == 0 ? dim : std::min(c.dims, dim)) / 2;
}
/// What heads of this size cannot have.
template <class Config> [[nodiscard]] status check_rope(const Config& c, std::uint32_t dim) noexcept {
    const auto wrong = errc::invalid_argument;
    if (dim > position_table::max_dim)
        return status::failure(wrong, "compressor: heads of %u numbers; valid: up to %u", dim,
                               position_table::max_dim);
    if (c.dims > dim || c.dims % 2 != 0)
        return status::failure(wrong, "compressor.dims is %u; valid: even, to head_dim (%u)", c.dims, dim);
    if (!c.frequencies.empty() && c.frequencies.size() != rope_pairs(c, dim))
        return status::failure(wrong,
                               "compressor.frequencies has %zu numbers; valid: none, or %u, one per pair",
                               c.frequencies.size(), rope_pairs(c, dim));
    for (std::size_t i = 0; i < c.frequencies.size(); ++i)
        if (!std::isfinite(c.frequencies[i]))
            return status::failure(wrong, "compressor.frequencies[%zu] is %g; valid: finite", i,
                                   c.frequencies[i]);
    return {};
}
/// memory: position_table::bytes().
template <class Config>
[[nodiscard, gnu::cold]] position_table rope_table(const Config& c, std::uint32_t dim,
                                                   std::uint32_t max_tokens,
                                                   std::span<std::byte> memory) noexcept {
    std::array<double, position_table::max_dim / 2> frequency{};
    const std::uint32_t pairs = rope_pairs(c, dim);
    for (std::uint32_t i = 0; i < pairs; ++i)
        frequency[i] =
            c.frequencies.empty() ? std::pow(10000.0, -static_cast<double>(i) / pairs) : c.frequencies[i];
    return {memory, std::span(frequency).first(pairs), max_tokens, c.neighbours};
}

}} // namespace kvtl::v0
