// llama.cpp's processor-specific parts, where they are libraries of their own that have to be loaded.
// SPDX-License-Identifier: MIT
#pragma once

#include <ggml-backend.h>
#include <llama.h>

#include <cstdio>

namespace kvtl_llama {

/// Once per process, before a model is loaded. Of llama.cpp's messages only errors remain, on standard error.
inline void load_backends(bool quiet = true) {
    if (quiet)
        llama_log_set(
            [](ggml_log_level level, const char* text, void*) {
                if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
            },
            nullptr);
    constexpr const char* folder = KVTL_LLAMA_BACKENDS;
    if (*folder != '\0')
        ggml_backend_load_all_from_path(folder);
    else
        ggml_backend_load_all();
    llama_backend_init();
}

} // namespace kvtl_llama
