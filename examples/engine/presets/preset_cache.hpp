// A kvtl preset behind the programs' virtual interface. Included by one translation unit per header of presets.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/any_io.hpp>

#include "gates.hpp"
#include "manager_cache.hpp"
#include "presets/preset_parts.hpp"
#include "presets/record_sizer.hpp"
#include "presets/settings.hpp"
#include "registry.hpp"
#include "votes.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

namespace engine {

/// The preset with a device that is chosen at run time, where it has one at all.
template <class Preset> struct on_any_io : Preset {
    using io = std::conditional_t<kvtl::retrieves<Preset>, kvtl::any_io, typename Preset::io>;
};

/// Head size and all else come from the model file.

namespace detail {

/// A policy of it turns keys, and must know how the model does.
template <class Config> inline constexpr bool turns_keys = requires(Config c) {
    c.position.frequencies;
}
|| requires(Config c) {
    c.compressor.frequencies;
};

/// How the model rotates keys, for the policies that turn them themselves.
template <class Config> void describe_rope(Config& c, const cache_options& o) {
    if constexpr (requires { c.position.frequencies; }) {
        c.position.frequencies = o.rope_frequencies;
        c.position.dims = static_cast<std::uint32_t>(2 * o.rope_frequencies.size());
        c.position.neighbours = o.rope_neighbours;
    }
    if constexpr (requires { c.compressor.frequencies; }) {
        c.compressor.frequencies = o.rope_frequencies;
        c.compressor.dims = static_cast<std::uint32_t>(2 * o.rope_frequencies.size());
        c.compressor.neighbours = o.rope_neighbours;
    }
}

} // namespace detail

/// All that passes through this interface. What a preset needs of it, wants() says; whether the program that
/// opens it has that, cache_options::engine_inputs.
using any_input = kvtl::engine_inputs<model_file_inputs, kvtl::engine_input::external>;

template <class Preset> using preset_manager = kvtl::kv_manager<on_any_io<Preset>, any_input>;

template <class Preset>
class preset_cache final : public manager_cache<typename preset_manager<Preset>::element_type> {
    using manager = preset_manager<Preset>;
    using base = manager_cache<typename manager::element_type>;

  public:
    using sizer = record_sizer<Preset>;

    preset_cache(manager m, std::vector<std::pair<std::string, std::string>> listing)
        : base(std::move(m), needs()), config_(std::move(listing)) {}

    [[nodiscard, gnu::cold]] static kvtl::result<std::unique_ptr<kv_cache>> open(const cache_options& o) {
        auto prepared = prepare(o);
        if (!prepared) return prepared.error();
        typename manager::config& c = prepared->config;
        if (o.fit) {
            auto fitting = manager::fitted(c);
            if (!fitting) return fitting.error();
            c = *fitting;
            for (unsigned i = 0; i < o.turns; ++i)
                if (!turn_down(c))
                    return kvtl::error(kvtl::errc::out_of_range, "the size knob of policy " + o.policy +
                                                                     " has " + std::to_string(i) +
                                                                     " turns beyond what fits; " +
                                                                     std::to_string(o.turns) + " are wanted");
        }
        auto opened = manager::open(c);
        if (!opened) return opened.error();
        auto cache = std::make_unique<preset_cache>(std::move(*opened), list_settings(fields_of(c)));
        if constexpr (sizer::possible)
            cache->sizes_ = [codec = c.compressor, shape = o.shape, n = o.max_tokens, file = c.calibration] {
                return sizer::open(codec, shape, n, file);
            };
        return std::unique_ptr<kv_cache>(std::move(cache));
    }

    /// The smallest memory_bytes that open() accepts without `fit`, by what it is for.
    [[nodiscard, gnu::cold]] static kvtl::result<memory_use> least(const cache_options& o) {
        const auto prepared = prepare(o);
        if (!prepared) return prepared.error();
        const auto parts = manager::least_parts(prepared->config);
        if (!parts) return parts.error();
        const auto storage = manager::storage_bytes(prepared->config);
        if (!storage) return storage.error();
        memory_use use = memory_use_of(*parts);
        use.storage = *storage;
        return use;
    }

    [[nodiscard]] kvtl::result<std::unique_ptr<record_sizes>> sizes() const override {
        return sizes_ ? sizes_() : base::sizes();
    }
    [[nodiscard]] cache_stats stats() const override {
        cache_stats out = base::stats();
        out.config = config_;
        return out;
    }
    [[nodiscard]] static cache_wants needs() noexcept {
        cache_wants w = wants_of<Preset>();
        w.gates = has_gates;
        if constexpr (has_gates) w.attending_gates = requires(const typename manager::config& c) {
                Preset::retention::score::state::token_bytes(c.retention);
            };
        w.gates_flag = has_gates && requires {
            requires Preset::retention::score::drops_unwanted;
        };
        w.trained = trained_kinds != 0;
        w.entry_bases = trained_kinds == 0 && kvtl::calibrated_kinds<typename Preset::compressor>() != 0;
        return w;
    }

  private:
    /// The next smaller size of the preset's index. False: there is none.
    [[nodiscard, gnu::cold]] static bool turn_down(typename manager::config& c) {
        if constexpr (requires { Preset::shrink(c); }) return Preset::shrink(c);
        return static_cast<void>(c), false;
    }
    /// A config, and what it refers to.
    struct prepared_config {
        typename manager::config config;
        std::vector<std::byte> gates; ///< open() copies them
        head_votes votes;             ///< likewise
    };

    [[nodiscard, gnu::cold]] static kvtl::result<prepared_config> prepare(const cache_options& o) {
        prepared_config prepared;
        typename manager::config& c = prepared.config;
        c.shape = o.shape;
        c.attention = o.attention;
        c.owner = o.owner;
        c.max_tokens = o.max_tokens;
        c.max_sequences = o.max_sequences;
        c.memory_bytes = o.memory_bytes;
        c.attend_tokens = o.attend_tokens;
        c.keep_tokens = o.keep_tokens;
        c.prefill_tokens = o.prefill_tokens;
        constexpr std::size_t passing = kvtl::evicts_by_chunk<Preset>   ? most_probe_tokens
                                        : kvtl::replays_prompts<Preset> ? most_replayed_tokens
                                                                        : 0;
        c.max_tokens += passing;
        if (c.prefill_tokens != 0) c.prefill_tokens += passing;
        c.shards = std::max(1U, o.shards);
        c.time_phases = o.time_phases;
        c.threads = o.threads;
        auto device = device_of(o);
        if (!device) return device.error();
        if constexpr (kvtl::retrieves<Preset>) c.io = *std::move(device);
        if (!o.rope_frequencies.empty()) detail::describe_rope(c, o);
        if (o.rope_unknown && detail::turns_keys<decltype(c)>)
            return kvtl::error(
                kvtl::errc::unsupported,
                "--policy: " + o.policy +
                    " turns keys, and how this model rotates them is no plain rule (other "
                    "angles by layer, YaRN, sections); valid: a policy that leaves keys alone");
        for (const setting& s : o.settings)
            if (s.policy == Preset::name)
                if (auto done = apply_setting(fields_of(c), s); !done) return done.error();
        // `full` keeps everything as it is by definition: the bound is for the others.
        if constexpr (!kvtl::retrieves<Preset> && !kvtl::drops_entries<Preset>)
            if (c.window_tokens == kvtl::whole_sequence)
                c.memory_bytes = std::numeric_limits<std::size_t>::max() / 2;
        c.calibration = o.calibration;
        c.calibration_model = o.fingerprint;
        if constexpr (trained_kinds != 0) {
            c.calibration = o.gates;
            if (o.gates.empty()) {
                float rate = 0; // of bases that serve at every rate
                if constexpr ((trained_kinds & kvtl::kind_bit(kvtl::calibration_kind::gated_keys)) != 0)
                    rate = c.compressor.rate;
                auto found = find_trained(o, trained_kinds, rate);
                if (!found) return found.error();
                c.calibration = *std::move(found);
            }
        } else if constexpr (contains(kvtl::needed_inputs<Preset>(), kvtl::engine_input::calibration))
            if (o.calibration.empty())
                return kvtl::error(kvtl::errc::unsupported,
                                   "--calibration: policy " + o.policy +
                                       " needs a file of bases (kvtl-calibrate writes one)");
        if constexpr (has_gates) {
            auto path = o.gates.empty() ? find_gates(o) : kvtl::result<std::string>(o.gates);
            if (!path) return path.error();
            auto read = read_gates(*path);
            if (!read) return read.error();
            prepared.gates = std::move(*read);
            c.retention.weights = prepared.gates; // moved with it: a vector's bytes stay where they are
            c.retention.model = o.fingerprint;
        }
        if constexpr (heads_vote || layers_differ)
            if (!o.votes.empty()) {
                auto read = read_votes(o.votes, o.shape, o.fingerprint);
                if (!read) return read.error();
                prepared.votes = *std::move(read);
                if constexpr (heads_vote) c.retention.votes = prepared.votes.votes;
                if constexpr (requires { c.budget.importance; })
                    c.budget.importance = prepared.votes.importance;
            }
        if constexpr (kvtl::evicts_by_chunk<Preset>)
            if (o.chunk_tokens != 0 && o.prefill_tokens != 0 &&
                c.prefill_tokens == o.prefill_tokens + passing) // no setting says otherwise
                c.prefill_tokens = std::min(c.prefill_tokens, most_of_a_layer(c) + o.chunk_tokens + passing);
        c.engine_inputs = o.engine_inputs;
        return prepared;
    }

    /// Entries per head that a layer keeps at most: budget.cap times the mean where layers differ.
    [[nodiscard]] static std::size_t most_of_a_layer(const typename manager::config& c) noexcept {
        const std::size_t mean = c.keep_tokens != 0 ? c.keep_tokens : c.attend_tokens;
        if constexpr (layers_differ)
            if (!c.budget.importance.empty())
                return static_cast<std::size_t>(
                    std::ceil(static_cast<double>(c.budget.cap) * static_cast<double>(mean)));
        return mean;
    }

    /// Of the calibration kinds that the codec reads, those that only training makes.
    static constexpr std::uint32_t trained_kinds = [] {
        using enum kvtl::calibration_kind;
        std::uint32_t kinds = 0;
        for (const auto k : {gated_keys, gated_values, prefix_keys, prefix_values})
            kinds |= kvtl::kind_bit(k);
        return kinds & kvtl::calibrated_kinds<typename Preset::compressor>();
    }();
    static constexpr bool has_gates = requires(const typename manager::config& c) { c.retention.weights; };
    static constexpr bool layers_differ = requires(const typename manager::config& c) {
        c.budget.importance;
    };
    static constexpr bool heads_vote = requires(const typename manager::config& c) { c.retention.votes; };

    std::vector<std::pair<std::string, std::string>> config_;
    std::function<kvtl::result<std::unique_ptr<record_sizes>>()> sizes_; ///< empty: none
};

} // namespace engine
