// SPDX-License-Identifier: MIT
#include "tasks.hpp"

#include "demo_document.hpp"
#include "error.hpp"
#include "input_file.hpp"
#include "program.hpp"
#include "suggestion.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

namespace eval {

namespace {

using engine::bad_input;
using engine::require;

std::string read_file(const std::string& path, const std::string& who) {
    auto text = engine::read_input(path, engine::most_text_bytes);
    if (!text) throw bad_input(who + ": " + text.error().message);
    return *std::move(text);
}

/// The prose as running text: its title lines belong to its form, not to its language.
std::string without_titles(const std::string& prose) {
    std::istringstream lines(prose);
    std::string text;
    for (std::string line; std::getline(lines, line);)
        if (!line.starts_with('#')) text += line + '\n';
    return text;
}

/// What is asked about a document.
enum class question_form : std::uint8_t {
    last_turn,  ///< a question, or several of which the last counts
    every_turn, ///< several questions, each of which counts
    table,      ///< one question for many facts
    dialogue,   ///< a question in the last turn of a conversation
    chain       ///< one question for a chain of references
};

struct generator {
    std::size_t tokens = 2000, keys = 1, queries = 1, turns = 1, rows = 1, links = 2, topics = 4, count = 50,
                seed = 1;
    question_form form = question_form::last_turn;
};

constexpr std::size_t most_document_tokens = 1'000'000, most_document_keys = 10'000, most_links = 100;

/// Generated questions by the name in front of `:gen`: what differs from one fact a document.
struct generated_kind {
    std::string_view name;
    question_form form = question_form::last_turn;
    std::size_t keys = 1, turns = 1, rows = 1;
};
constexpr std::array<generated_kind, 6> generated_kinds{{{"needle"},
                                                         {"facts", question_form::last_turn, 8},
                                                         {"turns", question_form::every_turn, 8, 4},
                                                         {"table", question_form::table, 8, 1, 8},
                                                         {"dialogue", question_form::dialogue, 16},
                                                         {"chain", question_form::chain}}};

/// Of `needle:gen`, `facts:gen,...` and so on; null for any other task.
const generated_kind* generated(std::string_view task) {
    const std::string_view name = task.substr(0, task.find(','));
    for (const generated_kind& k : generated_kinds)
        if (name == std::string(k.name) + ":gen") return &k;
    return nullptr;
}

generator parse_generator(const std::string& task, const generated_kind& kind) {
    generator g;
    g.keys = kind.keys;
    g.turns = kind.turns;
    g.rows = kind.rows;
    g.form = kind.form;
    using field_list = std::vector<std::pair<std::string_view, std::size_t*>>;
    const auto with = [&](std::string_view name, std::size_t& own) -> field_list {
        return {
            {"tokens", &g.tokens}, {"keys", &g.keys}, {name, &own}, {"count", &g.count}, {"seed", &g.seed}};
    };
    const field_list fields =
        g.form == question_form::chain   ? with("links", g.links)
        : g.form == question_form::table ? with("rows", g.rows)
        : g.form == question_form::dialogue
            ? with("topics", g.topics)
            : field_list{{"tokens", &g.tokens}, {"keys", &g.keys},   {"queries", &g.queries},
                         {"turns", &g.turns},   {"count", &g.count}, {"seed", &g.seed}};
    std::string_view rest = std::string_view(task).substr(std::min(task.find(','), task.size()));
    while (!rest.empty()) {
        rest.remove_prefix(1); // the comma
        const std::string_view part = rest.substr(0, rest.find(','));
        rest.remove_prefix(part.size());
        const std::string_view key = part.substr(0, part.find('='));
        const std::string_view value = part.substr(std::min(part.size(), key.size() + 1));
        const auto field =
            std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == key; });
        const auto bad = [&](const char* why) {
            return bad_input("--task " + task + ": '" + std::string(part) + "' " + why);
        };
        if (field == fields.end()) {
            std::vector<std::string_view> names;
            names.reserve(fields.size());
            for (const auto& [valid, number] : fields) names.push_back(valid);
            throw bad(("is unknown; " + engine::valid_names(key, names)).c_str());
        }
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *field->second);
        if (error != std::errc{} || end != value.data() + value.size()) throw bad("needs a whole number");
    }
    // A document is written before it is found too long for the model.
    require(g.tokens <= most_document_tokens,
            "--task " + task + ": tokens: valid: up to " + std::to_string(most_document_tokens));
    require(g.keys >= 1 && g.keys <= most_document_keys,
            "--task " + task + ": keys: valid: 1 to " + std::to_string(most_document_keys));
    require(g.links >= 1 && g.links <= most_links,
            "--task " + task + ": links: valid: 1 to " + std::to_string(most_links));
    require(g.count >= 1 && g.count <= 100000, "--task " + task + ": count: valid: 1 to 100000");
    require(g.queries >= 1 && g.queries <= g.keys, "--task " + task + ": queries: valid: 1 to keys");
    require(g.turns >= 1 && g.turns <= g.keys, "--task " + task + ": turns: valid: 1 to keys");
    require(g.rows >= 1 && g.rows <= g.keys, "--task " + task + ": rows: valid: 1 to keys");
    require(g.topics >= 1, "--task " + task + ": topics: valid: 1 and more");
    return g;
}

class needle_builder {
  public:
    needle_builder(task& out, const engine::tokenizer& words, std::size_t context,
                   const task_options& options)
        : out_(out), words_(words), context_(context), options_(options) {}

    [[nodiscard]] bool full() const { return options_.limit != 0 && out_.examples.size() >= options_.limit; }

    /// `turns`: questions at the end of the prompt. `earlier`: answers behind the first of them that count too, in order; each
    /// follows " is ".
    void add(const std::string& where, const std::string& prompt, const std::string& answer,
             std::size_t turns = 1, const std::vector<std::string>& earlier = {}) {
        example e;
        e.tokens = words_.encode(prompt);
        e.answer = engine::without_spaces(answer);
        require(e.tokens.size() > 1 && !e.answer.empty(), where + ": the prompt or the answer is empty");
        // However greedy decoding cuts it, the answer takes about as many tokens as its encoding.
        const std::size_t longest = words_.encode(answer).size() + 2;
        require(e.tokens.size() + 1 <= context_,
                where + ": the prompt of " + std::to_string(e.tokens.size()) +
                    " tokens and its answer are longer than the model's context of " +
                    std::to_string(context_));
        e.most_answer_tokens = std::min(longest, context_ - e.tokens.size() + 1);
        const std::size_t first = question_split(words_, e.tokens, turns - 1);
        if (!earlier.empty()) e.earlier = spans_of(earlier, e.tokens, first);
        // Known, a table's rows are still to be filled in, from the space in front of the first code on.
        e.prefill = !options_.question_aware ? first
                    : turns > 1              ? question_split(words_, e.tokens, turns - 2)
                    : !earlier.empty()       ? e.earlier.front().begin - 1
                                             : e.tokens.size();
        if (options_.needle_prefill != 0) e.prefill = std::min(e.prefill, options_.needle_prefill);
        std::erase_if(e.earlier,
                      [&e](const answer_span& a) { return a.begin <= e.prefill; }); // told, not asked
        out_.examples.push_back(std::move(e));
    }

    /// A dialogue: what is prefilled ends where the turn that asks begins, or, where the question is known, with it.
    void add(const std::string& where, const engine::dialogue& d) {
        add(where, d.prompt, d.answer);
        example& e = out_.examples.back();
        const spelled text = spell(e.tokens);
        // A tokenizer may put a space in front of a text.
        const std::size_t before =
            text.bytes.find(d.prompt.substr(0, d.windows.size() > 1 ? d.windows[1] : 1));
        require(before != std::string::npos, where + ": the tokens of a prompt do not spell it");
        for (const std::size_t byte : d.windows) e.windows.push_back(text.token_at(before + byte));
        if (!options_.question_aware && options_.needle_prefill == 0)
            e.prefill = text.token_at(before + d.question);
    }

  private:
    struct spelled {
        std::string bytes;
        std::vector<std::size_t> ends; ///< byte behind each token
        [[nodiscard]] std::size_t token_at(std::size_t byte) const {
            return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), byte) - ends.begin());
        }
    };
    [[nodiscard]] spelled spell(const std::vector<engine::token_id>& tokens) const {
        spelled s;
        for (const engine::token_id id : tokens) {
            s.bytes += words_.piece(id);
            s.ends.push_back(s.bytes.size());
        }
        return s;
    }
    /// Where the answers stand among the tokens, the first of them behind token `from`.
    [[nodiscard]] std::vector<answer_span> spans_of(const std::vector<std::string>& answers,
                                                    const std::vector<engine::token_id>& tokens,
                                                    std::size_t from) const {
        const spelled all = spell(tokens);
        const std::string& text = all.bytes;
        std::vector<answer_span> spans;
        std::size_t at = from == 0 ? 0 : all.ends[from - 1];
        for (const std::string& a : answers) {
            at = text.find(" is " + a, at);
            require(at != text.npos, "the tokens of a prompt do not spell its answer '" + a + "'");
            at += 4;
            spans.push_back({all.token_at(at), all.token_at(at + a.size() - 1) + 1});
        }
        return spans;
    }

    task& out_;
    const engine::tokenizer& words_;
    std::size_t context_;
    const task_options& options_;
};

void read_questions(const std::string& file, const std::string& task_name, needle_builder& to) {
    std::istringstream lines(read_file(file, "--task " + task_name));
    std::size_t number = 0;
    for (std::string line; !to.full() && std::getline(lines, line);) {
        const std::string where = file + ":" + std::to_string(++number);
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const auto object = nlohmann::json::parse(line, nullptr, false);
        require(object.is_object(), where + ": not a JSON object");
        for (const char* field : {"prompt", "answer"})
            require(object.contains(field) && object[field].is_string(),
                    where + ": no text in the field \"" + field + "\"");
        to.add(where, object["prompt"], object["answer"]);
    }
}

/// Documents differ in place, names and codes; the asked facts stand at evenly spread depths, so that a
/// policy which forgets some part is found out. Further queries ask for other facts of the same document.
void generate_questions(const generator& g, const std::string& prose, const std::string& task_name,
                        const engine::tokenizer& words, std::size_t context, needle_builder& to) {
    // Tokens, a name that is longer than another included; a link of a chain takes about twice as many.
    const bool chains = g.form == question_form::chain;
    const std::size_t room_for_answer = chains ? 20 * (g.links + 1) : 10;
    const engine::document_writer writer(words, prose);
    for (std::size_t i = 0; i < g.count && !to.full(); ++i) {
        engine::document_plan plan;
        plan.tokens = g.tokens;
        plan.facts = g.keys;
        plan.depth = (static_cast<double>(i) + 0.5) / static_cast<double>(g.count);
        plan.seed = g.seed * 1000003 + i; // seeds one apart share no document
        const auto written = [&] { return chains ? writer.write_chains(plan, g.links) : writer.write(plan); };
        engine::document_question d = written();
        const auto fact = [&d](std::size_t q) { return d.facts[(d.asked + q) % d.facts.size()]; };
        const auto row = [&](std::size_t q) { return "The secret code of " + fact(q).name + " is"; };
        // One question for `rows` facts, and the rows of its answer, all but the last with their codes.
        const auto table = [&](std::string text) {
            text += "Question: What are the secret codes of";
            for (std::size_t r = 0; r < g.rows; ++r) text.append(r == 0 ? " " : ", ").append(fact(r).name);
            text += "? Answer:";
            for (std::size_t r = 0; r < g.rows; ++r) {
                text += ' ';
                if (r > 0) text.append(fact(r - 1).code).append(". ");
                text.append(row(r));
            }
            return text;
        };
        // Questions q to q + turns - 1, all but the last with their answers.
        const auto conversation = [&](std::size_t q) {
            if (chains) return d.prompt;
            std::string text = d.prompt.substr(0, d.prompt.rfind("Question:"));
            if (g.form == question_form::table) return table(std::move(text));
            for (std::size_t t = q; t < q + g.turns; ++t) {
                if (t > q) text.append(" ").append(fact(t - 1).code).append(". ");
                text.append("Question: What is the secret code of ").append(fact(t).name);
                text.append("? Answer: ").append(row(t));
            }
            return text;
        };
        // A document is met to within a sentence; where that one is too much for the context, it
        // goes.
        const auto excess = [&] { // never negative: what fits has none
            const std::size_t size = words.encode(conversation(0)).size() + room_for_answer;
            return size - std::min(size, context);
        };
        while (g.tokens + room_for_answer <= context && excess() > 0) {
            plan.tokens -= std::min(plan.tokens, excess());
            d = written();
        }
        for (std::size_t q = 0; q < g.queries && !to.full(); ++q) {
            const std::size_t answers = g.form == question_form::table ? g.rows : g.turns;
            std::vector<std::string> earlier;
            if (g.form == question_form::table || g.form == question_form::every_turn)
                for (std::size_t a = 0; a + 1 < answers; ++a) earlier.push_back(fact(q + a).code);
            to.add("--task " + task_name, conversation(q), chains ? d.answer : fact(q + answers - 1).code,
                   g.turns, earlier);
        }
    }
}

void generate_dialogues(const generator& g, const std::string& prose, const std::string& task_name,
                        const engine::tokenizer& words, std::size_t context, needle_builder& to) {
    const engine::document_writer writer(words, prose);
    constexpr std::size_t room_for_answer = 10;
    for (std::size_t i = 0; i < g.count && !to.full(); ++i) {
        engine::document_plan plan;
        plan.tokens = g.tokens;
        plan.facts = g.keys;
        plan.depth = (static_cast<double>(i) + 0.5) / static_cast<double>(g.count);
        plan.seed = g.seed * 1000003 + i;
        engine::dialogue d = writer.write_dialogue(plan, g.topics);
        // A dialogue ends with a window; where that is too much for the context, it goes.
        while (g.tokens + room_for_answer <= context &&
               words.encode(d.prompt).size() + room_for_answer > context) {
            plan.tokens -= std::min<std::size_t>(plan.tokens, 50);
            d = writer.write_dialogue(plan, g.topics);
        }
        to.add("--task " + task_name, d);
    }
}

void cut_text(const std::string& text, const engine::tokenizer& words, std::size_t context,
              const task_options& options, task& out) {
    const std::string where = "--task " + out.name;
    const std::vector<engine::token_id> begin = words.encode("");
    const std::vector<engine::token_id> all = words.encode(text);
    const std::size_t piece = std::min(options.nll_tokens, context);
    require(piece >= 3,
            where + ": --nll-tokens is " + std::to_string(options.nll_tokens) + "; valid: 3 or more");
    require(options.nll_prefill >= 1 && options.nll_prefill + 2 <= piece,
            where + ": --nll-prefill is " + std::to_string(options.nll_prefill) + "; valid: 1 to " +
                std::to_string(piece - 2) + " for pieces of " + std::to_string(piece) + " tokens");
    for (std::size_t at = begin.size(); at < all.size();) {
        if (options.limit != 0 && out.examples.size() >= options.limit) break;
        const std::size_t n = std::min(piece - begin.size(), all.size() - at);
        example e;
        e.tokens = begin;
        e.tokens.insert(e.tokens.end(), all.begin() + static_cast<std::ptrdiff_t>(at),
                        all.begin() + static_cast<std::ptrdiff_t>(at + n));
        e.prefill = options.nll_prefill;
        at += n;
        // A short last piece has little long context to tell policies apart.
        if (e.tokens.size() < options.nll_prefill + 2 ||
            (e.tokens.size() < piece / 2 && !out.examples.empty()))
            break;
        out.examples.push_back(std::move(e));
    }
    require(!out.examples.empty(), where + ": the text is too short: " + std::to_string(all.size()) +
                                       " tokens; valid: more than --nll-prefill + 1");
}

} // namespace

std::size_t task::most_tokens() const {
    std::size_t most = 0;
    for (const example& e : examples) most = std::max(most, most_tokens(e));
    return most;
}

std::size_t longest_prompt(const std::vector<task>& tasks) {
    std::size_t longest = 0;
    for (const task& t : tasks)
        for (const example& e : t.examples) longest = std::max(longest, e.prefill);
    return longest;
}

std::size_t question_split(const engine::tokenizer& words, const std::vector<engine::token_id>& prompt,
                           std::size_t later) {
    std::string text;
    std::vector<std::size_t> ends; // byte behind each token
    for (const engine::token_id id : prompt) {
        text += words.piece(id);
        ends.push_back(text.size());
    }
    std::size_t at = text.rfind("Question:");
    for (; later > 0 && at != std::string::npos && at > 0; --later) at = text.rfind("Question:", at - 1);
    if (at == std::string::npos) at = text.rfind("VAR ");
    if (at == std::string::npos) at = text.rfind('\n');
    if (at == std::string::npos) return prompt.size() - 1; // one line: its last token is the question
    const auto token =
        static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
    return std::max<std::size_t>(token, 1);
}

/// "did you mean 'needle:gen'? ", or nothing.
std::string meant_by(const std::string& task) {
    constexpr std::array<std::string_view, 7> kinds = {"needle",   "facts", "turns", "table",
                                                       "dialogue", "chain", "nll"};
    const std::size_t colon = std::min(task.find(':'), task.size());
    const std::string kind(engine::nearest(std::string_view(task).substr(0, colon), kinds));
    if (kind.empty()) return "";
    const std::string rest = colon < task.size() ? task.substr(colon) : kind == "nll" ? ":builtin" : ":gen";
    return "did you mean '" + kind + rest + "'? ";
}

task make_task(const std::string& name, const engine::tokenizer& words, std::size_t context,
               const task_options& options) {
    task out;
    out.name = name;
    out.question_aware = options.question_aware;
    const generated_kind* const kind = generated(name);
    if (kind != nullptr || name.starts_with("needle:")) {
        needle_builder builder(out, words, context, options);
        if (kind != nullptr && kind->form == question_form::dialogue)
            generate_dialogues(parse_generator(name, *kind), read_file(options.prose_file, "--task " + name),
                               name, words, context, builder);
        else if (kind != nullptr)
            generate_questions(parse_generator(name, *kind), read_file(options.prose_file, "--task " + name),
                               name, words, context, builder);
        else
            read_questions(name.substr(7), name, builder);
        require(!out.examples.empty(), "--task " + name + ": there are no questions in it");
    } else if (name.starts_with("nll:")) {
        out.kind = task_kind::nll;
        const std::string rest = name.substr(4);
        const bool own = rest == "builtin";
        const std::string text = read_file(own ? options.prose_file : rest, "--task " + name);
        cut_text(own ? without_titles(text) : text, words, context, options, out);
    } else {
        throw bad_input("--task: unknown task '" + name + "'; " + meant_by(name) +
                        "valid: needle:FILE.jsonl, needle:gen[,tokens=,keys=,queries=,turns=,count=,seed=], "
                        "facts:gen[...], turns:gen[...], table:gen[,tokens=,keys=,rows=,count=,seed=], "
                        "dialogue:gen[,tokens=,keys=,topics=,count=,seed=], "
                        "chain:gen[,tokens=,keys=,links=,count=,seed=], nll:FILE.txt, nll:builtin");
    }
    return out;
}

} // namespace eval
