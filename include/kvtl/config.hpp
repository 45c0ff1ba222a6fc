// What a cache is opened with. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/signals.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvtl::inline v0 {

inline constexpr std::uint32_t whole_sequence =
    std::numeric_limits<std::uint32_t>::max(); ///< window_tokens of `full`
inline constexpr std::uint32_t automatic = std::numeric_limits<std::uint32_t>::max();

/// Configuration of kv_manager<Preset, ...>. Defaults of the policies' configs are those of the preset.
template <class Preset> struct cache_config {
    kvtl::shape shape{};        ///< L, HQ, H, D
    std::size_t max_tokens = 0; ///< per sequence, prompt included
    std::size_t max_sequences = 1;
    std::size_t memory_bytes = 0;    ///< bounds everything kvtl holds in DRAM; reserved by open()
    std::size_t attend_tokens = 256; ///< entries each query head attends per layer and step, window included
    unsigned shards = 1;             ///< KV head h belongs to shard h % shards; shards may run concurrently
    bool share = false;              ///< sequences share the frames instead of getting equal parts
    bool adapt_prompt = false; ///< cluster the first chunk of a prompt at once and let later chunks take the
                               ///< decode path (DynaKV, Discussion 1) instead of staging them
    std::uint32_t window_tokens = Preset::window_tokens; ///< recent entries, always in DRAM, always attended
    std::uint32_t sink_tokens = Preset::sink_tokens;     ///< first entries, likewise
    std::uint32_t tail_frames = automatic; ///< unfinished pages held per pool (automatic: two per lane)
    std::uint32_t read_through_pages = 4;  ///< gaps up to this many pages are read rather than skipped
    bool time_phases = false;              ///< measure statistics::phase_ns (two clock readings per phase)
    signal supplied = signal::q | signal::k | signal::v; ///< what the engine hands over
    typename Preset::clusterer::config clusterer{};
    typename Preset::index::config index{};
    typename Preset::selector::config selector{};
    typename Preset::layout::config layout{};
    typename Preset::replacement::config replacement{};
    typename Preset::io::config io{};
};

} // namespace kvtl::inline v0
