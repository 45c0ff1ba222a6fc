// The bytes of a remote tier: names of blobs, manifests and signposts. Integers are little-endian.
//
//   chunk      NAMES:{FILE}:NUMBER:SUM       a piece of a saved file; FILE is its random id. A chunk that has not changed since
//                                            the last save has its name already, and is not sent again
//   signpost   NAMES:s:{HASH-TOKENS}         of a multiple of 64 tokens: which of the next 64 lengths have manifests. A reader
//                                            who does not know how long a stored prefix is asks for few names
//   manifest   NAMES:m:{POST}:HASH-TOKENS    header, sum of each chunk (8 bytes), space, tokens (4 bytes each). POST is the
//                                            signpost's, so that both are on one server
//
// Two writers of a signpost at once may lose a bit: that prefix is not found until it is put again.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/saved_format.hpp>
#include <kvtl/store/prefix_note.hpp>

#include <array>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

inline constexpr std::array<char, 8> remote_magic = {'k', 'v', 't', 'l', '-', 'r', 'e', 'm'};
inline constexpr std::array<char, 8> signpost_magic = {'k', 'v', 't', 'l', '-', 's', 'i', 'g'};
inline constexpr std::uint32_t remote_format_version = 1;
inline constexpr std::uint32_t signpost_tokens = 64;
inline constexpr std::uint32_t least_chunk = 64U << 10, most_chunk = 4U << 20;
inline constexpr std::size_t most_chunks = 65536;

struct remote_header {
    std::array<char, 8> magic = remote_magic;
    std::uint32_t format = remote_format_version;
    std::uint32_t chunk_bytes = 0;
    std::array<std::uint64_t, 2> file_id{};
    std::uint64_t file_bytes = 0;
    std::uint64_t model = 0;
    std::uint32_t tokens = 0;
    std::uint32_t space_bytes = 0;
};
static_assert(std::has_unique_object_representations_v<remote_header> && sizeof(remote_header) == 56);

struct remote_signpost {
    std::array<char, 8> magic = signpost_magic;
    std::uint64_t lengths = 0; ///< bit i: there is a manifest of i tokens more
};
static_assert(std::has_unique_object_representations_v<remote_signpost> && sizeof(remote_signpost) == 16);

struct remote_manifest {
    remote_header header{};
    std::vector<std::uint64_t> sums{};
    prefix_space space{};
    std::vector<std::uint32_t> tokens{};
};

/// The longest one of that many tokens.
[[nodiscard]] constexpr std::size_t most_manifest_bytes(std::size_t tokens) noexcept {
    return sizeof(remote_header) + most_chunks * sizeof(std::uint64_t) + (std::size_t{64} << 10) + tokens * 4;
}

[[nodiscard, gnu::cold]] inline std::vector<std::byte> bytes_of(const remote_manifest& m) {
    const auto space = m.space.bytes();
    std::vector<std::byte> all;
    for (const std::span<const std::byte> part :
         {std::as_bytes(std::span(&m.header, 1)), std::as_bytes(std::span(m.sums)),
          std::span<const std::byte>(space), std::as_bytes(std::span(m.tokens))})
        all.insert(all.end(), part.begin(), part.end());
    return all;
}

/// The manifest in `bytes`; nothing where it is of another format, or says what cannot be. It trusts no number.
[[nodiscard, gnu::cold]] inline std::optional<remote_manifest>
parse_manifest(std::span<const std::byte> bytes) {
    remote_manifest m;
    if (bytes.size() < sizeof m.header) return std::nullopt;
    std::memcpy(&m.header, bytes.data(), sizeof m.header);
    bytes = bytes.subspan(sizeof m.header);
    const remote_header& h = m.header;
    if (h.magic != remote_magic || h.format != remote_format_version || h.chunk_bytes < least_chunk ||
        h.chunk_bytes > most_chunk || h.chunk_bytes % 64 != 0 || h.file_bytes == 0 ||
        h.file_bytes % 64 != 0 || h.file_bytes / h.chunk_bytes >= most_chunks)
        return std::nullopt;
    const std::uint64_t chunks = (h.file_bytes + h.chunk_bytes - 1) / h.chunk_bytes,
                        sums = chunks * sizeof(std::uint64_t);
    if (bytes.size() != sums + h.space_bytes + std::uint64_t{h.tokens} * sizeof(std::uint32_t))
        return std::nullopt;
    m.sums.resize(chunks);
    std::memcpy(m.sums.data(), bytes.data(), sums);
    auto space = detail::space_from(bytes.subspan(sums, h.space_bytes));
    if (!space) return std::nullopt;
    m.space = std::move(*space);
    m.tokens.resize(h.tokens);
    if (h.tokens != 0)
        std::memcpy(m.tokens.data(), bytes.data() + sums + h.space_bytes, h.tokens * sizeof(std::uint32_t));
    return m;
}

/// Of a chunk.
[[nodiscard]] inline std::string chunk_name(const std::string& names,
                                            const std::array<std::uint64_t, 2>& file_id, std::size_t number,
                                            std::uint64_t sum) {
    char text[96];
    std::snprintf(text, sizeof text, ":{%016" PRIx64 "%016" PRIx64 "}:%zu:%016" PRIx64, file_id[0],
                  file_id[1], number, sum);
    return names + text;
}
/// The first `tokens` tokens of a prompt. The hash covers model, space and tokens (prefix_hash).
struct hashed_prefix {
    hash128 hash{};
    std::size_t tokens = 0;
};
namespace detail {
[[nodiscard]] inline std::string word_of(const hashed_prefix& p) {
    char text[64];
    std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64 "-%zu", p.hash[0], p.hash[1], p.tokens);
    return text;
}
} // namespace detail
[[nodiscard]] inline std::string signpost_name(const std::string& names, const hashed_prefix& post) {
    return names + ":s:{" + detail::word_of(post) + "}";
}
[[nodiscard]] inline std::string manifest_name(const std::string& names, const hashed_prefix& post,
                                               const hashed_prefix& whole) {
    return names + ":m:{" + detail::word_of(post) + "}:" + detail::word_of(whole);
}

}} // namespace kvtl::v0
