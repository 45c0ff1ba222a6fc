// A text that drifts: sinks, topics that come in bursts, move slowly and are taken up again, queries that
// look for them, all rotated by RoPE. A stand-in for a model's q, k and v that policies can be measured on.
//
// Text:   bursts of tokens about one topic; the next burst takes up a topic met before (Zipf over the known
//         ones, the oldest first) or begins a new one. A topic's centre moves on while the text goes on.
// Keys:   offset + topic's centre + a part that all keys share in the fast pairs of RoPE + noise, each with
//         a falling spectrum over the pairs, the slow pairs first. Sinks have their own direction.
// Query:  looks for the sinks, for what is near (the shared part, which RoPE turns away with distance), for
//         the topic of its own burst and for one that its head is after for a while. The knobs are the logits
//         that these four give. Heads differ in how much they care for each.
// Cost:   state is one number per token, one record per burst and topic, and cos and sin of every position;
//         any token of any layer costs O(D) per head, without the tokens before it.
// Every number is a hash of (seed, sequence, layer, head, token or topic, dimension). What belongs to the
// model (spectra, offsets, directions) depends on the shape alone, so that another seed is another text of
// the same model: what bases are fitted on.
//
// The defaults were fitted, by random search, to a trace of the embedded model:
//   kvtl-run -m tiny-2k.gguf -f (first 2,000 bytes of prose.txt) -n 1300 --temp 0.8 --ignore-eos
//            --policy full --io memory --record-trace FILE
// `kvtl-bench workload --trace FILE` prints how close they are. That model hardly uses a sink, and so neither
// does the generator; large models do (sink_logit).
// SPDX-License-Identifier: MIT
#pragma once

#include "workload.hpp"

#include <cstdint>
#include <vector>

namespace bench {

struct drift_config {
    std::uint32_t sinks = 1;     ///< first tokens that every head may park its attention on
    double burst = 28;           ///< mean tokens about one topic
    double fresh = 0.06;         ///< chance that a burst begins a new topic
    double zipf = 0.95;          ///< exponent of the popularity of known topics
    double dwell = 48;           ///< tokens for which a head is after the same old topic
    double wander = 0.95;        ///< share of a topic's variance that moves
    double wander_tokens = 1900; ///< of text, until that share is another
    double spectrum = 0.92;      ///< exponent of the fall of variance over the pairs
    double offset = 0.2;         ///< lengths of a key's parts; a topic's centre has 1
    double shared = 0.63;
    double noise = 0.5;
    double norm_spread = 0.005; ///< of the logarithm of a key's length
    double sink_logit = 3.5;    ///< what a query's parts find, in logits
    double near_logit = 4.2;
    double topic_logit = 5.8;
    double focus_logit = 2.1;
    double noise_logit = 1.9;
    double variety = 0.5;     ///< by how much heads differ in them
    double prediction = 0.72; ///< cosine of the predicted query and the true one
    double rope_base = 500'000;

    /// visit(name, value, least, most) for what --workload may turn: how a text goes on, what queries look for and how well
    /// they are foretold. What a key is made of stays as it was fitted to the model.
    template <class Visit> void knobs(Visit&& visit) {
        visit("burst", burst, 1.0, 1e6);
        visit("fresh", fresh, 0.0, 1.0);
        visit("zipf", zipf, 0.0, 4.0);
        visit("dwell", dwell, 1.0, 1e6);
        visit("wander", wander, 0.0, 1.0);
        visit("wander_tokens", wander_tokens, 1.0, 1e9);
        visit("sink_logit", sink_logit, 0.0, 100.0);
        visit("near_logit", near_logit, 0.0, 100.0);
        visit("topic_logit", topic_logit, 0.0, 100.0);
        visit("focus_logit", focus_logit, 0.0, 100.0);
        visit("noise_logit", noise_logit, 0.0, 100.0);
        visit("variety", variety, 0.0, 2.0);
        visit("prediction", prediction, 0.0, 1.0);
    }
};

class drift final : public workload {
  public:
    drift(const kvtl::shape& shape, std::size_t prompt_tokens, std::size_t tokens, std::size_t sequences,
          std::uint64_t seed, const drift_config& config = {});

    [[nodiscard]] const kvtl::shape& shape() const noexcept override { return shape_; }
    [[nodiscard]] std::size_t tokens() const noexcept override { return tokens_; }
    [[nodiscard]] std::size_t prompt_tokens() const noexcept override { return prompt_tokens_; }
    [[nodiscard]] bool neighbours() const noexcept override { return true; }
    void rows(std::size_t sequence, std::uint32_t layer, std::size_t first, std::size_t count,
              const token_rows& out) override;

    /// Topic of a token, for tests.
    [[nodiscard]] std::uint32_t topic_of(std::size_t sequence, std::size_t token) const {
        const text& t = texts_[sequence];
        return t.bursts[t.burst_of[token]].topic;
    }

  private:
    struct burst {
        std::uint32_t first; ///< token
        std::uint32_t topic;
        std::uint32_t known; ///< topics met so far
    };
    struct text {
        std::uint32_t key; ///< of the sequence's hashes
        std::vector<std::uint32_t> burst_of;
        std::vector<burst> bursts;
        std::vector<std::uint32_t> born; ///< token, by topic
    };
    /// What a KV head of a layer looks like in this model.
    struct head {
        std::vector<float> scale;  ///< (D) spectrum, unit sum of squares
        std::vector<float> offset; ///< (D)
        std::vector<float> shared; ///< (D) unit, fast pairs
        std::vector<float> sink;   ///< (D) unit, slow pairs
    };

    void write_text(text& t) const;
    [[nodiscard]] std::uint32_t popular(std::uint32_t known, double u) const;
    void centre(const text& t, std::uint32_t lane, const head& h, std::uint32_t topic, std::size_t token,
                float* out) const;
    void key_row(const text& t, std::uint32_t lane, const head& h, std::size_t token, const float* topic,
                 float* out) const;
    void query_row(const text& t, std::uint32_t lane, const head& h, std::uint32_t query_head,
                   std::size_t token, const float* topic, float* out);
    void rotate(std::size_t token, float* row) const;

    kvtl::shape shape_;
    std::size_t prompt_tokens_, tokens_;
    drift_config config_;
    std::vector<text> texts_;
    std::vector<head> heads_;  ///< (L, H)
    std::vector<float> turns_; ///< (tokens, D / 2, 2) cos and sin
    std::vector<float> focus_; ///< scratch (D)
};

} // namespace bench
