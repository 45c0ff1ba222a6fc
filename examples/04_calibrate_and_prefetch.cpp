// Bases of one's own, and reads that come before they are asked for: a low-rank basis is fitted to recorded keys,
// KVSwap scores with it, and while a layer is attended the next one's groups are read for a guess of its query.
//
// Features: calibration_fit (kvtl::calibrate), config.calibration, engine_inputs<.., engine_input::calibration> (which the
// alias kvtl::kvswap implies), prefetch(), statistics of reads. Prints what the basis keeps of the keys, the error against
// dense attention, how many bytes were in memory when they were asked for, and how many were read ahead in vain; all of
// it with and without prefetch.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/fit/calibration_fit.hpp>
#include <kvtl/presets/kvswap.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

constexpr kvtl::shape model{.layers = 4, .query_heads = 4, .kv_heads = 2, .head_dim = 64};
using cache_t = kvtl::kvswap;
constexpr std::size_t q_row = std::size_t{4} * 64, k_row = std::size_t{2} * 64, group = 2, topics = 24;
constexpr std::size_t prompt = 800, steps = 40;
constexpr std::uint32_t rank = 32; // of 128: all heads of a token in 32 numbers

/// Stands for the model: what its keys look like is the same in every text, which is why a basis can be fitted.
struct made_up_model {
    std::array<std::vector<float>, model.layers> centre; // (topics, H, D)

    made_up_model() {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        for (auto& c : centre) {
            c.resize(topics * k_row);
            for (float& x : c) x = normal(random);
        }
    }
};

struct made_up_text {
    std::array<std::vector<float>, model.layers> q, k, v; // (T, HQ, D), (T, H, D), (T, H, D)

    made_up_text(const made_up_model& of, std::size_t tokens, unsigned seed) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        std::vector<std::size_t> topic(tokens);
        for (std::size_t t = 1; t < tokens; ++t)
            topic[t] = random() % 10 == 0 ? random() % topics : topic[t - 1];
        for (std::size_t l = 0; l < model.layers; ++l) {
            for (std::size_t t = 0; t < tokens; ++t) {
                const float* about = &of.centre[l][topic[t] * k_row];
                for (std::size_t i = 0; i < k_row; ++i) {
                    k[l].push_back(about[i] + 0.3F * normal(random));
                    v[l].push_back(about[i] + 0.3F * normal(random));
                }
                for (std::size_t i = 0; i < q_row; ++i) {
                    const std::size_t head = i / model.head_dim / group, d = i % model.head_dim;
                    q[l].push_back(about[head * model.head_dim + d] + 0.3F * normal(random));
                }
            }
        }
    }
    [[nodiscard]] std::span<const float> query(std::size_t l, std::size_t t) const {
        return std::span(q[l]).subspan(t * q_row, q_row);
    }

    /// |out - dense| / |dense| of one token's attention, all heads.
    [[nodiscard]] double error(std::size_t l, std::size_t t, std::span<const float> out) const {
        constexpr std::size_t dim = model.head_dim;
        double off = 0, length = 0;
        for (std::size_t h = 0; h < model.query_heads; ++h) {
            const float* mine = query(l, t).data() + h * dim;
            std::vector<double> exact(dim);
            double sum = 0;
            for (std::size_t i = 0; i <= t; ++i) {
                const std::size_t at = i * k_row + h / group * dim;
                const double weight =
                    std::exp(std::inner_product(mine, mine + dim, &k[l][at], 0.0) / std::sqrt(dim));
                sum += weight;
                for (std::size_t d = 0; d < dim; ++d) exact[d] += weight * static_cast<double>(v[l][at + d]);
            }
            for (std::size_t d = 0; d < dim; ++d) {
                const double x = exact[d] / sum, difference = static_cast<double>(out[h * dim + d]) - x;
                off += difference * difference, length += x * x;
            }
        }
        return std::sqrt(off / length);
    }
};

[[noreturn]] void fail(const char* why) {
    std::fprintf(stderr, "%s\n", why);
    std::quick_exit(1);
}
void require(const kvtl::status& s) {
    if (!s) fail(s.what());
}
template <class T> T require(kvtl::result<T> r) {
    if (!r) fail(r.error().message.c_str());
    return *std::move(r);
}

/// What an engine does with a text that it has recorded: all layers, any number of texts.
double calibrate(const made_up_text& recorded, const char* path) {
    auto fit = require(kvtl::calibration_fit::make(model, {.rank = rank}));
    for (std::uint32_t l = 0; l < model.layers; ++l)
        require(fit.add(l, {.k = recorded.k[l]})); // kvswap reads no more
    const auto bases = require(fit.finish());
    require(bases.write(path, 0x0401)); // a number that stands for the model's weights
    double least = 1;
    for (const auto& layer : bases.energy) least = std::min(least, layer.adapter);
    return least;
}

/// Reads a prompt, decodes; returns what the decode counted, and its mean error.
std::pair<kvtl::statistics, double> run(const made_up_text& text, bool ahead) {
    cache_t::config c{.shape = model,
                      .max_tokens = prompt + steps,
                      .attend_tokens = 128,
                      .time_phases = true,
                      .calibration = "04_calibrate_and_prefetch.cal",
                      .calibration_model = 0x0401, // another model's bases would be refused
                      .index = {.rank = rank},
                      .io = {.path = "04_calibrate_and_prefetch.kv"}};
    // What one layer has chosen and what the next one will are there together: with less, reads ahead drive out what
    // would have been asked for again.
    c.memory_bytes = require(cache_t::least_memory(c)) + (std::size_t{512} << 10);
    cache_t cache = require(cache_t::open(c));
    const auto seq = cache.begin();
    for (std::size_t l = 0; l < model.layers; ++l)
        require(cache.prefill(*seq, l,
                              {.q = std::span(text.q[l]).first(prompt * q_row),
                               .k = std::span(text.k[l]).first(prompt * k_row),
                               .v = std::span(text.v[l]).first(prompt * k_row)},
                              {})); // no output: this engine attends prompts itself

    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> guess(q_row), out(q_row);
    double error = 0;
    for (std::size_t t = prompt; t < prompt + steps; ++t)
        for (std::size_t l = 0; l < model.layers; ++l) {
            if (ahead &&
                l + 1 < model.layers) { // before attend(): the reads fly while this layer is computed
                // The next layer's weights applied to this layer's input give nearly the query that will come.
                const auto query = text.query(l + 1, t);
                for (std::size_t i = 0; i < q_row; ++i) guess[i] = query[i] + 0.1F * normal(random);
                require(cache.prefetch(*seq, l + 1, guess));
            }
            const auto token = [t](const std::vector<float>& x) {
                return std::span(x).subspan(t * k_row, k_row);
            };
            require(cache.attend(*seq, l,
                                 {.q = text.query(l, t), .k = token(text.k[l]), .v = token(text.v[l])}, out));
            error += text.error(l, t, out);
        }
    return {cache.stats(), error / static_cast<double>(steps * model.layers)};
}

int main() {
    const made_up_model weights;
    const double kept = calibrate(made_up_text(weights, 600, 1), "04_calibrate_and_prefetch.cal");
    std::printf("%u directions of %zu keep %.2f of the keys' energy\n", rank, k_row, kept);
    const made_up_text text(weights, prompt + steps, 2); // not the text that the basis was fitted to
    bool good = kept > 0.8;
    for (const bool ahead : {false, true}) {
        const auto [s, error] = run(text, ahead);
        std::printf(
            "%s prefetch: error %.3f, hit rate %.2f, %.1f KiB in %.1f reads per step, waited %.0f us; %llu "
            "of %llu "
            "choices without a guess, %.1f KiB per step in vain\n",
            ahead ? "with   " : "without", error, s.hit_rate(),
            static_cast<double>(s.read_bytes) / 1024 / steps, static_cast<double>(s.decode_reads) / steps,
            static_cast<double>(s.phase_ns.fetch_wait) / 1e3 / steps,
            static_cast<unsigned long long>(s.unpredicted_choices), static_cast<unsigned long long>(s.steps),
            static_cast<double>(s.wasted_bytes) / 1024 / steps);
        // The first layers (schedule.true_layers) choose with their own query in any case.
        const std::size_t own = kvtl::next_layer::config{}.true_layers;
        good = good && error < 0.1 && s.unpredicted_choices == steps * (ahead ? own : model.layers);
    }
    return good ? 0 : 1;
}
