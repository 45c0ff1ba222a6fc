// The rules over slots: where the entries of a preset live, and whether its slots go together.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/cluster_single_tokens.hpp>
#include <kvtl/policies/index_no_index.hpp>
#include <kvtl/policies/select_all_units.hpp>
#include <kvtl/slots/eviction_requirements.hpp>
#include <kvtl/slots/explain.hpp>

namespace kvtl { inline namespace v0 {

/// Where the entries of a preset's lanes live.
enum class store_kind : std::uint8_t { rows, groups, units };

template <class T> [[nodiscard]] consteval store_kind store_of_preset() {
    if constexpr (drops_entries<T> && std::is_same_v<typename T::clusterer, single_tokens> &&
                  std::is_same_v<typename T::index, no_index> &&
                  std::is_same_v<typename T::selector, all_units>)
        return store_kind::rows;
    else if constexpr (detail::sequential_units<typename T::clusterer>() && T::layout::by_entry)
        return store_kind::groups;
    else
        return store_kind::units;
}
template <class T>
concept retrieves = store_of_preset<T>()
!= store_kind::rows;

template <class T>
concept hands_over = drops_entries<T> && retrieves<T>;
template <class T>
concept handed_over_agrees =
    !hands_over<T> || (!T::retention::score::evicts_in_decode && !T::retention::score::evicts_in_prompt &&
                       !T::retention::score::per_query_head && !T::position::moves && !T::retention::merges);

template <class T, class G, class Supplied>
concept usable_preset = has_all_slots<T> &&(!drops_entries<T> ||
                                            (eviction_preset_for<T, G, Supplied> && handed_over_agrees<T>)) &&
                        (!has_all_slots<T> || !retrieves<T> || preset_for<T, G, Supplied>);

}} // namespace kvtl::v0
