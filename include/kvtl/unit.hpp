// Units and lanes: the records of the manager's tables. The records are trivially copyable and use indices
// instead of pointers. So the memory block of a lane can be moved, hashed, saved and counted as bytes.
//
// A *lane* owns units, or rows, of one sequence: those of one KV head of a layer in head-wise presets, or of
// a whole layer in layer-wide presets. If each query head keeps its own entries, a lane is one query head.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// No frame, no unit, ...
inline constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

/// The place of a unit on storage. Only the layout reads the two words. `first` is none until the layout has
/// placed the unit.
struct place {
    std::uint32_t first = none;
    std::uint32_t extra = 0;
};

/// The identity of a unit: it moves with its lane, and it is saved and hashed.
struct unit_record {
    std::uint32_t entries = 0;  ///< entries in the unit's pages, without pending ones
    float m2 = 0;               ///< sum of squared distances to the mean; variance = m2 / entries
    std::uint16_t buffered = 0; ///< pending entries of this unit, in the lane's buffer
    bool flagged = false;       ///< the unit waits for a delayed split
    // A saved record ends here.
    bool shared : 1 = false; ///< branches may share its place (page_store.hpp)
    std::uint8_t as_saved : 7 =
        0;       ///< its first pages, which the sequence's last save has as they are; or all_pages
    place where; ///< of its pages

    static constexpr std::uint8_t all_pages = 127;
    [[nodiscard]] bool has_changed(std::uint32_t page) const noexcept {
        return as_saved != all_pages && page >= as_saved;
    }
    /// Page `page` is not as it was saved, nor are those behind it.
    void change(std::uint32_t page) noexcept {
        if (page < as_saved || as_saved == all_pages)
            as_saved = static_cast<std::uint8_t>(page < all_pages ? page : all_pages - 1U) & all_pages;
    }
};
/// Bytes of a unit's record that are saved. Its place differs from cache to cache.
inline constexpr std::size_t unit_identity_bytes = offsetof(unit_record, flagged) + sizeof(bool);

/// The residency of a unit: it does not outlive the process. A resident unit is a chain of frames, and the
/// last frame may be its open page, the tail (frame_pool.hpp). A unit that is not resident may still have a
/// tail in memory.
class unit_residency {
  public:
    /// First frame of the chain; none: not resident.
    [[nodiscard]] std::uint32_t frames() const noexcept { return at_ < alone ? at_ : none; }
    /// The frame of the tail if the unit is not resident otherwise; or none. A tail has entries that are not
    /// yet on storage.
    [[nodiscard]] std::uint32_t lone_tail() const noexcept {
        return at_ < alone || at_ == none ? none : at_ - alone;
    }
    void set_frames(std::uint32_t first) noexcept { at_ = first; }
    void set_lone_tail(std::uint32_t frame) noexcept { at_ = frame == none ? none : frame + alone; }
    void clear() noexcept { at_ = none; }

  private:
    static constexpr std::uint32_t alone = 1U << 31;
    std::uint32_t at_ = none; ///< the first frame; a lone tail with the upper bit set; or none
};
static_assert(sizeof(unit_record) == 20 && sizeof(unit_residency) == 4,
              "there is one of each for every 8 entries or so");

/// The space that ragged records (slots/compressor.hpp) take in a unit's pages.
struct unit_extent {
    std::uint32_t pages = 0;
    std::uint32_t room = 0;  ///< bytes left in the last page
    std::uint32_t bytes = 0; ///< bytes of the records
};

/// The record of a group: a unit of consecutive entries in its lane's stream. It is empty: the place of a
/// group follows from its number, and all groups have one size. Only its residency is kept: the slot that
/// holds it.
struct group_record {};

/// Counters of a lane. Tokens [0, sinks) are sinks, tokens [sinks, window_begin) are in units or in the
/// buffer of pending entries, and tokens [window_begin, tokens) are in the window.
struct lane_state {
    std::uint32_t tokens = 0;
    std::uint32_t sinks = 0;
    std::uint32_t window_begin = 0;
    std::uint32_t dropped = 0;  ///< tokens of the prompt that retention dropped; not counted in `tokens`
    std::uint32_t units = 0;    ///< units in the table; units are never removed, and splits add one
    std::uint32_t buffered = 0; ///< pending entries, in the buffer
    std::uint32_t stored = 0;   ///< groups: entries in the lane's stream of pages
    std::uint32_t stream_tail = none; ///< groups: frame of the stream's last page
    std::uint32_t key_tail = none;  ///< groups: frame of the last page of keys, if keys have their own pages
    std::uint32_t staged = 0;       ///< tokens staged by a prefill whose last chunk has not arrived
    std::uint32_t runs = 0;         ///< page runs held for staging or for the stream
    std::uint32_t stream_pages = 0; ///< runs of ragged records: pages begun
    bool cut_short = false;         ///< a further turn failed after some of its tokens were appended
    /// Chunks of a prompt became entries as they arrived, and the last chunk has not arrived yet.
    bool prompt_open = false;
    bool clustered = false; ///< the clusterer has grouped this lane; until then its units are sequential
    bool unused = false;    ///< padding with a value

    /// The part that a save keeps: whether open pages exist, but not their frames, and no places of pages.
    [[nodiscard]] lane_state identity() const noexcept {
        lane_state s = *this;
        if (s.stream_tail != none) s.stream_tail = 0;
        if (s.key_tail != none) s.key_tail = 0;
        s.runs = 0;
        return s;
    }
};
static_assert(std::has_unique_object_representations_v<lane_state>, "equal states are equal bytes");

}} // namespace kvtl::v0
