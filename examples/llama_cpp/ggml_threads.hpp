// ggml's worker threads in one pool that stays, for llama.cpp's graphs and for kvtl's shards between two of them.
//
// Without an attached pool every stop of a graph creates and joins threads. With threads of its own for kvtl there would be
// twice as many as the user asked for, of which ggml's spin while kvtl's work: so the shards are the one node of a graph
// that the same pool computes.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <ggml-backend.h>
#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace kvtl_llama::detail {

class ggml_threads {
  public:
    ggml_threads() = default;
    ggml_threads(const ggml_threads&) = delete;
    ggml_threads& operator=(const ggml_threads&) = delete;

    /// `threads` includes the caller. poll: 0 sleeps at once, 100 spins longest. The context must not compute after
    /// this object is gone.
    [[nodiscard]] kvtl::status attach(llama_context* context, unsigned threads, unsigned poll);

    /// f(0) ... f(n - 1), each once, on the pool and the caller. Not while a graph is computed on it.
    template <class F> void parallel(std::size_t n, const F& f) {
        static_assert(std::is_nothrow_invocable_v<const F&, std::size_t>, "an exception would end a worker");
        if (n <= 1 || threads_ <= 1) {
            for (std::size_t i = 0; i < n; ++i) f(i);
            return;
        }
        job_ = {[](const void* function, std::size_t i) noexcept { (*static_cast<const F*>(function))(i); },
                &f, n};
        run();
    }

  private:
    struct job {
        void (*call)(const void*, std::size_t) noexcept = nullptr;
        const void* function = nullptr;
        std::size_t n = 0;
    };
    struct free_pool {
        void (*free)(ggml_threadpool_t);
        void operator()(ggml_threadpool_t pool) const { free(pool); }
    };
    struct free_rest {
        void operator()(ggml_backend_t b) const { ggml_backend_free(b); }
        void operator()(ggml_context* c) const { ggml_free(c); }
        void operator()(ggml_backend_buffer_t b) const { ggml_backend_buffer_free(b); }
    };

    [[nodiscard]] kvtl::status make(unsigned threads, unsigned poll);
    void run();

    unsigned threads_ = 1;
    job job_;
    std::unique_ptr<ggml_threadpool, free_pool> pool_; // before what computes on it
    std::unique_ptr<ggml_backend, free_rest> backend_;
    std::unique_ptr<ggml_context, free_rest> tensors_;
    std::unique_ptr<ggml_backend_buffer, free_rest> memory_;
    ggml_cgraph* graph_ = nullptr;
};

} // namespace kvtl_llama::detail
