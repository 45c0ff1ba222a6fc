// What a cache is opened with.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/lent_threads.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace kvtl { inline namespace v0 {

inline constexpr std::uint32_t whole_sequence =
    std::numeric_limits<std::uint32_t>::max(); ///< window_tokens of `full`
inline constexpr std::uint32_t automatic = whole_sequence - 1;

/// A policy's config; empty where it has none.
struct no_settings {
    template <class Visit> void fields(Visit&&) {}
};
namespace detail {
template <class Policy> struct settings { using type = no_settings; };
template <class Policy>
requires requires {
    typename Policy::config;
}
struct settings<Policy> {
    using type = typename Policy::config;
};
} // namespace detail
template <class Policy> using settings_of = typename detail::settings<Policy>::type;

/// A preset may hold defaults for the configs of its slots: `static constexpr low_rank_keys::config
/// index_config{.rank = 16}`. They count only while the slot has that policy: an ablation that exchanges it
/// gets the new one's own defaults.
namespace detail {
template <class Config, class Default> [[nodiscard]] constexpr Config default_config(const Default& d) {
    if constexpr (std::is_same_v<Config, Default>)
        return d;
    else
        return Config{};
}
template <class Preset> [[nodiscard]] constexpr settings_of<typename Preset::clusterer> clusterer_defaults() {
    using config = settings_of<typename Preset::clusterer>;
    if constexpr (requires { Preset::clusterer_config; })
        return default_config<config>(Preset::clusterer_config);
    else
        return config{};
}
template <class Preset> [[nodiscard]] constexpr settings_of<typename Preset::index> index_defaults() {
    using config = settings_of<typename Preset::index>;
    if constexpr (requires { Preset::index_config; })
        return default_config<config>(Preset::index_config);
    else
        return config{};
}
template <class Preset> [[nodiscard]] constexpr settings_of<typename Preset::selector> selector_defaults() {
    using config = settings_of<typename Preset::selector>;
    if constexpr (requires { Preset::selector_config; })
        return default_config<config>(Preset::selector_config);
    else
        return config{};
}
template <class Preset> [[nodiscard]] constexpr settings_of<typename Preset::estimator> estimator_defaults() {
    using config = settings_of<typename Preset::estimator>;
    if constexpr (requires { Preset::estimator_config; })
        return default_config<config>(Preset::estimator_config);
    else
        return config{};
}
template <class Preset>
[[nodiscard]] constexpr settings_of<typename Preset::compressor> compressor_defaults() {
    using config = settings_of<typename Preset::compressor>;
    if constexpr (requires { Preset::compressor_config; })
        return default_config<config>(Preset::compressor_config);
    else
        return config{};
}
template <class Preset> [[nodiscard]] constexpr settings_of<typename Preset::retention> retention_defaults() {
    using config = settings_of<typename Preset::retention>;
    if constexpr (requires { Preset::retention_config; })
        return default_config<config>(Preset::retention_config);
    else
        return config{};
}
} // namespace detail

/// What the engine's threads divide among them: each has its KV heads of every sequence, or its sequences.
/// Presets whose heads are decided or stored together divide sequences in any case.
enum class division : std::uint8_t { heads, sequences };

/// How the model attends, where that is not softmax(q . k / sqrt(D)) over all that came before. A logit per head that
/// joins the softmax comes with each call (layer_input::sink_logits).
struct attention_rule {
    float scale = 0; ///< of q . k; 0: 1 / sqrt(D)
    float softcap =
        0; ///< logits become softcap * tanh(logit / softcap); 0: they stay (Gemma 2: 50). Scores of units
           ///< are not capped: a cap does not change their order.
    std::vector<std::uint32_t> windows{}; ///< per layer: tokens that a query sees, its own included; 0: all.
        ///< Empty: all layers see all. A layer that slides keeps these rows and
        ///< as many as may be rewound (window_tokens; 32 where that is everything),
        ///< in DRAM, whatever the preset does: they count in memory_bytes, not in
        ///< attend_tokens, and never lie on storage. Policies' tables with a number
        ///< per layer are of the other layers; presets that read a calibration
        ///< want none that slides
};

/// Configuration of kv_manager<Preset, ...>. Defaults of the policies' configs are those of the preset.
template <class Preset> struct cache_config {
    kvtl::shape shape{};        ///< L, HQ, H, D
    attention_rule attention{}; ///< scale, cap, sliding windows
    std::size_t max_tokens = 0; ///< per sequence, prompt included
    std::size_t max_sequences = 1;
    std::size_t memory_bytes = 0;    ///< bounds everything kvtl holds in DRAM; reserved by open()
    std::size_t attend_tokens = 256; ///< entries each query head attends per layer and step, window included
    unsigned shards = 1;    ///< parts that may run concurrently, one thread each. Presets whose sequences
                            ///< are not divided have max_sequences at most (kv_manager::shards())
    lent_threads threads{}; ///< of the engine, which may share the clustering of one head's prompt
    division shard_by =
        division::heads;       ///< head h belongs to shard h % shards; or the s-th sequence to s % shards
    bool share = false;        ///< sequences share the frames instead of getting equal parts
    bool adapt_prompt = false; ///< cluster the first chunk of a prompt at once and let later chunks take the
                               ///< decode path (DynaKV, Discussion 1) instead of staging them
    std::uint32_t window_tokens = Preset::window_tokens; ///< recent entries, always in DRAM, always attended
    std::uint32_t sink_tokens = Preset::sink_tokens;     ///< first entries, likewise
    std::uint32_t centroid_bits =
        8; ///< of a number of the units' mean keys: 8 (codes with a scale per unit), 16 or 32
           ///< (with a layout in token order: always 32)
    std::uint32_t open_pages =
        automatic; ///< unfinished pages held per pool: of a sequence, of one of its layers
                   ///< where they have memory in turn, of all that share (automatic: two per lane)
    std::uint32_t read_through_pages =
        4; ///< gaps up to this many pages are read rather than skipped (4 suits eMMC to NVMe within 4 %)
    bool lend_tables =
        true; ///< what units do not need of their tables yet serves as frames (clusters). Then a call may,
              ///< seldom, copy a sequence's tables and give pages back to the system; without, calls make no
              ///< system call but I/O
    std::size_t keep_tokens = 0; ///< presets that drop entries: mean number of entries per layer and KV head
                                 ///< that survive, sinks and window included (0: attend_tokens,
                                 ///< or four times as many where these are chosen among what was kept)
    std::size_t prefill_tokens = 0; ///< presets that drop entries: longest prompt (0: max_tokens). The rest
                                    ///< of max_tokens is promised to decode, where entries stay in memory
    bool time_phases = false;       ///< measure statistics::phase_ns (two clock readings per phase)
    std::string calibration{};      ///< file of bases, for presets that need engine_input::calibration
    std::uint64_t calibration_model =
        0; ///< fingerprint of the model that it must have been fitted to (0: any of this shape)
    engine_input engine_inputs =
        all_engine_inputs::value; ///< what is handed over, said by programs that choose presets
                                  ///< at run time; open() refuses a preset that needs more
    settings_of<typename Preset::clusterer> clusterer = detail::clusterer_defaults<Preset>();
    settings_of<typename Preset::index> index = detail::index_defaults<Preset>();
    settings_of<typename Preset::selector> selector = detail::selector_defaults<Preset>();
    settings_of<typename Preset::estimator> estimator = detail::estimator_defaults<Preset>();
    settings_of<typename Preset::compressor> compressor = detail::compressor_defaults<Preset>();
    settings_of<typename Preset::layout> layout{};
    settings_of<typename Preset::replacement> replacement{};
    settings_of<typename Preset::schedule> schedule{};
    settings_of<typename Preset::io> io{};
    std::uint32_t io_timeout_ms =
        60'000; ///< a device that completes nothing for so long is given up: calls fail, and the
                ///< cache can only be closed (0: wait for ever)
    settings_of<typename Preset::budget> budget{};
    settings_of<typename Preset::retention> retention = detail::retention_defaults<Preset>();
    settings_of<typename Preset::position> position{};
};

}} // namespace kvtl::v0
