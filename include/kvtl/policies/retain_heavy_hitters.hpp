// Score: the attention an entry has received so far, from every query of the prompt and, if `InDecode`, from
// every step since (H2O). In decode the least of the entries that are not recent leaves, one per step.
//
// Published under one name: H2O accumulates in prefill and decode and evicts greedily (InDecode);
// KVCache-Factory accumulates over the prompt once and keeps what decode adds. Deviation of both here: the
// prompt is evicted from once, at its end, where H2O would simulate a greedy eviction through it.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/evict/retention.hpp>

namespace kvtl::inline v0 {

template <bool InDecode> struct heavy_hitters_until : score_defaults {
    static constexpr std::string_view name = InDecode ? "heavy_hitters" : "heavy_hitters_of_prompt";
    static constexpr signal needs = signal::q | signal::k;
    static constexpr feedback reads_mass = InDecode ? feedback::full : feedback::unused;
    static constexpr score_source source = score_source::prompt;
    static constexpr bool evicts_in_decode = InDecode;
    template <class Geometry> class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        void feed(const held_entry&, float mass, float& score, record&) const noexcept { score += mass; }
        [[nodiscard]] float worth(const held_entry& e, const record&) const noexcept { return e.score; }
        [[nodiscard]] std::uint32_t slack() const noexcept { return 0; }
    };
};

using heavy_hitters = heavy_hitters_until<true>;
using heavy_hitters_of_prompt = heavy_hitters_until<false>;

} // namespace kvtl::inline v0
