// Writes a small model with random weights, e.g. to compare engines on it:  make-model qwen3 q8_0 FILE [seed]
// SPDX-License-Identifier: MIT
#include "random_model.hpp"

#include <cstdio>
#include <cstdlib>
#include <map>

int main(int argc, char** argv) {
    using engine::tensor_type;
    const std::map<std::string, tensor_type> types = {{"f32", tensor_type::f32},
                                                      {"f16", tensor_type::f16},
                                                      {"bf16", tensor_type::bf16},
                                                      {"q8_0", tensor_type::q8_0},
                                                      {"q4_0", tensor_type::q4_0}};
    if (argc < 4 || !types.contains(argv[2])) {
        std::fprintf(stderr, "usage: make-model llama|qwen2|qwen3 f32|f16|bf16|q8_0|q4_0 FILE [seed]\n");
        return 2;
    }
    engine::random_model m;
    m.architecture = argv[1];
    m.type = types.at(argv[2]);
    m.tied = false;
    m.context = 512;
    if (m.architecture != "qwen3")
        m.width = m.query_heads * m.head_dim; // the other two are always built like this
    if (argc > 4) m.seed = std::strtoull(argv[4], nullptr, 10);
    m.build().write(argv[3]);
    return 0;
}
