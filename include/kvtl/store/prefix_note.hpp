// The note of a saved prefix: what text it is, so that it is found again and compared.
//
//   header, hashes (16 bytes each), space (prefix_space::bytes), tokens (4 bytes each)
//
// The first hash covers all tokens, the next one covers one token less, and so on. So a store finds a prefix by the header
// and the hashes, without reading tokens.
// Integers are little-endian, as in the rest of the file (save/saved_format.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/saved.hpp>
#include <kvtl/store/prefix_hash.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace kvtl { inline namespace v0 {

inline constexpr std::array<char, 8> prefix_magic = {'k', 'v', 't', 'l', '-', 'p', 'f', 'x'};
inline constexpr std::uint32_t prefix_format_version = 1;

struct prefix_note_header {
    std::array<char, 8> magic = prefix_magic;
    std::uint32_t format = prefix_format_version;
    std::uint32_t hashes = 0;
    std::uint32_t space_bytes = 0;
    std::uint32_t tokens = 0;
    std::uint64_t model = 0;
    std::uint64_t made = 0; ///< seconds of the store's clock
};
static_assert(std::has_unique_object_representations_v<prefix_note_header> &&
              sizeof(prefix_note_header) == 40);

/// All of a note but its tokens.
struct prefix_label {
    std::uint64_t model = 0;
    std::uint64_t made = 0;
    std::uint32_t tokens = 0;
    prefix_space space{};
    std::vector<hash128> hashes{}; ///< of `tokens`, `tokens` - 1, ... tokens
};

[[nodiscard, gnu::cold]] inline std::vector<std::byte> note_of(const prefix_label& label,
                                                               std::span<const std::uint32_t> tokens) {
    const auto space = label.space.bytes();
    const prefix_note_header header{.hashes = static_cast<std::uint32_t>(label.hashes.size()),
                                    .space_bytes = static_cast<std::uint32_t>(space.size()),
                                    .tokens = static_cast<std::uint32_t>(tokens.size()),
                                    .model = label.model,
                                    .made = label.made};
    std::vector<std::byte> note;
    for (const std::span<const std::byte> part :
         {std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(label.hashes)),
          std::span<const std::byte>(space), std::as_bytes(tokens)})
        note.insert(note.end(), part.begin(), part.end());
    return note;
}

namespace detail {

/// The fields of a space, in turn; nothing where the bytes are none.
[[nodiscard, gnu::cold]] inline std::optional<prefix_space> space_from(std::span<const std::byte> bytes) {
    prefix_space space;
    for (std::string* field : {&space.tenant, &space.adapter, &space.input}) {
        std::uint32_t n = 0;
        if (bytes.size() < sizeof n) return std::nullopt;
        std::memcpy(&n, bytes.data(), sizeof n);
        bytes = bytes.subspan(sizeof n);
        if (n > bytes.size()) return std::nullopt;
        field->assign(reinterpret_cast<const char*>(bytes.data()), n);
        bytes = bytes.subspan(n);
    }
    return bytes.empty() ? std::optional(std::move(space)) : std::nullopt;
}

} // namespace detail

/// Reads the label and, with `tokens`, the tokens of a saved file. absent: its note is none of a prefix store; corrupt: it
/// contradicts itself or the file.
template <save_source From>
[[nodiscard, gnu::cold]] result<prefix_label> read_label(From& from,
                                                         std::vector<std::uint32_t>* tokens = nullptr) {
    const status foreign =
        status::failure(errc::absent, "no prefix store saved it: its note has no tokens of a text");
    const status wrong = status::failure(errc::corrupt, "its note contradicts itself");
    const saved_section* note = find_section(from.sections(), section_kind::note);
    prefix_note_header header;
    if (note == nullptr || note->bytes < sizeof header) return foreign;
    if (status s = from.get(*note, 0, std::as_writable_bytes(std::span(&header, 1))); !s) return s;
    if (header.magic != prefix_magic || header.format != prefix_format_version) return foreign;
    const std::uint64_t hash_bytes = std::uint64_t{header.hashes} * sizeof(hash128),
                        text_at = sizeof header + hash_bytes + header.space_bytes;
    if (header.hashes == 0 || header.hashes > header.tokens || header.tokens != from.facts().tokens ||
        note->bytes != text_at + std::uint64_t{header.tokens} * sizeof(std::uint32_t))
        return wrong;
    prefix_label label{.model = header.model, .made = header.made, .tokens = header.tokens};
    label.hashes.resize(header.hashes);
    std::vector<std::byte> space(header.space_bytes);
    if (status s = from.get(*note, sizeof header, std::as_writable_bytes(std::span(label.hashes))); !s)
        return s;
    if (status s = from.get(*note, sizeof header + hash_bytes, space); !s) return s;
    auto fields = detail::space_from(space);
    if (!fields) return wrong;
    label.space = std::move(*fields);
    if (tokens != nullptr) {
        tokens->resize(header.tokens);
        if (status s = from.get(*note, text_at, std::as_writable_bytes(std::span(*tokens))); !s) return s;
    }
    return label;
}

}} // namespace kvtl::v0
