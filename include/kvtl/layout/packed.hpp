// Layout: a lane's units lie strictly one behind the other, in pages that neighbours share (the cluster-by-cluster
// layout that DynaKV's Figure 13 compares with).
//
//   stream of a lane   | A A A A A B B B | C C D D D D D D | E E E - - - - - |
//
// No entry has room behind its unit. One that joins B moves C, D and E by a row: the pages from B's end to that of
// the stream are read, shifted and written through the cache's own frames (core/grow/packed_stream.hpp), and counted
// where that happens. A unit that splits becomes two in its own place, which moves none of the others.
//
// Decided: entries, not pages, are packed, since room to the end of a page would be the page-aligned buffer that the
// paper adds to dual_head. A lane (a layer's KV head of one sequence) is packed by itself; with all heads of a
// layer in one row an append would move half of the others as well. Pages are written as soon as an entry joins, whether or not
// its unit is resident.
//
// Cost: an entry that joins a unit rewrites up to half of its lane on average (23 to 42 % in bench/RESULTS.md).
// Memory: sequence_order's. Storage: the entries, without gaps, twice while a prompt or a lane is clustered. For
// comparisons: whoever wants speed takes dual_head.
// Limits: a device that fails to read in mid-shift leaves a gap of as many rows; nothing is lost.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/layout/sequence_order.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct packed {
    static constexpr std::string_view name = "packed";
    static constexpr bool by_entry = true; ///< neighbours share pages, so pages belong to the lane's stream
    static constexpr bool packs_units = true;
    static constexpr bool wants_correlation = false;
    using config = sequence_order::config;
    using state = sequence_order::state;
};

}} // namespace kvtl::v0
