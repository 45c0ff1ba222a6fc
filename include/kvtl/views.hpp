// Non-owning views that pass between the engine, the manager, the policies and the kernels.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// Rows of equal length, e.g. the keys of a unit. Shape (count, dim); `stride` elements from row to row.
template <class Element> struct rows_view {
    const Element* data = nullptr;
    std::size_t count = 0;
    std::size_t dim = 0;
    std::size_t stride = 0;

    [[nodiscard]] const Element* row(std::size_t i) const noexcept { return data + i * stride; }
    [[nodiscard]] rows_view slice(std::size_t first, std::size_t n) const noexcept {
        return {data + first * stride, n, dim, stride};
    }
};

/// What the engine hands over for one layer. Row-major, T tokens (T = 1 for attend). What the preset does not
/// declare as a signal may stay empty.
struct layer_input {
    std::span<const float> q{};        ///< (T, HQ, D) post-RoPE queries
    std::span<const float> k{};        ///< (T, H, D)  post-RoPE keys
    std::span<const float> v{};        ///< (T, H, D)
    std::span<const float> k_pre{};    ///< (T, H, D)  keys before RoPE
    std::span<const float> x{};        ///< (T, M)     input of the layer
    std::span<const float> probe{};    ///< (P, HQ, D) queries that stand for the future
    std::span<const float> external{}; ///< (T, H)     scores computed outside
    std::span<float> lse{};            ///< (HQ) attend() writes, when not empty: log of the sum of exp(logit)
                                       ///< over the entries it attended, estimates not included
    bool last_chunk = true;            ///< prefill only: no further chunk of this prompt follows
};

/// A sequence held by a manager. The generation makes an ended sequence's id invalid for good.
struct sequence_id {
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
    friend constexpr bool operator==(sequence_id, sequence_id) noexcept = default;
};

}} // namespace kvtl::v0
