// Where the entries of a preset live follows from its slots; and what may stand together, beyond the cases of
// tests/compile_fail/, which show the sentences.
// SPDX-License-Identifier: MIT
#include <kvtl/layout/unit_contiguous.hpp>
#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/policies/budget_head_adaptive.hpp>
#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/index_frequency_pairs.hpp>
#include <kvtl/policies/position_rolling.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/policies/retain_mean_and_variance.hpp>
#include <kvtl/policies/retain_merge.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/int8.hpp>
#include <kvtl/presets/kvswap.hpp>
#include <kvtl/presets/low_rank.hpp>
#include <kvtl/presets/shadowkv.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/slots/preset.hpp>

#include <doctest/doctest.h>

#include <cstring>

using namespace kvtl;

namespace {

using snap = drop<window_attention<over::mean, pooling::average, 5>>;

template <class Preset> constexpr bool right = preset_for<Preset, default_engine_inputs>;
template <class Preset> constexpr store_kind store = store_of_preset<Preset>();

/// Any preset behind a retention that drops.
template <class Preset, class Retention = snap> struct thinned : Preset { using retention = Retention; };
template <class Preset, class Budget> struct budgeted : Preset { using budget = Budget; };
template <class Preset, class Index> struct indexed : Preset { using index = Index; };
template <class Preset, class Layout> struct laid_out : Preset { using layout = Layout; };
template <class Preset, class Position> struct placed : Preset { using position = Position; };

} // namespace

TEST_CASE("rows: what is kept is attended whole; groups: runs in token order; units: all else on storage") {
    CHECK(store<presets::snapkv_group> == store_kind::rows);
    CHECK(store<thinned<presets::full>> == store_kind::rows);
    CHECK(store<presets::full> == store_kind::rows);
    CHECK(store<presets::full_int8> == store_kind::rows);
    CHECK(store<presets::dynakv_lr> == store_kind::rows);
    CHECK(store<presets::kvswap> == store_kind::groups);
    CHECK(store<laid_out<presets::kvswap, unit_contiguous>> == store_kind::units);
    CHECK(store<presets::dynakv> == store_kind::units);
    // Naming any of clusterer, index and selector makes a preset retrieve.
    CHECK(store<thinned<presets::dynakv>> == store_kind::units);
    CHECK(store<thinned<presets::kvswap>> == store_kind::groups);
    CHECK(store<indexed<presets::snapkv_group, centroid>> == store_kind::groups);
    CHECK(!retrieves<presets::snapkv_group>);
    CHECK(retrieves<thinned<presets::dynakv>>);
    CHECK(drops_entries<thinned<presets::dynakv>>);
    CHECK(!drops_entries<presets::dynakv>);
}

TEST_CASE("what stays in memory is rows and records of chains, or rows that a retention evicts from") {
    CHECK(keeps_in_chains<presets::full>);
    CHECK(keeps_in_chains<presets::full_int8>);
    CHECK(keeps_in_chains<presets::palu>);
    CHECK(!keeps_in_chains<presets::dynakv>);
    // Records of one head and one size need no chains.
    CHECK(!keeps_in_chains<presets::snapkv_int8>);
    CHECK(!hands_over<presets::snapkv_int8>);
    CHECK(keeps_in_chains<presets::snapkv_layer_then_lr_energy>);
    CHECK(hands_over<presets::snapkv_layer_then_lr_energy>);
    CHECK(hands_over<thinned<presets::dynakv>>);
    // What moves on is decided once, by heads that keep the same tokens where a record has them all.
    using low_rank = thinned<presets::dynakv_lr_energy, drop<voting_heads>>;
    CHECK(preset_for<low_rank, engine_inputs_for<low_rank>>);
    using apart = thinned<presets::dynakv_lr_energy>;
    CHECK(!preset_for<apart, engine_inputs_for<apart>>);
    using late = budgeted<low_rank, progressive>;
    CHECK(!preset_for<late, engine_inputs_for<late>>);
    using evicting = thinned<presets::matryoshka, drop<heavy_hitters>>;
    CHECK(!preset_for<evicting, engine_inputs_for<evicting>>);
}

TEST_CASE("a preset that drops and retrieves is an ordinary preset") {
    CHECK(right<thinned<presets::dynakv>>);
    CHECK(right<thinned<presets::dynakv_lru>>);
    CHECK(right<thinned<presets::dynakv, drop<voting_heads>>>);
    SUBCASE("with units of one head budgets may be late, divide among heads, and entries may merge") {
        CHECK(right<budgeted<thinned<presets::dynakv>, progressive>>);
        CHECK(right<budgeted<thinned<presets::dynakv>, head_adaptive<>>>);
        CHECK(right<budgeted<thinned<presets::dynakv, drop<mean_and_variance>>, cascade>>);
        CHECK(right<thinned<presets::dynakv, merge_into<heavy_hitters_of_prompt, nearest_key>>>);
    }
    SUBCASE("units of a whole layer want heads that decide together and keep equally many") {
        CHECK(!right<thinned<presets::kvswap>>);
        using together = indexed<thinned<presets::flexgen, drop<voting_heads>>, no_index>;
        CHECK(right<together>);
        CHECK(right<budgeted<together, uniform>>);
        CHECK(!right<budgeted<together, progressive>>);
        CHECK(!right<budgeted<together, head_adaptive<>>>);
    }
    SUBCASE("gaps between entries are nothing to an index, nor to a codec that is not fitted to positions") {
        CHECK(right<presets::shadowkv>);
        CHECK(!right<thinned<presets::shadowkv, drop<voting_heads>>>);
        CHECK(right<thinned<presets::dynakv_int8>>);
        using low_rank = thinned<presets::flexgen_lr, drop<voting_heads>>;
        CHECK(preset_for<low_rank, engine_inputs_for<low_rank>>);
        CHECK(right<laid_out<indexed<thinned<presets::dynakv>, frequency_pairs>, unit_contiguous>>);
    }
    SUBCASE("it decides once") {
        CHECK(!right<thinned<presets::dynakv, drop<heavy_hitters>>>);
        CHECK(!right<thinned<presets::dynakv, drop<heavy_hitters_after_prompt>>>);
        CHECK(right<thinned<presets::dynakv, drop<heavy_hitters_of_prompt>>>);
    }
}

TEST_CASE("positions move in memory only") {
    CHECK(right<placed<presets::snapkv_group, rolling>>);
    CHECK(!right<placed<presets::dynakv, rolling>>);
    CHECK(!right<placed<thinned<presets::dynakv>, rolling>>);
}

TEST_CASE("the first input that is missing is named") {
    CHECK(std::strcmp(missing_input(engine_input::q | engine_input::x, engine_input::q), "x") == 0);
    CHECK(std::strcmp(missing_input(engine_input::q, engine_input::q | engine_input::k), "") == 0);
    CHECK(needed_inputs<presets::dynakv>() == (engine_input::q | engine_input::k | engine_input::v));
}
