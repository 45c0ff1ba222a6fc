// Layers whose entries stay in memory and are attended whole: which these are, and how many plain rows each keeps.
//
// What:   layers that slide, in every preset, and in presets that keep everything in memory all others too. Both keep the
//         last tokens as plain rows. An entry that leaves these rows is dropped where the layer slides, else it becomes a
//         record of its lane. A layer that slides is left out of everything else: of budgets, units and storage.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/store/record_chain.hpp>
#include <kvtl/simd/causal.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Where a layer of the model is handled: its number among those that slide, behind the others that are rows, or
/// among the others.
struct layer_place {
    bool slides = false;
    std::uint32_t index = 0;
};

/// The plain rows of one layer's lanes: the first `sinks` tokens, and the last ones.
struct row_layer {
    std::uint32_t reach = none;  ///< tokens that a query sees, its own included; none: all
    std::uint32_t sinks = 0;     ///< rows that never leave
    std::uint32_t keep = 0;      ///< rows that stay when others leave to make room, these included
    std::uint32_t block = 1;     ///< rows leave in multiples of it
    std::uint32_t capacity = 0;  ///< rows of a lane
    std::uint32_t number = none; ///< of the layer in the model; none: that among the layers that do not slide
    std::size_t offset = 0;      ///< rows of a lane's layers before it

    [[nodiscard]] bool slides() const noexcept { return reach != none; }
    /// Of a lane that holds `held` rows and gets `tokens` more: rows that leave.
    [[nodiscard]] std::uint32_t leaving(std::uint32_t held, std::uint32_t tokens) const noexcept {
        const std::uint32_t all = held + tokens;
        return all <= capacity ? 0 : (all - keep) / block * block;
    }
};

struct row_plan {
    std::vector<row_layer> layers;     ///< those that keep everything, then those that slide
    std::vector<layer_place> places;   ///< per layer of the model; empty where none slides
    std::vector<std::uint32_t> others; ///< the model's number of each layer that does not; likewise
    std::uint32_t sliding = 0;         ///< layers that slide
    std::uint32_t lane_heads = 1;      ///< KV heads of a lane
    bool ragged = false;               ///< records have sizes of their own
    record_bytes record{};             ///< bytes of a record, or at most
    std::uint32_t most_records = 0;    ///< of a lane
    std::uint32_t least_blocks = 0;    ///< of a shard's records: what open() promises room for
    std::uint32_t most_blocks = 0;     ///< beyond which there is no use for more
    std::uint32_t blocks = 0;          ///< that there are

    /// Tokens that are appended and attended together in a prompt of a layer that slides.
    static constexpr std::uint32_t block = simd::causal_tile;
    /// Rows that become records together: what stays behind them moves that seldom.
    static constexpr std::uint32_t at_once = 16;

    /// windows: attention_rule's. spare: tokens that may be rewound. calibrated: the preset reads bases per layer.
    [[nodiscard, gnu::cold]] static result<row_plan> make(std::span<const std::uint32_t> windows,
                                                          std::uint32_t layers, std::uint32_t max_tokens,
                                                          std::uint32_t spare, bool calibrated) {
        const auto wrong = errc::invalid_argument;
        row_plan p;
        if (windows.empty() ||
            std::all_of(windows.begin(), windows.end(), [](std::uint32_t w) { return w == 0; }))
            return p;
        if (windows.size() != layers)
            return status::failure(wrong,
                                   "attention.windows has %zu numbers; valid: one per layer, %u, or none",
                                   windows.size(), layers);
        if (calibrated)
            return status::failure(
                errc::unsupported,
                "attention.windows: this preset reads a calibration, whose layers are all of "
                "the model's; valid: no layer that slides, or a preset without one");
        for (const std::uint32_t reach : windows) {
            const bool slides = reach != 0 && reach < max_tokens;
            const auto layer = static_cast<std::uint32_t>(p.places.size());
            p.places.push_back({slides, slides ? p.sliding : layer - p.sliding});
            if (!slides) {
                p.others.push_back(layer);
                continue;
            }
            // Rows leave in whole blocks, so that key blocks lie where they would without that.
            const std::uint64_t most = (std::uint64_t{max_tokens} + block - 1) / block * block;
            const std::uint64_t want = (std::uint64_t{reach} + spare + 3 * block - 3) / block * block;
            const auto capacity = static_cast<std::uint32_t>(std::min(most, want));
            p.add({.reach = reach,
                   .keep = capacity - (block - 1),
                   .block = block,
                   .capacity = capacity,
                   .number = layer});
            ++p.sliding;
        }
        if (p.sliding == layers)
            return status::failure(
                wrong,
                "attention.windows: all %u layers slide over less than max_tokens = %u; valid: "
                "one layer at least that does not (a model that only slides needs no store)",
                layers, max_tokens);
        if (p.sliding == 0) p.places.clear(), p.others.clear();
        return p;
    }

    /// The `n` layers that do not slide keep everything: the first `sinks` tokens and the last `window` of them as rows.
    [[gnu::cold]] void keep_all(std::uint32_t n, std::uint32_t sinks, std::uint32_t window,
                                std::uint32_t max_tokens) {
        row_plan all = *this;
        all.layers.clear();
        const std::uint32_t keep = std::min(max_tokens, sinks + window),
                            capacity = std::min(max_tokens, keep + at_once);
        for (std::uint32_t i = 0; i < n; ++i)
            all.add({.sinks = sinks, .keep = keep, .block = at_once, .capacity = capacity});
        for (const row_layer& l : layers) all.add(l);
        for (layer_place& place : all.places)
            if (place.slides) place.index += n;
        all.most_records = max_tokens - keep;
        *this = std::move(all);
    }

    /// Settles how many blocks `lanes` lanes of a shard may have. promised: records of a lane that there is room for in any
    /// case. Every lane has a block at least, and its last may be half empty.
    [[nodiscard, gnu::cold]] status size_records(std::uint64_t lanes, std::uint32_t promised,
                                                 const cache_plan& p) noexcept {
        if (recorded() == 0) return {};
        const auto blocks_of = [](std::uint64_t n) {
            return (n + records_per_block - 1) / records_per_block;
        };
        const std::uint64_t most = lanes * blocks_of(most_records);
        constexpr std::uint64_t countable = std::uint64_t{1} << 30;
        if (most > countable)
            return status::failure(
                errc::invalid_argument,
                "max_tokens is %u with max_sequences %u, which may need %.0f blocks of records "
                "a shard; valid: what needs up to %.0f, or more shards",
                p.sizes.max_tokens, p.max_sequences, static_cast<double>(most),
                static_cast<double>(countable));
        most_blocks = static_cast<std::uint32_t>(most);
        least_blocks = static_cast<std::uint32_t>(
            std::min(most, lanes * (blocks_of(std::min(promised, most_records)) + 1)));
        return {};
    }

    /// Rows of one lane in all layers.
    [[nodiscard]] std::size_t rows() const noexcept {
        return layers.empty() ? 0 : layers.back().offset + layers.back().capacity;
    }
    /// Layers whose lanes have records.
    [[nodiscard]] std::size_t recorded() const noexcept {
        return most_records == 0 ? 0 : layers.size() - sliding;
    }
    /// Rows of one lane in these.
    [[nodiscard]] std::size_t recorded_rows() const noexcept {
        return recorded() == 0 ? 0 : layers[recorded() - 1].offset + layers[recorded() - 1].capacity;
    }
    [[nodiscard]] page_format format() const noexcept { return record_pool::format_of(record, ragged); }

  private:
    [[gnu::cold]] void add(row_layer l) {
        l.offset = rows();
        layers.push_back(l);
    }
};

}} // namespace kvtl::v0
