// Whether what kvtl-eval measures is what it says: the full model recorded, replayed and compared with
// itself, and policies that attend less.
// SPDX-License-Identifier: MIT
#include "evaluator.hpp"

#include "episode_probe.hpp"
#include "error.hpp"
#include "fingerprint.hpp"
#include "foresight.hpp"
#include "gguf.hpp"
#include "lookahead.hpp"
#include "support/scratch_folder.hpp"
#include "votes.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>

namespace {

const std::string data = std::string(KVTL_SOURCE_DIR) + "/examples/data/";

struct fixture {
    engine::gguf_file file{data + "tiny-2k.gguf"};
    engine::model model{file};
    engine::tokenizer words{file};
    engine::thread_pool pool{2};
    eval::task_options task_options{.prose_file = data + "prose.txt"};
    engine::cache_options options;

    fixture() {
        options.shape = model.hyper().shape;
        options.memory_bytes = 64 << 20;
        options.attend_tokens = 4096;
        options.shards = 2;
        options.io = "memory";
    }
    eval::row run(const eval::task& t, const std::string& policy, bool open_loop = true) {
        options.max_tokens = t.most_tokens();
        options.policy = policy;
        eval::evaluator evaluator(model, words, pool, options, {}, "test");
        eval::tally tally;
        for (const auto& e : t.examples) {
            evaluator.record(t, e);
            evaluator.measure(t, e, options, open_loop, tally);
        }
        return tally.to_row(options, t);
    }
    eval::task make(const std::string& name) { return eval::make_task(name, words, 2048, task_options); }
};

TEST_CASE_FIXTURE(fixture, "full against itself: every answer right, no difference") {
    const auto t = make("needle:gen,tokens=500,count=3");
    const auto r = run(t, "full");
    CHECK(r.accuracy.value() == 1);
    CHECK(r.accuracy_ci95.value()[0] == doctest::Approx(0.4385).epsilon(0.001));
    CHECK(r.kl.value() < 1e-9);
    CHECK(r.top1_agreement.value() == 1);
    CHECK(r.output_error.value() < 1e-5);
    CHECK(r.mass_recall.value() == doctest::Approx(1).epsilon(1e-5));
    CHECK(!r.nll);
    CHECK(r.examples == 3);
    CHECK(r.decoded_tokens >= 3 * (t.examples[0].tokens.size() - t.examples[0].prefill + 4));
    // 2 (K, V) x 6 layers x 2 heads x 64 x 2 bytes for each of the tokens that were held
    CHECK(r.kept_bytes.value() > 450 * 3072.0);
    CHECK(r.kept_bytes.value() <= static_cast<double>(t.most_tokens()) * 3072.0);
    CHECK(r.bytes_per_entry.value() == doctest::Approx(256));
}

TEST_CASE_FIXTURE(fixture, "layers that share are compared with the model whose layers do not") {
    task_options.nll_tokens = 200;
    task_options.nll_prefill = 150;
    task_options.limit = 1;
    const auto t = make("nll:builtin");
    const auto whole = run(t, "full", false);
    options.owner = {0, 0, 2, 2, 4, 4};
    const auto shared = run(t, "full");
    CHECK(shared.nll_full.value() == whole.nll.value());
    CHECK(shared.nll.value() > whole.nll.value() + 0.1); // the model was not trained for it
    CHECK(shared.kl.value() > 0.1);
    CHECK(shared.output_error.value() < 1e-5); // the prompt that is replayed is that of layers that share
    CHECK(shared.bytes_per_entry.value() == doctest::Approx(256));
    CHECK(shared.kept_bytes.value() * 2 == doctest::Approx(whole.kept_bytes.value()));
}

TEST_CASE_FIXTURE(fixture, "the question in the prompt: nothing is forced, the answer is still right") {
    task_options.question_aware = true;
    const auto r = run(make("needle:gen,tokens=500,count=2"), "full");
    CHECK(r.accuracy.value() == 1);
    CHECK(r.question == "known");
    CHECK(!r.kl);
    CHECK(!r.mass_recall);
}

TEST_CASE_FIXTURE(fixture,
                  "several answers of an example: each counts, and a wrong digit makes one of them wrong") {
    auto t = make("turns:gen,tokens=500,keys=3,turns=3,count=2");
    CHECK(run(t, "full", false).accuracy.value() == 1);
    const auto [begin, end] = t.examples[0].earlier[1];
    REQUIRE(end == begin + 5);
    t.examples[0].tokens[end - 1] = t.examples[0].tokens[end - 1] == words.encode("1").back()
                                        ? words.encode("2").back()
                                        : words.encode("1").back();
    const auto r = run(t, "full", false);
    CHECK(r.accuracy.value() == doctest::Approx(5.0 / 6));
    CHECK(r.accuracy_ci95.value() == eval::wilson95(5, 6));
    CHECK(r.examples == 2);
}

TEST_CASE_FIXTURE(fixture, "running text: fewer attended entries cost likelihood, mass and output") {
    task_options.nll_tokens = 400;
    task_options.nll_prefill = 300;
    task_options.limit = 1;
    const auto t = make("nll:builtin");
    const auto full = run(t, "full");
    CHECK(full.nll.value() == doctest::Approx(full.nll_full.value()).epsilon(1e-9));
    CHECK(full.nll.value() > 1);
    CHECK(full.nll.value() < 6);
    CHECK(!full.accuracy);
    CHECK(full.decoded_tokens == 99);

    const auto everything = run(t, "dynakv");
    CHECK(everything.kl.value() < 1e-4);
    CHECK(everything.output_error.value() < 1e-2);
    CHECK(everything.mass_recall.value() == doctest::Approx(1).epsilon(1e-3));

    options.attend_tokens = 64;
    const auto little = run(t, "dynakv");
    CHECK(little.kl.value() > 1e-3);
    CHECK(little.mass_recall.value() < 0.95);
    CHECK(little.mass_recall.value() > 0.2);
    CHECK(little.output_error.value() > 0.02);
    CHECK(little.nll_full.value() == doctest::Approx(full.nll.value()).epsilon(1e-9));
    CHECK(full.kl_max.value() < 1e-9);
    CHECK(little.kl_max.value() > 2 * little.kl.value()); // of 99 tokens
    CHECK(little.kl_max.value() < 99 * little.kl.value());

    const auto closed = run(t, "dynakv", false);
    CHECK(closed.nll.value() == doctest::Approx(little.nll.value()).epsilon(1e-9)); // and repeatable
    CHECK(!closed.output_error);
    CHECK(!closed.mass_recall);
}

TEST_CASE_FIXTURE(fixture, "queries of a probe that are turned back look from where they say") {
    const auto prompt = words.encode("A canal is level water, and a lock is how a boat leaves it.");
    const auto probe = engine::continuation(words, "What is a lock?");
    const std::span<const engine::token_id> all = prompt;
    const auto back = engine::probe_queries(model, pool, all, probe, 5),
               there = engine::probe_queries(model, pool, all.first(all.size() - 5), probe),
               plain = engine::probe_queries(model, pool, all, probe);
    // The first layer's queries know the token and its place, and nothing else.
    float largest = 0, moved = 0;
    for (std::size_t i = 0; i < back[0].size(); ++i) {
        largest = std::max(largest, std::fabs(back[0][i] - there[0][i]));
        moved = std::max(moved, std::fabs(back[0][i] - plain[0][i]));
    }
    CHECK(largest < 1e-3F);
    CHECK(moved > 0.1F);
}

TEST_CASE_FIXTURE(fixture, "a policy that is told what will be attended keeps the fact") {
    for (const char* policy : {"external_mask", "random_keep"})
        if (!engine::policy_wants(policy).evicts) return; // not built in
    options.keep_tokens = 64;
    options.engine_inputs = engine::model_file_inputs | kvtl::engine_input::external;
    const auto t = make("needle:gen,tokens=500,count=3");
    const auto told = run(t, "external_mask"), random = run(t, "random_keep");
    CHECK(told.accuracy.value() > 0.6); // its window and the question take half of what it may keep
    CHECK(random.accuracy.value() < 0.1);
    CHECK(told.kept_bytes.value() < 110 * 3072.0); // 64 entries, and what was decoded
    REQUIRE(told.kept_by_layer.size() == options.shape.layers);
    double kept = 0;
    for (const double entries : told.kept_by_layer) kept += entries;
    CHECK(kept * 512 ==
          doctest::Approx(told.kept_bytes.value())); // of 2 heads of 64 numbers, keys and values
    options.keep_tokens = 0;
    const auto everything = run(t, "full");
    CHECK(everything.kept_by_layer.empty());
}

TEST_CASE_FIXTURE(fixture,
                  "later attention: what the decoded queries look at, less than an even share is nothing") {
    // Two heads of a group of one; head 0 looks at entry 11, head 1 at all alike.
    constexpr kvtl::shape shape{.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 8};
    constexpr std::size_t prefilled = 40, decoded = 3, tokens = prefilled + decoded;
    eval::layer_recording r;
    r.q.assign(tokens * 16, 0), r.k.assign(tokens * 16, 0);
    for (std::size_t t = 0; t < tokens; ++t) r.q[t * 16] = 30;
    r.k[11 * 16] = 4; // of head 0 alone
    const auto later = eval::later_attention(r, shape, prefilled, decoded);
    REQUIRE(later.size() == prefilled * 2);
    for (std::size_t t = 0; t < prefilled; ++t) {
        const bool near = t >= 6 && t <= 16;
        CHECK(later[t * 2] == doctest::Approx(near ? 40 : 0).epsilon(1e-3)); // all of it
        CHECK(later[t * 2 + 1] == 0); // a little less than an even share: decoded entries have some of it
    }
}

TEST_CASE_FIXTURE(fixture, "the recorded log-sum-exps and outputs are those of dense attention") {
    const auto t = make("needle:gen,tokens=300,count=1");
    options.max_tokens = t.most_tokens();
    eval::evaluator evaluator(model, words, pool, options, {}, "test");
    evaluator.record(t, t.examples[0]);
    const auto& rec = evaluator.recorded();
    REQUIRE(rec.prefilled == t.examples[0].prefill);
    REQUIRE(rec.prefilled + rec.decoded == t.examples[0].tokens.size());
    constexpr std::size_t dim = 64, query_heads = 4, heads = 2;
    const std::size_t step = rec.decoded / 2, at = rec.prefilled + step;
    for (const std::size_t layer : {0U, 5U})
        for (std::size_t h = 0; h < query_heads; ++h) {
            const auto& r = rec.layers[layer];
            REQUIRE(r.k.size() == (rec.prefilled + rec.decoded) * heads * dim);
            double sum = 0;
            std::vector<double> out(dim, 0.0);
            for (std::size_t i = 0; i <= at; ++i) {
                const std::size_t entry = (i * heads + h / 2) * dim;
                double dot = 0;
                for (std::size_t d = 0; d < dim; ++d)
                    dot += static_cast<double>(r.q[(at * query_heads + h) * dim + d]) *
                           static_cast<double>(r.k[entry + d]);
                const double weight = std::exp(dot / 8);
                sum += weight;
                for (std::size_t d = 0; d < dim; ++d) out[d] += weight * static_cast<double>(r.v[entry + d]);
            }
            CHECK(static_cast<double>(r.lse[step * query_heads + h]) ==
                  doctest::Approx(std::log(sum)).epsilon(0.002));
            for (std::size_t d = 0; d < dim; d += 17)
                CHECK(std::abs(static_cast<double>(r.out[(step * query_heads + h) * dim + d]) -
                               out[d] / sum) < 5e-3);
        }
}

TEST_CASE_FIXTURE(fixture, "what a policy that looks ahead is told reaches it, and changes what it keeps") {
    if (!engine::policy_wants("lookahead_probe").evicts) return; // not built in
    const auto t = make("needle:gen,tokens=500,count=1");
    options.max_tokens = t.most_tokens();
    options.policy = "lookahead_probe";
    options.keep_tokens = options.attend_tokens = 48;
    eval::evaluator evaluator(model, words, pool, options, engine::policy_wants(options.policy), "test");
    const auto kl_with = [&](const char* probe) {
        evaluator.look_ahead(probe);
        evaluator.record(t, t.examples[0]);
        const auto& probes = evaluator.recorded().layers[5].probe;
        CHECK(probes.size() == engine::continuation(words, probe).size() * 4 * 64);
        eval::tally tally;
        evaluator.measure(t, t.examples[0], options, true, tally);
        const auto r = tally.to_row(options, t);
        CHECK(r.question == "hidden");
        CHECK(r.keep_tokens == 48);
        CHECK(r.mass_recall.value() < 0.99);
        return r.kl.value();
    };
    const double question = kl_with("Question: What is the secret code of");
    CHECK(question == kl_with("Question: What is the secret code of"));
    CHECK(question < kl_with("it was a warm and quiet afternoon"));
}

TEST_CASE_FIXTURE(fixture, "an episode's probe is text of the windows that belong with the question") {
    const auto t = make("dialogue:gen,tokens=1500,keys=8,topics=3,count=2");
    for (const auto& e : t.examples) {
        const auto p = eval::probe_of(model, e, {.episodes = 3, .medoids = 1});
        REQUIRE(p.labels.size() == e.windows.size());
        REQUIRE(p.episode < 3);
        bool found = false; // one window of the episode, from its beginning
        for (std::size_t i = 0; i < e.windows.size(); ++i)
            found = found || (p.labels[i] == p.episode &&
                              std::equal(p.probe.begin(), p.probe.end(),
                                         e.tokens.begin() + static_cast<std::ptrdiff_t>(e.windows[i])));
        CHECK(found);
        CHECK(p.probe.size() > 30);
        CHECK(p.probe.size() <= engine::most_probe_tokens);
    }
    CHECK_THROWS_WITH_AS(static_cast<void>(eval::probe_of(model, t.examples[0], {.episodes = 0})),
                         doctest::Contains("episodes is 0; valid: 1 to "), engine::run_failure);
}

TEST_CASE_FIXTURE(fixture,
                  "a policy that evicts after each chunk reads the prompt itself, by the episode's probe") {
    if (!engine::policy_wants("epicache").by_chunk) return; // not built in
    const auto t = make("dialogue:gen,tokens=700,keys=4,topics=2,count=1");
    const auto& e = t.examples[0];
    options.max_tokens = t.most_tokens();
    options.policy = "epicache";
    options.keep_tokens = options.attend_tokens = 64;
    // The cache has room for a chunk and for what a layer may keep of earlier ones, not for the prompt.
    const auto own = eval::sized_for(options, t, e);
    CHECK(own.chunk_tokens == eval::block_tokens);
    const auto takes = [&](std::size_t prefill, std::size_t chunk, const std::string& votes,
                           const char* cap) {
        auto o = own;
        o.prefill_tokens = prefill, o.chunk_tokens = chunk, o.votes = votes;
        o.settings.push_back({"epicache", "budget", "cap", cap});
        const auto least = engine::least_memory(o);
        REQUIRE_MESSAGE(least.ok(), (least.ok() ? std::string() : least.error().message));
        return least->total();
    };
    const auto room = [&](std::size_t tokens, const std::string& votes, const char* cap) {
        const std::size_t whole = takes(e.prefill, 0, votes, cap);
        CHECK(takes(e.prefill, own.chunk_tokens, votes, cap) ==
              takes(tokens + own.chunk_tokens, 0, votes, cap));
        CHECK(takes(e.prefill, own.chunk_tokens, votes, cap) != whole);
    };
    const kvtl_test::scratch_folder folder;
    const std::string votes = folder.file("votes");
    REQUIRE(engine::write_votes(votes, own.shape, own.fingerprint,
                                {std::vector<std::uint8_t>(24), {0, 1, 1, 1, 1, 9}})
                .ok());
    room(64, "", "3"); // layers are alike
    room(std::size_t{3} * 64, votes, "3");
    room(std::size_t{5} * 64, votes, "5");
    eval::evaluator evaluator(model, words, pool, options, engine::policy_wants(options.policy), "test");
    evaluator.record(t, e);
    const auto with = [&](const kvtl::episodes_config& episodes) {
        evaluator.divide(episodes);
        eval::tally tally;
        evaluator.measure(t, e, options, true, tally);
        return tally.to_row(options, t);
    };
    const auto one = with({.episodes = 1, .medoids = 1}), two = with({.episodes = 2, .medoids = 1});
    CHECK(one.kl.value() != two.kl.value());
    CHECK(two.kl.value() == with({.episodes = 2, .medoids = 1}).kl.value());
    CHECK(two.mass_recall.value() < 0.999);
    const double decoded = static_cast<double>(two.decoded_tokens);
    CHECK(two.kept_bytes.value() == (64 + decoded) * 12 * 256); // not a row of the probe

    options.keep_tokens = options.attend_tokens =
        e.prefill; // room for everything: as the full model reads it
    const auto all = with({.episodes = 2, .medoids = 1});
    CHECK(all.kl.value() < 1e-4);
    CHECK(all.output_error.value() < 1e-2);
}

TEST_CASE_FIXTURE(fixture,
                  "a policy that has a prompt replayed reads it itself, and keeps what answers need") {
    if (!engine::policy_wants("kvzip").replays) return; // not built in
    const auto t = make("needle:gen,tokens=600,count=1");
    const auto& e = t.examples[0];
    options.max_tokens = t.most_tokens();
    options.policy = "kvzip";
    eval::evaluator evaluator(model, words, pool, options, engine::policy_wants(options.policy), "test");
    evaluator.record(t, e);
    const auto with = [&](const char* policy, std::size_t keep) {
        options.policy = policy;
        options.keep_tokens = options.attend_tokens = keep;
        eval::tally tally;
        evaluator.measure(t, e, options, false, tally);
        return tally.to_row(options, t);
    };
    const auto some = with("kvzip", 96);
    const auto unasked = with("snapkv_group", 96);
    CHECK(some.accuracy.value() > unasked.accuracy.value());
    CHECK(some.kl.value() < unasked.kl.value());
    const double decoded = static_cast<double>(some.decoded_tokens);
    CHECK(some.kept_bytes.value() == (96 + decoded) * 12 * 256); // not a row of the replay
    CHECK(with("kvzip", e.prefill).kl.value() < 1e-4);
    CHECK(with("kvzip_plus", 96).kl.value() != some.kl.value());
}

TEST_CASE_FIXTURE(fixture, "a policy that only evicts is opened for its own prompt, others for all") {
    const auto t = make("needle:gen,tokens=500,count=1");
    const auto& e = t.examples[0];
    options.max_tokens = 2000;
    options.prefill_tokens = 1900;
    options.policy = "dynakv";
    CHECK(eval::sized_for(options, t, e).max_tokens == 2000);
    CHECK(eval::sized_for(options, t, e).prefill_tokens == 1900);
    if (!engine::policy_wants("snapkv_group").evicts) return;
    options.policy = "snapkv_group";
    CHECK(eval::sized_for(options, t, e).max_tokens == t.most_tokens());
    CHECK(eval::sized_for(options, t, e).prefill_tokens == e.prefill);
}

TEST_CASE_FIXTURE(fixture, "kinds of tokens") {
    const auto text = words.encode("and the man and the dog, and the cat.");
    const auto kinds = eval::kinds_of(text, words);
    REQUIRE(kinds.size() == text.size());
    CHECK(kinds.front() == eval::token_kind::first);
    for (std::size_t i = 1; i < text.size(); ++i) {
        const std::string piece = words.piece(text[i]);
        CAPTURE(piece);
        if (piece == "," || piece == ".") CHECK(kinds[i] == eval::token_kind::punctuation);
        if (piece == " and" || piece == " the") CHECK(kinds[i] == eval::token_kind::common);
        if (piece == " dog" || piece == " man") CHECK(kinds[i] == eval::token_kind::rare);
    }
}

TEST_CASE_FIXTURE(fixture, "what each token takes is what the cache stores") {
    options.fingerprint = engine::fingerprint_of(model);
    options.rope_frequencies.assign(model.rope_frequencies().begin(), model.rope_frequencies().end());
    options.rope_neighbours = model.hyper().pairing == engine::rope_pairing::neighbours;
    options.max_tokens = 300;
    task_options.nll_tokens = 300;
    task_options.limit = 1;
    const auto t = make("nll:builtin");
    options.settings.push_back({"dynakv_lr", "cache", "sink_tokens", "0"});
    options.settings.push_back({"dynakv_lr", "cache", "window_tokens", "1"}); // one plain row of 300
    eval::evaluator evaluator(model, words, pool, options, {}, "test");
    evaluator.record(t, t.examples[0]);
    eval::tally tally;
    options.policy = "dynakv_lr";
    evaluator.measure(t, t.examples[0], options, false, tally);
    double by_layer = 0, by_kind = 0;
    REQUIRE(tally.kept_of_rows.layers.size() == options.shape.layers);
    for (const auto& s : tally.kept_of_rows.layers) by_layer += s.keys + s.values;
    for (const auto& s : tally.kept_of_rows.kinds) by_kind += s.keys + s.values;
    CHECK(by_kind == doctest::Approx(by_layer));
    const double row_bytes = 2.0 * options.shape.kv_heads * options.shape.head_dim;
    // The window's row and up to a group of 16 that wait are plain. Rows of the tokens that were decoded differ a little:
    // what they attended does.
    const double uncoded = 17 * 2 * row_bytes * options.shape.layers;
    CHECK(by_layer * row_bytes < tally.kept_bytes * 1.01);
    CHECK(by_layer * row_bytes > tally.kept_bytes * 0.99 - uncoded);
    CHECK(tally.kept_of_rows.kinds[0].rows == options.shape.layers); // one first token

    const auto r = tally.to_row(options, t);
    CHECK(r.retained_by_layer.size() == options.shape.layers);
    const auto json = nlohmann::json::parse(eval::to_json({r}))[0]["retained"];
    CHECK(json["layers"]["layer 0"]["keys"].get<double>() == doctest::Approx(r.retained_by_layer[0].keys));
    CHECK(json["kinds"]["first"]["values"].get<double>() > 0);

    eval::tally plain;
    options.policy = "full";
    evaluator.measure(t, t.examples[0], options, false, plain);
    CHECK(plain.to_row(options, t).retained_by_layer.empty());
    CHECK(nlohmann::json::parse(eval::to_json({plain.to_row(options, t)}))[0]["retained"].is_null());
}

TEST_CASE("Wilson's interval") {
    CHECK(eval::wilson95(50, 50)[0] == doctest::Approx(0.9287).epsilon(1e-3));
    CHECK(eval::wilson95(50, 50)[1] == doctest::Approx(1));
    CHECK(eval::wilson95(5, 10)[0] == doctest::Approx(0.2366).epsilon(1e-3));
    CHECK(eval::wilson95(5, 10)[1] == doctest::Approx(0.7634).epsilon(1e-3));
    CHECK(eval::wilson95(0, 10)[0] == doctest::Approx(0));
}

TEST_CASE("what a task cannot give is null") {
    eval::row r;
    r.policy = "quest";
    const auto all = nlohmann::json::parse(eval::to_json({r}));
    REQUIRE(all.size() == 1);
    CHECK(all[0]["policy"] == "quest");
    for (const char* key : {"keep_tokens", "question", "accuracy", "accuracy_ci95", "nll", "kl",
                            "mass_recall", "tokens_per_s"}) {
        REQUIRE(all[0].contains(key));
        CHECK(all[0][key].is_null());
    }
}

TEST_CASE("rows are appended with what tells where they are from") {
    eval::row r;
    r.policy = "one";
    const std::vector<std::pair<std::string, std::string>> facts{{"commit", "abc"},
                                                                 {"machine", "a \"big\" one"}};
    const std::string first = eval::append_json("", "file", {r}, facts);
    r.policy = "two";
    r.accuracy = 0.5;
    const auto all = nlohmann::json::parse(eval::append_json(first, "file", {r}, facts));
    REQUIRE(all.size() == 2);
    CHECK(all[0]["policy"] == "one");
    CHECK(all[1]["policy"] == "two");
    CHECK(all[1]["accuracy"] == 0.5);
    for (const auto& row : all) {
        CHECK(row["commit"] == "abc");
        CHECK(row["machine"] == "a \"big\" one");
    }
    for (const char* bad : {"{}", "[", "3"})
        CHECK_THROWS_AS((void)eval::append_json(bad, "file", {r}, facts), engine::bad_input);
}

} // namespace
