// Layers whose attention slides: which these are, and how many rows each keeps.
//
// What:   a layer that slides is left out of everything else: of budgets, units and storage, which count the other
//         layers only. It keeps the rows that its queries see, as many more as may be rewound, and room to append a
//         block at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/simd/causal.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Where a layer of the model is handled: its number among those that slide, or among the others.
struct layer_place {
    bool slides = false;
    std::uint32_t index = 0;
};

/// One layer that slides.
struct sliding_layer {
    std::uint32_t reach = 0;    ///< tokens that a query sees, its own included
    std::uint32_t capacity = 0; ///< rows of a lane
    std::uint32_t number = 0;   ///< of the layer in the model
    std::size_t offset = 0;     ///< rows of a lane's layers before it
};

struct sliding_plan {
    std::vector<sliding_layer> layers;
    std::vector<layer_place> places;   ///< per layer of the model; empty where none slides
    std::vector<std::uint32_t> others; ///< the model's number of each layer that does not; likewise

    /// Tokens that are appended and attended together in a prompt.
    static constexpr std::uint32_t block = simd::causal_tile;

    /// windows: attention_rule's. spare: tokens that may be rewound. calibrated: the preset reads bases per layer.
    [[nodiscard, gnu::cold]] static result<sliding_plan> make(std::span<const std::uint32_t> windows,
                                                              std::uint32_t layers, std::uint32_t max_tokens,
                                                              std::uint32_t spare, bool calibrated) {
        const auto wrong = errc::invalid_argument;
        sliding_plan p;
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
        std::size_t rows = 0;
        for (const std::uint32_t reach : windows) {
            const bool slides = reach != 0 && reach < max_tokens;
            const auto before = static_cast<std::uint32_t>(p.layers.size());
            p.places.push_back(
                {slides, slides ? before : static_cast<std::uint32_t>(p.places.size()) - before});
            if (!slides) {
                p.others.push_back(static_cast<std::uint32_t>(p.places.size()) - 1);
                continue;
            }
            // Rows move in whole blocks, so that key blocks lie where they would without moving.
            const std::uint64_t most = (std::uint64_t{max_tokens} + block - 1) / block * block;
            const std::uint64_t want = (std::uint64_t{reach} + spare + 3 * block - 3) / block * block;
            const auto capacity = static_cast<std::uint32_t>(std::min(most, want));
            p.layers.push_back({reach, capacity, static_cast<std::uint32_t>(p.places.size()) - 1, rows});
            rows += capacity;
        }
        if (p.layers.size() == layers)
            return status::failure(
                wrong,
                "attention.windows: all %u layers slide over less than max_tokens = %u; valid: "
                "one layer at least that does not (a model that only slides needs no store)",
                layers, max_tokens);
        if (p.layers.empty()) p.places.clear(), p.others.clear();
        return p;
    }

    /// Rows of one lane in all layers that slide.
    [[nodiscard]] std::size_t rows() const noexcept {
        return layers.empty() ? 0 : layers.back().offset + layers.back().capacity;
    }
};

}} // namespace kvtl::v0
