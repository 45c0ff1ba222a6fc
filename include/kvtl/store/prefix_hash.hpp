// Hashes of the prefixes of a text, one after the other, and the space that a text belongs to.
//
// What:   two polynomials over the prime 2^61 - 1, with two bases. The hash of n + 1 tokens follows from that of n tokens, so one
//         pass gives the hashes of all prefixes. The space and the model come first. Two texts of at most n tokens collide with
//         a probability of about (n / 2^61)^2 for random bases; these are fixed, so that files are found again. A hash
//         finds candidates only: whoever uses it compares the tokens (prefix_store.hpp).
// Cost:   two products of 64 bits per token.
// Source: R. M. Karp, M. O. Rabin, Efficient randomized pattern-matching algorithms, IBM J. Res. Dev. 31 (2), 1987.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Who may share a stored prefix, and what its keys depend on besides model and tokens. Fields are compared one by one: the
/// tenant "a" is not the adapter "a".
struct prefix_space {
    std::string tenant{};  ///< whose text it is
    std::string adapter{}; ///< what changes the weights
    std::string input{};   ///< what else the tokens stand for, such as the digest of an image
    friend bool operator==(const prefix_space&, const prefix_space&) = default;

    /// As bytes, each field behind its length.
    [[nodiscard]] std::vector<std::byte> bytes() const {
        std::vector<std::byte> all;
        for (const std::string* field : {&tenant, &adapter, &input}) {
            for (unsigned shift = 0; shift < 32; shift += 8)
                all.push_back(static_cast<std::byte>(field->size() >> shift));
            for (const char c : *field) all.push_back(static_cast<std::byte>(c));
        }
        return all;
    }
};

using hash128 = std::array<std::uint64_t, 2>;

/// The hash of a store. Tests put one that collides in its place.
struct prefix_hash {
    /// Of no tokens.
    [[nodiscard]] static hash128 begin(std::uint64_t model, const prefix_space& space) {
        hash128 h{};
        for (unsigned shift = 0; shift < 64; shift += 32)
            h = next(h, static_cast<std::uint32_t>(model >> shift));
        for (const std::byte b : space.bytes()) h = next(h, std::to_integer<std::uint32_t>(b));
        return h;
    }
    /// Of one token more. Zero is a token as any other: a text does not have the hash of its rest.
    [[nodiscard]] static hash128 next(hash128 h, std::uint32_t token) noexcept {
        constexpr std::uint64_t bases[] = {0x0F3C8A5D1B7E2946U, 0x19E6B0473D52FC81U};
        for (std::size_t i = 0; i < 2; ++i) h[i] = reduce(times(h[i], bases[i]) + token + 1);
        return h;
    }

  private:
    static constexpr std::uint64_t prime = (std::uint64_t{1} << 61) - 1;
    [[nodiscard]] static constexpr std::uint64_t reduce(std::uint64_t x) noexcept {
        x = (x & prime) + (x >> 61);
        return x >= prime ? x - prime : x;
    }
    /// a * b modulo the prime, for a, b < 2^61, from products of halves.
    [[nodiscard]] static constexpr std::uint64_t times(std::uint64_t a, std::uint64_t b) noexcept {
        constexpr std::uint64_t half = (std::uint64_t{1} << 31) - 1;
        const std::uint64_t ah = a >> 31, al = a & half, bh = b >> 31, bl = b & half;
        const std::uint64_t mid = ah * bl + al * bh; // < 2^62
        // a b = ah bh 2^62 + mid 2^31 + al bl, and 2^61 = 1: so 2^62 = 2, and 2^31 mid = (mid >> 30) + (mid & low) 2^31
        const std::uint64_t low = mid & ((std::uint64_t{1} << 30) - 1);
        return reduce(2 * ah * bh + (mid >> 30) + (low << 31) + al * bl);
    }
};

}} // namespace kvtl::v0
