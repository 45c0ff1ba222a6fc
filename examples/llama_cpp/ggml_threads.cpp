// SPDX-License-Identifier: MIT
#include "ggml_threads.hpp"

#include <ggml-cpu.h>
#include <ggml.h>

#include <atomic>

namespace kvtl_llama::detail {

kvtl::status ggml_threads::attach(llama_context* context, unsigned threads, unsigned poll) {
    if (!pool_)
        if (kvtl::status s = make(threads, poll); !s) return s;
    llama_attach_threadpool(context, pool_.get(), pool_.get());
    return {};
}

kvtl::status ggml_threads::make(unsigned threads, unsigned poll) {
    // The CPU backend is a library of its own that may be loaded at run time: nothing can be linked against it.
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_reg_t reg = cpu == nullptr ? nullptr : ggml_backend_dev_backend_reg(cpu);
    const auto find = [&](const char* name) {
        return reg == nullptr ? nullptr : ggml_backend_reg_get_proc_address(reg, name);
    };
    const auto new_pool = reinterpret_cast<decltype(&ggml_threadpool_new)>(find("ggml_threadpool_new"));
    const auto free_it = reinterpret_cast<decltype(&ggml_threadpool_free)>(find("ggml_threadpool_free"));
    const auto set_pool =
        reinterpret_cast<decltype(&ggml_backend_cpu_set_threadpool)>(find("ggml_backend_cpu_set_threadpool"));
    const auto set_threads =
        reinterpret_cast<ggml_backend_set_n_threads_t>(find("ggml_backend_set_n_threads"));
    if (new_pool == nullptr || free_it == nullptr || set_pool == nullptr || set_threads == nullptr)
        return kvtl::status::failure(
            kvtl::errc::unsupported,
            "start: llama.cpp's CPU backend is not loaded, or has no thread pools; valid: "
            "ggml_backend_load_all() first, and llama.cpp as of v0.5.0");
    ggml_threadpool_params p = ggml_threadpool_params_default(static_cast<int>(threads));
    p.poll = poll;
    pool_ = {new_pool(&p), free_pool{free_it}};
    backend_.reset(ggml_backend_dev_init(cpu, nullptr));
    tensors_.reset(ggml_init({.mem_size = 2 * ggml_tensor_overhead() + ggml_graph_overhead_custom(1, false),
                              .mem_buffer = nullptr,
                              .no_alloc = true}));
    if (!pool_ || !backend_ || !tensors_)
        return kvtl::status::failure(kvtl::errc::unsupported, "start: ggml starts no pool of %u threads",
                                     threads);
    set_pool(backend_.get(), pool_.get());
    set_threads(backend_.get(), static_cast<int>(threads));
    threads_ = threads;
    // One node of one number, whose computation is the job.
    ggml_tensor* node = ggml_custom_4d(
        tensors_.get(), GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0,
        [](ggml_tensor*, int thread, int all, void* data) {
            const job& j = *static_cast<const job*>(data);
            for (auto i = static_cast<std::size_t>(thread); i < j.n; i += static_cast<std::size_t>(all))
                j.call(j.function, i);
        },
        GGML_N_TASKS_MAX, &job_);
    memory_.reset(ggml_backend_alloc_ctx_tensors(tensors_.get(), backend_.get()));
    graph_ = ggml_new_graph_custom(tensors_.get(), 1, false);
    if (!memory_)
        return kvtl::status::failure(kvtl::errc::unsupported,
                                     "start: ggml has no memory for a tensor of 4 bytes");
    ggml_build_forward_expand(graph_, node);
    std::atomic<unsigned> ran = 0; // what this ggml skips must not be found out from wrong tokens
    parallel(2, [&](std::size_t) noexcept { ++ran; });
    if (ran != 2)
        return kvtl::status::failure(
            kvtl::errc::unsupported,
            "start: this ggml does not compute custom nodes; valid: llama.cpp as of v0.5.0");
    return {};
}

void ggml_threads::run() {
    // Computing fails when it runs out of memory for its plan, at the first time if at all.
    if (ggml_backend_graph_compute(backend_.get(), graph_) != GGML_STATUS_SUCCESS)
        for (std::size_t i = 0; i < job_.n; ++i) job_.call(job_.function, i);
}

} // namespace kvtl_llama::detail
