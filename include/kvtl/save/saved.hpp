// Words of saving: what is written about a sequence, where it is written to, and what comes back.
//
// A saved sequence is a table of sections, and pages that are referred to by sections of the kind `pages`. A section is a
// stream of bytes: put() appends, get() reads any part of it. What stands in a section is its writer's affair, except for
// `pages`, which is an array of block_ref: the target reads them to know which blocks are in use.
//
// A page is page_bytes long and is never changed. A second save to the same target may take pages of the first one over.
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
    std::uint64_t model = 0;           ///< fingerprint of the weights and adapters; load() compares it (0: not checked)
    std::span<const std::byte> note{}; ///< the engine's own: tokens, sampler, text; it comes back unchanged
    bool hot = true;                   ///< the resident units too, where frames belong to the sequence
};

/// What a generation of a saved sequence is.
struct save_facts {
    std::array<std::uint64_t, 2> file_id{}; ///< random, made with the file; with the generation it names a save
    std::uint64_t generation = 0;           ///< 0 before the first one is published
    std::uint64_t tokens = 0;
    std::uint64_t model = 0;
    std::uint64_t bytes = 0;         ///< of the target, up to the last block in use
    std::uint64_t written_bytes = 0; ///< of this generation, by this object; the rest was taken over
    std::uint32_t page_bytes = 0;
    bool hot = false;
    bool damaged = false; ///< an older generation is shown, or it cannot be told: the other superblock or its root is torn
};

struct load_options {
    std::uint64_t model = 0;
    bool hot = true;
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
    sequence,   ///< what all lanes have in common
    bars,       ///< bars of the selector
    lane,       ///< counters and tables of one lane
    pages,      ///< block_refs of one lane's pages, in its own order
    rows,       ///< rows in memory, in their order
    sliding,    ///< a layer that slides
    hot,        ///< a frame pool
    root,       ///< not in the table: the table itself
    page_image, ///< not in the table: a page that a section of the kind `pages` refers to
    superblock, ///< not in the table
};
[[nodiscard]] constexpr const char* name_of(section_kind kind) noexcept {
    constexpr const char* names[] = {"identity", "note",    "sequence", "bars", "lane",       "pages",
                                     "rows",     "sliding", "hot",      "root", "page image", "superblock"};
    return kind <= section_kind::superblock ? names[static_cast<std::uint32_t>(kind)] : "unknown section";
}

/// Where a page lies in a target, and what it must be. Block 0 is no page.
struct block_ref {
    std::uint32_t block = 0;
    std::uint32_t generation = 0; ///< that wrote it
    std::uint64_t checksum = 0;
    friend bool operator==(const block_ref&, const block_ref&) = default;
};
static_assert(std::has_unique_object_representations_v<block_ref> && sizeof(block_ref) == 16);

/// A line of the table of sections.
struct section {
    section_kind kind{};
    std::uint32_t index = 0; ///< the lane, layer or pool of the model
    std::uint64_t bytes = 0;
    std::uint32_t first_piece = 0, pieces = 0; ///< the target's own
};
static_assert(std::has_unique_object_representations_v<section> && sizeof(section) == 24);

/// A setting that decides what a sequence is, by name. A name or a value has no zero byte.
struct identity_field {
    std::string name, value;
    friend bool operator==(const identity_field&, const identity_field&) = default;
};

/// What commit() adds to the sections.
struct saved_root {
    std::uint64_t tokens = 0;
    std::uint64_t model = 0;
    bool hot = false;
    std::span<const identity_field> identity{};
    std::span<const std::byte> note{};
};

/// Takes one generation after the other. The first call of put(), put_pages(), keep_pages() or commit() begins one.
///
///   put(kind, index, bytes)   appends to that section. Other sections may not come in between: a section that was left
///                             is complete
///   put_pages(images, refs)   writes refs.size() pages of page_bytes each, and says where they lie
///   keep_pages(refs)          takes pages of the published generation over; the references stay as they are
///   commit(root)              the generation is complete. It is not there before it is published, which is not this
///                             concept's affair
///   abandon()                 as if it had not begun. After a call that failed nothing else succeeds
template <class T>
concept save_target = requires(T& to, const T& seen, section_kind kind, std::uint32_t index,
                               std::span<const std::byte> bytes, std::span<block_ref> refs,
                               std::span<const block_ref> kept, const saved_root& root) {
    { to.put(kind, index, bytes) } -> std::same_as<status>;
    { to.put_pages(bytes, refs) } -> std::same_as<status>;
    { to.keep_pages(kept) } -> std::same_as<status>;
    { to.commit(root) } -> std::same_as<result<save_facts>>;
    { to.abandon() };
    { seen.facts() } -> std::convertible_to<save_facts>; // of the published generation; page_bytes always
};

/// Gives the published generation back. Bytes are verified before they are handed out, and `into` is zero after an error.
///
///   sections()                  the table, in the order of writing
///   get(section, offset, into)  bytes [offset, offset + into.size()) of a section
///   get_pages(refs, into)       refs.size() pages; a reference that is no page is an error
template <class T>
concept save_source = requires(T& from, const T& seen, const section& which, std::uint64_t offset,
                               std::span<const block_ref> refs, std::span<std::byte> into) {
    { seen.sections() } -> std::convertible_to<std::span<const section>>;
    { from.get(which, offset, into) } -> std::same_as<status>;
    { from.get_pages(refs, into) } -> std::same_as<status>;
    { from.identity() } -> std::same_as<result<std::vector<identity_field>>>;
    { from.note() } -> std::same_as<result<std::vector<std::byte>>>;
    { seen.facts() } -> std::convertible_to<save_facts>;
};

/// The section of that kind and index, or null. Cost: a look at each line of the table.
[[nodiscard]] inline const section* find_section(std::span<const section> table, section_kind kind,
                                                 std::uint32_t index = 0) noexcept {
    for (const section& s : table)
        if (s.kind == kind && s.index == index) return &s;
    return nullptr;
}

}} // namespace kvtl::v0
