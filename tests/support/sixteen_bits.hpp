// An engine whose queries, or whose results, have 16 bits, beside one that has the same numbers as floats.
//
//   const engine_numbers<kvtl::bf16> data(drift);        // queries of drift, rounded
//   check_queries_and_results<my_cache, kvtl::bf16>(config, data, {.turns = true});
//
// The oracle is the float engine: of the same queries every result is the same to the bit, and as 16 bits it is the float
// rounded once.
// SPDX-License-Identifier: MIT
#pragma once

#include "support/cache_fixture.hpp"

#include <concepts>
#include <type_traits>

namespace kvtl_test {

template <kvtl::element E> [[nodiscard]] std::vector<E> rounded_to(std::span<const float> in) {
    std::vector<E> out;
    out.reserve(in.size());
    for (const float x : in) out.push_back(kvtl::from_float<E>(x));
    return out;
}
template <kvtl::element E> [[nodiscard]] std::vector<float> as_floats(const std::vector<E>& in) {
    std::vector<float> out;
    out.reserve(in.size());
    for (const E x : in) out.push_back(kvtl::to_float(x));
    return out;
}

/// A stream whose queries are numbers that E holds, as such and as floats.
template <kvtl::element E> class engine_numbers {
  public:
    explicit engine_numbers(const drift& data) : data_(&data) {
        for (std::size_t l = 0; l < data.shape().layers; ++l) {
            narrow_.push_back(rounded_to<E>(data.q(l, 0, data.tokens())));
            wide_.push_back(as_floats(narrow_.back()));
        }
    }
    [[nodiscard]] const drift& data() const { return *data_; }
    template <kvtl::element Q>
    [[nodiscard]] kvtl::tensor_view q(std::size_t layer, std::size_t first, std::size_t n = 1) const {
        static_assert(std::same_as<Q, float> || std::same_as<Q, E>);
        const kvtl::tensor_view all = [&]() -> kvtl::tensor_view {
            if constexpr (std::same_as<Q, E>)
                return narrow_[layer];
            else
                return wide_[layer];
        }();
        return all.subspan(first * data_->query_floats(), n * data_->query_floats());
    }
    template <kvtl::element Q>
    [[nodiscard]] kvtl::layer_input input(std::size_t layer, std::size_t first, std::size_t n) const {
        kvtl::layer_input in = data_->input(layer, first, n);
        in.q = q<Q>(layer, first, n);
        return in;
    }

  private:
    const drift* data_;
    std::vector<std::vector<E>> narrow_;
    std::vector<std::vector<float>> wide_;
};

/// What the engine does besides a prompt in two chunks, steps and drafts.
struct engine_habits {
    std::size_t prompt = 400, chunk = 300, decode = 40;
    bool turns = false;      ///< a further turn
    bool selects = true;     ///< at the end, where the preset has it: all that is chosen must fit at once
    bool prefetches = false; ///< half of the steps, layer by layer
};

/// All that a cache gives back to an engine with queries of Q and results of Out.
struct engine_results {
    std::vector<float> out;   ///< as floats
    std::vector<float> shown; ///< by select(): head, and the first number of each key and value
};
template <class Cache, kvtl::element Q, kvtl::element Out, kvtl::element E>
engine_results results_of(const typename Cache::config& c, const engine_numbers<E>& numbers,
                          const engine_habits& habits) {
    Cache cache = open_cache<Cache>(c);
    const drift& data = numbers.data();
    const std::size_t layers = data.shape().layers, row = data.query_floats();
    engine_results all;
    const auto keep = [&](const std::vector<Out>& out) {
        const std::vector<float> wide = as_floats(out);
        all.out.insert(all.out.end(), wide.begin(), wide.end());
    };
    struct conversation {
        kvtl::sequence_id id;
        std::size_t tokens = 0;
    };
    std::vector<conversation> open;
    for (std::size_t i = 0; i < c.max_sequences; ++i) open.push_back({*cache.begin()});
    conversation& one = open[0];
    const auto take = [&](std::size_t n, bool last, bool decode, bool ahead = false) {
        for (std::size_t l = 0; l < layers; ++l) {
            std::vector<Out> out(n * row, kvtl::from_float<Out>(NAN));
            kvtl::layer_input in = numbers.template input<Q>(l, one.tokens, n);
            in.last_chunk = last;
            for (unsigned s = 0; s < cache.shards(); ++s)
                require_ok(decode ? cache.attend(one.id, l, in, out, s)
                                  : cache.prefill(one.id, l, in, out, s));
            if (ahead && l + 1 < layers)
                require_ok(cache.prefetch(one.id, l + 1, numbers.template q<Q>(l + 1, one.tokens)));
            keep(out);
        }
        one.tokens += n;
    };
    const auto decode = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) take(1, true, true, habits.prefetches && i % 2 == 0);
        take(3, true, true); // a draft
    };
    for (std::size_t done = 0; done < habits.prompt; done += habits.chunk) {
        const std::size_t n = std::min(habits.chunk, habits.prompt - done);
        take(n, done + n == habits.prompt, false);
    }
    decode(habits.decode);
    if (habits.turns) {
        take(70, true, false);
        decode(5);
    }
    if constexpr (kvtl::why_no_views<typename Cache::types>() == nullptr)
        for (std::size_t l = 0; l < layers && habits.selects; ++l)
            require_ok(cache.select(one.id, l, numbers.template q<Q>(l, one.tokens),
                                    [&](std::size_t head, auto keys, auto values) {
                                        all.shown.push_back(static_cast<float>(head));
                                        for (std::size_t i = 0; i < keys.count; ++i) {
                                            all.shown.push_back(kvtl::to_float(keys.row(i)[0]));
                                            all.shown.push_back(kvtl::to_float(values.row(i)[0]));
                                        }
                                    }));
    if (open.size() < 2) return all;
    // A batch: a prompt of another sequence beside a step of this one.
    const std::uint32_t n = 50;
    const std::vector<kvtl::batch_part> parts{{open[1].id, n, kvtl::part_kind::last_of_prompt},
                                              {one.id, 1, kvtl::part_kind::decode}};
    for (std::size_t l = 0; l < layers; ++l) {
        std::vector<Out> out((n + 1) * row);
        // Tokens that follow each other in the stream stand for those of two sequences.
        const kvtl::layer_input in = numbers.template input<Q>(l, one.tokens, n + 1);
        require_ok(cache.forward(parts, l, in, out));
        keep(out);
    }
    return all;
}

template <class Cache, kvtl::element E>
void check_queries_and_results(const typename Cache::config& c, const engine_numbers<E>& numbers,
                               const engine_habits& habits = {}) {
    CAPTURE(std::string(kvtl::element_name<E>()));
    const auto floats = results_of<Cache, float, float>(c, numbers, habits),
               narrow_q = results_of<Cache, E, float>(c, numbers, habits),
               narrow_out = results_of<Cache, float, E>(c, numbers, habits),
               narrow = results_of<Cache, E, E>(c, numbers, habits);
    const std::size_t token = numbers.data().query_floats() * numbers.data().shape().layers;
    CHECK(floats.out.size() >= (habits.prompt + habits.decode) * token);
    CHECK(std::none_of(floats.out.begin(), floats.out.end(), [](float x) { return std::isnan(x); }));
    CHECK(same_bits(narrow_q.out, floats.out));
    CHECK(same_bits(narrow_out.out, as_floats(rounded_to<E>(floats.out))));
    CHECK(same_bits(narrow.out, narrow_out.out));
    CHECK(same_bits(narrow.shown, floats.shown));
}

/// With f16 and bf16.
template <class Cache>
void check_sixteen_bits(const typename Cache::config& c, const engine_habits& habits = {}) {
    const drift data(c.shape, c.max_tokens, 7);
    check_queries_and_results<Cache, kvtl::f16>(c, engine_numbers<kvtl::f16>(data), habits);
    check_queries_and_results<Cache, kvtl::bf16>(c, engine_numbers<kvtl::bf16>(data), habits);
}

} // namespace kvtl_test
