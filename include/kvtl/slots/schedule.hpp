// The schedule slot: when reads are issued relative to compute.
//
// A schedule has a name, a config if it has settings (with `static status check(const config&)` if not all
// values are valid), and these declarations:
//
//   wants_prediction   while a layer computes, the engine passes prefetch() a prediction of the next layer's
//                      query. Otherwise reads are issued on demand, or when the engine calls prefetch() on
//                      its own. The config may have `true_layers`: the number of first layers that always
//                      choose with their own query (1 if the config has none)
//   virtualises        a layer has memory for frames only while it computes or is about to. The resident
//                      units of a layer are then evicted, and read back in time for its next turn. Engines
//                      call before_query(layer). The config may have `hot_steps`: only units that the last
//                      `hot_steps` steps of the layer chose or updated are read back (if the config has none,
//                      all units that the replacement policy keeps)
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>

#include <cstdint>

namespace kvtl { inline namespace v0 {

/// The query that a selector chooses for: the attended query, or a prediction made one layer earlier. With a
/// prediction the reads are in flight while the earlier layer computes (KVSwap §3.4, InfiniGen).
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
