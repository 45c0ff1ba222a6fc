// Attachments with a preset by name: apart, because all compiled presets come with it.
// SPDX-License-Identifier: MIT
#include "kvtl_llama.hpp"

#include <algorithm>
#include <utility>

namespace kvtl_llama {

namespace {

engine::cache_options filled_in(engine::cache_options o, const model_facts& f, const settings& s) {
    o.shape = f.shape;
    o.max_tokens = s.max_tokens != 0 ? s.max_tokens : f.trained_context;
    o.max_sequences = s.max_sequences;
    if (o.shards == 0) o.shards = std::min(s.threads, f.shape.kv_heads);
    o.rope_frequencies = f.rope_frequencies;
    o.rope_neighbours = f.rope_neighbours;
    o.rope_unknown = f.rope_frequencies.empty();
    o.engine_inputs = s.engine_inputs;
    o.attention = {.scale = f.scale, .softcap = f.softcap, .windows = f.windows};
    return o;
}

} // namespace

kvtl::result<std::unique_ptr<engine::kv_cache>> open_by_name(engine::cache_options o, const model_facts& f,
                                                             const settings& s) {
    return engine::open_cache(filled_in(std::move(o), f, s));
}

kvtl::result<engine::memory_use> least_by_name(engine::cache_options o, const model_facts& f,
                                               const settings& s) {
    return engine::least_memory(filled_in(std::move(o), f, s));
}

kvtl::result<attachment> attachment::by_name(llama_context_params& params, const llama_model* model,
                                             const settings& s, engine::cache_options o) {
    return attach(params, model, s,
                  [options = std::move(o), s](const model_facts& f) { return open_by_name(options, f, s); });
}

} // namespace kvtl_llama
