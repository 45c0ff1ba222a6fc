// A lane's block of memory: sinks, window, buffer, unit table, representatives. One lane is one KV head of a layer (or
// a whole layer) of one sequence; its block has the same layout for every lane of a sequence in a shard, contains no
// pointers and is contiguous, so it can be copied, saved and counted as bytes.
//
// A unit's *representative* is all that is known of it without reading it: its mean, and the summaries of index and
// estimator. Those of a lane are the last part of its block, or lie where the lane table says when layers have memory
// for them in turn (lent_representatives.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/slots/compressor.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

/// Sizes that every lane of a cache has in common, all known when the cache is opened.
struct lane_sizes {
    std::uint32_t width = 0; ///< elements of one plain key (or value) row: lane heads * D
    record_bytes record{};   ///< bytes of a granule's records, weights included; ragged: at most
    std::uint32_t max_tokens = 0;
    std::uint32_t attend_tokens = 0; ///< entries that a query attends, at most
    std::uint32_t max_units = 0;
    std::uint32_t sinks = 0;
    std::uint32_t window =
        0; ///< entries of the recent window; one more row holds the token of the current step
    std::uint32_t buffer = 0;        ///< rows of the buffer
    std::uint32_t runs = 0;          ///< page runs a lane may hold
    bool ragged = false;             ///< records have sizes of their own
    bool weights = false;            ///< entries have log-weights
    bool positions = false;          ///< entries that wait remember their positions
    bool window_positions = false;   ///< those of the window do, as they are not their numbers
    std::size_t codec_lane = 0;      ///< bytes that the codec fits to a lane
    std::size_t codec_fit = 0;       ///< bytes that it borrows while it does
    std::uint32_t stream_pages = 0;  ///< runs of ragged records: pages of a lane's stream, at most
    std::uint32_t centroid_bits = 0; ///< of a number of the units' means; 0: units have none
    bool spread = false;             ///< lanes gather how far entries lie from their units' means
    std::uint32_t spare = 1;         ///< rows of the window's ring beyond the window
    std::size_t batch_scratch = 0;   ///< bytes to cluster as many rows, for clusterers that place batches
    std::size_t index_unit = 0, index_lane = 0;         ///< bytes of the index's summaries
    std::size_t index_tail = 0;                         ///< behind its last unit
    std::size_t key_records = 0;                        ///< bytes of keys that live in memory
    std::size_t estimator_unit = 0, estimator_lane = 0; ///< bytes of the estimator's
    std::size_t running = 0; ///< bytes beside a unit that grows: of its mean, the index and the estimator
    std::size_t running_index = 0, running_estimator = 0; ///< where in them

    /// Entries of units that a query may choose where it attends `in_memory` others anyway.
    [[nodiscard]] std::uint32_t budget_beside(std::uint32_t in_memory) const noexcept {
        return attend_tokens - std::min(attend_tokens, in_memory);
    }
};

/// A lane of a call: its number in the lane table, and which of its layer's lanes it is.
struct lane_ref {
    std::uint32_t id = 0;
    std::uint32_t in_layer = 0;
};

/// Offsets of a lane's arrays in its block. Tables have a row for each of `rows` units and come last: what lies in front of
/// them is the same however long they are.
template <element E, class ClustererLane, class Unit = unit_record> struct lane_offsets {
    std::uint32_t rows = 0; ///< units that the tables have room for
    std::size_t state = 0, clusterer = 0, runs = 0, page_first = 0;
    std::size_t codec = 0, spread = 0;
    std::size_t buffer_unit = 0, buffer_position = 0;
    std::size_t index_lane = 0, estimator_lane = 0, key_records = 0;
    std::size_t chosen = 0; ///< one bit per unit: the previous step chose it
    std::size_t sink_k = 0, sink_v = 0, window_k = 0, window_v = 0;
    std::size_t buffer_k = 0, buffer_v = 0;
    std::size_t sink_w = 0, window_w = 0, buffer_w = 0; ///< log-weights
    std::size_t window_position = 0;
    std::size_t units = 0, residency = 0, extents = 0; ///< tables
    /// Tables of the representatives, from where these begin.
    std::size_t means = 0, mean_scale = 0, index_units = 0, estimator_units = 0;
    std::size_t bytes = 0; ///< of all but the representatives
    std::size_t representative_bytes = 0;
    std::size_t metadata_bytes = 0, index_bytes = 0, window_bytes = 0, buffer_bytes = 0;

    /// With tables for all units that a lane may come to have.
    [[nodiscard]] static lane_offsets make(const lane_sizes& s) noexcept { return make(s, s.max_units); }
    [[nodiscard]] static lane_offsets make(const lane_sizes& s, std::uint32_t rows) noexcept {
        lane_offsets o;
        o.rows = rows;
        std::size_t used = 0, *part = &o.metadata_bytes;
        const auto put = [&](std::size_t size) {
            const std::size_t lines = (size + 63) / 64 * 64;
            *part += lines;
            return std::exchange(used, used + lines);
        };
        const std::size_t row = s.width * sizeof(E);
        o.state = put(sizeof(lane_state));
        o.clusterer = put(sizeof(ClustererLane));
        o.page_first = put(s.stream_pages * sizeof(std::uint32_t));
        o.chosen = put((s.max_units + 63) / 64 * sizeof(std::uint64_t));
        o.runs = put(s.runs * sizeof(std::uint32_t));
        part = &o.buffer_bytes;
        o.buffer_unit = put(s.buffer * sizeof(std::uint32_t));
        o.buffer_position = put(s.positions ? s.buffer * sizeof(std::uint32_t) : 0);
        o.buffer_k = put(s.buffer * row);
        o.buffer_v = put(s.buffer * row);
        o.buffer_w = put(s.weights ? s.buffer * sizeof(float) : 0);
        part = &o.index_bytes;
        o.spread = put(s.spread ? s.width * sizeof(float) : 0);
        o.index_lane = put(s.index_lane);
        o.estimator_lane = put(s.estimator_lane);
        o.codec = put(s.codec_lane);
        o.key_records = put(s.key_records);
        part = &o.window_bytes;
        o.sink_k = put(s.sinks * row);
        o.sink_v = put(s.sinks * row);
        o.window_k = put((std::size_t{s.window} + s.spare) * row);
        o.window_v = put((std::size_t{s.window} + s.spare) * row);
        o.sink_w = put(s.weights ? s.sinks * sizeof(float) : 0);
        o.window_w = put(s.weights ? (std::size_t{s.window} + s.spare) * sizeof(float) : 0);
        o.window_position =
            put(s.window_positions ? (std::size_t{s.window} + s.spare) * sizeof(std::uint32_t) : 0);
        part = &o.metadata_bytes;
        const table_bytes t(s, rows);
        o.units = put(t.units);
        o.residency = put(t.residency);
        o.extents = put(t.extents);
        o.bytes = std::exchange(used, 0);
        part = &o.representative_bytes;
        o.means = put(t.means);
        o.mean_scale = put(t.mean_scale);
        o.index_units = put(t.index_units);
        o.estimator_units = put(t.estimator_units);
        return o;
    }

    /// What the tables say of `n` units.
    struct table_bytes {
        std::size_t units, residency, extents, means, mean_scale, index_units, estimator_units;

        table_bytes(const lane_sizes& s, std::uint32_t n) noexcept
            : units(std::is_empty_v<Unit> ? 0 : n * sizeof(Unit)), residency(n * sizeof(unit_residency)),
              extents(s.ragged ? n * sizeof(unit_extent) : 0),
              means(std::size_t{n} * s.width * s.centroid_bits / 8),
              mean_scale(s.centroid_bits == 8 ? n * sizeof(float) : 0),
              index_units(s.index_unit * n + s.index_tail), estimator_units(s.estimator_unit * n) {}
    };

    /// A block of these offsets, its representatives behind the rest, becomes one of the offsets `to`. It has `n` units, for
    /// which both have room. The two may overlap where every part moves the same way: to a higher address where
    /// tables become longer, to a lower one where they become shorter.
    void move(const lane_sizes& s, std::uint32_t n, const std::byte* from, const lane_offsets& to,
              std::byte* block) const noexcept {
        struct part {
            std::size_t from, to, bytes;
        };
        const table_bytes t(s, n);
        const std::array<part, 8> parts{
            {{0, 0, units}, // all in front of the tables
             {units, to.units, t.units},
             {residency, to.residency, t.residency},
             {extents, to.extents, t.extents},
             {bytes + means, to.bytes + to.means, t.means},
             {bytes + mean_scale, to.bytes + to.mean_scale, t.mean_scale},
             {bytes + index_units, to.bytes + to.index_units, t.index_units},
             {bytes + estimator_units, to.bytes + to.estimator_units, t.estimator_units}}};
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const part& p = parts[to.rows > rows ? parts.size() - 1 - i : i];
            std::memmove(block + p.to, from + p.from, p.bytes);
        }
    }
};

/// Access to one lane. Cheap to make and to copy; owns nothing.
template <element E, class ClustererLane, class Unit = unit_record> class lane_view {
  public:
    using offsets = lane_offsets<E, ClustererLane, Unit>;

    lane_view() = default;
    lane_view(std::byte* block, std::byte* lent, const lane_sizes& sizes, const offsets& at) noexcept
        : block_(block), representatives_(lent), sizes_(&sizes), at_(&at) {}

    [[nodiscard]] lane_state& state() const noexcept { return *get<lane_state>(at_->state); }
    [[nodiscard]] ClustererLane& clusterer() const noexcept { return *get<ClustererLane>(at_->clusterer); }
    [[nodiscard]] const lane_sizes& sizes() const noexcept { return *sizes_; }

    [[nodiscard]] Unit& unit(std::uint32_t i) const noexcept { return get<Unit>(at_->units)[i]; }
    [[nodiscard]] unit_residency& residency(std::uint32_t i) const noexcept {
        return get<unit_residency>(at_->residency)[i];
    }
    /// Unit i begins: it is what `unit` says and nowhere yet.
    void begin_unit(std::uint32_t i, const Unit& fresh) const noexcept {
        if constexpr (!std::is_empty_v<Unit>) unit(i) = fresh;
        residency(i) = {};
    }
    [[nodiscard]] std::span<Unit> units() const noexcept { return {get<Unit>(at_->units), state().units}; }
    /// Ragged records: what they take of the unit's pages.
    [[nodiscard]] unit_extent& extent(std::uint32_t i) const noexcept {
        return get<unit_extent>(at_->extents)[i];
    }
    /// Runs of ragged records: the first entry of page i of the stream.
    [[nodiscard]] std::uint32_t& page_first(std::uint32_t i) const noexcept {
        return get<std::uint32_t>(at_->page_first)[i];
    }
    /// (U, width), where units have means.
    [[nodiscard]] unit_means means() const noexcept {
        if (sizes_->centroid_bits == 0) return {};
        return {representatives_ + at_->means, reinterpret_cast<float*>(representatives_ + at_->mean_scale),
                sizes_->centroid_bits, sizes_->width, sizes_->width};
    }
    /// (width) sum of squared distances from keys to the means of their units, by dimension, where that is gathered.
    [[nodiscard]] std::span<float> spread() const noexcept {
        if (!sizes_->spread) return {};
        return {get<float>(at_->spread), sizes_->width};
    }
    /// What was gathered of entries that joined units: their spread, and what the estimator made of them.
    void forget_gathered() const noexcept {
        for (float& sum : spread()) sum = 0.0F;
        std::memset(block_ + at_->estimator_lane, 0, sizes_->estimator_lane);
    }
    /// What the index keeps of this lane. `in_layer` is the lane's number in its layer.
    [[nodiscard]] summary_view index_summary(const summary_shape& shape, std::uint32_t layer,
                                             std::uint32_t in_layer) const noexcept {
        return {
            block_ + at_->index_lane,   representatives_ + at_->index_units, sizes_->index_unit, shape, layer,
            in_layer * shape.lane_heads};
    }
    [[nodiscard]] summary_view estimator_summary(const summary_shape& shape, std::uint32_t layer,
                                                 std::uint32_t in_layer) const noexcept {
        return {block_ + at_->estimator_lane,
                representatives_ + at_->estimator_units,
                sizes_->estimator_unit,
                shape,
                layer,
                in_layer * shape.lane_heads};
    }
    /// visit(first byte, end) of each part of the representatives that says something of the lane's units, ascending;
    /// bytes count from where the representatives begin.
    template <class Visit> void each_representative_part(Visit&& visit) const {
        each_table([&](std::size_t offsets::*at, std::size_t bytes) { visit(at_->*at, at_->*at + bytes); });
    }
    /// What the lane is beside its state, which says how much there is: visit(first byte, bytes) for the bytes in use of each
    /// array, in one order that depends on nothing but the lane's sizes. Where its units and pages are is no part of it.
    /// key_bytes: of the keys that live in memory, as many as there are.
    template <class Visit> void each_part(std::size_t key_bytes, Visit&& visit) const {
        each_part_of_both(*this, key_bytes,
                          [&](std::byte* at, std::byte*, std::size_t bytes) { visit(at, bytes); });
    }
    /// An empty lane becomes what `from` is, but for where units and pages are. Its tables have room. Both have the same sizes.
    void copy_parts(const lane_view& from, std::size_t key_bytes) const {
        state() = from.state().identity();
        for (std::uint32_t u = 0; u < state().units; ++u) begin_unit(u, {});
        from.each_part_of_both(*this, key_bytes, [](std::byte* at, std::byte* to, std::size_t bytes) {
            std::memcpy(to, at, bytes);
        });
    }
    /// Units that its tables have room for.
    [[nodiscard]] std::uint32_t table_rows() const noexcept { return at_->rows; }
    /// What the codec fitted to this lane.
    [[nodiscard]] std::byte* codec() const noexcept { return block_ + at_->codec; }
    void forget_fit() const noexcept { std::memset(codec(), 0, sizes_->codec_lane); }
    /// The records of the lane's stored keys, where they live in memory.
    [[nodiscard]] std::byte* key_records() const noexcept { return block_ + at_->key_records; }
    /// One bit per unit, set when the previous step chose it.
    [[nodiscard]] std::span<std::uint64_t> chosen_before() const noexcept {
        return {get<std::uint64_t>(at_->chosen), (sizes_->max_units + 63) / 64};
    }
    [[nodiscard]] std::uint32_t& run(std::uint32_t i) const noexcept {
        return get<std::uint32_t>(at_->runs)[i];
    }

    // Rows, each `width` elements.
    [[nodiscard]] E* sink_k(std::uint32_t i) const noexcept { return row(at_->sink_k, i); }
    [[nodiscard]] E* sink_v(std::uint32_t i) const noexcept { return row(at_->sink_v, i); }
    /// The window is a ring: token t lies at row t % (window + spare).
    [[nodiscard]] std::uint32_t ring(std::uint32_t token) const noexcept {
        return token % (sizes_->window + sizes_->spare);
    }
    [[nodiscard]] E* window_k(std::uint32_t token) const noexcept { return row(at_->window_k, ring(token)); }
    [[nodiscard]] E* window_v(std::uint32_t token) const noexcept { return row(at_->window_v, ring(token)); }

    /// Where the key of `token` goes when it arrives: a sink, or the window.
    [[nodiscard]] E* arrival_k(std::uint32_t token) const noexcept {
        return token < sizes_->sinks ? sink_k(token) : window_k(token);
    }
    [[nodiscard]] E* arrival_v(std::uint32_t token) const noexcept {
        return token < sizes_->sinks ? sink_v(token) : window_v(token);
    }

    [[nodiscard]] E* buffer_k(std::uint32_t i) const noexcept { return row(at_->buffer_k, i); }
    [[nodiscard]] E* buffer_v(std::uint32_t i) const noexcept { return row(at_->buffer_v, i); }

    // Log-weights of sinks, of the window's ring and of buffered entries; null where entries have none.
    [[nodiscard]] float* sink_w(std::uint32_t i) const noexcept { return weight(at_->sink_w, i); }
    [[nodiscard]] float* window_w(std::uint32_t token) const noexcept {
        return weight(at_->window_w, ring(token));
    }
    [[nodiscard]] float* buffer_w(std::uint32_t i) const noexcept { return weight(at_->buffer_w, i); }
    [[nodiscard]] float* arrival_w(std::uint32_t token) const noexcept {
        return token < sizes_->sinks ? sink_w(token) : window_w(token);
    }
    /// The number itself; 0 where entries have none.
    [[nodiscard]] static float weight_at(const float* w) noexcept { return w == nullptr ? 0.0F : *w; }

    [[nodiscard]] std::uint32_t& buffer_unit(std::uint32_t i) const noexcept {
        return get<std::uint32_t>(at_->buffer_unit)[i];
    }

    /// The position of the window's entry `token`: its own number, where nothing was dropped before it.
    [[nodiscard]] std::uint32_t position_of(std::uint32_t token) const noexcept {
        return sizes_->window_positions ? get<std::uint32_t>(at_->window_position)[ring(token)] : token;
    }
    void set_position(std::uint32_t token, std::uint32_t position) const noexcept {
        if (sizes_->window_positions) get<std::uint32_t>(at_->window_position)[ring(token)] = position;
    }
    /// The token that the buffered entry is; 0 where nobody asks.
    [[nodiscard]] std::uint32_t position_of_buffered(std::uint32_t i) const noexcept {
        return sizes_->positions ? get<std::uint32_t>(at_->buffer_position)[i] : 0;
    }

    /// Adds an entry to the end of the buffer; the caller has checked that there is a row.
    void push_buffer(std::uint32_t u, const E* k, const E* v, float log_weight = 0,
                     std::uint32_t position = 0) const noexcept {
        const std::uint32_t i = state().buffered++;
        std::memcpy(buffer_k(i), k, sizes_->width * sizeof(E));
        std::memcpy(buffer_v(i), v, sizes_->width * sizeof(E));
        if (sizes_->weights) *buffer_w(i) = log_weight;
        buffer_unit(i) = u;
        if (sizes_->positions) get<std::uint32_t>(at_->buffer_position)[i] = position;
        ++unit(u).buffered;
    }
    /// Removes row i; those behind it move up, so the order of arrival is kept.
    void erase_buffer(std::uint32_t i) const noexcept {
        const std::size_t after = state().buffered - i - 1;
        --unit(buffer_unit(i)).buffered;
        std::memmove(buffer_k(i), buffer_k(i + 1), after * sizes_->width * sizeof(E));
        std::memmove(buffer_v(i), buffer_v(i + 1), after * sizes_->width * sizeof(E));
        if (sizes_->weights) std::memmove(buffer_w(i), buffer_w(i + 1), after * sizeof(float));
        std::memmove(&buffer_unit(i), &buffer_unit(i + 1), after * sizeof(std::uint32_t));
        if (sizes_->positions) {
            auto* position = get<std::uint32_t>(at_->buffer_position) + i;
            std::memmove(position, position + 1, after * sizeof(std::uint32_t));
        }
        --state().buffered;
    }

    /// The unit with the most waiting entries (ties: lowest index), or none.
    [[nodiscard]] std::uint32_t fullest_buffered() const noexcept {
        std::uint32_t best = none;
        if constexpr (!std::is_empty_v<Unit>)
            for (std::uint32_t i = 0; i < state().buffered; ++i) {
                const std::uint32_t u = buffer_unit(i);
                if (best == none || unit(u).buffered > unit(best).buffered ||
                    (unit(u).buffered == unit(best).buffered && u < best))
                    best = u;
            }
        return best;
    }
    /// Whether an entry waits for a unit that is there, which merging it will change.
    [[nodiscard]] bool will_merge() const noexcept {
        for (std::uint32_t i = 0; i < state().buffered; ++i)
            if (residency(buffer_unit(i)).frames() != none) return true;
        return false;
    }

    /// Entries that attention sees without any unit: sinks, window and buffer.
    [[nodiscard]] std::uint32_t entries_in_memory() const noexcept {
        const lane_state& s = state();
        return s.sinks + (s.tokens - s.window_begin) + s.buffered;
    }
    /// Entries of units that a query may choose; `arriving` tokens are attended and not counted yet.
    [[nodiscard]] std::uint32_t budget(std::uint32_t arriving = 0) const noexcept {
        return sizes_->budget_beside(entries_in_memory() + arriving);
    }
    /// Entries that have left the window.
    [[nodiscard]] std::uint32_t entries_in_units() const noexcept {
        const lane_state& s = state();
        return s.window_begin - s.sinks - s.buffered;
    }

    void reset() const noexcept {
        state() = lane_state{};
        clusterer() = ClustererLane{};
        for (std::uint64_t& bits : chosen_before()) bits = 0;
        // What was fitted to the lane's last sequence is not the next one's.
        forget_fit();
        forget_gathered();
        std::memset(block_ + at_->index_lane, 0, sizes_->index_lane);
    }

  private:
    /// visit(first byte, that of the other lane, bytes) for each part. Both have the same state, and the same sizes.
    template <class Visit>
    void each_part_of_both(const lane_view& other, std::size_t key_bytes, Visit&& visit) const {
        const lane_state& s = state();
        const auto part = [&](std::size_t offsets::*at, std::size_t bytes, std::size_t from = 0) {
            if (bytes > 0) visit(block_ + at_->*at + from, other.block_ + other.at_->*at + from, bytes);
        };
        part(&offsets::clusterer, std::is_empty_v<ClustererLane> ? 0 : sizeof(ClustererLane));
        if constexpr (!std::is_empty_v<Unit>)
            for (std::uint32_t u = 0; u < s.units; ++u)
                part(&offsets::units, unit_identity_bytes, u * sizeof(Unit));
        part(&offsets::extents, sizes_->ragged ? s.units * sizeof(unit_extent) : 0);
        part(&offsets::page_first, sizes_->ragged ? s.stream_pages * sizeof(std::uint32_t) : 0);
        each_table([&](std::size_t offsets::*at, std::size_t bytes) {
            visit(representatives_ + at_->*at, other.representatives_ + other.at_->*at, bytes);
        });
        part(&offsets::spread, sizes_->spread ? sizes_->width * sizeof(float) : 0);
        part(&offsets::index_lane, sizes_->index_lane);
        part(&offsets::estimator_lane, sizes_->estimator_lane);
        part(&offsets::codec, sizes_->codec_lane);
        part(&offsets::key_records, key_bytes);

        const std::size_t row_bytes = sizes_->width * sizeof(E);
        const auto weights = [&](std::size_t n) { return sizes_->weights ? n * sizeof(float) : 0; };
        part(&offsets::sink_k, s.sinks * row_bytes);
        part(&offsets::sink_v, s.sinks * row_bytes);
        part(&offsets::sink_w, weights(s.sinks));
        const auto in_window = [&](std::size_t offsets::*at, std::size_t bytes) { // in the order of tokens
            const std::uint32_t rows = sizes_->window + sizes_->spare;
            for (std::uint32_t t = s.window_begin, n = 0; bytes > 0 && t < s.tokens; t += n) {
                n = std::min(s.tokens - t, rows - ring(t));
                part(at, n * bytes, ring(t) * bytes);
            }
        };
        in_window(&offsets::window_k, row_bytes);
        in_window(&offsets::window_v, row_bytes);
        in_window(&offsets::window_w, weights(1));
        in_window(&offsets::window_position, sizes_->window_positions ? sizeof(std::uint32_t) : 0);
        part(&offsets::buffer_unit, s.buffered * sizeof(std::uint32_t));
        part(&offsets::buffer_position, sizes_->positions ? s.buffered * sizeof(std::uint32_t) : 0);
        part(&offsets::buffer_k, s.buffered * row_bytes);
        part(&offsets::buffer_v, s.buffered * row_bytes);
        part(&offsets::buffer_w, weights(s.buffered));
    }
    /// visit(where it begins in the representatives, bytes) for each of their tables, as far as units are there.
    template <class Visit> void each_table(Visit&& visit) const {
        if (state().units == 0) return;
        const typename offsets::table_bytes of(*sizes_, state().units);
        const auto table = [&](std::size_t offsets::*at, std::size_t bytes) {
            if (bytes > 0) visit(at, bytes);
        };
        table(&offsets::means, of.means);
        table(&offsets::mean_scale, of.mean_scale);
        table(&offsets::index_units, of.index_units);
        table(&offsets::estimator_units, of.estimator_units);
    }
    template <class T> [[nodiscard]] T* get(std::size_t offset) const noexcept {
        return reinterpret_cast<T*>(block_ + offset);
    }
    [[nodiscard]] float* weight(std::size_t offset, std::size_t i) const noexcept {
        return sizes_->weights ? get<float>(offset) + i : nullptr;
    }
    [[nodiscard]] E* row(std::size_t offset, std::size_t i) const noexcept {
        return get<E>(offset) + i * sizes_->width;
    }

    std::byte* block_ = nullptr;
    std::byte* representatives_ = nullptr; ///< null while another layer has the memory
    const lane_sizes* sizes_ = nullptr;
    const offsets* at_ = nullptr;
};

}} // namespace kvtl::v0
