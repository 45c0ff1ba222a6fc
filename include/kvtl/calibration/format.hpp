// What is in a calibration file: header, table of sections, and how large each section is.
//
// Kinds:  joint_adapter  per layer (r, H*D): directions of the keys of all heads side by side (KVSwap's A,
//                        transposed), orthonormal, by decreasing energy: r' first rows are the best adapter
//                        of rank r'
//         pca_basis      per layer and KV head (D, D): orthonormal directions by decreasing energy of the
//                        keys, mean not subtracted (Loki)
//         skew_basis     per layer and KV head (D, D): right singular vectors of the queries of its query
//                        heads, by decreasing energy (InfiniGen)
//         channels       per layer and KV head (n): numbers of frequency pairs, the most telling first (FASA)
//         joint_keys     per layer (H*D, H*D): directions of the keys before RoPE of all heads side by side
//         joint_values   per layer (H*D, H*D): likewise of the values
//         head_keys      per layer and KV head (D, D): of its keys before RoPE
//         head_values    per layer and KV head (D, D): of its values
//         gated_keys     per layer (3 H*D + 1, H*D): of the keys before RoPE of all heads side by side, trained
//                        together: H*D rows that make the coefficients, H*D that rebuild (their inverse), H*D that make
//                        the logits of the gate from the coefficients, and the gate's bias ("DynaKV", token-adaptive)
//         gated_values   per layer (3 H*D + 1, H*D): likewise of the values
//         prefix_keys    per layer and KV head (D, D): orthonormal directions of its keys after RoPE, trained so that
//                        every prefix of them serves ("MatryoshkaKV")
//         prefix_values  per layer and KV head (D, D): likewise of its values
//         value_norms    per layer and KV head (D, D): rows a_i with sum (a_i . v)^2 = the mean over the head's query heads of
//                        |W_o v|^2, W_o (M, D) what the output projection does to that head ("DefensiveKV")
//         query_map      per layer but the first (HQ*D, HQ*D): query of the layer before -> this one's
//         nuq_keys       per layer (2 H*D + 28): of its keys before RoPE the middle of every channel, then its half range,
//                        then the levels of codes of 2, 3 and 4 bits (level_table.hpp), for (x - middle) / half range
//                        ("KVQuant")
//         nuq_values     per layer (28): the levels of its values, whose middle and half range each token has
// File:   a header of 64 bytes, a table with 64 bytes per section, then the sections; every part is a
//         multiple of 64 bytes and has a checksum. Numbers are little-endian, values are f32 (channels: u32); a
//         value that is not finite is damage. The header names format version, element type, model shape and a
//         fingerprint of the model's weights.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/level_table.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/simd/checksum.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvtl { inline namespace v0 {

static_assert(std::endian::native == std::endian::little, "calibration files are little-endian");

enum class calibration_kind : std::uint32_t {
    joint_adapter,
    pca_basis,
    skew_basis,
    channels,
    query_map,
    joint_keys,
    joint_values,
    head_keys,
    head_values,
    gated_keys,
    gated_values,
    prefix_keys,
    prefix_values,
    value_norms,
    nuq_keys,
    nuq_values
};

inline constexpr std::array<std::string_view, 16> calibration_kind_names = {
    "joint_adapter", "pca_basis",   "skew_basis",  "channels",   "query_map",    "joint_keys",
    "joint_values",  "head_keys",   "head_values", "gated_keys", "gated_values", "prefix_keys",
    "prefix_values", "value_norms", "nuq_keys",    "nuq_values"};
inline constexpr std::uint32_t calibration_kinds = calibration_kind_names.size();
inline constexpr std::uint32_t calibration_format_version = 1;

/// "6 layers, 4 query heads, 2 KV heads of 64", for errors.
[[nodiscard, gnu::cold]] inline std::string text_of_shape(const shape& s) {
    return std::to_string(s.layers) + " layers, " + std::to_string(s.query_heads) + " query heads, " +
           std::to_string(s.kv_heads) + " KV heads of " + std::to_string(s.head_dim);
}

/// Kinds as a set.
[[nodiscard]] constexpr std::uint32_t kind_bit(calibration_kind k) noexcept {
    return 1U << static_cast<std::uint32_t>(k);
}
[[nodiscard]] constexpr std::string_view kind_name(calibration_kind k) noexcept {
    return calibration_kind_names[static_cast<std::uint32_t>(k)];
}

/// Kinds whose numbers are f16 in memory, as the authors of KVSwap hold their adapter; in files they are f32.
[[nodiscard]] constexpr bool held_as_f16(calibration_kind k) noexcept {
    return k == calibration_kind::joint_adapter;
}

/// Sections are read and summed up in pieces of this size.
inline constexpr std::size_t calibration_piece = 1U << 16;

[[nodiscard]] inline std::uint32_t add_piece(std::uint32_t sum, std::span<const std::byte> piece) noexcept {
    return std::rotl(sum, 13) ^ simd::page_checksum(piece.data(), piece.size());
}

/// The first bytes of the file.
struct calibration_header {
    static constexpr std::array<char, 8> right_magic = {'k', 'v', 't', 'l', '-', 'c', 'a', 'l'};

    std::array<char, 8> magic = right_magic;
    std::uint32_t version = calibration_format_version;
    std::uint32_t sections = 0;
    kvtl::shape shape;
    std::uint64_t fingerprint = 0; ///< of the model's weights, as the tools of the engine define it
    std::uint64_t file_bytes = 0;
    std::uint32_t element = 0; ///< of values: 0 is f32, which is the only one
    std::array<std::uint32_t, 2> reserved{};
    std::uint32_t checksum = 0; ///< of header and table, with this field 0
};
static_assert(sizeof(calibration_header) == 64);

/// One line of the table.
struct calibration_section {
    calibration_kind kind = calibration_kind::joint_adapter;
    std::uint32_t rank = 0;          ///< directions per block; channels: pairs per head; nuq: levels
    std::uint32_t pre_rope = 0;      ///< 1: fitted to keys before RoPE
    std::uint32_t checksum = 0;      ///< of its bytes
    std::uint64_t offset = 0;        ///< in the file
    std::uint64_t bytes = 0;         ///< a multiple of 64
    std::uint32_t pair_distance = 1; ///< channels: see pair_elements()
    float rate = 0;                  ///< gated: the mean share of coefficients that training aimed at
    std::array<std::uint32_t, 6> reserved{};
};
static_assert(sizeof(calibration_section) == 64);

/// The two elements of a head that RoPE turns together as pair i: neighbours at distance 1, else (i, i +
/// distance) for the pairs below `distance` (elements that RoPE leaves alone are paired as neighbours).
[[nodiscard]] constexpr std::pair<std::uint32_t, std::uint32_t>
pair_elements(std::uint32_t pair, std::uint32_t distance) noexcept {
    if (distance == 1 || pair >= distance) return {2 * pair, 2 * pair + 1};
    return {pair, pair + distance};
}

/// The extents of a section: (layers, blocks, rows, columns) numbers of four bytes.
struct calibration_extents {
    std::uint64_t layers, blocks, rows, columns;

    [[nodiscard]] static constexpr calibration_extents of(calibration_kind kind, const shape& s,
                                                          std::uint32_t rank) noexcept {
        const std::uint64_t key = std::uint64_t{s.kv_heads} * s.head_dim;
        const std::uint64_t query = std::uint64_t{s.query_heads} * s.head_dim;
        switch (kind) {
        case calibration_kind::joint_adapter:
            return {s.layers, 1, rank, key};
        case calibration_kind::channels:
            return {s.layers, s.kv_heads, 1, rank};
        case calibration_kind::query_map:
            return {s.layers - 1, 1, query, query};
        case calibration_kind::joint_keys:
        case calibration_kind::joint_values:
            return {s.layers, 1, key, key};
        case calibration_kind::gated_keys:
        case calibration_kind::gated_values:
            return {s.layers, 1, 3 * key + 1, key};
        case calibration_kind::nuq_keys:
            return {s.layers, 1, 1, 2 * key + rank};
        case calibration_kind::nuq_values:
            return {s.layers, 1, 1, rank};
        default:
            return {s.layers, s.kv_heads, s.head_dim, s.head_dim};
        }
    }
    /// Ranks that a section of this kind may have.
    [[nodiscard]] static constexpr std::pair<std::uint64_t, std::uint64_t> ranks(calibration_kind kind,
                                                                                 const shape& s) noexcept {
        switch (kind) {
        case calibration_kind::joint_adapter:
            return {1, std::uint64_t{s.kv_heads} * s.head_dim};
        case calibration_kind::channels:
            return {1, s.head_dim / 2};
        case calibration_kind::query_map:
            return {std::uint64_t{s.query_heads} * s.head_dim, std::uint64_t{s.query_heads} * s.head_dim};
        case calibration_kind::joint_keys:
        case calibration_kind::joint_values:
        case calibration_kind::gated_keys:
        case calibration_kind::gated_values:
            return {std::uint64_t{s.kv_heads} * s.head_dim, std::uint64_t{s.kv_heads} * s.head_dim};
        case calibration_kind::nuq_keys:
        case calibration_kind::nuq_values:
            return {level_table::levels, level_table::levels};
        default:
            return {s.head_dim, s.head_dim};
        }
    }
    /// Kinds whose rows are directions, the most important first: a prefix of them is a basis too.
    [[nodiscard]] static constexpr bool has_directions(calibration_kind kind) noexcept {
        return kind != calibration_kind::channels && kind != calibration_kind::query_map &&
               kind != calibration_kind::gated_keys && kind != calibration_kind::gated_values &&
               kind != calibration_kind::value_norms && kind != calibration_kind::nuq_keys &&
               kind != calibration_kind::nuq_values;
    }
    [[nodiscard]] constexpr std::uint64_t numbers() const noexcept {
        return layers * blocks * rows * columns;
    }
    [[nodiscard]] constexpr std::uint64_t file_bytes() const noexcept {
        return (numbers() * 4 + 63) / 64 * 64;
    }
    /// Of a section of this kind once it is read.
    [[nodiscard]] constexpr std::uint64_t memory_bytes(calibration_kind kind) const noexcept {
        return (numbers() * (held_as_f16(kind) ? 2 : 4) + 63) / 64 * 64;
    }
};

using calibration_table = std::array<calibration_section, calibration_kinds>;

/// Of the header and the lines of the table that it counts.
[[nodiscard]] inline std::uint32_t checksum_of(calibration_header header,
                                               const calibration_table& t) noexcept {
    header.checksum = 0;
    std::array<std::byte, sizeof header + sizeof t> bytes{};
    const std::size_t used = sizeof header + header.sections * sizeof(calibration_section);
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, t.data(), used - sizeof header);
    return simd::page_checksum(bytes.data(), used);
}

}} // namespace kvtl::v0
