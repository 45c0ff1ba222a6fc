// The configuration that a cache is opened with.
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
/// index_config{.rank = 16}`. They apply only while the slot holds that policy. An ablation that replaces the
/// policy gets the defaults of the new one.
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
template <class Preset> [[nodiscard]] constexpr settings_of<typename Preset::budget> budget_defaults() {
    using config = settings_of<typename Preset::budget>;
    if constexpr (requires { Preset::budget_config; })
        return default_config<config>(Preset::budget_config);
    else
        return config{};
}
} // namespace detail

/// How the engine's threads share the work: each thread has its KV heads of every sequence, or its sequences.
/// Presets whose heads are decided or stored together always divide sequences.
enum class division : std::uint8_t { heads, sequences };

/// Products of attention in decode; prompts have exact ones. exact: multiply-adds of floats, or what has their accuracy but for
/// a few bits. relaxed: queries are rounded to the precision of the rows, and weights to bf16 (rows of bf16) or 16 bits (bytes;
/// simd/relaxed.hpp): outputs err by up to 1.4e-3 (bf16) or 3.7e-3 (bytes) instead of 1e-6. That is for rows of bf16 and for
/// codes of int8_row, in heads of 64, 128, 192 or 256 numbers. Other rows keep exact products, and so do layers that evict by
/// attention mass in decode. open() refuses `relaxed` where nothing of the cache has relaxed products;
/// `relaxed_if_available` is exact there (kv_manager::products()).
enum class precision : std::uint8_t { exact, relaxed, relaxed_if_available };

/// How the model attends, if it differs from softmax(q . k / sqrt(D)) over all earlier tokens. Logits per
/// head that join the softmax come with each call (layer_input::sink_logits).
struct attention_rule {
    float scale = 0; ///< factor of q . k; 0: 1 / sqrt(D)
    /// Logits become softcap * tanh(logit / softcap); 0: no cap (Gemma 2: 50). Scores of units are not
    /// capped: a cap does not change their order.
    float softcap = 0;
    /// Per layer: tokens that a query sees, its own included; 0: all tokens. Empty: all layers see all
    /// tokens. A sliding layer keeps its window in DRAM, plus the tokens that may be rewound: window_tokens,
    /// or 32 where the window is the whole sequence. These rows count in memory_bytes, not in attend_tokens,
    /// and never go to storage. Per-layer tables of policies list only the layers that do not slide. Presets
    /// with a calibration file do not support sliding layers.
    std::vector<std::uint32_t> windows{};
};

/// Configuration of kv_manager<Preset, ...>. The configs of the policies default to those of the preset.
template <class Preset> struct cache_config {
    kvtl::shape shape{};        ///< L, HQ, H, D
    attention_rule attention{}; ///< scale, cap, sliding windows
    /// Per layer: the layer whose keys and values it attends, itself or an earlier one that is its own owner. Empty: every
    /// layer its own. The cache has storage, index and memory for owners only. What policies count per layer they count per
    /// cache, in the order in which the last layers of the caches come, with the query heads of those layers. Calls for a layer that shares pass k and v (and k_pre) of its owner, the same tokens again. Layers that slide
    /// do not share. Presets with a calibration file do not support it.
    std::vector<std::uint32_t> owner{};
    /// Of products of attention. Scores that an index chooses units by are always exact.
    kvtl::precision precision = kvtl::precision::exact;
    std::size_t max_tokens = 0; ///< tokens per sequence, prompt included
    std::size_t max_sequences = 1;
    std::size_t memory_bytes = 0;    ///< bound on everything that kvtl holds in DRAM; open() reserves it
    std::size_t attend_tokens = 256; ///< entries each query head attends per layer and step, window
                                     ///< included: at most, or in the mean (error_price)
    /// Parts that may run concurrently, one thread each: at most one per KV head, or per sequence where
    /// sequences are divided. Presets that always divide sequences accept more, and then use max_sequences of
    /// them (kv_manager::shards()).
    unsigned shards = 1;
    lent_threads threads{}; ///< threads of the engine that may share the clustering of one head's prompt
    /// heads: head h belongs to shard h % shards. sequences: the s-th sequence belongs to shard s % shards.
    division shard_by = division::heads;
    bool share = false; ///< sequences share the frames of their shard; otherwise each has an equal part
    /// Cluster the first chunk of a prompt at once. Later chunks then take the decode path (DynaKV,
    /// Discussion 1) instead of being staged.
    bool adapt_prompt = false;
    std::uint32_t window_tokens = Preset::window_tokens; ///< recent entries, always in DRAM, always attended
    std::uint32_t sink_tokens = Preset::sink_tokens;     ///< first entries, always in DRAM, always attended
    /// Bits per number of the mean keys: 8 (codes with a scale per unit), 16 or 32. Layouts in token order
    /// always use 32.
    std::uint32_t centroid_bits = 8;
    /// Unfinished pages held per pool. A pool belongs to one sequence; to one layer of it where layers take
    /// turns in memory; to all sequences of a shard that share frames. automatic: two per lane of the pool.
    std::uint32_t open_pages = automatic;
    /// Gaps of up to this many pages are read rather than skipped. 4 is within 4 % of the best from eMMC to
    /// NVMe.
    std::uint32_t read_through_pages = 4;
    /// The unused memory of the unit tables serves as frames (clusters only). A call may then, rarely, copy
    /// the tables of a sequence and give pages back to the system. If false, calls make no system calls
    /// except I/O.
    bool lend_tables = true;
    /// Presets that drop entries: mean number of entries per layer and KV head that survive, sinks and window
    /// included. 0: attend_tokens, or four times as many in presets that choose among the survivors.
    std::size_t keep_tokens = 0;
    /// Presets that drop entries: longest prompt (0: max_tokens). The rest of max_tokens is reserved for
    /// decode, where entries stay in memory.
    std::size_t prefill_tokens = 0;
    bool time_phases = false;  ///< measure statistics::phase_ns (two clock readings per phase)
    std::string calibration{}; ///< calibration file, for presets that need engine_input::calibration
    /// Fingerprint of the model that the calibration file must have been fitted to (0: any model of this
    /// shape).
    std::uint64_t calibration_model = 0;
    /// Inputs that the engine supplies, for programs that choose the preset at run time. open() refuses a
    /// preset that needs more.
    engine_input engine_inputs = all_engine_inputs::value;
    settings_of<typename Preset::clusterer> clusterer = detail::clusterer_defaults<Preset>();
    settings_of<typename Preset::index> index = detail::index_defaults<Preset>();
    settings_of<typename Preset::selector> selector = detail::selector_defaults<Preset>();
    settings_of<typename Preset::estimator> estimator = detail::estimator_defaults<Preset>();
    settings_of<typename Preset::compressor> compressor = detail::compressor_defaults<Preset>();
    settings_of<typename Preset::layout> layout{};
    settings_of<typename Preset::replacement> replacement{};
    settings_of<typename Preset::schedule> schedule{};
    settings_of<typename Preset::io> io{};
    /// A device that completes nothing for this long, in ms, is given up: calls fail, and the cache can only
    /// be closed. 0: wait for ever.
    std::uint32_t io_timeout_ms = 60'000;
    settings_of<typename Preset::budget> budget = detail::budget_defaults<Preset>();
    settings_of<typename Preset::retention> retention = detail::retention_defaults<Preset>();
    settings_of<typename Preset::position> position{};
};

}} // namespace kvtl::v0
