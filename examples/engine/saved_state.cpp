// SPDX-License-Identifier: MIT
#include "saved_state.hpp"

#include <kvtl/save/saved_file.hpp>

#include "error.hpp"

#include <nlohmann/json.hpp>

namespace engine {

using json = nlohmann::ordered_json;

std::vector<std::byte> saved_text::note() const {
    json all = {{"kvtl_text", 1}, {"tokens", tokens}, {"sampler", sampler}};
    for (const message& m : messages) all["messages"].push_back({{"role", m.role}, {"text", m.text}});
    // An answer may have ended inside a character, and anything may be typed.
    const std::string text = all.dump(-1, ' ', false, json::error_handler_t::replace);
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

saved_state look_into_state(const std::string& path) {
    const auto refuse = [](const auto& r) {
        if (!r) throw bad_input("--load-state: " + r.error().message);
    };
    auto file = kvtl::saved_file::open(path);
    refuse(file);
    auto note = file->note();
    refuse(note);
    saved_state state{.text = {}, .facts = file->facts()};
    const auto* const first = reinterpret_cast<const char*>(note->data());
    const json all = json::parse(first, first + note->size(), nullptr, false);
    const bool ours = all.is_object() && all.value("kvtl_text", 0) == 1 && all.contains("tokens") &&
                      all["tokens"].is_array() && all.contains("sampler") && all["sampler"].is_string();
    if (!ours)
        throw bad_input("--load-state: " + path +
                        " was not saved with --save-state: it has no tokens of a text");
    for (const json& token : all["tokens"]) {
        if (!token.is_number_integer()) throw bad_input("--load-state: " + path + ": a token is no number");
        state.text.tokens.push_back(token.get<token_id>());
    }
    state.text.sampler = all["sampler"].get<std::string>();
    for (const json& said : all.value("messages", json::array())) {
        const auto has_text = [&](const char* key) {
            return said.is_object() && said.contains(key) && said[key].is_string();
        };
        if (!has_text("role") || !has_text("text"))
            throw bad_input("--load-state: " + path + ": a message has no role or no text");
        state.text.messages.push_back({said["role"].get<std::string>(), said["text"].get<std::string>()});
    }
    if (state.facts.tokens > state.text.tokens.size())
        throw bad_input("--load-state: " + path + ": the cache holds " + std::to_string(state.facts.tokens) +
                        " tokens of a text of " + std::to_string(state.text.tokens.size()));
    return state;
}

} // namespace engine
