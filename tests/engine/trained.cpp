// The bases and gates that ship with the embedded model: found by its fingerprint, and bases by a rate, refused for another
// one, of the size that they promise, and better than what was not trained at the same bytes.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/gate_weights.hpp>

#include "fingerprint.hpp"
#include "gates.hpp"
#include "gguf.hpp"
#include "kv_cache.hpp"
#include "lookahead.hpp"
#include "model.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace engine;

namespace {

const std::string data_folder = std::string(KVTL_SOURCE_DIR) + "/examples/data/";

struct tiny {
    gguf_file file;
    model weights{file};
    tokenizer words{file};
    thread_pool pool{2};

    explicit tiny(const char* name = "tiny-2k.gguf") : file(data_folder + name) {}

    cache_options options(const std::string& policy, const std::string& rate) const {
        cache_options o;
        o.policy = policy;
        o.shape = weights.hyper().shape;
        o.max_tokens = o.attend_tokens = 1024;
        o.memory_bytes = std::size_t{24} << 20;
        o.calibration = KVTL_CALIBRATION_FILE; // written by the fixture
        o.fingerprint = fingerprint_of(weights);
        o.rope_frequencies.assign(weights.rope_frequencies().begin(), weights.rope_frequencies().end());
        o.rope_neighbours = weights.hyper().pairing == rope_pairing::neighbours;
        o.io = "memory";
        if (!rate.empty()) o.settings.push_back({policy, "compressor", "rate", rate});
        return o;
    }
};

std::string refusal(const cache_options& o) {
    const auto opened = open_cache(o);
    return opened.ok() ? "opened" : opened.error().message;
}

struct outcome {
    std::vector<std::vector<double>> log_p; ///< of every decoded token
    double bytes = 0;                       ///< of an entry of a KV head
};
outcome read(tiny& t, const cache_options& o, const trained_lookahead* ahead = nullptr) {
    std::ifstream in(data_folder + "prose.txt");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    text.resize(2600);
    std::size_t at = 300;
    for (const char* fact : {"The secret code of Orvane is 31047. ", "The secret code of Tilbec is 58219. ",
                             "The secret code of Marluk is 90326. "})
        text.insert(at = text.find(". ", at + 500) + 2, fact);
    text = text.substr(0, text.find(". ", 2200) + 2);
    for (const char* name : {"Tilbec is 58219. ", "Orvane is 31047. ", "Marluk is 90326. "})
        text += std::string("Question: What is the secret code of ") + std::string(name).substr(0, 6) +
                "? Answer: The secret code of " + name;
    const auto ids = t.words.encode(text);
    const std::size_t prompt = ids.size() - 100; // the questions and their answers are decoded
    auto opened = open_cache(o);
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
    transformer run(t.weights, **opened, t.pool,
                    policy_wants(o.policy).evicts ? ids.size() : 512); // budgets need the whole prompt
    if (ahead != nullptr) run.look_ahead(*ahead);
    run.begin();
    auto logits = run.prefill({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt)});
    outcome out;
    for (std::size_t i = prompt; i < ids.size(); ++i) {
        double sum = 0;
        for (const float x : logits) sum += std::exp(static_cast<double>(x));
        auto& row = out.log_p.emplace_back();
        for (const float x : logits) row.push_back(static_cast<double>(x) - std::log(sum));
        logits = run.step(ids[i]);
    }
    const auto shape = o.shape;
    out.bytes = static_cast<double>((*opened)->stats().detail.kept_bytes) /
                static_cast<double>(ids.size() * shape.layers * shape.kv_heads);
    return out;
}
double kl(const outcome& full, const outcome& other) {
    double sum = 0;
    for (std::size_t i = 0; i < full.log_p.size(); ++i)
        for (std::size_t w = 0; w < full.log_p[i].size(); ++w)
            sum += std::exp(full.log_p[i][w]) * (full.log_p[i][w] - other.log_p[i][w]);
    return sum / static_cast<double>(full.log_p.size());
}

} // namespace

TEST_CASE("trained gates are found by the model's fingerprint and a rate, and by nothing else") {
    if (!policy_wants("dynakv_lr").trained) return; // not built in
    tiny t;
    CHECK(refusal(t.options("dynakv_lr", "")) == "opened");
    CHECK(refusal(t.options("dynakv_lr", "0.2")) == "opened");
    CHECK(refusal(t.options("snapkv_layer_then_dynakv_lr", "")) == "opened");
    CHECK(refusal(t.options("dynakv_lr", "0.33")) == "--gates: policy dynakv_lr needs a file: no trained "
                                                     "bases of compressor.rate 0.33 ship for this model; "
                                                     "valid: 0.085, 0.12, 0.2, 0.29, 0.47");
    auto other = t.options("dynakv_lr", "");
    ++other.fingerprint;
    CHECK(refusal(other) == "--gates: policy dynakv_lr needs a file: no trained bases ship for this model "
                            "(bench/train_gates trains some)");
    auto wrong = t.options("dynakv_lr", "");
    wrong.gates = data_folder + "prose.txt";
    CHECK(refusal(wrong).find("is not a calibration file of kvtl") != std::string::npos);
    wrong.gates = data_folder + "tiny-2k.along.gates-20.cal"; // a model of the same shape
    CHECK(refusal(wrong).find("was fitted to another model of the same shape") != std::string::npos);
    auto bases = t.options("palu", "");
    CHECK(refusal(bases) == "opened");
    ++bases.fingerprint;
    CHECK(refusal(bases).find("was fitted to another model of the same shape") != std::string::npos);
    wrong.gates = KVTL_CALIBRATION_FILE;
    CHECK(refusal(wrong).find("has no section gated_keys, gated_values") != std::string::npos);
}

TEST_CASE("trained gates keep what their rate says, and do better on a hidden fact than one rank without "
          "training") {
    if (!policy_wants("dynakv_lr").trained) return; // not built in
    tiny t;
    const outcome full = read(t, t.options("full", ""));
    const outcome gated = read(t, t.options("dynakv_lr", "0.2"));
    // Of an entry of a head: rate * 64 coefficients of key and of value, half of the headers, and a few plain rows.
    const double coefficients = 2 * 64 * 2 * 0.2, plain = 36.0 / 700 * 256;
    CHECK(gated.bytes > coefficients * 0.85);
    CHECK(gated.bytes < coefficients * 1.15 + 4 + plain);
    // One rank for all, of the same bytes.
    char rate[16];
    std::snprintf(rate, sizeof rate, "%g", (gated.bytes - plain - 2) / 256);
    const outcome fixed = read(t, t.options("palu", rate));
    MESSAGE(gated.bytes << " bytes, KL " << kl(full, gated) << "; palu at " << rate << " " << fixed.bytes
                        << " bytes, KL " << kl(full, fixed));
    CHECK(kl(full, gated) < kl(full, fixed));
}

TEST_CASE("every rate that ships takes its bytes, and twice as many are closer to the full cache") {
    if (!policy_wants("dynakv_lr").trained) return; // not built in
    tiny t;
    const outcome full = read(t, t.options("full", ""));
    std::vector<double> bytes, far;
    for (const std::string rate : {"0.47", "0.29", "0.2", "0.12", "0.085"}) {
        CAPTURE(rate);
        const outcome gated = read(t, t.options("dynakv_lr", rate));
        MESSAGE(gated.bytes << " bytes, KL " << kl(full, gated));
        bytes.push_back(gated.bytes);
        far.push_back(kl(full, gated));
    }
    for (std::size_t i = 1; i < bytes.size(); ++i) CHECK(bytes[i] < bytes[i - 1] * 0.9);
    for (std::size_t i = 2; i < far.size(); ++i) CHECK(far[i] > far[i - 2]);
}

TEST_CASE("trained prefixes serve at every rate, and the model that was trained along has gates of its own") {
    if (!policy_wants("dynakv_lr").trained) return; // not built in
    tiny t;
    const outcome full = read(t, t.options("full", ""));
    const outcome half = read(t, t.options("matryoshka", "0.5")),
                  eighth = read(t, t.options("matryoshka", "0.125"));
    CHECK(eighth.bytes < half.bytes * 0.4);
    CHECK(kl(full, half) < kl(full, eighth));
    tiny along("tiny-2k.along.gguf");
    CHECK(refusal(along.options("dynakv_lr", "0.2")) == "opened");
    CHECK(refusal(along.options("dynakv_lr", "0.47")).find("valid: 0.2") != std::string::npos);
    // Both from the same bytes; prefixes of a head's basis know nothing of a token.
    const double own =
        kl(read(along, along.options("full", "")), read(along, along.options("dynakv_lr", "0.2")));
    CHECK(own < kl(full, read(t, t.options("matryoshka", "0.2"))));
}

namespace {

struct blob {
    kvtl::gate_header head;
    std::vector<float> weights;
};
blob blob_of(const std::string& name) {
    const auto bytes = read_gates(data_folder + name);
    REQUIRE(bytes.ok());
    blob b;
    REQUIRE(bytes->size() > sizeof b.head);
    std::memcpy(&b.head, bytes->data(), sizeof b.head);
    REQUIRE(bytes->size() == b.head.blob_bytes());
    b.weights.resize((bytes->size() - sizeof b.head) / sizeof(float));
    std::memcpy(b.weights.data(), bytes->data() + sizeof b.head, bytes->size() - sizeof b.head);
    return b;
}

constexpr const char* with_gates[] = {"trim_kv", "global_gates", "locret", "attention_gate", "kvzap"};

cache_options keeping(tiny& t, const std::string& policy, std::size_t entries) {
    auto o = t.options(policy, "");
    o.keep_tokens = entries;
    if (policy == "kvzap") { // its threshold says how many stay: about as many
        o.keep_tokens = 1024;
        o.settings.push_back({policy, "retention", "threshold", "-3"});
    }
    if (policy == "trim_kv") o.settings.push_back({policy, "retention", "buffer", "1"});
    return o;
}

} // namespace

TEST_CASE("gates that decide what stays are found by policy and fingerprint; other files are refused") {
    for (const std::string policy : with_gates) {
        if (!policy_wants(policy).gates) return; // not built in
        CAPTURE(policy);
        tiny t;
        auto o = keeping(t, policy, 128);
        CHECK(refusal(o) == "opened");
        o.gates = data_folder + "tiny-2k." + policy + ".gates";
        CHECK(refusal(o) == "opened");
        ++o.fingerprint; // a model of the same shape
        CHECK(refusal(o).find("retention.weights are of another model") != std::string::npos);
        o.gates.clear();
        CHECK(refusal(o).find("--gates: policy " + policy + " needs a file") == 0);
        --o.fingerprint;
        o.gates = data_folder + "prose.txt";
        CHECK(refusal(o).find("valid: a gate blob of version 1") != std::string::npos);
        const auto cut =
            (std::filesystem::temp_directory_path() / ("kvtl-cut-" + std::to_string(::getpid()))).string();
        std::filesystem::copy_file(data_folder + "tiny-2k." + policy + ".gates", cut);
        std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 4);
        o.gates = cut;
        CHECK(refusal(o).find("retention.weights has " + std::to_string(std::filesystem::file_size(cut))) ==
              0);
        std::filesystem::remove(cut);
    }
}

TEST_CASE("the gates of global_gates share one projection: all layers and heads have one scale") {
    const blob b = blob_of("tiny-2k.global_gates.gates");
    const std::size_t heads = b.head.kv_heads, hidden = b.head.hidden, own = hidden / heads;
    REQUIRE(own * heads == hidden);
    const std::size_t before = hidden * (std::size_t{b.head.inputs} + 1); // W1, b1
    const float* const first = b.weights.data() + before;
    for (std::size_t l = 0; l < b.head.layers; ++l) {
        const float* const w2 = b.weights.data() + l * b.head.layer_floats() + before;
        for (std::size_t h = 0; h < heads; ++h) {
            std::size_t others = 0;
            for (std::size_t j = 0; j < hidden; ++j) others += j / own != h && w2[h * hidden + j] != 0.0F;
            CHECK(others == 0);
            CHECK(std::equal(first, first + own, w2 + h * hidden + h * own));
            CHECK(w2[heads * hidden + h] == first[heads * hidden]);
        }
    }
    CHECK(std::any_of(first, first + own, [](float w) { return w != 0.0F; }));
}

TEST_CASE("trained gates and a trained lookahead keep hidden facts that the prompt's end does not ask for") {
    if (!policy_wants("trim_kv").gates || !policy_wants("snapkv_group").evicts) return; // not built in
    tiny t;
    constexpr std::size_t entries = 128; // of some 900
    const outcome full = read(t, t.options("full", ""));
    const double untrained = kl(full, read(t, keeping(t, "snapkv_group", entries)));
    for (const std::string policy : with_gates) {
        CAPTURE(policy);
        const double far = kl(full, read(t, keeping(t, policy, entries)));
        MESSAGE(policy << " " << far << ", snapkv_group " << untrained);
        CHECK(far < 0.8 * untrained);
    }
    auto ahead = read_lookahead(data_folder + "tiny-2k.lookahead", t.weights);
    REQUIRE(ahead.ok());
    const outcome looked = read(t, keeping(t, "lookahead_probe", entries), &*ahead);
    MESSAGE("lookahead_probe " << kl(full, looked) << ", snapkv_group " << untrained);
    CHECK(kl(full, looked) < untrained / 2);
}
