// SPDX-License-Identifier: MIT
#include "lookahead.hpp"

#include "calibrate/listening_cache.hpp"
#include "transformer.hpp"

#include <cmath>

namespace engine {

namespace {

/// Turns every head of rotated queries back by so many positions.
void turn_back(const model& m, std::vector<float>& queries, std::size_t positions) {
    const auto frequencies = m.rope_frequencies();
    const bool neighbours = m.hyper().pairing == rope_pairing::neighbours;
    const std::size_t step = neighbours ? 2 : 1, apart = neighbours ? 1 : frequencies.size();
    for (std::size_t head = 0; head < queries.size(); head += m.hyper().shape.head_dim)
        for (std::size_t i = 0; i < frequencies.size(); ++i) {
            const double angle = -static_cast<double>(positions) * frequencies[i];
            const auto cosine = static_cast<float>(std::cos(angle)),
                       sine = static_cast<float>(std::sin(angle));
            float &a = queries[head + i * step], &b = queries[head + i * step + apart];
            const float turned = a * cosine - b * sine;
            b = a * sine + b * cosine;
            a = turned;
        }
}

} // namespace

std::vector<token_id> continuation(const tokenizer& words, std::string_view text) {
    std::vector<token_id> tokens = words.encode(text);
    const std::size_t begin = words.encode("").size();
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    return tokens;
}

std::vector<std::vector<float>> probe_queries(const model& m, thread_pool& pool,
                                              std::span<const token_id> prompt,
                                              std::span<const token_id> probe, std::size_t earlier) {
    const kvtl::shape& shape = m.hyper().shape;
    const std::size_t floats = probe.size() * shape.query_heads * shape.head_dim;
    std::vector<token_id> tokens(prompt.begin(), prompt.end());
    tokens.insert(tokens.end(), probe.begin(), probe.end());
    std::vector<std::vector<float>> queries(shape.layers);
    listening_cache ear(shape, false, [&](std::uint32_t layer, const kvtl::layer_input& in) {
        const auto last = in.q.floats().last(floats);
        queries[layer].assign(last.begin(), last.end());
        if (earlier != 0) turn_back(m, queries[layer], earlier);
        return kvtl::status();
    });
    transformer run(m, ear, pool, tokens.size());
    run.begin();
    static_cast<void>(run.prefill(tokens));
    return queries;
}

} // namespace engine
