// What a model would hand to its KV cache: queries, keys and values of any token of any layer, on demand.
//
// Shapes: q and prediction (T, HQ, D), k, v and k_pre (T, H, D), row-major f32, rotated except k_pre. The
//         prediction is the guess of a layer's query that an engine has while the layer before is at work.
// A workload is asked for ranges of tokens in any order; equal questions get equal answers.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace bench {

/// Where to put the rows of T tokens; an empty span is not wanted.
struct token_rows {
    std::span<float> q{}, k{}, v{}, k_pre{}, prediction{};
};

class workload {
  public:
    virtual ~workload() = default;

    [[nodiscard]] virtual const kvtl::shape& shape() const noexcept = 0;
    /// Tokens that a sequence has.
    [[nodiscard]] virtual std::size_t tokens() const noexcept = 0;
    /// Fills the rows of tokens [first, first + count). Sequences beyond those there are repeat the first.
    virtual void rows(std::size_t sequence, std::uint32_t layer, std::size_t first, std::size_t count,
                      const token_rows& out) = 0;
    /// Whether RoPE has turned elements (0, 1), (2, 3), ... together, instead of (0, D / 2), (1, D / 2 + 1), ...
    [[nodiscard]] virtual bool neighbours() const noexcept = 0;
    /// The first token that was decoded where the data come from; the statistics begin there.
    [[nodiscard]] virtual std::size_t prompt_tokens() const noexcept = 0;

    [[nodiscard]] std::size_t query_floats() const noexcept {
        return std::size_t{shape().query_heads} * shape().head_dim;
    }
    [[nodiscard]] std::size_t key_floats() const noexcept {
        return std::size_t{shape().kv_heads} * shape().head_dim;
    }
};

/// "drift:SEED", or with knobs of drift_config "drift:SEED,KNOB=VALUE,...", for that many tokens of each sequence, or
/// "trace:FILE", which must have the shape and enough tokens. Throws engine::bad_input.
struct workload_request {
    std::string text = "drift:1";
    kvtl::shape shape;
    std::size_t prompt_tokens = 0;
    std::size_t tokens = 0; ///< the prompt's included
    std::size_t sequences = 1;
    double rope_base = 10'000;    ///< of the generator
    bool rope_neighbours = false; ///< of a trace that does not say so
};
[[nodiscard]] std::unique_ptr<workload> make_workload(const workload_request& r);
/// What --workload takes, for --help.
[[nodiscard]] std::string workload_help();

/// Another text of the same model, to fit bases to: another seed, or, where there is only one recording, the
/// prompt of that.
[[nodiscard]] std::unique_ptr<workload> make_calibration_sample(const workload_request& r);

} // namespace bench
