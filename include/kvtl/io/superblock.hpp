// The first bytes of every cache file: its writer, model and format.
//
//   offset  0  magic "kvtl-kv\n"        8  file format version    12  bytes of this struct
//          16  shape (4 x u32)         32  element bytes          36  page bytes
//          40  preset fingerprint      48  FNV-1a of bytes 0-47
//
// Units: bytes; integers are little-endian, as on every machine that kvtl supports. Cost: 56 bytes of the
// first page.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/status.hpp>
#include <kvtl/version.hpp>

#include <array>
#include <bit>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

static_assert(std::endian::native == std::endian::little, "cache files are little-endian");

inline constexpr std::array<char, 8> superblock_magic = {'k', 'v', 't', 'l', '-', 'k', 'v', '\n'};

struct superblock {
    std::array<char, 8> magic = superblock_magic;
    std::uint32_t format = file_format_version;
    std::uint32_t header_bytes = 56;
    kvtl::shape shape;
    std::uint32_t element_bytes = 0; ///< of a stored number; 0 where the codec has no fixed size
    std::uint32_t page = 0;          ///< unit of transfer; 0 lets the device fill in its own
    std::uint64_t fingerprint = 0;   ///< of the policies and settings (core/save/identity.hpp)
    std::uint64_t checksum = 0;
};
static_assert(std::is_trivially_copyable_v<superblock> && sizeof(superblock) == 56);

/// FNV-1a over everything before the checksum itself. It finds damage, not malice.
[[nodiscard]] inline std::uint64_t superblock_checksum(const superblock& s) noexcept {
    std::array<unsigned char, offsetof(superblock, checksum)> bytes;
    std::memcpy(bytes.data(), &s, bytes.size());
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001B3U;
    return hash;
}

[[nodiscard]] inline superblock make_superblock(const kvtl::shape& shape, std::uint32_t element_bytes,
                                                std::uint64_t fingerprint, std::uint32_t page = 0) noexcept {
    superblock s;
    s.shape = shape;
    s.element_bytes = element_bytes;
    s.page = page;
    s.fingerprint = fingerprint;
    s.checksum = superblock_checksum(s);
    return s;
}

/// A view of `s` as io_plan wants it. `s` has to outlive it.
[[nodiscard]] inline std::span<const std::byte> superblock_bytes(const superblock& s) noexcept {
    return std::as_bytes(std::span<const superblock, 1>(&s, 1));
}

/// Reads a superblock from the start of a file: foreign bytes and other formats are file_refused, damage is
/// corrupt.
[[nodiscard]] inline result<superblock> parse_superblock(std::span<const std::byte> bytes) {
    superblock s;
    if (bytes.size() < s.magic.size() ||
        std::memcmp(bytes.data(), superblock_magic.data(), s.magic.size()) != 0)
        return status::failure(errc::file_refused, "not a kvtl cache file; name another file");
    if (bytes.size() < sizeof s)
        return status::failure(errc::corrupt,
                               "a kvtl cache file cut off inside its superblock (%zu of %zu bytes)",
                               bytes.size(), sizeof s);
    std::memcpy(&s, bytes.data(), sizeof s);
    if (s.format != file_format_version)
        return status::failure(errc::file_refused,
                               "a kvtl cache file of format %u; this kvtl reads format %u", s.format,
                               file_format_version);
    if (s.header_bytes != sizeof s || s.checksum != superblock_checksum(s))
        return status::failure(errc::corrupt,
                               "a kvtl cache file whose superblock is damaged (checksum mismatch)");
    return s;
}

/// Whether a cache with the same model, policies and settings wrote the file. Names the first field that differs.
/// A zero page in `expected` fits any.
[[nodiscard]] inline status validate_superblock(const superblock& found,
                                                const superblock& expected) noexcept {
    const auto differs = [](const char* field, std::uint32_t there, std::uint32_t here) noexcept {
        return status::failure(errc::file_refused, "cache file of another model: %s is %u there and %u here",
                               field, there, here);
    };
    const kvtl::shape& f = found.shape;
    const kvtl::shape& e = expected.shape;
    if (f.layers != e.layers) return differs("shape.layers", f.layers, e.layers);
    if (f.query_heads != e.query_heads) return differs("shape.query_heads", f.query_heads, e.query_heads);
    if (f.kv_heads != e.kv_heads) return differs("shape.kv_heads", f.kv_heads, e.kv_heads);
    if (f.head_dim != e.head_dim) return differs("shape.head_dim", f.head_dim, e.head_dim);
    if (found.element_bytes != expected.element_bytes)
        return differs("element_bytes", found.element_bytes, expected.element_bytes);
    if (expected.page != 0 && found.page != expected.page) return differs("page", found.page, expected.page);
    if (found.fingerprint != expected.fingerprint)
        return status::failure(errc::file_refused,
                               "cache file of another preset or of other settings: fingerprint %016" PRIx64
                               " there and %016" PRIx64 " here",
                               found.fingerprint, expected.fingerprint);
    return {};
}

}} // namespace kvtl::v0
