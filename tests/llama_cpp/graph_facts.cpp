// What is made of nodes that were seen: which layers are refused, and which rotation counts.
// SPDX-License-Identifier: MIT
#include "graph_facts.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace kvtl_llama::detail;

namespace {

constexpr seen_batch three{.first = 0, .tokens = 3};

seen_layer layer(int number, float base = 10000) {
    seen_layer l;
    l.number = number;
    l.query_heads = 4, l.kv_heads = 2, l.key_dim = l.value_dim = 32;
    l.tokens = l.rows = 3, l.width = 64;
    l.scale = 1;
    l.own_rows = l.standard = true;
    l.seen_by_first = 1, l.seen_by_last = 3;
    l.rope.found = true;
    l.rope.dims = 32, l.rope.mode = GGML_ROPE_TYPE_NEOX;
    l.rope.base = base, l.rope.scale = 1;
    return l;
}

std::string why_not(const seen_layer& l, const seen_batch& batch = three) {
    const auto f = facts_of({l}, {.max_tokens = 100}, batch);
    return f ? "" : f.error().message;
}

} // namespace

TEST_CASE("a causal mask shows so many cells and no others") {
    auto l = layer(0);
    CHECK(why_not(l).empty());
    l.seen_by_first = 2; // bidirectional within some block
    CHECK(why_not(l) == "layer 0 lets token 0 see 2 tokens, and token 2 3; valid: causal models, where these "
                        "are 1 and 3");
    l = layer(0);
    l.seen_by_last = 2;
    CHECK(why_not(l).find("and token 2 2; valid: causal models") != std::string::npos);
    // One token of a batch at position 2.
    l = layer(0);
    l.tokens = l.rows = 1;
    l.seen_by_first = 3;
    CHECK(why_not(l, {.first = 2, .tokens = 1}).empty());
    CHECK(why_not(l, {.first = 1, .tokens = 1}).find("causal") != std::string::npos);
}

TEST_CASE("a mask that cannot be read is not called non-causal") {
    auto l = layer(0);
    l.seen_by_first = l.seen_by_last = -1;
    CHECK(why_not(l).find("has a mask that kvtl_llama cannot read; valid: f16") != std::string::npos);
    kvtl_llama::model_facts f;
    f.layers = {0};
    const auto windows = find_windows({l}, 24, f);
    CHECK(std::string(windows.what()).find("has a mask that kvtl_llama cannot read") != std::string::npos);
}

TEST_CASE("the rotation is that of layers that see everything") {
    kvtl_llama::model_facts f;
    const auto base = [&f](const std::vector<seen_layer>& layers, std::vector<std::uint32_t> windows) {
        f = {};
        f.windows = std::move(windows);
        find_rotation(layers, f);
        return f.rope_frequencies.empty() ? 0. : f.rope_frequencies[8]; // base to the power of -1/2
    };
    CHECK(base({layer(0), layer(1)}, {}) == doctest::Approx(.01));
    CHECK(base({layer(0), layer(1, 1e6F)}, {}) == 0);
    CHECK(base({layer(0), layer(1, 1e6F)}, {0, 24}) == doctest::Approx(.01));
    CHECK(base({layer(0), layer(1, 1e6F)}, {24, 0}) == doctest::Approx(.001));
    CHECK(base({layer(0), layer(1, 1e6F), layer(2)}, {0, 0, 24}) == 0);
    CHECK(base({layer(0), layer(1, 1e6F)}, {24, 24}) == doctest::Approx(.01)); // of no use to anybody
    auto yarn = layer(0);
    yarn.rope.extension = 1;
    CHECK(base({yarn, layer(1)}, {24, 0}) == doctest::Approx(.01));
    CHECK(base({yarn, layer(1)}, {0, 24}) == 0);
}
