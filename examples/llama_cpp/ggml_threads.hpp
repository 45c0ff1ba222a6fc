// ggml's worker threads in one pool that stays: without it every stop of a graph creates and joins threads.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <llama.h>

namespace kvtl_llama::detail {

class ggml_threads {
  public:
    ggml_threads() = default;
    ggml_threads(const ggml_threads&) = delete;
    ggml_threads& operator=(const ggml_threads&) = delete;
    ~ggml_threads();

    /// `threads` includes the caller. poll: 0 sleeps at once, 100 spins longest. The context must not compute after
    /// this object is gone.
    [[nodiscard]] kvtl::status attach(llama_context* context, unsigned threads, unsigned poll);

  private:
    ggml_threadpool_t pool_ = nullptr;
    void (*free_)(ggml_threadpool_t) = nullptr;
};

} // namespace kvtl_llama::detail
