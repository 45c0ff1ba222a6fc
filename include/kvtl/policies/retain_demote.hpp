// Retention: an entry that loses its place is encoded again with fewer bits. It is dropped only when there is
// no room for it in that form either.
//
// What:   a lane has two chains of rows. Entries start in the first, as records of the preset's compressor.
//         The budget of a lane is memory: the limit is a number of rows of the first chain, and R rows of the
//         second chain take the memory of 16. While entries exceed the limit, the lowest by `Score` move on to
//         the second chain, as few as possible. Sinks and window stay in the first chain. When all others are in
//         the second, its lowest entries are dropped. No entry returns to the first chain. Attention covers both
//         chains in one softmax, and scores that read attention mass get it for both.
//         With `channels::balanced`, key channel d is stored as k_d b_d and multiplied by q_d / b_d, where
//         b_d = sqrt(max |q_d| / max |k_d|) over the prompt and the queries of the lane. So an outlier channel
//         of keys does not set the step of its group. b_d is 1 where that is 0 or not finite, and k_d b_d is cut off
//         at the largest number of plain_type.
// Cost:   one encoding per demoted entry; R is 81 for 2 bits and 28 for E4M3 beside f16 at D = 64. Balanced:
//         D floats per lane, a pass over the prompt's queries and keys, and a division of the query per step.
// Source: MiKV (Yang et al. 2024, "No Token Left Behind"), with its channel balancer; ARKV (2026).
//         Deviation: both papers fix the number of entries in each form. A part of the limit that stays in the
//         first chain drops more entries, and finds fewer needles (bench/DEAD_ENDS.md).
// Limits: entries stay in rows in memory and keep their positions. Scores that evict while a prompt comes in
//         or drop entries for which there is room do not apply, nor budgets that compare scores. Codec: a codec of single entries with the settings of its default config.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/codec_name.hpp>
#include <kvtl/slots/retention.hpp>

namespace kvtl { inline namespace v0 {

/// Treatment of key channels before they are encoded again.
enum class channels : std::uint8_t { plain, balanced };

template <class Score, class Codec, channels Channels = channels::plain> struct demote {
    static constexpr std::string_view outer_name =
        Channels == channels::balanced ? "demote_balanced" : "demote";
    static constexpr std::string_view name = detail::codec_name<demote, Score, Codec>::value;
    static constexpr bool drops = true;
    static constexpr bool merges = false;
    static constexpr bool balances_channels = Channels == channels::balanced;
    static constexpr engine_input needs =
        needs_of<Score>() | (balances_channels ? engine_input::q : engine_input::k);
    static constexpr feedback reads_mass = feedback_of<Score>();
    using score = Score;
    using codec = Codec;
    using config = typename Score::config;
};

}} // namespace kvtl::v0
