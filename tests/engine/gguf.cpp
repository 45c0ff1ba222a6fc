// Files that are not what they should be: every one is refused with words, none is read beyond its end.
// SPDX-License-Identifier: MIT
#include "gguf.hpp"

#include "error.hpp"
#include "gguf_writer.hpp"
#include "model.hpp"
#include "random_model.hpp"
#include "tokenizer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

namespace {

using namespace engine;

struct temporary_file {
    std::string path = "gguf-" + std::to_string(::getpid()) + ".gguf";
    explicit temporary_file(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
    ~temporary_file() { std::remove(path.c_str()); }
};

/// What loading a file with these bytes complains about; empty when it does not.
std::string complaint(const std::string& bytes) {
    const temporary_file file(bytes);
    try {
        const gguf_file f(file.path);
        const model m(f);
        const tokenizer t(f);
        return "";
    } catch (const bad_input& e) {
        return e.what();
    }
}

bool mentions(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    REQUIRE(from.size() == to.size());
    return text.replace(at, from.size(), to);
}

} // namespace

TEST_CASE("metadata of every kind is read") {
    gguf_writer w;
    w.text("name", "value");
    w.u32("count", 4000000000U);
    w.f32("number", 0.5F);
    w.flag("yes", true);
    w.texts("words", {"a", "", "ccc"});
    w.i32s("list", {-1, 2});
    w.tensor("t", {3, 2}, tensor_type::f32, std::string(24, 'x'));
    const temporary_file file(w.bytes());
    const gguf_file f(file.path);
    CHECK(f.string("name") == "value");
    CHECK(f.integer("count") == 4000000000U);
    CHECK(f.number("number") == 0.5);
    CHECK(f.flag("yes"));
    CHECK(f.strings("words") == std::vector<std::string_view>{"a", "", "ccc"});
    CHECK(f.numbers("list") == std::vector<double>{-1, 2});
    CHECK(f.tensor_at("t").rows == 2);
    CHECK(f.tensor_at("t").columns == 3);
    CHECK(f.find("other") == nullptr);
    CHECK_THROWS_AS((void)f.string("count"), bad_input);
    CHECK_THROWS_AS((void)f.integer("number"), bad_input);
    CHECK_THROWS_AS((void)f.integer("name"), bad_input);
    CHECK_THROWS_AS((void)f.flag("missing"), bad_input);
    CHECK_THROWS_AS((void)f.strings("name"), bad_input);
    CHECK_THROWS_AS((void)f.numbers("words"), bad_input);
    CHECK_THROWS_AS((void)f.string("words"), bad_input);
    CHECK_THROWS_AS((void)f.tensor_at("other"), bad_input);
}

TEST_CASE("a truncated file is refused wherever it ends") {
    random_model spec;
    spec.layers = 1;
    const std::string whole = spec.build().bytes();
    REQUIRE(complaint(whole).empty());
    const std::size_t header = whole.find("blk.0.ffn_down.weight");
    for (std::size_t n = 1; n < whole.size(); n += n < header ? 61 : 4099) {
        CAPTURE(n);
        const auto text = complaint(whole.substr(0, n));
        CHECK(mentions(text, n < 4 ? "not a GGUF file" : "truncated"));
    }
    CHECK(mentions(complaint(""), "empty"));
}

TEST_CASE("damaged lengths never lead outside of the file") {
    random_model spec;
    spec.layers = 1;
    const std::string whole = spec.build().bytes();
    const std::size_t header = whole.find("blk.0.ffn_down.weight") + 64;
    std::size_t refused = 0;
    for (std::size_t at = 8; at < header; at += 13) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 0x7F);
        if (!complaint(damaged).empty()) ++refused; // no crash is the point; a changed word may do no harm
        damaged = whole;
        damaged.replace(at, 8, 8, '\xFF');
        if (!complaint(damaged).empty()) ++refused;
    }
    CHECK(refused > 50);
}

TEST_CASE("foreign files and versions") {
    CHECK(mentions(complaint("GGML and more of it"), "not a GGUF file"));
    const std::string good = random_model().build().bytes();
    std::string other = good;
    other[4] = 9;
    CHECK(mentions(complaint(other), "version 9; valid: 2, 3"));
    other.replace(4, 4, std::string("\0\0\0\3", 4));
    CHECK(mentions(complaint(other), "big-endian"));
    CHECK_THROWS_WITH_AS(gguf_file("no-such-file.gguf"),
                         "cannot read model no-such-file.gguf: No such file or directory", bad_input);
    CHECK_THROWS_WITH_AS(gguf_file("."), "cannot read model .: Is a directory", bad_input);
}

TEST_CASE("models that the engine cannot run are refused by name") {
    const auto edited = [](const std::function<void(random_model&)>& change) {
        random_model m;
        change(m);
        return m.build().bytes();
    };
    CHECK(mentions(complaint(edited([](random_model& m) { m.architecture = "mamba"; })),
                   "architecture 'mamba' is not supported; valid: llama, qwen2, qwen3"));
    CHECK(mentions(complaint(edited([](random_model& m) { m.query_heads = 3; })),
                   "not a multiple of shape.kv_heads"));
    CHECK(mentions(complaint(edited([](random_model& m) { m.rotated = 34; })), "rope.dimension_count"));

    const std::string good = random_model().build().bytes();
    CHECK(mentions(complaint(replaced(good, "blk.1.attn_k.weight", "blk.1.attn_X.weight")),
                   "tensor 'blk.1.attn_k.weight' is missing"));
    CHECK(mentions(complaint(replaced(good, "llama.block_count", "llama.block_cXunt")),
                   "'llama.block_count' is missing"));
    CHECK(mentions(complaint(replaced(good, "\x09" + std::string(7, '\0') + "llama-bpe",
                                      "\x09" + std::string(7, '\0') + "other-bpe")),
                   "pre-tokenizer 'other-bpe' is not supported; valid: llama-bpe"));

    // The record of a tensor: name, number of extents, extents, type.
    const std::string name = "blk.0.attn_q.weight";
    const std::size_t extents = good.find(name) + name.size() + 4;
    std::string other = good;
    other[extents] = 32;
    CHECK(mentions(complaint(other), "tensor 'blk.0.attn_q.weight' is 128 x 32, but 128 x 64 was expected"));
    other = good;
    other[extents + 16] = 14;
    CHECK(mentions(complaint(other),
                   "tensor 'blk.0.attn_q.weight' has type Q6_K; supported: F32, F16, BF16, Q8_0, Q4_0"));
}
