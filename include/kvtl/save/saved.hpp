// Words of saving: what is written about a sequence, where it is written to, and what comes back.
//
// A saved sequence is a table of sections, and pages. A section is a stream of bytes: put() appends, get() reads any part of
// it. The writer of a section decides what stands in it, except for the kind `pages`: an array of block_ref, by which the
// target keeps pages. A page is page_bytes long and never changes. A later generation of the same target keeps a page of
// the one before by putting its old reference.
//
// Units: bytes; page_bytes of the target for pages.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace kvtl { inline namespace v0 {

/// What the engine says beside the entries.
struct save_options {
    std::uint64_t model = 0; ///< fingerprint of the weights and adapters; load() compares it (0: not checked)
    std::span<const std::byte> note{}; ///< the engine's own: tokens, sampler, text; it comes back unchanged
};

/// What a generation of a saved sequence is.
struct save_facts {
    std::array<std::uint64_t, 2> file_id{}; ///< random, made with the file
    std::uint64_t generation = 0;           ///< 0 before the first one is published
    std::uint64_t digest = 0; ///< of file, generation and content: it names this save; 0 before the first one
    std::uint64_t tokens = 0;
    std::uint64_t model = 0;
    std::uint64_t bytes = 0;         ///< of the target, up to the last block in use
    std::uint64_t written_bytes = 0; ///< that this object wrote for this generation; the rest was kept
    std::uint32_t page_bytes = 0;
    bool damaged =
        false; ///< the other superblock or its root does not verify: a newer generation may have been lost
};

/// What the engine says of itself.
struct load_options {
    std::uint64_t model = 0; ///< fingerprint of the weights and adapters; 0: not checked
};

struct loaded_sequence {
    sequence_id seq;
    std::uint64_t tokens = 0;
    bool exact = false; ///< goes on to the bit as the saved one would have
};

/// What stands in a section. Values are part of the format.
enum class section_kind : std::uint32_t {
    identity,   ///< written by commit()
    note,       ///< written by commit()
    lane,       ///< what a KV head of a layer is: counters, tables, rows
    pages,      ///< block_refs of its pages, in its own order
    root,       ///< not in the table: the table itself
    page_image, ///< not in the table: a page that a section of the kind `pages` refers to
    superblock, ///< not in the table
    hot,        ///< which units were in memory; may be absent
};
[[nodiscard]] constexpr const char* name_of(section_kind kind) noexcept {
    constexpr const char* names[] = {"identity", "note",       "lane",       "pages",
                                     "root",     "page image", "superblock", "hot set"};
    return kind <= section_kind::hot ? names[static_cast<std::uint32_t>(kind)] : "unknown section";
}

/// Kinds whose sections may stand in the table.
[[nodiscard]] constexpr bool in_table(section_kind kind) noexcept {
    return kind < section_kind::root || kind == section_kind::hot;
}

/// Where a page lies in a target, and what it must be. Block 0 is no page.
struct block_ref {
    std::uint32_t block = 0;
    std::uint32_t generation : 31 = 0; ///< that wrote it
    std::uint32_t ends : 1 =
        0; ///< the writer's own: the last page of those that are kept together or not at all
    std::uint64_t checksum = 0;
    friend bool operator==(const block_ref&, const block_ref&) = default;
};
/// Generations of a target are fewer.
inline constexpr std::uint32_t most_generations = 1U << 31;
static_assert(std::has_unique_object_representations_v<block_ref> && sizeof(block_ref) == 16);

/// A line of the table of sections.
struct saved_section {
    section_kind kind{};
    std::uint32_t index = 0; ///< the lane, layer or pool of the model
    std::uint64_t bytes = 0;
    std::uint32_t first_piece = 0, pieces = 0; ///< the target's own
};
static_assert(std::has_unique_object_representations_v<saved_section> && sizeof(saved_section) == 24);

/// A setting that decides what a sequence is, by name. A name or a value has no zero byte.
struct identity_field {
    std::string name, value;
    friend bool operator==(const identity_field&, const identity_field&) = default;
};

/// What commit() adds to the sections.
struct saved_root {
    std::uint64_t tokens = 0;
    std::uint64_t model = 0;
    std::span<const identity_field> identity{};
    std::span<const std::byte> note{};
};

/// Takes one generation after the other. The first call of put(), put_pages() or commit() begins one, too.
///
///   begin()                  begins a generation, if none is being written. One that was committed is published first
///   put(kind, index, bytes)  appends to that section. A section is complete when another one begins. For the kind
///                            `pages`: whole references, each to a page of put_pages() or of the published generation
///   put_pages(images, refs)  writes refs.size() pages of page_bytes each and fills in their references
///   commit(root)             completes the generation. It replaces the published one when it is published, which is
///                            not part of this concept
///   abandon()                drops what was put. After an error it is the only call that does anything
template <class T>
concept save_target = requires(T& to, const T& seen, section_kind kind, std::uint32_t index,
                               std::span<const std::byte> bytes, std::span<block_ref> refs,
                               const saved_root& root) {
    { to.begin() } -> std::same_as<status>;
    { to.put(kind, index, bytes) } -> std::same_as<status>;
    { to.put_pages(bytes, refs) } -> std::same_as<status>;
    { to.commit(root) } -> std::same_as<result<save_facts>>;
    {to.abandon()};
    { seen.facts() } -> std::convertible_to<save_facts>; // of the published generation; page_bytes always
};

/// Reads the published generation. Bytes are verified before they are handed out; `into` is zero after an error.
///
///   sections()                  the table, in the order of writing
///   get(section, offset, into)  bytes [offset, offset + into.size()) of a section
///   get_pages(refs, into)       refs.size() pages, each with a reference that is not block 0
template <class T>
concept save_source = requires(T& from, const T& seen, const saved_section& which, std::uint64_t offset,
                               std::span<const block_ref> refs, std::span<std::byte> into) {
    { seen.sections() } -> std::convertible_to<std::span<const saved_section>>;
    { from.get(which, offset, into) } -> std::same_as<status>;
    { from.get_pages(refs, into) } -> std::same_as<status>;
    { from.identity() } -> std::same_as<result<std::vector<identity_field>>>;
    { from.note() } -> std::same_as<result<std::vector<std::byte>>>;
    { seen.facts() } -> std::convertible_to<save_facts>;
};

/// The section of that kind and index, or null. Cost: a look at each line of the table.
[[nodiscard]] inline const saved_section* find_section(std::span<const saved_section> table,
                                                       section_kind kind, std::uint32_t index = 0) noexcept {
    for (const saved_section& s : table)
        if (s.kind == kind && s.index == index) return &s;
    return nullptr;
}

}} // namespace kvtl::v0
