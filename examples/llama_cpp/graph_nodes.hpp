// What kvtl_llama reads from the nodes of a llama.cpp graph: rows that SET_ROWS put into cells, queries, masks.
//
// Shapes:  ggml counts from the innermost extent: a query tensor is (D, T, HQ) there, and (T, HQ, D) here.
// Buffers: memory of the host is read in place, any other through ggml_backend_tensor_get.
// Cost:    at most one pass over the rows; nothing allocates once the scratch has the size of the largest batch.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/views.hpp>

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvtl_llama::detail {

/// Memory for what is not on the host.
using staging = std::vector<std::byte>;

/// The tensor whose memory `t` looks into. Never null for a `t` that is not.
[[nodiscard]] const ggml_tensor* root_of(const ggml_tensor* t) noexcept;

/// N where the memory of `t` is called PREFIX N, such as cache_k_l7; -1 for any other.
[[nodiscard]] int layer_of(const ggml_tensor* t, std::string_view prefix) noexcept;

/// llama.cpp's cells: of keys "cache_k_l", of values "cache_v_l". Looks through a cast, which f32 cells get.
[[nodiscard]] int layer_of_keys(const ggml_tensor* t) noexcept;
[[nodiscard]] int layer_of_values(const ggml_tensor* t) noexcept;

[[nodiscard]] bool on_host(const ggml_tensor* t) noexcept;

/// `bytes` bytes from `offset`: where they are, or a copy in `room`.
[[nodiscard]] const std::byte* bytes_of(const ggml_tensor* t, std::size_t offset, std::size_t bytes,
                                        staging& room);

/// The cells that a SET_ROWS node fills with the keys or the values of a batch.
class written_rows {
  public:
    /// Room for batches of up to `tokens`.
    void reserve(std::size_t tokens) { cells_.reserve(tokens); }
    void forget() noexcept { node_ = nullptr, layer_ = -1, cells_.clear(); }

    /// While the scheduler asks about the node: its indices may be overwritten once it has been computed.
    void note(const ggml_tensor* set_rows, int layer, staging& room);

    [[nodiscard]] int layer() const noexcept { return layer_; } ///< llama.cpp's number; -1: none noted
    [[nodiscard]] std::size_t tokens() const noexcept { return cells_.size(); }
    [[nodiscard]] std::size_t width() const noexcept; ///< numbers in a row

    /// The rows in the batch's order, (tokens(), width()), as what they are: in place where the host has them as
    /// neighbours, else in `room`. Empty for a type that is not f16, bf16 or f32.
    [[nodiscard]] kvtl::tensor_view rows(staging& room) const;

  private:
    const ggml_tensor* node_ = nullptr; ///< it looks into the cells; of the graph that is being computed
    int layer_ = -1;
    std::vector<std::int64_t> cells_; ///< of each token
};

/// q (D, T, HQ) of any strides as (T, HQ, D): in place where it lies so, else gathered into `scratch`, which grows to
/// that once. Empty for a tensor that is not f32.
[[nodiscard]] std::span<const float> queries_of(const ggml_tensor* q, std::vector<float>& scratch,
                                                staging& room);

/// How many cells the t-th token may look at, by an f16 mask (cells, T). -1 where there is no such mask.
[[nodiscard]] std::int64_t visible_cells(const ggml_tensor* mask, std::int64_t t, staging& room);

} // namespace kvtl_llama::detail
