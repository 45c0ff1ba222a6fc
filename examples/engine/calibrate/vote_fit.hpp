// Finds which heads of a model retrieve, and how much an eviction hurts each layer: what CompressKV decides by.
//
//   vote_fit fit(shape);
//   fit.look(layer, in, copied);      // for every piece and layer: its last tokens repeat those from `copied` on
//   fit.settle();
//   fit.evict(layer, in);             // for every piece and layer once more
//   const auto [votes, importance] = fit.finish();
//
// Votes:      a head's score is the attention that the repeated tokens pay to the span they repeat and to its
//             neighbours, mean over queries and pieces. The first tokens of a repetition do not count: nobody can know
//             yet what they repeat. Of each layer the `voters` heads with the highest scores vote.
// Importance: of a layer, ||o - o'|| / ||o||, mean over the same queries, where o' attends only what this layer would keep
//             of the piece: the entries with the highest pooled attention of the voting heads' queries, the first ones of
//             the repetition. Every layer is evicted from alone, so its input is exact.
// Cost:       of a piece of T tokens and a layer, span x T dot products per query head; the pieces are not kept.
// Source:     CompressKV: heads that attend a copied fact and what is around it, errors of layers.
//             Its texts have facts that are asked for; here any text will do, as part of it is repeated.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/views.hpp>

#include "votes.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace engine {

struct vote_options {
    std::size_t span = 32;       ///< tokens that a piece repeats at its end
    std::size_t around = 4;      ///< neighbours of the span, on both sides, that count as found
    std::size_t window = 8;      ///< first ones of the repetition: their queries decide what stays
    std::size_t pool_width = 5;  ///< of their attention
    std::size_t keep_share = 16; ///< one in so many entries stays
    std::uint32_t voters = 0;    ///< per layer; 0: one head in eight, at least one
};

class vote_fit {
  public:
    explicit vote_fit(const kvtl::shape& shape, const vote_options& options = {});

    /// Tokens that a piece has at least.
    [[nodiscard]] std::size_t least_tokens() const noexcept { return 8 * options_.span; }
    [[nodiscard]] std::size_t span() const noexcept { return options_.span; }

    /// q (T, HQ, D), k and v (T, H, D) of one piece in one layer; T is least_tokens() or more.
    void look(std::uint32_t layer, const kvtl::layer_input& in, std::size_t copied);
    void settle();
    void evict(std::uint32_t layer, const kvtl::layer_input& in);

    /// (L, HQ) mean attention to the span.
    [[nodiscard]] std::vector<double> scores() const;
    [[nodiscard]] head_votes finish() const;

  private:
    /// Attention of query i of head h over entries 0 to i, into `weights`; those of which `present` is 0 have none.
    void attend(const kvtl::layer_input& in, std::size_t i, std::size_t h,
                std::span<const std::uint8_t> present, std::vector<float>& weights) const;
    [[nodiscard]] std::vector<std::uint8_t> kept(std::uint32_t layer, const kvtl::layer_input& in,
                                                 std::size_t tokens) const;
    [[nodiscard]] std::size_t tokens_of(const kvtl::layer_input& in) const noexcept;

    kvtl::shape shape_;
    vote_options options_;
    std::vector<double> found_; ///< (L, HQ)
    std::vector<std::size_t> looks_, evictions_;
    std::vector<double> error_; ///< (L)
    std::vector<std::uint8_t> votes_;
};

} // namespace engine
