// SPDX-License-Identifier: MIT
#include "demo_document.hpp"

#include "error.hpp"

#include <algorithm>
#include <array>
#include <random>

namespace engine {

namespace {

/// The standard's distributions differ between libraries; its generators do not.
class dice {
  public:
    explicit dice(std::uint64_t seed) : random_(seed) {}
    [[nodiscard]] std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  private:
    std::mt19937_64 random_;
};

std::string invented_name(dice& d) {
    constexpr std::array onsets = {"b", "br", "d", "dr", "f", "fl", "g", "h",  "k", "l",
                                   "m", "n",  "p", "r",  "s", "st", "t", "th", "v", "w"};
    constexpr std::array vowels = {"a", "e", "i", "o", "u", "ai", "ea", "ou"};
    constexpr std::array codas = {"", "l", "m", "n", "r", "s", "t", "ld", "nd", "rt"};
    std::string name;
    for (std::size_t syllables = 2 + d.below(2); syllables > 0; --syllables)
        name += std::string(onsets[d.below(onsets.size())]) + vowels[d.below(vowels.size())] +
                codas[d.below(codas.size())];
    name[0] = static_cast<char>(name[0] - 'a' + 'A');
    return name;
}

std::vector<fact> invented_facts(std::size_t count, dice& d) {
    std::vector<fact> facts;
    while (facts.size() < count) {
        fact f{invented_name(d), std::to_string(10000 + d.below(90000))};
        const bool known = std::any_of(facts.begin(), facts.end(), [&](const fact& other) {
            return other.name == f.name || other.code == f.code;
        });
        if (!known) facts.push_back(std::move(f));
    }
    return facts;
}

std::string question_about(const fact& f) {
    return "Question: What is the secret code of " + f.name + "? Answer: The secret code of " + f.name +
           " is";
}

/// Distinct gaps between `sentences` sentences, one per fact and in order. Gap g stands before sentence g.
std::vector<std::size_t> chosen_gaps(std::size_t count, std::size_t asked, std::size_t sentences, dice& d) {
    std::vector<std::size_t> gaps{asked};
    while (gaps.size() < count) {
        const std::size_t gap = d.below(sentences);
        if (std::find(gaps.begin(), gaps.end(), gap) == gaps.end()) gaps.push_back(gap);
    }
    std::sort(gaps.begin(), gaps.end());
    return gaps;
}

/// Bytes of the first sentence of a paragraph, the space behind it not included.
std::size_t sentence_length(std::string_view paragraph) {
    for (std::size_t i = 0; i + 2 < paragraph.size(); ++i) {
        const bool stop = paragraph[i] == '.' || paragraph[i] == '?' || paragraph[i] == '!';
        if (stop && paragraph[i + 1] == ' ' && paragraph[i + 2] >= 'A' && paragraph[i + 2] <= 'Z')
            return i + 1;
    }
    return paragraph.size();
}

} // namespace

document_writer::document_writer(const tokenizer& words, std::string_view prose)
    : words_(words), overhead_(words.encode("").size()) {
    while (!prose.empty()) {
        std::string_view line = prose.substr(0, prose.find('\n'));
        prose.remove_prefix(std::min(prose.size(), line.size() + 1));
        if (line.starts_with('#')) continue;
        while (!line.empty()) {
            const std::string_view text = line.substr(0, sentence_length(line));
            line.remove_prefix(std::min(line.size(), text.size() + 1));
            sentences_.push_back({text, length(text), line.empty()});
            tokens_ += sentences_.back().tokens;
        }
    }
    if (sentences_.empty()) throw bad_input("the prose has no sentences");
}

std::size_t document_writer::length(std::string_view text) const {
    return words_.encode(text).size() - overhead_;
}

document_question document_writer::write(const document_plan& plan) const {
    dice d(plan.seed);
    document_question out;
    out.facts = invented_facts(plan.facts, d);

    // All names have about the same length, so that the first may stand for the one that will be asked.
    std::size_t used = overhead_ + (plan.facts == 0 ? 0 : length(question_about(out.facts.front())));
    for (const fact& f : out.facts) used += length(f.sentence());
    const std::size_t start = d.below(sentences_.size());
    std::size_t count = 0;
    while (used < plan.tokens && count < sentences_.size())
        used += sentences_[(start + count++) % sentences_.size()].tokens;
    if (used < plan.tokens)
        throw bad_input("the prose of " + std::to_string(tokens_) + " tokens is too short for documents of " +
                        std::to_string(plan.tokens));
    if (plan.facts == 0 || count < 2 * plan.facts)
        throw bad_input("documents of " + std::to_string(plan.tokens) + " tokens hold 1 to " +
                        std::to_string(count / 2) + " facts, not " + std::to_string(plan.facts));

    const auto asked_gap =
        static_cast<std::size_t>(std::clamp(plan.depth, 0.0, 1.0) * static_cast<double>(count - 1));
    const auto gaps = chosen_gaps(plan.facts, asked_gap, count, d);
    out.asked = static_cast<std::size_t>(std::find(gaps.begin(), gaps.end(), asked_gap) - gaps.begin());
    out.answer = out.facts[out.asked].code;

    std::size_t next_fact = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (next_fact < gaps.size() && gaps[next_fact] == i)
            out.prompt += out.facts[next_fact++].sentence() + ' ';
        const sentence& s = sentences_[(start + i) % sentences_.size()];
        out.prompt += s.text;
        out.prompt += s.ends_paragraph && i + 1 < count ? '\n' : ' ';
    }
    out.prompt += question_about(out.facts[out.asked]);
    return out;
}

std::size_t question_begin(const tokenizer& words, std::span<const token_id> prompt) {
    std::string text;
    std::vector<std::size_t> ends; // byte behind each token
    for (const token_id id : prompt) {
        text += words.piece(id);
        ends.push_back(text.size());
    }
    const std::size_t question = text.rfind("Question:"); // npos is behind all of them
    return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), question) - ends.begin());
}

std::string without_spaces(std::string_view text) {
    std::string rest(text);
    std::erase(rest, ' ');
    return rest;
}

} // namespace engine
