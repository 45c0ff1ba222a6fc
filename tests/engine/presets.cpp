// The embedded model on the real presets: with everything attended the engine equals the reference, bit for
// bit the same on every backend and thread count; with 256 entries it still finds what was hidden far back,
// from a real file.
// SPDX-License-Identifier: MIT
#include "error.hpp"
#include "generate.hpp"
#include "gguf.hpp"
#include "kv_cache.hpp"
#include "lookahead.hpp"
#include "model.hpp"
#include "policy_list.hpp"
#include "program.hpp"
#include "sampler.hpp"
#include "support/calibrated.hpp"
#include "support/gates_file.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace {

using namespace engine;

const std::string data_folder = KVTL_SOURCE_DIR "/examples/data/";

/// The build folder is on a disk with O_DIRECT; the system's temporary folder may not be.
std::string scratch_file(const char* name) {
    return (std::filesystem::current_path() / (std::string(name) + "-" + std::to_string(::getpid()) + ".kv"))
        .string();
}

struct tiny {
    explicit tiny(unsigned threads = 2) : pool(threads) {}
    gguf_file file{data_folder + "tiny-2k.gguf"};
    model weights{file};
    tokenizer words{file};
    thread_pool pool;

    cache_options options(const std::string& policy, const std::string& io, std::size_t attend) const {
        cache_options o;
        o.policy = policy;
        o.shape = weights.hyper().shape;
        o.max_tokens = weights.hyper().context;
        o.memory_bytes = std::size_t{24} << 20;
        o.attend_tokens = attend;
        o.calibration = KVTL_CALIBRATION_FILE; // written by the fixture
        o.rope_frequencies.assign(weights.rope_frequencies().begin(), weights.rope_frequencies().end());
        o.rope_neighbours = weights.hyper().pairing == rope_pairing::neighbours;
        // What these choose by a threshold they also leave out by it, however many entries they may attend.
        o.settings.push_back({"infinigen", "selector", "alpha", "1e9"});
        o.settings.push_back({"squeezed", "selector", "kept", "1"});
        for (const char* p : {"quest_top_p", "dynakv_top_p"}) o.settings.push_back({p, "selector", "p", "1"});
        for (const char* name : {"dynakv_lr_energy", "snapkv_layer_then_lr_energy", "kvswap_lr", "flexgen_lr",
                                 "dynakv_head_lr", "quest_head_lr"})
            o.settings.push_back({name, "compressor", "share", "1"});
        for (const char* name : {"palu", "matryoshka", "dynakv_lr", "snapkv_layer_then_dynakv_lr"})
            o.settings.push_back({name, "compressor", "rate", "1"});
        for (const char* name : {"kvquant_4", "kvquant_2", "dynakv_kvquant"})
            o.settings.push_back({name, "compressor", "outliers", "1"});
        for (const char* name : {"think", "snapkv_think"})
            o.settings.push_back({name, "compressor", "pruned", "0"});
        o.shards = 2;
        o.io = io;
        o.path = scratch_file(policy.c_str());
        return o;
    }
};

/// The principal directions of the calibration file, with gates that keep every coefficient.
class whole_gates {
  public:
    explicit whole_gates(const kvtl::shape& m) : path_(scratch_file("whole-gates")) {
        const auto bases = kvtl::calibration::load(KVTL_CALIBRATION_FILE, m);
        REQUIRE(bases.ok());
        using kind = kvtl::calibration_kind;
        kvtl::calibration_writer out(m, 0);
        for (const auto& [from, to] : {std::pair(kind::joint_keys, kind::gated_keys),
                                       std::pair(kind::joint_values, kind::gated_values)}) {
            std::vector<float> all;
            for (std::uint32_t l = 0; l < m.layers; ++l) {
                const auto b = bases->view().basis(from, l, 0);
                const auto one = kvtl_test::level_gates({b.data, b.data + b.count * b.dim}, b.dim, b.dim);
                all.insert(all.end(), one.begin(), one.end());
            }
            REQUIRE(out.add_gated(to, all, 1.0F));
        }
        for (const auto k : {kind::prefix_keys, kind::prefix_values}) {
            const auto b = bases->view().basis(kind::head_values, 0, 0);
            REQUIRE(out.add(k, m.head_dim, {b.data, b.data + m.layers * m.kv_heads * b.count * b.dim}));
        }
        REQUIRE(out.write(path_));
    }
    whole_gates(const whole_gates&) = delete;
    ~whole_gates() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

std::unique_ptr<kv_cache> open_or_fail(const cache_options& o) {
    auto opened = open_cache(o);
    if (!opened) FAIL(opened.error().message);
    return std::move(*opened);
}

nlohmann::json reference() {
    std::ifstream in(data_folder + "reference.json");
    return nlohmann::json::parse(in).at("prompts");
}

/// Facts hidden in about `tokens` tokens of the project's own prose; the answer is `code`.
struct needle {
    std::string prompt, code;
};
needle hide(std::size_t characters, std::size_t depth, int i) {
    std::ifstream in(data_folder + "prose.txt");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    std::erase(text, '#');
    text = text.substr(static_cast<std::size_t>(i) * 700, characters);
    const std::string names[] = {"Orvane", "Tilbec", "Marluk", "Sendrow", "Quillam"};
    const std::string name = names[i % 5], code = std::to_string(31047 + 7919 * i);
    const std::size_t at = text.find(". ", characters * depth / 100) + 2;
    text.insert(at, "The secret code of " + name + " is " + code + ". ");
    return {text + " Question: What is the secret code of " + name + "? Answer: The secret code of " + name +
                " is",
            code};
}

} // namespace

TEST_CASE("the family that a policy is listed in is what it does") {
    const auto all = listed_policies();
    CHECK(all.size() == policy_names().size());
    for (const policy_entry& p : all) {
        CAPTURE(p.name);
        const cache_wants wants = policy_wants(p.name);
        const auto family = p.family.substr(0, p.family.find(':'));
        if (family == "eviction")
            CHECK((wants.evicts && !wants.retrieves));
        else if (family == "composition")
            CHECK((wants.evicts || wants.retrieves));
        else if (family != "reference")
            CHECK_FALSE(wants.evicts);
        CHECK(p.about.size() <= 80);
    }
}

TEST_CASE("--share-layers: a number of layers, or the owner of each, also of one layer") {
    CHECK(owners_of("3", 5) == std::vector<std::uint32_t>{0, 0, 0, 3, 3});
    CHECK(owners_of("0,0,2", 3) == std::vector<std::uint32_t>{0, 0, 2});
    for (const char* none : {"", "0", "1"}) CHECK(owners_of(none, 1).empty());
    CHECK_THROWS_WITH_AS(static_cast<void>(owners_of("7", 1)),
                         "--share-layers: 7; valid: 1 to 1 layers, or a list", bad_input);
}

TEST_CASE("with everything attended every preset gives the reference's logits and tokens") {
    tiny t;
    const whole_gates whole(t.weights.hyper().shape);
    for (const auto policy : policy_names()) {
        const cache_wants wants = policy_wants(policy);
        auto options = t.options(std::string(policy), "uring", 4096);
        const kvtl_test::gates_file gates(
            options.shape, kvtl_test::gate_inputs(wants, options.shape, t.weights.hyper().width));
        options.gates = wants.trained ? whole.path() : gates.path();
        if (contains(wants.inputs, kvtl::engine_input::external)) { // an engine has no scores of its own
            const auto refused = open_cache(options);
            REQUIRE(!refused.ok());
            CHECK(refused.error().message.find("needs external") != std::string::npos);
            continue;
        }
        for (const auto& prompt : reference()) {
            CAPTURE(policy);
            auto cache = open_or_fail(options);
            transformer run(t.weights, *cache, t.pool);
            run.look_ahead(continuation(t.words, default_probe));
            run.begin();
            auto logits = run.prefill(prompt.at("ids").get<std::vector<token_id>>());
            for (const auto& top : prompt.at("top10"))
                CHECK(std::abs(logits[top[0].get<token_id>()] - top[1].get<float>()) < 2e-2F);
            const auto greedy = prompt.at("greedy32").get<std::vector<token_id>>();
            const auto margin = prompt.at("margin32").get<std::vector<float>>();
            // Entries of signed bytes move logits by some tenths, 4 bits and corrected 2 bits by more, 2 bits by the most.
            // Every preset reads the reference's tokens. A third of the margins are above 6. The prompt itself is attended
            // as it came.
            const auto has = [&](std::string_view part) {
                return policy.find(part) != std::string_view::npos;
            };
            const bool bytes = policy.ends_with("_int8"),
                       bits = has("_int4") || has("_k8v4") || has("_fp8") || policy == "kivi_4" ||
                              policy == "gear",
                       two = has("_int2") || policy == "kivi_2";
            const float near = two ? 6.0F : bits ? 3.0F : bytes ? 1.0F : 4e-2F;
            for (std::size_t i = 0; i < greedy.size(); ++i) {
                if (margin[i] > near) CHECK(highest(logits, 1)[0].first == greedy[i]);
                logits = run.step(greedy[i]);
            }
        }
    }
}

namespace {

/// Passes everything on and keeps the queries of every layer's latest step, and what the last layer is told of chunks.
class query_recorder final : public kv_cache {
  public:
    explicit query_recorder(kv_cache& inner, std::size_t layers) : inner_(inner), latest(layers) {}
    kvtl::result<kvtl::sequence_id> begin() override { return inner_.begin(); }
    kvtl::status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned shard) noexcept override {
        if (layer + 1 == latest.size() && shard == 0)
            chunks.push_back({{in.probe.begin(), in.probe.end()}, in.passing, in.last_chunk});
        return inner_.prefill(seq, layer, in, out, shard);
    }
    kvtl::status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                        std::span<float> out, unsigned shard) noexcept override {
        const auto q = in.q.floats();
        if (shard == 0) latest[layer].assign(q.begin(), q.end());
        return inner_.attend(seq, layer, in, out, shard);
    }
    kvtl::status prefetch(kvtl::sequence_id, std::uint32_t, std::span<const float>,
                          unsigned) noexcept override {
        return {};
    }
    kvtl::status rewind(kvtl::sequence_id seq, std::size_t n) noexcept override {
        return inner_.rewind(seq, n);
    }
    kvtl::status end(kvtl::sequence_id seq) noexcept override { return inner_.end(seq); }
    cache_stats stats() const override { return inner_.stats(); }
    unsigned shards() const noexcept override { return inner_.shards(); }
    cache_wants wants() const noexcept override { return inner_.wants(); }

  private:
    kv_cache& inner_;

  public:
    struct chunk {
        std::vector<float> probe;
        std::size_t passing;
        bool last;
    };
    std::vector<std::vector<float>> latest; ///< (L) of (HQ, D)
    std::vector<chunk> chunks;
};

} // namespace

TEST_CASE("a probe's queries are those that the model has when it decodes the probe behind the prompt") {
    tiny t;
    const auto prompt = t.words.encode("The king went to the river and looked at the boats. They were old.");
    const auto probe = continuation(t.words, "Question: Who");
    CHECK(t.words.decode(probe) == t.words.decode(t.words.encode("Question: Who")));
    REQUIRE(probe.size() > 1);
    CHECK(probe.size() < t.words.encode("Question: Who").size()); // no begin-of-text
    const auto all = probe_queries(t.weights, t.pool, prompt, probe);
    auto full = open_or_fail(t.options("full", "memory", 4096));
    query_recorder recorder(*full, all.size());
    transformer run(t.weights, recorder, t.pool);
    run.begin();
    static_cast<void>(run.prefill(prompt));
    for (std::size_t i = 0; i < probe.size(); ++i) {
        static_cast<void>(run.step(probe[i]));
        for (std::size_t l = 0; l < all.size(); ++l) {
            const auto& expected = recorder.latest[l];
            REQUIRE(all[l].size() == probe.size() * expected.size());
            double difference = 0, size = 0;
            for (std::size_t j = 0; j < expected.size(); ++j) {
                const double x = static_cast<double>(expected[j]);
                const double d = static_cast<double>(all[l][i * expected.size() + j]) - x;
                difference += d * d, size += x * x;
            }
            CHECK(difference < 1e-4 * size); // the cache holds f16
        }
    }
}

TEST_CASE("a replay: each part of a prompt stands right behind all of it, with its instruction") {
    if (!policy_wants("kvzip").replays) return; // not built in
    tiny t;
    auto prompt = t.words.encode(hide(2600, 30, 1).prompt);
    REQUIRE(prompt.size() > replay_tokens + 20);
    prompt.resize(replay_tokens + 20);
    auto cache = open_or_fail(t.options("kvzip", "memory", 64));
    query_recorder recorder(*cache, 6);
    transformer run(t.weights, recorder, t.pool, 200);
    const auto first = continuation(t.words, replay_first), later = continuation(t.words, replay_later);
    run.replay(first, later);
    run.begin();
    static_cast<void>(run.prefill(std::span(prompt).first(300), nullptr, false)); // it comes in two pieces
    static_cast<void>(run.prefill(std::span(prompt).subspan(300)));
    CHECK(run.position() == prompt.size());
    const auto& seen = recorder.chunks;
    REQUIRE(seen.size() == 5);
    for (std::size_t i = 0; i < 5; ++i) CHECK(seen[i].last == (i == 4));
    for (std::size_t i = 0; i < 3; ++i) CHECK(seen[i].passing == 0);
    std::vector<token_id> parts[] = {first, later};
    parts[0].insert(parts[0].end(), prompt.begin(), prompt.begin() + replay_tokens);
    parts[1].insert(parts[1].end(), prompt.end() - 28, prompt.end());
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(seen[3 + i].passing == parts[i].size());
        const auto expected = probe_queries(t.weights, t.pool, prompt, parts[i])[5];
        REQUIRE(seen[3 + i].probe.size() == expected.size());
        double difference = 0, size = 0;
        for (std::size_t j = 0; j < expected.size(); ++j) {
            const double x = static_cast<double>(expected[j]),
                         d = static_cast<double>(seen[3 + i].probe[j]) - x;
            difference += d * d, size += x * x;
        }
        CHECK(difference < 1e-4 * size);
    }
    run.replay(std::vector<token_id>(60), {});
    run.begin();
    CHECK_THROWS_WITH_AS(static_cast<void>(run.prefill(prompt)),
                         "a replayed part has 540 tokens with its instruction; valid: up to 512",
                         run_failure);
}

TEST_CASE("what a policy that looks ahead keeps depends on the probe, and only on its own") {
    if (policy_wants("lookahead_probe").inputs == kvtl::engine_input{}) return; // not built in
    tiny t;
    const needle n = hide(2600, 30, 1);
    const auto run_with = [&](const char* probe) {
        auto o = t.options("lookahead_probe", "memory", 48);
        auto cache = open_or_fail(o);
        transformer run(t.weights, *cache, t.pool);
        run.look_ahead(continuation(t.words, probe));
        run.begin();
        static_cast<void>(run.prefill(t.words.encode(n.prompt)));
        const auto logits = run.step(t.words.encode("the").back());
        return std::vector<float>(logits.begin(), logits.end());
    };
    const auto a = run_with("Question: What is the secret code"), b = run_with("and so the summer ended");
    CHECK(a == run_with("Question: What is the secret code"));
    CHECK(a != b);
}

TEST_CASE("backends and thread counts do not change a bit of the logits") {
    const needle n = hide(2600, 30, 1);
    std::vector<float> first;
    for (const char* io : {"memory", "posix", "uring"})
        for (const unsigned threads : {1U, 3U}) {
            CAPTURE(io);
            CAPTURE(threads);
            tiny t(threads);
            auto cache = open_or_fail(t.options("dynakv", io, 128));
            transformer run(t.weights, *cache, t.pool);
            run.begin();
            auto logits = run.prefill(t.words.encode(n.prompt));
            for (int i = 0; i < 24; ++i) logits = run.step(highest(logits, 1)[0].first);
            const std::vector<float> now(logits.begin(), logits.end());
            if (first.empty()) first = now;
            CHECK(now == first);
            CHECK(cache->stats().read_bytes > 0);
            CHECK(cache->stats().io == io);
            CHECK(cache->stats().direct == (std::string(io) != "memory"));
        }
}

TEST_CASE("a fact far back is found through 256 entries, from a file, within the memory bound") {
    tiny t;
    int found = 0;
    const int count = 10;
    for (int i = 0; i < count; ++i) {
        const needle n = hide(4000, static_cast<std::size_t>(8 + 9 * i), i);
        cache_options o = t.options("dynakv", "uring", 256);
        o.memory_bytes = std::size_t{5} << 20;
        auto cache = open_or_fail(o);
        transformer run(t.weights, *cache, t.pool);
        run.begin();
        generate_options options;
        options.predict = 6;
        options.ignore_end = true;
        const auto ids = t.words.encode(n.prompt);
        CHECK(ids.size() > 1000);
        const auto out = generate(run, t.words, ids, options, {});
        std::string answer = t.words.decode(out.tokens);
        std::erase(answer, ' ');
        found += answer.starts_with(n.code) ? 1 : 0;
        CHECK(cache->stats().resident_bytes_peak <= o.memory_bytes);
        CHECK(cache->stats().useful_bytes <= cache->stats().read_bytes);
        CHECK(std::filesystem::exists(o.path));
        cache.reset();
        CHECK(!std::filesystem::exists(o.path));
    }
    MESSAGE("needles found: " << found << " of " << count);
    CHECK(found >= 9);
}
