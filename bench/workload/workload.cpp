// SPDX-License-Identifier: MIT
#include "workload.hpp"

#include "drift.hpp"
#include "error.hpp"
#include "suggestion.hpp"
#include "trace_workload.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <vector>

namespace bench {

namespace {

struct parsed {
    std::uint64_t seed = 1; ///< of drift
    std::string trace;      ///< "" for drift
    drift_config config;
};

/// KNOB=VALUE; the knobs in `turned` have been named before.
void turn_knob(const std::string& text, drift_config& config, std::vector<std::string>& turned) {
    const auto equals = std::min(text.find('='), text.size());
    const std::string name = text.substr(0, equals);
    double value = 0;
    const char* const begin = text.data() + std::min(equals + 1, text.size());
    const char* const past = text.data() + text.size();
    const auto [end, error] = std::from_chars(begin, past, value);
    const bool number = begin != past && error == std::errc{} && end == past;
    std::vector<std::string> names;
    bool found = false;
    config.knobs([&](const char* knob, double& now, double least, double most) {
        names.emplace_back(knob);
        if (name != knob) return;
        found = true;
        if (!number || !(value >= least && value <= most)) {
            char range[64];
            std::snprintf(range, sizeof range, "%.10g to %.10g", least, most);
            throw engine::bad_input("--workload: '" + text + "'; valid: " + knob + "= and a number from " +
                                    range);
        }
        now = value;
    });
    if (!found)
        throw engine::bad_input("--workload: the generator has no knob '" + name + "'; " +
                                engine::valid_names(name, names));
    if (std::find(turned.begin(), turned.end(), name) != turned.end())
        throw engine::bad_input("--workload: knob '" + name + "' is named twice");
    turned.push_back(name);
}

parsed parse(const std::string& text) {
    const auto colon = text.find(':');
    const std::string kind = text.substr(0, colon);
    const std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
    parsed p;
    if (kind == "trace" && !rest.empty()) {
        p.trace = rest;
        return p;
    }
    const auto comma = std::min(rest.find(','), rest.size());
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + comma, p.seed);
    if (kind != "drift" || error != std::errc{} || end != rest.data() + comma)
        throw engine::bad_input("--workload: '" + text +
                                "'; valid: drift:SEED, trace:FILE, drift:SEED,KNOB=VALUE,...");
    std::vector<std::string> turned;
    for (std::size_t at = comma; at < rest.size();) {
        const auto next = std::min(rest.find(',', at + 1), rest.size());
        turn_knob(rest.substr(at + 1, next - at - 1), p.config, turned);
        at = next;
    }
    return p;
}

std::unique_ptr<workload> make_drift(const workload_request& r, std::size_t prompt, std::size_t tokens,
                                     std::uint64_t seed, drift_config config) {
    config.rope_base = r.rope_base;
    return std::make_unique<drift>(r.shape, prompt, tokens, r.sequences, seed, config);
}

} // namespace

std::string workload_help() {
    std::string knobs;
    drift_config{}.knobs([&](const char* knob, double, double, double) {
        knobs += (knobs.empty() ? "" : ", ") + std::string(knob);
    });
    return "drift:SEED, drift:SEED,KNOB=VALUE,... or trace:FILE; knobs of the generator: " + knobs;
}

std::unique_ptr<workload> make_workload(const workload_request& r) {
    const parsed p = parse(r.text);
    if (p.trace.empty()) return make_drift(r, r.prompt_tokens, r.tokens, p.seed, p.config);
    auto replay = std::make_unique<trace_workload>(p.trace, r.rope_neighbours);
    replay->require_shape(r.shape);
    if (replay->tokens() < r.tokens)
        throw engine::bad_input("trace " + p.trace + " has " + std::to_string(replay->tokens()) +
                                " tokens; the context and all steps need " + std::to_string(r.tokens));
    return replay;
}

std::unique_ptr<workload> make_calibration_sample(const workload_request& r) {
    const parsed p = parse(r.text);
    if (!p.trace.empty()) return make_workload(r);
    constexpr std::size_t tokens = 2048; // 16 keys and more per dimension of a head
    return make_drift(r, tokens, tokens, p.seed ^ 0x6361'6c69'6272'6174U, p.config);
}

} // namespace bench
