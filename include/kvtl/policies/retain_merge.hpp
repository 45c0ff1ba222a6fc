// Retention: entries over budget are merged into kept entries, not dropped.
//
// What:   a leaving entry looks for a kept one (never a sink) by `Rule`. If one is similar enough, key and
//         value become means weighted by counts, and the kept entry then represents both entries: attention
//         adds ln(count) to its logit. So n merged entries with equal keys are attended exactly as before;
//         the papers omit the count. If none is similar enough, the entry is dropped.
// Rules:  nearest_key         the kept key with the largest cosine, if that is at least a running mean of
//                             such cosines (D2O: tau <- tau / 2 + cosine / 2); the leaving entry counts by
//                             its cosine
//         similar_neighbour   the kept entry next to it in token order, if their cosine exceeds
//                             `similarity`; counts by a Gaussian of the keys' distance (KVMerger)
// Limits: entries that a late budget cuts off are also merged, into entries that their own head still holds.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/retention.hpp>
#include <kvtl/unit.hpp>

#include <cmath>

namespace kvtl { inline namespace v0 {

/// The kept entry to merge into, and how much the leaving one counts against it; row none: nothing fits.
struct merge_target {
    std::uint32_t row = none;
    float weight = 0;
};

struct nearest_key {
    static constexpr std::string_view name = "nearest_key";
    struct config {
        float smoothing = 0.5F; ///< of the running mean, 0 to 1: how much the past counts
        template <class Visit> void fields(Visit&& visit) { visit("smoothing", smoothing); }
    };
    [[nodiscard]] static status check(const config& c) noexcept {
        if (!(c.smoothing >= 0.0F && c.smoothing <= 1.0F))
            return status::failure(errc::invalid_argument, "retention.smoothing is %g; valid: 0 to 1",
                                   static_cast<double>(c.smoothing));
        return {};
    }
    /// `bar` belongs to the lane; it starts at 0.
    template <class Rows>
    [[nodiscard]] static merge_target find(const config& c, const Rows& rows, std::uint32_t token,
                                           const float* key, std::uint32_t dim, std::uint32_t sinks,
                                           float& bar) noexcept {
        merge_target best;
        float cosine = -2.0F;
        const float length = std::sqrt(simd::dot(key, key, dim));
        for (std::uint32_t i = 0; i < rows.size(); ++i) {
            if (rows.token(i) < sinks || rows.token(i) == token) continue;
            const auto* other = rows.key(i);
            float square = 0;
            for (std::uint32_t d = 0; d < dim; ++d) square += to_float(other[d]) * to_float(other[d]);
            const float c_i = simd::dot(key, other, dim) / std::max(length * std::sqrt(square), 1e-30F);
            if (c_i > cosine) cosine = c_i, best.row = i;
        }
        if (best.row == none) return best;
        bar = bar == 0.0F ? cosine : c.smoothing * bar + (1.0F - c.smoothing) * cosine;
        best.weight = cosine;
        constexpr float rounding = 1e-5F; // equal keys must not differ from their own mean
        if (cosine + rounding < bar || !(cosine > 0.0F)) best.row = none;
        return best;
    }
};

struct similar_neighbour {
    static constexpr std::string_view name = "similar_neighbour";
    struct config {
        float similarity = 0.8F; ///< cosine of keys that belong together
        float width = 4.0F;      ///< of the Gaussian, as a distance of keys
        template <class Visit> void fields(Visit&& visit) {
            visit("similarity", similarity);
            visit("width", width);
        }
    };
    [[nodiscard]] static status check(const config& c) noexcept {
        if (!(c.similarity >= -1.0F && c.similarity <= 1.0F && c.width > 0.0F))
            return status::failure(errc::invalid_argument,
                                   "retention.similarity and width are %g and %g; valid: -1 to 1, above 0",
                                   static_cast<double>(c.similarity), static_cast<double>(c.width));
        return {};
    }
    template <class Rows>
    [[nodiscard]] static merge_target find(const config& c, const Rows& rows, std::uint32_t token,
                                           const float* key, std::uint32_t dim, std::uint32_t sinks,
                                           float&) noexcept {
        std::uint32_t next = none, gap = none;
        for (std::uint32_t i = 0; i < rows.size(); ++i) { // the nearest token; of two, the earlier
            const std::uint32_t t = rows.token(i), away = t < token ? token - t : t - token;
            if (t < sinks || t == token || away > gap) continue;
            if (away < gap || t < token) next = i, gap = away;
        }
        if (next == none) return {};
        const auto* other = rows.key(next);
        float square = 0, distance = 0;
        for (std::uint32_t d = 0; d < dim; ++d) {
            const float x = to_float(other[d]);
            square += x * x;
            distance += (x - key[d]) * (x - key[d]);
        }
        const float length = std::sqrt(square * simd::dot(key, key, dim));
        if (!(simd::dot(key, other, dim) / std::max(length, 1e-30F) > c.similarity)) return {};
        return {next, std::exp(-distance / (2.0F * c.width * c.width))};
    }
};

template <class Score, class Rule> struct merging_score : Score {
    struct config : Score::config {
        typename Rule::config rule{};
        template <class Visit> void fields(Visit&& visit) {
            Score::config::fields(visit);
            rule.fields(visit);
        }
    };
    class state : public Score::state {
        using base = typename Score::state;

      public:
        state() = default;
        state(const config& c, const score_limits& limits, std::span<std::byte> memory) noexcept
            : base(c, limits, memory.subspan(own_bytes(limits))), rule_(c.rule), dim_(limits.dim) {
            carver carve(memory);
            key_ = carve.take<float>(limits.dim);
        }
        [[nodiscard]] static std::size_t bytes(const config& c, const score_limits& limits) noexcept {
            return own_bytes(limits) + base::bytes(c, limits);
        }
        [[nodiscard]] static status check(const config& c, const score_limits& limits) noexcept {
            if (status s = Rule::check(c.rule); !s) return s;
            return base::check(c, limits);
        }
        /// An entry that leaves, of which `log_weight` is the logarithm of its count. It may still be a row.
        template <class Rows, element E>
        void merge(const Rows& rows, std::uint32_t token, const E* key, const E* value, float log_weight,
                   std::uint32_t sinks, float& bar) const noexcept {
            simd::decode(key, key_.data(), dim_);
            const merge_target to = Rule::find(rule_, rows, token, key_.data(), dim_, sinks, bar);
            if (to.row == none) return;
            const float stays = std::exp(rows.log_weight(to.row)), comes = std::exp(log_weight);
            const float share = comes * to.weight / (stays + comes * to.weight);
            blend(rows.key(to.row), key, share);
            blend(rows.value(to.row), value, share);
            rows.log_weight(to.row) = std::log(stays + comes);
        }

      private:
        [[nodiscard]] static std::size_t own_bytes(const score_limits& limits) noexcept {
            return (limits.dim * sizeof(float) + 63) / 64 * 64;
        }
        template <element E> void blend(E* to, const E* from, float share) const noexcept {
            for (std::uint32_t d = 0; d < dim_; ++d)
                to[d] = from_float<E>((1.0F - share) * to_float(to[d]) + share * to_float(from[d]));
        }
        typename Rule::config rule_{};
        std::uint32_t dim_ = 0;
        std::span<float> key_;
    };
};

template <class Score, class Rule> struct merge_into {
    static constexpr std::string_view name = Rule::name;
    static constexpr bool drops = true;
    static constexpr bool merges = true;
    static constexpr engine_input needs = needs_of<Score>();
    static constexpr feedback reads_mass = feedback_of<Score>();
    using score = merging_score<Score, Rule>;
    using config = typename score::config;
};

}} // namespace kvtl::v0
