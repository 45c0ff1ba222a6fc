// libFuzzer target: any bytes are bodies of kvtl-server's requests. The model behind them is made up: a letter is a token.
// SPDX-License-Identifier: MIT
#include "openai.hpp"
#include "support/seeded.hpp"

// What the requests ask of a model, in place of llama.cpp.
extern "C" void llama_model_free(llama_model*) {}
namespace llama_run {
loaded_model::loaded_model(const std::string&) {}
std::size_t loaded_model::vocabulary() const noexcept {
    return 256;
}
std::vector<token_id> loaded_model::encode(std::string_view text, bool begin, bool) const {
    std::vector<token_id> all(begin ? 1 : 0);
    for (const char c : text) all.push_back(static_cast<std::uint8_t>(c));
    return all;
}
std::string loaded_model::piece(token_id id, bool) const {
    return {static_cast<char>(id)};
}
std::optional<std::string> loaded_model::render(std::span<const engine::message>, bool) const {
    return std::nullopt;
}
} // namespace llama_run

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    std::vector<bytes> all;
    for (
        const std::string_view body :
        {R"({"model":"m","prompt":"The kernel","max_tokens":8,"temperature":0.5,"top_p":0.9,"seed":3,"stop":["\n","."]})",
         R"({"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true},"n":1,"logprobs":null})",
         R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Who?"},{"role":"assistant","content":"I."},{"role":"user","content":[{"type":"text","text":"Why?"}]}],"max_completion_tokens":4})",
         R"({"content":"a text","add_special":true})",
         R"({"prompt":"\ud83d\ude00\u0000","max_tokens":1e3,"seed":-1})", R"([[[[[[{}]]]]]])"})
        all.emplace_back(body.begin(), body.end());
    return all;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const llama_run::loaded_model made_up{""};
    static const kvtl_server::served_model model(made_up, "m", 64);
    const std::string body(reinterpret_cast<const char*>(data), size);
    const auto tried = [](auto&& what) {
        try {
            what();
        } catch (const kvtl_server::api_error& e) {
            if (e.status < 400 || e.status > 599 || *e.what() == '\0') std::abort();
            static_cast<void>(kvtl_server::error_body(e));
        }
    };
    tried([&] {
        const kvtl_server::json parsed = kvtl_server::parse_body(body);
        for (const bool chat : {false, true})
            tried([&] {
                const auto request = kvtl_server::parse_completion(parsed, chat, model);
                if (request.what.prompt.empty() || request.what.max_tokens == 0) std::abort();
                if (request.what.prompt.size() + request.what.max_tokens > model.context()) std::abort();
                kvtl_server::completion_writer writer(request, model);
                static_cast<void>(writer.first() + writer.piece(body));
            });
        tried([&] { static_cast<void>(kvtl_server::tokenize(parsed, model)); });
    });
    return 0;
}
