// SPDX-License-Identifier: MIT
#include "openai.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <random>
#include <utility>

namespace kvtl_server {

namespace {

constexpr int most_levels = 100;
constexpr std::size_t most_keys = 256; ///< of an object, which looks for each new key among the others

/// A field that is there and not null, or null.
const json* field(const json& body, const char* name) {
    const auto found = body.find(name);
    return found == body.end() || found->is_null() ? nullptr : &*found;
}

[[noreturn]] void refuse(const std::string& name, const json& value, const std::string& valid) {
    std::string is = dump(value);
    if (is.size() > 60) is = is.substr(0, 57) + "...";
    throw api_error(400, name + " is " + is + "; valid: " + valid, name);
}

bool flag(const json& body, const char* name, bool otherwise = false) {
    const json* f = field(body, name);
    if (f == nullptr) return otherwise;
    if (!f->is_boolean()) refuse(name, *f, "true or false");
    return f->get<bool>();
}

std::uint64_t whole_number(const json& f, const std::string& name, std::uint64_t least, std::uint64_t most) {
    const bool good =
        f.is_number_unsigned() && f.get<std::uint64_t>() >= least && f.get<std::uint64_t>() <= most;
    if (!good) refuse(name, f, std::to_string(least) + " to " + std::to_string(most));
    return f.get<std::uint64_t>();
}

std::string text_of(const json& f, const std::string& name) {
    if (!f.is_string()) refuse(name, f, "a text");
    return f.get<std::string>();
}

/// Of a message: chat templates take texts that end at a NUL.
std::string spoken(const json& f, const std::string& name) {
    std::string text = text_of(f, name);
    if (text.find('\0') != std::string::npos)
        throw api_error(400, name + " has a NUL, U+0000; valid: a text without", name);
    return text;
}

/// Fields that would change an answer, and the values at which they do not.
void refuse_what_cannot_be_followed(const json& body) {
    static const auto neutral = json::parse(R"({
        "n": [1], "best_of": [1], "echo": [false], "suffix": [""], "logprobs": [false, 0],
        "top_logprobs": [0], "frequency_penalty": [0, 0.0], "presence_penalty": [0, 0.0], "logit_bias": [{}],
        "tools": [[]], "functions": [[]], "tool_choice": ["none", "auto"], "function_call": ["none", "auto"],
        "modalities": [["text"]], "response_format": [{"type": "text"}]})");
    for (const auto& [name, valid] : neutral.items()) {
        const json* f = field(body, name.c_str());
        if (f == nullptr || std::find(valid.begin(), valid.end(), *f) != valid.end()) continue;
        refuse(name, *f, dump(valid.front()) + ", as this server has nothing else");
    }
}

std::vector<std::string> stops_of(const json& body) {
    const json* f = field(body, "stop");
    std::vector<std::string> all;
    if (f == nullptr) return all;
    const bool one = f->is_string();
    if (!one && (!f->is_array() || f->size() > 16)) refuse("stop", *f, "a text, or up to 16 of them");
    for (const json& each : one ? json::array({*f}) : *f) {
        all.push_back(text_of(each, "stop"));
        if (all.back().empty()) refuse("stop", *f, "texts of 1 byte or more");
    }
    return all;
}

void read_prompt(const json& body, const served_model& m, generation& g) {
    const json* f = field(body, "prompt");
    if (f == nullptr) throw api_error(400, "prompt is missing; valid: a text, or a list of tokens", "prompt");
    // OpenAI accepts a list of prompts; this server takes a list of one.
    if (f->is_array() && !f->empty() && (f->front().is_string() || f->front().is_array())) {
        if (f->size() > 1) refuse("prompt", *f, "a text, or a list of tokens; one prompt per request");
        f = &f->front();
    }
    if (f->is_string()) {
        g.prompt = m.prompt(f->get<std::string>());
        return;
    }
    if (!f->is_array()) refuse("prompt", *f, "a text, or a list of tokens");
    g.given_as_tokens = true;
    for (const json& each : *f)
        g.prompt.push_back(static_cast<token_id>(whole_number(each, "prompt", 0, m.vocabulary() - 1)));
}

/// A text, or parts of which each is one.
std::string content_of(const json& message, const std::string& name) {
    const json* f = field(message, "content");
    if (f == nullptr) throw api_error(400, name + ".content is missing; valid: a text", name);
    if (!f->is_array()) return spoken(*f, name + ".content");
    std::string text;
    for (const json& part : *f) {
        const bool good =
            part.is_object() && part.value("type", json()) == "text" && field(part, "text") != nullptr;
        if (!good)
            refuse(name + ".content", part, R"({"type":"text","text":...}, as the model reads text only)");
        text += spoken(part["text"], name + ".content.text");
    }
    return text;
}

std::vector<token_id> chat_of(const json& body, const served_model& m) {
    const json* f = field(body, "messages");
    if (f == nullptr || !f->is_array() || f->empty())
        throw api_error(400, R"(messages is missing or empty; valid: a list of {"role","content"})",
                        "messages");
    std::vector<engine::message> messages;
    for (const json& each : *f) {
        const std::string name = "messages[" + std::to_string(messages.size()) + "]";
        if (!each.is_object() || field(each, "role") == nullptr) refuse(name, each, R"({"role","content"})");
        messages.push_back({spoken(each["role"], name + ".role"), content_of(each, name)});
    }
    return m.chat(messages);
}

/// How many tokens an answer may have.
std::size_t room_for(const json& body, bool chat, std::size_t prompt, std::size_t context) {
    const std::string limit = "the model's context has " + std::to_string(context) + " tokens";
    if (prompt >= context)
        throw api_error(400,
                        "the prompt has " + std::to_string(prompt) + " tokens and " + limit +
                            "; valid: up to " + std::to_string(context - 1),
                        chat ? "messages" : "prompt", "context_length_exceeded");
    const std::size_t room = context - prompt;
    const bool newer = field(body, "max_completion_tokens") != nullptr;
    const char* name = newer ? "max_completion_tokens" : "max_tokens";
    const json* f = field(body, name);
    if (const json* other = field(body, "max_tokens"); newer && other != nullptr)
        refuse("max_tokens", *other, "one of max_tokens and max_completion_tokens");
    if (f == nullptr) return chat ? room : std::min<std::size_t>(room, 16);
    const std::uint64_t wanted = whole_number(*f, name, 1, context);
    if (wanted > room)
        throw api_error(400,
                        std::string(name) + " is " + std::to_string(wanted) + " behind a prompt of " +
                            std::to_string(prompt) + " tokens, and " + limit + "; valid: 1 to " +
                            std::to_string(room),
                        name, "context_length_exceeded");
    return wanted;
}

/// 1 where it is not there.
double number_of(const json& body, const char* name, double most) {
    const json* f = field(body, name);
    if (f == nullptr) return 1;
    if (!f->is_number() || f->get<double>() < 0 || f->get<double>() > most)
        refuse(name, *f, "0 to " + std::to_string(static_cast<int>(most)));
    return f->get<double>();
}

std::uint64_t seed_of(const json& body) {
    const json* f = field(body, "seed");
    if (f == nullptr) return std::random_device{}();
    if (!f->is_number_integer()) refuse("seed", *f, "a whole number");
    return f->is_number_unsigned() ? f->get<std::uint64_t>()
                                   : static_cast<std::uint64_t>(f->get<std::int64_t>());
}

std::string new_id(bool chat) {
    static std::atomic<std::uint64_t> count = std::random_device{}();
    return (chat ? "chatcmpl-" : "cmpl-") + std::to_string(count++);
}

json usage_of(const job& ended) {
    const token_usage& u = ended.usage();
    return {{"prompt_tokens", u.prompt},
            {"completion_tokens", u.generated},
            {"total_tokens", u.prompt + u.generated},
            {"prompt_tokens_details", {{"cached_tokens", u.cached}}}};
}

const char* word_for(finish_reason r) {
    return r == finish_reason::stop ? "stop" : "length";
}

} // namespace

std::string dump(const json& j) {
    return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string error_body(const api_error& e) {
    const auto or_null = [](const std::string& text) { return text.empty() ? json() : json(text); };
    const char* type = e.status == 401   ? "authentication_error"
                       : e.status >= 500 ? "server_error"
                                         : "invalid_request_error";
    return dump(
        {{"error",
          {{"message", e.what()}, {"type", type}, {"param", or_null(e.param)}, {"code", or_null(e.code)}}}});
}

json parse_body(const std::string& body) {
    bool deep = false; // who writes a value out again goes down as far
    bool wide = false;
    std::array<std::size_t, most_levels + 1> keys{}; // of the object that is open on each level
    json parsed = json::parse(
        body,
        [&](int depth, json::parse_event_t event, json&) {
            deep = deep || depth > most_levels;
            if (deep) return false;
            std::size_t& here = keys[static_cast<std::size_t>(depth)];
            if (event == json::parse_event_t::key) wide = wide || ++here > most_keys;
            if (event == json::parse_event_t::object_end) keys[static_cast<std::size_t>(depth) + 1] = 0;
            return !wide;
        },
        false);
    if (deep)
        throw api_error(400, "the body has lists or objects within each other, more than " +
                                 std::to_string(most_levels) + " levels deep; valid: fewer");
    if (wide)
        throw api_error(400, "the body has an object of more than " + std::to_string(most_keys) +
                                 " keys; valid: fewer");
    if (parsed.is_discarded()) throw api_error(400, "the body is no JSON in UTF-8; valid: a JSON object");
    if (!parsed.is_object())
        throw api_error(400, std::string("the body is ") + parsed.type_name() + "; valid: a JSON object");
    return parsed;
}

completion_request parse_completion(const json& body, bool chat, const served_model& m) {
    completion_request r{.chat = chat, .stream = flag(body, "stream"), .what = {}};
    if (const json* name = field(body, "model"); name != nullptr && text_of(*name, "model") != m.name())
        throw api_error(404, "model is " + dump(*name) + ", which is not served; valid: \"" + m.name() + "\"",
                        "model", "model_not_found");
    refuse_what_cannot_be_followed(body);
    if (const json* o = field(body, "stream_options")) {
        if (!o->is_object()) refuse("stream_options", *o, R"({"include_usage":true})");
        r.include_usage = flag(*o, "include_usage");
    }
    r.what.temperature = number_of(body, "temperature", 2);
    r.what.top_p = number_of(body, "top_p", 1);
    r.what.seed = seed_of(body);
    r.what.stop = stops_of(body);
    if (chat)
        r.what.prompt = chat_of(body, m);
    else
        read_prompt(body, m, r.what);
    if (r.what.prompt.empty())
        throw api_error(400, "the prompt has no tokens; valid: 1 or more", chat ? "messages" : "prompt");
    r.what.max_tokens = room_for(body, chat, r.what.prompt.size(), m.context());
    return r;
}

json tokenize(const json& body, const served_model& m) {
    const json* f = field(body, "content");
    if (f == nullptr) throw api_error(400, "content is missing; valid: a text", "content");
    return {{"tokens", m.tokens(text_of(*f, "content"), flag(body, "add_special"))}};
}

json list_of_models(const served_model& m) {
    return {{"object", "list"},
            {"data", json::array({{{"id", m.name()},
                                   {"object", "model"},
                                   {"created", m.since()},
                                   {"owned_by", "kvtl"},
                                   {"max_model_len", m.context()}}})}};
}

completion_writer::completion_writer(const completion_request& r, const served_model& m)
    : chat_(r.chat), include_usage_(r.include_usage), id_(new_id(r.chat)), model_(m.name()),
      created_(std::time(nullptr)) {}

json completion_writer::head(bool chunk) const {
    const char* object = !chat_ ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

std::string completion_writer::whole(const std::string& text, const job& ended) const {
    json j = head(false);
    json choice = {{"index", 0}};
    if (chat_)
        choice["message"] = {{"role", "assistant"}, {"content", text}};
    else
        choice["text"] = text;
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = word_for(ended.reason());
    j["choices"] = json::array({std::move(choice)});
    j["usage"] = usage_of(ended);
    return dump(j);
}

std::string completion_writer::event(json choice) const {
    json j = head(true);
    j["choices"] = json::array({std::move(choice)});
    if (include_usage_) j["usage"] = nullptr;
    return "data: " + dump(j) + "\n\n";
}

std::string completion_writer::first() const {
    if (!chat_) return {};
    return event(
        {{"index", 0}, {"delta", {{"role", "assistant"}, {"content", ""}}}, {"finish_reason", nullptr}});
}

std::string completion_writer::piece(const std::string& text) const {
    if (chat_) return event({{"index", 0}, {"delta", {{"content", text}}}, {"finish_reason", nullptr}});
    return event({{"index", 0}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
}

std::string completion_writer::last(const job& ended) const {
    if (!ended.failure().empty()) return "data: " + error_body(api_error(500, ended.failure())) + "\n\n";
    json choice = {{"index", 0}};
    if (chat_)
        choice["delta"] = json::object();
    else
        choice["text"] = "";
    choice["finish_reason"] = word_for(ended.reason());
    std::string text = event(std::move(choice));
    if (include_usage_) {
        json j = head(true);
        j["choices"] = json::array();
        j["usage"] = usage_of(ended);
        text += "data: " + dump(j) + "\n\n";
    }
    return text + "data: [DONE]\n\n";
}

} // namespace kvtl_server
