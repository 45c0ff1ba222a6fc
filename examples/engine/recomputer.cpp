// SPDX-License-Identifier: MIT
#include "recomputer.hpp"

#include "layer_math.hpp"
#include "matmul.hpp"

#include <span>

namespace engine {

recomputer::recomputer(const model& m, std::size_t max_tokens)
    : model_(m), pairs_(m.rope_frequencies().size()), cosine_(max_tokens * pairs_), sine_(cosine_.size()) {
    for (std::size_t p = 0; p < max_tokens; ++p)
        rope_angles(m.rope_frequencies(), static_cast<double>(p), cosine_.data() + p * pairs_,
                    sine_.data() + p * pairs_);
}

void recomputer::recompute(void* self, const kvtl::recompute_rows& r) noexcept {
    auto& of = *static_cast<recomputer*>(self);
    const auto& hyper = of.model_.hyper();
    const std::size_t dim = hyper.shape.head_dim;
    const layer_weights& w = of.model_.layer(r.layer);
    tensor rows = r.values ? w.v : w.k;
    rows.data += r.head * dim * *bytes_of(rows.type, rows.columns);
    rows.rows = dim;
    const std::span<const float> bias = r.values ? w.v_bias : w.k_bias;
    matmul(of.caller_, rows, bias.empty() ? bias : bias.subspan(r.head * dim, dim), r.x, r.count, r.out);
    if (r.values) return;
    for (std::size_t i = 0; i < r.count; ++i) {
        float* head = r.out + i * dim;
        if (!w.k_norm.empty()) rms_norm(head, w.k_norm, hyper.epsilon, head);
        const std::size_t at = r.positions[i] * of.pairs_;
        rotate_head(head, of.cosine_.data() + at, of.sine_.data() + at, of.pairs_,
                    hyper.pairing == rope_pairing::neighbours);
    }
}

} // namespace engine
