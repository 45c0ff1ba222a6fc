// kvtl-calibrate: fits the bases that some policies need, to a GGUF model on a text of the user's choice, or to traces that
// any engine recorded of its own keys and queries. The fits are the library's (kvtl/calibration/fit/).
//
//   kvtl-calibrate model.gguf -f text.txt -o model.cal --rank 32 --json -
//   kvtl-calibrate --trace own.trace -o model.cal --rank 32
//
// The text is run through the model in pieces; every layer's keys and queries are looked at. Of up to 4,096
// tokens keys and values are kept in memory for the levels of KVQuant, unless --no-entries is given.
// Exit status: 0, 2 for what can never work (bad usage, unreadable file, impossible value), 1 for a run that
// fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/fit/fit_trace.hpp>
#include <kvtl/calibration/fit/gate_fit.hpp>
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "error.hpp"
#include "fingerprint.hpp"
#include "gguf.hpp"
#include "input_file.hpp"
#include "key_drift.hpp"
#include "listening_cache.hpp"
#include "matmul.hpp"
#include "model.hpp"
#include "model_choice.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "run_header.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"
#include "vote_fit.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>

namespace {

using engine::bad_input;
using engine::require;

constexpr const char* program = "kvtl-calibrate";

struct arguments {
    std::string model;
    std::string text;
    std::vector<std::string> traces;
    std::string output;
    std::string gates;
    std::string votes;
    std::string json_file;
    std::size_t max_tokens = 32768;
    std::size_t piece_tokens = 2048;
    std::size_t drift_tokens = 0;
    double drift_power = 1;
    unsigned threads = 2;
    bool no_entries = false;
    kvtl::fit_options fit;
};

void define_options(CLI::App& app, arguments& a) {
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    engine::define_model(app, a.model, "GGUF file (llama, qwen2, qwen3; F32, F16, BF16, Q8_0, Q4_0)");
    app.add_option("-f,--file", a.text, "text that the bases are fitted to");
    app.add_option("--trace", a.traces,
                   "recorded trace to fit to instead of a model and a text; may be given several times")
        ->allow_extra_args(false); // what follows is the next option
    app.add_option("-o,--output", a.output, "calibration file to write");
    app.add_option("--gates", a.gates, "also fit linear gates for the policy locret, into this file");
    app.add_option(
        "--votes", a.votes,
        "also find the heads that retrieve and the cost of an eviction in each layer, into this file "
        "(policy compress_kv)");
    app.add_option(
        "--drift-tokens", a.drift_tokens,
        "with --votes: measure the importance of a layer by how much its keys change when a text is read in "
        "blocks of so many tokens (policy epicache; its authors use 100)");
    app.add_option("--drift-power", a.drift_power, "power to which that change is raised")
        ->capture_default_str();
    app.add_option("--rank", a.fit.rank, "directions of the joint adapter; 0: all (KV heads x head size)");
    app.add_option("--channels", a.fit.channels, "frequency pairs listed per KV head; 0: a quarter of them");
    app.add_option("--max-tokens", a.max_tokens, "tokens of the text or the traces that are used at most")
        ->capture_default_str();
    app.add_option("--piece-tokens", a.piece_tokens, "tokens per piece (at most the model's context)")
        ->capture_default_str();
    app.add_flag("--pre-rope", a.fit.pre_rope, "fit adapter and PCA to keys before RoPE");
    app.add_flag("--query-map", a.fit.query_map, "also fit the map from a layer's query to the next one's");
    app.add_flag(
        "--no-entries", a.no_entries,
        "leave out the largest sections, which only low-rank compressors and KVQuant read: bases of whole "
        "entries, 2 (KV heads x head size)^2 numbers per layer, and levels of codes");
    app.add_option("--threads", a.threads, "threads of the engine")->capture_default_str();
    app.add_option("--json", a.json_file, "write what the bases keep as JSON; - for standard output");
    for (const char* name :
         {"--rank", "--channels", "--max-tokens", "--piece-tokens", "--threads", "--drift-tokens"})
        app.get_option(name)->check(engine::whole_number);
    for (auto* option : app.get_options()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.get_option("--trace")->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void check(const CLI::App& app, const arguments& a) {
    if (a.traces.empty()) {
        require(!a.model.empty(), engine::no_model_message());
        require(!a.text.empty(),
                "no text: give one with -f FILE, or a trace of your own keys with --trace FILE");
    } else {
        for (const char* name : {"--model", "MODEL", "--file", "--threads", "--votes"})
            require(app.count(name) == 0, std::string("--trace: valid: without ") + name +
                                              ", since no model is run to hear its keys");
    }
    require(!a.output.empty() && a.output != "-", "no output: give a file with -o FILE");
    require(a.max_tokens > 0, "--max-tokens is 0; valid: 1 or more");
    require(a.piece_tokens > 0, "--piece-tokens is 0; valid: 1 or more");
    require(a.threads >= 1 && a.threads <= 256,
            "--threads is " + std::to_string(a.threads) + "; valid: 1 to 256");
    engine::require_replaceable(a.output, "--output");
    require(a.gates != "-", "--gates: weights need a file");
    engine::require_replaceable(a.gates, "--gates");
    require(a.votes != "-", "--votes: votes need a file");
    require(a.drift_tokens == 0 || !a.votes.empty(), "--drift-tokens: valid: with --votes");
    require(a.drift_tokens != 0 || app.count("--drift-power") == 0,
            "--drift-power: valid: with --drift-tokens");
    require(a.drift_power > 0 && a.drift_power <= 16, "--drift-power: valid: above 0, up to 16");
    engine::require_writable(a.votes, "--votes");
    engine::require_writable(a.json_file, "--json");
}

void check(const kvtl::fit_options& f, const kvtl::shape& s) {
    const auto within = [](const char* name, std::uint32_t value, std::uint32_t most) {
        require(value <= most, std::string(name) + " is " + std::to_string(value) +
                                   "; valid for this model: 1 to " + std::to_string(most));
    };
    within("--rank", f.rank, s.kv_heads * s.head_dim);
    within("--channels", f.channels, s.head_dim / 2);
}

std::string read_text(const std::string& path) {
    auto text = engine::read_input(path, engine::most_text_bytes, "text");
    if (!text) throw bad_input(text.error().message);
    if (text->empty()) throw bad_input("the text " + path + " is empty");
    return *std::move(text);
}

/// Before anything is fitted: both the text and its pieces are long enough to repeat a part of themselves.
void check_votes(const kvtl::shape& shape, std::size_t tokens, std::size_t piece) {
    const engine::vote_fit fit(shape);
    const std::size_t least = fit.least_tokens() + 1;
    require(piece >= fit.span() + least,
            "--piece-tokens: pieces have " + std::to_string(piece) +
                " tokens; valid with --votes: " + std::to_string(fit.span() + least) + " or more");
    require(tokens >= least, "--votes: " + std::to_string(tokens) + " tokens of the text are used; valid: " +
                                 std::to_string(least) + " or more");
}

/// Pieces of the text, each of which repeats a part of itself at its end, are gone through twice (vote_fit.hpp). A piece
/// begins with the text's first token, which may be one that begins every text.
engine::head_votes fit_votes(const engine::model& model, std::span<const engine::token_id> tokens,
                             std::size_t piece, engine::thread_pool& pool) {
    const auto& shape = model.hyper().shape;
    engine::vote_fit fit(shape);
    const std::size_t body = piece - std::min(piece, fit.span() + 1);
    bool evicts = false;
    std::size_t copied = 0;
    engine::listening_cache cache(shape, false, [&](std::uint32_t layer, const kvtl::layer_input& in) {
        if (evicts)
            fit.evict(layer, in);
        else
            fit.look(layer, in, copied);
        return kvtl::status();
    });
    engine::transformer transformer(model, cache, pool, piece);
    const std::size_t pieces = std::max<std::size_t>(1, (tokens.size() - 1) / body);
    engine::progress_bar bar("votes", 2 * pieces);
    for (std::size_t i = 0; i < 2 * pieces; ++i) {
        evicts = i >= pieces;
        if (i == pieces) fit.settle();
        const auto text = tokens.subspan(1 + i % pieces * body).first(std::min(body, tokens.size() - 1));
        copied = 1 + (text.size() - 2 * fit.span()) * (2 * (i % pieces) + 1) / (2 * pieces); // at all depths
        std::vector<engine::token_id> words{tokens.front()};
        words.insert(words.end(), text.begin(), text.end());
        words.insert(words.end(), text.begin() + static_cast<std::ptrdiff_t>(copied - 1),
                     text.begin() + static_cast<std::ptrdiff_t>(copied - 1 + fit.span()));
        transformer.begin();
        transformer.prefill(words);
        bar.update(i + 1);
    }
    bar.clear();
    return fit.finish();
}

/// The importance of layers by key_drift.hpp. Each piece is read twice.
std::vector<float> fit_drift(const engine::model& model, std::span<const engine::token_id> tokens,
                             std::size_t piece, std::size_t block, double power, engine::thread_pool& pool) {
    engine::key_drift drift(model.hyper().shape);
    bool divided = false;
    engine::listening_cache cache(model.hyper().shape, false,
                                  [&](std::uint32_t layer, const kvtl::layer_input& in) {
                                      divided ? drift.blocks(layer, in) : drift.whole(layer, in);
                                      return kvtl::status();
                                  });
    engine::transformer transformer(model, cache, pool, piece);
    engine::progress_bar bar("drift", tokens.size());
    for (std::size_t done = 0; done < tokens.size(); done += piece) {
        for (const std::size_t some : {std::size_t{0}, block}) {
            divided = some != 0;
            cache.divide(some);
            transformer.begin();
            transformer.prefill(tokens.subspan(done, std::min(piece, tokens.size() - done)));
        }
        bar.update(std::min(done + piece, tokens.size()));
    }
    bar.clear();
    return drift.finish(power);
}

nlohmann::json to_json(const kvtl::fitted_bases& f, std::uint64_t fingerprint) {
    char id[17];
    std::snprintf(id, sizeof id, "%016" PRIx64, fingerprint);
    nlohmann::json layers = nlohmann::json::array();
    const auto if_fitted = [](const auto& section, double share) {
        return section.empty() ? nlohmann::json() : nlohmann::json(share);
    };
    for (std::size_t l = 0; l < f.energy.size(); ++l) {
        const auto& e = f.energy[l];
        nlohmann::json by_rank = nlohmann::json::object();
        double sum = 0;
        for (std::size_t r = 1; r <= e.spectrum.size(); ++r) {
            sum += e.spectrum[r - 1];
            if ((r & (r - 1)) == 0 || r == e.spectrum.size()) by_rank[std::to_string(r)] = sum;
        }
        layers.push_back({{"layer", l},
                          {"adapter_energy", e.adapter},
                          {"adapter_energy_by_rank", by_rank},
                          {"joint_keys_energy_quarter", if_fitted(f.joint_keys, e.joint_keys_quarter)},
                          {"joint_values_energy_quarter", if_fitted(f.joint_values, e.joint_values_quarter)},
                          {"pca_energy_quarter", e.pca_quarter},
                          {"skew_energy_quarter", if_fitted(f.skew, e.skew_quarter)},
                          {"channel_agreement", if_fitted(f.channels, e.channels)},
                          {"query_map_energy",
                           l > 0 && f.options.query_map ? nlohmann::json(e.query_map) : nlohmann::json()}});
    }
    return {{"fingerprint", id},
            {"shape",
             {{"layers", f.shape.layers},
              {"query_heads", f.shape.query_heads},
              {"kv_heads", f.shape.kv_heads},
              {"head_dim", f.shape.head_dim}}},
            {"tokens", f.tokens},
            {"rank", f.options.rank},
            {"channels", f.options.channels},
            {"pair_distance", f.options.pair_distance},
            {"pre_rope", f.options.pre_rope},
            {"layers", layers}};
}

/// What is fitted, whichever way the samples come.
struct fits {
    kvtl::calibration_fit bases;
    std::optional<kvtl::gate_fit> gates;
    bool entries;

    fits(const kvtl::shape& shape, const arguments& a)
        : bases(engine::insist(kvtl::calibration_fit::make(shape, a.fit))), entries(!a.no_entries) {
        if (!a.gates.empty()) gates.emplace(engine::insist(kvtl::gate_fit::make(shape)));
    }
    kvtl::status hear(std::uint32_t layer, kvtl::layer_input in) {
        if (gates)
            if (auto s = gates->add(layer, in); !s) return s;
        if (!entries) in.v = {};
        return bases.add(layer, in);
    }
};

/// Of what the samples were.
struct samples {
    std::string name; ///< of the model or the trace
    kvtl::shape shape;
    std::uint64_t fingerprint = 0;
    unsigned threads = 0; ///< of the engine; 0: none ran
    std::optional<engine::head_votes> votes{};
};

/// What each layer's output projection makes of values, as floats whatever the file holds.
void read_output_projections(const engine::model& model, kvtl::calibration_fit& fit) {
    std::vector<float> floats;
    for (std::uint32_t l = 0; l < model.hyper().shape.layers; ++l) {
        const engine::tensor& w = model.layer(l).output;
        floats.resize(w.rows * w.columns);
        engine::expand(w.type, w.data, 0, floats.size(), floats.data());
        engine::insist(fit.add_output_projection(l, {floats.data(), w.rows, w.columns, w.columns}));
    }
}

samples hear_text(arguments& a, std::optional<fits>& fit) {
    const std::string text = read_text(a.text);
    const engine::gguf_file file(a.model);
    const engine::model model(file);
    const engine::tokenizer words(file);
    const auto& hyper = model.hyper();
    check(a.fit, hyper.shape);
    const auto tokens = words.encode(text);
    if (tokens.size() < 2) throw bad_input("the text " + a.text + " has less than 2 tokens");
    a.fit.pair_distance = hyper.pairing == engine::rope_pairing::neighbours
                              ? 1
                              : static_cast<std::uint32_t>(model.rope_frequencies().size());
    fit.emplace(hyper.shape, a);
    read_output_projections(model, fit->bases);
    engine::listening_cache cache(hyper.shape, true, [&](std::uint32_t layer, const kvtl::layer_input& in) {
        return fit->hear(layer, in);
    });
    const std::size_t used = std::min(tokens.size(), a.max_tokens);
    const std::size_t piece = std::min<std::size_t>(a.piece_tokens, hyper.context);
    if (!a.votes.empty()) check_votes(hyper.shape, used, piece);
    const std::size_t whole = std::min(piece, used);
    require(a.drift_tokens < whole, "--drift-tokens is " + std::to_string(a.drift_tokens) +
                                        "; valid: less than the " + std::to_string(whole) +
                                        " tokens of a piece of the text");
    engine::thread_pool pool(a.threads);
    engine::transformer transformer(model, cache, pool, piece);
    engine::progress_bar bar("text", used);
    for (std::size_t done = 0; done < used; done += piece) {
        transformer.begin();
        transformer.prefill(std::span(tokens).subspan(done, std::min(piece, used - done)));
        bar.update(std::min(done + piece, used));
    }
    bar.clear();
    samples from{a.model, hyper.shape, fingerprint_of(model), a.threads};
    if (!a.votes.empty()) from.votes = fit_votes(model, std::span(tokens).first(used), piece, pool);
    if (a.drift_tokens != 0)
        from.votes->importance =
            fit_drift(model, std::span(tokens).first(used), piece, a.drift_tokens, a.drift_power, pool);
    return from;
}

samples hear_traces(arguments& a, std::optional<fits>& fit) {
    samples from;
    std::uint64_t left = a.max_tokens;
    for (const std::string& path : a.traces) {
        kvtl::trace_reader trace = engine::insist(kvtl::trace_reader::open(path));
        const kvtl::trace_header& head = trace.header();
        if (!fit) {
            check(a.fit, head.shape);
            a.fit.pair_distance = head.pair_distance;
            if (head.pair_distance == 0 && !head.has(kvtl::trace_header::without_q))
                std::fprintf(stderr, "%s: %s does not say which elements RoPE turns together: no channels\n",
                             program, path.c_str());
            fit.emplace(head.shape, a);
            from = {path, head.shape, head.fingerprint};
        }
        engine::insist(trace.require_shape(from.shape));
        engine::insist(trace.require(a.fit.query_map || fit->gates, fit->gates.has_value(),
                                     a.fit.pre_rope ? kvtl::trace_header::has_k_pre : 0));
        require(head.fingerprint == from.fingerprint && head.pair_distance == a.fit.pair_distance,
                "trace " + path + " is of another model than " + from.name);
        engine::insist(kvtl::for_each_piece(
            trace, {.max_tokens = left, .piece_tokens = a.piece_tokens},
            [&](std::uint32_t layer, const kvtl::layer_input& in) { return fit->hear(layer, in); }));
        left -= std::min<std::uint64_t>(left, head.tokens);
    }
    return from;
}

void run(arguments a) {
    std::optional<fits> fit;
    const samples from = a.traces.empty() ? hear_text(a, fit) : hear_traces(a, fit);
    const kvtl::fitted_bases result = engine::insist(fit->bases.finish());
    std::optional<kvtl::fitted_gates> gates;
    if (fit->gates) gates = engine::insist(fit->gates->finish()); // the last that may refuse the samples
    engine::run_facts facts;
    facts.model = from.name, facts.shape = from.shape, facts.threads = from.threads;
    engine::print_header(program, facts);
    if (gates) {
        engine::insist(gates->write(a.gates));
        std::fprintf(stderr,
                     "%s: linear gates explain %.2f or more of later attention's variance in every layer\n",
                     a.gates.c_str(), *std::min_element(gates->explained.begin(), gates->explained.end()));
    }
    if (from.votes) engine::insist(engine::write_votes(a.votes, from.shape, from.fingerprint, *from.votes));
    engine::insist(result.write(a.output, from.fingerprint));
    if (!a.json_file.empty()) engine::write_output(a.json_file, to_json(result, from.fingerprint).dump());
    double least = 1;
    for (const auto& e : result.energy) least = std::min(least, e.adapter);
    std::fprintf(stderr,
                 "%s: %" PRIu64
                 " tokens, %u directions keep %.1f %% or more of the keys' energy in every layer\n",
                 a.output.c_str(), result.tokens, result.options.rank, least * 100);
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        CLI::App app(
            "Fits the bases that some policies need, to a GGUF model and a text or to recorded traces.",
            program);
        define_options(app, a);
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        check(app, a);
        run(std::move(a));
        return 0;
    });
}
