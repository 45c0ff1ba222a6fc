// Does the prompt say which units decode asks for together? (DynaKV's Figure 7, and what its correlated placement, Eq. 8,
// goes by.)
//
// Two logs of one run: what the prompt's last queries would have chosen among the prompt's units, and what decode asked
// for. Of every lane the pairs of units that were asked for by one query are counted in both; only units count that
// both asked for, so that a pair that never came is a 0 and not unknown.
//
// Cost: a hash lookup per pair and query, memory for every pair that came.
// SPDX-License-Identifier: MIT
#pragma once

#include "traced.hpp"

#include <cstdint>
#include <span>

namespace bench {

struct co_retrieved {
    std::uint64_t lanes = 0; ///< with at least three units that both asked for
    std::uint64_t pairs = 0; ///< of such units
    double rank_correlation =
        0; ///< Spearman's, of a pair's counts in both (ties share their rank); mean over lanes
    double concentration = 0; ///< share of decode's counts in the tenth of pairs that decode asked for most
    double foretold = 0;      ///< share of them in the tenth that the prompt asked for most; .1 is chance
    double partner_of_prompt =
        0; ///< P(decode asks for a unit's most frequent partner of the prompt | for the unit)
    double partner_by_chance = 0;    ///< the same of any other unit
    double partner_in_hindsight = 0; ///< the same of the partner that decode asked for most
};

/// Calls (`decision::call`) part the queries of both logs; `prompt` and `decode` name lanes and units alike.
[[nodiscard]] co_retrieved compare_pairs(std::span<const decision_event> prompt,
                                         std::span<const decision_event> decode);

} // namespace bench
