// Weights of a learned gate: a small network per layer that says, when a token arrives, what its entries will
// be worth. Forward pass only; training is somebody else's.
//
// What:   out = W2 act(W1 in + b1) + b2, one number per KV head; without hidden units out = W2 in + b2.
// Shapes: in (N); W1 (hidden, N), b1 (hidden); W2 (H, hidden or N), b2 (H); all f32, row-major, layer by
//         layer.
// Attention (activation::attention, Attention-Gate): for token t and each KV head
//         out = own in_t + sum over j <= t of softmax_j(Wq in_t . Wk in_j / sqrt(W)) wv in_j + b,
//         with Wq, Wk (H, W, N), wv, own (H, N), b (H) and W = hidden.
// Blob:   the header below, then for each layer W1, b1, W2, b2, or Wq, Wk, wv, own, b. Little-endian. A blob of
//         another version, shape, kind or model, or with a weight that is not finite, is refused.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/whole_file.hpp>
#include <kvtl/element.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvtl { inline namespace v0 {

enum class activation : std::uint32_t { identity = 0, relu = 1, silu = 2, attention = 3 };

struct gate_header {
    static constexpr std::uint64_t expected_magic = 0x314554414C54564BU; // "KVTLATE1"
    static constexpr std::uint32_t expected_version = 1;
    std::uint64_t magic = expected_magic;
    std::uint64_t model = 0; ///< a number that the trainer gave the model; 0: any
    std::uint32_t version = expected_version;
    std::uint32_t layers = 0, kv_heads = 0;
    std::uint32_t inputs = 0; ///< N
    std::uint32_t hidden = 0;
    activation act = activation::identity;

    /// Of a blob that has at least these bytes, and need not be aligned.
    [[nodiscard]] static gate_header of(std::span<const std::byte> blob) noexcept {
        gate_header h;
        std::memcpy(&h, blob.data(), sizeof h);
        return h;
    }
    /// Floats of one layer.
    [[nodiscard]] std::size_t layer_floats() const noexcept {
        if (act == activation::attention) return kv_heads * ((2 * std::size_t{hidden} + 2) * inputs + 1);
        const std::size_t last = hidden == 0 ? inputs : hidden;
        return std::size_t{hidden} * (std::size_t{inputs} + 1) + std::size_t{kv_heads} * (last + 1);
    }
    [[nodiscard]] std::size_t blob_bytes() const noexcept {
        return sizeof(gate_header) + layers * layer_floats() * sizeof(float);
    }
};

/// Makes a file of a blob. `weights`: header.layers * header.layer_floats() numbers in the order of the layout. It is written
/// beside `path` and renamed: a run that is interrupted leaves the old file or none.
[[nodiscard, gnu::cold]] inline status write_gates(const std::string& path, const gate_header& header,
                                                   std::span<const float> weights) {
    if (weights.size() != header.layers * header.layer_floats())
        return status::failure(errc::invalid_argument, "gates have %zu weights; valid: %zu", weights.size(),
                               header.layers * header.layer_floats());
    return write_whole_file(path, {std::as_bytes(std::span(&header, 1)), std::as_bytes(weights)});
}

/// A checked blob, copied into memory of the cache.
class gate_network {
  public:
    /// Bytes of memory for a blob: its floats and a row of hidden units.
    [[nodiscard]] static std::size_t bytes(std::span<const std::byte> blob) noexcept {
        return blob.size() < sizeof(gate_header) ? 0
                                                 : blob.size() + gate_header::of(blob).hidden * sizeof(float);
    }
    [[nodiscard]] static status check(std::span<const std::byte> blob, std::uint32_t layers,
                                      std::uint32_t kv_heads, std::uint64_t model,
                                      bool attends = false) noexcept {
        if (blob.size() < sizeof(gate_header))
            return status::failure(errc::invalid_argument,
                                   "retention.weights has %zu bytes; valid: a gate blob", blob.size());
        const gate_header h = gate_header::of(blob);
        if (h.magic != gate_header::expected_magic || h.version != gate_header::expected_version)
            return status::failure(
                errc::invalid_argument,
                "retention.weights: magic %llx, version %u; valid: a gate blob of version %u",
                static_cast<unsigned long long>(h.magic), h.version, gate_header::expected_version);
        if (h.layers != layers || h.kv_heads != kv_heads || (model != 0 && h.model != 0 && h.model != model))
            return status::failure(errc::invalid_argument,
                                   "retention.weights are of another model (%u layers, %u KV heads, number "
                                   "%llu); valid: %u layers, %u KV heads, number %llu",
                                   h.layers, h.kv_heads, static_cast<unsigned long long>(h.model), layers,
                                   kv_heads, static_cast<unsigned long long>(model));
        if (h.inputs == 0 || h.inputs > (1U << 20) || h.hidden > (1U << 20) || h.blob_bytes() != blob.size())
            return status::failure(
                errc::invalid_argument,
                "retention.weights has %zu bytes for %u inputs and %u hidden units; valid: "
                "%zu",
                blob.size(), h.inputs, h.hidden, h.blob_bytes());
        if (attends ? h.act != activation::attention || h.hidden == 0 : h.act > activation::silu)
            return status::failure(
                errc::invalid_argument, "retention.weights: activation is %u with %u hidden units; valid: %s",
                static_cast<std::uint32_t>(h.act), h.hidden, attends ? "3 with at least 1" : "0 to 2");
        for (std::size_t at = sizeof h; at < blob.size(); at += sizeof(float)) {
            float weight;
            std::memcpy(&weight, blob.data() + at, sizeof weight); // a blob need not be aligned
            if (!std::isfinite(weight))
                return status::failure(
                    errc::invalid_argument, "retention.weights: number %zu of %zu is not finite",
                    (at - sizeof h) / sizeof weight, (blob.size() - sizeof h) / sizeof weight);
        }
        return {};
    }

    gate_network() = default;
    gate_network(std::span<const std::byte> blob, std::span<std::byte> memory) noexcept
        : head_(gate_header::of(blob)) {
        std::memcpy(memory.data(), blob.data() + sizeof(gate_header), blob.size() - sizeof(gate_header));
        weights_ = reinterpret_cast<const float*>(memory.data());
        hidden_ = reinterpret_cast<float*>(memory.data() + blob.size() - sizeof(gate_header));
    }

    [[nodiscard]] std::uint32_t inputs() const noexcept { return head_.inputs; }

    /// out[h] for all KV heads of a layer; the input lies in pieces, whose lengths sum to inputs().
    void forward(std::uint32_t layer, std::span<const std::span<const float>> in, std::span<float> out,
                 std::uint32_t first_head, std::uint32_t head_step) const noexcept {
        const float* w = weights_ + layer * head_.layer_floats();
        if (head_.hidden == 0) {
            const float* b = w + std::size_t{head_.kv_heads} * head_.inputs;
            for (std::size_t i = 0; i < out.size(); ++i) {
                const std::size_t h = first_head + i * head_step;
                out[i] = b[h] + product(w + h * head_.inputs, in);
            }
            return;
        }
        const float* b1 = w + std::size_t{head_.hidden} * head_.inputs;
        const float* w2 = b1 + head_.hidden;
        const float* b2 = w2 + std::size_t{head_.kv_heads} * head_.hidden;
        for (std::size_t j = 0; j < head_.hidden; ++j)
            hidden_[j] = activate(b1[j] + product(w + j * head_.inputs, in));
        for (std::size_t i = 0; i < out.size(); ++i) {
            const std::size_t h = first_head + i * head_step;
            out[i] = b2[h] + simd::dot(w2 + h * head_.hidden, hidden_, head_.hidden);
        }
    }

  private:
    [[nodiscard]] static float product(const float* w, std::span<const std::span<const float>> in) noexcept {
        float sum = 0;
        for (const std::span<const float> piece : in) {
            sum += simd::dot(w, piece.data(), piece.size());
            w += piece.size();
        }
        return sum;
    }
    [[nodiscard]] float activate(float x) const noexcept {
        if (head_.act == activation::relu) return std::max(x, 0.0F);
        if (head_.act == activation::silu) return x / (1.0F + std::exp(-x));
        return x;
    }
    gate_header head_{};
    const float* weights_ = nullptr;
    float* hidden_ = nullptr;
};

/// A checked blob of a gate that attends, copied into memory of the cache.
class attending_gate_network {
  public:
    /// Bytes of memory for a blob: its floats, a query, and a logit for each token of the longest sequence.
    [[nodiscard]] static std::size_t bytes(std::span<const std::byte> blob, std::size_t tokens) noexcept {
        return blob.size() < sizeof(gate_header)
                   ? 0
                   : blob.size() + (gate_header::of(blob).hidden + tokens) * sizeof(float);
    }
    attending_gate_network() = default;
    attending_gate_network(std::span<const std::byte> blob, std::span<std::byte> memory) noexcept
        : head_(gate_header::of(blob)) {
        std::memcpy(memory.data(), blob.data() + sizeof(gate_header), blob.size() - sizeof(gate_header));
        weights_ = reinterpret_cast<float*>(memory.data());
        query_ = weights_ + head_.layers * head_.layer_floats();
        logits_ = query_ + head_.hidden;
    }

    [[nodiscard]] std::uint32_t inputs() const noexcept { return head_.inputs; }
    /// Numbers of a token that later ones read: Wk in and wv in.
    [[nodiscard]] static std::size_t row_numbers(const gate_header& h) noexcept {
        return std::size_t{h.hidden} + 1;
    }

    /// out of a KV head for token t with input `in` (N). past: (t + 1, row_numbers), rows of all tokens up to t; the last
    /// is written. Cost: 2 W + 2 products of N numbers, and t + 1 of W.
    [[nodiscard]] float forward(std::uint32_t layer, std::size_t head, std::span<const float> in,
                                std::span<f16> past) const noexcept {
        const std::size_t n = head_.inputs, width = head_.hidden, stride = row_numbers(head_),
                          heads = head_.kv_heads, tokens = past.size() / stride;
        const float* wq = weights_ + layer * head_.layer_floats() + head * width * n;
        const float* wk = wq + heads * width * n;
        const float* wv = wk + (heads - head) * width * n + head * n;
        const float* own = wv + heads * n;
        const float bias = own[(heads - head) * n + head];
        f16* row = past.data() + (tokens - 1) * stride;
        const auto stored = [](float x) {
            return from_float<f16>(std::clamp(x, -largest_of<f16>(), largest_of<f16>()));
        };
        for (std::size_t i = 0; i < width; ++i) {
            query_[i] = simd::dot(wq + i * n, in.data(), n) / std::sqrt(static_cast<float>(width));
            row[i] = stored(simd::dot(wk + i * n, in.data(), n));
        }
        row[width] = stored(simd::dot(wv, in.data(), n));
        simd::dot_group(query_, 1, width, rows_view<f16>{past.data(), tokens, width, stride}, logits_,
                        tokens);
        const float sum = simd::exp_shifted_sum(logits_, tokens, simd::max_of(logits_, tokens));
        float mixed = 0;
        for (std::size_t j = 0; j < tokens; ++j) mixed += logits_[j] * to_float(past[j * stride + width]);
        return simd::dot(own, in.data(), n) + mixed / sum + bias;
    }

  private:
    gate_header head_{};
    float *weights_ = nullptr, *query_ = nullptr, *logits_ = nullptr;
};

}} // namespace kvtl::v0
