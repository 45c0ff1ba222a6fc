// Clusterer: within short chunks of consecutive entries, every n-th key is a target, and each other key joins
// the target with the largest cosine (Chelsea's chunked soft matching).
//
// Prompt and decoded entries are treated alike: a chunk of m entries becomes ceil(m / n) units, at once, and
// these never change. Decoded entries wait in the window until a chunk, or as much as may be pending, is full.
//
// Cost:   m^2 D / n multiply-adds per chunk, so n D chunk / n per prompt of n entries: no iterations, and no
//         means to compare with during decode.
// Source: Chelsea (Hu et al. 2025, "Efficient Long-Context LLM Inference via KV Cache Clustering"), of which
//         only the abstract was at hand. It forms as many pairs per chunk as a ratio asks for. Here every entry
//         joins a target, because all of a unit is stored, read and estimated together. Units are limited
//         to 2 n entries: an entry, in token order, joins the best target that has room.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/units_that_stay.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

struct chunk_matching {
    static constexpr std::string_view name = "chunk_matching";
    static constexpr granularity unit_of = granularity::head;
    static constexpr engine_input needs = engine_input::k;
    static constexpr bool needs_means = true;
    static constexpr bool updates_means = true;
    static constexpr bool clusters_prompt = true;
    static constexpr bool adapts = false;

    struct config {
        std::uint32_t tokens_per_cluster = 8; ///< n
        std::uint32_t chunk = 64;             ///< consecutive entries that are matched with each other
        template <class Visit> void fields(Visit&& visit) {
            visit("tokens_per_cluster", tokens_per_cluster);
            visit("chunk", chunk);
        }
        /// Clusters of twice the size. False, and nothing changed, when these would be more than `most` tokens.
        bool coarsen(std::uint32_t most) noexcept {
            if (tokens_per_cluster > most / 2) return false;
            tokens_per_cluster *= 2;
            chunk = std::max(chunk, 2 * tokens_per_cluster);
            return true;
        }
    };
    struct lane {};

    class state : public units_that_stay<lane> {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : c_(c) {}

        [[nodiscard]] static status check(const config& c) noexcept {
            if (c.tokens_per_cluster < 2 || c.tokens_per_cluster > 4096)
                return status::failure(errc::invalid_argument,
                                       "clusterer.tokens_per_cluster is %u; valid: 2 to 4096",
                                       c.tokens_per_cluster);
            if (c.chunk < 2 * c.tokens_per_cluster || c.chunk > (1U << 14))
                return status::failure(errc::invalid_argument, "clusterer.chunk is %u; valid: %u to %u",
                                       c.chunk, 2 * c.tokens_per_cluster, 1U << 14);
            return {};
        }
        [[nodiscard]] std::uint32_t max_entries() const noexcept { return 2 * c_.tokens_per_cluster; }
        /// Whatever part of the tokens was prompt and what was decoded in batches of any size.
        [[nodiscard]] std::uint32_t max_units(std::uint32_t tokens) const noexcept {
            return tokens / c_.tokens_per_cluster + tokens / least_batch() + 2;
        }
        [[nodiscard]] std::uint32_t sequential_entries() const noexcept { return c_.tokens_per_cluster; }

        /// Entries that leave the window together, if the window may hold up to `most` beyond its size.
        [[nodiscard]] std::uint32_t batch_entries(std::uint32_t most) const noexcept {
            return std::clamp(most, least_batch(), c_.chunk);
        }
        /// Units that a batch of n entries makes.
        [[nodiscard]] std::uint32_t batch_units(std::uint32_t n) const noexcept {
            return (n + c_.tokens_per_cluster - 1) / c_.tokens_per_cluster;
        }
        [[nodiscard]] std::uint32_t segment_entries() const noexcept { return 16 * c_.chunk; }
        [[nodiscard]] std::uint32_t least_segment() const noexcept { return c_.chunk; }
        [[nodiscard]] std::size_t scratch_bytes(std::uint32_t entries, std::uint32_t dim) const noexcept {
            carver c;
            static_cast<void>(memory::take(c, std::min(entries, c_.chunk), dim));
            return c.used();
        }
        [[nodiscard]] std::size_t batch_scratch_bytes(std::uint32_t n, std::uint32_t dim) const noexcept {
            return scratch_bytes(n, dim);
        }

        /// Keys (n, D), chunk by chunk; fills `label` (n) and returns the number of units.
        template <class Element>
        [[nodiscard]] std::uint32_t group(rows_view<Element> keys, std::span<std::byte> scratch,
                                          std::uint32_t* label) const noexcept {
            std::uint32_t units = 0;
            for (std::size_t first = 0; first < keys.count; first += c_.chunk) {
                const std::size_t n = std::min<std::size_t>(c_.chunk, keys.count - first);
                match(keys.slice(first, n), units, scratch, label + first);
                units += batch_units(static_cast<std::uint32_t>(n));
            }
            return units;
        }
        /// The same for entries that leave the window together.
        template <class Element>
        [[nodiscard]] std::uint32_t group_batch(rows_view<Element> keys, std::span<std::byte> scratch,
                                                std::uint32_t* label) const noexcept {
            return group(keys, scratch, label);
        }

      private:
        struct memory {
            std::span<float> direction;    ///< (n, D) keys of length 1
            std::span<std::uint32_t> size; ///< (n) entries of a unit
            static memory take(carver& c, std::uint32_t n, std::uint32_t dim) noexcept {
                return {c.take<float>(std::size_t{n} * dim), c.take<std::uint32_t>(n)};
            }
        };
        [[nodiscard]] std::uint32_t least_batch() const noexcept { return std::min(16U, c_.chunk); }

        template <class Element>
        void match(rows_view<Element> keys, std::uint32_t first_unit, std::span<std::byte> scratch,
                   std::uint32_t* label) const noexcept {
            const auto n = static_cast<std::uint32_t>(keys.count), dim = static_cast<std::uint32_t>(keys.dim),
                       step = c_.tokens_per_cluster, units = batch_units(n);
            carver c(scratch);
            const memory m = memory::take(c, n, dim);
            std::fill_n(m.size.begin(), units, 1U);
            for (std::uint32_t i = 0; i < n; ++i) {
                float* row = &m.direction[std::size_t{i} * dim];
                simd::decode(keys.row(i), row, dim);
                const float length = std::sqrt(simd::dot(row, row, dim));
                if (length > 0) simd::scale(1.0F / length, row, dim);
            }
            for (std::uint32_t i = 0; i < n; ++i) {
                std::uint32_t best = i / step;
                if (i % step != 0) {
                    float most = -2.0F; // below every cosine
                    for (std::uint32_t u = 0; u < units; ++u) {
                        if (m.size[u] == max_entries()) continue;
                        const float cosine = simd::dot(&m.direction[std::size_t{i} * dim],
                                                       &m.direction[std::size_t{u} * step * dim], dim);
                        if (cosine > most) most = cosine, best = u;
                    }
                    ++m.size[best];
                }
                label[i] = first_unit + best;
            }
        }

        config c_{};
    };
};

}} // namespace kvtl::v0
