// SPDX-License-Identifier: MIT
#include "ggml_threads.hpp"

#include <ggml-backend.h>
#include <ggml-cpu.h>

namespace kvtl_llama::detail {

ggml_threads::~ggml_threads() {
    if (pool_ != nullptr) free_(pool_);
}

kvtl::status ggml_threads::attach(llama_context* context, unsigned threads, unsigned poll) {
    if (pool_ == nullptr) {
        // The CPU backend is a library of its own that is loaded at run time: nothing can be linked against it.
        ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        ggml_backend_reg_t reg = cpu == nullptr ? nullptr : ggml_backend_dev_backend_reg(cpu);
        const auto find = [&](const char* name) {
            return reg == nullptr ? nullptr : ggml_backend_reg_get_proc_address(reg, name);
        };
        const auto make = reinterpret_cast<decltype(&ggml_threadpool_new)>(find("ggml_threadpool_new"));
        free_ = reinterpret_cast<decltype(&ggml_threadpool_free)>(find("ggml_threadpool_free"));
        if (make == nullptr || free_ == nullptr)
            return kvtl::status::failure(
                kvtl::errc::unsupported,
                "start: llama.cpp's CPU backend is not loaded, or has no thread pools; valid: "
                "ggml_backend_load_all() first, and llama.cpp as of v0.5.0");
        ggml_threadpool_params p = ggml_threadpool_params_default(static_cast<int>(threads));
        p.poll = poll;
        pool_ = make(&p);
        if (pool_ == nullptr)
            return kvtl::status::failure(kvtl::errc::unsupported, "start: ggml starts no pool of %u threads",
                                         threads);
    }
    llama_attach_threadpool(context, pool_, pool_);
    return {};
}

} // namespace kvtl_llama::detail
