// libFuzzer target: any bytes, and edits of a small model, are opened as a GGUF file. Its metadata is asked for in every form,
// and a tokenizer and a model are made of it.
// SPDX-License-Identifier: MIT
#include "../engine/random_model.hpp"
#include "error.hpp"
#include "model.hpp"
#include "support/seeded.hpp"
#include "tokenizer.hpp"

namespace {

template <class Do> void tried(Do&& what) {
    try {
        what();
    } catch (const engine::bad_input&) {
    }
}

} // namespace

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kvtl_fuzz::bytes seed = [] {
        engine::random_model small;
        const std::string file = small.build().bytes();
        return kvtl_fuzz::bytes(file.begin(), file.end());
    }();
    static const kvtl_fuzz::memory_file file;
    file.set(kvtl_fuzz::edited(seed, {data, size}));
    tried([&] {
        const engine::gguf_file in(file.path());
        for (const char* key :
             {"general.architecture", "llama.block_count", "llama.rope.freq_base", "tokenizer.ggml.tokens",
              "tokenizer.ggml.token_type", "tokenizer.chat_template"}) {
            tried([&] { static_cast<void>(in.string(key)); });
            tried([&] { static_cast<void>(in.integer(key)); });
            tried([&] { static_cast<void>(in.number(key)); });
            tried([&] { static_cast<void>(in.flag(key)); });
            tried([&] { static_cast<void>(in.strings(key)); });
            tried([&] { static_cast<void>(in.numbers(key)); });
        }
        tried([&] {
            const engine::tokenizer words(in);
            const auto tokens = words.encode("The kernel\n is <|im_start|> started by \xC3\xA9 \xFF", true);
            static_cast<void>(words.decode(tokens));
        });
        tried([&] { static_cast<void>(engine::model(in)); });
    });
    return 0;
}
