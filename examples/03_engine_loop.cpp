// The loop of an engine: four layers of grouped queries, two conversations, two threads. Prompts come in chunks, then
// tokens, then a further turn; every output is compared with dense attention.
//
// Features: forward() on batches, shards that divide KV heads, shards that divide sequences, last_chunk, further turns,
// least_memory(), stats. Prints errors against dense attention: next to none while everything is attended, small with
// a budget of a third.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include <array>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

constexpr kvtl::shape model{.layers = 4, .query_heads = 8, .kv_heads = 4, .head_dim = 64};
using cache_t = kvtl::dynakv;
constexpr std::size_t q_row = std::size_t{8} * 64, k_row = std::size_t{4} * 64, group = 2;
constexpr std::size_t conversations = 2;
constexpr unsigned threads = 2;

/// What comes: tokens of each conversation, layer by layer, as one call.
struct phase {
    std::uint32_t first, tokens;
    kvtl::part_kind kind;
};

// A prompt in three chunks, 40 tokens, a further turn of 48, 20 tokens more.
std::vector<phase> conversation() {
    std::vector<phase> all;
    const auto add = [&](std::uint32_t tokens, kvtl::part_kind kind) {
        all.push_back({all.empty() ? 0 : all.back().first + all.back().tokens, tokens, kind});
    };
    add(160, kvtl::part_kind::prompt);
    add(160, kvtl::part_kind::prompt);
    add(80, kvtl::part_kind::last_of_prompt);
    for (int i = 0; i < 40; ++i) add(1, kvtl::part_kind::decode);
    add(48, kvtl::part_kind::last_of_prompt);
    for (int i = 0; i < 20; ++i) add(1, kvtl::part_kind::decode);
    return all;
}

/// Numbers that 16 bits hold: what is stored is then what was handed over.
float as_stored(float x) {
    return kvtl::to_float(kvtl::from_float<kvtl::f16>(x));
}

/// Stands for the model: topics come, and come back, and a query looks for its own topic.
struct made_up_text {
    std::size_t tokens = 0;
    std::array<std::vector<float>, model.layers> q, k, v; // (T, HQ, D), (T, H, D), (T, H, D)

    made_up_text(std::size_t n, unsigned seed) : tokens(n) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        constexpr std::size_t topics = 16;
        std::vector<std::size_t> topic(n);
        for (std::size_t t = 1; t < n; ++t) topic[t] = random() % 12 == 0 ? random() % topics : topic[t - 1];
        for (std::size_t l = 0; l < model.layers; ++l) {
            std::vector<float> centre(topics * k_row);
            for (float& x : centre) x = normal(random);
            q[l].resize(n * q_row), k[l].resize(n * k_row), v[l].resize(n * k_row);
            for (std::size_t t = 0; t < n; ++t) {
                const float* about = &centre[topic[t] * k_row];
                for (std::size_t i = 0; i < k_row; ++i) {
                    k[l][t * k_row + i] = as_stored(about[i] + 0.5F * normal(random));
                    v[l][t * k_row + i] = as_stored(about[i] + 0.5F * normal(random));
                }
                for (std::size_t h = 0; h < model.query_heads; ++h)
                    for (std::size_t d = 0; d < model.head_dim; ++d)
                        q[l][t * q_row + h * model.head_dim + d] =
                            0.8F * about[h / group * model.head_dim + d] + 0.3F * normal(random);
            }
        }
    }

    /// softmax(q k / sqrt(D)) v of one token and query head over all tokens up to it.
    [[nodiscard]] std::vector<double> dense(std::size_t l, std::size_t t, std::size_t head) const {
        constexpr std::size_t dim = model.head_dim;
        const float* query = &q[l][t * q_row + head * dim];
        std::vector<double> out(dim);
        double sum = 0;
        for (std::size_t i = 0; i <= t; ++i) {
            const std::size_t at = i * k_row + head / group * dim;
            const double weight =
                std::exp(std::inner_product(query, query + dim, &k[l][at], 0.0) / std::sqrt(dim));
            sum += weight;
            for (std::size_t d = 0; d < dim; ++d) out[d] += weight * static_cast<double>(v[l][at + d]);
        }
        for (double& x : out) x /= sum;
        return out;
    }
};

[[noreturn]] void fail(const char* why) {
    std::fprintf(stderr, "%s\n", why);
    std::quick_exit(1); // whatever the other threads are doing
}
void require(const kvtl::status& s) {
    if (!s) fail(s.what());
}

using outputs = std::array<std::array<std::vector<float>, model.layers>, conversations>; // (T, HQ, D) each

/// Threads share the heads of every sequence. All of them are in a layer at the same time, and it is only complete when
/// all of them have left it: this is how an engine that computes one batch divides its attention.
void by_heads(cache_t& cache, const std::vector<made_up_text>& text, outputs& result) {
    std::vector<kvtl::sequence_id> seq;
    for (std::size_t s = 0; s < conversations; ++s) seq.push_back(*cache.begin());
    std::vector<float> q, k, v, out; // of the batch: the tokens of one conversation behind those of the other
    std::barrier in_step(threads);
    const auto work = [&](unsigned me) {
        for (const phase& p : conversation())
            for (std::size_t l = 0; l < model.layers; ++l) {
                if (me == 0) { // stands for the projections
                    q.clear(), k.clear(), v.clear();
                    const auto append = [&p](std::vector<float>& to, const std::vector<float>& from,
                                             std::size_t row) {
                        const auto at = from.begin() + static_cast<std::ptrdiff_t>(p.first * row);
                        to.insert(to.end(), at, at + static_cast<std::ptrdiff_t>(p.tokens * row));
                    };
                    for (const auto& t : text)
                        append(q, t.q[l], q_row), append(k, t.k[l], k_row), append(v, t.v[l], k_row);
                    out.assign(q.size(), 0.0F);
                }
                in_step.arrive_and_wait();
                const std::array parts{kvtl::batch_part{seq[0], p.tokens, p.kind},
                                       kvtl::batch_part{seq[1], p.tokens, p.kind}};
                require(cache.shard(me).forward(parts, l, {.q = q, .k = k, .v = v}, out));
                in_step.arrive_and_wait();
                if (me == 0) { // stands for what follows attention
                    const auto half = out.begin() + static_cast<std::ptrdiff_t>(out.size() / 2);
                    result[0][l].insert(result[0][l].end(), out.begin(), half);
                    result[1][l].insert(result[1][l].end(), half, out.end());
                }
            }
    };
    std::thread other(work, 1U);
    work(0);
    other.join();
}

/// Each thread has conversations of its own and waits for nobody: the server's way.
void by_sequences(cache_t& cache, const std::vector<made_up_text>& text, outputs& result) {
    const auto work = [&](std::size_t mine, kvtl::sequence_id seq) {
        const auto shard = cache.shard(cache.shard_of(seq));
        for (const phase& p : conversation())
            for (std::size_t l = 0; l < model.layers; ++l) {
                const auto rows = [&p](const std::vector<float>& x, std::size_t row) {
                    return std::span(x).subspan(p.first * row, p.tokens * row);
                };
                const kvtl::layer_input in{.q = rows(text[mine].q[l], q_row),
                                           .k = rows(text[mine].k[l], k_row),
                                           .v = rows(text[mine].v[l], k_row),
                                           .last_chunk = p.kind != kvtl::part_kind::prompt};
                std::vector<float> out(p.tokens * q_row);
                require(p.kind == kvtl::part_kind::decode ? shard.attend(seq, l, in, out)
                                                          : shard.prefill(seq, l, in, out));
                result[mine][l].insert(result[mine][l].end(), out.begin(), out.end());
            }
    };
    const auto first = cache.begin(), second = cache.begin();
    std::thread other(work, std::size_t{1}, *second);
    work(0, *first);
    other.join();
}

/// Mean of |o - o_dense| / |o_dense| over decoded tokens, layers and heads, and the largest.
std::pair<double, double> error_of(const std::vector<made_up_text>& text, const outputs& result) {
    double sum = 0, most = 0;
    std::size_t n = 0;
    for (const phase& p : conversation()) {
        if (p.kind != kvtl::part_kind::decode) continue;
        for (std::size_t s = 0; s < conversations; ++s)
            for (std::size_t l = 0; l < model.layers; ++l)
                for (std::size_t h = 0; h < model.query_heads; ++h, ++n) {
                    const auto exact = text[s].dense(l, p.first, h);
                    double off = 0, length = 0;
                    for (std::size_t d = 0; d < model.head_dim; ++d) {
                        const double x = result[s][l][p.first * q_row + h * model.head_dim + d];
                        off += (x - exact[d]) * (x - exact[d]), length += exact[d] * exact[d];
                    }
                    sum += std::sqrt(off / length), most = std::max(most, std::sqrt(off / length));
                }
    }
    return {sum / static_cast<double>(n), most};
}

outputs run(const std::vector<made_up_text>& text, std::size_t attend_tokens, kvtl::division divide) {
    cache_t::config c{.shape = model,
                      .max_tokens = text[0].tokens,
                      .max_sequences = conversations,
                      .attend_tokens = attend_tokens,
                      .shards = threads,
                      .shard_by = divide,
                      .io = {.path = "03_engine_loop.kv"}};
    const auto least = cache_t::least_memory(c);
    if (!least) fail(least.error().message.c_str());
    c.memory_bytes = *least + *least / 4; // what it needs, and some to keep what is asked for again
    auto opened = cache_t::open(c);
    if (!opened) fail(opened.error().message.c_str());
    outputs result;
    divide == kvtl::division::heads ? by_heads(*opened, text, result) : by_sequences(*opened, text, result);
    const auto s = opened->stats();
    const auto [mean, most] = error_of(text, result);
    std::printf("%-9s attends %3zu of %zu: error %.6f, at most %.6f; %.2f of %.2f MiB held, hit rate %.2f\n",
                divide == kvtl::division::heads ? "heads" : "sequences",
                std::min(attend_tokens, text[0].tokens), text[0].tokens, mean, most,
                static_cast<double>(s.resident_bytes_peak) / (1 << 20),
                static_cast<double>(s.bytes_by_part.raw_cache) / (1 << 20), s.hit_rate());
    return result;
}

int main() {
    const std::size_t tokens = conversation().back().first + 1;
    const std::vector<made_up_text> text{{tokens, 1}, {tokens, 2}};
    const outputs everything = run(text, tokens, kvtl::division::heads);
    const outputs the_same = run(text, tokens, kvtl::division::sequences);
    const outputs a_third = run(text, tokens / 3, kvtl::division::heads);
    const bool exact = error_of(text, everything).second < 1e-4, same_bits = everything == the_same,
               close = error_of(text, a_third).first < 0.2;
    std::printf("%s, %s, %s\n", exact ? "exact" : "NOT EXACT",
                same_bits ? "the same bits whoever computes them" : "DIFFERENT BITS",
                close ? "close" : "NOT CLOSE");
    return exact && same_bits && close ? 0 : 1;
}
