// Queries that stand for the future of a prompt: a short text is run through the model behind it, and what
// its tokens look for in each layer is what the policy is told (kvtl/policies/retain_probe_attention.hpp).
// The text belongs to nobody's answer; the cache never sees its keys and values.
//
// Cost: the prompt passes through the model a second time, with exact attention and nothing kept.
// SPDX-License-Identifier: MIT
#pragma once

#include "model.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"

#include <span>
#include <string_view>
#include <vector>

namespace engine {

/// What a reader may want to know of any document.
inline constexpr std::string_view default_probe = "Question: What does the document say? Answer:";

/// The tokens of a text that follows another one: no begin-of-text.
[[nodiscard]] std::vector<token_id> continuation(const tokenizer& words, std::string_view text);

/// Of every layer the queries (P, HQ, D) of `probe` (P tokens) behind `prompt`, turned back by `earlier` positions: they
/// look as if from there, for comparison. Throws run_failure.
[[nodiscard]] std::vector<std::vector<float>> probe_queries(const model& m, thread_pool& pool,
                                                            std::span<const token_id> prompt,
                                                            std::span<const token_id> probe,
                                                            std::size_t earlier = 0);

} // namespace engine
