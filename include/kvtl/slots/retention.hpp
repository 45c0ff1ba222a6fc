// The retention slot: the fate of entries over budget, and the score that decides it.
//
// A policy declares `drops`. A policy that drops nothing has only a name (keep_all). One that drops names its
// `score`, the score's `config`, and `merges` (dropped entries are merged into kept ones): drop<Score> and
// merge_into<Score, Rule>. One that also names a `codec` encodes entries again before it drops them:
// demote<Score, Codec>. It says whether it `balances_channels`.
//
// What:   a score policy ranks entries. The shard keeps the best ones, with ties to the earlier token, and
//         never drops pinned ones (sinks and window). The source of a score is the entry itself when it
//         arrives (score_source::arrival), all keys of the prompt (keys), the attention of the prompt's last
//         queries (window) or of all its queries (prompt), or queries that the engine supplies (probe).
//         Policies with `evicts_in_decode` also rank the held entries at every step, and the lowest leaves.
//         With `evicts_in_prompt` a prompt is never held as a whole, and a chunk attends itself and the survivors
//         of earlier chunks. A policy that also evicts in decode treats the tokens of a prompt as decode steps. A
//         policy that ranks by probes ranks the survivors together with each chunk, when the chunk is complete.
//         A score by probes that declares `replays` is called for every chunk that has a probe, not only for the
//         last one. It raises the scores found so far. Tokens of the chunk may pass: they come after the rows that
//         the call scores.
// Shapes: one lane: keys, values (T, D); queries (W, D); scores (T).
// Cost:   observing costs one pass over the keys per observed token, and scratch of G * T floats. No matrix
//         of queries times keys is kept.
// Remembers: a score of arrivals may keep state::token_bytes(config) bytes for every token of a lane, also after
//         the entry has left. arriving::past has them, indexed by token. They are saved and copied with the
//         sequence. After a rewind, new tokens overwrite them. Memory: room for max_tokens in each lane.
// Fitted: a score may declare `calibrated`, a kind of section that it uses if config.calibration has it. Its
//         state then gets the file through bind(calibration_view).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/simd/attention.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/slots/policy.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

class calibration_view;

/// The source from which the score of a prompt's entry is computed.
enum class score_source : std::uint8_t { arrival, keys, window, prompt, probe };

/// The reduction of the query heads of a group, or of the queries of a window, to one number.
enum class over : std::uint8_t { mean, max };

/// Measurements of a layer, made while its lanes are scored and summed over them. For budgets that divide by
/// preference.
struct layer_notes {
    double entropy = 0;
    double variance = 0;
    double kurtosis = 0;
    double least_variance = std::numeric_limits<double>::infinity(), most_variance = 0; ///< among lanes
    std::uint32_t lanes = 0;
};

/// Sizes that a score policy may check its config against.
struct score_limits {
    std::uint32_t layers = 0, kv_heads = 0, group = 0, dim = 0;
    std::uint32_t sinks = 0, window = 0, keep = 0;
    std::uint32_t most = 0;   ///< entries of the longest prompt
    std::uint32_t tokens = 0; ///< of the longest sequence
};

/// One lane of a finished prompt.
template <element E> struct prompt_lane {
    std::uint32_t layer = 0;
    std::uint32_t head = 0;    ///< KV head; query head if lanes are query heads
    rows_view<E> keys, values; ///< (T, D); where the policy replays, keys of tokens that pass behind them
    std::uint32_t sinks = 0;   ///< the first entries, pinned
    std::uint32_t window = 0;  ///< the last entries, pinned
    const float* queries = nullptr; ///< (W, D): queries of the last W tokens, or probes for later ones
    std::size_t query_stride = 0;   ///< floats from one observed token to the next
    std::uint32_t observed = 0;     ///< W
    std::span<const float>
        inputs;              ///< (W, M) of the layer, of observed tokens that pass, where the policy needs x
    std::uint32_t group = 1; ///< G
    bool causal = true;      ///< observed queries see only their own and earlier tokens
    logit_rule logit{};
    std::span<const float> value_sizes; ///< (T) sum over the layer's KV heads of the policy's value_size()
    std::span<float> logits;            ///< (G, T) scratch
    std::span<float> spare;             ///< (spare_rows, T) scratch of the policy
    layer_notes* notes = nullptr;

    [[nodiscard]] std::uint32_t tokens() const noexcept { return static_cast<std::uint32_t>(keys.count); }
};

/// Calls take(query, head in group, probabilities of the entries that it sees) for every observed query.
template <element E, class Take> void for_each_observed(const prompt_lane<E>& lane, Take&& take) noexcept {
    const std::uint32_t tokens = lane.tokens();
    const std::size_t dim = lane.keys.dim;
    for (std::uint32_t w = 0; w < lane.observed; ++w) {
        const std::uint32_t seen = lane.causal ? tokens - lane.observed + w + 1 : tokens;
        simd::dot_group(lane.queries + w * lane.query_stride, lane.group, dim, lane.keys.slice(0, seen),
                        lane.logits.data(), tokens);
        for (std::uint32_t g = 0; g < lane.group; ++g) {
            const std::span<float> p = lane.logits.subspan(std::size_t{g} * tokens, seen);
            to_logits(lane.logit, p.data(), seen);
            const float sum = simd::exp_shifted_sum(p.data(), seen, simd::max_of(p.data(), seen));
            simd::scale(1.0F / sum, p.data(), seen);
            take(w, g, std::span<const float>(p));
        }
    }
}

/// A token as it arrives, with all heads. A policy scores heads first_head, first_head + head_step, ...
struct arriving {
    std::uint32_t layer = 0, token = 0;
    std::uint32_t first_head = 0, head_step = 1;
    bool decoded = false;            ///< it comes after the first prompt: in decode, or in a further turn
    std::span<const float> q, k, v;  ///< (HQ, D), (H, D), (H, D)
    std::span<const float> x;        ///< (M)
    std::span<const float> external; ///< (H)
    std::span<std::byte> past;       ///< (scored heads, most tokens) what the policy remembers of each token
};

/// An entry's data for eviction in decode.
struct held_entry {
    float score = 0;
    std::uint32_t token = 0; ///< its number in the sequence
    std::uint32_t now = 0;   ///< number of the latest token
    [[nodiscard]] float age() const noexcept { return static_cast<float>(now - token); }
};

/// An entry that leaves a lane for good: key and value (D), its score, and the logarithm of its count.
template <element E> struct leaving_entry {
    std::uint32_t token = 0;
    const E *key = nullptr, *value = nullptr;
    float log_weight = 0, score = 0;
};
template <class Rows>
[[nodiscard]] leaving_entry<typename Rows::E> leaving_row(const Rows& rows, std::uint32_t i) noexcept {
    return {rows.token(i), rows.key(i), rows.value(i), rows.log_weight(i), rows.score(i)};
}

/// Averages or maxima over `width` neighbouring tokens, `width` odd. Beyond the ends an average reads zeros,
/// and a maximum reads nothing. `in` and `out` must not overlap.
enum class pooling : std::uint8_t { off, average, maximum };
template <pooling How>
void pool_scores(std::span<const float> in, std::uint32_t width, std::span<float> out) noexcept {
    const std::size_t n = in.size(), half = width / 2;
    for (std::size_t t = 0; t < n; ++t) {
        const std::size_t from = t < half ? 0 : t - half, to = std::min(n, t + half + 1);
        if constexpr (How == pooling::off) {
            out[t] = in[t];
        } else if constexpr (How == pooling::average) {
            float sum = 0;
            for (std::size_t i = from; i < to; ++i) sum += in[i];
            out[t] = sum / static_cast<float>(width);
        } else {
            out[t] = *std::max_element(in.data() + from, in.data() + to);
        }
    }
}
/// Sets the scores of the window to zero. Its entries are pinned, and pooling must not raise their
/// neighbours.
template <element E> void strip_window(const prompt_lane<E>& lane, std::span<float> received) noexcept {
    std::fill_n(received.end() - lane.window, lane.window, 0.0F);
}
[[nodiscard]] inline status check_pool_width(std::uint32_t width) noexcept {
    if (width % 2 == 0 || width > 1023)
        return status::failure(errc::invalid_argument,
                               "retention.pool_width is %u; valid: an odd number, 1 to 1023", width);
    return {};
}

/// The record of an entry for score policies that remember nothing.
struct no_record {};

/// Bytes that a policy remembers of every token in each lane.
template <class Score>
[[nodiscard]] std::size_t remembered_bytes([[maybe_unused]] const typename Score::config& c) noexcept {
    if constexpr (requires { Score::state::token_bytes(c); })
        return Score::state::token_bytes(c);
    else
        return 0;
}

/// Defaults that fit most score policies: no settings, no records, each head decides for itself, and entries
/// leave only at the end of the prompt, when there is no room for them.
struct score_defaults {
    static constexpr engine_input needs = engine_input::k;
    static constexpr bool decides_together = false; ///< all heads of a layer keep the same tokens
    static constexpr bool per_query_head = false;   ///< every query head keeps entries of its own
    static constexpr bool evicts_in_decode = false;
    static constexpr bool evicts_in_prompt = false; ///< entry by entry, or after each chunk
    static constexpr bool reads_values = false;     ///< reads prompt_lane::value_sizes and has value_size()
    static constexpr bool drops_unwanted = false; ///< entries that are not wanted() leave, whatever the room
    static constexpr bool ages = false;           ///< worth depends on age: a prompt is ranked by it, too
    static constexpr bool replays = false;        ///< scores by probes with any chunk; tokens may pass
    static constexpr std::uint32_t spare_rows = 0;
    using record = no_record;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
};

/// What a score's state may define, as it is for a score that does not. Every state inherits this.
struct score_hooks {
    /// What was fitted offline. The view's memory outlives the state.
    static void bind(const calibration_view&) noexcept {}
    /// The inputs of `tokens` tokens, before a call changes anything.
    [[nodiscard]] static status check_arrival(const layer_input&, std::size_t) noexcept { return {}; }
    /// With drops_unwanted: an entry with this score may stay; the chunk has one that may.
    [[nodiscard]] static bool wanted(float) noexcept { return true; }
    [[nodiscard]] static bool wants_any(const layer_input&) noexcept { return true; }
    /// With evicts_in_decode: the entry that is worth least leaves, once a lane is `slack` entries over its limit, and
    /// others until it is `headroom` below it.
    template <class Record> [[nodiscard]] static float worth(const held_entry& e, const Record&) noexcept {
        return e.score;
    }
    [[nodiscard]] static std::uint32_t slack() noexcept { return 0; }
    [[nodiscard]] static std::uint32_t headroom() noexcept { return 0; }
};

/// The state of policies that need no memory.
template <class Config> class score_state : public score_hooks {
  public:
    score_state() = default;
    score_state(const Config& c, const score_limits& limits, std::span<std::byte>) noexcept
        : config_(c), limits_(limits) {}
    [[nodiscard]] static std::size_t bytes(const Config&, const score_limits&) noexcept { return 0; }
    [[nodiscard]] static status check(const Config&, const score_limits&) noexcept { return {}; }

  protected:
    Config config_{};
    score_limits limits_{};
};

/// Entries may leave although there is room.
template <class P>
concept drops_unwanted = requires {
    requires P::drops_unwanted;
};
template <class P>
concept score_declares = requires {
    { P::name } -> std::convertible_to<std::string_view>;
    { P::source } -> std::convertible_to<score_source>;
    { P::decides_together } -> std::convertible_to<bool>;
    { P::per_query_head } -> std::convertible_to<bool>;
    { P::evicts_in_decode } -> std::convertible_to<bool>;
    { P::evicts_in_prompt } -> std::convertible_to<bool>;
    requires !P::evicts_in_prompt || P::evicts_in_decode || P::source == score_source::probe;
    { P::reads_values } -> std::convertible_to<bool>;
    { P::spare_rows } -> std::convertible_to<std::uint32_t>;
    typename P::record;
    requires std::is_trivially_copyable_v<typename P::record>;
    typename P::config;
};
template <class P>
concept score_opens = state_constructs<P, const score_limits&, std::span<std::byte>> &&
    std::derived_from<typename P::state, score_hooks> &&
    requires(const typename P::config& c, const score_limits& l) {
    { P::state::bytes(c, l) }
    noexcept->std::same_as<std::size_t>;
    { P::state::check(c, l) }
    noexcept->std::same_as<status>;
};
/// score(lane, out): out (T) is zero at the start; the scores so far where the policy replays. Scores of pinned entries are
/// never read.
template <class P>
concept score_ranks_prompts = P::source == score_source::arrival || P::source == score_source::prompt ||
                              requires(const typename P::state& s, const prompt_lane<float>& lane,
                                       std::span<float> out) {
    { s.score(lane, out) }
    noexcept;
};
template <class P>
concept score_ranks_arrivals = P::source != score_source::arrival ||
                               requires(const typename P::state& s, const arriving& a, std::span<float> out) {
    { s.arrive(a, out) }
    noexcept;
};
template <class P>
concept score_ranks_held = !P::evicts_in_decode || requires(const typename P::state& s, const held_entry& e,
                                                            const typename P::record& r) {
    { s.worth(e, r) }
    noexcept->std::same_as<float>;
    { s.slack() }
    noexcept->std::same_as<std::uint32_t>;
};
template <class P>
concept score_remembers_mass = feedback_of<P>()
== feedback::unused ||
    requires(const typename P::state& s, const held_entry& e, typename P::record& r, float& score) {
    { s.feed(e, 0.0F, score, r) }
    noexcept;
};
/// value_size(layer, KV head, value (D), D): returns any number >= 0.
template <class P>
concept score_sizes_values =
    !P::reads_values || requires(const typename P::state& s, const float* v, std::size_t dim) {
    { s.value_size(0U, 0U, v, dim) }
    noexcept->std::same_as<float>;
};
template <class P>
concept score_for =
    score_declares<P> && score_opens<P> && score_ranks_prompts<P> && score_ranks_arrivals<P> &&
    score_ranks_held<P> && score_remembers_mass<P> && score_sizes_values<P> && state_is_relocatable<P>;

template <class P>
concept retention_declares = requires {
    { P::drops } -> std::convertible_to<bool>;
};
/// Entries over budget are dropped, or merged into others.
template <class P>
concept retention_drops = requires {
    requires P::drops;
};
/// Entries over budget are merged into others.
template <class P>
concept retention_merges = retention_drops<P> && requires {
    requires P::merges;
};
/// Entries over budget are encoded again by a second codec.
template <class P>
concept retention_demotes = retention_drops<P> && requires {
    typename P::codec::state;
    { P::balances_channels } -> std::convertible_to<bool>;
};
template <class P>
concept retention_names_score = !retention_drops<P> || requires {
    typename P::score;
    typename P::config;
    { P::merges } -> std::convertible_to<bool>;
};
template <class P>
concept is_bare_score = score_declares<P> && !retention_declares<P>;

template <class P>
concept retention_for = has_name<P> && retention_declares<P> && retention_names_score<P> &&
    (!retention_drops<P> || score_for<typename P::score>);

template <class P> consteval void explain_score() {
    static_assert(holds(score_declares<P>),
                  "[kvtl] score: declare name, source, record, config and the constants of "
                  "score_defaults, or inherit it");
    static_assert(holds(score_opens<P>),
                  "[kvtl] score: add `class state`, derived from score_state<config> or score_hooks, with "
                  "noexcept static "
                  "bytes(config, score_limits) and check(config, score_limits), constructible from "
                  "(config, score_limits, std::span<std::byte>)");
    static_assert(holds(state_is_relocatable<P>),
                  "[kvtl] score::state: it must be trivially copyable; use the memory it is handed");
    if constexpr (score_declares<P> && score_opens<P>) {
        static_assert(holds(score_ranks_prompts<P>),
                      "[kvtl] score::state: add `void score(const prompt_lane<E>&, std::span<float> out) "
                      "const noexcept`");
        static_assert(holds(score_ranks_arrivals<P>),
                      "[kvtl] score::state: its source is arrival; add `void arrive(const arriving&, "
                      "std::span<float> out) const noexcept`");
        static_assert(
            holds(score_ranks_held<P>),
            "[kvtl] score::state: it evicts in decode; worth(held_entry, record) returns float, and slack() "
            "std::uint32_t, both const and noexcept");
        static_assert(holds(score_remembers_mass<P>),
                      "[kvtl] score::state: it reads attention mass; add `void feed(held_entry, float "
                      "mass, float& score, record&) const noexcept`");
        static_assert(holds(score_sizes_values<P>),
                      "[kvtl] score::state: it reads values; add `float value_size(std::uint32_t layer, "
                      "std::uint32_t kv_head, const E* value, std::size_t dim) const noexcept`");
    }
}
template <class P> consteval void explain_retention() {
    if constexpr (is_bare_score<P>) {
        static_assert(holds(!is_bare_score<P>),
                      "[kvtl] retention: this is a score, which only ranks entries; wrap it in drop<...>");
    } else {
        static_assert(holds(has_name<P> && retention_declares<P>),
                      "[kvtl] retention: declare name and drops, as slots/retention.hpp says; use keep_all, "
                      "drop<Score> or "
                      "merge_into<Score, Rule>");
        static_assert(holds(retention_names_score<P>),
                      "[kvtl] retention: one that drops names its score, config and merges; use drop<Score> "
                      "or merge_into<Score, Rule>");
        if constexpr (retention_drops<P> && retention_names_score<P>) explain_score<typename P::score>();
    }
}

}} // namespace kvtl::v0
