// Attachments with a preset by name: apart, because all compiled presets come with it.
// SPDX-License-Identifier: MIT
#include "kvtl_llama.hpp"

#include <algorithm>
#include <utility>

namespace kvtl_llama {

kvtl::result<attachment> attachment::by_name(llama_context_params& params, const llama_model* model,
                                             const settings& s, engine::cache_options o) {
    return attach(params, model, s,
                  [options = std::move(o),
                   s](const model_facts& f) mutable -> kvtl::result<std::unique_ptr<engine::kv_cache>> {
                      options.shape = f.shape;
                      options.max_tokens = s.max_tokens != 0 ? s.max_tokens : f.trained_context;
                      options.max_sequences = s.max_sequences;
                      if (options.shards == 0) options.shards = std::min(s.threads, f.shape.kv_heads);
                      options.rope_frequencies = f.rope_frequencies;
                      options.rope_neighbours = f.rope_neighbours;
                      options.supplied = s.supplied;
                      options.rope_unknown = f.rope_frequencies.empty();
                      options.attention = {.scale = f.scale, .softcap = f.softcap, .windows = f.windows};
                      return engine::open_cache(options);
                  });
}

} // namespace kvtl_llama
