// What kvtl-eval measures on: files, generated documents, pieces of text.
// SPDX-License-Identifier: MIT
#include "tasks.hpp"

#include "error.hpp"
#include "gguf.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace {

const std::string data = std::string(KVTL_SOURCE_DIR) + "/examples/data/";

struct fixture {
    engine::gguf_file file{data + "tiny-2k.gguf"};
    engine::tokenizer words{file};
    eval::task_options options{.prose_file = data + "prose.txt"};

    eval::task make(const std::string& name) { return eval::make_task(name, words, 2048, options); }
    std::string message(const std::string& name) {
        try {
            (void)make(name);
        } catch (const engine::bad_input& e) {
            return e.what();
        }
        return "accepted";
    }
};

/// A file that lives as long as its test.
struct scratch {
    std::string path = "tasks-" + std::to_string(::getpid()) + ".jsonl";
    explicit scratch(const std::string& text) { std::ofstream(path) << text; }
    ~scratch() { std::remove(path.c_str()); }
};

std::string tail(const fixture& f, const eval::example& e) {
    const std::span<const engine::token_id> all = e.tokens;
    return f.words.decode(all.subspan(e.prefill));
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST_CASE_FIXTURE(fixture, "generated questions: the fact is before the split, the question behind it") {
    const auto t = make("needle:gen,tokens=600,keys=4,queries=2,count=3,seed=5");
    REQUIRE(t.examples.size() == 6);
    for (const auto& e : t.examples) {
        const std::span<const engine::token_id> all = e.tokens;
        CHECK(contains(words.decode(all.first(e.prefill)), " is " + e.answer + "."));
        CHECK(tail(*this, e).find("Question: What is the secret code of ") <= 1);
        CHECK(!contains(tail(*this, e), e.answer));
        CHECK(e.tokens.size() > 500);
        CHECK(e.tokens.size() < 700);
    }
    CHECK(t.examples[0].answer != t.examples[1].answer); // two queries of one document
    CHECK(t.examples[0].prefill == t.examples[1].prefill);
    CHECK(make("needle:gen,tokens=600,keys=4,queries=2,count=3,seed=5").examples[5].tokens ==
          t.examples[5].tokens);
    CHECK(make("needle:gen,tokens=600,keys=4,queries=2,count=3,seed=6").examples[5].tokens !=
          t.examples[5].tokens);
}

TEST_CASE_FIXTURE(fixture, "facts: the generator of needles with eight facts a document") {
    const auto facts = make("facts:gen,tokens=1200,count=3,seed=5"),
               eight = make("needle:gen,tokens=1200,keys=8,count=3,seed=5");
    REQUIRE(facts.examples.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(facts.examples[i].tokens == eight.examples[i].tokens);
    CHECK(facts.examples[0].tokens != make("facts:gen,tokens=1200,count=3,seed=6").examples[0].tokens);
}

TEST_CASE_FIXTURE(fixture,
                  "dialogues: windows begin with an utterance, and the turn that asks is the question") {
    const auto t = make("dialogue:gen,tokens=1500,keys=8,topics=3,count=4,seed=5");
    REQUIRE(t.examples.size() == 4);
    for (const auto& e : t.examples) {
        const std::span<const engine::token_id> all = e.tokens;
        const std::string before = words.decode(all.first(e.prefill)), asked = tail(*this, e);
        CHECK(e.tokens.size() > 1400);
        CHECK(e.tokens.size() < 1800);
        CHECK(contains(before, " is " + e.answer + "."));
        CHECK(!contains(asked, e.answer));
        CHECK(asked.find("Ann: ") <= 1);
        CHECK(asked.find(". Question: What is the secret code of ") > 5);
        CHECK(asked.ends_with(" is"));
        REQUIRE(e.windows.size() >= 2);
        for (std::size_t i = 0; i < e.windows.size(); ++i) {
            const std::size_t end = i + 1 < e.windows.size() ? e.windows[i + 1] : e.prefill;
            const std::string window = words.decode(all.subspan(e.windows[i], end - e.windows[i]));
            CHECK(window.find("Ann: ") <= 1);
            CHECK(std::count(window.begin(), window.end(), '\n') == 4); // utterances
        }
        std::size_t facts = 0;
        for (std::size_t at = 0; (at = before.find("The secret code of ", at)) != std::string::npos; ++at)
            ++facts;
        CHECK(facts == 8);
    }
    CHECK(make("dialogue:gen,tokens=1500,count=2,seed=6").examples[1].tokens !=
          make("dialogue:gen,tokens=1500,count=2,seed=7").examples[1].tokens);
    CHECK(contains(message("dialogue:gen,topics=99"), "the prose has passages for 1 to 15 topics, not 99"));
    CHECK(contains(message("dialogue:gen,tokens=100"), "dialogues of 100 tokens hold 1 to "));
}

TEST_CASE_FIXTURE(fixture, "chains: following the references of the document gives the answer") {
    const std::string name = "chain:gen,tokens=1500,keys=3,links=3,count=10";
    const auto t = make(name + ",seed=5");
    REQUIRE(t.examples.size() == 10);
    for (const auto& e : t.examples) {
        CHECK(e.tokens.size() > 1350);
        CHECK(e.tokens.size() < 1650);
        const std::span<const engine::token_id> all = e.tokens;
        const std::string document = words.decode(all.first(e.prefill)), asked = tail(*this, e);
        const std::string question = "Question: What is the value of VAR ";
        REQUIRE(asked.find(question) <= 1);
        std::string variable = asked.substr(asked.find(question) + question.size(), 3), answer;
        CHECK(asked.ends_with("Answer: VAR " + variable + " ="));
        std::size_t before = document.size();
        for (int links = 0;; ++links) { // each is stated once, behind what it refers to
            const std::string statement = "VAR " + variable + " = ";
            const std::size_t at = document.find(statement);
            REQUIRE(at < before);
            CHECK(document.find(statement, at + 1) == std::string::npos);
            before = at;
            const std::size_t value = at + statement.size();
            const std::string text = document.substr(value, document.find('.', value) - value);
            answer += (links == 0 ? "" : ".VAR" + variable + "=") + text;
            if (text.size() == 5) {
                CHECK(links == 3);
                break;
            }
            REQUIRE(text.size() == 3);
            variable = text;
        }
        CHECK(e.answer == answer);
        CHECK(e.most_answer_tokens >= words.encode(answer).size());
    }
    CHECK(make(name + ",seed=5").examples[9].tokens == t.examples[9].tokens);
    CHECK(make(name + ",seed=6").examples[9].tokens != t.examples[9].tokens);
    for (const auto& e : make("chain:gen,tokens=1960,count=20").examples)
        CHECK(e.tokens.size() + e.answer.size() < 2048);
    CHECK(contains(message("chain:gen,keys=20,links=9,tokens=2000"),
                   "20 chains of 10 variables; valid: up to 128"));
}

TEST_CASE_FIXTURE(fixture,
                  "turns: questions follow each other, and the first one is where the prompt is split") {
    const std::string name = "needle:gen,tokens=600,keys=4,count=3,seed=5";
    const auto one = make(name + ",queries=4"), three = make(name + ",turns=3");
    REQUIRE(three.examples.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        const auto& e = three.examples[i];
        CHECK(e.answer == one.examples[4 * i + 2].answer); // the third question of the same document
        CHECK(e.prefill == one.examples[4 * i].prefill);
        const std::string asked = tail(*this, e), first = one.examples[4 * i].answer,
                          second = one.examples[4 * i + 1].answer;
        CHECK(asked.find(" is " + first + ". Question: ") < asked.find(" is " + second + ". Question: "));
        CHECK(contains(asked, " is " + second + ". Question: "));
        CHECK(!contains(asked, e.answer));
    }
    options.question_aware = true; // of the first turn
    const auto aware = make(name + ",turns=3");
    for (std::size_t i = 0; i < 3; ++i) {
        const std::string asked = tail(*this, aware.examples[i]);
        CHECK(aware.examples[i].tokens == three.examples[i].tokens);
        CHECK(!contains(asked, one.examples[4 * i].answer));
        CHECK(contains(asked, one.examples[4 * i + 1].answer));
    }
}

/// The digits at each place where an earlier answer counts.
std::vector<std::string> earlier_answers(const fixture& f, const eval::example& e) {
    const std::span<const engine::token_id> all = e.tokens;
    std::vector<std::string> found;
    for (const auto& a : e.earlier) found.push_back(f.words.decode(all.subspan(a.begin, a.end - a.begin)));
    return found;
}

TEST_CASE_FIXTURE(fixture, "turns: the text of needle:gen, and each answer counts where it stands") {
    const std::string name = ":gen,tokens=600,keys=4,turns=3,count=3,seed=5";
    const auto last = make("needle" + name), every = make("turns" + name);
    REQUIRE(every.examples.size() == 3);
    options.question_aware = true;
    const auto aware = make("turns" + name);
    for (std::size_t i = 0; i < 3; ++i) {
        const auto& e = every.examples[i];
        CHECK(e.tokens == last.examples[i].tokens);
        CHECK(e.prefill == last.examples[i].prefill);
        CHECK(last.examples[i].earlier.empty());
        const auto answers = earlier_answers(*this, e);
        REQUIRE(answers.size() == 2);
        const std::string asked = tail(*this, e);
        for (const std::string& a : answers) {
            CHECK(a.size() == 5);
            CHECK(contains(asked, " is " + a + ". Question: "));
        }
        CHECK(answers[0] != answers[1]);
        // The first answer is told where the question is known.
        CHECK(earlier_answers(*this, aware.examples[i]) == std::vector{answers[1]});
    }
}

TEST_CASE_FIXTURE(fixture, "table: one question for many facts, a row for each, and every code counts") {
    const std::string name = "table:gen,tokens=900,keys=6,rows=4,count=3,seed=5";
    const auto t = make(name);
    REQUIRE(t.examples.size() == 3);
    options.question_aware = true;
    const auto aware = make(name);
    for (std::size_t i = 0; i < 3; ++i) {
        const auto& e = t.examples[i];
        const std::span<const engine::token_id> all = e.tokens;
        const std::string document = words.decode(all.first(e.prefill)), asked = tail(*this, e);
        auto codes = earlier_answers(*this, e);
        codes.push_back(e.answer);
        REQUIRE(codes.size() == 4);
        std::string rows, names;
        for (const std::string& code : codes) { // the document says whose code it is
            const std::string before = document.substr(0, document.find(" is " + code + "."));
            const std::string fact_of = before.substr(before.rfind("The secret code of "));
            rows += (rows.empty() ? "" : " ") + fact_of + " is";
            if (&code != &codes.back()) rows += " " + code + ".";
            names += (names.empty() ? "" : ", ") + fact_of.substr(std::string("The secret code of ").size());
        }
        CHECK(asked.ends_with("Question: What are the secret codes of " + names + "? Answer: " + rows));
        // Known, all but the codes is prefilled: the first digit is still to be said.
        const auto& known = aware.examples[i];
        CHECK(known.tokens == e.tokens);
        CHECK(known.earlier.size() == 3);
        CHECK(known.prefill + 1 == known.earlier[0].begin);
    }
    CHECK(make("table:gen,tokens=1200,count=1").examples[0].earlier.size() == 7);
    CHECK(make("table:gen,tokens=900,keys=2,rows=1,count=1").examples[0].earlier.empty());
}

TEST_CASE_FIXTURE(fixture, "documents near the context's length fit into it") {
    const auto t = make("needle:gen,tokens=2030,count=20");
    for (const auto& e : t.examples) CHECK(e.tokens.size() + 5 < 2048);
    CHECK(t.most_tokens() <= 2048);
    CHECK(contains(message("needle:gen,tokens=2100,count=1"), "longer than the model's context of 2048"));
}

TEST_CASE_FIXTURE(fixture, "options move the split and bound the number") {
    options.limit = 2;
    options.question_aware = true;
    auto t = make("needle:gen,tokens=500");
    REQUIRE(t.examples.size() == 2);
    CHECK(t.examples[0].prefill == t.examples[0].tokens.size());
    options.question_aware = false;
    options.needle_prefill = 100;
    t = make("needle:gen,tokens=500");
    CHECK(t.examples[0].prefill == 100);
}

TEST_CASE_FIXTURE(fixture, "a prompt without a question is split at its last VAR, or else its last line") {
    const auto chain = words.encode("VAR AB1 = 73152. Some text.\nAnd more. VAR CD2 =");
    const std::span<const engine::token_id> all = chain;
    CHECK(contains(words.decode(all.subspan(eval::question_split(words, chain))), "VAR CD2 ="));
    CHECK(!contains(words.decode(all.subspan(eval::question_split(words, chain))), "more"));
    const auto lines = words.encode("The first line.\nThe last line");
    const std::span<const engine::token_id> two = lines;
    CHECK(contains(words.decode(two.subspan(eval::question_split(words, lines))), "The last line"));
    CHECK(!contains(words.decode(two.subspan(eval::question_split(words, lines))), "first"));
    const auto one = words.encode("no line end");
    CHECK(eval::question_split(words, one) == one.size() - 1);
}

TEST_CASE_FIXTURE(fixture, "a file of questions: bad lines are named") {
    const std::string good = R"({"prompt": "A fact. Question: which? Answer:", "answer": "this one"})";
    {
        const scratch lines(good + "\n\n" + good + "\n");
        const auto t = make("needle:" + lines.path);
        REQUIRE(t.examples.size() == 2);
        CHECK(t.examples[0].answer == "thisone");
        CHECK(tail(*this, t.examples[0]).find("Question: which?") <= 1);
    }
    const auto second_line = [&](const std::string& line) {
        const scratch lines(good + "\n" + line + "\n");
        return message("needle:" + lines.path);
    };
    CHECK(contains(second_line(R"({"prompt": "x"})"), ".jsonl:2: no text in the field \"answer\""));
    CHECK(contains(second_line(R"({"answer": "x"})"), ".jsonl:2: no text in the field \"prompt\""));
    CHECK(contains(second_line(R"({"prompt": "x", "answer": 5})"),
                   ".jsonl:2: no text in the field \"answer\""));
    CHECK(contains(second_line(R"({"prompt": "x", "ans)"), ".jsonl:2: not a JSON object"));
    CHECK(contains(second_line(R"({"prompt": "a b", "answer": " "})"), ".jsonl:2: the prompt or the answer"));
    const scratch empty("\n");
    CHECK(contains(message("needle:" + empty.path), "no questions"));
}

TEST_CASE_FIXTURE(fixture, "text is cut into pieces that begin alike and lose nothing between them") {
    options.nll_tokens = 300;
    options.nll_prefill = 50;
    const auto t = make("nll:builtin");
    REQUIRE(t.examples.size() > 10);
    const auto begin = t.examples[0].tokens[0];
    std::vector<engine::token_id> joined{begin};
    for (std::size_t i = 0; i < 3; ++i) {
        const auto& e = t.examples[i];
        CHECK(e.tokens.size() == 300);
        CHECK(e.prefill == 50);
        CHECK(e.tokens[0] == begin);
        joined.insert(joined.end(), e.tokens.begin() + 1, e.tokens.end());
    }
    const std::string text = words.decode(joined);
    CHECK(contains(text, "A canal is level water"));
    CHECK(!contains(text, "# "));
    CHECK(t.most_tokens() == 299); // the last token is only predicted
    options.nll_prefill = 299;
    CHECK(contains(message("nll:builtin"), "--nll-prefill is 299; valid: 1 to 298"));
}

TEST_CASE_FIXTURE(fixture, "what no task can be") {
    CHECK(contains(message("haystack:x"), "unknown task 'haystack:x'; valid: needle:FILE.jsonl"));
    CHECK(contains(message("needle:missing.jsonl"), "cannot read missing.jsonl"));
    CHECK(contains(message("nll:missing.txt"), "cannot read missing.txt"));
    CHECK(contains(message("needle:gen,depth=1"), "'depth=1' is unknown; valid: tokens"));
    CHECK(contains(message("chain:gen,turns=2"), "'turns=2' is unknown; valid: tokens, keys, links"));
    CHECK(contains(message("facts:gen,links=2"), "'links=2' is unknown; valid: tokens, keys, queries"));
    CHECK(contains(message("chain:gen,links=0"), "links: valid: 1 to 100"));
    CHECK(contains(message("chains:gen"), "did you mean 'chain:gen'?"));
    CHECK(contains(message("facts:FILE"), "unknown task"));
    CHECK(contains(message("needle:gen,count=x"), "'count=x' needs a whole number"));
    CHECK(contains(message("needle:gen,count="), "needs a whole number"));
    CHECK(contains(message("needle:gen,count=0"), "count: valid: 1"));
    CHECK(contains(message("needle:gen,queries=2"), "queries: valid: 1 to keys"));
    CHECK(contains(message("needle:gen,keys=2,turns=3"), "turns: valid: 1 to keys"));
    CHECK(contains(message("needle:gen,turns=0"), "turns: valid: 1 to keys"));
    CHECK(contains(message("turns:gen,turns=9"), "turns: valid: 1 to keys"));
    CHECK(contains(message("table:gen,rows=9"), "rows: valid: 1 to keys"));
    CHECK(contains(message("table:gen,turns=2"), "'turns=2' is unknown; valid: tokens, keys, rows, count"));
    CHECK(contains(message("tabel:gen"), "did you mean 'table:gen'?"));
}

} // namespace
