// The index slot: what is kept in memory (or read in long runs) to score units without reading them.
//
// A policy declares
//
//   needs_means        it scores with the units' mean keys, which the manager then keeps
//   scores             its state has score(): one number per unit and query, the greater the better
//   summarises         its state keeps bytes of its own for every unit of a lane (below); may be left out, as
//                      may all that follow
//   per_entry          scores come one per entry (U * max_entries of them) instead of one per unit
//   scores_stored_keys its scores are the codec's, of the stored keys themselves: from memory where they live
//                      there, else read from storage at every step, run by run; with per_entry, and
//                      without score()
//   needs_spread       it reads how far entries lie from their units' means, by dimension: units_view::spread, which the
//                      manager gathers for each lane while entries join units. Units have means then
//   fits               its state fits something to a lane's first keys, (T, D of the lane): fit(view, keys,
//                      scratch), keys a rows_view of floats, f16 or bf16
//   linear             a score of the mean query is the mean of the scores (default: true)
//   pins               names units that are chosen whatever their score: pinned(units_view, head, budget,
//                      visit(unit)), for a head that may choose `budget` entries
//   narrows            has a coarse level above the units: before they are scored, narrow(q, queries, units_view,
//                      budget, narrowing) names those that are worth it, ascending, and near(key, units_view,
//                      narrowing) those that an entry may belong to, into narrowing::unit; both return their number, 0
//                      for all, and for a view that hides some already. Scores, the selector and a clusterer that
//                      assigns `among_some` then see these alone (units_view::some). narrowing::note() counts what it
//                      compared on the way (statistics::choosing)
//   scores_lanes       keeps bytes of its own, and still scores a query of the whole lane (u.dim numbers, u.head 0)
//                      in one pass: what its heads' scores would sum up to
//
// and the state of one that summarises offers
//
//   std::size_t unit_bytes(const summary_shape&) const    bytes per unit, the same for all units
//   std::size_t lane_bytes(const summary_shape&) const    bytes per lane (codebooks, bases)
//   std::size_t running_bytes(const summary_shape&) const  may be left out, with resume(): bytes of a unit that grows,
//                                                         which the manager keeps beside its unfinished page
//   std::size_t tail_bytes(const summary_shape&) const    may be left out: bytes behind the last unit, for
//                                                         an index that lays entries out in blocks
//   void clear(const summary_view&, std::uint32_t unit)   the unit has no entries (again)
//   void absorb(const summary_view&, std::uint32_t unit, std::uint32_t i, const float* key,
//               const float* value)                       its i-th entry; key and value: (lane heads, D)
//   void resume(const summary_view&, std::uint32_t unit, std::uint32_t entries)
//                                                         running bytes were given up: begin them anew from what
//                                                         is kept of so many entries
//
// Summaries lie in the lane's block: no pointers, trivially copyable. A unit is always built entry by entry,
// so an index has no second code path for prompts, splits or further turns.
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

/// What sizes a policy's summaries, the same for every lane of a cache.
struct summary_shape {
    std::uint32_t lane_heads = 1;  ///< KV heads per lane
    std::uint32_t group = 1;       ///< query heads per KV head
    std::uint32_t dim = 0;         ///< D
    std::uint32_t max_entries = 1; ///< of a unit

    [[nodiscard]] constexpr std::size_t width() const noexcept { return std::size_t{lane_heads} * dim; }
};

/// One lane's summaries of one policy.
struct summary_view {
    std::byte* lane = nullptr; ///< lane_bytes(), aligned to 64
    std::byte* unit = nullptr; ///< unit_bytes() times units
    std::size_t stride = 0;    ///< bytes from unit to unit
    summary_shape shape{};
    std::uint32_t layer = 0;
    std::uint32_t first_head = 0; ///< KV head of the model that the lane's first head is
    std::byte* running = nullptr; ///< running_bytes() of the unit that is absorbing, aligned to 64

    template <class T> [[nodiscard]] T* of(std::uint32_t u) const noexcept {
        return reinterpret_cast<T*>(unit + u * stride);
    }
    template <class T> [[nodiscard]] T* of_lane() const noexcept { return reinterpret_cast<T*>(lane); }
    template <class T> [[nodiscard]] T* of_running() const noexcept { return reinterpret_cast<T*>(running); }
};

/// A lane's units as policies see them: those that place entries (clusterer), score (index), choose
/// (selector) and estimate (estimator).
struct units_view {
    const unit_record* unit = nullptr; ///< null where all units have one size and need no records
    std::uint32_t count = 0;
    unit_means mean{}; ///< (count, dim), where units have means
    std::uint32_t dim = 0;
    std::uint32_t max_entries = 0; ///< no unit may grow beyond this
    std::uint32_t tokens = 0;      ///< tokens of the lane so far
    bool may_add = true;           ///< table and storage have room for one more unit
    summary_view summary{};        ///< what the index keeps (null for an index without summaries)
    std::uint32_t head = 0;        ///< KV head of the lane that an index is asked to score for
    const std::uint32_t* some =
        nullptr;              ///< where an index has narrowed them down: the `count` units seen, ascending
    std::uint32_t hidden = 0; ///< units of the lane that are not seen
    /// (lane width) sum of squared distances from a key to its unit's mean, over keys that joined units, by dimension.
    /// A unit that splits counts again, as its children. Empty where no policy needs it (needs_spread).
    std::span<const float> spread{};

    /// Unit i of those seen, as the lane numbers it.
    [[nodiscard]] std::uint32_t id(std::uint32_t i) const noexcept { return some != nullptr ? some[i] : i; }
    [[nodiscard]] const unit_record& record(std::uint32_t i) const noexcept { return unit[id(i)]; }
    /// Entries of unit i, whichever form units have.
    [[nodiscard]] std::uint32_t entries(std::uint32_t i) const noexcept {
        return unit != nullptr ? record(i).entries : max_entries;
    }
    /// Those from unit `first` on. Not for an index that lays entries out in blocks (tail_bytes).
    [[nodiscard]] units_view from(std::uint32_t first) const noexcept {
        units_view rest = *this;
        if (unit != nullptr) rest.unit += first;
        rest.count -= first;
        rest.hidden += first;
        rest.mean = mean.from(first);
        if (summary.unit != nullptr) rest.summary.unit += first * summary.stride;
        return rest;
    }
    /// Of a lane that shows all its units, those that `ids` names; all of them when it names none.
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
    /// The unit, of those seen, whose mean is nearest to `key`; ties go to the lower one. There is one; scratch: (count)
    [[nodiscard]] simd::neighbour nearest_mean(const float* key, float* scratch) const noexcept {
        if (some == nullptr) return mean.nearest(key, count, scratch);
        mean_distances(key, scratch);
        return simd::first_least(scratch, count);
    }
    /// The size that all units have, or 0 where they differ.
    [[nodiscard]] std::uint32_t entries_if_fixed() const noexcept {
        return unit != nullptr ? 0 : max_entries;
    }
};

/// Memory in which an index narrows units down.
struct narrowing {
    std::span<float> score;          ///< (max_units) of what stands for several units
    std::span<std::uint32_t> order;  ///< (max_units)
    std::span<std::uint64_t> keys;   ///< (max_units)
    std::span<float> mean;           ///< (2 lane widths)
    std::span<std::uint32_t> unit;   ///< (max_units) the answer
    choice_counts* counts = nullptr; ///< where it is counted what a choice took, or null

    void note(std::uint64_t scored, std::uint64_t compared, std::uint64_t opened) const noexcept {
        if (counts != nullptr)
            counts->scored += scored, counts->compared += compared, counts->opened += opened;
    }

    static narrowing take(carver& c, std::size_t max_units, std::size_t width) noexcept {
        return {c.take<float>(max_units), c.take<std::uint32_t>(max_units), c.take<std::uint64_t>(max_units),
                c.take<float>(2 * width), c.take<std::uint32_t>(max_units), nullptr};
    }
};

namespace detail {

template <class Policy> [[nodiscard]] consteval bool summarises() {
    if constexpr (requires { Policy::summarises; })
        return Policy::summarises;
    else
        return false;
}
/// Of an index and of an estimator.
template <class Policy> [[nodiscard]] consteval bool needs_spread() {
    if constexpr (requires { Policy::needs_spread; })
        return Policy::needs_spread;
    else
        return false;
}
template <class Index> [[nodiscard]] consteval bool scores_entries() {
    if constexpr (requires { Index::per_entry; })
        return Index::per_entry;
    else
        return false;
}
template <class Index> [[nodiscard]] consteval bool scores_stored_keys() {
    if constexpr (requires { Index::scores_stored_keys; })
        return Index::scores_stored_keys;
    else
        return false;
}
template <class Index> [[nodiscard]] consteval bool fits_lane() {
    if constexpr (requires { Index::fits; })
        return Index::fits;
    else
        return false;
}
template <class Index> [[nodiscard]] consteval bool narrows_units() {
    if constexpr (requires { Index::narrows; })
        return Index::narrows;
    else
        return false;
}
template <class Index> [[nodiscard]] consteval bool linear_in_query() {
    if constexpr (requires { Index::linear; })
        return Index::linear;
    else
        return true;
}

/// The index names units that are chosen whatever their score: pinned(units_view, head, budget, visit(unit)).
template <class Index> [[nodiscard]] consteval bool pins_units() {
    if constexpr (requires { Index::pins; })
        return Index::pins;
    else
        return false;
}
template <class Index> [[nodiscard]] consteval bool scores_whole_lanes() {
    if constexpr (requires { Index::scores_lanes; })
        return Index::scores_lanes;
    else
        return !summarises<Index>(); // means are of a lane's width
}

} // namespace detail

template <class P>
concept index_declares_scores = requires {
    { P::scores } -> std::convertible_to<bool>;
    { P::needs_means } -> std::convertible_to<bool>;
};
/// With or without scratch of its own (scratch_floats).
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
    (detail::scores_stored_keys<P>() && detail::scores_entries<P>()));
template <class P>
concept index_score_is_noexcept = !index_scores<P> || detail::scores_stored_keys<P>() ||
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
    !detail::narrows_units<P>() ||
    (!detail::scores_entries<P>() && !detail::pins_units<P>() && has_state<P> &&
     requires(const typename P::state& s, const float* x, const units_view& u, const narrowing& memory) {
         { s.narrow(x, 1U, u, 1U, memory) }
         noexcept->std::same_as<std::uint32_t>;
         { s.near(x, u, memory) }
         noexcept->std::same_as<std::uint32_t>;
     });
/// Of an index and of an estimator.
template <class P>
concept summaries_agree = !detail::summarises<P>() || keeps_summaries<P>;

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
