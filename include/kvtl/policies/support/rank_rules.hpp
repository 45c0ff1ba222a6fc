// The number of coefficients that a low-rank codec keeps of a row (compress_token_adaptive_rank.hpp).
//
// What:   keep_energy   as many as keep a share of the row's energy; needs no training
//         fixed_rank    the same number for every row
//         learned_gate  computed by a gate that was trained with the basis: p = softmax(x~ W + b), m_j the
//                       sum of the first n - j numbers of p. The rank is the number of m_j > tau. m falls
//                       from m_0 = 1, so these are the first ones, and the rank is at least 1.
// Rule:   config (its fields are the compressor's), check(config), rank(x, n, gate) -> 1 to n of the n
//         coefficients x, the most important direction first. `fixed`: rank does not read x. `trained`: bases
//         come with gates.
// Source: learned_gate: "DynaKV" (token-adaptive low-rank compression), Eq. 5, 6 and 8.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/dot.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Numbers that a row may have.
inline constexpr std::uint32_t max_row_width = 4096;

/// A gate's weights; nothing where a rule is not trained.
struct rank_gate {
    rows_view<float> weights{};  ///< (n, n): row j makes logit j
    const float* bias = nullptr; ///< (n)
};

/// Refuses a share that is not in (0, 1].
[[nodiscard]] inline status check_share(const char* field, float share) noexcept {
    if (share > 0 && share <= 1) return {};
    return status::failure(errc::invalid_argument, "compressor.%s is %g; valid: more than 0, to 1", field,
                           static_cast<double>(share));
}

struct keep_energy {
    static constexpr bool fixed = false, trained = false;
    struct config {
        float share = 0.95F; ///< above 0; 1 keeps every coefficient
        template <class Visit> void fields(Visit&& visit) { visit("share", share); }
    };
    [[nodiscard]] static status check(const config& c) noexcept { return check_share("share", c.share); }

    keep_energy() = default;
    explicit keep_energy(const config& c) noexcept : share_(c.share) {}

    [[nodiscard]] std::uint32_t rank(const float* x, std::uint32_t n, const rank_gate&) const noexcept {
        if (share_ >= 1.0F) return n;
        double all = 0;
        for (std::uint32_t i = 0; i < n; ++i) all += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        const double wanted = static_cast<double>(share_) * all;
        double kept = 0;
        for (std::uint32_t i = 0; i < n; ++i) {
            kept += static_cast<double>(x[i]) * static_cast<double>(x[i]);
            if (kept >= wanted) return i + 1;
        }
        return n;
    }

  private:
    float share_ = config{}.share;
};

struct fixed_rank {
    static constexpr bool fixed = true, trained = false;
    struct config {
        float rate = 0.5F; ///< above 0; 1 keeps every coefficient
        template <class Visit> void fields(Visit&& visit) { visit("rate", rate); }
    };
    [[nodiscard]] static status check(const config& c) noexcept { return check_share("rate", c.rate); }

    fixed_rank() = default;
    explicit fixed_rank(const config& c) noexcept : rate_(c.rate) {}

    [[nodiscard]] std::uint32_t rank(const float*, std::uint32_t n, const rank_gate&) const noexcept {
        return std::clamp(static_cast<std::uint32_t>(rate_ * static_cast<float>(n) + 0.5F), 1U, n);
    }

  private:
    float rate_ = config{}.rate;
};

struct learned_gate {
    static constexpr bool fixed = false, trained = true;
    struct config {
        float tau = 0.1F;   ///< between 0 and 1: what m must exceed
        float rate = 0.20F; ///< which gates: the mean share of coefficients that they were trained to keep
        template <class Visit> void fields(Visit&& visit) {
            visit("tau", tau);
            visit("rate", rate);
        }
    };
    [[nodiscard]] static status check(const config& c) noexcept {
        if (!(c.tau > 0 && c.tau < 1))
            return status::failure(errc::invalid_argument,
                                   "compressor.tau is %g; valid: more than 0, less than 1",
                                   static_cast<double>(c.tau));
        return check_share("rate", c.rate);
    }

    learned_gate() = default;
    explicit learned_gate(const config& c) noexcept : tau_(c.tau) {}

    /// Cost: n * n multiply-adds.
    [[nodiscard]] std::uint32_t rank(const float* x, std::uint32_t n, const rank_gate& gate) const noexcept {
        std::array<float, max_row_width> p;
        simd::dot_rows(x, gate.weights, p.data());
        float largest = p[0] + gate.bias[0];
        for (std::uint32_t i = 0; i < n; ++i) largest = std::max(largest, p[i] += gate.bias[i]);
        double all = 0;
        for (std::uint32_t i = 0; i < n; ++i) all += static_cast<double>(p[i] = std::exp(p[i] - largest));
        // m_j is the sum of the first n - j probabilities: it exceeds tau for the first rho coefficients.
        const double wanted = static_cast<double>(tau_) * all;
        double sum = 0;
        for (std::uint32_t i = 0; i < n; ++i) {
            sum += static_cast<double>(p[i]);
            if (sum > wanted) return n - i;
        }
        return 1;
    }

  private:
    float tau_ = config{}.tau;
};

}} // namespace kvtl::v0
