// A decoder-only transformer as a GGUF file describes it: hyper-parameters and checked views of its weights.
//
// Architectures: llama, qwen2 (biases on q, k, v), qwen3 (RMSNorm of every query and key head).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>

#include "gguf.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace engine {

/// Which two elements of a head are rotated together.
enum class rope_pairing : std::uint8_t {
    neighbours, ///< (2i, 2i+1): llama files
    halves,     ///< (i, i + n/2): qwen files
};

struct hyper_parameters {
    std::string architecture;
    kvtl::shape shape;            ///< L, HQ, H, D
    std::uint32_t width = 0;      ///< M, of the residual stream
    std::uint32_t hidden = 0;     ///< F, of the feed-forward layer
    std::uint32_t vocabulary = 0; ///< V
    std::uint32_t context = 0;    ///< longest sequence the model was made for
    float epsilon = 0;            ///< of RMSNorm
    rope_pairing pairing = rope_pairing::neighbours;
};

struct layer_weights {
    std::vector<float> attention_norm;                      ///< (M)
    tensor q;                                               ///< (HQ*D, M)
    tensor k, v;                                            ///< (H*D, M)
    tensor output;                                          ///< (M, HQ*D)
    std::vector<float> q_bias, k_bias, v_bias, output_bias; ///< empty, or as long as the product
    std::vector<float> q_norm, k_norm;                      ///< empty, or (D)
    std::vector<float> hidden_norm;                         ///< (M)
    tensor gate, up;                                        ///< (F, M)
    tensor down;                                            ///< (M, F)
};

class model {
  public:
    /// Keeps views into the file, which must outlive it.
    explicit model(const gguf_file& file);

    [[nodiscard]] const hyper_parameters& hyper() const noexcept { return hyper_; }
    [[nodiscard]] const layer_weights& layer(std::size_t i) const noexcept { return layers_[i]; }
    [[nodiscard]] const tensor& embedding() const noexcept { return embedding_; } ///< (V, M)
    [[nodiscard]] const tensor& unembedding() const noexcept {
        return unembedding_;
    } ///< (V, M), may be the same
    [[nodiscard]] std::span<const float> final_norm() const noexcept { return final_norm_; } ///< (M)
    /// Angle per position of each rotated pair; the pairs cover the first elements of a head.
    [[nodiscard]] std::span<const double> rope_frequencies() const noexcept { return frequencies_; }

  private:
    void read_hyper(const gguf_file& file);
    void read_rope(const gguf_file& file);

    hyper_parameters hyper_;
    std::vector<layer_weights> layers_;
    tensor embedding_;
    tensor unembedding_;
    std::vector<float> final_norm_;
    std::vector<double> frequencies_;
};

} // namespace engine
