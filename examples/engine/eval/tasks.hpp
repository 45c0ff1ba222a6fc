// What kvtl-eval measures on: questions about facts in long prompts, and running text.
//
//   needle:FILE.jsonl            a line per question: {"prompt": ..., "answer": ...}
//   needle:gen[,KEY=VALUE...]    facts hidden in the project's prose; keys: tokens (2000, of document and
//                                question), keys (1, facts per document), queries (1, questions per
//                                document, each to a cache of its own), turns (1: questions that follow each
//                                other in one context, each but the last with its right answer; the last is
//                                the one that counts), count (50, documents), seed (1)
//   facts:gen[,KEY=VALUE...]     the same with 8 facts per document
//   turns:gen[,KEY=VALUE...]     a conversation about one document: keys as of needle:gen (keys 8, turns 4), and every
//                                answer counts, not the last alone
//   table:gen[,KEY=VALUE...]     many facts into one structure: one question for the codes of many names, a row each.
//                                The names of the rows are given, their codes are the answers; keys: tokens, keys (8),
//                                rows (8, of the keys), count, seed
//   dialogue:gen[,KEY=VALUE...]  a conversation about several topics with facts of each. The last turn begins with clauses
//                                about the topic of the fact that it asks for; that turn is the question. keys: tokens,
//                                keys (16, facts), topics (4), count, seed
//   chain:gen[,KEY=VALUE...]     variables that refer to each other, hidden likewise; keys: tokens, count and seed as
//                                above, keys (1, chains per document, of which one is asked), links (2, references
//                                of a chain). The answer is the whole chain
//   nll:FILE.txt, nll:builtin    text in pieces of equal length, each after a new begin-of-text
//
// The prompt of a question is tokenised once and split before the token that begins the last `Question:`
// (without one: the last `VAR `, without that: the last line). What precedes is prefilled; the rest is
// decoded token by token, so that no policy knows the question while it compresses. Of several turns all are decoded; where
// the question is known, the first of them and its answer are part of what is prefilled. An answer in the middle of a prompt
// is right when each of its tokens is the most probable one; whatever the policy said, the right one follows.
// SPDX-License-Identifier: MIT
#pragma once

#include "tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace eval {

enum class task_kind : std::uint8_t { needle, nll };

/// Where an answer stands among the tokens of an example: [begin, end).
struct answer_span {
    std::size_t begin = 0, end = 0;
};

struct example {
    std::vector<engine::token_id> tokens; ///< needle: the prompt; nll: a piece of text
    std::size_t prefill = 0;              ///< of them; the others are decoded. At least 1
    std::vector<answer_span> earlier;     ///< answers in the prompt that count as the last one does, in order
    std::vector<std::size_t> windows;     ///< tokens where windows of a dialogue begin; empty: no dialogue
    std::string answer;                   ///< needle only
    std::size_t most_answer_tokens = 0;   ///< that greedy decoding may take
};

struct task {
    std::string name; ///< as the user wrote it
    task_kind kind = task_kind::needle;
    bool question_aware = false; ///< the question is part of what is prefilled
    std::vector<example> examples;

    /// Tokens of an example that a cache is told while they are known beforehand. The last token of a piece
    /// of text is only predicted.
    [[nodiscard]] std::size_t forced_tokens(const example& e) const {
        return e.tokens.size() - (kind == task_kind::nll ? 1 : 0);
    }
    /// The most tokens that a cache has to hold, for one example and for any.
    [[nodiscard]] std::size_t most_tokens(const example& e) const {
        return forced_tokens(e) +
               (e.most_answer_tokens == 0 ? 0 : e.most_answer_tokens - 1); // last one not fed
    }
    [[nodiscard]] std::size_t most_tokens() const;
    /// What policies know of the question while they compress: "hidden", "known", or "" where there is none.
    [[nodiscard]] std::string question() const {
        return kind == task_kind::nll ? "" : question_aware ? "known" : "hidden";
    }
};

/// Tokens of the longest prompt.
[[nodiscard]] std::size_t longest_prompt(const std::vector<task>& tasks);

struct task_options {
    std::string prose_file;         ///< of needle:gen and nll:builtin
    std::size_t limit = 0;          ///< most examples; 0: all
    std::size_t nll_prefill = 256;  ///< of a piece
    std::size_t nll_tokens = 2000;  ///< of a piece
    std::size_t needle_prefill = 0; ///< prefill only so many tokens of a prompt; 0: up to the question
    bool question_aware = false;    ///< prefill the question too
};

/// Throws bad_input for an unknown task, a file that cannot be read, a line without a field (it names the
/// line) and prompts that are longer than the context.
[[nodiscard]] task make_task(const std::string& name, const engine::tokenizer& words, std::size_t context,
                             const task_options& options);

/// Index of the token before which a prompt is split: where the last of its questions begins, or the one `later` before it.
[[nodiscard]] std::size_t question_split(const engine::tokenizer& words,
                                         const std::vector<engine::token_id>& prompt, std::size_t later = 0);

} // namespace eval
