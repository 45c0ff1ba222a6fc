// SPDX-License-Identifier: MIT
#include "compare.hpp"

#include <unistd.h>

namespace llama_bench {

std::unique_ptr<llama_run::session> open(const llama_run::loaded_model& model, const options& o,
                                         const std::string& policy, std::size_t max_tokens, ggml_type cells) {
    llama_run::session_options s;
    s.plain = policy == plain;
    s.cell_type = cells;
    s.threads = o.threads;
    s.batch = o.batch;
    s.max_tokens = max_tokens;
    s.cache.policy = policy;
    s.cache.memory_bytes = static_cast<std::size_t>(o.memory_mib * (1 << 20));
    s.cache.attend_tokens = o.attend_tokens != 0 ? o.attend_tokens : max_tokens;
    s.cache.shards = std::min(o.threads, model.kv_heads());
    s.cache.io = o.io;
    s.cache.path = o.folder + "/kvtl-llama-bench-" + std::to_string(::getpid()) + "-" + policy + ".kv";
    s.cache.settings = o.settings;
    return std::make_unique<llama_run::session>(model, s, "kvtl-llama-bench");
}

} // namespace llama_bench
