// kvtl-bench reuse: what a recorded run of DynaKV says about keeping units in memory.
//
// The policy runs over a workload with a replacement policy that writes its decisions down (traced.hpp). Of
// these it makes
//
//   reuse        how likely a unit is asked for again within the next 1, 2, 4, 8, 16 steps, after it was
//                updated (received an entry or was split; DynaKV's Table 2) and in comparison
//   replacement  the hit rate of each replacement policy on the same requests at equal memory, with the bound
//                that knows the future (DynaKV's Figure 14b)
//   placement    what the same units cost where entries lie in token order (Figure 12), or clusters strictly one
//                behind the other (Figure 13); placement.hpp
//
// The recorded run is one; what it asked for is the same for all, since the choice of units does not depend
// on what is resident. (When entries join their units does, so updates would move a little.)
// SPDX-License-Identifier: MIT
#pragma once

#include "decode.hpp"
#include "traced.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace bench {

/// Of (unit, step) pairs of one kind: how many there are, and after how many the unit was asked for again
/// within the next horizons[i] steps. Only steps with all horizons behind them count.
struct reuse_row {
    static constexpr std::array<std::uint32_t, 5> horizons = {1, 2, 4, 8, 16};

    std::string kind;
    std::uint64_t cases = 0;
    std::array<std::uint64_t, horizons.size()> again{};

    [[nodiscard]] double probability(std::size_t i) const noexcept {
        return cases == 0 ? 0 : static_cast<double>(again[i]) / static_cast<double>(cases);
    }
};

/// The kinds: `updated` in that step, `updated_only` (and not asked for in it), `asked` (and not updated),
/// `resident` at its end (all of these and the rest).
[[nodiscard]] std::array<reuse_row, 4> measure_reuse(std::span<const decision_event> events);

/// A row for each of o.attend_tokens x o.memory_mib:
///
///   policy, shape, context, steps, workload, io, config, frames, units, splits, hit_rate   of the run
///   reuse        [{kind, cases, probability: [..]}], `horizons` beside it
///   touched_frames  what all units that were asked for or updated take at their largest
///   replacement  [{frames, share, policy, hit_rate, unit_hit_rate, evictions, mean_evicted_frames,
///                regretted}]: hit_rate by bytes; `share` is of touched_frames, or null for the run's own
///                frames; `regretted`: share of the evicted asked for again within 16 steps; policies
///                "belady" (rule applied to whole units) and "bound" have hit_rate alone
///   together     {lanes, pairs, rank_correlation, ..}: whether the prompt's last queries say what decode asks for
///                together (co_retrieved.hpp); of a second run, in memory; null where a query chooses more than select() reads
///   placement    [{order, reads, read_bytes, moved_by_appends, moved_by_staying_children, moved_by_leaving_children}]
///                in all steps: order "clusters" is the run's own; "tokens" has the reads with page_bytes (without gaps),
///                entry_bytes and units, and moves nothing; "packed" has the moves, and the entries that `joined`
///   difference   [{frames, only, units, mean_frames, updated}]: what `only` cluster_aligned or lru had when
///                it was asked for, and the share of it that was updated in the 16 steps before
///
/// Throws engine::bad_input or run_failure.
[[nodiscard]] nlohmann::ordered_json
run_reuse(const decode_options& o, const std::function<void(const nlohmann::ordered_json&)>& row_done);

void print_reuse(const nlohmann::ordered_json& row);

} // namespace bench
