// SPDX-License-Identifier: MIT
#include "stand_ins.hpp"

#include <kvtl/calibration/gate_weights.hpp>
#include <kvtl/calibration/writer.hpp>

#include <algorithm>
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
    // The generator's knobs turn its text, not the models that are made up for it.
    if (workload.starts_with("drift:")) workload = workload.substr(0, workload.find(','));
    std::uint64_t seed = 0;
    for (const char c : workload) seed = mixed(seed ^ static_cast<unsigned char>(c));
    return seed;
}

kvtl::status write_random_gates(const kvtl::shape& shape, std::size_t inputs, bool attend, std::uint64_t seed,
                                const std::string& path) {
    kvtl::gate_header header;
    header.layers = shape.layers;
    header.kv_heads = shape.kv_heads;
    header.inputs = static_cast<std::uint32_t>(inputs);
    if (attend) header.act = kvtl::activation::attention, header.hidden = 16;
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(inputs)));
    std::vector<float> weights(header.layers * header.layer_floats());
    for (float& w : weights) w = normal(random);
    return kvtl::write_gates(path, header, weights);
}

kvtl::status write_level_gates(const kvtl::shape& shape, const std::string& bases, float rate,
                               const std::string& path) {
    using kind = kvtl::calibration_kind;
    const auto file = kvtl::calibration::load(bases, shape);
    if (!file) return kvtl::status::failure(file.error().code, "%s", file.error().message.c_str());
    const std::size_t n = std::size_t{shape.kv_heads} * shape.head_dim;
    const auto rank =
        std::clamp<std::size_t>(static_cast<std::size_t>(rate * static_cast<float>(n) + 0.5F), 1, n);
    kvtl::calibration_writer out(shape, 0);
    for (const auto& [from, to] :
         {std::pair(kind::joint_keys, kind::gated_keys), std::pair(kind::joint_values, kind::gated_values)}) {
        std::vector<float> all;
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
            const float* directions = file->view().basis(from, layer, 0).data;
            for (int half = 0; half < 2; ++half) all.insert(all.end(), directions, directions + n * n);
            all.resize(all.size() + n * (n + 1)); // no weights
            *(all.end() - static_cast<std::ptrdiff_t>(rank)) =
                30.0F; // all of p: the sum of the first n - rank + 1
        }
        if (auto s = out.add_gated(to, all, rate); !s) return s;
    }
    for (const auto& [from, to] :
         {std::pair(kind::head_keys, kind::prefix_keys), std::pair(kind::head_values, kind::prefix_values)}) {
        const auto first = file->view().basis(from, 0, 0);
        const std::size_t all = std::size_t{shape.layers} * shape.kv_heads * shape.head_dim * shape.head_dim;
        if (auto s = out.add(to, shape.head_dim, {first.data, all}); !s) return s;
    }
    return out.write(path);
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
