// libFuzzer target: any bytes, and edits of valid ones, are checked as gates of both kinds; what passes needs no more
// memory than it should.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/gate_weights.hpp>

#include "support/seeded.hpp"

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

namespace {

constexpr std::uint32_t layers = 2, heads = 2;

kvtl_fuzz::bytes gates(kvtl::activation act, std::uint32_t hidden) {
    return kvtl_fuzz::file_of([&](const std::string& path) {
        kvtl::gate_header header;
        header.layers = layers, header.kv_heads = heads, header.inputs = 16, header.act = act,
        header.hidden = hidden;
        const std::vector<float> weights(layers * header.layer_floats(), 0.5F);
        if (!kvtl::write_gates(path, header, weights)) std::abort();
    });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kvtl_fuzz::bytes plain = gates(kvtl::activation::identity, 0),
                                  attending = gates(kvtl::activation::attention, 3);
    constexpr std::size_t most = std::size_t{1} << 30;
    for (const bool attend : {false, true}) {
        const kvtl_fuzz::bytes content = kvtl_fuzz::edited(attend ? attending : plain, {data, size});
        const auto blob = std::as_bytes(std::span(content));
        if (!kvtl::gate_network::check(blob, layers, heads, 0, attend)) continue;
        const std::size_t bytes =
            attend ? kvtl::attending_gate_network::bytes(blob, 10) : kvtl::gate_network::bytes(blob);
        if (bytes > blob.size() + most) std::abort();
    }
    return 0;
}
