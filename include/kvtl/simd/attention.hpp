// The running state of softmax attention, and how states are joined.
//
// What:   attention over a set of entries can be computed in pieces: each piece keeps, per query head, the
//         largest logit, the sum of exp(logit - largest) and the sum of the values weighted by that exp. Two
//         pieces merge exactly, so units are attended as they arrive from storage, in any grouping.
// Shapes: G query heads of one KV head; acc (G, D), row-major, max (G), sum (G), in memory of the caller.
// Units:  logits in nats, scale and log-weights included. A state that saw no entry has max = -inf, sum = 0.
// Cost:   merge and finish touch each number once; nothing allocates. The kernel: simd/attend.hpp.
// Source: the online softmax of Milakov and Gimelshein (2018), as used by FlashAttention and FlashDecoding.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/arch.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvtl { inline namespace v0 {

/// How the inner product x of a query and a key becomes a logit: scale * x, or cap * tanh(scale * x / cap) where a
/// model caps its logits (Gemma 2).
struct logit_rule {
    float scale = 1; ///< > 0
    float cap = 0;   ///< 0: none
    /// Queries and weights are rounded where there are instructions for that (simd/relaxed.hpp).
    bool relaxed = false;

    constexpr logit_rule() = default;
    constexpr logit_rule(float s, float c = 0, bool r = false) noexcept : scale(s), cap(c), relaxed(r) {}

    friend constexpr bool operator==(const logit_rule&, const logit_rule&) noexcept = default;
};

/// A view of one query group's softmax state.
struct partial {
    float* max = nullptr;    ///< (G) largest logit so far
    float* sum = nullptr;    ///< (G) sum of exp(logit - max)
    float* acc = nullptr;    ///< (G, D) sum of exp(logit - max) * value
    std::uint32_t group = 0; ///< G, 1 to 64
    std::uint32_t dim = 0;   ///< D
};

/// Floats of memory that a partial of this shape takes, in whole cache lines: where the first begins on one, so do those
/// behind it, and no register of acc lies across two if D is a multiple of a register's numbers.
[[nodiscard]] constexpr std::size_t partial_floats(std::size_t group, std::size_t dim) noexcept {
    return (group * (dim + 2) + 15) / 16 * 16;
}

/// A view over `partial_floats(group, dim)` floats at `memory`, whose content is kept: call `reset` for an
/// empty one.
[[nodiscard]] constexpr partial partial_at(float* memory, std::uint32_t group, std::uint32_t dim) noexcept {
    float* const behind = memory + std::size_t{group} * dim;
    return {behind, behind + group, memory, group, dim};
}

/// Makes `p` the state of no entries at all.
inline void reset(const partial& p) noexcept {
    std::fill_n(p.max, p.group, -std::numeric_limits<float>::infinity());
    std::fill_n(p.sum, p.group, 0.0F);
    std::fill_n(p.acc, std::size_t{p.group} * p.dim, 0.0F);
}

namespace detail {

/// e^(x - shift) of one number, by the code that computes it for a register: kernels and merges agree to the
/// bit.
template <class Arch> [[nodiscard]] float exp_shifted(float x, float shift) noexcept {
    float lane[simd::floats_per_register<Arch>];
    simd::store<Arch>(lane, simd::exp<Arch>(simd::floats<Arch>(x - shift)));
    return lane[0];
}
#ifdef KVTL_INSTANCE
KVTL_INSTANCE float exp_shifted<simd::default_arch>(float, float) noexcept;
#endif

/// out[i] = a * x[i] + b * y[i], rounded to E; out may be x or y.
template <class Arch, element E>
void blend(float a, const float* x, float b, const float* y, E* out, std::size_t n) noexcept {
    using F = simd::floats<Arch>;
    const auto mix = [va = F(a), vb = F(b)](F vx, F vy) { return simd::fma<Arch>(va, vx, vb * vy); };
    std::size_t i = 0;
    for (; i + simd::floats_per_register<Arch> <= n; i += simd::floats_per_register<Arch>)
        simd::store<Arch>(out + i, mix(simd::load<Arch>(x + i), simd::load<Arch>(y + i)));
    if (i < n) {
        const F last = mix(simd::load_part<Arch>(x + i, n - i), simd::load_part<Arch>(y + i, n - i));
        simd::store_part<Arch>(out + i, last, n - i);
    }
}

/// cap * tanh(x / cap) of a register; x = scale times an inner product. Within 1e-7 cap.
template <class Arch>
[[nodiscard, gnu::always_inline]] inline simd::floats<Arch> capped(simd::floats<Arch> x, float cap) noexcept {
    using F = simd::floats<Arch>;
    const F two_y =
        xsimd::min(xsimd::max(x * F(2.0F / cap), F(-32.0F)), F(32.0F)); // beyond, tanh is 1 to the bit
    return F(cap) - F(2.0F * cap) / (simd::exp<Arch>(two_y) + F(1.0F));
}

} // namespace detail

/// n inner products become logits, in place. Nothing to do without a cap but to scale.
template <class Arch = simd::default_arch>
void to_logits(const logit_rule& rule, float* s, std::size_t n) noexcept {
    using F = simd::floats<Arch>;
    constexpr std::size_t lane_count = simd::floats_per_register<Arch>;
    const auto map = [&](F x) {
        const F logit = x * F(rule.scale);
        return rule.cap > 0 ? detail::capped<Arch>(logit, rule.cap) : logit;
    };
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) simd::store<Arch>(s + i, map(simd::load<Arch>(s + i)));
    if (i < n) simd::store_part<Arch>(s + i, map(simd::load_part<Arch>(s + i, n - i)), n - i);
}

/// A logit per query that joins the softmax with no value of its own (gpt-oss): what it takes is lost to the entries.
/// logit: (G), -inf for none. After that, lse and mass() count it too.
template <class Arch = simd::default_arch>
void add_sink_logits(const partial& p, const float* logit) noexcept {
    for (std::uint32_t g = 0; g < p.group; ++g) {
        const float largest = std::max(p.max[g], logit[g]);
        if (!(largest > -std::numeric_limits<float>::infinity())) continue;
        const float shrink = p.sum[g] > 0.0F ? detail::exp_shifted<Arch>(p.max[g], largest) : 0.0F;
        float* acc = p.acc + std::size_t{g} * p.dim;
        detail::blend<Arch>(shrink, acc, 0.0F, acc, acc, p.dim);
        p.sum[g] = p.sum[g] * shrink + detail::exp_shifted<Arch>(logit[g], largest);
        p.max[g] = largest;
    }
}

/// Adds the entries that `from` saw to `into`. Both have one shape; an empty side changes nothing.
template <class Arch = simd::default_arch> void merge(const partial& into, const partial& from) noexcept {
    for (std::uint32_t g = 0; g < into.group; ++g) {
        if (!(from.sum[g] > 0.0F)) continue; // empty: its max is -inf, and -inf - -inf is no number
        const float shift = std::max(into.max[g], from.max[g]);
        const float a = into.sum[g] > 0.0F ? detail::exp_shifted<Arch>(into.max[g], shift) : 0.0F;
        const float b = detail::exp_shifted<Arch>(from.max[g], shift);
        if (b == 0.0F) continue; // nothing of it is left
        float* acc = into.acc + std::size_t{g} * into.dim;
        detail::blend<Arch>(a, acc, b, from.acc + std::size_t{g} * from.dim, acc, into.dim);
        into.sum[g] = a * into.sum[g] + b * from.sum[g];
        into.max[g] = shift;
    }
}

/// The attention output: out[g * out_stride + d] = acc / sum, rounded to E, and zeros where no entry was seen.
template <class Arch = simd::default_arch, element E>
void finish(const partial& p, E* out, std::size_t out_stride) noexcept {
    for (std::uint32_t g = 0; g < p.group; ++g) {
        const float* acc = p.acc + std::size_t{g} * p.dim;
        const float share = p.sum[g] > 0.0F ? 1.0F / p.sum[g] : 0.0F;
        detail::blend<Arch>(share, acc, 0.0F, acc, out + g * out_stride, p.dim);
    }
}

/// The same from out[at] on.
template <class Arch = simd::default_arch>
void finish(const partial& p, const tensor_span& out, std::size_t at, std::size_t out_stride) noexcept {
    out.visit([&](auto* to) { finish<Arch>(p, to + at, out_stride); });
}
#ifdef KVTL_INSTANCE
KVTL_INSTANCE void finish<simd::default_arch>(const partial&, const tensor_span&, std::size_t,
                                              std::size_t) noexcept;
#endif

/// Share (0 to 1) of query head g's softmax mass in `total` that the entries of `part` hold. `total` has seen
/// them too.
[[nodiscard]] inline float mass(const partial& part, const partial& total, std::uint32_t g) noexcept {
    if (!(part.sum[g] > 0.0F) || !(total.sum[g] > 0.0F)) return 0.0F;
    return std::exp(part.max[g] - total.max[g]) * (part.sum[g] / total.sum[g]);
}

}} // namespace kvtl::v0
