// Score: the largest attention that an entry receives while the model reads the prompt once more (KVzip).
//
// What:   behind a prompt the engine runs an instruction to repeat it and the prompt's own tokens, in chunks. These attend
//         all of the prompt and pass (layer_input::passing); their queries are the probe. An entry's score is its
//         largest probability over all replayed tokens and the query heads of the group. The softmax is over the
//         prompt and the replayed tokens of the chunk so far, so attention to the repetition itself counts for
//         no entry. A probe that does not pass sees the prompt only.
// Cost:   a forward pass over the prompt again, and G * D multiply-adds for each replayed token and entry.
// Source: KVzip (Kim et al., 2025), 3.2 and its code; chunks of 2,048. Deviation: its softmax has the sinks and
//         the part of the prompt that a chunk repeats, here the whole prompt. They are equal for prompts of one chunk.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <algorithm>

namespace kvtl { inline namespace v0 {

struct replay_attention : score_defaults {
    static constexpr std::string_view name = "replay_attention";
    static constexpr engine_input needs = engine_input::k | engine_input::probe;
    static constexpr score_source source = score_source::probe;
    static constexpr bool replays = true;
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            for_each_observed(lane, [&](std::uint32_t, std::uint32_t, std::span<const float> p) {
                for (std::size_t t = 0; t < out.size(); ++t) out[t] = std::max(out[t], p[t]);
            });
        }
    };
};

}} // namespace kvtl::v0
