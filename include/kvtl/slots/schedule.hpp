// The schedule slot: when reads are issued relative to compute.
//
// A schedule is a name, a config where it has settings (with `static status check(const config&)` where not all values
// are valid), and what it declares:
//
//   wants_prediction   the engine hands prefetch() the query of the next layer, as far as it can guess it while
//                      a layer computes; without, reads are issued on demand, or when the engine calls
//                      prefetch() of its own accord. Its config may have `true_layers`: so many layers choose
//                      with their own query in any case (1 where it has none)
//   virtualises        frames have memory while their layer computes or is about to: what one layer keeps
//                      resident is given up and read back in time for its next turn. Engines say
//                      before_query(layer). Its config may have `hot_steps`: what the layer's last so many
//                      steps chose or updated is read back, other resident units are given up (where it has none,
//                      all that the replacement policy keeps comes back)
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>

#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Whose query a selector chooses for: the one being attended, or a guess of it made a layer earlier, so that
/// the reads fly while that layer computes (KVSwap §3.4, InfiniGen).
enum class query : std::uint8_t { current, predicted };

template <class P>
concept asks_for_predictions = requires {
    requires P::wants_prediction;
};

template <class P>
concept virtualises = requires {
    requires P::virtualises;
};

template <class P>
concept schedule_for = has_name<P>;

template <class P> consteval void explain_schedule() {
    static_assert(holds(has_name<P>),
                  "[kvtl] schedule: add `static constexpr std::string_view name` and what "
                  "slots/schedule.hpp lists");
}

}} // namespace kvtl::v0
