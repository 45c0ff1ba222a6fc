// Runs a policy on an example and measures it against the full model.
//
//   record   the full model, once per example: logits behind every decoded token, and all q, k, v and outputs
//   measure  per policy and budget: the recorded prompt is replayed to a new cache, then
//            closed loop: the model decodes with the policy's attention; what the policy got wrong flows on
//                         through the layers and into its own cache. Gives nll, kl, top-1 agreement, the
//                         answer, and everything that is counted or timed
//            A policy that evicts after each chunk of a prompt changes what later chunks become, so it reads the prompt
//            itself, in chunks of block_tokens, with the probe of the dialogue's episode that the question belongs to.
//            So does a policy that has the prompt pass once more
//            open loop:   a second cache is fed the full model's q, k and v of every decoded token. Gives
//                         output_error and mass_recall, on the same inputs for every policy
//
// Cost: a prompt costs the model's time once; per policy two prefills without attention (where the policy
// allows it), S decoded tokens of the model and 2 S of the cache. Memory: 4 V S bytes of logits and 4 L D (2
// HQ + 2 H) (P + S) bytes of recording.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/store/episodes.hpp>

#include "kv_cache.hpp"
#include "model.hpp"
#include "retained.hpp"
#include "row.hpp"
#include "stage.hpp"
#include "tasks.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace eval {

/// Sums over the examples of a task, for one policy and budget.
struct tally {
    std::size_t examples = 0;
    std::size_t asked = 0;       ///< questions; an example may have several
    std::size_t right = 0;       ///< of them
    std::size_t predictions = 0; ///< next-token distributions that were compared
    double nll = 0, nll_full = 0, kl = 0;
    double kl_max = 0; ///< of one prediction
    std::size_t agreements = 0;
    double output_error = 0;
    std::size_t outputs = 0; ///< layers' outputs that were compared
    double mass = 0;
    std::size_t masses = 0;
    bool has_mass = true; ///< the policy reported what it attended every time
    std::size_t steps = 0;
    double decode_s = 0, prefill_s = 0;
    double kept_bytes = 0, kept_entries = 0;
    kvtl::statistics decode; ///< counted while decoding
    std::uint64_t resident_bytes_peak = 0;
    std::vector<double> kept_by_layer; ///< entries per KV head; empty: the policy evicts nothing
    retained kept_of_rows;             ///< of all tokens that were recorded
    std::optional<row::first_answer> first;
    engine::cache_stats last;

    [[nodiscard]] row to_row(const engine::cache_options& options, const task& of) const;
};

/// Tokens of a chunk, for policies that evict after each.
inline constexpr std::size_t block_tokens = 128;

/// The same options as this example needs them. A policy that only evicts holds what it decodes, so that its
/// memory is promised for one prompt and what follows; the others' sizes shall not change from example to
/// example.
[[nodiscard]] engine::cache_options sized_for(engine::cache_options options, const task& of,
                                              const example& e);

class evaluator {
  public:
    /// `options`: what every cache gets but the policy and its budget. `wants`: all that any policy wants.
    /// Everything must outlive it.
    evaluator(const engine::model& m, const engine::tokenizer& words, engine::thread_pool& pool,
              const engine::cache_options& options, engine::cache_wants wants, const char* program);

    /// What policies that look ahead are told the future is like, instead of engine::default_probe. Empty: what follows in
    /// the example. `earlier`: by queries that are turned back by so many positions, for comparison.
    void look_ahead(std::string_view text, std::size_t earlier = 0);
    /// Likewise, by a trained lookahead, which must outlive the evaluator.
    void look_ahead(const engine::trained_lookahead& ahead) { transformer_.look_ahead(ahead); }

    /// How dialogues are divided for policies that evict after each chunk.
    void divide(const kvtl::episodes_config& episodes) { episodes_ = episodes; }

    /// Runs the full model. If layers share, the model without sharing runs too: every cache is compared with its logits.
    /// Throws run_failure.
    void record(const task& of, const example& e);

    /// Measures a policy on the example that was recorded last. Throws run_failure.
    void measure(const task& of, const example& e, const engine::cache_options& options, bool open_loop,
                 tally& to);

    [[nodiscard]] const recording& recorded() const { return recording_; }

  private:
    struct opened;

    [[nodiscard]] opened open(const engine::cache_options& options);
    void read(const task& of, const example& e, const opened& full, recording* into);
    void replay_prompt(opened& cache);
    void read_prompt(const example& e, opened& cache);
    void closed_loop(const task& of, const example& e, opened& cache, tally& to);
    void open_loop(opened& cache, tally& to);
    void compare(std::span<const float> logits, std::span<const float> full, const engine::token_id* next,
                 tally& to);
    void answer(const example& e, std::span<const float> logits, tally& to);
    std::span<const float> timed_step(engine::token_id token, tally& to);

    const engine::model& model_;
    const engine::tokenizer& words_;
    engine::thread_pool& pool_;
    engine::cache_options options_;
    const char* program_;
    kvtl::shape shape_;
    stage stage_;
    engine::transformer transformer_;
    recording recording_;
    std::vector<float> prompt_logits_; ///< (V) behind the prompt
    std::vector<float> logits_;        ///< (S, V) of the full model
    std::vector<double> p_, q_;        ///< (V) scratch
    std::vector<token_kind> kinds_;    ///< of the recorded tokens
    std::vector<float> out_, lse_;     ///< scratch
    std::vector<kvtl::status> per_shard_;
    bool true_probe_ = false; ///< what follows in the example is the probe
    std::size_t probe_earlier_ = 0;
    std::vector<engine::token_id> probe_; ///< of a prompt that is no dialogue
    kvtl::episodes_config episodes_;
};

} // namespace eval
