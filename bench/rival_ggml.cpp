// SPDX-License-Identifier: MIT
#include "rival_ggml.hpp"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cmath>
#include <vector>

namespace kernels {
namespace {

/// ggml's processor; null where there is none.
ggml_backend_dev_t processor() {
    static ggml_backend_dev_t device = [] {
        ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
        constexpr const char* folder = KVTL_LLAMA_BACKENDS;
        if (*folder != '\0')
            ggml_backend_load_all_from_path(folder);
        else
            ggml_backend_load_all();
        return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }();
    return device;
}

/// A back-end with one thread.
ggml_backend_t open_backend() {
    ggml_backend_dev_t device = processor();
    if (device == nullptr) return nullptr;
    ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
    void* set =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
    if (backend == nullptr || set == nullptr) return nullptr;
    reinterpret_cast<ggml_backend_set_n_threads_t>(set)(backend, 1);
    return backend;
}

ggml_type type_of(ggml_attention::rows type) {
    switch (type) {
    case ggml_attention::rows::f16:
        return GGML_TYPE_F16;
    case ggml_attention::rows::bf16:
        return GGML_TYPE_BF16;
    case ggml_attention::rows::q8:
        return GGML_TYPE_Q8_0;
    default:
        return GGML_TYPE_F32;
    }
}

} // namespace

struct ggml_attention::parts {
    ggml_backend_t backend = open_backend(); // its own: two threads cannot share one
    ggml_context* context = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
    ggml_cgraph* graph = nullptr;
    ggml_tensor* out = nullptr;

    parts() = default;
    parts(const parts&) = delete;
    parts& operator=(const parts&) = delete;
    ~parts() {
        ggml_backend_buffer_free(buffer);
        ggml_free(context);
        ggml_backend_free(backend);
    }
};

ggml_attention::ggml_attention(rows type, std::size_t dim, std::size_t group, std::size_t tokens,
                               const float* q, const void* keys, const void* values)
    : parts_(std::make_unique<parts>()) {
    parts& p = *parts_;
    if (p.backend == nullptr) return;
    p.context = ggml_init({.mem_size = 16 * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false),
                           .mem_buffer = nullptr,
                           .no_alloc = true});
    const auto d = static_cast<std::int64_t>(dim), n = static_cast<std::int64_t>(tokens);
    const std::int64_t of_q[] = {d, 1, static_cast<std::int64_t>(group), 1}, of_rows[] = {d, n, 1, 1};
    ggml_tensor* tq = ggml_new_tensor(p.context, GGML_TYPE_F32, 4, of_q);
    ggml_tensor* tk = ggml_new_tensor(p.context, type_of(type), 4, of_rows);
    ggml_tensor* tv = ggml_new_tensor(p.context, type_of(type), 4, of_rows);
    ggml_tensor* out =
        ggml_flash_attn_ext(p.context, tq, tk, tv, nullptr, 1.0F / std::sqrt(static_cast<float>(dim)), 0, 0);
    p.graph = ggml_new_graph_custom(p.context, 8, false);
    ggml_build_forward_expand(p.graph, out);
    if (!ggml_backend_supports_op(p.backend, out)) return;
    p.buffer = ggml_backend_alloc_ctx_tensors(p.context, p.backend);
    if (p.buffer == nullptr) return;
    ggml_backend_tensor_set(tq, q, 0, ggml_nbytes(tq));
    const auto fill = [&](ggml_tensor* to, const void* from) {
        if (type != rows::q8) return ggml_backend_tensor_set(to, from, 0, ggml_nbytes(to));
        std::vector<std::byte> codes(ggml_nbytes(to));
        ggml_quantize_chunk(GGML_TYPE_Q8_0, static_cast<const float*>(from), codes.data(), 0, n, d, nullptr);
        ggml_backend_tensor_set(to, codes.data(), 0, codes.size());
    };
    fill(tk, keys);
    fill(tv, values);
    p.out = out;
}

ggml_attention::~ggml_attention() = default;

bool ggml_attention::valid() const {
    return parts_->out != nullptr;
}

void ggml_attention::run() {
    ggml_backend_graph_compute(parts_->backend, parts_->graph);
}

std::vector<float> ggml_attention::result() const {
    std::vector<float> out(ggml_nbytes(parts_->out) / sizeof(float));
    ggml_backend_tensor_get(parts_->out, out.data(), 0, ggml_nbytes(parts_->out));
    return out;
}

} // namespace kernels
