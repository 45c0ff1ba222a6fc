// Queries that stand for the future of a prompt: a short text is run through the model behind it, and what
// its tokens look for in each layer is what the policy is told (kvtl/policies/retain_probe_attention.hpp).
// The text belongs to nobody's answer; the cache never sees its keys and values.
//
// Cost: the prompt passes through the model a second time, with exact attention and nothing kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include "model.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

/// What a reader may want to know of any document.
inline constexpr std::string_view default_probe = "Question: What does the document say? Answer:";

/// What a model is told before it reads a prompt again, or another part of it (transformer::replay()).
inline constexpr std::string_view replay_first = "\n\nRepeat the text above word for word.\n",
                                  replay_later = "\n\nRepeat the text above word for word, from here:\n";

/// The tokens of a text that follows another one: no begin-of-text.
[[nodiscard]] std::vector<token_id> continuation(const tokenizer& words, std::string_view text);

/// Of every layer the queries (P, HQ, D) of `probe` (P tokens) behind `prompt`, turned back by `earlier` positions: they
/// look as if from there, for comparison. owner: as transformer::share_layers() takes it. Throws run_failure.
[[nodiscard]] std::vector<std::vector<float>> probe_queries(const model& m, thread_pool& pool,
                                                            std::span<const token_id> prompt,
                                                            std::span<const token_id> probe,
                                                            std::size_t earlier = 0,
                                                            std::vector<std::uint32_t> owner = {});

/// LookaheadKV: what bench/train_gates/train_eviction.py trains. Deviation: the addition makes the queries that score,
/// and not those by which the vectors attend each other and the prompt.
struct trained_lookahead {
    std::uint32_t vectors = 0, rank = 0;
    std::vector<float> rows;     ///< (vectors, width), as embeddings of tokens behind the prompt
    std::vector<float> down, up; ///< (L, rank, width), (L, HQ * D, rank): q += up down x, before RoPE
};

/// Reads a file: "KVTLLOOK", the model's fingerprint (u64), version 1, layers, width, HQ * D, vectors and rank (u32 each),
/// then f32, little-endian: rows, and layer by layer down and up.
[[nodiscard]] kvtl::result<trained_lookahead> read_lookahead(const std::string& path, const model& m);

/// Of every layer the queries (vectors, HQ, D) of a trained lookahead behind `prompt`. Throws run_failure.
[[nodiscard]] std::vector<std::vector<float>> probe_queries(const model& m, thread_pool& pool,
                                                            std::span<const token_id> prompt,
                                                            const trained_lookahead& ahead,
                                                            std::vector<std::uint32_t> owner = {});

} // namespace engine
