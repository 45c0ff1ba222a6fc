// Writes one of the tests' models:  make-tiny-model llama q8_0 FILE [KEY=VALUE...]
// Keys: layers, context, window, embedding, hidden, seed, end (100 times how loud the end is), chat (1: a template), 1b
// (1: the attention of Llama 3.2 1B with few layers).
// SPDX-License-Identifier: MIT
#include "tiny_models.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

int main(int argc, char** argv) {
    const std::map<std::string, ggml_type> types = {
        {"f32", GGML_TYPE_F32}, {"f16", GGML_TYPE_F16}, {"q8_0", GGML_TYPE_Q8_0}, {"q4_K", GGML_TYPE_Q4_K}};
    const auto usage = [] {
        std::fprintf(stderr, "usage: make-tiny-model ARCHITECTURE f32|f16|q8_0|q4_K FILE [KEY=VALUE...]\n");
        return 2;
    };
    if (argc < 4 || !types.contains(argv[2])) return usage();
    tiny_models::options o;
    std::map<std::string, std::uint64_t> values;
    for (int i = 4; i < argc; ++i) {
        const char* equals = std::strchr(argv[i], '=');
        if (equals == nullptr) return usage();
        values[std::string(argv[i], static_cast<std::size_t>(equals - argv[i]))] =
            std::strtoull(equals + 1, nullptr, 10);
    }
    if (values.erase("1b") != 0) o = tiny_models::attention_of_1b();
    o.architecture = argv[1];
    o.type = types.at(argv[2]);
    for (const auto& [key, value] : values) {
        const auto number = static_cast<std::uint32_t>(value);
        if (key == "layers")
            o.layers = number;
        else if (key == "context")
            o.context = number;
        else if (key == "window")
            o.window = number;
        else if (key == "embedding")
            o.embedding = number;
        else if (key == "hidden")
            o.hidden = number;
        else if (key == "seed")
            o.seed = value;
        else if (key == "end")
            o.end_gain = static_cast<float>(value) / 100;
        else if (key == "chat")
            o.chat_template = "{% for m in messages %}<|im_start|>...{% endfor %}";
        else
            return usage();
    }
    if (tiny_models::write(argv[3], o)) return 0;
    std::fprintf(stderr, "make-tiny-model: cannot write %s as %s\n", argv[3], argv[1]);
    return 1;
}
