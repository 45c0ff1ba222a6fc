// What the spread of a unit's logits adds to the weight of its mean key, a row of units at a time.
//
// What:   the gains of policies/support/spread_gain.hpp, which has the formulas and their reasons; the price of an
//         estimate's error and the tilt of its value (policies/estimate_centroid.hpp).
// Shapes: rows of n units; logits and outputs (n) f32.
// Cost:   a logarithm and two roots per unit; per unit and query a root, or two exponentials for a price.
// Limits: along > 0 or = 0, finite logits; -inf stands for a unit that is absent.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace kvtl { inline namespace v0 { namespace simd {

/// sigma^2 / 2 up to the bend; then + sqrt(1 + 2 (sigma - bend)) - 1.
template <class Arch>
[[nodiscard, gnu::always_inline]] inline floats<Arch> cautious_gain(const floats<Arch>& sigma,
                                                                    const floats<Arch>& bend) noexcept {
    using F = floats<Arch>;
    const F square = xsimd::min(sigma, bend), beyond = sigma - square;
    return fma<Arch>(F(0.5F) * square, square, xsimd::sqrt(F(1.0F) + (beyond + beyond)) - F(1.0F));
}

/// sigma^2 up to half of the bend, where 2 sigma reaches it; then the tangent.
template <class Arch>
[[nodiscard, gnu::always_inline]] inline floats<Arch> rms_gain(const floats<Arch>& sigma,
                                                               const floats<Arch>& bend) noexcept {
    using F = floats<Arch>;
    const F wide = sigma + sigma, square = xsimd::min(wide, bend);
    return F(0.5F) * square * (wide - F(0.5F) * square);
}

/// A row of units beside their means. A view; owns nothing.
struct unit_spreads {
    float* log_entries = nullptr; ///< -inf for a unit that has none
    float* deviation = nullptr;   ///< root mean square distance of the keys to their mean
    float* bend = nullptr;        ///< sqrt(ln entries); 0 for a unit that has none

    [[nodiscard]] unit_spreads from(std::size_t first) const noexcept {
        return {log_entries + first, deviation + first, bend + first};
    }
};

namespace detail {
/// visit(load, store, i) for each register of a row; load(p) and store(p, x) touch p[0] to p[lanes - 1], or the fewer
/// numbers that are left. A load fills up with zeros.
template <class Arch, class Visit>
[[gnu::always_inline]] inline void for_registers(std::size_t n, Visit&& visit) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count)
        visit(
            [](const float* p) __attribute__((always_inline)) { return load<Arch>(p); },
            [](float* p, const F& x) __attribute__((always_inline)) { store<Arch>(p, x); }, i);
    if (const std::size_t rest = n - i; rest != 0)
        visit(
            [rest](const float* p) __attribute__((always_inline)) { return load_part<Arch>(p, rest); },
            [rest](float* p, const F& x) __attribute__((always_inline)) { store_part<Arch>(p, x, rest); }, i);
}
} // namespace detail

/// Takes the entries of units in s.log_entries and their sums of squared distances (m2) in s.deviation.
template <class Arch = default_arch> inline void to_spreads(const unit_spreads& s, std::size_t n) noexcept {
    using F = floats<Arch>;
    detail::for_registers<Arch>(n, [&](auto load, auto store, std::size_t i) {
        const F entries = load(s.log_entries + i), log = simd::log<Arch>(entries);
        store(s.deviation + i, xsimd::sqrt(load(s.deviation + i) / xsimd::max(entries, F(1.0F))));
        store(s.bend + i, xsimd::sqrt(xsimd::max(log, F(0.0F))));
        store(s.log_entries + i, log);
    });
}

/// out[i] = logit[i] + ln entries + cautious_gain(along * deviation): the log of what an estimated unit weighs. out may be
/// logit.
template <class Arch = default_arch>
inline void log_weights(const float* logit, std::size_t n, float along, const unit_spreads& s,
                        float* out) noexcept {
    using F = floats<Arch>;
    detail::for_registers<Arch>(n, [&](auto load, auto store, std::size_t i) {
        const F gain = cautious_gain<Arch>(F(along) * load(s.deviation + i), load(s.bend + i));
        store(out + i, load(logit + i) + (load(s.log_entries + i) + gain));
    });
}

/// x[i] += factor * rms_gain(along * deviation)
template <class Arch = default_arch>
inline void add_rms_gain(float* x, std::size_t n, float along, float factor, const unit_spreads& s) noexcept {
    using F = floats<Arch>;
    detail::for_registers<Arch>(n, [&](auto load, auto store, std::size_t i) {
        const F gain = rms_gain<Arch>(F(along) * load(s.deviation + i), load(s.bend + i));
        store(x + i, fma<Arch>(F(factor), gain, load(x + i)));
    });
}

/// out[i] += factor * exp(2 (logit[i] + rms_gain(caution * sigma) - log_all)) (1 - exp(-sigma^2)), sigma = along * deviation.
/// The first exponent is at most `most`, which keeps the price finite.
template <class Arch = default_arch>
inline void add_prices(const float* logit, std::size_t n, float along, float caution, float log_all,
                       float most, float factor, const unit_spreads& s, float* out) noexcept {
    using F = floats<Arch>;
    detail::for_registers<Arch>(n, [&](auto load, auto store, std::size_t i) {
        const F sigma = F(along) * load(s.deviation + i);
        const F share = load(logit + i) + rms_gain<Arch>(F(caution) * sigma, load(s.bend + i)) - F(log_all);
        const F weight = exp<Arch>(xsimd::min(share + share, F(most)));
        const F unlike = F(1.0F) - exp<Arch>(F(0.0F) - sigma * sigma);
        store(out + i, fma<Arch>(F(factor) * weight, unlike, load(out + i)));
    });
}

/// Sum of weight[i] deviation^2 min(1, bend / sigma), sigma = along * deviation.
template <class Arch = default_arch>
[[nodiscard]] inline float bounded_spread(const float* weight, std::size_t n, float along,
                                          const unit_spreads& s) noexcept {
    using F = floats<Arch>;
    // If along is 0, no unit is bounded. The factor is finite then, because a bend of 0 times inf is NaN.
    const F per_along(along > std::numeric_limits<float>::min() ? 1.0F / along
                                                                : std::numeric_limits<float>::max());
    F sum(0.0F);
    detail::for_registers<Arch>(n, [&](auto load, auto, std::size_t i) {
        const F deviation = load(s.deviation + i);
        const F bounded = deviation * xsimd::min(deviation, load(s.bend + i) * per_along);
        sum = fma<Arch>(load(weight + i), bounded, sum);
    });
    return reduce_add<Arch>(sum);
}

}}} // namespace kvtl::v0::simd
