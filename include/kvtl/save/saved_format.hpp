// The bytes of a saved file: superblocks, the table of sections, and the checksum of all parts.
//
//   block 0, 1  superblocks: generation g stands in block g % 2. A new file has one of generation 0, which has no root
//   anywhere    root: numbers of sections and of pieces (2 x u32), the sections, the pieces
//               pieces of sections: at most 16 KiB or a block each, padded with zeros to whole blocks
//               pages
//
// A superblock has the checksum of the root, the root those of the pieces, and a piece of a `pages` section those of its
// pages: one number covers everything. Each checksum is mixed with the file's id, what the part is, its address and its
// generation, so that a part of another file, place or time does not pass. A piece keeps the generation that wrote it: a later
// one that has the same bytes in the same section names it again.
//
// Units: addresses are blocks of page_bytes; integers are little-endian. 32-bit addresses reach 16 TiB of 4 KiB blocks.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/saved.hpp>
#include <kvtl/simd/checksum.hpp>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

static_assert(std::endian::native == std::endian::little, "saved files are little-endian");

inline constexpr std::array<char, 8> saved_magic = {'k', 'v', 't', 'l', '-', 's', 'e', 'q'};
inline constexpr std::uint32_t saved_byte_order = 0x04030201;
inline constexpr std::uint32_t saved_format_version = 2;
inline constexpr std::uint32_t saved_piece_bytes = 16U << 10;
/// Of a piece, at most.
[[nodiscard]] constexpr std::uint32_t most_piece_bytes(std::uint32_t page_bytes) noexcept {
    return page_bytes > saved_piece_bytes ? page_bytes : saved_piece_bytes;
}

struct saved_superblock {
    std::array<char, 8> magic = saved_magic;
    std::uint32_t byte_order = saved_byte_order;
    std::uint32_t format = saved_format_version;
    std::array<std::uint64_t, 2> file_id{};
    std::uint64_t generation = 0;
    std::uint64_t tokens = 0;
    std::uint64_t model = 0;
    std::uint32_t blocks = 0; ///< one past the last block in use
    std::uint32_t root_block = 0;
    std::uint64_t root_bytes = 0;
    std::uint64_t root_checksum = 0;
    std::uint32_t page_bytes = 0;
    std::uint32_t unused = 0;
    std::array<std::uint64_t, 4> reserved{};
    std::uint64_t checksum = 0;
};
static_assert(std::has_unique_object_representations_v<saved_superblock> && sizeof(saved_superblock) == 128);

/// A part of a section that lies in one run of blocks.
struct saved_piece {
    std::uint32_t block = 0;
    std::uint32_t bytes = 0;      ///< without the padding
    std::uint64_t generation = 0; ///< that wrote it
    std::uint64_t checksum = 0;
};
static_assert(std::has_unique_object_representations_v<saved_piece> && sizeof(saved_piece) == 24);

/// The table of a generation. Memory: 24 bytes per section and per piece.
struct saved_table {
    std::vector<saved_section> sections;
    std::vector<saved_piece> pieces;
};

/// What a part of a file is, for its checksum.
struct saved_owner {
    section_kind kind{};
    std::uint32_t index = 0;
    std::uint32_t block = 0;
    std::uint64_t generation = 0;
};

/// The checksum of a part of this content: page_checksum64 of its bytes. Different owners of equal bytes have different sums.
[[nodiscard]] inline std::uint64_t saved_checksum(const std::array<std::uint64_t, 2>& file_id,
                                                  saved_owner owner, std::uint64_t content) noexcept {
    std::uint64_t h = content;
    for (const std::uint64_t word :
         {file_id[0], file_id[1], std::uint64_t{static_cast<std::uint32_t>(owner.kind)} << 32 | owner.index,
          std::uint64_t{owner.block}, owner.generation}) {
        h ^= word; // the finalizer of SplitMix64, which can be undone
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9U;
        h = (h ^ (h >> 27)) * 0x94D049BB133111EBU;
        h ^= h >> 31;
    }
    return h;
}

/// The same of a multiple of 64 bytes.
[[nodiscard]] inline std::uint64_t saved_checksum(const std::array<std::uint64_t, 2>& file_id,
                                                  saved_owner owner,
                                                  std::span<const std::byte> bytes) noexcept {
    assert(bytes.size() % 64 == 0);
    return saved_checksum(file_id, owner, simd::page_checksum64(bytes.data(), bytes.size()));
}

[[nodiscard]] inline std::uint64_t superblock_checksum(saved_superblock s) noexcept {
    s.checksum = 0;
    return saved_checksum(
        s.file_id, {section_kind::superblock, 0, static_cast<std::uint32_t>(s.generation % 2), s.generation},
        std::as_bytes(std::span(&s, 1)));
}

/// Pages of a store that has records of several entries are as long as these need.
inline constexpr std::uint32_t page_step = 4096, most_page_bytes = 256U << 10;
[[nodiscard]] constexpr bool valid_page_bytes(std::uint32_t bytes) noexcept {
    return bytes % page_step == 0 && bytes >= page_step && bytes <= most_page_bytes;
}

/// Whether `s` may be the superblock that stands in block `slot`; the text says what to do.
[[nodiscard, gnu::cold]] inline status check_superblock(const saved_superblock& s,
                                                        std::uint32_t slot) noexcept {
    if (s.magic != saved_magic)
        return status::failure(errc::file_refused, "no sequence of kvtl was saved to it; name another file");
    if (s.byte_order != saved_byte_order)
        return status::failure(errc::file_refused,
                               "saved on a machine with another byte order; save it anew here");
    if (s.format != saved_format_version)
        return status::failure(errc::file_refused,
                               "saved in format %u, and this kvtl reads format %u; save it anew", s.format,
                               saved_format_version);
    if (s.checksum != superblock_checksum(s) || s.generation % 2 != slot)
        return status::failure(errc::corrupt, "its superblocks are damaged; restore a copy, or save it anew");
    if (!valid_page_bytes(s.page_bytes))
        return status::failure(errc::file_refused, "pages of %u bytes; valid: a multiple of %u up to %u",
                               s.page_bytes, page_step, most_page_bytes);
    return {};
}

/// Blocks that hold that many bytes.
[[nodiscard]] constexpr std::uint64_t blocks_of(std::uint64_t bytes, std::uint32_t page_bytes) noexcept {
    return (bytes + page_bytes - 1) / page_bytes;
}

/// The root as it is written, padded to whole blocks; `used` is its length without the padding.
[[nodiscard, gnu::cold]] inline std::vector<std::byte>
root_bytes(const saved_table& table, std::uint32_t page_bytes, std::uint64_t& used) {
    const std::uint32_t counts[2] = {static_cast<std::uint32_t>(table.sections.size()),
                                     static_cast<std::uint32_t>(table.pieces.size())};
    const std::span<const std::byte> parts[] = {std::as_bytes(std::span(counts)),
                                                std::as_bytes(std::span(table.sections)),
                                                std::as_bytes(std::span(table.pieces))};
    std::vector<std::byte> bytes;
    for (const auto part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
    used = bytes.size();
    bytes.resize(blocks_of(used, page_bytes) * page_bytes);
    return bytes;
}

/// The table in `bytes`, a root without its padding; nothing where it says what cannot be. It trusts no number, whatever
/// the checksum says.
[[nodiscard, gnu::cold]] inline std::optional<saved_table>
parse_root(std::span<const std::byte> bytes, std::uint32_t page_bytes, std::uint32_t blocks) {
    std::uint32_t counts[2];
    if (bytes.size() < sizeof counts) return std::nullopt;
    std::memcpy(counts, bytes.data(), sizeof counts);
    const std::uint64_t section_bytes = std::uint64_t{counts[0]} * sizeof(saved_section),
                        piece_bytes = std::uint64_t{counts[1]} * sizeof(saved_piece);
    if (bytes.size() != sizeof counts + section_bytes + piece_bytes) return std::nullopt;
    saved_table table;
    table.sections.resize(counts[0]);
    table.pieces.resize(counts[1]);
    if (counts[0] != 0) std::memcpy(table.sections.data(), bytes.data() + sizeof counts, section_bytes);
    if (counts[1] != 0)
        std::memcpy(table.pieces.data(), bytes.data() + sizeof counts + section_bytes, piece_bytes);
    std::uint64_t room = std::uint64_t{blocks} * page_bytes; // pieces do not share blocks
    for (const saved_piece& p : table.pieces) {
        if (p.bytes == 0 || p.bytes > most_piece_bytes(page_bytes) || p.block < 2 ||
            p.block + blocks_of(p.bytes, page_bytes) > blocks)
            return std::nullopt;
        if (p.bytes > room) return std::nullopt;
        room -= p.bytes;
    }
    std::size_t next = 0; // every piece belongs to one section, in the sections' order
    for (const saved_section& s : table.sections) {
        if (!in_table(s.kind) || s.first_piece != next || s.pieces > table.pieces.size() - next)
            return std::nullopt;
        std::uint64_t sum = 0;
        for (const std::size_t end = next + s.pieces; next < end; ++next) sum += table.pieces[next].bytes;
        if (sum != s.bytes || (s.kind == section_kind::pages && s.bytes % sizeof(block_ref) != 0))
            return std::nullopt;
    }
    return next == table.pieces.size() ? std::optional(std::move(table)) : std::nullopt;
}

}} // namespace kvtl::v0
