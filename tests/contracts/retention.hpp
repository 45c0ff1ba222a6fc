// What every score of the retention slot promises: it is what its definition says in double precision, the
// same whatever lies in scratch and in used memory and whichever lane comes first, finite for every finite
// prompt; and what it remembers of an entry can be moved to another place.
//
//   ranks_prompts_contract<key_norm>({}, 1e-5, [](const auto& lane) { return scores by token; });
//   ranks_arrivals_contract<key_norm>({}, limits, 1e-5, [](const arrivals& a, layer, token, head) { ... });
//   ranks_held_contract<recurrence>({}, [](token, score) { return model; });
//
// What the shard does with the numbers (ties, pinned entries, chunks, decode) is tested in presets/.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/slots/retention.hpp>

#include "support/guarded_bytes.hpp"
#include "support/oracle.hpp"
#include "support/settings.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

namespace retention_suite {

template <class Score> using state_of = typename Score::state;
using numbers = std::vector<double>;

/// A prompt's lane: T tokens, G queries per KV head, what is pinned.
struct extents {
    std::uint32_t tokens = 0, dim = 0, group = 1, sinks = 0, window = 1;
    static constexpr std::uint32_t layers = 3, kv_heads = 2, layer = 1, head = 1;

    [[nodiscard]] score_limits limits() const {
        return {layers, kv_heads, group, dim, sinks, window, sinks + window + 10, tokens};
    }
};

/// What a prompt's numbers look like. All of them are finite.
enum class numbers_are { usual, zero, huge };

/// One lane of a finished prompt and all that a score is shown of it. Rows and queries are padded with NaN.
template <class Score, element E> class lane {
  public:
    lane(const extents& e, std::uint64_t seed, numbers_are kind = numbers_are::usual)
        : e_(e), keys_(e.tokens, e.dim, e.dim + 3, seed, size_of(kind)),
          values_(e.tokens, e.dim, e.dim + 5, seed + 1, size_of(kind)) {
        constexpr score_source source = Score::source;
        if (source == score_source::window) observed_ = std::min(e.tokens, e.window);
        if (source == score_source::probe) observed_ = 3;
        const std::size_t own = std::size_t{e.group} * e.dim;
        stride_ = 2 * own + 7;
        queries_.assign(observed_ * stride_, std::numeric_limits<float>::quiet_NaN());
        oracle::generator random(seed + 2);
        for (std::uint32_t w = 0; w < observed_; ++w)
            for (std::size_t i = 0; i < own; ++i)
                queries_[w * stride_ + i] = static_cast<float>(1.5 * size_of(kind) * random.normal());
        for (std::uint32_t t = 0; t < e.tokens; ++t) {
            double sum = 0; // of this head, and of another one
            for (std::uint32_t d = 0; d < e.dim; ++d)
                sum += std::fabs(value(t, d)) + std::fabs(size_of(kind) * random.normal());
            value_sizes_.push_back(static_cast<float>(sum));
        }
    }

    [[nodiscard]] const extents& size() const { return e_; }
    [[nodiscard]] std::uint32_t observed() const { return observed_; }
    [[nodiscard]] double key(std::uint32_t t, std::uint32_t d) const {
        return oracle::value(keys_.view().row(t)[d]);
    }
    [[nodiscard]] double value(std::uint32_t t, std::uint32_t d) const {
        return oracle::value(values_.view().row(t)[d]);
    }
    [[nodiscard]] double key_norm(std::uint32_t t) const {
        return std::sqrt(oracle::dot(keys_.view().row(t), keys_.view().row(t), e_.dim));
    }
    /// Observed query w of head g.
    [[nodiscard]] double query(std::uint32_t w, std::uint32_t g, std::uint32_t d) const {
        return static_cast<double>(queries_[w * stride_ + std::size_t{g} * e_.dim + d]);
    }
    [[nodiscard]] double value_size(std::uint32_t t) const { return static_cast<double>(value_sizes_[t]); }

    /// (T): what observed query w of head g pays to each token; nothing to those it does not see.
    [[nodiscard]] numbers attention(std::uint32_t w, std::uint32_t g) const {
        const std::uint32_t seen =
            Score::source == score_source::probe ? e_.tokens : e_.tokens - observed_ + w + 1;
        const float* q = &queries_[w * stride_ + std::size_t{g} * e_.dim];
        numbers p(e_.tokens, 0.0);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::uint32_t t = 0; t < seen; ++t) {
            p[t] = oracle::dot(q, keys_.view().row(t), e_.dim) / std::sqrt(static_cast<double>(e_.dim));
            largest = std::max(largest, p[t]);
        }
        for (std::uint32_t t = 0; t < seen; ++t) sum += p[t] = std::exp(p[t] - largest);
        for (double& x : p) x /= sum;
        return p;
    }

    /// The policy's scores. `garbage` lies in all scratch before.
    [[nodiscard]] std::vector<float> score(const state_of<Score>& s, float garbage,
                                           layer_notes* notes = nullptr) const {
        constexpr float untouched = -12345.0F;
        layer_notes own;
        prompt_lane<E> p;
        p.layer = extents::layer;
        p.head = extents::head;
        p.keys = keys_.view();
        p.values = values_.view();
        p.sinks = std::min(e_.tokens, e_.sinks);
        p.window = std::min(e_.tokens - p.sinks, e_.window);
        p.queries = queries_.data();
        p.query_stride = stride_;
        p.observed = observed_;
        p.group = e_.group;
        p.causal = Score::source != score_source::probe;
        p.logit = 1.0F / std::sqrt(static_cast<float>(e_.dim));
        if (Score::reads_values) p.value_sizes = value_sizes_;
        std::vector<float> logits(std::size_t{e_.group} * e_.tokens + guard, garbage),
            spare(std::size_t{Score::spare_rows} * e_.tokens + guard, garbage),
            out(e_.tokens + guard, untouched);
        for (std::vector<float>* x : {&logits, &spare}) std::fill(x->end() - guard, x->end(), untouched);
        std::fill_n(out.begin(), e_.tokens, 0.0F);
        p.logits = std::span(logits).first(logits.size() - guard);
        p.spare = std::span(spare).first(spare.size() - guard);
        p.notes = notes != nullptr ? notes : &own;
        s.score(p, std::span(out).first(e_.tokens));
        for (const std::vector<float>* x : {&logits, &spare, &out})
            CHECK(std::all_of(x->end() - guard, x->end(), [](float f) { return f == untouched; }));
        out.resize(e_.tokens);
        return out;
    }
    /// The tokens that compete: neither sinks nor window.
    [[nodiscard]] std::uint32_t begin() const { return std::min(e_.tokens, e_.sinks); }
    [[nodiscard]] std::uint32_t end() const {
        return std::max(begin(), e_.tokens - std::min(e_.tokens, e_.window));
    }

  private:
    static constexpr std::ptrdiff_t guard = 16;
    static double size_of(numbers_are kind) {
        return kind == numbers_are::zero ? 0.0 : kind == numbers_are::huge ? 1e4 : 1.0;
    }
    extents e_;
    oracle::table<E> keys_, values_;
    std::uint32_t observed_ = 0;
    std::size_t stride_ = 0;
    std::vector<float> queries_, value_sizes_;
};

/// Averages (zeros behind the ends) or maxima over `width` neighbours.
inline numbers pooled(const numbers& in, std::uint32_t width, pooling how = pooling::average) {
    numbers out(in.size(), how == pooling::maximum ? -1e300 : 0.0);
    for (std::size_t t = 0; t < in.size(); ++t)
        for (std::size_t i = 0; i < in.size(); ++i) {
            if ((i < t ? t - i : i - t) > width / 2) continue;
            out[t] = how == pooling::maximum ? std::max(out[t], in[i]) : out[t] + in[i] / width;
        }
    return how == pooling::off ? in : out;
}
/// (T): what all observed queries of all heads pay together.
template <class Lane> numbers sum_of_attention(const Lane& x) {
    numbers sum(x.size().tokens, 0.0);
    for (std::uint32_t w = 0; w < x.observed(); ++w)
        for (std::uint32_t g = 0; g < x.size().group; ++g) {
            const numbers p = x.attention(w, g);
            for (std::size_t t = 0; t < p.size(); ++t) sum[t] += p[t];
        }
    return sum;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// What a policy says of itself must fit together.
template <class Score> void declares() {
    static_assert(score_for<Score>);
    static_assert(std::is_trivially_copyable_v<state_of<Score>>);
    static_assert(Score::source != score_source::window ||
                  contains(Score::needs, engine_input::q | engine_input::k));
    static_assert(Score::source != score_source::probe ||
                  contains(Score::needs, engine_input::probe | engine_input::k));
    static_assert(Score::source != score_source::keys || contains(Score::needs, engine_input::k));
    static_assert(feedback_of<Score>() == feedback::unused ||
                  contains(Score::needs, engine_input::q | engine_input::k));
    static_assert(feedback_of<Score>() == feedback::unused || Score::evicts_in_decode,
                  "nobody would read it");
    static_assert(!Score::reads_values || contains(Score::needs, engine_input::v));
    CHECK(!std::string_view(Score::name).empty());
    CHECK(setting_names(typename Score::config{}).size() <= 8);
}

template <class Score, element E, class Reference>
void against_definition(const typename Score::config& config, const extents& e, double tolerance,
                        const Reference& reference, std::uint64_t seed) {
    CAPTURE(e.tokens);
    CAPTURE(e.dim);
    CAPTURE(e.group);
    CAPTURE(e.window);
    REQUIRE(state_of<Score>::check(config, e.limits()).ok());
    const std::size_t bytes = state_of<Score>::bytes(config, e.limits());
    guarded_bytes memory(bytes), used(bytes, 0x5A);
    const state_of<Score> one(config, e.limits(), memory.memory()), two(config, e.limits(), used.memory());
    const lane<Score, E> x(e, seed), y(e, seed + 1000);
    const std::vector<float> first = x.score(one, 0.0F), second = y.score(one, 7.0F);
    const numbers exact = reference(x);
    REQUIRE(exact.size() == first.size());
    double scale = 1e-30;
    for (std::uint32_t t = x.begin(); t < x.end(); ++t) scale = std::max(scale, std::fabs(exact[t]));
    oracle::largest_error worst;
    for (std::uint32_t t = x.begin(); t < x.end(); ++t)
        worst.relative(static_cast<double>(first[t]), exact[t], scale);
    CHECK(worst.value() <= tolerance);
    // The other lane first, on memory that was used, with scratch that holds no numbers.
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(same_bits(y.score(two, nan), second));
    CHECK(same_bits(x.score(two, nan), first));
    const state_of<Score> copy = one;
    CHECK(same_bits(x.score(copy, nan), first));
    CHECK(memory.intact());
    CHECK(used.intact());
}

} // namespace retention_suite

/// Scores of a finished prompt. `reference(lane)`: by token, in double; those of pinned tokens do not count.
/// `tolerance`: times the largest score of the lane.
template <class Score, class Reference>
void ranks_prompts_contract(const typename Score::config& config, double tolerance,
                            const Reference& reference) {
    using namespace retention_suite;
    declares<Score>();
    std::uint64_t seed = 1;
    for (const std::uint32_t tokens : {1U, 2U, 9U, 40U, 131U})
        for (const extents& e : {extents{tokens, 8, 1, 0, 1}, extents{tokens, 64, 4, 4, 8},
                                 extents{tokens, 80, 3, 2, 32}, extents{tokens, 130, 2, 0, 8}}) {
            against_definition<Score, float>(config, e, tolerance, reference, ++seed);
            against_definition<Score, f16>(config, e, tolerance, reference, ++seed);
        }
    for (const numbers_are kind : {numbers_are::zero, numbers_are::huge}) {
        const extents e{60, 64, 2, 4, 8};
        guarded_bytes memory(state_of<Score>::bytes(config, e.limits()));
        const state_of<Score> s(config, e.limits(), memory.memory());
        layer_notes notes;
        notes.lanes = 1;
        const auto got = lane<Score, float>(e, 9, kind).score(s, 0.0F, &notes);
        CHECK(std::all_of(got.begin(), got.end(), [](float x) { return std::isfinite(x); }));
        if constexpr (requires { s.preference(notes); }) {
            CHECK(std::isfinite(s.preference(notes)));
            CHECK(s.preference(notes) >= 0.0F);
        }
    }
}

/// Tokens as they come in, for scores of score_source::arrival.
struct arrivals {
    static constexpr std::uint32_t layers = 3, kv_heads = 4, group = 2, dim = 24, tokens = 40, inputs = 20;
    std::vector<float> q = oracle::normal_values(layers * tokens * kv_heads * group * dim, 11),
                       k = oracle::normal_values(layers * tokens * kv_heads * dim, 12),
                       v = oracle::normal_values(layers * tokens * kv_heads * dim, 13),
                       x = oracle::normal_values(layers * tokens * inputs, 14),
                       external = oracle::normal_values(layers * tokens * kv_heads, 15);

    [[nodiscard]] static score_limits limits() { return {layers, kv_heads, group, dim, 4, 8, 20, tokens}; }
    [[nodiscard]] arriving at(std::uint32_t layer, std::uint32_t token) const {
        const std::size_t i = std::size_t{layer} * tokens + token;
        const auto row = [i](const std::vector<float>& all, std::size_t n) {
            return std::span(all).subspan(i * n, n);
        };
        arriving a;
        a.layer = layer, a.token = token;
        a.q = row(q, std::size_t{kv_heads} * group * dim);
        a.k = row(k, std::size_t{kv_heads} * dim);
        a.v = row(v, std::size_t{kv_heads} * dim);
        a.x = row(x, inputs);
        a.external = row(external, kv_heads);
        return a;
    }
};

/// Scores of tokens as they arrive: `exact(arriving, head)` in double; heads and tokens in any order and
/// number. `forget()` is called when the state was made: what the config views is read by then.
template <class Score, class Exact, class Forget>
void ranks_arrivals_contract(const typename Score::config& config, double tolerance, const Exact& exact,
                             const Forget& forget) {
    using namespace retention_suite;
    declares<Score>();
    static_assert(Score::source == score_source::arrival);
    const arrivals in;
    REQUIRE(state_of<Score>::check(config, arrivals::limits()).ok());
    const std::size_t bytes = state_of<Score>::bytes(config, arrivals::limits());
    guarded_bytes memory(bytes), used(bytes, 0x5A);
    const state_of<Score> one(config, arrivals::limits(), memory.memory()),
        two(config, arrivals::limits(), used.memory());
    forget();
    oracle::largest_error worst;
    std::vector<std::vector<float>> all;
    for (std::uint32_t l = 0; l < arrivals::layers; ++l)
        for (std::uint32_t t = 0; t < arrivals::tokens; ++t) {
            const arriving a = in.at(l, t);
            std::vector<float> out(arrivals::kv_heads + 4, -12345.0F);
            one.arrive(a, std::span(out).first(arrivals::kv_heads));
            CHECK(std::all_of(out.end() - 4, out.end(), [](float x) { return x == -12345.0F; }));
            out.resize(arrivals::kv_heads);
            for (std::uint32_t h = 0; h < arrivals::kv_heads; ++h)
                worst.see((static_cast<double>(out[h]) - exact(a, h)) / (1.0 + std::fabs(exact(a, h))));
            all.push_back(out);
        }
    CHECK(worst.value() <= tolerance);
    // The latest token first, the heads of one shard after those of the other, one by one.
    for (std::uint32_t l = arrivals::layers; l-- > 0;)
        for (std::uint32_t t = arrivals::tokens; t-- > 0;) {
            const std::vector<float>& expected = all[l * arrivals::tokens + t];
            for (const std::uint32_t step : {1U, 2U, 4U})
                for (std::uint32_t first = step; first-- > 0;) {
                    arriving a = in.at(l, t);
                    a.first_head = first, a.head_step = step;
                    std::vector<float> out(arrivals::kv_heads / step);
                    two.arrive(a, out);
                    for (std::uint32_t i = 0; i < out.size(); ++i)
                        CHECK(out[i] == expected[first + i * step]);
                }
        }
    CHECK(memory.intact());
    CHECK(used.intact());
}
template <class Score, class Exact>
void ranks_arrivals_contract(const typename Score::config& config, double tolerance, const Exact& exact) {
    ranks_arrivals_contract<Score>(config, tolerance, exact, [] {});
}

/// What held entries are worth in decode. `make(token, score)` gives a model in double of one entry:
/// feed(now, mass) and worth(now).
template <class Score, class Make>
void ranks_held_contract(const typename Score::config& config, double tolerance, const Make& make) {
    using namespace retention_suite;
    using record = typename Score::record;
    declares<Score>();
    static_assert(Score::evicts_in_decode);
    const extents e{200, 16, 2, 0, 1};
    guarded_bytes memory(state_of<Score>::bytes(config, e.limits()));
    const state_of<Score> s(config, e.limits(), memory.memory());
    const auto arrived = [](std::uint32_t token) {
        if constexpr (requires { record::arrived(token); })
            return record::arrived(token);
        else
            return (static_cast<void>(token), record{});
    };
    struct held {
        held_entry entry;
        record r;
    };
    std::vector<held> row, other; // the same entries, and fed from the other end
    using model = decltype(make(0U, 0.0));
    std::vector<model> truth;
    oracle::generator random(3);
    oracle::largest_error worst;
    for (std::uint32_t now = 0; now < 150; ++now) {
        const float score =
            Score::source == score_source::arrival ? static_cast<float>(random.normal()) : 0.0F;
        row.push_back({{score, now, now}, arrived(now)});
        other.push_back(row.back());
        truth.push_back(make(now, static_cast<double>(score)));
        std::vector<float> mass(row.size());
        for (float& m : mass) m = random.below(3) == 0 ? static_cast<float>(random.uniform() * 0.3) : 0.0F;
        const auto feed = [&](std::vector<held>& rows, std::size_t i) {
            held moved = rows[i]; // to another block and back, as rows move when others leave
            moved.entry.now = now;
            if constexpr (feedback_of<Score>() != feedback::unused)
                s.feed(moved.entry, mass[i], moved.entry.score, moved.r);
            std::memcpy(static_cast<void*>(&rows[i]), &moved, sizeof moved);
        };
        for (std::size_t i = 0; i < row.size(); ++i) feed(row, i);
        for (std::size_t i = row.size(); i-- > 0;) feed(other, i);
        for (std::size_t i = 0; i < row.size(); ++i) {
            if constexpr (feedback_of<Score>() != feedback::unused)
                truth[i].feed(now, static_cast<double>(mass[i]));
            const double exact = truth[i].worth(now);
            const float got = s.worth(row[i].entry, row[i].r);
            worst.see((static_cast<double>(got) - exact) / (1.0 + std::fabs(exact)));
            CHECK(s.worth(other[i].entry, other[i].r) == got);
        }
    }
    CHECK(worst.value() <= tolerance);
    CHECK(memory.intact());
}

} // namespace kvtl_test
