// A config without its preset: what open() works with.
//
// What:   the fields that every preset has are plain, so they are checked, planned and explained in code that is compiled
//         once. Those of the policies have the types of the policies, so presets with the same policies share the rest.
// Cost:   of open() only.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/io/any_io.hpp>
#include <kvtl/lent_threads.hpp>
#include <kvtl/slots/preset.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

/// The fields of cache_config that have one type in every preset (config.hpp), and what the preset says of itself.
struct common_settings {
    std::string_view preset{}; ///< its name
    std::uint32_t preset_window = 0, preset_sinks = 0;

    kvtl::shape shape{}; ///< its layers and windows count stores once `owner` has been followed
    attention_rule attention{};
    std::vector<std::uint32_t> owner{};
    kvtl::precision precision = kvtl::precision::exact;
    std::size_t max_tokens = 0, max_sequences = 1, memory_bytes = 0, attend_tokens = 0;
    unsigned shards = 1;
    lent_threads threads{};
    division shard_by = division::heads;
    bool share = false, adapt_prompt = false, lend_tables = true, time_phases = false;
    std::uint32_t window_tokens = 0, sink_tokens = 0, centroid_bits = 8, open_pages = automatic,
                  read_through_pages = 0, io_timeout_ms = 0;
    std::size_t keep_tokens = 0, prefill_tokens = 0;
    std::string calibration{};
    std::uint64_t calibration_model = 0;
    any_io::config io{}; ///< opens the device
};

/// All of a config. `shrink` turns the preset's size settings one step down, as in its published order; null: it has none.
template <class Policies> struct cache_settings : common_settings {
    settings_of<typename Policies::clusterer> clusterer;
    settings_of<typename Policies::index> index;
    settings_of<typename Policies::selector> selector;
    settings_of<typename Policies::estimator> estimator;
    settings_of<typename Policies::budget> budget;
    settings_of<typename Policies::retention> retention;
    settings_of<typename Policies::compressor> compressor;
    settings_of<typename Policies::position> position;
    settings_of<typename Policies::layout> layout;
    settings_of<typename Policies::replacement> replacement;
    settings_of<typename Policies::schedule> schedule;
    bool (*shrink)(cache_settings&) noexcept = nullptr;
};

/// What plain code asks of the policies.
struct policy_facts {
    bool drops = false, hands_over = false, retrieves = false, in_chains = false, sequential = false;
    bool chooses = false;         ///< among what is retrieved
    bool one_shard = false;       ///< heads that are decided together, or lie in one unit, have one shard
    bool layer_units = false;     ///< a lane spans all heads of a layer
    bool fits_first_rows = false; ///< an index or a codec is fitted to a lane's first keys
    bool ragged = false;          ///< records differ in size
    bool evicts_in_decode = false;
    bool evicts_by_mass = false; ///< which takes logits (core/step/decode_eviction.hpp)
    std::string_view products{}; ///< "relaxed" where some rows have relaxed products, or why they have none
};

template <class Preset> [[nodiscard, gnu::cold]] common_settings common_of(const cache_config<Preset>& c) {
    return {.preset = preset_name<Preset>(),
            .preset_window = Preset::window_tokens,
            .preset_sinks = Preset::sink_tokens,
            .shape = c.shape,
            .attention = c.attention,
            .owner = c.owner,
            .precision = c.precision,
            .max_tokens = c.max_tokens,
            .max_sequences = c.max_sequences,
            .memory_bytes = c.memory_bytes,
            .attend_tokens = c.attend_tokens,
            .shards = c.shards,
            .threads = c.threads,
            .shard_by = c.shard_by,
            .share = c.share,
            .adapt_prompt = c.adapt_prompt,
            .lend_tables = c.lend_tables,
            .time_phases = c.time_phases,
            .window_tokens = c.window_tokens,
            .sink_tokens = c.sink_tokens,
            .centroid_bits = c.centroid_bits,
            .open_pages = c.open_pages,
            .read_through_pages = c.read_through_pages,
            .io_timeout_ms = c.io_timeout_ms,
            .keep_tokens = c.keep_tokens,
            .prefill_tokens = c.prefill_tokens,
            .calibration = c.calibration,
            .calibration_model = c.calibration_model,
            .io = any_io::of<typename Preset::io>(c.io)};
}
template <class Preset>
[[nodiscard, gnu::cold]] cache_settings<policies_of<Preset>> settings_from(const cache_config<Preset>& c) {
    using settings = cache_settings<policies_of<Preset>>;
    settings s{common_of(c), c.clusterer,  c.index,    c.selector, c.estimator,   c.budget,
               c.retention,  c.compressor, c.position, c.layout,   c.replacement, c.schedule};
    if constexpr (requires { Preset::shrink(s); })
        s.shrink = [](settings& of) noexcept { return Preset::shrink(of); };
    return s;
}

}} // namespace kvtl::v0
