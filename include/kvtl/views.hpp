// Non-owning views that pass between the engine, the manager, the policies and the kernels.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/version.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// Rows of equal length, e.g. the keys of a unit. Shape (count, dim); `stride` elements from row to row.
template <class Element> struct rows_view {
    const Element* data = nullptr;
    std::size_t count = 0;
    std::size_t dim = 0;
    std::size_t stride = 0;
    std::size_t following =
        0; ///< rows after these that are likely to be read next; kernels may prefetch them

    [[nodiscard]] const Element* row(std::size_t i) const noexcept { return data + i * stride; }
    [[nodiscard]] rows_view slice(std::size_t first, std::size_t n) const noexcept {
        return {data + first * stride, n, dim, stride, following + count - first - n};
    }
};

/// A read-only view of the engine's numbers: float, f16 or bf16. Stores and kernels convert them; a cache
/// that stores the same type copies them. Converts implicitly from any span of float, f16 or bf16. Numbers follow one
/// another, or lie in rows with a stride: q, k and v of a layer may share a buffer, (T, (HQ + 2 H) D).
class tensor_view {
  public:
    constexpr tensor_view() noexcept = default;
    template <element E>
    constexpr tensor_view(const E* data, std::size_t size) noexcept
        : data_(data), size_(size), kind_(kind_of<E>()) {}
    /// `rows` rows of `row` numbers each, of which one begins `stride` numbers behind the one before. A row has all
    /// numbers of a token. Calls refuse other rows, and a stride below `row`.
    template <element E>
    [[nodiscard]] static constexpr tensor_view in_rows(const E* data, std::size_t rows, std::size_t row,
                                                       std::size_t stride) noexcept {
        tensor_view v(data, rows * row);
        if (stride != row) v.row_ = row, v.stride_ = stride;
        return v;
    }
    template <std::ranges::contiguous_range R>
    requires std::ranges::sized_range<R> && std::ranges::borrowed_range<R> &&
        element<std::ranges::range_value_t<R>>
    constexpr tensor_view(R&& r) noexcept : tensor_view(std::ranges::data(r), std::ranges::size(r)) {}
    /// Refused: a temporary container is destroyed at the end of the expression, and the view would dangle.
    template <std::ranges::contiguous_range R>
    requires std::ranges::sized_range<R> &&
        (!std::ranges::borrowed_range<R>)&&element<std::ranges::range_value_t<R>> tensor_view(R&& r) = delete;

    [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
    [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
    /// Numbers of a row, and from the begin of one to the next; 0 and 0 where all numbers follow one another.
    [[nodiscard]] constexpr std::size_t row() const noexcept { return row_; }
    [[nodiscard]] constexpr std::size_t stride() const noexcept { return stride_; }
    /// Rows of n numbers that do not overlap, or one run.
    [[nodiscard]] constexpr bool has_rows_of(std::size_t n) const noexcept {
        return row_ == 0 || (row_ == n && stride_ >= n);
    }
    /// Where number i lies, from where visit() and as() point to.
    [[nodiscard]] constexpr std::size_t place(std::size_t i) const noexcept {
        if (row_ == 0) return i;
        const std::size_t at = first_ + i;
        return at / row_ * stride_ + at % row_;
    }
    /// Numbers that follow one another from number i on.
    [[nodiscard]] constexpr std::size_t run(std::size_t i) const noexcept {
        return row_ == 0 ? size_ - i : std::min(size_ - i, row_ - (first_ + i) % row_);
    }
    /// call(p), number i at p[place(i)]: p has the numbers' own type.
    template <class Call> constexpr decltype(auto) visit(Call&& call) const {
        if (kind_ == kind_of<f16>()) return call(static_cast<const f16*>(data_));
        if (kind_ == kind_of<bf16>()) return call(static_cast<const bf16*>(data_));
        return call(static_cast<const float*>(data_));
    }
    template <element E> [[nodiscard]] constexpr bool holds() const noexcept {
        return empty() || kind_ == kind_of<E>();
    }
    /// As visit() has it; null if the numbers have another type.
    template <element E> [[nodiscard]] constexpr const E* as() const noexcept {
        return kind_ == kind_of<E>() ? static_cast<const E*>(data_) : nullptr;
    }
    /// The numbers if they are floats and follow one another; otherwise an empty span.
    [[nodiscard]] constexpr std::span<const float> floats() const noexcept {
        return kind_ == kind_of<float>() && row_ == 0 ? std::span(static_cast<const float*>(data_), size_)
                                                      : std::span<const float>();
    }
    [[nodiscard]] constexpr tensor_view subspan(std::size_t first, std::size_t n) const noexcept {
        if (row_ == 0) return visit([&](const auto* p) { return tensor_view(p + first, n); });
        tensor_view part = *this;
        part.first_ += first, part.size_ = n;
        return part;
    }
    [[nodiscard]] constexpr tensor_view first(std::size_t n) const noexcept { return subspan(0, n); }

  private:
    template <element E> [[nodiscard]] static constexpr std::uint8_t kind_of() noexcept {
        return std::same_as<E, float> ? 0 : std::same_as<E, f16> ? 1 : 2;
    }

    const void* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t row_ = 0, stride_ = 0; ///< 0: one run of numbers
    std::size_t first_ = 0;            ///< in rows: number 0 is number first_ of data_
    std::uint8_t kind_ = 0;
};

/// A view of memory that receives results: float, f16 or bf16. Results are computed in float and rounded to
/// nearest even once, when they are stored. Values beyond the f16 range become infinity; this needs a cache
/// that stores bf16 or float. Converts implicitly from any mutable span of float, f16 or bf16.
class tensor_span {
  public:
    constexpr tensor_span() noexcept = default;
    template <element E>
    constexpr tensor_span(E* data, std::size_t size) noexcept : data_(data), seen_(data, size) {}
    template <std::ranges::contiguous_range R>
    requires std::ranges::sized_range<R> && std::ranges::borrowed_range<R> &&
        element<std::remove_reference_t<std::ranges::range_reference_t<R>>>
    constexpr tensor_span(R&& r) noexcept : tensor_span(std::ranges::data(r), std::ranges::size(r)) {}

    [[nodiscard]] constexpr std::size_t size() const noexcept { return seen_.size(); }
    [[nodiscard]] constexpr bool empty() const noexcept { return seen_.empty(); }
    /// call(p): p points to the first number and has the numbers' own type.
    template <class Call> constexpr decltype(auto) visit(Call&& call) const {
        return seen_.visit([&]<element E>(const E*) { return call(static_cast<E*>(data_)); });
    }
    template <element E> [[nodiscard]] constexpr bool holds() const noexcept {
        return seen_.template holds<E>();
    }
    /// Pointer to the first number; null if the numbers have another type.
    template <element E> [[nodiscard]] constexpr E* as() const noexcept {
        return seen_.template as<E>() == nullptr ? nullptr : static_cast<E*>(data_);
    }
    [[nodiscard]] constexpr tensor_span subspan(std::size_t first, std::size_t n) const noexcept {
        return visit([&](auto* p) { return tensor_span(p + first, n); });
    }
    [[nodiscard]] constexpr tensor_span first(std::size_t n) const noexcept { return subspan(0, n); }

  private:
    void* data_ = nullptr;
    tensor_view seen_;
};

/// The engine's tensors for one layer, row-major, T tokens. Rows of q, k and v may have a stride (tensor_view::in_rows).
/// Inputs that the preset does not declare may stay empty. Tensors must outlive the call; the cache keeps no view of them. They have the alignment of their
/// element type. Outputs (out, lse) must not overlap other tensors.
struct layer_input {
    tensor_view q{};                ///< (T, HQ, D) post-RoPE queries: float, f16 or bf16
    tensor_view k{};                ///< (T, H, D)  post-RoPE keys: float, f16 or bf16
    tensor_view v{};                ///< (T, H, D)  float, f16 or bf16
    std::span<const float> k_pre{}; ///< (T, H, D)  keys before RoPE: for traces and fits; no cache reads them
    std::span<const float> x{};     ///< (T, M)     input of the layer's attention, behind its norm
    /// (P, HQ, D) queries that stand for the future of one prompt. They come with its last chunk; with every chunk where
    /// the preset evicts after each; with any chunk, and the last, where it replays prompts.
    std::span<const float> probe{};
    std::span<const float> external{}; ///< (T, H)     scores that the engine computed
    /// (T, H, N) attend() only: numbers of the units that each KV head attends; `none` fills rows
    /// (select_chosen_by_engine.hpp). (T, N) where units span all heads of the layer.
    std::span<const std::uint32_t> chosen{};
    /// (T, HQ) output of attend(), or empty: log of the sum of exp(logit) over the attended entries.
    /// Estimates and sink_logits are not included.
    std::span<float> lse{};
    /// (HQ) logits that join the softmax without a value (gpt-oss), or empty. Retention ignores them when it
    /// scores a prompt.
    std::span<const float> sink_logits{};
    /// prefill() only: no further chunk of this prompt follows. Set it to false for every chunk except the
    /// last. Otherwise the prompt ends there, and later chunks are further turns. forward() uses part_kind
    /// instead.
    bool last_chunk = true;
    /// prefill() only, where the preset evicts after each chunk or replays prompts: the last tokens of the chunk that attend
    /// what comes before them and do not stay, such as those whose queries are the probe; all of the chunk's in a replay. Their
    /// positions are free again; max_tokens and prefill_tokens have room for them.
    std::uint32_t passing = 0;

    /// The input of tokens [first, first + n) of `total`: the same rows of every tensor that has a row per
    /// token.
    [[nodiscard]] layer_input rows(std::size_t first, std::size_t n, std::size_t total) const noexcept {
        const auto cut = [&](auto tensor) {
            const std::size_t row = tensor.size() / total;
            return tensor.subspan(first * row, n * row);
        };
        layer_input some = *this;
        some.q = cut(q), some.k = cut(k), some.v = cut(v), some.k_pre = cut(k_pre), some.x = cut(x);
        some.external = cut(external), some.chosen = cut(chosen), some.lse = cut(lse);
        return some;
    }
    /// Sink logits of the group that begins with query head h; null if there are none.
    [[nodiscard]] const float* sinks_of(std::size_t h) const noexcept {
        return sink_logits.empty() ? nullptr : sink_logits.data() + h;
    }
};

/// The role of a batch part's tokens in their sequence.
enum class part_kind : std::uint8_t {
    prompt,         ///< a chunk of a prompt, or of a further turn; more chunks follow
    last_of_prompt, ///< the last chunk
    decode, ///< decoded tokens, each attended before the next is appended: a step, or a draft to verify
};

/// Identifies a sequence of a manager. The generation makes the id of an ended sequence invalid for good.
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
