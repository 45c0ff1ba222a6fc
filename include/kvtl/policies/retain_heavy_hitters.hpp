// Score: the attention that an entry has received so far. In decode the lowest entry that is not recent
// leaves, one per step.
//
// Several methods were published under one name. They differ in the time of eviction:
//   heavy_hitters               H2O: greedy, at every query of the prompt and every step of decode. A query
//                               attends only the entries that are held. So a dropped entry receives nothing
//                               more, and a late entry starts from zero.
//   heavy_hitters_after_prompt  the sums run over the whole prompt, then as above (D2O).
//   heavy_hitters_of_prompt     the sums run over the whole prompt, which is evicted from once; entries from
//                               decode stay (KVCache-Factory).
// Cost:   greedy: a query costs the entries held, not all before it. A prompt costs T * keep inner products;
//         sums over a whole prompt cost T * T / 2.
// Deviation: the output of a prompt's queries is exact within their chunk, while H2O's queries see only held
// entries.
// Note:   sums over a prompt favour old entries, because more queries could attend them.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

enum class leaves : std::uint8_t { greedily, after_prompt, once };

template <leaves When> struct heavy_hitters_leaving : score_defaults {
    static constexpr std::string_view name = When == leaves::greedily       ? "heavy_hitters"
                                             : When == leaves::after_prompt ? "heavy_hitters_after_prompt"
                                                                            : "heavy_hitters_of_prompt";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr feedback reads_mass = When == leaves::once ? feedback::unused : feedback::full;
    static constexpr score_source source = score_source::prompt;
    static constexpr bool evicts_in_decode = When != leaves::once;
    static constexpr bool evicts_in_prompt = When == leaves::greedily;
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        void feed(const held_entry&, float mass, float& score, record&) const noexcept { score += mass; }

        /// Adds the variance of a lane's sums over a whole prompt to the notes of its layer.
        static void note(std::span<const float> sums, layer_notes& notes) noexcept {
            double mean = 0, variance = 0;
            for (const float s : sums) mean += static_cast<double>(s);
            mean /= static_cast<double>(sums.size());
            for (const float s : sums)
                variance += (static_cast<double>(s) - mean) * (static_cast<double>(s) - mean);
            variance /= static_cast<double>(sums.size());
            notes.variance += variance;
            notes.least_variance = std::min(notes.least_variance, variance);
            notes.most_variance = std::max(notes.most_variance, variance);
        }
        /// More for layers whose attention is dense: e^-v, v the mean of its lanes' variances, each as a part
        /// of the way from the layer's least to its most (D2O).
        [[nodiscard]] static float preference(const layer_notes& notes) noexcept {
            const double mean = notes.variance / std::max(1U, notes.lanes),
                         range = notes.most_variance - notes.least_variance;
            return static_cast<float>(std::exp(-(mean - notes.least_variance) / (range + 1e-6)));
        }
    };
};

using heavy_hitters = heavy_hitters_leaving<leaves::greedily>;
using heavy_hitters_after_prompt = heavy_hitters_leaving<leaves::after_prompt>;
using heavy_hitters_of_prompt = heavy_hitters_leaving<leaves::once>;

}} // namespace kvtl::v0
