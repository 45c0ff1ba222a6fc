// Keys and values of a layer once more, from what the layer read: for caches that keep inputs of layers
// (kvtl/policies/compress_recomputed.hpp).
//
//   recomputer again(model, max_tokens);
//   c.compressor = {.recompute = &recomputer::recompute, .engine = &again, .width = again.width()};
//
// Bits:   those that the transformer handed over. A product's sums run in one order whatever tokens are beside it.
// Cost:   2 M D operations per row; the weights of the head are expanded once per call.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_recomputed.hpp>

#include "model.hpp"
#include "thread_pool.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine {

class recomputer {
  public:
    /// The model must outlive it. Positions are below max_tokens.
    recomputer(const model& m, std::size_t max_tokens);

    [[nodiscard]] std::uint32_t width() const noexcept {
        return static_cast<std::uint32_t>(model_.hyper().width);
    }
    /// self: the recomputer. Callable from any number of threads.
    static void recompute(void* self, const kvtl::recompute_rows& r) noexcept;

  private:
    const model& model_;
    std::size_t pairs_;
    std::vector<float> cosine_, sine_; ///< (positions, pairs)
    thread_pool caller_{1};            ///< the calling thread
};

} // namespace engine
