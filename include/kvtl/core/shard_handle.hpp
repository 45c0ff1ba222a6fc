// The calls of one shard of a manager, for the thread that has it.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace kvtl { inline namespace v0 {

/// Refers to the manager, which must not move meanwhile.
template <class Manager> class shard_handle {
  public:
    shard_handle(Manager& cache, unsigned index) noexcept : cache_(&cache), index_(index) {}

    [[nodiscard]] status prefill(sequence_id seq, std::size_t layer, const layer_input& in,
                                 tensor_span out) const noexcept {
        return cache_->prefill(seq, layer, in, out, index_);
    }
    [[nodiscard]] status attend(sequence_id seq, std::size_t layer, const layer_input& in,
                                tensor_span out) const noexcept {
        return cache_->attend(seq, layer, in, out, index_);
    }
    [[nodiscard]] status forward(std::span<const batch_part> parts, std::size_t layer, const layer_input& in,
                                 tensor_span out) const noexcept {
        return cache_->forward(parts, layer, in, out, index_);
    }
    [[nodiscard]] status append(sequence_id seq, std::size_t layer, const layer_input& in) const noexcept {
        return cache_->append(seq, layer, in, index_);
    }
    status before_query(sequence_id seq, std::size_t layer) const noexcept {
        return cache_->before_query(seq, layer, index_);
    }
    status prefetch(sequence_id seq, std::size_t layer, tensor_view q) const noexcept {
        return cache_->prefetch(seq, layer, q, index_);
    }
    status prefetch(std::span<const sequence_id> batch, std::size_t layer, tensor_view q) const noexcept {
        return cache_->prefetch(batch, layer, q, index_);
    }
    template <class Visit>
    [[nodiscard]] status select(sequence_id seq, std::size_t layer, tensor_view q,
                                Visit&& visit) const noexcept {
        return cache_->select(seq, layer, q, std::forward<Visit>(visit), index_);
    }
    [[nodiscard]] unsigned index() const noexcept { return index_; }

  private:
    Manager* cache_;
    unsigned index_;
};

}} // namespace kvtl::v0
