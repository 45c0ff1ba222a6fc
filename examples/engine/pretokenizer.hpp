// Cuts a text into the words that byte-pair encoding never merges across.
//
// The models define the words by a regular expression with a negative look-ahead and Unicode classes; here
// each is a scanner with the same alternatives, tried in the same order:
//
//   gpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   llama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//   ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ qwen2   the same with \p{N} for \p{N}{1,3}
//
// Sources: the tokenizer files published with GPT-2, Llama 3 and Qwen2.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace engine {

enum class word_pattern : std::uint8_t { gpt2, llama3, qwen2 };

/// The words in order; together they are the whole text.
[[nodiscard]] std::vector<std::string_view> split_words(std::string_view text, word_pattern pattern);

} // namespace engine
