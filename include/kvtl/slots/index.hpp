// The index slot: data that scores units without reading them, kept in memory or read in long runs.
//
// A policy declares needs_means and scores. The other declarations are optional.
//
//   needs_means        it scores with the units' mean keys, which the manager then keeps
//   scores             its state has score(): one number per unit and query; larger is better
//   summarises         its state keeps bytes for every unit of a lane (see below)
//   per_entry          there is one score per entry (U * max_entries scores) instead of one per unit
//   scores_stored_keys the codec computes the scores from the stored keys. Keys in memory are scored there;
//                      others are read from storage at every step, run by run. Needs per_entry, and no
//                      score()
//   needs_spread       it reads units_view::spread: by dimension, how far entries lie from their units'
//                      means. The manager gathers it for each lane while entries join units. Units then have
//                      means
//   fits               its state fits something to a lane's first keys, (T, D of the lane): fit(view, keys,
//                      scratch), where keys is a rows_view of floats, f16 or bf16
//   linear             the score of the mean query is the mean of the scores (default: true)
//   pins               some units are chosen whatever their score: pinned(units_view, head, budget,
//                      visit(unit)) names them for a head that may choose `budget` entries
//   narrows            it has a coarse level above the units. Before units are scored, narrow(q, queries,
//                      units_view, budget, narrowing) writes the units worth scoring to narrowing::unit,
//                      ascending. near(key, units_view, narrowing) does so for the units that an entry may
//                      belong to. Each returns their number; 0 means all units. Each must return 0 for a view
//                      that already hides units. Scores, the selector and a clusterer with `among_some` then
//                      see only these units (units_view::some). narrowing::note() counts the scores and
//                      comparisons of the coarse level (statistics::choosing)
//   scores_lanes       it keeps summaries and can still score a query of the whole lane (u.dim numbers,
//                      u.head 0) in one pass; the result is the sum of the scores of the lane's heads
//
// The state of a policy that summarises has
//
//   std::size_t unit_bytes(const summary_shape&) const     bytes per unit, equal for all units
//   std::size_t lane_bytes(const summary_shape&) const     bytes per lane (codebooks, bases)
//   std::size_t running_bytes(const summary_shape&) const  optional, with resume(): bytes of a growing unit,
//                                                          which the manager keeps beside its open page
//   std::size_t tail_bytes(const summary_shape&) const     optional: bytes after the last unit, for an index
//                                                          that lays entries out in blocks
//   void clear(const summary_view&, std::uint32_t unit)    the unit has no entries, or none any more
//   void absorb(const summary_view&, std::uint32_t unit, std::uint32_t i, const float* key,
//               const float* value)                        adds entry i; key and value: (lane heads, D)
//   void resume(const summary_view&, std::uint32_t unit, std::uint32_t entries)
//                                                          the running bytes were given up: rebuild them from
//                                                          the summary of `entries` entries
//
// Summaries lie in the block of the lane, so they are trivially copyable and have no pointers. A unit is
// always built entry by entry, so an index has one code path for prompts, splits and further turns.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/slots/policy.hpp>
#include <kvtl/slots/unit_means.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// The numbers that determine the size of summaries; equal for every lane of a cache.
struct summary_shape {
    std::uint32_t lane_heads = 1;  ///< KV heads per lane
    std::uint32_t group = 1;       ///< query heads per KV head
    std::uint32_t dim = 0;         ///< D
    std::uint32_t max_entries = 1; ///< entries of the largest unit

    [[nodiscard]] constexpr std::size_t width() const noexcept { return std::size_t{lane_heads} * dim; }
};

/// The summaries that one policy keeps for one lane.
struct summary_view {
    std::byte* lane = nullptr; ///< lane_bytes(), aligned to 64
    std::byte* unit = nullptr; ///< unit_bytes() times units
    std::size_t stride = 0;    ///< bytes from unit to unit
    summary_shape shape{};
    std::uint32_t layer = 0;
    std::uint32_t first_head = 0; ///< the lane's first KV head, as the model numbers heads
    std::byte* running = nullptr; ///< running_bytes() of the unit that absorbs an entry, aligned to 64

    template <class T> [[nodiscard]] T* of(std::uint32_t u) const noexcept {
        return reinterpret_cast<T*>(unit + u * stride);
    }
    template <class T> [[nodiscard]] T* of_lane() const noexcept { return reinterpret_cast<T*>(lane); }
    template <class T> [[nodiscard]] T* of_running() const noexcept { return reinterpret_cast<T*>(running); }
};

/// A lane's units, as seen by the policies that place entries (clusterer), score (index), choose (selector)
/// and estimate (estimator).
struct units_view {
    const unit_record* unit = nullptr; ///< null if all units have one size and no records
    std::uint32_t count = 0;
    unit_means mean{}; ///< (count, dim), if units have means
    std::uint32_t dim = 0;
    std::uint32_t max_entries = 0; ///< no unit may grow beyond this
    std::uint32_t tokens = 0;      ///< tokens of the lane so far
    bool may_add = true;    ///< the table has a row for one more unit, its sequence may have a place for it
    summary_view summary{}; ///< summaries of the index (null for an index without summaries)
    std::uint32_t head = 0; ///< KV head of the lane that the index scores for
    /// If an index has narrowed units down: the `count` units of this view, ascending. Otherwise null.
    const std::uint32_t* some = nullptr;
    std::uint32_t hidden = 0; ///< units of the lane that are not in this view
    /// (lane width) by dimension: sum over keys that joined units of the squared distance to the unit's mean.
    /// A unit that splits counts again, as its children. Empty if no policy needs it (needs_spread).
    std::span<const float> spread{};

    /// The lane's number of unit i of this view.
    [[nodiscard]] std::uint32_t id(std::uint32_t i) const noexcept { return some != nullptr ? some[i] : i; }
    [[nodiscard]] const unit_record& record(std::uint32_t i) const noexcept { return unit[id(i)]; }
    /// Entries of unit i, with or without records.
    [[nodiscard]] std::uint32_t entries(std::uint32_t i) const noexcept {
        return unit != nullptr ? record(i).entries : max_entries;
    }
    /// The units from unit `first` on. Not for an index that lays entries out in blocks (tail_bytes).
    [[nodiscard]] units_view from(std::uint32_t first) const noexcept {
        units_view rest = *this;
        if (unit != nullptr) rest.unit += first;
        rest.count -= first;
        rest.hidden += first;
        rest.mean = mean.from(first);
        if (summary.unit != nullptr) rest.summary.unit += first * summary.stride;
        return rest;
    }
    /// The units `ids` of a view that shows all units; all units if `ids` is empty.
    [[nodiscard]] units_view only(std::span<const std::uint32_t> ids) const noexcept {
        units_view few = *this;
        if (ids.empty()) return few;
        few.some = ids.data();
        few.count = static_cast<std::uint32_t>(ids.size());
        few.hidden += count - few.count;
        return few;
    }
    /// out[i * count + j] = query i . mean of unit j; out[j] = |key - mean of unit j|^2.
    void mean_scores(const float* q, std::uint32_t queries, float* out) const noexcept {
        if (some != nullptr)
            mean.score(q, queries, std::span(some, count), out);
        else
            mean.score(q, queries, count, out);
    }
    void mean_distances(const float* key, float* out) const noexcept {
        if (some != nullptr)
            mean.distances(key, std::span(some, count), out);
        else
            mean.distances(key, count, out);
    }
    /// The unit of this view whose mean is nearest to `key`; ties go to the lower number. count >= 1.
    /// scratch: (count)
    [[nodiscard]] simd::neighbour nearest_mean(const float* key, float* scratch) const noexcept {
        if (some == nullptr) return mean.nearest(key, count, scratch);
        mean_distances(key, scratch);
        return simd::first_least(scratch, count);
    }
    /// The size of all units, or 0 if sizes differ.
    [[nodiscard]] std::uint32_t entries_if_fixed() const noexcept {
        return unit != nullptr ? 0 : max_entries;
    }
};

/// Scratch and result of an index that narrows units down.
struct narrowing {
    std::span<float> score;          ///< (max_units) scores of the coarse level
    std::span<std::uint32_t> order;  ///< (max_units)
    std::span<std::uint64_t> keys;   ///< (max_units)
    std::span<float> mean;           ///< (2 lane widths)
    std::span<std::uint32_t> unit;   ///< (max_units) the result
    choice_counts* counts = nullptr; ///< counters of the choice, or null

    void note(std::uint64_t scored, std::uint64_t compared, std::uint64_t opened) const noexcept {
        if (counts != nullptr)
            counts->scored += scored, counts->compared += compared, counts->opened += opened;
    }

    static narrowing take(carver& c, std::size_t max_units, std::size_t width) noexcept {
        return {c.take<float>(max_units), c.take<std::uint32_t>(max_units), c.take<std::uint64_t>(max_units),
                c.take<float>(2 * width), c.take<std::uint32_t>(max_units), nullptr};
    }
};

// What an index may declare, false where it does not. The first two also of an estimator.
template <class P>
concept summarises = requires {
    requires P::summarises;
};
template <class P>
concept needs_spread = requires {
    requires P::needs_spread;
};
template <class P>
concept scores_entries = requires {
    requires P::per_entry;
};
template <class P>
concept scores_stored_keys = requires {
    requires P::scores_stored_keys;
};
template <class P>
concept fits_first_keys = requires {
    requires P::fits;
};
template <class P>
concept narrows_units = requires {
    requires P::narrows;
};
template <class P>
concept pins_units = requires {
    requires P::pins;
};
/// Unless it says that it does not.
template <class P>
concept scores_linearly = !requires {
    requires !P::linear;
};
/// Means have the width of a lane.
template <class P>
concept scores_whole_lanes = !summarises<P> || requires {
    requires P::scores_lanes;
};

template <class P>
concept index_declares_scores = requires {
    { P::scores } -> std::convertible_to<bool>;
    { P::needs_means } -> std::convertible_to<bool>;
};
/// score() with or without scratch (scratch_floats).
template <class P>
concept index_scores = has_state<P> &&(
    requires(const typename P::state& s, const float* q, std::uint32_t n, const units_view& u,
             std::span<float> out) {
        { s.score(q, n, u, out) } -> std::same_as<void>;
    } ||
    requires(const typename P::state& s, const float* q, std::uint32_t n, const units_view& u,
             std::span<float> out) {
        { s.score(q, n, u, out, out) } -> std::same_as<void>;
    } ||
    (scores_stored_keys<P> && scores_entries<P>));
template <class P>
concept index_score_is_noexcept = !index_scores<P> || scores_stored_keys<P> ||
                                  requires(const typename P::state& s, const float* q, std::uint32_t n,
                                           const units_view& u, std::span<float> out) {
    { s.score(q, n, u, out) }
    noexcept;
}
|| requires(const typename P::state& s, const float* q, std::uint32_t n, const units_view& u,
            std::span<float> out) {
    { s.score(q, n, u, out, out) }
    noexcept;
};
template <class P>
concept keeps_summaries = has_state<P> && requires(const typename P::state& s, const summary_shape& shape,
                                                   const summary_view& view, const float* row) {
    { s.unit_bytes(shape) } -> std::same_as<std::size_t>;
    { s.lane_bytes(shape) } -> std::same_as<std::size_t>;
    { s.clear(view, 0U) }
    noexcept;
    { s.absorb(view, 0U, 0U, row, row) }
    noexcept;
};
template <class P>
concept index_narrows =
    !narrows_units<P> ||
    (!scores_entries<P> && !pins_units<P> && has_state<P> &&
     requires(const typename P::state& s, const float* x, const units_view& u, const narrowing& memory) {
         { s.narrow(x, 1U, u, 1U, memory) }
         noexcept->std::same_as<std::uint32_t>;
         { s.near(x, u, memory) }
         noexcept->std::same_as<std::uint32_t>;
     });
/// Floats of scratch that the state of an index or an estimator works in.
template <class State>
[[nodiscard]] std::size_t scratch_floats_of([[maybe_unused]] const State& s,
                                            [[maybe_unused]] const summary_shape& shape,
                                            [[maybe_unused]] std::uint32_t max_units) noexcept {
    if constexpr (requires { s.scratch_floats(shape, max_units); })
        return s.scratch_floats(shape, max_units);
    else
        return 0;
}
/// For an index and for an estimator.
template <class P>
concept summaries_agree = !summarises<P> || keeps_summaries<P>;

template <class P>
concept index_for = policy_for<P, const geometry&> && index_declares_scores<P> &&
    (!P::scores || index_scores<P>)&&index_score_is_noexcept<P>&& summaries_agree<P>&& index_narrows<P>;

template <class P> consteval void explain_index() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] index: add `static constexpr std::string_view name` and what "
                      "slots/index.hpp lists");
    } else {
        static_assert(holds(has_config<P>), "[kvtl] index: add an aggregate `struct config`");
        static_assert(holds(state_opens<P, const geometry&>),
                      "[kvtl] index: add `class state` default-constructible and "
                      "constructible from (config, geometry)");
        static_assert(holds(state_is_relocatable<P>),
                      "[kvtl] index::state: it must be trivially copyable; summaries hold what it keeps");
        static_assert(holds(index_declares_scores<P>),
                      "[kvtl] index: declare the constants scores and needs_means");
        if constexpr (index_declares_scores<P>)
            static_assert(holds(!P::scores || index_scores<P>),
                          "[kvtl] index::state: add `void score(const float* q, std::uint32_t queries, "
                          "const units_view&, std::span<float> out) const noexcept`");
        static_assert(holds(index_score_is_noexcept<P>),
                      "[kvtl] index::state: score() must be noexcept, it runs inside the decode loop");
        static_assert(
            holds(index_narrows<P>),
            "[kvtl] index::state: it declares narrows, so add noexcept narrow(q, queries, units, budget, "
            "narrowing) and near(key, units, narrowing) returning std::uint32_t; scores come one per "
            "unit, and none is pinned");
        static_assert(
            holds(summaries_agree<P>),
            "[kvtl] index::state: it declares summarises, so add unit_bytes(shape), lane_bytes(shape) "
            "returning std::size_t and noexcept clear(view, unit) and absorb(view, unit, i, key, value)");
    }
}

}} // namespace kvtl::v0
