// From the policies of a preset to the concrete types of a cache.
//
// The core is keyed by policies, not by presets: presets that differ in name and numbers only share all of its code.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/decoded_keys.hpp>
#include <kvtl/core/store/frame_pool.hpp>
#include <kvtl/core/store/lane_table.hpp>
#include <kvtl/core/store/page_format.hpp>
#include <kvtl/core/store/record_rows.hpp>
#include <kvtl/core/store/transfers.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/plain_rows.hpp>
#include <kvtl/slots/preset.hpp>

#include <algorithm>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

/// The policy of each slot but io, without a preset's name and numbers. Devices lie behind an interface (io/any_io.hpp).
template <class Clusterer, class Index, class Selector, class Estimator, class Budget, class Retention,
          class Compressor, class Position, class Layout, class Replacement, class Schedule, bool Weighted>
struct policies {
    using clusterer = Clusterer;
    using index = Index;
    using selector = Selector;
    using estimator = Estimator;
    using budget = Budget;
    using retention = Retention;
    using compressor = Compressor;
    using position = Position;
    using layout = Layout;
    using replacement = Replacement;
    using schedule = Schedule;
    /// Entries carry a log-weight even where no retention merges them.
    static constexpr bool weighted_entries = Weighted;
};
template <class Preset>
concept weighs_entries = requires {
    requires Preset::weighted_entries;
};
template <class Preset>
using policies_of = policies<typename Preset::clusterer, typename Preset::index, typename Preset::selector,
                             typename Preset::estimator, typename Preset::budget, typename Preset::retention,
                             typename Preset::compressor, typename Preset::position, typename Preset::layout,
                             typename Preset::replacement, typename Preset::schedule, weighs_entries<Preset>>;

/// How a retention encodes again what loses its place.
template <class Retention> struct demotion_types {
    static constexpr bool demotes = false, balances_channels = false;
    struct demoted_codec {};
};
template <retention_demotes Retention> struct demotion_types<Retention> {
    static constexpr bool demotes = true, balances_channels = Retention::balances_channels;
    using demoted_codec = typename Retention::codec::state;
    [[nodiscard]] static demoted_codec demoted_codec_of(std::uint32_t dim) noexcept {
        return demoted_codec(typename Retention::codec::config{}, record_shape{1, dim});
    }
};

/// The types of a retention that drops entries; nothing for one that keeps all.
template <class Policies, bool = drops_entries<Policies>> struct retention_types {
    static constexpr bool drops = false, reads_mass = false, decides_together = false,
                          evicts_in_decode = false;
    static constexpr std::uint32_t score_kinds = 0;
};
template <class Policies>
struct retention_types<Policies, true> : demotion_types<typename Policies::retention> {
    static constexpr bool drops = true;
    using retention = typename Policies::retention;
    using score = typename retention::score;
    using score_config = typename retention::config;
    using score_state = typename score::state;
    using budget = typename Policies::budget;
    using budget_state = typename budget::state;
    using position = typename Policies::position;
    using position_state = typename position::state;
    static constexpr bool reads_mass = feedback_of<retention>() != feedback::unused;
    static constexpr bool evicts_in_decode = score::evicts_in_decode;
    static constexpr std::uint32_t score_kinds = calibrated_kinds<score>(); ///< that the score reads
    static constexpr bool evicts_by_chunk = kvtl::evicts_by_chunk<Policies>;
    static constexpr bool replays = kvtl::replays_prompts<Policies>;
    /// The heads of a layer are decided together, so a sequence belongs to one shard.
    static constexpr bool decides_together =
        budget::decides_together || score::decides_together || score::reads_values;
};

template <class Policies> struct policy_types : retention_types<Policies> {
    static constexpr store_kind kind = store_of_preset<Policies>();
    /// Units are chosen among; otherwise entries stay in memory.
    static constexpr bool retrieves = kind != store_kind::rows;
    /// They stay in rows and in the chains of their lanes (core/step/row_stage.hpp).
    static constexpr bool in_chains = keeps_in_chains<Policies>;
    /// What retention keeps of a prompt moves on when the prompt is complete.
    static constexpr bool hands_over = kvtl::hands_over<Policies>;
    using compressor = typename Policies::compressor;
    using codec = typename compressor::state;
    /// What attends the units that a step has read.
    using unit_codec = std::conditional_t<kind == store_kind::groups && codec_keeps_keys<compressor>,
                                          decoded_keys<compressor>, codec>;
    using element_type = typename compressor::plain_type; ///< of plain rows
    /// Of the rows that retention keeps: records where they stay, plain rows where they move on.
    using row_codec = std::conditional_t<retrieves || hands_over, plain_rows<element_type>, codec>;
    /// Of the records of chains. Where they are rows, or there are none, presets share it.
    using chain_codec =
        std::conditional_t<in_chains && !compressor::rows_are_records, codec, plain_rows<element_type>>;
    /// Entries carry a log-weight that attention adds to their logit: ln n for one that stands for n. It lies
    /// behind the record of the key, so it goes wherever records go.
    static constexpr bool weighted =
        Policies::weighted_entries || (retrieves && retention_merges<typename Policies::retention>);
    /// An entry's position is not its number in the lane, and its codec asks for it.
    static constexpr bool keeps_positions =
        retrieves && drops_entries<Policies> && compressor::domain == key_domain::pre_rope;
    /// What is stored of an entry is its plain row, byte for byte.
    static constexpr bool plain_records = compressor::rows_are_records && !weighted;
    [[nodiscard]] static constexpr record_bytes record_bytes_of(const codec& c) noexcept {
        return {c.bytes().key + weight_bytes<policy_types>, c.bytes().value};
    }
    using clusterer = typename Policies::clusterer;
    using clusterer_state = typename clusterer::state;
    using index = typename Policies::index;
    using index_state = typename index::state;
    using selector = typename Policies::selector;
    using selector_state = typename selector::state;
    using estimator = typename Policies::estimator;
    using estimator_state = typename estimator::state;
    using layout = typename Policies::layout;
    using layout_state = typename layout::state;
    using schedule = typename Policies::schedule;
    /// Frames have memory while their layer computes or is about to (core/store/layer_arenas.hpp).
    static constexpr bool virtualised = virtualises<schedule>;

    using replacement = typename Policies::replacement;
    using pool = frame_pool<replacement>;
    using transfers = kvtl::transfers<pool>;
    /// Units are runs of consecutive entries: they need no records beyond residency (group_store.hpp).
    static constexpr bool sequential = kind == store_kind::groups;
    /// What leaves the window makes units of its own, a batch at a time.
    static constexpr bool batches = requires(const clusterer_state& c) { c.batch_units(1U); };
    /// An entry joins its unit when that is in memory: who is resident decides what is attended.
    static constexpr bool residency_decides = kind == store_kind::units && !batches;
    using unit_type = std::conditional_t<sequential, group_record, unit_record>;
    using lane = lane_view<element_type, typename clusterer::lane, unit_type>;
    using lane_table = kvtl::lane_table<lane>;

    /// Storage holds values only: keys live in memory, and are plain rows once their unit is read.
    static constexpr bool values_only = sequential && codec_keeps_keys<compressor>;
    /// Something is fitted to the first entries of a run of them.
    static constexpr bool fits_first_rows =
        sequential && (fits_first_keys<index> || codec_fits_lanes<compressor>);
    /// Keys and values have pages of their own: the index scores with keys that are read at every step.
    static constexpr bool split_pages = sequential && !values_only && scores_stored_keys<index>;
    /// Pages that hold `rows` entries: one, or one of keys and one of values.
    static constexpr std::uint32_t fields = split_pages ? 2 : 1;
    [[nodiscard]] static constexpr page_format page_format_of(std::uint32_t device_page,
                                                              const lane_sizes& s) noexcept {
        if (split_pages) return page_format::split(device_page, s.record, compressor::granule);
        if (values_only) return page_format::values_only(device_page, s.record, compressor::granule);
        return page_format::make(sequential ? device_page : page_bytes_of(device_page, s), s.record,
                                 compressor::ragged, compressor::granule);
    }
    /// Pages of plain rows, for chunks of a prompt that wait for the last one. They are as large as those of
    /// records.
    [[nodiscard]] static constexpr page_format plain_format_of(std::uint32_t device_page,
                                                               const lane_sizes& s) noexcept {
        return page_format::make(page_bytes_of(device_page, s), plain_bytes(s));
    }
    /// Fixed groups: how one lies in its slot.
    [[nodiscard]] static constexpr page_format slot_format_of(const lane_sizes& s,
                                                              std::uint32_t group) noexcept {
        const record_bytes decoded{compressor::granule * plain_bytes(s).key, s.record.value};
        return page_format::packed(values_only ? decoded : s.record, group, compressor::ragged,
                                   compressor::granule);
    }
    /// Bytes of a frame of the slots: a whole slot, or where groups differ in size a piece of one.
    [[nodiscard]] static constexpr std::uint32_t slot_frame_bytes(const lane_sizes& s,
                                                                  std::uint32_t group) noexcept {
        constexpr std::uint32_t line = page_format::line, pieces = 16, least = 256;
        const std::uint32_t slot = slot_format_of(s, group).page_bytes;
        return compressor::ragged ? std::max(least, (slot / pieces + line - 1) / line * line) : slot;
    }
    /// Frames of the largest slot.
    [[nodiscard]] static constexpr std::uint32_t slot_frames(const lane_sizes& s,
                                                             std::uint32_t group) noexcept {
        const std::uint32_t frame = slot_frame_bytes(s, group);
        return (slot_format_of(s, group).page_bytes + frame - 1) / frame;
    }

    static_assert(!weighted || (!compressor::ragged && compressor::granule == 1 && !values_only),
                  "log-weights lie behind records of keys, of one entry and of one size");

    /// What a step has read does not outlive it.
    static constexpr bool keeps_nothing = requires { requires Policies::replacement::keeps_nothing; };
    /// Lanes gather how far entries lie from the means of their units.
    static constexpr bool spread = needs_spread<index> || needs_spread<estimator>;
    /// Units have means because a policy reads them.
    static constexpr bool means = clusterer::needs_means || index::needs_means || requires {
        requires estimator::needs_means;
    }
    || spread;
    /// Units, or lanes of records, span one KV head or all heads of a layer.
    static constexpr granularity unit_of = retrieves                     ? clusterer::unit_of
                                           : needs_layer_units<Policies> ? granularity::layer
                                                                         : granularity::head;

  private:
    [[nodiscard]] static constexpr record_bytes plain_bytes(const lane_sizes& s) noexcept {
        const auto row = static_cast<std::uint32_t>(s.width * sizeof(element_type));
        return {row, row};
    }
    /// A page holds a record of an entry as well as a plain row of it.
    [[nodiscard]] static constexpr std::uint32_t page_bytes_of(std::uint32_t device_page,
                                                               const lane_sizes& s) noexcept {
        return std::max(page_format::make(device_page, plain_bytes(s)).page_bytes,
                        page_format::make(device_page, s.record, compressor::ragged).page_bytes);
    }
};

template <class Preset> using cache_types = policy_types<policies_of<Preset>>;

}} // namespace kvtl::v0
