// SPDX-License-Identifier: MIT
#include "lookahead.hpp"

#include "calibrate/listening_cache.hpp"
#include "transformer.hpp"

namespace engine {

std::vector<token_id> continuation(const tokenizer& words, std::string_view text) {
    std::vector<token_id> tokens = words.encode(text);
    const std::size_t begin = words.encode("").size();
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    return tokens;
}

std::vector<std::vector<float>> probe_queries(const model& m, thread_pool& pool,
                                              std::span<const token_id> prompt,
                                              std::span<const token_id> probe) {
    const kvtl::shape& shape = m.hyper().shape;
    const std::size_t floats = probe.size() * shape.query_heads * shape.head_dim;
    std::vector<token_id> tokens(prompt.begin(), prompt.end());
    tokens.insert(tokens.end(), probe.begin(), probe.end());
    std::vector<std::vector<float>> queries(shape.layers);
    listening_cache ear(shape, false, [&](std::uint32_t layer, const kvtl::layer_input& in) {
        const auto last = in.q.last(floats);
        queries[layer].assign(last.begin(), last.end());
    });
    transformer run(m, ear, pool, tokens.size());
    run.begin();
    static_cast<void>(run.prefill(tokens));
    return queries;
}

} // namespace engine
