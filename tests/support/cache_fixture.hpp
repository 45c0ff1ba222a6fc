// A sequence that is fed to a manager as an engine would (chunks of a prompt, decode steps, further turns)
// and compared with attention computed by definition: in double precision, over every earlier token, keys and
// values rounded to what the cache stores.
//
//   auto cache = open_cache<my_cache>(config);
//   reader<my_cache> one(cache, data);          // data: a drift stream
//   one.prefill(700, 128); one.decode(50);
//   CHECK(one.error() < exact);
//
// Every output is kept as well, so that two runs can be compared to the bit.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/manager.hpp>

#include "support/dense_rows.hpp"
#include "support/drift.hpp"
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvtl_test {

/// Largest difference from dense attention that float sums may have: logits of some tens, values around 1.
inline constexpr double exact = 2e-5;

inline void require_ok(const kvtl::status& s) {
    REQUIRE_MESSAGE(s.ok(), std::string(s.what()));
}

template <class Cache> [[nodiscard]] Cache open_cache(const typename Cache::config& c) {
    auto opened = Cache::open(c);
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
    return *std::move(opened);
}

/// The smallest memory_bytes that open() accepts: it says so when it is given too little.
template <class Cache> [[nodiscard]] std::size_t least_memory(typename Cache::config c) {
    c.memory_bytes = 1;
    const auto opened = Cache::open(c);
    REQUIRE_FALSE(opened.ok());
    const std::string& text = opened.error().message;
    const std::string before = "needs at least ";
    const std::size_t at = text.find(before);
    REQUIRE_MESSAGE(at != std::string::npos, text);
    return std::stoull(text.substr(at + before.size()));
}

/// A stream as E keeps it, and dense attention over that: each row is rounded, and each token attended, once.
template <kvtl::element E> class dense_reference {
  public:
    /// sinks: (HQ) logits that join the softmax without a value, or empty.
    explicit dense_reference(const drift& data, kvtl::attention_rule rule = {}, std::vector<float> sinks = {})
        : data_(&data), rule_(std::move(rule)), sinks_(std::move(sinks)), keys_(data.shape().layers),
          values_(keys_.size()), outputs_(keys_.size()) {}

    [[nodiscard]] std::span<const float> sinks() const { return sinks_; }

    /// Attention of token t of a layer over tokens 0 to t. Returns (HQ, D).
    [[nodiscard]] const std::vector<double>& attention(std::size_t layer, std::size_t t) {
        auto& known = outputs_[layer];
        if (known.size() <= t) known.resize(t + 1);
        if (known[t].empty()) known[t] = attend(layer, t);
        return known[t];
    }

  private:
    [[nodiscard]] std::vector<double> attend(std::size_t layer, std::size_t t) {
        return dense_rows({.shape = data_->shape(),
                           .scale = static_cast<double>(rule_.scale),
                           .softcap = static_cast<double>(rule_.softcap),
                           .reach = rule_.windows.empty() ? 0 : rule_.windows[layer],
                           .sinks = sinks_},
                          t, data_->q(layer, t).data(), round(keys_[layer], data_->k(layer, 0, t + 1)),
                          round(values_[layer], data_->v(layer, 0, t + 1)));
    }

    static const float* round(std::vector<float>& rounded, std::span<const float> rows) {
        for (std::size_t i = rounded.size(); i < rows.size(); ++i)
            rounded.push_back(kvtl::to_float(kvtl::from_float<E>(rows[i])));
        return rounded.data();
    }

    const drift* data_;
    kvtl::attention_rule rule_;
    std::vector<float> sinks_;
    std::vector<std::vector<float>> keys_, values_; ///< (T, H, D) as far as they were needed
    std::vector<std::vector<std::vector<double>>> outputs_;
};

/// Dense attention of token t of a layer over tokens 0 to t. out: (HQ, D).
template <kvtl::element E>
std::vector<double> dense_attention(const drift& data, std::size_t layer, std::size_t t) {
    return dense_reference<E>(data).attention(layer, t);
}

/// One sequence of a cache and how far its engine has come.
template <class Cache> class reader {
  public:
    using element_type = typename Cache::element_type;

    /// `compare_every`: 1 compares every token with dense attention, n every nth, 0 none. `reference`: of `data`, where
    /// others have one already.
    reader(Cache& cache, const drift& data, std::size_t compare_every = 1,
           std::shared_ptr<dense_reference<element_type>> reference = {})
        : cache_(&cache), data_(&data), reference_(std::move(reference)), every_(compare_every) {
        if (!reference_) reference_ = std::make_shared<dense_reference<element_type>>(data);
        auto seq = cache.begin();
        REQUIRE_MESSAGE(seq.ok(), (seq.ok() ? std::string() : seq.error().message));
        seq_ = *seq;
    }

    [[nodiscard]] kvtl::sequence_id id() const { return seq_; }
    [[nodiscard]] std::size_t tokens() const { return tokens_; }
    [[nodiscard]] double error() const {
        REQUIRE(every_ > 0); // what was never compared has no error
        return error_.value();
    }
    [[nodiscard]] const std::vector<float>& outputs() const { return outputs_; }

    /// The next n tokens as a prompt (or, after decode, a turn) in chunks of at most `chunk`.
    void prefill(std::size_t n, std::size_t chunk = SIZE_MAX) {
        for (std::size_t done = 0; done < n;) {
            const std::size_t some = std::min(chunk, n - done);
            for (std::size_t l = 0; l < layers(); ++l) {
                auto in = input(l, tokens_, some);
                in.last_chunk = done + some == n;
                std::vector<float> out(some * data_->query_floats(), NAN);
                for (unsigned s = 0; s < cache_->shards(); ++s)
                    require_ok(cache_->prefill(seq_, l, in, out, s));
                for (std::size_t t = 0; t < some; ++t)
                    compare(l, tokens_ + t, &out[t * data_->query_floats()]);
                outputs_.insert(outputs_.end(), out.begin(), out.end());
            }
            tokens_ += some;
            done += some;
        }
    }

    /// One token through all layers. `before(layer)` runs ahead of each attend.
    template <class Before> void step(Before&& before) {
        for (std::size_t l = 0; l < layers(); ++l) {
            before(l);
            std::vector<float> out(data_->query_floats(), NAN);
            for (unsigned s = 0; s < cache_->shards(); ++s)
                require_ok(cache_->attend(seq_, l, input(l, tokens_, 1), out, s));
            compare(l, tokens_, out.data());
            outputs_.insert(outputs_.end(), out.begin(), out.end());
        }
        ++tokens_;
    }
    void decode(std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) step([](std::size_t) {});
    }

    /// Several tokens in one call per layer: a draft.
    void draft(std::size_t n) {
        for (std::size_t l = 0; l < layers(); ++l) {
            std::vector<float> out(n * data_->query_floats(), NAN);
            for (unsigned s = 0; s < cache_->shards(); ++s)
                require_ok(cache_->attend(seq_, l, input(l, tokens_, n), out, s));
            for (std::size_t t = 0; t < n; ++t) compare(l, tokens_ + t, &out[t * data_->query_floats()]);
            outputs_.insert(outputs_.end(), out.begin(), out.end());
        }
        tokens_ += n;
    }

    /// For tests that call the manager themselves.
    void advance(std::size_t n = 1) { tokens_ += n; }
    [[nodiscard]] kvtl::layer_input input(std::size_t layer, std::size_t first, std::size_t n) const {
        auto in = data_->input(layer, first, n);
        in.sink_logits = reference_->sinks();
        return in;
    }
    void compare(std::size_t layer, std::size_t token, const float* out) {
        if (every_ == 0 || token % every_ != 0) return;
        const auto& dense = reference_->attention(layer, token);
        for (std::size_t i = 0; i < dense.size(); ++i) error_.see(static_cast<double>(out[i]) - dense[i]);
    }
    void rewind(std::size_t n) {
        require_ok(cache_->rewind(seq_, n));
        tokens_ -= n;
    }
    void end() { require_ok(cache_->end(seq_)); }
    /// The same tokens, in another sequence.
    void go_on_in(kvtl::sequence_id seq) { seq_ = seq; }

    /// Every lane of every layer holds as many tokens as were fed.
    void check_tokens() const {
        for (std::size_t l = 0; l < layers(); ++l) CHECK(cache_->tokens(seq_, l) == tokens_);
    }

  private:
    [[nodiscard]] std::size_t layers() const { return data_->shape().layers; }

    Cache* cache_;
    const drift* data_;
    std::shared_ptr<dense_reference<element_type>> reference_;
    std::size_t every_;
    kvtl::sequence_id seq_{};
    std::size_t tokens_ = 0;
    oracle::largest_error error_;
    std::vector<float> outputs_;
};

[[nodiscard]] inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
        return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    });
}

// -------------------------------------------------------------- "budget = everything equals dense"

/// What an engine does in one scenario, and with which cache.
struct scenario {
    kvtl::shape shape{2, 4, 2, 64};
    std::size_t prompt = 0, chunk = SIZE_MAX, decode = 0, turn = 0, turn_decode = 0;
    unsigned shards = 1;
    bool smallest = false; ///< the least memory that open() accepts
    bool adapt_prompt = false;
};

template <class Cache>
typename Cache::config config_of(const scenario& s, const typename Cache::config& base) {
    typename Cache::config c = base;
    c.shape = s.shape;
    c.max_tokens = s.prompt + s.decode + s.turn + s.turn_decode + 8;
    c.attend_tokens = c.max_tokens;
    c.shards = s.shards;
    c.adapt_prompt = s.adapt_prompt;
    c.memory_bytes = std::size_t{64} << 20;
    if (s.smallest) c.memory_bytes = least_memory<Cache>(c);
    return c;
}

/// A stream of at least so many tokens, and what dense attention makes of it; made once for each shape and seed, as both
/// take longer than what is tested.
template <kvtl::element E> struct shared_stream {
    std::uint64_t seed;
    std::unique_ptr<drift> data;
    std::shared_ptr<dense_reference<E>> reference;

    [[nodiscard]] static const shared_stream& of(const kvtl::shape& shape, std::size_t tokens,
                                                 std::uint64_t seed) {
        static std::deque<shared_stream> all;
        for (const shared_stream& one : all)
            if (one.seed == seed && one.data->shape() == shape && one.data->tokens() >= tokens) return one;
        auto data = std::make_unique<drift>(shape, std::max<std::size_t>(tokens, 820), seed);
        auto reference = std::make_shared<dense_reference<E>>(*data);
        return all.emplace_back(shared_stream{seed, std::move(data), std::move(reference)});
    }
};

template <class Cache>
void run_scenario(const scenario& s, const typename Cache::config& base = {}, double tolerance = exact) {
    CAPTURE(s.shape.head_dim);
    CAPTURE(s.shape.query_heads);
    CAPTURE(s.prompt);
    CAPTURE(s.chunk);
    CAPTURE(s.decode);
    CAPTURE(s.turn);
    CAPTURE(s.smallest);
    CAPTURE(s.shards);
    const auto config = config_of<Cache>(s, base);
    const auto& stream = shared_stream<typename Cache::element_type>::of(s.shape, config.max_tokens, 7);
    auto cache = open_cache<Cache>(config);
    reader<Cache> one(cache, *stream.data, s.prompt + s.decode > 300 ? 5 : 1, stream.reference);
    one.prefill(s.prompt, s.chunk);
    one.decode(s.decode);
    one.prefill(s.turn);
    one.decode(s.turn_decode);
    one.check_tokens();
    CHECK(one.error() < tolerance);
    CHECK(cache.stats().resident_bytes_peak <= config.memory_bytes);
}

/// Every preset must pass this with attend_tokens = everything; one whose compressor loses something, within
/// a tolerance for values around 1.
template <class Cache> void equals_dense(const typename Cache::config& base = {}, double tolerance = exact) {
    const auto run = [&](const scenario& s) { run_scenario<Cache>(s, base, tolerance); };
    SUBCASE("short prompts, then decode") {
        for (const std::size_t prompt : {0U, 1U, 3U, 20U, 60U}) run({.prompt = prompt, .decode = 60});
    }
    SUBCASE("a prompt in chunks, with much and with the least memory") {
        for (const bool smallest : {false, true})
            for (const std::size_t chunk : {700U, 256U, 97U})
                run({.prompt = 700, .chunk = chunk, .decode = 40, .smallest = smallest});
        run({.prompt = 40, .chunk = 1, .decode = 10, .smallest = true});
    }
    SUBCASE("head sizes and query groups") {
        run({.shape = {1, 2, 2, 80}, .prompt = 600, .decode = 50, .smallest = true});
        run({.shape = {1, 14, 2, 128}, .prompt = 560, .chunk = 300, .decode = 50, .smallest = true});
        run({.shape = {1, 4, 1, 128}, .prompt = 20, .decode = 50});
    }
    SUBCASE("one KV head, one layer: nothing to share storage with") {
        run({.shape = {1, 1, 1, 64}, .prompt = 640, .chunk = 100, .decode = 8, .smallest = true});
    }
    SUBCASE("two shards") {
        run({.shape = {2, 6, 3, 64},
             .prompt = 600,
             .chunk = 250,
             .decode = 30,
             .turn = 20,
             .shards = 2,
             .smallest = true});
    }
    SUBCASE("turns after decode, also short ones and from nothing") {
        run({.prompt = 600, .decode = 20, .turn = 150, .turn_decode = 20, .smallest = true});
        run({.prompt = 2, .decode = 1, .turn = 1, .turn_decode = 3});
        run({.prompt = 0, .decode = 2, .turn = 640, .turn_decode = 10, .smallest = true});
    }
    SUBCASE("later chunks take the decode path") {
        run({.prompt = 700, .chunk = 200, .decode = 20, .smallest = true, .adapt_prompt = true});
        run({.prompt = 700, .chunk = 600, .decode = 20, .adapt_prompt = true});
    }
    SUBCASE("decode from an empty prompt until the lane has long been clustered") {
        run({.prompt = 0, .decode = 640, .smallest = true});
        run({.prompt = 10, .decode = 640});
    }
    SUBCASE("sequences in turn and side by side") {
        for (const bool share : {false, true}) {
            CAPTURE(share);
            scenario s{.prompt = 560, .decode = 60, .turn = 40};
            auto config = config_of<Cache>(s, base);
            config.max_sequences = 2;
            config.share = share;
            if (share && Cache::types::retrieves && Cache::types::layout::by_entry) {
                const auto refused = Cache::open(config);
                REQUIRE_FALSE(refused.ok());
                CHECK(refused.error().message.find("share is true") != std::string::npos);
                continue;
            }
            config.memory_bytes = least_memory<Cache>(config);
            using stream = shared_stream<typename Cache::element_type>;
            const stream& first = stream::of(s.shape, config.max_tokens, 1);
            const stream& second = stream::of(s.shape, config.max_tokens, 2);
            auto cache = open_cache<Cache>(config);
            for (int round = 0; round < 2; ++round) { // the second time everything is used anew
                reader<Cache> a(cache, *first.data, 5, first.reference),
                    b(cache, *second.data, 5, second.reference);
                CHECK_FALSE(cache.begin().ok());
                a.prefill(560, 200);
                for (int i = 0; i < 20; ++i) {
                    a.decode(1);
                    if (i % 4 == 0) b.prefill(30, 30); // a prompt, then turns between the other's steps
                    b.decode(1);
                }
                a.prefill(40);
                a.decode(5);
                a.check_tokens();
                b.check_tokens();
                CHECK(a.error() < tolerance);
                CHECK(b.error() < tolerance);
                a.end();
                b.decode(3);
                CHECK(b.error() < tolerance);
                b.end();
            }
            CHECK(cache.stats().resident_bytes_peak <= config.memory_bytes);
        }
    }
}

} // namespace kvtl_test
