// The forward pass: tokens in, logits of the last one out. Every key and value goes to a kvtl cache and
// nowhere else.
//
// This is the file to read for how an engine uses kvtl: per layer it computes q, k and v, rotates q and k,
// hands all three over and gets the attention's output back. Prompts go layer by layer in chunks of T tokens,
// so that weights are read once per chunk; generation is the same with T = 1 and `attend` instead of
// `prefill`. The cache's shards are called concurrently from the engine's threads.
//
// Shapes: x (T, M) residual stream; q (T, HQ, D); k, v (T, H, D); out (T, HQ, D); gate, up (T, F); logits
// (V).
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"
#include "model.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace engine {

struct trained_lookahead;

/// The row (M) of a token in the model's table of embeddings. Throws run_failure for a token that is not in it.
void embedding_of(const model& m, token_id token, std::span<float> row);

class transformer {
  public:
    /// All three must outlive it. `chunk` is the most tokens that pass through the layers together.
    transformer(const model& m, kv_cache& cache, thread_pool& pool, std::size_t chunk = 512);

    /// Each layer of the sequences that begin after this call attends the keys and values of its owner. The cache must have
    /// the same kvtl::cache_config::owner. Only owners compute keys and values. Empty: every layer its own.
    void share_layers(std::vector<std::uint32_t> owner);

    /// Begins a sequence in the cache; the previous one is ended. Throws run_failure.
    void begin();

    /// Goes on in a sequence that the cache has loaded, of so many tokens; the previous one is ended. Throws run_failure.
    void go_on_in(kvtl::sequence_id sequence, std::size_t tokens);
    [[nodiscard]] kvtl::sequence_id sequence() const noexcept { return sequence_; }

    /// Appends a prompt of at least one token, or with `ends` false a part of one. `progress` hears how many tokens
    /// are done. Returns the logits behind the last token, valid until the next call. Throws run_failure.
    std::span<const float> prefill(std::span<const token_id> tokens,
                                   const std::function<void(std::size_t)>& progress = nullptr,
                                   bool ends = true);

    /// A whole prompt with rows (., width) behind it that stand for tokens. Throws run_failure.
    void prefill(std::span<const token_id> tokens, std::span<const float> rows);

    /// From now on the cache is told, where it wants that, what these tokens would look for behind a prompt
    /// that begins a sequence (lookahead.hpp), from so many positions earlier. Where the cache evicts after each chunk they
    /// pass through the layers behind every chunk instead, and attend what the cache has.
    void look_ahead(std::vector<token_id> probe, std::size_t earlier = 0) {
        probe_ = std::move(probe);
        probe_earlier_ = earlier;
        ahead_ = nullptr;
    }
    /// Likewise, with a trained lookahead, which must outlive the transformer.
    void look_ahead(const trained_lookahead& ahead) { ahead_ = &ahead; }

    /// From now on these tokens come before every part of a prompt that passes once more behind it, where the cache wants that:
    /// `first` before the first part, `later` and the last 8 tokens of the part before it before each other. Together up to
    /// most_replayed_tokens - replay_tokens.
    void replay(std::vector<token_id> first, std::vector<token_id> later) {
        replay_first_ = std::move(first);
        replay_later_ = std::move(later);
    }

    /// Appends one token and returns the logits behind it, valid until the next call. Throws run_failure.
    std::span<const float> step(token_id token);

    /// Gives up the last n tokens. Throws run_failure.
    void rewind(std::size_t n);

    [[nodiscard]] std::size_t position() const noexcept { return position_; } ///< tokens appended so far

  private:
    enum class phase : bool { prompt, decode };

    void embed(std::span<const token_id> tokens, std::span<const token_id> behind);
    /// The whole prompt passes once more, and the cache evicts.
    void replay_prompt();
    /// The last `passing` of the tokens do not stay.
    void run_layers(phase p, std::size_t tokens, bool last_chunk, std::size_t passing = 0);
    void attention(phase p, std::uint32_t layer, std::size_t tokens, bool last_chunk, std::size_t passing);
    void feed_forward(const layer_weights& w, std::size_t tokens);
    void guess_next_query(std::uint32_t next_layer);
    void project_queries(const layer_weights& w, const float* x, std::size_t tokens, float* q);
    void prepare_rotation(std::size_t tokens);
    void rotate(float* heads, std::size_t heads_per_token, std::size_t tokens);
    std::span<const float> logits_of_last(std::size_t tokens);
    void require(const kvtl::status& s) const;

    const model& model_;
    kv_cache& cache_;
    thread_pool& pool_;
    const cache_wants wants_;
    const std::size_t chunk_;
    kvtl::sequence_id sequence_{};
    bool begun_ = false;
    std::size_t position_ = 0;
    bool prompt_open_ = false; ///< the sequence has no token yet, or its prompt is not complete

    /// What attention reads of the tokens that pass through the layers, until all that share it have passed.
    struct entries {
        std::vector<float> k, v, k_pre; ///< (T, H, D)
    };

    std::vector<float> x_, normed_, q_, out_, gate_, up_, sum_, guess_, logits_;
    std::vector<std::uint32_t> owner_;
    std::vector<entries> entries_{1};  ///< of each owner where layers share, else of the latest layer
    std::vector<float> cosine_, sine_; ///< (T, pairs)
    std::vector<token_id> probe_;
    std::size_t probe_earlier_ = 0;
    std::vector<token_id> replay_first_, replay_later_;
    std::vector<token_id> prompt_; ///< so far, where the cache has it replayed
    const trained_lookahead* ahead_ = nullptr;
    std::vector<std::vector<float>> probe_queries_; ///< (L) of (P, HQ, D), while the prompt passes
    std::vector<kvtl::status> per_shard_;
};

} // namespace engine
