// libFuzzer target: any bytes, and edits of valid ones, are checked as gates; what passes is bound and evaluated.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/gate_weights.hpp>

#include "support/seeded.hpp"

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    constexpr std::uint32_t layers = 2, heads = 2;
    static const kvtl_fuzz::bytes seed = kvtl_fuzz::file_of([](const std::string& path) {
        kvtl::gate_header header;
        header.layers = layers, header.kv_heads = heads, header.inputs = 16;
        const std::vector<float> weights(layers * header.layer_floats(), 0.5F);
        if (!kvtl::write_gates(path, header, weights)) std::abort();
    });
    const kvtl_fuzz::bytes content = kvtl_fuzz::edited(seed, {data, size});
    const auto blob = std::as_bytes(std::span(content));
    if (!kvtl::gate_network::check(blob, layers, heads, 0)) return 0;
    if (kvtl::gate_network::bytes(blob) > blob.size() + (std::size_t{1} << 30)) std::abort();
    return 0;
}
