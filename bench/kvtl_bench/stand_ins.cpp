// SPDX-License-Identifier: MIT
#include "stand_ins.hpp"

#include "gates.hpp"

#include <cmath>
#include <random>
#include <vector>

namespace bench {

namespace {

/// splitmix64: every bit of the result depends on every bit of x.
std::uint64_t mixed(std::uint64_t x) noexcept {
    x += 0x9e37'79b9'7f4a'7c15U;
    x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9U;
    x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11ebU;
    return x ^ (x >> 31);
}

} // namespace

std::uint64_t seed_of(std::string_view workload) noexcept {
    std::uint64_t seed = 0;
    for (const char c : workload) seed = mixed(seed ^ static_cast<unsigned char>(c));
    return seed;
}

kvtl::status write_random_gates(const kvtl::shape& shape, std::size_t inputs, std::uint64_t seed,
                                const std::string& path) {
    kvtl::gate_header header;
    header.layers = shape.layers;
    header.kv_heads = shape.kv_heads;
    header.inputs = static_cast<std::uint32_t>(inputs);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(inputs)));
    std::vector<float> weights(header.layers * header.layer_floats());
    for (float& w : weights) w = normal(random);
    return engine::write_gates(path, header, weights);
}

void random_mask(std::uint64_t seed, std::size_t sequence, std::uint32_t layer, std::size_t token,
                 std::span<float> out) noexcept {
    for (std::size_t h = 0; h < out.size(); ++h) {
        const std::uint64_t bits = mixed(mixed(mixed(mixed(seed ^ sequence) ^ layer) ^ token) ^ h);
        const float number = static_cast<float>((bits >> 40) + 1) * 0x1p-24F; // (0, 1]
        out[h] = token == 0 || (bits & 1) != 0 ? number : 0.0F;
    }
}

} // namespace bench
