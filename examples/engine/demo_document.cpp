// SPDX-License-Identifier: MIT
#include "demo_document.hpp"

#include "error.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

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

/// The names of variables: two letters and a digit. The training of tiny-2k set those aside whose hash falls into one of
/// ten buckets (bench/train_gates/tasks.py); these are 128 of them, so that no chain has a name that the model has seen.
constexpr std::string_view unseen_variables =
    "AB9 AH6 AP4 BM1 BW4 CD8 CF1 CP9 CX1 DC1 DD9 DK8 DM1 DP2 DS0 DV1 "
    "DW7 DW9 EB4 EB9 EH0 EJ6 ER8 EU9 EV8 EX4 EY5 FF1 FO0 FP3 GB9 GD9 "
    "GF3 GH5 GT0 HA2 HB3 HI5 HU4 IH5 IJ5 IP2 JB5 JD9 JE1 JJ1 JS9 JY5 "
    "KD4 KM7 KP1 KP7 KS9 KT3 KV8 KW1 LU3 LY6 MA7 ME4 MI2 ML1 MN4 NA6 "
    "NM5 NP5 OH4 OL1 OX6 PF5 PU4 QF2 QH0 QI3 QX0 QX5 QZ5 RF3 RF4 RK8 "
    "RN5 RP3 RQ2 RX1 SI1 SI2 SJ5 SM9 TH6 TJ8 TM4 TM5 TS7 UK9 UM3 UW7 "
    "UX6 VC5 VD0 VH5 VI3 VK0 VO9 VT2 VU9 WC5 WH3 WT4 WU0 WZ8 XI9 XO2 "
    "XY8 YA3 YH1 YK8 YL7 YQ3 YR4 YS5 YU6 YV5 YW6 ZC5 ZD0 ZD8 ZE6 ZF6";

std::vector<std::string> chosen_variables(std::size_t count, dice& d) {
    std::vector<std::string> all, chosen;
    for (std::size_t at = 0; at < unseen_variables.size(); at += 4)
        all.emplace_back(unseen_variables.substr(at, 3));
    while (chosen.size() < count) {
        const auto at = all.begin() + static_cast<std::ptrdiff_t>(d.below(all.size()));
        chosen.push_back(*at);
        all.erase(at);
    }
    return chosen;
}

/// Distinct gaps between `sentences` sentences, in order, `gaps` among them. Gap g stands before sentence g.
std::vector<std::size_t> chosen_gaps(std::size_t count, std::vector<std::size_t> gaps, std::size_t sentences,
                                     dice& d) {
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

/// Bytes of what a speaker says at once: up to a comma or the like behind 40 bytes.
std::size_t clause_length(std::string_view text) {
    for (std::size_t i = 40; i + 20 < text.size(); ++i)
        if ((text[i] == ',' || text[i] == ';' || text[i] == ':') && text[i + 1] == ' ') return i + 1;
    return text.size();
}

} // namespace

document_writer::document_writer(const tokenizer& words, std::string_view prose)
    : words_(words), overhead_(words.encode("").size()) {
    std::size_t titles = 0;
    while (!prose.empty()) {
        std::string_view line = prose.substr(0, prose.find('\n'));
        prose.remove_prefix(std::min(prose.size(), line.size() + 1));
        if (line.starts_with('#')) {
            ++titles;
            continue;
        }
        while (!line.empty()) {
            const std::string_view text = line.substr(0, sentence_length(line));
            line.remove_prefix(std::min(line.size(), text.size() + 1));
            sentences_.push_back({text, length(text), line.empty(), titles});
            tokens_ += sentences_.back().tokens;
        }
    }
    if (sentences_.empty()) throw bad_input("the prose has no sentences");
}

std::size_t document_writer::length(std::string_view text) const {
    return words_.encode(text).size() - overhead_;
}

document_writer::passage document_writer::fill(const document_plan& plan, std::size_t used,
                                               std::size_t statements, std::size_t start) const {
    std::size_t count = 0;
    while (used < plan.tokens && count < sentences_.size())
        used += sentences_[(start + count++) % sentences_.size()].tokens;
    if (used < plan.tokens)
        throw bad_input("the prose of " + std::to_string(tokens_) + " tokens is too short for documents of " +
                        std::to_string(plan.tokens));
    if (statements == 0 || count < 2 * statements)
        throw bad_input("documents of " + std::to_string(plan.tokens) + " tokens hold 1 to " +
                        std::to_string(count / 2) + " facts, not " + std::to_string(statements));
    return {start, count};
}

std::string document_writer::embed(const passage& p, const std::vector<std::string>& statements,
                                   const std::vector<std::size_t>& gaps, std::string_view line_start) const {
    std::string text;
    std::size_t next = 0;
    for (std::size_t i = 0; i < p.count; ++i) {
        if (next < gaps.size() && gaps[next] == i) {
            if (text.ends_with('\n')) text += line_start;
            text += statements[next++] + ' ';
        }
        const sentence& s = sentences_[(p.start + i) % sentences_.size()];
        text += s.text;
        text += s.ends_paragraph && i + 1 < p.count ? '\n' : ' ';
    }
    return text;
}

document_question document_writer::write(const document_plan& plan) const {
    dice d(plan.seed);
    document_question out;
    out.facts = invented_facts(plan.facts, d);

    // All names have about the same length, so that the first may stand for the one that will be asked.
    std::size_t used = overhead_ + (plan.facts == 0 ? 0 : length(question_about(out.facts.front())));
    std::vector<std::string> statements;
    for (const fact& f : out.facts) {
        statements.push_back(f.sentence());
        used += length(statements.back());
    }
    const passage text = fill(plan, used, plan.facts, d.below(sentences_.size()));
    const auto asked_gap =
        static_cast<std::size_t>(std::clamp(plan.depth, 0.0, 1.0) * static_cast<double>(text.count - 1));
    const auto gaps = chosen_gaps(plan.facts, {asked_gap}, text.count, d);
    out.asked = static_cast<std::size_t>(std::find(gaps.begin(), gaps.end(), asked_gap) - gaps.begin());
    out.answer = out.facts[out.asked].code;
    out.prompt = embed(text, statements, gaps) + question_about(out.facts[out.asked]);
    return out;
}

document_question document_writer::write_chains(const document_plan& plan, std::size_t references) const {
    const std::size_t chains = plan.facts, each = references + 1, all = chains * each;
    if (all > most_chain_variables)
        throw bad_input(std::to_string(chains) + " chains of " + std::to_string(each) +
                        " variables; valid: up to " + std::to_string(most_chain_variables) +
                        " variables in all");
    dice d(plan.seed);
    const auto names = chosen_variables(all, d); // `each` of a chain, one behind the other
    const auto name = [&](std::size_t chain, std::size_t i) { return "VAR " + names[chain * each + i]; };
    document_question out;
    std::vector<std::vector<std::string>> own(chains);
    std::string question;
    for (std::size_t c = 0; c < chains; ++c) {
        const std::string code = std::to_string(10000 + d.below(90000));
        std::string answer = code;
        for (std::size_t i = 0; i < each; ++i) {
            const std::string value = i == 0 ? code : names[c * each + i - 1];
            own[c].push_back(name(c, i) + " = " + value + ".");
            if (i != 0) answer = value + ". " + name(c, i - 1) + " = " + answer;
        }
        if (c != 0) continue;
        out.answer = answer;
        question = "Question: What is the value of " + name(c, references) +
                   "? Answer: " + name(c, references) + " =";
    }
    // Chains take turns at random; each stays in order, because a reference follows what it refers to.
    std::vector<std::size_t> turns;
    for (std::size_t c = 0; c < chains; ++c) turns.insert(turns.end(), each, c);
    for (std::size_t i = turns.size(); i > 1; --i) std::swap(turns[i - 1], turns[d.below(i)]);
    std::vector<std::size_t> next(chains);
    std::vector<std::string> statements;
    std::size_t used = overhead_ + length(question);
    for (const std::size_t c : turns) {
        statements.push_back(own[c][next[c]++]);
        used += length(statements.back());
    }
    const passage text = fill(plan, used, all, d.below(sentences_.size()));
    out.prompt = embed(text, statements, chosen_gaps(all, {}, text.count, d), " ") + question;
    return out;
}

dialogue document_writer::write_dialogue(const document_plan& plan, std::size_t topics) const {
    std::vector<std::vector<std::string_view>> passages(sentences_.back().title + 1);
    for (const sentence& s : sentences_)
        for (std::string_view rest = s.text; !rest.empty();) {
            passages[s.title].push_back(rest.substr(0, clause_length(rest)));
            rest.remove_prefix(std::min(rest.size(), passages[s.title].back().size() + 1));
        }
    std::erase_if(passages, [](const auto& p) { return p.empty(); });
    if (topics == 0 || topics > passages.size())
        throw bad_input("the prose has passages for 1 to " + std::to_string(passages.size()) +
                        " topics, not " + std::to_string(topics));
    dice d(plan.seed);
    dialogue out;
    out.facts = invented_facts(plan.facts, d);
    for (std::size_t i = 0; i < topics; ++i)
        std::swap(passages[i], passages[i + d.below(passages.size() - i)]);
    std::vector<std::size_t> next;
    for (std::size_t i = 0; i < topics; ++i) next.push_back(d.below(passages[i].size()));
    std::vector<std::vector<std::string>> said(topics);
    const auto say = [&](std::size_t topic) {
        return said[topic].emplace_back(passages[topic][next[topic]++ % passages[topic].size()]);
    };
    const auto speaker = [](std::size_t turn) { return std::string(turn % 2 == 0 ? "Ann: " : "Ben: "); };

    std::size_t used = overhead_ + (out.facts.empty() ? 0 : length(question_about(out.facts.front())));
    for (const fact& f : out.facts) used += length(f.sentence());
    std::vector<std::string> lines;
    std::size_t topic = d.below(topics), more = 1 + d.below(3);
    while (used < plan.tokens) {
        if (more == 0) {
            topic = topics == 1 ? 0 : (topic + 1 + d.below(topics - 1)) % topics;
            more = 1 + d.below(3);
        }
        --more;
        out.topics.push_back(topic);
        for (std::size_t i = 0; i < utterances_per_window; ++i) {
            lines.push_back(speaker(lines.size()) + say(topic));
            used += length(lines.back()) + 1;
        }
    }
    if (out.facts.empty() || out.topics.size() < 2 || lines.size() < 2 * out.facts.size())
        throw bad_input("dialogues of " + std::to_string(plan.tokens) + " tokens hold 1 to " +
                        std::to_string(lines.size() / 2) + " facts in two windows and more, not " +
                        std::to_string(out.facts.size()));
    // The first fact is asked, in a window at its depth; the others belong to the topics in turn, where these are spoken of.
    std::vector<bool> has_fact(lines.size());
    for (std::size_t f = 0; f < out.facts.size(); ++f) {
        std::size_t at = static_cast<std::size_t>(std::clamp(plan.depth, 0.0, 1.0) *
                                                  static_cast<double>(out.topics.size() - 1)) *
                             utterances_per_window +
                         d.below(utterances_per_window);
        const bool spoken = std::find(out.topics.begin(), out.topics.end(), f % topics) != out.topics.end();
        if (f == 0) out.asked_topic = out.topics[at / utterances_per_window];
        for (std::size_t tries = 0;
             f > 0 && (tries == 0 || has_fact[at] ||
                       (spoken && tries < 1000 && out.topics[at / utterances_per_window] != f % topics));
             ++tries)
            at = d.below(lines.size());
        has_fact[at] = true;
        lines[at] += ' ' + out.facts[f].sentence();
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (i % utterances_per_window == 0) out.windows.push_back(out.prompt.size());
        out.prompt += lines[i] + '\n';
    }
    out.question = out.prompt.size();
    out.answer = out.facts.front().code;
    out.prompt += speaker(lines.size());
    const std::vector<std::string>& again = said[out.asked_topic];
    for (std::size_t i = 0; i < asking_clauses; ++i) out.prompt += again[d.below(again.size())] + ' ';
    out.prompt += question_about(out.facts.front());
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
