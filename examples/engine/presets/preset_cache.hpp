// A kvtl preset behind the programs' virtual interface. Included by one translation unit per preset.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/any_io.hpp>
#include <kvtl/manager.hpp>

#include "gates.hpp"
#include "registry.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <type_traits>

namespace engine {

/// The preset with a device that is chosen at run time.
template <class Preset> struct on_any_io : Preset { using io = kvtl::any_io; };

/// Head size and all else come from the model file.
using any_model = kvtl::geometry<kvtl::shape{}>;

namespace detail {

[[nodiscard]] inline kvtl::error bad_setting(const setting& s, const std::string& why) {
    return {kvtl::errc::invalid_argument,
            "--set " + s.policy + "." + s.slot + "." + s.field + "=" + s.value + ": " + why};
}

/// Writes a textual value into a number of a config.
template <class T> [[nodiscard]] bool parse_value(const std::string& text, T& out) {
    if constexpr (std::is_same_v<T, bool>) {
        if (text != "0" && text != "1" && text != "true" && text != "false") return false;
        out = text == "1" || text == "true";
        return true;
    } else {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
        return error == std::errc{} && end == text.data() + text.size();
    }
}

/// The configs of a preset's slots by name, and "cache" for the manager's own knobs.
template <class Config, class Visit> void visit_slots(Config& c, Visit&& visit) {
    visit("clusterer", [&](auto&& field) { c.clusterer.fields(field); });
    visit("index", [&](auto&& field) { c.index.fields(field); });
    visit("remainder", [&](auto&& field) { c.remainder.fields(field); });
    visit("selector", [&](auto&& field) { c.selector.fields(field); });
    visit("budget", [&](auto&& field) { c.budget.fields(field); });
    visit("retention", [&](auto&& field) { c.retention.fields(field); });
    visit("position", [&](auto&& field) { c.position.fields(field); });
    visit("layout", [&](auto&& field) { c.layout.fields(field); });
    visit("replacement", [&](auto&& field) { c.replacement.fields(field); });
    visit("cache", [&](auto&& field) {
        field("window_tokens", c.window_tokens);
        field("sink_tokens", c.sink_tokens);
        field("tail_frames", c.tail_frames);
        field("read_through_pages", c.read_through_pages);
        field("adapt_prompt", c.adapt_prompt);
        field("prefill_tokens", c.prefill_tokens);
    });
}

template <class Config> [[nodiscard]] kvtl::result<int> apply(Config& c, const setting& s) {
    bool slot_found = false, field_found = false, parsed = false;
    std::string slots, fields;
    visit_slots(c, [&](const char* slot, auto&& visit_fields) {
        slots += std::string(slots.empty() ? "" : ", ") + slot;
        if (s.slot != slot) return;
        slot_found = true;
        visit_fields([&](const char* name, auto& value) {
            fields += std::string(fields.empty() ? "" : ", ") + name;
            if (s.field != name) return;
            field_found = true;
            parsed = parse_value(s.value, value);
        });
    });
    if (!slot_found) return bad_setting(s, "no such slot; valid: " + slots);
    if (!field_found) return bad_setting(s, "no such field; valid: " + (fields.empty() ? "none" : fields));
    if (!parsed) return bad_setting(s, "not a value of this field");
    return 0;
}

/// How the model rotates keys, for the policies that turn them themselves.
template <class Config> void describe_rope(Config& c, const cache_options& o) {
    [[maybe_unused]] const auto pairs = static_cast<double>(o.rope_frequencies.size());
    if constexpr (requires { c.index.rope; }) { // plain RoPE only: the base follows from the second pair
        if (o.rope_frequencies.size() > 1) c.index.rope.theta = std::pow(o.rope_frequencies[1], -pairs);
        c.index.rope.dims = static_cast<std::uint32_t>(2 * o.rope_frequencies.size());
        c.index.rope.neighbours = o.rope_neighbours;
    }
    if constexpr (requires { c.position.frequencies; }) {
        c.position.frequencies = o.rope_frequencies;
        c.position.dims = static_cast<std::uint32_t>(2 * o.rope_frequencies.size());
        c.position.neighbours = o.rope_neighbours;
    }
    if constexpr (requires { c.index.first_position; }) c.index.first_position = c.sink_tokens;
}

/// Every field of every slot, as ("slot.field", value).
template <class Config> [[nodiscard]] std::vector<std::pair<std::string, std::string>> listing(Config c) {
    std::vector<std::pair<std::string, std::string>> all;
    visit_slots(c, [&](const char* slot, auto&& visit_fields) {
        visit_fields([&](const char* name, auto& value) {
            std::ostringstream text;
            text << std::boolalpha << value;
            all.emplace_back(std::string(slot) + "." + name, text.str());
        });
    });
    return all;
}

/// Where the heads of a layer are decided together a sequence belongs to one shard: more shards than
/// sequences would only reserve memory.
template <class Preset> [[nodiscard]] consteval bool decides_heads_together() {
    if constexpr (kvtl::drops_entries<Preset>) {
        using score = typename Preset::retention::score;
        return Preset::budget::decides_together || score::decides_together || score::reads_values;
    } else {
        return false;
    }
}

} // namespace detail

/// All that passes through this interface. What a preset needs of it, wants() says; whether the program that
/// opens it has that, cache_options::supplied.
using any_signal = kvtl::supplied<engine_signals, kvtl::signal::external>;

template <class Preset> class preset_cache final : public kv_cache {
    using manager = kvtl::kv_manager<on_any_io<Preset>, any_model, any_signal>;

  public:
    preset_cache(manager m, const typename manager::config& c)
        : manager_(std::move(m)), config_(detail::listing(c)) {}

    [[nodiscard]] static kvtl::result<std::unique_ptr<kv_cache>> open(const cache_options& o) {
        typename manager::config c;
        c.shape = o.shape;
        c.max_tokens = o.max_tokens;
        c.max_sequences = o.max_sequences;
        c.memory_bytes = o.memory_bytes;
        c.attend_tokens = o.attend_tokens;
        c.keep_tokens = o.keep_tokens;
        c.prefill_tokens = o.prefill_tokens;
        c.shards = o.shards;
        if constexpr (detail::decides_heads_together<Preset>())
            c.shards = static_cast<unsigned>(std::min<std::size_t>(o.shards, o.max_sequences));
        c.time_phases = o.time_phases;
        const auto backend = kvtl::any_io::parse(o.io);
        if (!backend)
            return kvtl::error(kvtl::errc::invalid_argument,
                               "--io is " + o.io + "; valid: uring, posix, memory");
        c.io.use = *backend;
        c.io.path = o.path;
        c.io.limit = o.limit;
        if (!o.rope_frequencies.empty()) detail::describe_rope(c, o);
        for (const setting& s : o.settings)
            if (s.policy == Preset::name)
                if (auto done = detail::apply(c, s); !done) return done.error();
        // `full` keeps everything in memory by definition: the bound is for the others, and it needs no file.
        if (c.window_tokens == kvtl::whole_sequence) {
            c.memory_bytes = std::numeric_limits<std::size_t>::max() / 2;
            c.io.use = kvtl::any_io::backend::memory;
        }
        if constexpr (contains(kvtl::needed_signals<Preset>(), kvtl::signal::calibration))
            if (o.calibration.empty())
                return kvtl::error(kvtl::errc::unsupported,
                                   "--calibration: policy " + o.policy +
                                       " needs a file of bases (kvtl-calibrate writes one)");
        std::vector<std::byte> gates;
        if constexpr (has_gates) {
            if (o.gates.empty())
                return kvtl::error(kvtl::errc::unsupported,
                                   "--gates: policy " + o.policy +
                                       " needs a file with the weights of its gates "
                                       "(kvtl/calibration/gate_weights.hpp lays it out; kvtl-calibrate fits "
                                       "those of locret)");
            auto read = read_gates(o.gates);
            if (!read) return read.error();
            gates = std::move(*read);
            c.retention.weights = gates; // open() copies them
        }
        c.supplied = o.supplied;
        c.calibration = o.calibration;
        if constexpr (requires { manager::fitted(c); })
            if (o.fit) {
                auto fitting = manager::fitted(c);
                if (!fitting) return fitting.error();
                c = *fitting;
            }
        auto opened = manager::open(c);
        if (!opened) return opened.error();
        return std::unique_ptr<kv_cache>(std::make_unique<preset_cache>(std::move(*opened), c));
    }

    [[nodiscard]] kvtl::result<kvtl::sequence_id> begin() override { return manager_.begin(); }
    kvtl::status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned shard) noexcept override {
        return manager_.prefill(seq, layer, in, out, shard);
    }
    kvtl::status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                        std::span<float> out, unsigned shard) noexcept override {
        return manager_.attend(seq, layer, in, out, shard);
    }
    kvtl::status prefetch(kvtl::sequence_id seq, std::uint32_t layer, std::span<const float> q,
                          unsigned shard) noexcept override {
        return manager_.prefetch(seq, layer, q, shard);
    }
    kvtl::status rewind(kvtl::sequence_id seq, std::size_t n) noexcept override {
        return manager_.rewind(seq, n);
    }
    kvtl::status end(kvtl::sequence_id seq) noexcept override { return manager_.end(seq); }

    [[nodiscard]] cache_stats stats() const override {
        const kvtl::statistics s = manager_.stats();
        cache_stats out;
        out.resident_bytes_peak = s.resident_bytes_peak;
        out.read_bytes = s.read_bytes;
        out.useful_bytes = s.useful_bytes;
        out.reads = s.reads;
        out.written_bytes = s.written_bytes;
        out.hit_rate = s.hit_rate();
        out.mean_read_entries = s.mean_read_entries();
        out.storage_bytes = s.storage_bytes;
        const kvtl::memory_parts& p = s.bytes_by_part;
        out.bytes_by_part = {{"index", p.index},     {"metadata", p.metadata}, {"window", p.window},
                             {"buffers", p.buffers}, {"tails", p.tails},       {"scratch", p.scratch},
                             {"frames", p.frames}};
        const kvtl::io_facts facts = manager_.facts();
        out.io = facts.name == std::string_view("in_memory")    ? "memory"
                 : facts.name == std::string_view("posix_file") ? "posix"
                                                                : "uring";
        out.direct = facts.direct;
        out.detail = s;
        out.config = config_;
        return out;
    }
    [[nodiscard]] unsigned shards() const noexcept override { return manager_.shards(); }
    [[nodiscard]] cache_wants wants() const noexcept override { return needs(); }
    [[nodiscard]] static cache_wants needs() noexcept {
        cache_wants w;
        w.signals = kvtl::needed_signals<Preset>();
        if constexpr (requires { Preset::schedule::wants_prediction; })
            w.prefetch = Preset::schedule::wants_prediction;
        w.evicts = kvtl::drops_entries<Preset>;
        if constexpr (!requires { typename Preset::second; }) // one that evicts first and then retrieves
            w.retrieves = !w.evicts;
        w.gates = has_gates;
        return w;
    }

  private:
    static constexpr bool has_gates = requires(const typename manager::config& c) { c.retention.weights; };

    manager manager_;
    std::vector<std::pair<std::string, std::string>> config_;
};

} // namespace engine
