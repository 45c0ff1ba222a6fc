// SPDX-License-Identifier: MIT
#include "lookahead.hpp"

#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>

#include "calibrate/listening_cache.hpp"
#include "fingerprint.hpp"
#include "input_file.hpp"
#include "layer_math.hpp"
#include "transformer.hpp"

#include <cstring>
#include <utility>

namespace engine {

namespace {

/// Turns every head of queries on by so many positions, or back.
void turn(const model& m, std::span<float> queries, double positions) {
    const auto frequencies = m.rope_frequencies();
    const bool neighbours = m.hyper().pairing == rope_pairing::neighbours;
    std::vector<float> cosine(frequencies.size()), sine(frequencies.size());
    rope_angles(frequencies, positions, cosine.data(), sine.data());
    for (std::size_t head = 0; head < queries.size(); head += m.hyper().shape.head_dim)
        rotate_head(queries.data() + head, cosine.data(), sine.data(), frequencies.size(), neighbours);
}

/// The head of a file of trained lookahead modules, of 40 bytes.
struct lookahead_header {
    static constexpr std::uint64_t expected_magic = 0x4B4F4F4C4C54564BU; // "KVTLLOOK"
    static constexpr std::uint32_t expected_version = 1;
    std::uint64_t magic = 0, model = 0;
    std::uint32_t version = 0, layers = 0, width = 0, query_floats = 0, vectors = 0, rank = 0;
};

} // namespace

std::vector<token_id> continuation(const tokenizer& words, std::string_view text) {
    std::vector<token_id> tokens = words.encode(text);
    const std::size_t begin = words.encode("").size();
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    return tokens;
}

std::vector<std::vector<float>> probe_queries(const model& m, thread_pool& pool,
                                              std::span<const token_id> prompt,
                                              std::span<const token_id> probe, std::size_t earlier,
                                              std::vector<std::uint32_t> owner) {
    const kvtl::shape& shape = m.hyper().shape;
    const std::size_t floats = probe.size() * shape.query_heads * shape.head_dim;
    std::vector<token_id> tokens(prompt.begin(), prompt.end());
    tokens.insert(tokens.end(), probe.begin(), probe.end());
    std::vector<std::vector<float>> queries(shape.layers);
    listening_cache ear(shape, false, [&](std::uint32_t layer, const kvtl::layer_input& in) {
        const auto last = in.q.floats().last(floats);
        queries[layer].assign(last.begin(), last.end());
        if (earlier != 0) turn(m, queries[layer], -static_cast<double>(earlier));
        return kvtl::status();
    });
    transformer run(m, ear, pool, tokens.size());
    run.share_layers(std::move(owner));
    run.begin();
    static_cast<void>(run.prefill(tokens));
    return queries;
}

kvtl::result<trained_lookahead> read_lookahead(const std::string& path, const model& m) {
    const auto fail = [&](const std::string& why) {
        return kvtl::error(kvtl::errc::invalid_argument, "--lookahead: " + path + " " + why);
    };
    const auto bytes = read_input(path, most_gates_bytes);
    if (!bytes) return kvtl::error(bytes.error().code, "--lookahead: " + bytes.error().message);
    lookahead_header h;
    if (bytes->size() < sizeof h) return fail("has no header; valid: a file of trained lookahead modules");
    std::memcpy(&h, bytes->data(), sizeof h);
    if (h.magic != lookahead_header::expected_magic || h.version != lookahead_header::expected_version)
        return fail("is no file of trained lookahead modules of version 1");
    const auto& hyper = m.hyper();
    const std::size_t query_floats = std::size_t{hyper.shape.query_heads} * hyper.shape.head_dim;
    if (h.model != fingerprint_of(m) || h.layers != hyper.shape.layers || h.width != hyper.width ||
        h.query_floats != query_floats)
        return fail("was trained for another model");
    if (h.vectors == 0 || h.vectors > 4096 || h.rank > 4096)
        return fail("has " + std::to_string(h.vectors) + " vectors of rank " + std::to_string(h.rank) +
                    "; valid: 1 to 4096 vectors, rank up to 4096");
    const std::size_t rows = h.vectors * hyper.width, down = h.rank * hyper.width, up = h.rank * query_floats;
    const std::size_t whole = sizeof h + (rows + h.layers * (down + up)) * sizeof(float);
    if (bytes->size() != whole)
        return fail("has " + std::to_string(bytes->size()) + " bytes; valid: " + std::to_string(whole));
    trained_lookahead ahead{h.vectors, h.rank, {}, {}, {}};
    const char* at = bytes->data() + sizeof h;
    const auto take = [&](std::vector<float>& to, std::size_t floats) {
        to.resize(to.size() + floats);
        std::memcpy(to.data() + to.size() - floats, at, floats * sizeof(float));
        at += floats * sizeof(float);
    };
    take(ahead.rows, rows);
    for (std::uint32_t l = 0; l < h.layers; ++l) {
        take(ahead.down, down);
        take(ahead.up, up);
    }
    for (const auto* numbers : {&ahead.rows, &ahead.down, &ahead.up})
        if (!kvtl::simd::all_finite(numbers->data(), numbers->size()))
            return fail("holds a number that is not finite");
    return ahead;
}

std::vector<std::vector<float>> probe_queries(const model& m, thread_pool& pool,
                                              std::span<const token_id> prompt,
                                              const trained_lookahead& ahead,
                                              std::vector<std::uint32_t> owner) {
    const std::size_t width = m.hyper().width, n = ahead.vectors, rank = ahead.rank;
    const std::size_t q_row = std::size_t{m.hyper().shape.query_heads} * m.hyper().shape.head_dim;
    std::vector<std::vector<float>> queries(m.hyper().shape.layers);
    listening_cache ear(m.hyper().shape, false, [&](std::uint32_t layer, const kvtl::layer_input& in) {
        const auto last = in.q.floats().last(n * q_row);
        queries[layer].assign(last.begin(), last.end());
        const auto x = in.x.last(n * width);
        const float* const down = ahead.down.data() + layer * rank * width;
        const float* const up = ahead.up.data() + layer * q_row * rank;
        std::vector<float> low(rank), more(q_row);
        for (std::size_t t = 0; t < n; ++t) {
            for (std::size_t r = 0; r < rank; ++r)
                low[r] = kvtl::simd::dot(down + r * width, x.data() + t * width, width);
            for (std::size_t i = 0; i < q_row; ++i)
                more[i] = kvtl::simd::dot(up + i * rank, low.data(), rank);
            turn(m, more, static_cast<double>(prompt.size() + t));
            for (std::size_t i = 0; i < q_row; ++i) queries[layer][t * q_row + i] += more[i];
        }
        return kvtl::status();
    });
    transformer run(m, ear, pool, prompt.size() + n);
    run.share_layers(std::move(owner));
    run.begin();
    run.prefill(prompt, ahead.rows);
    return queries;
}

} // namespace engine
