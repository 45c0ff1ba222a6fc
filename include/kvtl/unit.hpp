// Units and lanes: the records behind the manager's tables. All of them are trivially copyable and use
// indices instead of pointers, so that a lane's block of memory can be moved, hashed, saved and counted as
// bytes.
//
// A *lane* is what owns units, or rows: one KV head of a layer (head-wise presets; one query head where each
// keeps entries of its own) or a whole layer (layer-wide presets), of one sequence.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace kvtl { inline namespace v0 {

inline constexpr std::uint32_t none =
    std::numeric_limits<std::uint32_t>::max(); ///< "no frame", "no unit", ...

/// Where a unit lies on storage. Only its layout reads the two words; `first` is none before it has placed the unit.
struct place {
    std::uint32_t first = none;
    std::uint32_t extra = 0;
};

/// What a unit is: it moves with its lane, is saved and hashed.
struct unit_record {
    std::uint32_t entries = 0;  ///< entries in the unit's pages (buffered ones not included)
    float m2 = 0;               ///< sum of squared distances to the mean; variance = m2 / entries
    std::uint16_t buffered = 0; ///< entries of this unit that wait in the lane's buffer
    bool flagged = false;       ///< waits for a delayed split
    bool shared =
        false; ///< units of branches may have the same place (page_store.hpp). From here on nothing is saved
    place where; ///< of its pages
};
/// Bytes of a unit's record in front of where it lies, which is another place in every cache.
inline constexpr std::size_t unit_identity_bytes = offsetof(unit_record, shared);

/// Where a unit is now: nothing of it outlives the process. A unit that is resident is a chain of frames, of which the last
/// may be its tail (frame_pool.hpp); one that is not may still have a tail, by itself.
class unit_residency {
  public:
    /// First of the chain of resident frames; none: not resident.
    [[nodiscard]] std::uint32_t frames() const noexcept { return at_ < alone ? at_ : none; }
    /// The frame of its last page, where that has entries that storage has not and nothing else is resident; or none.
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

/// What ragged records (slots/compressor.hpp) take of a unit's pages.
struct unit_extent {
    std::uint32_t pages = 0;
    std::uint32_t room = 0;  ///< bytes left in the last page
    std::uint32_t bytes = 0; ///< of the records
};

/// A unit that is a run of consecutive entries in its lane's stream: where it lies follows from its number
/// and its size is the same for all, so there is nothing to say but where it is now: its frame is the slot that holds it.
struct group_record {};

/// Counters of a lane. Tokens [0, sinks) are sinks, [sinks, window_begin) are in units or the buffer,
/// [window_begin, tokens) are in the window.
struct lane_state {
    std::uint32_t tokens = 0;
    std::uint32_t sinks = 0;
    std::uint32_t window_begin = 0;
    std::uint32_t dropped = 0;  ///< tokens of the prompt that retention gave up; the others are counted above
    std::uint32_t units = 0;    ///< units in the table; they are never removed, splits only add
    std::uint32_t buffered = 0; ///< entries in the buffer
    std::uint32_t stored = 0;   ///< groups: entries in the lane's stream of pages
    std::uint32_t stream_tail = none; ///< groups: frame of the stream's last page
    std::uint32_t key_tail = none;    ///< the same for keys that have pages of their own
    std::uint32_t staged = 0;         ///< tokens staged by a prefill whose last chunk has not come
    std::uint32_t runs = 0;           ///< page runs held for staging or for the stream
    std::uint32_t stream_pages = 0;   ///< runs of ragged records: pages begun
    bool cut_short = false;           ///< a further turn failed after some of its tokens were taken
    bool prompt_open =
        false;              ///< chunks of a prompt have become entries at once, and the last one has not come
    bool clustered = false; ///< the clusterer has grouped this lane (until then units are sequential)
    bool unused = false;    ///< padding that has a value

    /// What of it a save keeps: whether there are unfinished pages, not in which frames; nothing of where pages lie.
    [[nodiscard]] lane_state identity() const noexcept {
        lane_state s = *this;
        for (std::uint32_t* tail : {&s.stream_tail, &s.key_tail})
            if (*tail != none) *tail = 0;
        s.runs = 0;
        return s;
    }
};
static_assert(std::has_unique_object_representations_v<lane_state>, "equal states are equal bytes");

}} // namespace kvtl::v0
