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

/// What the engine hands over for one layer. Row-major, T tokens. What the preset does not declare as a signal may stay
/// empty.
struct layer_input {
    std::span<const float> q{};        ///< (T, HQ, D) post-RoPE queries
    std::span<const float> k{};        ///< (T, H, D)  post-RoPE keys
    std::span<const float> v{};        ///< (T, H, D)
    std::span<const float> k_pre{};    ///< (T, H, D)  keys before RoPE
    std::span<const float> x{};        ///< (T, M)     input of the layer
    std::span<const float> probe{};    ///< (P, HQ, D) queries that stand for the future
    std::span<const float> external{}; ///< (T, H)     scores computed outside
    std::span<float> lse{}; ///< (T, HQ) attend() writes, when not empty: log of the sum of exp(logit)
                            ///< over the entries it attended, estimates and sink_logits not included
    std::span<const float>
        sink_logits{};      ///< (HQ) logits that join the softmax without a value (gpt-oss), or empty.
                            ///< Scores that retention takes of a prompt leave them out
    bool last_chunk = true; ///< prefill only: no further chunk of this prompt follows

    /// Tokens [first, first + n) of `total`: those rows of every tensor that has a row per token.
    [[nodiscard]] layer_input rows(std::size_t first, std::size_t n, std::size_t total) const noexcept {
        const auto cut = [&](auto tensor) {
            const std::size_t row = tensor.size() / total;
            return tensor.subspan(first * row, n * row);
        };
        layer_input some = *this;
        some.q = cut(q), some.k = cut(k), some.v = cut(v), some.k_pre = cut(k_pre), some.x = cut(x);
        some.external = cut(external), some.lse = cut(lse);
        return some;
    }
    /// Those of the group that begins with query head h, or null.
    [[nodiscard]] const float* sinks_of(std::size_t h) const noexcept {
        return sink_logits.empty() ? nullptr : sink_logits.data() + h;
    }
};

/// What the tokens of a batch's part are to their sequence.
enum class part_kind : std::uint8_t {
    prompt,         ///< a chunk of a prompt (or of a further turn) of which more comes
    last_of_prompt, ///< its last chunk
    decode, ///< decoded tokens, each attending before the next one comes: a step, or a draft to be verified
};

/// A sequence held by a manager. The generation makes an ended sequence's id invalid for good.
struct sequence_id {
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
    friend constexpr bool operator==(sequence_id, sequence_id) noexcept = default;
};

/// Neighbouring rows of a batched layer_input that belong to one sequence.
struct batch_part {
    sequence_id seq{};
    std::uint32_t tokens = 1;
    part_kind kind = part_kind::decode;
};

}} // namespace kvtl::v0
