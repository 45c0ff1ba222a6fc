// Index: the leading channels of each KV head's keys, in a basis that concentrates the important part in a
// few channels (Loki, InfiniGen).
//
//   score(q, entry) = sum over channels j of (b_j . q) (b_j . k)      b_j: orthonormal, found offline
//
// pca_channels     Loki: b are the principal directions of the head's keys (mean not subtracted), the first r
//                  of them. The calibration decides whether they are fitted before or after RoPE; keys are
//                  rotated by them after RoPE. r = D is exact.
// skewed_channels  InfiniGen: b are the principal directions of queries (those of sum q q^T), and a query
//                  uses only its largest components. The stored columns differ. The paper picks columns once
//                  per head, those with the largest sums of |q| and |k| over the prompt. Here the first
//                  `channels` of the basis are stored, which suits any prompt, and every query picks its own
//                  `read` largest |b_j . q| among them.
//
// Bytes:  per entry and KV head `channels` sizeof(E).
// Cost:   absorb and each query `channels` D multiply-adds; score() then `channels` per entry and query.
//         Components that a query does not use are zeros, because streaming a row is cheaper than picking
//         from it.
// Limits: calibration must be bound before the first key.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/entry_columns.hpp>
#include <kvtl/policies/support/largest_magnitudes.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>

#include <algorithm>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

namespace detail {

struct pca_config {
    std::uint32_t channels = 32; ///< r, at most D
    template <class Visit> void fields(Visit&& visit) { visit("channels", channels); }
};
struct skewed_config {
    std::uint32_t channels = 64; ///< stored, at most D
    std::uint32_t read = 26;     ///< of these, per query: a fifth of D = 128
    template <class Visit> void fields(Visit&& visit) {
        visit("channels", channels);
        visit("read", read);
    }
};

} // namespace detail

template <calibration_kind Basis, element E = f16> struct rotated_channels {
    static_assert(Basis == calibration_kind::pca_basis || Basis == calibration_kind::skew_basis);
    static constexpr bool skewed = Basis == calibration_kind::skew_basis;
    static constexpr std::string_view name = skewed ? "skewed_channels" : "pca_channels";
    static constexpr engine_input needs = engine_input::q | engine_input::k | engine_input::calibration;
    static constexpr calibration_kind calibrated = Basis;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool summarises = true;
    static constexpr bool per_entry = true;
    static constexpr bool linear = !skewed;
    using config = std::conditional_t<skewed, detail::skewed_config, detail::pca_config>;

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : config_(c) {}

        /// The view's memory outlives the state.
        void bind(const calibration_view& calibration) noexcept { calibration_ = calibration; }

        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return rows(shape).unit_bytes(shape);
        }
        [[nodiscard]] std::size_t tail_bytes(const summary_shape& shape) const noexcept {
            return rows(shape).tail_bytes();
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape&) const noexcept { return 0; }
        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape, std::uint32_t) const noexcept {
            return (std::size_t{shape.group} + 1) * channels(shape); // queries, and room to rank one
        }
        void clear(const summary_view&, std::uint32_t) const noexcept {}
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float* key,
                    const float*) const noexcept {
            const std::size_t r = channels(view.shape);
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h, key += view.shape.dim)
                rows(view.shape).set_products(view, u, i, h * r, key, basis(view, h));
        }

        /// out: (queries, U, max_entries)
        void score(const float* q, std::uint32_t queries, const units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            const std::size_t r = channels(u.summary.shape);
            const rows_view<float> b = basis(u.summary, u.head);
            simd::dot_group(q, queries, b.dim, b, scratch.data(), r);
            if constexpr (skewed)
                for (std::uint32_t g = 0; g < queries; ++g)
                    detail::keep_largest_magnitudes(scratch.subspan(g * r, b.count), config_.read,
                                                    scratch.subspan(queries * r, r));
            rows(u.summary.shape).score(scratch.data(), queries, r, u, u.head * r, b.count, out.data());
        }

      private:
        [[nodiscard]] std::size_t channels(const summary_shape& shape) const noexcept {
            return std::min(config_.channels, shape.dim);
        }
        [[nodiscard]] detail::entry_columns<E> rows(const summary_shape& shape) const noexcept {
            return {shape.lane_heads * channels(shape)};
        }
        /// (channels, D); fewer when fewer were loaded.
        [[nodiscard]] rows_view<float> basis(const summary_view& view, std::uint32_t h) const noexcept {
            const std::uint32_t head = view.first_head + h;
            const rows_view<float> b =
                skewed ? calibration_.skew_basis(view.layer, head) : calibration_.pca_basis(view.layer, head);
            return b.slice(0, std::min(b.count, channels(view.shape)));
        }

        config config_{};
        calibration_view calibration_;
    };
};

using pca_channels = rotated_channels<calibration_kind::pca_basis>;
using skewed_channels = rotated_channels<calibration_kind::skew_basis>;

}} // namespace kvtl::v0
