// Questions whose answers are hidden in a long document, in the form that tiny-2k was trained on.
//
//   ... and the upper gates open. The secret code of Brolwen is 48213. A paddle is wound up ...
//   Question: What is the secret code of Brolwen? Answer: The secret code of Brolwen is
//
// The document is running text from a file of passages; names and codes are invented. Whoever attends the
// whole document can copy the five digits; whoever dropped or did not find the entry cannot guess them.
//
// A chain hides a code behind references. The answer repeats them back to the code:
//
//   ... VAR AB1 = 73152. ... VAR CD2 = AB1. ... VAR EF3 = CD2. ...
//   Question: What is the value of VAR EF3? Answer: VAR EF3 =                CD2. VAR CD2 = AB1. VAR AB1 = 73152
//
// A dialogue has topics, and its last turn shows which of them the question belongs to:
//
//   Ann: ... The secret code of Brolwen is 48213.
//   Ben: ...
//   Ann: A paddle is wound up ... Question: What is the secret code of Brolwen? Answer: The secret code of Brolwen is
//
// Units: lengths in tokens of the model, BOS included. The same seed gives the same text on every platform.
// SPDX-License-Identifier: MIT
#pragma once

#include "tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

struct fact {
    std::string name;
    std::string code; ///< five digits

    [[nodiscard]] std::string sentence() const { return "The secret code of " + name + " is " + code + "."; }
};

struct document_plan {
    std::size_t tokens = 1500; ///< of document and question together; met to within a sentence
    std::size_t facts = 1;     ///< in the document, one of which is asked for
    double depth = 0.5;        ///< where that one stands: 0 at the beginning, 1 at the end
    std::uint64_t seed = 1;
};

struct document_question {
    std::string prompt;      ///< the document, then the question up to where the answer begins
    std::vector<fact> facts; ///< in the order of the document; none in a document of chains
    std::size_t asked = 0;   ///< index into facts
    std::string answer;      ///< the asked fact's code, or the asked chain
};

/// A conversation of two speakers, an utterance a line, and a question in the turn behind it.
struct dialogue : document_question {
    std::vector<std::size_t> windows; ///< bytes of the prompt where windows of utterances begin
    std::vector<std::size_t> topics;  ///< (windows) the topic of each
    std::size_t asked_topic = 0;
    std::size_t question = 0; ///< byte where the turn that asks begins
};

inline constexpr std::size_t utterances_per_window = 4; ///< of a dialogue
inline constexpr std::size_t asking_clauses = 3;        ///< in front of its question

inline constexpr std::size_t most_chain_variables = 128; ///< of a document: so many names are set aside

class document_writer {
  public:
    /// `prose`: passages under title lines (`# Title`), a paragraph per line. Keeps views of both arguments.
    /// Throws bad_input when there is no text.
    document_writer(const tokenizer& words, std::string_view prose);

    /// Running text from a place that the seed chooses, facts between its sentences. Throws bad_input when
    /// the prose is too short for the length, or the length for the facts.
    [[nodiscard]] document_question write(const document_plan& plan) const;

    /// The same with `plan.facts` chains of `references` references, the statements of a chain in order, at random depths
    /// (`plan.depth` is not used). The first chain is asked. The names are none that tiny-2k was trained on. Throws
    /// bad_input as `write` does, and when the chains have more than most_chain_variables variables.
    [[nodiscard]] document_question write_chains(const document_plan& plan, std::size_t references) const;

    /// A dialogue about `topics` passages, which take turns at random, each for one to three windows of utterances. An
    /// utterance is a clause of the passage, and perhaps a fact of its topic. The turn that asks begins with clauses about the asked fact's topic that
    /// were said before. Throws bad_input as `write` does, and when the prose has fewer
    /// passages.
    [[nodiscard]] dialogue write_dialogue(const document_plan& plan, std::size_t topics) const;

  private:
    struct sentence {
        std::string_view text;
        std::size_t tokens = 0;
        bool ends_paragraph = false;
        std::size_t title = 0; ///< of title lines before it
    };

    /// A run of sentences, and how many of them fill a document beside what else stands in it.
    struct passage {
        std::size_t start = 0, count = 0;
    };

    [[nodiscard]] std::size_t length(std::string_view text) const;
    [[nodiscard]] passage fill(const document_plan& plan, std::size_t used, std::size_t statements,
                               std::size_t start) const;
    /// The sentences, with statement i before sentence `gaps[i]` (ascending). `line_start` goes in front of a statement that
    /// begins a line: in training each was one with the space before it, and without one tiny-2k reads 17 of 100 chains wrong.
    [[nodiscard]] std::string embed(const passage& p, const std::vector<std::string>& statements,
                                    const std::vector<std::size_t>& gaps,
                                    std::string_view line_start = "") const;

    const tokenizer& words_;
    std::size_t overhead_ = 0; ///< tokens that encoding puts in front of every text
    std::vector<sentence> sentences_;
    std::size_t tokens_ = 0; ///< of all sentences
};

/// Index of the token that begins the last `Question:` of a prompt, or the number of tokens when there is
/// none. What precedes may be prefilled without the cache having seen what will be asked.
[[nodiscard]] std::size_t question_begin(const tokenizer& words, std::span<const token_id> prompt);

/// An answer is right when it, without spaces, begins with the expected one.
[[nodiscard]] std::string without_spaces(std::string_view text);

} // namespace engine
