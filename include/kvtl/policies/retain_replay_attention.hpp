// Score: the largest attention that an entry receives while the model reads the prompt once more.
//
//   replay_attention  the attention (KVzip)
//   replay_loss       the attention times the size of the entry's value, divided by the length of the replayed
//                     token's input of the layer, after the norm (KVzip+, as in kvpress)
//
// What:   behind a prompt the engine runs an instruction to repeat it and the prompt's own tokens, in chunks. These attend
//         all of the prompt and pass (layer_input::passing); their queries are the probe. An entry's score is its
//         largest number over all replayed tokens and the query heads of the group. The softmax is over the
//         prompt and the replayed tokens of the chunk so far, so attention to the repetition itself counts for
//         no entry. A probe that does not pass sees the prompt only, and nothing is divided.
// Size:   of a value, |W_o v| (support/value_size.hpp).
// Cost:   a forward pass over the prompt again, and G * D multiply-adds for each replayed token and entry.
// Source: KVzip (Kim et al., 2025), 3.2 and its code, chunks of 2,048. KVzip+: NVIDIA's kvpress. Deviations:
//         - Their softmax covers the sinks and the part of the prompt that a chunk repeats. Here it covers the whole
//           prompt. For prompts of one chunk they are equal.
//         - They score only the entries that a chunk repeats. Here every chunk raises scores of the whole prompt.
//         - Their size of a value belongs to one query head. Here it is a mean over the group.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/value_size.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

template <bool Weighed> struct replay_inputs : score_defaults {
    static constexpr std::string_view name = "replay_attention";
    static constexpr engine_input needs = engine_input::k | engine_input::probe;
};
template <> struct replay_inputs<true> : score_defaults {
    static constexpr std::string_view name = "replay_loss";
    static constexpr engine_input needs =
        engine_input::k | engine_input::v | engine_input::x | engine_input::probe;
    static constexpr calibration_kind calibrated = calibration_kind::value_norms; ///< optional
};

template <bool Weighed> struct replay_score : replay_inputs<Weighed> {
    static constexpr score_source source = score_source::probe;
    static constexpr bool replays = true;
    static constexpr std::uint32_t spare_rows = Weighed ? 1 : 0;
    class state : public score_state<score_defaults::config> {
      public:
        using score_state<score_defaults::config>::score_state;
        /// A file without the section changes nothing.
        void bind(const calibration_view& file) noexcept {
            if (Weighed) calibration_ = file;
        }
        [[nodiscard]] status check_arrival(const layer_input& in, std::size_t tokens) const noexcept {
            if (!Weighed || in.passing == 0) return {};
            if (in.x.empty() || in.x.size() % tokens != 0)
                return status::failure(errc::invalid_argument,
                                       "x has %zu numbers; valid: a positive multiple of tokens = %zu",
                                       in.x.size(), tokens);
            if (!simd::all_finite(in.x.data(), in.x.size()))
                return status::failure(errc::invalid_argument, "x holds a number that is not finite");
            return {};
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::span<float> sizes = lane.spare.first(Weighed ? out.size() : 0);
            for (std::size_t t = 0; t < sizes.size(); ++t)
                sizes[t] =
                    value_size_of(calibration_, lane.layer, lane.head, lane.values.row(t), lane.values.dim);
            const std::size_t width = lane.inputs.size() / lane.observed;
            for_each_observed(lane, [&](std::uint32_t w, std::uint32_t, std::span<const float> p) {
                if constexpr (Weighed) {
                    const float* x = lane.inputs.data() + w * width;
                    const float length = width == 0 ? 1.0F : std::sqrt(simd::dot(x, x, width));
                    const float share = length > 0.0F ? 1.0F / length : 0.0F;
                    for (std::size_t t = 0; t < out.size(); ++t)
                        out[t] = std::max(out[t], p[t] * sizes[t] * share);
                } else {
                    for (std::size_t t = 0; t < out.size(); ++t) out[t] = std::max(out[t], p[t]);
                }
            });
        }

      private:
        calibration_view calibration_;
    };
};

using replay_attention = replay_score<false>;
using replay_loss = replay_score<true>;

}} // namespace kvtl::v0
