// SPDX-License-Identifier: MIT
#include "transformer.hpp"

#include <kvtl/simd/arch.hpp>

#include "error.hpp"
#include "layer_math.hpp"
#include "lookahead.hpp"
#include "matmul.hpp"

#include <algorithm>
#include <cmath>

namespace engine {

namespace {

using arch = kvtl::simd::default_arch;
using floats = kvtl::simd::floats<arch>;
constexpr std::size_t lanes = kvtl::simd::floats_per_register<arch>;

/// rms_norm for every row of (T, rows_per_token, weight.size()).
void rms_norm_rows(thread_pool& pool, const float* x, std::span<const float> weight, float epsilon,
                   std::size_t tokens, std::size_t rows_per_token, float* y) {
    const std::size_t n = weight.size();
    pool.parallel(tokens, [&](std::size_t t) noexcept {
        for (std::size_t r = t * rows_per_token; r < (t + 1) * rows_per_token; ++r)
            rms_norm(x + r * n, weight, epsilon, y + r * n);
    });
}

/// gate = silu(gate) * up, with silu(g) = g / (1 + e^-g).
void gated(float* gate, const float* up, std::size_t n) noexcept {
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const floats g = kvtl::simd::load<arch>(gate + i);
        const floats silu = g / (floats(1.0F) + kvtl::simd::exp<arch>(-g));
        kvtl::simd::store<arch>(gate + i, silu * kvtl::simd::load<arch>(up + i));
    }
    for (; i < n; ++i) gate[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

} // namespace

void embedding_of(const model& m, token_id token, std::span<float> row) {
    const tensor& table = m.embedding();
    const std::size_t width = m.hyper().width;
    if (token >= table.rows) throw run_failure("token " + std::to_string(token) + " is not in the model");
    expand(table.type, table.data + token * *bytes_of(table.type, width), 0, width, row.data());
}

transformer::transformer(const model& m, kv_cache& cache, thread_pool& pool, std::size_t chunk)
    : model_(m), cache_(cache), pool_(pool), wants_(cache.wants()), chunk_(std::max<std::size_t>(chunk, 1)),
      per_shard_(cache.shards()) {
    logits_.resize(m.hyper().vocabulary);
}

void transformer::require(const kvtl::status& s) const {
    if (!s) throw run_failure(s.what());
}

void transformer::share_layers(std::vector<std::uint32_t> owner) {
    owner_ = std::move(owner);
    entries_.resize(std::max<std::size_t>(owner_.size(), 1));
}

void transformer::begin() {
    if (begun_) require(cache_.end(sequence_));
    begun_ = false;
    const auto sequence = cache_.begin();
    if (!sequence) throw run_failure(sequence.error().message);
    sequence_ = *sequence;
    begun_ = prompt_open_ = true;
    position_ = 0;
}

void transformer::go_on_in(kvtl::sequence_id sequence, std::size_t tokens) {
    if (begun_) require(cache_.end(sequence_));
    sequence_ = sequence;
    begun_ = true;
    position_ = tokens;
    prompt_open_ = tokens == 0;
}

void transformer::rewind(std::size_t n) {
    require(cache_.rewind(sequence_, n));
    position_ -= n;
    prompt_open_ = position_ == 0;
}

std::span<const float> transformer::prefill(std::span<const token_id> tokens,
                                            const std::function<void(std::size_t)>& progress, bool ends) {
    std::size_t done = 0;
    std::size_t n = 0;
    const bool by_chunk = wants_.by_chunk && prompt_open_;
    if (by_chunk && (ahead_ != nullptr || probe_.empty() || probe_.size() > most_probe_tokens))
        throw run_failure("the cache evicts after each chunk; valid: a probe of 1 to " +
                          std::to_string(most_probe_tokens) + " tokens, not " +
                          (ahead_ != nullptr ? "a trained lookahead" : std::to_string(probe_.size())));
    const bool replays = wants_.replays && prompt_open_;
    if (replays) {
        if (position_ == 0) prompt_.clear();
        prompt_.insert(prompt_.end(), tokens.begin(), tokens.end());
    }
    if (position_ == 0 && !by_chunk && !replays && contains(wants_.inputs, kvtl::engine_input::probe)) {
        if (ahead_ != nullptr)
            probe_queries_ = probe_queries(model_, pool_, tokens, *ahead_, owner_);
        else if (!probe_.empty())
            probe_queries_ = probe_queries(model_, pool_, tokens, probe_, probe_earlier_, owner_);
    }
    while (done < tokens.size()) {
        n = std::min(chunk_, tokens.size() - done);
        embed(tokens.subspan(done, n),
              by_chunk ? std::span<const token_id>(probe_) : std::span<const token_id>());
        const std::size_t passing = by_chunk ? probe_.size() : 0;
        run_layers(phase::prompt, n + passing, ends && !replays && done + n == tokens.size(), passing);
        done += n;
        if (progress) progress(done);
    }
    prompt_open_ = prompt_open_ && !ends;
    probe_queries_.clear();
    const auto logits = logits_of_last(n);
    if (replays && ends) replay_prompt();
    return logits;
}

void transformer::replay_prompt() {
    constexpr std::size_t joint = 8; // tokens of the part before
    const std::span<const token_id> all = prompt_;
    std::vector<token_id> part;
    for (std::size_t done = 0; done < all.size();) {
        const std::size_t n = std::min(replay_tokens, all.size() - done);
        part = done == 0 ? replay_first_ : replay_later_;
        const std::size_t from = done - std::min(done, joint);
        const auto some = all.subspan(from, done + n - from);
        part.insert(part.end(), some.begin(), some.end());
        if (part.size() > most_replayed_tokens)
            throw run_failure("a replayed part has " + std::to_string(part.size()) +
                              " tokens with its instruction; valid: up to " +
                              std::to_string(most_replayed_tokens));
        done += n;
        embed(part, {});
        run_layers(phase::prompt, part.size(), done == all.size(), part.size());
    }
}

void transformer::prefill(std::span<const token_id> tokens, std::span<const float> rows) {
    embed(tokens, {});
    x_.insert(x_.end(), rows.begin(), rows.end());
    run_layers(phase::prompt, tokens.size() + rows.size() / model_.hyper().width, true);
}

std::span<const float> transformer::step(token_id token) {
    embed({&token, 1}, {});
    prompt_open_ = false;
    run_layers(phase::decode, 1, true);
    return logits_of_last(1);
}

void transformer::embed(std::span<const token_id> tokens, std::span<const token_id> behind) {
    const std::size_t width = model_.hyper().width;
    x_.resize((tokens.size() + behind.size()) * width);
    float* row = x_.data();
    for (const auto& some : {tokens, behind})
        for (const token_id token : some) {
            embedding_of(model_, token, {row, width});
            row += width;
        }
}

void transformer::run_layers(phase p, std::size_t tokens, bool last_chunk, std::size_t passing) {
    prepare_rotation(tokens);
    for (std::uint32_t l = 0; l < model_.hyper().shape.layers; ++l) {
        attention(p, l, tokens, last_chunk, passing);
        feed_forward(model_.layer(l), tokens);
    }
    position_ += tokens - passing;
}

void transformer::attention(phase p, std::uint32_t layer, std::size_t tokens, bool last_chunk,
                            std::size_t passing) {
    const auto& hyper = model_.hyper();
    const auto& shape = hyper.shape;
    const auto& w = model_.layer(layer);
    const std::size_t q_size = w.q.rows;
    const std::size_t kv_size = w.k.rows;
    normed_.resize(tokens * hyper.width);
    q_.resize(tokens * q_size);
    entries& own = owner_.empty() ? entries_[0] : entries_[owner_[layer]];
    out_.resize(tokens * q_size);
    sum_.resize(tokens * hyper.width);

    if (wants_.announced && p == phase::decode)
        pool_.parallel(per_shard_.size(), [&](std::size_t shard) noexcept { // a hint
            static_cast<void>(cache_.before_query(sequence_, layer, static_cast<unsigned>(shard)));
        });
    rms_norm_rows(pool_, x_.data(), w.attention_norm, hyper.epsilon, tokens, 1, normed_.data());
    project_queries(w, normed_.data(), tokens, q_.data());
    const bool keeps_pre = contains(wants_.inputs, kvtl::engine_input::k_pre);
    if (owner_.empty() || owner_[layer] == layer) {
        own.k.resize(tokens * kv_size);
        own.v.resize(tokens * kv_size);
        matmul(pool_, w.k, w.k_bias, normed_.data(), tokens, own.k.data());
        matmul(pool_, w.v, w.v_bias, normed_.data(), tokens, own.v.data());
        if (!w.k_norm.empty())
            rms_norm_rows(pool_, own.k.data(), w.k_norm, hyper.epsilon, tokens, shape.kv_heads, own.k.data());
        if (keeps_pre) own.k_pre = own.k;
        rotate(own.k.data(), shape.kv_heads, tokens);
    }
    kvtl::layer_input in;
    if (keeps_pre) in.k_pre = own.k_pre;
    if (contains(wants_.inputs, kvtl::engine_input::x)) in.x = normed_;

    // A policy that reads ahead is told early what the next layer will probably look for.
    if (wants_.prefetch && p == phase::decode && layer + 1 < shape.layers) guess_next_query(layer + 1);

    in.q = q_;
    in.k = own.k;
    in.v = own.v;
    if (last_chunk && !probe_queries_.empty()) in.probe = probe_queries_[layer];
    if (passing != 0) {
        in.probe = std::span(q_).last(passing * q_size);
        in.passing = static_cast<std::uint32_t>(passing);
    }
    in.last_chunk = last_chunk;
    pool_.parallel(per_shard_.size(), [&](std::size_t shard) noexcept {
        const auto s = static_cast<unsigned>(shard);
        per_shard_[shard] = p == phase::prompt ? cache_.prefill(sequence_, layer, in, out_, s)
                                               : cache_.attend(sequence_, layer, in, out_, s);
    });
    for (const auto& status : per_shard_) require(status);

    matmul(pool_, w.output, w.output_bias, out_.data(), tokens, sum_.data());
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] += sum_[i];
}

void transformer::feed_forward(const layer_weights& w, std::size_t tokens) {
    const auto& hyper = model_.hyper();
    const std::size_t hidden = hyper.hidden;
    gate_.resize(tokens * hidden);
    up_.resize(tokens * hidden);
    rms_norm_rows(pool_, x_.data(), w.hidden_norm, hyper.epsilon, tokens, 1, normed_.data());
    matmul(pool_, w.gate, {}, normed_.data(), tokens, gate_.data());
    matmul(pool_, w.up, {}, normed_.data(), tokens, up_.data());
    pool_.parallel(tokens, [&](std::size_t t) noexcept {
        gated(gate_.data() + t * hidden, up_.data() + t * hidden, hidden);
    });
    matmul(pool_, w.down, {}, gate_.data(), tokens, sum_.data());
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] += sum_[i];
}

/// The residual stream changes little from layer to layer: this layer's input through the next layer's query
/// weights is close to the query that the next layer will really have.
void transformer::guess_next_query(std::uint32_t next_layer) {
    const auto& w = model_.layer(next_layer);
    guess_.resize(w.q.rows);
    rms_norm(x_.data(), w.attention_norm, model_.hyper().epsilon, sum_.data());
    project_queries(w, sum_.data(), 1, guess_.data());
    pool_.parallel(per_shard_.size(), [&](std::size_t shard) noexcept {
        // A hint: should it fail, attend() reads what it needs and reports what is wrong.
        static_cast<void>(cache_.prefetch(sequence_, next_layer, guess_, static_cast<unsigned>(shard)));
    });
}

void transformer::project_queries(const layer_weights& w, const float* x, std::size_t tokens, float* q) {
    const auto& hyper = model_.hyper();
    matmul(pool_, w.q, w.q_bias, x, tokens, q);
    if (!w.q_norm.empty())
        rms_norm_rows(pool_, q, w.q_norm, hyper.epsilon, tokens, hyper.shape.query_heads, q);
    rotate(q, hyper.shape.query_heads, tokens);
}

void transformer::prepare_rotation(std::size_t tokens) {
    const auto frequencies = model_.rope_frequencies();
    cosine_.resize(tokens * frequencies.size());
    sine_.resize(cosine_.size());
    for (std::size_t t = 0; t < tokens; ++t)
        rope_angles(frequencies, static_cast<double>(position_ + t), cosine_.data() + t * frequencies.size(),
                    sine_.data() + t * frequencies.size());
}

void transformer::rotate(float* heads, std::size_t heads_per_token, std::size_t tokens) {
    const auto& hyper = model_.hyper();
    const std::size_t pairs = model_.rope_frequencies().size();
    const bool neighbours = hyper.pairing == rope_pairing::neighbours;
    pool_.parallel(tokens, [&](std::size_t t) noexcept {
        for (std::size_t h = 0; h < heads_per_token; ++h)
            rotate_head(heads + (t * heads_per_token + h) * hyper.shape.head_dim, cosine_.data() + t * pairs,
                        sine_.data() + t * pairs, pairs, neighbours);
    });
}

std::span<const float> transformer::logits_of_last(std::size_t tokens) {
    const auto& hyper = model_.hyper();
    rms_norm(x_.data() + (tokens - 1) * hyper.width, model_.final_norm(), hyper.epsilon, normed_.data());
    matmul(pool_, model_.unembedding(), {}, normed_.data(), 1, logits_.data());
    return logits_;
}

} // namespace engine
