// A checksum that notices when flash gives back other bytes than were written.
//
// What:   64 lanes of 32 bits eat the page word by word, lane j the words j, j + 64, ...; then the lanes
//         are folded in halves, to one lane (page_checksum) or to two (page_checksum64). Every step is
//         h = (rotate(h, 13) ^ word) * P with an odd P, which can be undone in h and in the word: two inputs that
//         differ in one word always have different sums.
// Units:  bytes, a multiple of 64.
// Cost:   a rotation, an exclusive or and a multiplication per register of words.
// Limits: not cryptographic. Other changes (swapped words, stale sectors) pass with a chance of about
//         2^-32. Each half of the 64-bit sum covers every other word: changes in both kinds of words pass with a
//         chance of 2^-64. The value is part of the file format: it is the same on every processor of the same
//         byte order.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvtl { inline namespace v0 { namespace simd {

/// One step of the sum, for a word or for a register of words.
template <class Arch, class Words>
[[gnu::always_inline]] inline void checksum_step(Words& h, const Words& word) noexcept {
    h = (((h << 13) | (h >> 19)) ^ word) * 0x9E3779B1U; // a prime near 2^32 / golden ratio
}

namespace detail {

/// The lanes after all words of the page, folded in halves until `Kept` of them are left: lane[0, Kept).
template <std::size_t Kept, class Arch>
[[gnu::always_inline]] inline void fold_page(const std::byte* page, std::size_t bytes,
                                             std::uint32_t* lane) noexcept {
    // The compilers' own vectors, as wide as the registers; the same code and result everywhere.
    constexpr std::size_t width = floats_per_register<Arch> * sizeof(std::uint32_t);
    using words __attribute__((vector_size(width))) = std::uint32_t;
    constexpr std::size_t lane_count = 64, registers = lane_count / floats_per_register<Arch>,
                          step = registers * width;

    // Different starts keep equal words in different lanes apart.
    for (std::uint32_t i = 0; i < lane_count; ++i)
        lane[i] = 0x85EBCA77U * (i + 1) + static_cast<std::uint32_t>(bytes);
    words h[registers];
    std::memcpy(h, lane, sizeof h);
    const auto eat = [&](auto r, std::size_t at) __attribute__((always_inline)) {
        words word;
        std::memcpy(&word, page + at + r * width, width);
        checksum_step<Arch>(h[r], word);
    };
    std::size_t at = 0;
    for (; at + step <= bytes; at += step)
        unrolled<registers>([&](auto r) __attribute__((always_inline)) { eat(r, at); });
    unrolled<registers>([&](auto r) __attribute__((always_inline)) { // 64, 128 or 192 bytes may be left
        if (at + (r + 1) * width <= bytes) eat(r, at);
    });
    // Fold the halves: registers first, then the lanes of the last one.
    words rest[registers];
    std::memcpy(rest, h, sizeof h);
    for (std::size_t half = registers / 2; half != 0; half /= 2)
        for (std::size_t r = 0; r < half; ++r) checksum_step<Arch>(rest[r], rest[r + half]);
    std::memcpy(lane, rest, width);
    for (std::size_t half = floats_per_register<Arch> / 2; half >= Kept; half /= 2)
        for (std::size_t i = 0; i < half; ++i) checksum_step<Arch>(lane[i], lane[i + half]);
}

} // namespace detail

/// 32-bit checksum of `bytes` bytes from `page`, any alignment.
template <class Arch = default_arch>
[[nodiscard]] KVTL_INLINE_KERNEL std::uint32_t page_checksum(const std::byte* page,
                                                             std::size_t bytes) noexcept {
    std::uint32_t lane[64];
    detail::fold_page<1, Arch>(page, bytes, lane);
    return lane[0] ^ (lane[0] >> 15);
}

/// 64-bit checksum of `bytes` bytes from `page`, any alignment: of saved files, which live longer than a cache does.
template <class Arch = default_arch>
[[nodiscard]] KVTL_INLINE_KERNEL std::uint64_t page_checksum64(const std::byte* page,
                                                               std::size_t bytes) noexcept {
    std::uint32_t lane[64];
    detail::fold_page<2, Arch>(page, bytes, lane);
    const auto ended = [](std::uint32_t h) { return h ^ (h >> 15); };
    return std::uint64_t{ended(lane[1])} << 32 | ended(lane[0]);
}

#ifdef KVTL_INSTANCE
KVTL_INSTANCE std::uint32_t page_checksum<default_arch>(const std::byte*, std::size_t) noexcept;
KVTL_INSTANCE std::uint64_t page_checksum64<default_arch>(const std::byte*, std::size_t) noexcept;
#endif

}}} // namespace kvtl::v0::simd
