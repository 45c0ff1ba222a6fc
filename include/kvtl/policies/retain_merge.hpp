// Retention: entries over budget are merged into kept entries, not dropped.
//
// What:   a rule decides what goes where. Two rules take the entries that leave one by one; the third sees a
//         whole prompt. A row that represents n entries gets ln(n) added to its logit in attention. So n
//         merged entries with equal keys are attended exactly as before; the papers omit the count.
// Rules:  nearest_key   the leaving entry goes into the kept key with the largest cosine (never a sink), if that
//                       is at least a running mean of such cosines (D2O: tau <- tau / 2 + cosine / 2). Key and
//                       value become means weighted by counts; the leaving entry counts by its cosine.
//         next_values   its value v, divided by `spread`, is added to the values of the next `spread` kept
//                       tokens, with probability a / max a, where a is the score of an entry. Keys and counts
//                       stay (CaM).
//         similar_runs  before the prompt is cut, neighbours are joined to sets, the most similar first, until
//                       as many sets are left as may be kept. Each set becomes one row (KVMerger).
// Cost:   nearest_key: one pass over the kept keys per leaving entry. next_values: `spread` passes over the kept
//         tokens where it applies. similar_runs: a pass over the prompt's keys, 2 T floats.
// Limits: entries that a late budget cuts off are also merged, into entries that their own head still holds.
//         similar_runs drops these, and those that a score evicts in decode.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/retain_random.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/retention.hpp>
#include <kvtl/unit.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace kvtl { inline namespace v0 {

/// The kept entry to merge into, and how much the leaving one counts against it; row none: nothing fits.
struct merge_target {
    std::uint32_t row = none;
    float weight = 0;
};

struct nearest_key {
    static constexpr std::string_view name = "nearest_key";
    static constexpr bool joins = false, counts = true;
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
    /// scratch: dim floats.
    template <class Rows, element E>
    static void merge(const config& c, const Rows& rows, const leaving_entry<E>& entry, std::uint32_t dim,
                      std::uint32_t sinks, float& bar, std::span<float> scratch) noexcept {
        simd::decode(entry.key, scratch.data(), dim);
        const merge_target to = find(c, rows, entry.token, scratch.data(), dim, sinks, bar);
        if (to.row == none) return;
        const float stays = std::exp(rows.log_weight(to.row)), comes = std::exp(entry.log_weight);
        const float share = comes * to.weight / (stays + comes * to.weight);
        const auto blend = [&](E* into, const E* from) {
            for (std::uint32_t d = 0; d < dim; ++d)
                into[d] = from_float<E>((1.0F - share) * to_float(into[d]) + share * to_float(from[d]));
        };
        blend(rows.key(to.row), entry.key);
        blend(rows.value(to.row), entry.value);
        rows.log_weight(to.row) = std::log(stays + comes);
    }
};

struct next_values {
    static constexpr std::string_view name = "next_values";
    static constexpr bool joins = false, counts = false;
    struct config {
        std::uint32_t spread = 32; ///< kept tokens that share a value
        std::uint64_t seed = 1;    ///< of the draws, which also depend on token and key
        template <class Visit> void fields(Visit&& visit) {
            visit("spread", spread);
            visit("seed", seed);
        }
    };
    [[nodiscard]] static status check(const config& c) noexcept {
        if (c.spread == 0)
            return status::failure(errc::invalid_argument, "retention.spread is 0; valid: 1 and more");
        return {};
    }
    template <class Rows, element E>
    static void merge(const config& c, const Rows& rows, const leaving_entry<E>& entry, std::uint32_t dim,
                      std::uint32_t, float&, std::span<float>) noexcept {
        float most = 0;
        for (std::uint32_t i = 0; i < rows.size(); ++i) most = std::max(most, rows.score(i));
        std::uint32_t lane = 0; // keys differ among lanes
        std::memcpy(&lane, entry.key, sizeof lane);
        const float draw = random_score::state::draw(c.seed, (std::uint64_t{lane} << 32) ^ entry.token);
        if (!(draw * most < entry.score)) return;
        const float share = 1.0F / static_cast<float>(c.spread);
        for (std::uint32_t n = 0, last = entry.token; n < c.spread; ++n) {
            std::uint32_t next = none;
            for (std::uint32_t i = 0; i < rows.size(); ++i)
                if (rows.token(i) > last && (next == none || rows.token(i) < rows.token(next))) next = i;
            if (next == none) return;
            E* value = rows.value(next);
            for (std::uint32_t d = 0; d < dim; ++d)
                value[d] = from_float<E>(to_float(value[d]) + share * to_float(entry.value[d]));
            last = rows.token(next);
        }
    }
};

struct similar_runs {
    static constexpr std::string_view name = "similar_runs";
    static constexpr bool joins = true, counts = true;
    struct config {
        float similarity = 0.0F; ///< neighbours whose cosine does not exceed it are not joined
        float unmerged = 0.0F;   ///< 0 to 1: of what may stay, the part with the highest scores is not joined
        bool counted = true;     ///< a row is attended as often as its set has members
        template <class Visit> void fields(Visit&& visit) {
            visit("similarity", similarity);
            visit("unmerged", unmerged);
            visit("counted", counted);
        }
    };
    [[nodiscard]] static status check(const config& c) noexcept {
        if (!(c.similarity >= -1.0F && c.similarity <= 1.0F && c.unmerged >= 0.0F && c.unmerged <= 1.0F))
            return status::failure(errc::invalid_argument,
                                   "retention.similarity and unmerged are %g and %g; valid: -1 to 1, 0 to 1",
                                   static_cast<double>(c.similarity), static_cast<double>(c.unmerged));
        return {};
    }
    template <class Rows, element E>
    static void merge(const config&, const Rows&, const leaving_entry<E>&, std::uint32_t, std::uint32_t,
                      float&, std::span<float>) noexcept {}

  private:
    struct run {
        std::uint32_t begin = 0, end = 0;
    };
    [[nodiscard]] static run run_of(std::span<const float> joined, std::uint32_t t) noexcept {
        run r{t, t + 1};
        while (joined[r.begin] > 0.0F) --r.begin;
        while (r.end < joined.size() && joined[r.end] > 0.0F) ++r.end;
        return r;
    }
    /// Larger numbers first; of equal ones, that of the earlier token.
    [[nodiscard]] static auto by(std::span<const float> number) noexcept {
        return [number](std::uint32_t a, std::uint32_t b) {
            return number[a] > number[b] || (!(number[b] > number[a]) && a < b);
        };
    }
    /// order: the tokens from `begin` on, the n with the highest ranks in front.
    static void first_by(std::span<const float> rank, std::span<std::uint32_t> order, std::uint32_t begin,
                         std::uint32_t n) noexcept {
        if (n == 0) return;
        std::iota(order.begin(), order.end(), begin);
        std::nth_element(order.begin(), order.begin() + n, order.end(), by(rank));
    }

  public:
    /// Joins tokens [begin, end) of a lane to sets of neighbours, at least `allowed` of them. rank (T): scores;
    /// afterwards -infinity for all members of a set but the first of those with its highest score, the pivot.
    /// joined (T): 1 where a token belongs to the set of the one before it, otherwise 0. order (T), scratch (2, D).
    template <element E>
    static void join(const config& c, rows_view<E> keys, std::uint32_t begin, std::uint32_t end,
                     std::uint32_t allowed, std::span<float> rank, std::span<float> joined,
                     std::span<std::uint32_t> order, std::span<float> scratch) noexcept {
        std::fill(joined.begin(), joined.end(), 0.0F);
        const std::uint32_t n = end - begin;
        if (allowed >= n) return;
        constexpr float alone = -2.0F;
        const auto unmerged = static_cast<std::uint32_t>(c.unmerged * static_cast<float>(allowed));
        first_by(rank, order.first(n), begin, unmerged);
        for (std::uint32_t i = 0; i < unmerged; ++i) joined[order[i]] = alone;
        const std::size_t dim = keys.dim;
        float *before = scratch.data(), *now = before + dim, length = 0;
        bool apart = true; // the token before must not be joined
        std::uint32_t pairs = 0;
        for (std::uint32_t t = begin; t < end; ++t) {
            simd::decode(keys.row(t), now, dim);
            const float length_now = std::sqrt(simd::dot(now, now, dim));
            const bool apart_now = joined[t] == alone;
            const float cosine =
                t == begin ? 0.0F : simd::dot(before, now, dim) / std::max(length * length_now, 1e-30F);
            joined[t] = cosine;
            if (!apart && !apart_now && cosine > c.similarity) order[pairs++] = t;
            std::swap(before, now);
            length = length_now;
            apart = apart_now;
        }
        const std::uint32_t most = std::min(pairs, n - allowed);
        std::nth_element(order.begin(), order.begin() + most, order.begin() + pairs, by(joined));
        std::fill(joined.begin(), joined.end(), 0.0F);
        for (std::uint32_t i = 0; i < most; ++i) joined[order[i]] = 1.0F;
        for (std::uint32_t t = begin; t < end;) {
            const run r = run_of(joined, t);
            const auto pivot = std::max_element(rank.begin() + r.begin, rank.begin() + r.end);
            const float score = *pivot;
            std::fill(rank.begin() + r.begin, rank.begin() + r.end, -std::numeric_limits<float>::infinity());
            *pivot = score;
            t = r.end;
        }
    }
    /// The row of the set of which `pivot` is a member: key and value (D) are means over the set with weights
    /// exp(-d^2 / 2 s^2), where d is a key's distance to the pivot's and s^2 the mean of d^2 over the other
    /// members. Returns the logarithm of the row's count. scratch (3, D).
    template <element E>
    [[nodiscard]] static float mean(const config& c, rows_view<E> keys, rows_view<E> values,
                                    std::span<const float> joined, std::uint32_t pivot, E* key, E* value,
                                    std::span<float> scratch) noexcept {
        const std::size_t dim = keys.dim;
        const run r = run_of(joined, pivot);
        const std::uint32_t members = r.end - r.begin;
        const std::span<float> centre = scratch.first(dim), k = scratch.subspan(dim, dim),
                               v = scratch.subspan(2 * dim, dim);
        simd::decode(keys.row(pivot), centre.data(), dim);
        const auto square = [&](std::uint32_t t) {
            float sum = 0;
            for (std::size_t d = 0; d < dim; ++d) {
                const float away = to_float(keys.row(t)[d]) - centre[d];
                sum += away * away;
            }
            return sum;
        };
        float spread = 0, total = 0;
        for (std::uint32_t t = r.begin; t < r.end; ++t) spread += square(t);
        spread /= static_cast<float>(std::max(1U, members - 1));
        std::fill(k.begin(), k.end(), 0.0F);
        std::fill(v.begin(), v.end(), 0.0F);
        for (std::uint32_t t = r.begin; t < r.end; ++t) {
            const float weight = spread > 0.0F ? std::exp(-square(t) / (2.0F * spread)) : 1.0F;
            simd::axpy(weight, keys.row(t), k.data(), dim);
            simd::axpy(weight, values.row(t), v.data(), dim);
            total += weight;
        }
        for (std::size_t d = 0; d < dim; ++d) {
            key[d] = from_float<E>(k[d] / total);
            value[d] = from_float<E>(v[d] / total);
        }
        return c.counted ? std::log(static_cast<float>(members)) : 0.0F;
    }
};

template <class Score, class Rule> struct merging_score : Score {
    /// For sets: ranks and marks.
    static constexpr std::uint32_t spare_rows = std::max(Score::spare_rows, Rule::joins ? 2U : 0U);
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
            scratch_ = carve.take<float>(3 * std::size_t{limits.dim});
        }
        [[nodiscard]] static std::size_t bytes(const config& c, const score_limits& limits) noexcept {
            return own_bytes(limits) + base::bytes(c, limits);
        }
        [[nodiscard]] static status check(const config& c, const score_limits& limits) noexcept {
            if (status s = Rule::check(c.rule); !s) return s;
            return base::check(c, limits);
        }
        /// An entry that leaves. It may still be a row.
        template <class Rows, element E>
        void merge(const Rows& rows, const leaving_entry<E>& entry, std::uint32_t sinks,
                   float& bar) const noexcept {
            Rule::merge(rule_, rows, entry, dim_, sinks, bar, scratch_);
        }
        /// As in the rule.
        template <element E>
        void join(rows_view<E> keys, std::uint32_t begin, std::uint32_t end, std::uint32_t allowed,
                  std::span<float> rank, std::span<float> joined,
                  std::span<std::uint32_t> order) const noexcept requires(Rule::joins) {
            Rule::join(rule_, keys, begin, end, allowed, rank, joined, order, scratch_);
        }
        template <element E>
        [[nodiscard]] float mean(rows_view<E> keys, rows_view<E> values, std::span<const float> joined,
                                 std::uint32_t pivot, E* key, E* value) const noexcept requires(Rule::joins) {
            return Rule::mean(rule_, keys, values, joined, pivot, key, value, scratch_);
        }

      private:
        [[nodiscard]] static std::size_t own_bytes(const score_limits& limits) noexcept {
            return (3 * std::size_t{limits.dim} * sizeof(float) + 63) / 64 * 64;
        }
        typename Rule::config rule_{};
        std::uint32_t dim_ = 0;
        std::span<float> scratch_; ///< (3, D)
    };
};

template <class Score, class Rule> struct merge_into {
    static constexpr std::string_view name = Rule::name;
    static constexpr bool drops = true;
    static constexpr bool merges = true;
    static constexpr bool joins = Rule::joins;   ///< the rule sees a whole prompt
    static constexpr bool counts = Rule::counts; ///< rows represent several entries
    static constexpr engine_input needs = needs_of<Score>();
    static constexpr feedback reads_mass = feedback_of<Score>();
    using score = merging_score<Score, Rule>;
    using config = typename score::config;
};

}} // namespace kvtl::v0
