// Placements that no preset has, replayed on a recorded run: what DynaKV's Figures 12 and 13 compare with.
//
//   token order  entries lie in the order in which they were generated, a lane behind the other. A unit that is read brings
//                every page that holds one of its entries (Figure 12).
//   packed       the units of a lane lie strictly one behind the other, entry behind entry. One that joins a unit moves all
//                entries behind it; a unit that splits becomes two in its own place, first what stays (Figure 13).
//
// Both follow from the units that DynaKV read and from the entries that joined its units (traced.hpp, traced_entries.hpp).
//
// Decided: what is read is what the recorded run read, with its frames and its hits; a cache in token order would also
//          need frames for the pages that its units share. An entry that waits in a buffer has not joined yet.
//          A unit that begins directly behind the rewriting of another one is the child that leaves it. A lane that is
//          clustered late is packed anew, which is no move.
// Cost:   a look at every entry of the units that are read or change; memory for every entry.
// SPDX-License-Identifier: MIT
#pragma once

#include "traced.hpp"
#include "traced_entries.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

namespace bench {

/// The entries of units, row by row.
using token_list = std::vector<std::uint32_t>;

/// Reads of units whose entries lie in token order.
struct token_order_reads {
    std::uint64_t units = 0, entries = 0; ///< that were wanted
    std::uint64_t pages = 0;              ///< that hold one of these entries
    std::uint64_t reads = 0;              ///< requests
    std::uint64_t read_pages = 0;         ///< of all requests: gaps that are read through included
};

/// Entries that change their place in a packed lane.
struct packed_moves {
    std::uint64_t joined = 0;               ///< entries that joined a unit
    std::uint64_t behind = 0;               ///< moved because they lie behind one that joined
    std::uint64_t staying = 0, leaving = 0; ///< moved within a unit that split, to the one child or the other
};

/// One lane: its units, and both placements of their entries.
class placed_lane {
  public:
    /// What joined within one call, or in the prompt, in the order of the events; all are of this lane.
    void join(std::span<const entry_event> events, packed_moves& moves);

    /// Adds what reading these units takes. Pages have `page_rows` entries; gaps of up to `gap_pages` pages are read
    /// through. The lane's newest page is in memory until it is full.
    void read(std::span<const std::uint32_t> units, std::uint32_t page_rows, std::uint32_t gap_pages,
              token_order_reads& out) const;

    /// Entries of the lane one behind the other, as they are packed.
    [[nodiscard]] token_list packed() const;
    [[nodiscard]] const token_list& unit(std::uint32_t u) const { return unit_[u]; }

  private:
    /// Entries that join a unit one behind the other, from `row` on.
    struct build {
        std::uint32_t unit = 0, row = 0;
        token_list entries;
    };
    [[nodiscard]] std::vector<build> builds_of(std::span<const entry_event> events);
    [[nodiscard]] bool begins_unit(const build& b) const {
        return b.unit >= unit_.size() || unit_[b.unit].empty();
    }
    [[nodiscard]] bool clustered_anew(std::span<const build> builds) const;
    void regroup(std::span<const build> builds);
    void append(std::uint32_t unit, std::span<const std::uint32_t> entries, packed_moves& moves);
    void split(const build& stays, const build& leaves, packed_moves& moves);
    void set(std::uint32_t unit, const token_list& entries);
    [[nodiscard]] std::uint64_t entries_behind(std::uint32_t unit) const;

    std::vector<token_list> unit_;                             ///< by number
    std::vector<std::uint32_t> order_;                         ///< of units, as they are packed
    std::unordered_map<std::uint32_t, std::uint32_t> unit_of_; ///< by token
    std::uint32_t newest_ = 0;                                 ///< token
};

struct placement_replay {
    token_order_reads in_token_order;
    packed_moves packed;
};
/// `decisions` and `entries` have the same calls.
[[nodiscard]] placement_replay replay_placement(std::span<const decision_event> decisions,
                                                const entry_log& entries, std::uint32_t page_rows,
                                                std::uint32_t gap_pages);

} // namespace bench
