// KVSwap's offline search for its parameters (Appendix A), apart from all measuring: given how long reads and
// compute take, the compression sigma of the keys' index, the group size G, the groups M read per step and
// the slots C of the reuse buffer for every batch size b and context length S.
//
// Search, for one (b, S) and its share b / b_max of the memory:
//   for C = 0, delta, 2 delta, ...              reuse saves reads and takes memory from the index
//     for G = 1 ... G_max, M = ceil(MG / G)     larger groups read faster and choose worse
//       sigma = the smallest that fits the memory
//       done when (1 - alpha) T_io(b, M, G, C) <= T_model(b, S, sigma)
//   stop when no sigma up to sigma_max fits, or C holds the whole context.
// Quality is kept by small sigma and G, which is why they are tried in this order. When nothing hides the
// reads, the candidate with the shortest step is returned (ties: the one met first) and says so.
//
// Units: microseconds per layer and step, bytes. T_io reads the groups that the reuse buffer does not have,
// for all b sequences; T_model = attention to MG entries + scores of S tokens + the rest of the layer.
// Memory: index b*L*S*r, adapter L*H*D*r floats, reuse slots b*L*C groups, the groups of two layers in
// transit (2*b*M groups), the rolling buffer b*L*G entries, tables b*L*S/G records.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace engine {

/// A function known at some places: linear between them, and beyond the ends as between the last two.
class piecewise {
  public:
    piecewise() = default;
    /// At least one point; any order.
    explicit piecewise(std::vector<std::pair<double, double>> points);
    [[nodiscard]] double at(double x) const;

  private:
    std::vector<std::pair<double, double>> points_;
};

/// What the search asks. All of it in microseconds for one layer, but `reuse`.
struct delays {
    std::function<double(std::uint32_t group_tokens, double reads)> read;   ///< `reads` groups at once
    std::function<double(std::uint32_t tokens)> attend;                     ///< of one sequence
    std::function<double(std::uint64_t context, std::uint32_t rank)> score; ///< of one sequence
    std::function<double(std::uint32_t batch)> rest; ///< projections and feed-forward; 0 where not known
    /// Share of M chosen groups of G tokens that C slots have already, 0 to 1.
    std::function<double(std::uint32_t group_tokens, std::uint32_t groups, std::uint32_t slots)> reuse;
};

struct tuning_limits {
    std::uint64_t memory_bytes = 0;    ///< for the largest batch; smaller ones get their share
    std::uint32_t largest_batch = 1;   ///< b_max
    std::uint32_t attend_tokens = 400; ///< MG
    std::uint32_t largest_sigma = 32;
    std::uint32_t largest_group = 16; ///< G_max
    double alpha = 0.1;
    std::uint32_t delta = 1;         ///< slots added at a time
    std::uint32_t element_bytes = 2; ///< of keys, values and the index
    std::uint32_t record_bytes = 64; ///< of the tables, per group
};

struct tuned_memory {
    std::uint64_t index = 0, adapter = 0, reuse = 0, transit = 0, rolling = 0, tables = 0;
    [[nodiscard]] std::uint64_t total() const { return index + adapter + reuse + transit + rolling + tables; }
};

/// One line of the result.
struct tuned_entry {
    std::uint32_t batch = 1;
    std::uint64_t context = 0;
    std::uint32_t sigma = 0;
    std::uint32_t rank = 0;         ///< max(1, H*D / sigma)
    std::uint32_t group_tokens = 0; ///< G
    std::uint32_t groups = 0;       ///< M
    std::uint32_t reuse_slots = 0;  ///< C, per sequence and layer
    tuned_memory memory{};
    double io_us = 0;
    double model_us = 0;
    double predicted_us = 0; ///< max of both: they overlap
    bool hidden = false;     ///< (1 - alpha) of the reads are
};

[[nodiscard]] tuned_memory memory_of(const kvtl::shape& shape, const tuning_limits& limits,
                                     const tuned_entry& entry);

/// Throws bad_input, naming the least memory that would do, when not even the smallest setting fits.
[[nodiscard]] tuned_entry tune(const kvtl::shape& shape, const tuning_limits& limits, const delays& delays,
                               std::uint32_t batch, std::uint64_t context);

} // namespace engine
