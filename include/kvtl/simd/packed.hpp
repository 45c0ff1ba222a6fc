// Rows of 4-bit and 2-bit codes, scored and summed from their codes in registers.
//
// What:   number d of a row is level * step of its group of numbers, plus the group's middle if groups have one. The level of
//         code c is c - (2^Bits - 1) / 2: levels are symmetric and none is zero.
// Bytes:  a row is its steps (bf16, one per group), its middles (bf16, if any), then its codes. Groups have 32 or 64 numbers.
//         Codes come in *blocks* of 16 bytes: bits Bits * k of byte j hold number 16 k + j of the block. Of what is left behind
//         whole blocks, 32 numbers (only with 2 bits) and then the last numbers are blocks of as few bytes as hold them.
// Shapes: q (G,D) f32; rows (N, bytes); out (G,N); weights (G, attend_block); sums (G,D).
// Cost:   levels take two or three instructions per register, once for up to eight queries (four where there are 16 registers).
//         Scores have a lane per row, so that no lanes are added up: one row costs what a register of rows does. Steps
//         are multiplied with sums of levels, or with the weights of a block; with middles, with each number.
// Limits: any D and N. The bits of a row's score depend neither on the place of the row nor on the other queries. Scores of up to
//         256 numbers, and sums of a block, are within 4e-7 of the sum of magnitudes of their products (tests).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/convert.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvtl { inline namespace v0 { namespace simd {

/// How codes of `Bits` bits lie in a row.
template <std::size_t Bits> struct packed_format {
    static_assert(Bits == 4 || Bits == 2);
    static constexpr std::size_t per_byte = 8 / Bits;
    static constexpr std::size_t block_bytes = 16, block = block_bytes * per_byte;
    static constexpr std::size_t cell = 32; ///< numbers that share a step whatever the group
    static constexpr unsigned mask = (1U << Bits) - 1;
    static constexpr float centre = static_cast<float>(mask) / 2; ///< the largest level

    /// Numbers of the block that begins where `left` numbers are left.
    [[nodiscard]] static constexpr std::size_t block_of(std::size_t left) noexcept {
        return left >= block ? block : std::min(left, cell);
    }
    /// Bytes of a block of n numbers.
    [[nodiscard]] static constexpr std::size_t bytes_of(std::size_t n) noexcept {
        return (n + per_byte - 1) / per_byte;
    }
    /// Bytes of the codes of a row of `dim` numbers.
    [[nodiscard]] static constexpr std::size_t code_bytes(std::size_t dim) noexcept {
        return dim / block * block_bytes + bytes_of(dim % block);
    }
};

/// Rows of codes. With Middle, groups have a middle as well as a step.
template <std::size_t Bits, bool Middle> struct packed_rows {
    using format = packed_format<Bits>;
    const std::byte* data = nullptr; ///< row i is at data + i * stride
    std::size_t count = 0, dim = 0, stride = 0;
    std::size_t group = 32;    ///< numbers that share a step: 32 or 64
    std::size_t following = 0; ///< rows behind these that are likely to be read next

    [[nodiscard]] std::size_t group_of(std::size_t number) const noexcept {
        return number >> std::countr_zero(group);
    }
    [[nodiscard]] std::size_t groups() const noexcept { return group_of(dim + group - 1); }
    [[nodiscard]] std::size_t header_bytes() const noexcept {
        return groups() * sizeof(bf16) * (Middle ? 2 : 1);
    }
    [[nodiscard]] std::size_t row_bytes() const noexcept { return header_bytes() + format::code_bytes(dim); }
    [[nodiscard]] const std::byte* row(std::size_t i) const noexcept { return data + i * stride; }
};

namespace detail {

/// A 16-bit number in all lanes.
template <class Arch> [[gnu::always_inline]] inline floats<Arch> spread_bf16(const std::byte* p) noexcept {
    std::uint16_t bits = 0;
    std::memcpy(&bits, p, sizeof bits);
#if defined(__AVX512BW__)
    if constexpr (std::derived_from<Arch, xsimd::avx512bw>)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi16(static_cast<short>(bits)), 16));
#endif
#if defined(__AVX2__)
    if constexpr (std::derived_from<Arch, xsimd::avx2>)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_set1_epi16(static_cast<short>(bits)), 16));
#endif
    return floats<Arch>(std::bit_cast<float>(std::uint32_t{bits} << 16));
}

template <class Arch> using int_lanes = xsimd::batch<std::int32_t, Arch>;

/// A byte per lane.
template <class Arch> [[gnu::always_inline]] inline int_lanes<Arch> load_bytes(const std::byte* p) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>)
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
#if defined(__AVX2__)
    if constexpr (std::derived_from<Arch, xsimd::avx2>)
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
#if defined(__SSE2__)
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        int four = 0;
        std::memcpy(&four, p, sizeof four);
        const __m128i zero = _mm_setzero_si128();
        return _mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        std::uint32_t four = 0;
        std::memcpy(&four, p, sizeof four);
        const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
        return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
    }
#endif
    std::int32_t wide[floats_per_register<Arch>];
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) wide[i] = std::to_integer<std::int32_t>(p[i]);
    return int_lanes<Arch>::load_unaligned(wide);
}

/// The levels of the codes whose lowest bit is bit `Shift` of a lane. As the lowest bits of a mantissa a code is added to a power
/// of two, which is taken off again with the centre: exact, and on pipes that multiply-adds leave free.
template <class Arch, std::size_t Bits, std::size_t Shift>
[[gnu::always_inline]] inline floats<Arch> levels(const int_lanes<Arch>& cells, constant<Shift>) noexcept {
    using format = packed_format<Bits>;
    if constexpr (Shift + Bits > 23) {
        constexpr std::size_t down = 12; // the same for all of them, so that it is shifted once
        return levels<Arch, Bits>(cells >> static_cast<int>(down), constant<Shift - down>{});
    } else if constexpr (Shift > 0) {
        constexpr float power = static_cast<float>(1U << (23 - Shift));
        constexpr auto mask = static_cast<std::int32_t>(format::mask << Shift);
#if defined(__AVX512F__)
        if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
            const __m512i bits = _mm512_ternarylogic_epi32(cells, _mm512_set1_epi32(mask),
                                                           _mm512_castps_si512(_mm512_set1_ps(power)), 0xEA);
            return floats<Arch>(_mm512_castsi512_ps(bits)) - floats<Arch>(power + format::centre);
        }
#endif
        const int_lanes<Arch> bits =
            (cells & int_lanes<Arch>(mask)) | int_lanes<Arch>(std::bit_cast<std::int32_t>(power));
        return std::bit_cast<floats<Arch>>(bits) - floats<Arch>(power + format::centre);
    } else {
#if defined(__AVX512F__)
        if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
            // A lookup reads the lowest four bits of a lane. Of 2-bit codes two are the next code, so levels repeat.
            constexpr auto at = [](unsigned i) {
                return static_cast<float>(i & format::mask) - format::centre;
            };
            const __m512 table = _mm512_setr_ps(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8),
                                                at(9), at(10), at(11), at(12), at(13), at(14), at(15));
            return _mm512_permutexvar_ps(cells, table);
        }
#endif
        return xsimd::to_float(cells & int_lanes<Arch>(format::mask)) - floats<Arch>(format::centre);
    }
}

/// A group's numbers from their levels.
template <class Arch, bool Middle> struct group_scale {
    floats<Arch> step, middle;

    [[gnu::always_inline]] group_scale() noexcept : step(0.0F), middle(0.0F) {}
    [[gnu::always_inline]] group_scale(const std::byte* row, std::size_t group, std::size_t groups) noexcept
        : step(spread_bf16<Arch>(row + group * sizeof(bf16))), middle(0.0F) {
        if constexpr (Middle) middle = spread_bf16<Arch>(row + (groups + group) * sizeof(bf16));
    }
    [[nodiscard, gnu::always_inline]] floats<Arch> operator()(const floats<Arch>& level) const noexcept {
        if constexpr (Middle)
            return fma<Arch>(level, step, middle);
        else
            return level * step;
    }
};

/// Room for a block's numbers and what registers write behind them.
inline constexpr std::size_t packed_room = 64 + 16;

/// The numbers of a block of n < a whole block's, into `x`, which has packed_room; what is behind number n is finite.
template <class Arch, std::size_t Bits, bool Middle>
void unpack_part(const std::byte* codes, std::size_t n, const group_scale<Arch, Middle>& scale,
                 float* x) noexcept {
    using format = packed_format<Bits>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const std::size_t bytes = format::bytes_of(n);
#if defined(__AVX512F__)
    // Eight bytes fill a register twice. Stores that overlap, as below, are slow to read.
    if constexpr (Bits == 2 && std::derived_from<Arch, xsimd::avx512f>)
        if (n == format::cell) {
            long long eight = 0;
            std::memcpy(&eight, codes, sizeof eight);
            const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
            const int_lanes<Arch> all =
                _mm512_srlv_epi32(_mm512_cvtepu8_epi32(_mm_set1_epi64x(eight)), shift);
            unrolled<2>([&](auto half) {
                store<Arch>(x + half * lane_count,
                            scale(levels<Arch, Bits>(all, constant<2 * Bits * half>{})));
            });
            return;
        }
#endif
    std::byte whole[format::block_bytes] = {};
    std::memcpy(whole, codes, bytes);
    // From the lowest bits up: what a register writes behind the block's width is written over.
    unrolled<format::per_byte>([&](auto k) {
        for (std::size_t i = 0; i < bytes; i += lane_count)
            store<Arch>(x + k * bytes + i,
                        scale(levels<Arch, Bits>(load_bytes<Arch>(whole + i), constant<Bits * k>{})));
    });
}

/// visit(first number, codes, numbers) for the blocks of a row that are not whole, which are at most two.
template <std::size_t Bits, class Visit>
[[gnu::always_inline]] inline void for_parts(std::size_t dim, const std::byte* codes,
                                             Visit&& visit) noexcept {
    using format = packed_format<Bits>;
    std::size_t first = dim / format::block * format::block;
    codes += first / format::per_byte;
    while (first < dim) {
        const std::size_t n = format::block_of(dim - first);
        visit(first, codes, n);
        first += n;
        codes += format::bytes_of(n);
    }
}

/// Whether ask_packed() asks for any.
template <class Rows> [[nodiscard]] inline bool asks_packed(const Rows& rows) noexcept {
    return (rows.count + rows.following) * rows.stride > long_run_bytes;
}

/// Asks for row i of those that come some way behind, as ask_ahead() does.
template <class Arch, class Rows>
[[gnu::always_inline]] inline void ask_packed(const Rows& rows, std::size_t i, std::size_t n) noexcept {
    const std::size_t first = i + ahead_bytes / rows.stride;
    if (!asks_packed(rows) || first + n > rows.count + rows.following) return;
    for (std::size_t r = first; r < first + n; ++r)
        for (std::size_t at = 0; at < rows.row_bytes(); at += 64)
            prefetch_later<Arch>(reinterpret_cast<const char*>(rows.row(r)) + at);
}

/// Bytes of codes that a lane holds.
inline constexpr std::size_t lane_bytes = 4;
inline constexpr std::size_t block_lanes =
    4; ///< registers that hold a block of as many rows as a register has lanes

/// Lane r of cells[c] holds bytes 4 c to 4 c + 3 of the 16 at row[r] + at.
template <class Arch>
[[gnu::always_inline]] inline void load_cells(const std::byte* const* row, std::size_t at,
                                              int_lanes<Arch>* cells) noexcept {
#if defined(__AVX512DQ__)
    if constexpr (std::derived_from<Arch, xsimd::avx512dq>) {
        // Rows r, r + 4, r + 8 and r + 12 come to a register, whose blocks are transposed.
        __m512i x[4];
        unrolled<4>([&](auto r) __attribute__((always_inline)) {
            const auto load = [&](std::size_t i) __attribute__((always_inline)) {
                return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r + i] + at));
            };
            x[r] = _mm512_castsi128_si512(load(0));
            x[r] = _mm512_mask_broadcast_i32x4(x[r], 0x00F0, load(4));
            x[r] = _mm512_mask_broadcast_i32x4(x[r], 0x0F00, load(8));
            x[r] = _mm512_mask_broadcast_i32x4(x[r], 0xF000, load(12));
        });
        const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]),
                      c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
        const __m512i of[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                               _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)};
        // Lane 4 b + r is row r + 4 b.
        for (std::size_t i = 0; i < 4; ++i) cells[i] = of[i];
        return;
    }
#endif
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    for (std::size_t c = 0; c < block_lanes; ++c) {
        std::int32_t cell[lane_count];
        for (std::size_t r = 0; r < lane_count; ++r)
            std::memcpy(cell + r, row[r] + at + c * lane_bytes, sizeof cell[r]);
        cells[c] = int_lanes<Arch>::load_unaligned(cell);
    }
}

/// Where rows i to i + n begin; the last stands for those behind it, up to `most`.
template <class Rows>
[[gnu::always_inline]] inline void row_pointers(const Rows& rows, std::size_t i, std::size_t n,
                                                const std::byte** row, std::size_t most) noexcept {
    const std::byte* next = rows.row(i);
    for (std::size_t r = 0; r < most; ++r) {
        row[r] = next;
        if (r + 1 < n) next += rows.stride;
    }
}

/// A bf16 number of a row.
[[nodiscard, gnu::always_inline]] inline float bf16_at(const std::byte* p) noexcept {
    std::uint16_t bits = 0;
    std::memcpy(&bits, p, sizeof bits);
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

/// out[g * out_stride + r] = q_g . row i + r, for g < Q and r < n. S registers have a lane for each of the rows; n is at most
/// what they hold. Sums of a group's levels are multiplied by its step, so a level costs two operations on integers, and no
/// lanes have to be added up.
template <class Arch, std::size_t S, std::size_t Q, std::size_t Bits, bool Middle>
void packed_tile(const float* q, std::size_t q_stride, const packed_rows<Bits, Middle>& rows, std::size_t i,
                 std::size_t n, float* out, std::size_t out_stride) noexcept {
    using F = floats<Arch>;
    using format = packed_format<Bits>;
    constexpr std::size_t lane_count = floats_per_register<Arch>, R = S * lane_count;
    const std::size_t header = rows.header_bytes(), groups = rows.groups();
    const std::byte* row[R];
    row_pointers(rows, i, n, row, R);
    F total[Q * S];
    unrolled<Q * S>([&](auto j) { total[j] = F(0.0F); });
    int_lanes<Arch> cells[S][block_lanes];

    // Adds numbers from `first` on, which share a step. meet_all(meet) calls meet(number, levels) for each. Middles are added to
    // numbers, not to sums: a small number may be what is left of a large middle.
    const auto group = [&](std::size_t first, auto meet_all) __attribute__((always_inline)) {
        const std::size_t of = rows.group_of(first);
        alignas(64) float step[R],
            middle[R]; // steps are read when all levels are added up: stores are done by then
        for (std::size_t r = 0; r < R; ++r) {
            step[r] = bf16_at(row[r] + of * sizeof(bf16));
            if constexpr (Middle) middle[r] = bf16_at(row[r] + (groups + of) * sizeof(bf16));
        }
        F sum[Q * S];
        unrolled<Q * S>([&](auto j) { sum[j] = F(0.0F); });
        const float* query = q + first;
        meet_all([&](std::size_t number, F * x) __attribute__((always_inline)) {
            if constexpr (Middle)
                unrolled<S>([&](auto s) __attribute__((always_inline)) {
                    x[s] = keep<Arch>(fma<Arch>(x[s], load<Arch>(step + s * lane_count),
                                                load<Arch>(middle + s * lane_count)));
                });
            unrolled<Q>([&](auto g) __attribute__((always_inline)) {
                const F y = keep<Arch>(F(query[g * q_stride + number]));
                unrolled<S>([&](auto s) __attribute__((always_inline)) {
                    sum[g * S + s] = fma<Arch>(y, x[s], sum[g * S + s]);
                });
            });
        });
        unrolled<Q>([&](auto g) __attribute__((always_inline)) {
            unrolled<S>([&](auto s) __attribute__((always_inline)) {
                F& to = total[g * S + s];
                if constexpr (Middle)
                    to = to + sum[g * S + s];
                else
                    to = fma<Arch>(load<Arch>(step + s * lane_count), sum[g * S + s], to);
            });
        });
    };
    std::size_t first = 0;
    for (; first + format::block <= rows.dim; first += format::block) {
        unrolled<S>([&](auto s) __attribute__((always_inline)) {
            load_cells<Arch>(row + s * lane_count, header + first / format::per_byte, cells[s]);
        });
        unrolled<format::block / format::cell>([&](auto half) __attribute__((always_inline)) {
            group(
                first + half * format::cell, [&](auto meet) __attribute__((always_inline)) {
                    for (std::size_t c = 0; c < block_lanes; ++c)
                        unrolled<lane_bytes>([&](auto b) __attribute__((always_inline)) {
                            unrolled<2>([&](auto odd) __attribute__((always_inline)) {
                                F x[S];
                                unrolled<S>([&](auto s) __attribute__((always_inline)) {
                                    constexpr std::size_t shift = 8 * b + Bits * (2 * half + odd);
                                    x[s] = keep<Arch>(levels<Arch, Bits>(cells[s][c], constant<shift>{}));
                                });
                                meet(odd * format::block_bytes + c * lane_bytes + b, x);
                            });
                        });
                });
        });
    }
    if (first < rows.dim)
        for_parts<Bits>(
            rows.dim, row[0] + header, [&](std::size_t part, const std::byte* codes, std::size_t count) {
                const std::size_t bytes = format::bytes_of(count);
                std::byte whole[R][format::block_bytes] = {};
                const std::byte* copy[R];
                for (std::size_t r = 0; r < R; ++r) {
                    std::memcpy(whole[r], row[r] + (codes - row[0]), bytes);
                    copy[r] = whole[r];
                }
                unrolled<S>([&](auto s) { load_cells<Arch>(copy + s * lane_count, 0, cells[s]); });
                group(
                    part, [&](auto meet) __attribute__((always_inline)) {
                        for (std::size_t number = 0; number < count; ++number) {
                            const std::size_t byte = number % bytes;
                            const auto shift =
                                static_cast<int>(8 * (byte % lane_bytes) + Bits * (number / bytes));
                            F x[S];
                            unrolled<S>([&](auto s) __attribute__((always_inline)) {
                                x[s] =
                                    levels<Arch, Bits>(cells[s][byte / lane_bytes] >> shift, constant<0>{});
                            });
                            meet(number, x);
                        }
                    });
            });
    unrolled<Q>([&](auto g) {
        unrolled<S>([&](auto s) {
            float* to = out + g * out_stride + s * lane_count;
            if (n >= (s + 1) * lane_count)
                store<Arch>(to, total[g * S + s]);
            else if (n > s * lane_count)
                store_part<Arch>(to, total[g * S + s], n - s * lane_count);
        });
    });
}

/// Numbers (bf16) of the headers of rows that have a whole block of codes: a register per `lanes` rows. Eight are loaded at once.
template <class Arch> class header_numbers {
  public:
    explicit header_numbers(const std::byte* const* row) noexcept : row_(row) {}

    /// Number `at` of all rows from now on.
    [[gnu::always_inline]] void choose(std::size_t at) noexcept {
        at_ = at % per_load;
        if (at / per_load == loaded_) return;
        loaded_ = at / per_load;
        unrolled<registers>([&](auto i) __attribute__((always_inline)) {
            load_cells<Arch>(row_ + i * floats_per_register<Arch>, loaded_ * per_load * sizeof(bf16),
                             cells_[i]);
        });
    }
    /// Those of rows i * lanes and on.
    [[nodiscard, gnu::always_inline]] floats<Arch> operator()(std::size_t i) const noexcept {
        const int_lanes<Arch> two = cells_[i][at_ / 2];
        const int_lanes<Arch> high(static_cast<std::int32_t>(0xFFFF0000U));
        return std::bit_cast<floats<Arch>>(at_ % 2 != 0 ? two & high : two << 16);
    }

  private:
    static constexpr std::size_t per_load = block_lanes * lane_bytes / sizeof(bf16);
    static constexpr std::size_t registers = attend_block / floats_per_register<Arch>;
    const std::byte* const* row_;
    int_lanes<Arch> cells_[registers][block_lanes];
    std::size_t loaded_ = ~std::size_t{0}, at_ = 0;
};

/// acc[g][d] += sum over the rows of weight[g][row] * row[d], for Q queries and the numbers of S strips of codes, from byte
/// `at` of the codes on. A strip is a register's worth of bytes. Without middles, steps are multiplied with weights, not with
/// each number.
template <class Arch, std::size_t Q, std::size_t S, std::size_t Bits, bool Middle>
void packed_strips(const float* weight, const packed_rows<Bits, Middle>& rows, header_numbers<Arch>& steps,
                   std::size_t at, float* acc, std::size_t acc_stride) noexcept {
    using F = floats<Arch>;
    using format = packed_format<Bits>;
    constexpr std::size_t P = format::per_byte, lane_count = floats_per_register<Arch>;
    constexpr std::size_t strip = std::min(lane_count, format::block_bytes);
    const std::size_t header = rows.header_bytes();
    const auto number = [at](std::size_t s, std::size_t k) {
        const std::size_t byte = at + s * strip;
        return byte / format::block_bytes * format::block + k * format::block_bytes +
               byte % format::block_bytes;
    };
    // Two codes of a byte share a step, whatever the byte's place in its block.
    const auto group = [&](std::size_t j) { return rows.group_of(number(j / (P / 2), j % (P / 2) * 2)); };
    alignas(64) float scaled[Middle ? 1 : S * P / 2][Q * attend_block];
    if constexpr (!Middle)
        unrolled<S * P / 2>([&](auto j) __attribute__((always_inline)) {
            steps.choose(group(j));
            unrolled<Q>([&](auto g) __attribute__((always_inline)) {
                unrolled<attend_block / lane_count>([&](auto i) __attribute__((always_inline)) {
                    constexpr std::size_t of = g * attend_block + i * lane_count;
                    store<Arch>(scaled[j] + of,
                                load<Arch>(weight + of) * steps(i)); // behind the last row: not used
                });
            });
        });
    F sum[Q * S * P];
    unrolled<Q>([&](auto g) {
        unrolled<S * P>([&](auto j) {
            sum[g * S * P + j] = Middle ? load<Arch>(acc + g * acc_stride + number(j / P, j % P)) : F(0.0F);
        });
    });
    const auto sum_rows = [&](auto asks) __attribute__((always_inline)) {
        for (std::size_t r = 0; r < rows.count; ++r) {
            const std::byte* row = rows.row(r);
            if constexpr (asks != 0) ask_packed<Arch>(rows, r, 1);
            F x[S * P];
            unrolled<S>([&](auto s) __attribute__((always_inline)) {
                const int_lanes<Arch> bytes = load_bytes<Arch>(row + header + at + s * strip);
                unrolled<P>([&](auto k) __attribute__((always_inline)) {
                    x[s * P + k] = keep<Arch>(levels<Arch, Bits>(bytes, constant<Bits * k>{}));
                });
            });
            if constexpr (Middle)
                unrolled<S * P / 2>([&](auto j) __attribute__((always_inline)) {
                    const group_scale<Arch, Middle> scale(row, group(j), rows.groups());
                    x[2 * j] = keep<Arch>(scale(x[2 * j]));
                    x[2 * j + 1] = keep<Arch>(scale(x[2 * j + 1]));
                });
            unrolled<Q>([&](auto g) __attribute__((always_inline)) {
                unrolled<S * P / 2>([&](auto j) __attribute__((always_inline)) {
                    const float* of = Middle ? weight : scaled[Middle ? 0 : j];
                    const F w = keep<Arch>(F(of[g * attend_block + r]));
                    unrolled<2>([&](auto odd) {
                        constexpr std::size_t to = g * S * P + 2 * j + odd;
                        sum[to] = fma<Arch>(w, x[2 * j + odd], sum[to]);
                    });
                });
            });
        }
    };
    if (at == 0 && asks_packed(rows)) // the first pass asks for all
        sum_rows(constant<1>{});
    else
        sum_rows(constant<0>{});
    unrolled<Q>([&](auto g) {
        unrolled<S * P>([&](auto j) {
            float* to = acc + g * acc_stride + number(j / P, j % P);
            const F x = sum[g * S * P + j];
            store<Arch>(to, Middle ? x : load<Arch>(to) + x);
        });
    });
}

/// packed_strips over all numbers, for Q queries.
template <class Arch, std::size_t Q, std::size_t Bits, bool Middle>
void packed_sums(const float* weight, const packed_rows<Bits, Middle>& rows, float* acc,
                 std::size_t acc_stride) noexcept {
    using format = packed_format<Bits>;
    constexpr std::size_t lane_count = floats_per_register<Arch>, P = format::per_byte;
    constexpr std::size_t strip = std::min(lane_count, format::block_bytes);
    constexpr std::size_t widest =
        std::bit_floor(std::max<std::size_t>(1, std::min<std::size_t>(8, sum_registers<Arch> / Q) / P));
    const std::size_t whole = rows.dim / format::block * format::block_bytes;
    const std::byte* row[attend_block];
    row_pointers(rows, 0, rows.count, row, attend_block);
    header_numbers<Arch> steps(row);
    std::size_t at = 0;
    const auto passes = [&](auto n) {
        for (; at + n * strip <= whole; at += n * strip)
            packed_strips<Arch, Q, n>(weight, rows, steps, at, acc, acc_stride);
    };
    passes(constant<widest>{});
    if constexpr (widest > 2) passes(constant<2>{});
    if constexpr (widest > 1) passes(constant<1>{});
    if (rows.dim % format::block == 0) return;
    float x[packed_room], sums[Q * packed_room] = {};
    const std::size_t begin = rows.dim / format::block * format::block;
    for (std::size_t r = 0; r < rows.count; ++r)
        for_parts<Bits>(
            rows.dim, row[r] + rows.header_bytes(),
            [&](std::size_t part, const std::byte* codes, std::size_t n) {
                unpack_part<Arch, Bits>(
                    codes, n, group_scale<Arch, Middle>(row[r], rows.group_of(part), rows.groups()), x);
                for (std::size_t g = 0; g < Q; ++g)
                    axpy<Arch>(weight[g * attend_block + r], x, sums + g * packed_room + part - begin, n);
            });
    for (std::size_t g = 0; g < Q; ++g)
        add<Arch>(sums + g * packed_room, acc + g * acc_stride + begin, rows.dim - begin);
}

} // namespace detail

/// out[g * out_stride + i] = q_g . row i, where q_g = q + g * q_stride and g < group
template <class Arch, std::size_t Bits, bool Middle>
KVTL_INLINE_KERNEL void score_packed(const float* q, std::size_t group, std::size_t q_stride,
                                     const packed_rows<Bits, Middle>& rows, float* out,
                                     std::size_t out_stride) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const auto against = [&](auto queries, auto registers, std::size_t i, std::size_t n, std::size_t g) {
        detail::packed_tile<Arch, registers, queries>(q + g * q_stride, q_stride, rows, i, n,
                                                      out + g * out_stride + i, out_stride);
    };
    const auto all = [&](auto registers, std::size_t i, std::size_t n) {
        detail::ask_packed<Arch>(rows, i, n);
        std::size_t g = 0;
        if constexpr (sum_registers<Arch> == 16)
            for (; g + 8 <= group; g += 8) against(constant<8>{}, registers, i, n, g);
        for (; g + 4 <= group; g += 4) against(constant<4>{}, registers, i, n, g);
        for (; g + 2 <= group; g += 2) against(constant<2>{}, registers, i, n, g);
        for (; g < group; ++g) against(constant<1>{}, registers, i, n, g);
    };
    for (std::size_t i = 0; i < rows.count;) {
        const std::size_t n = std::min(2 * lane_count, rows.count - i);
        if (n > lane_count)
            all(constant<2>{}, i, n);
        else
            all(constant<1>{}, i, n);
        i += n;
    }
}

/// acc_g += sum over at most attend_block rows of weight[g * attend_block + row] * row, where acc_g = acc + g * acc_stride
template <class Arch, std::size_t Bits, bool Middle>
KVTL_INLINE_KERNEL void accumulate_packed(const float* weight, std::size_t group,
                                          const packed_rows<Bits, Middle>& rows, float* acc,
                                          std::size_t acc_stride) noexcept {
    std::size_t g = 0;
    const auto together = [&](auto queries) {
        for (; g + queries <= group; g += queries)
            detail::packed_sums<Arch, queries>(weight + g * attend_block, rows, acc + g * acc_stride,
                                               acc_stride);
    };
    constexpr std::size_t per_byte = packed_format<Bits>::per_byte;
    if (rows.count == 0) return;
    if constexpr (8 * per_byte <= sum_registers<Arch>) together(constant<8>{});
    if constexpr (4 * per_byte <= sum_registers<Arch>) together(constant<4>{});
    together(constant<2>{});
    together(constant<1>{});
}

/// The numbers of a row.
template <std::size_t Bits, bool Middle, element E, class Arch = default_arch>
inline void unpack_row(const packed_rows<Bits, Middle>& rows, std::size_t i, E* out) noexcept {
    using format = packed_format<Bits>;
    const std::byte* row = rows.row(i);
    float x[detail::packed_room];
    const std::byte* codes = row + rows.header_bytes();
    for (std::size_t first = 0; first < rows.dim;) {
        const std::size_t n = format::block_of(rows.dim - first), half = std::min(n, format::cell);
        for (std::size_t cell = 0; cell < n; cell += format::cell) {
            // A block of two groups is unpacked for each.
            const detail::group_scale<Arch, Middle> scale(row, rows.group_of(first + cell), rows.groups());
            detail::unpack_part<Arch, Bits>(codes, n, scale, x);
            simd::encode<Arch>(x + cell, out + first + cell, std::min(half, n - cell));
        }
        first += n;
        codes += format::bytes_of(n);
    }
}

/// The step, relative to the largest magnitude, that makes the squared error of n numbers y of at most 1 in magnitude small: for
/// some steps codes are taken, and the best step for these codes by least squares. Steps with which a number could be off by
/// more than half of the plain step 1 / centre are not taken.
template <std::size_t Bits, class Arch = default_arch>
[[nodiscard]] inline float fit_step(const float* y, std::size_t n) noexcept {
    using F = floats<Arch>;
    using format = packed_format<Bits>;
    constexpr std::size_t lane_count = floats_per_register<Arch>, tries = 8;
    constexpr float centre = format::centre;
    float best = 1.0F / centre, best_gain = 0;
    for (std::size_t t = 0; t < tries; ++t) {
        // The largest number in steps: from just within the last level to a step and a half beyond it.
        const float steps = centre + 0.25F * (static_cast<float>(t) - 1);
        F product_sum(0.0F), square_sum(0.0F);
        for (std::size_t i = 0; i < n; i += lane_count) {
            const std::size_t some = std::min(lane_count, n - i);
            const F x = load_part<Arch>(y + i, some);
            const F level =
                xsimd::floor(xsimd::min(F(centre), xsimd::max(F(-centre), x * F(steps)))) + F(0.5F);
            product_sum = fma<Arch>(x, level, product_sum);
            square_sum = fma<Arch>(level, level, square_sum);
        }
        // Numbers behind the last are zero and have the level 0.5.
        const std::size_t behind = (lane_count - n % lane_count) % lane_count;
        const float product = reduce_add<Arch>(product_sum);
        const float square = reduce_add<Arch>(square_sum) - 0.25F * static_cast<float>(behind);
        const float gain = product * product / square;
        if (gain > best_gain) best_gain = gain, best = product / square;
    }
    return std::clamp(best, (1 - 0.5F / centre) / centre, 1 / centre);
}

/// Puts the codes of numbers [begin, begin + n) of a row of `dim` among those of the row, whose bits are 0 there.
template <std::size_t Bits>
inline void put_codes(const std::int32_t* code, std::size_t begin, std::size_t n, std::size_t dim,
                      std::byte* codes) noexcept {
    using format = packed_format<Bits>;
    const std::size_t whole = dim / format::block * format::block;
    for (std::size_t i = 0; i < n;) {
        const std::size_t d = begin + i;
        std::size_t first = std::min(d / format::block * format::block, whole);
        if (first == whole && dim - whole >= format::cell && d - whole >= format::cell)
            first += format::cell; // of the blocks that are not whole, the second
        const std::size_t bytes = format::bytes_of(format::block_of(dim - first)), at = d - first,
                          part = at / bytes, // numbers that have the same bits of their bytes
            some = std::min(n - i, (part + 1) * bytes - at);
        std::byte* const to = codes + first / format::per_byte + at % bytes;
        for (std::size_t j = 0; j < some; ++j)
            to[j] |= static_cast<std::byte>(static_cast<unsigned>(code[i + j]) << (part * Bits));
        i += some;
    }
}

/// Writes the row that stands for `in` (D) at `row`, which has row_bytes() of `shape`. Finite numbers only. A group
/// whose step is too small for a float becomes its middle, or zeros.
template <std::size_t Bits, bool Middle, element E, class Arch = default_arch>
inline void pack_row(const E* in, const packed_rows<Bits, Middle>& shape, std::byte* row) noexcept {
    using F = floats<Arch>;
    using format = packed_format<Bits>;
    constexpr std::size_t lane_count = floats_per_register<Arch>, most_numbers = 64;
    const std::size_t groups = shape.groups();
    std::memset(row, 0, shape.row_bytes());
    for (std::size_t j = 0; j < groups; ++j) {
        const std::size_t begin = j * shape.group, n = std::min(shape.group, shape.dim - begin),
                          all = (n + lane_count - 1) / lane_count * lane_count;
        float x[most_numbers], y[most_numbers];
        std::int32_t code[most_numbers];
        simd::decode<Arch>(in + begin, x, n);
        std::fill(x + n, x + all, x[0]); // a register's lanes behind the last number
        const auto each = [&](auto&& f) {
            for (std::size_t i = 0; i < all; i += lane_count) f(i, load<Arch>(x + i));
        };
        float middle = 0;
        if constexpr (Middle) {
            F most(x[0]), least_negated(-x[0]);
            each([&](std::size_t, const F& some) {
                most = xsimd::max(most, some);
                least_negated = xsimd::max(least_negated, -some);
            });
            const bf16 rounded =
                from_float<bf16>(0.5F * reduce_max<Arch>(most) - 0.5F * reduce_max<Arch>(least_negated) +
                                 0.0F); // the larger of 0 and -0 may be either
            std::memcpy(row + (groups + j) * sizeof rounded, &rounded, sizeof rounded);
            middle = to_float(rounded);
        }
        F magnitude(0.0F);
        each([&](std::size_t, const F& some) {
            magnitude = xsimd::max(magnitude, xsimd::abs(some - F(middle)));
        });
        const float largest = reduce_max<Arch>(magnitude);
        if (largest / format::centre < std::numeric_limits<float>::min()) continue;
        each([&](std::size_t i, const F& some) { store<Arch>(y + i, (some - F(middle)) / F(largest)); });
        const bf16 rounded = from_float<bf16>(fit_step<Bits, Arch>(y, n) * largest);
        std::memcpy(row + j * sizeof rounded, &rounded, sizeof rounded);
        const F step(to_float(rounded)), centre(format::centre);
        each([&](std::size_t i, const F& some) {
            const F level = xsimd::min(xsimd::max((some - F(middle)) / step, -centre), centre);
            xsimd::min(xsimd::to_int(level + centre + F(0.5F)),
                       detail::int_lanes<Arch>(static_cast<std::int32_t>(format::mask)))
                .store_unaligned(code + i);
        });
        put_codes<Bits>(code, begin, n, shape.dim, row + shape.header_bytes());
    }
}

#ifdef KVTL_INSTANCE
#define KVTL_PACKED(Bits, Middle)                                                                            \
    KVTL_INSTANCE void score_packed<default_arch, Bits, Middle>(const float*, std::size_t, std::size_t,      \
                                                                const packed_rows<Bits, Middle>&, float*,    \
                                                                std::size_t) noexcept;                       \
    KVTL_INSTANCE void accumulate_packed<default_arch, Bits, Middle>(                                        \
        const float*, std::size_t, const packed_rows<Bits, Middle>&, float*, std::size_t) noexcept;
KVTL_PACKED(4, false)
KVTL_PACKED(4, true)
KVTL_PACKED(2, false)
KVTL_PACKED(2, true)
#undef KVTL_PACKED
#endif

}}} // namespace kvtl::v0::simd
