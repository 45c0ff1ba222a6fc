// Gate blobs: what cannot be the weights of this model is refused in words.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/gate_weights.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

using namespace kvtl;

namespace {

/// A blob for 2 layers and 2 KV heads, 3 inputs and no hidden units, that begins at an odd address.
struct blob {
    gate_header head;
    std::vector<float> weights;
    std::vector<std::byte> memory{};

    blob() {
        head.layers = 2, head.kv_heads = 2, head.inputs = 3;
        weights.assign(2 * head.layer_floats(), 0.5F);
    }
    [[nodiscard]] std::span<const std::byte> bytes() {
        const std::size_t payload = weights.size() * sizeof(float);
        memory.resize(1 + sizeof head + payload);
        std::memcpy(memory.data() + 1, &head, sizeof head);
        std::memcpy(memory.data() + 1 + sizeof head, weights.data(), payload);
        return std::span(memory).subspan(1);
    }
    [[nodiscard]] std::string refusal() { return std::string(gate_network::check(bytes(), 2, 2, 0).what()); }
};

} // namespace

TEST_CASE("a sound blob passes") {
    blob b;
    CHECK(gate_network::check(b.bytes(), 2, 2, 0).ok());
}

TEST_CASE("a weight that is not finite is named") {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()})
        for (const std::size_t at : {std::size_t{0}, std::size_t{15}}) {
            blob b;
            REQUIRE(b.weights.size() == 16);
            b.weights[at] = bad;
            CHECK(b.refusal() == "retention.weights: number " + std::to_string(at) + " of 16 is not finite");
        }
}

TEST_CASE("a blob of another size, as one of another element type is, names both sizes") {
    blob b;
    const std::span<const std::byte> whole = b.bytes();
    const auto half = whole.first(sizeof(gate_header) + (whole.size() - sizeof(gate_header)) / 2);
    const status s = gate_network::check(half, 2, 2, 0);
    CHECK(std::string(s.what()) ==
          "retention.weights has " + std::to_string(half.size()) +
              " bytes for 3 inputs and 0 hidden units; valid: " + std::to_string(whole.size()));
}
