// Keys and values as an engine has them in 16 bits: what comes out is, to the bit, what the same numbers as floats give,
// in prompts, decode and turns, of clusters, of single tokens, of rows that are evicted by scores of arriving keys, and of
// layers that slide.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/pqcache.hpp>
#include <kvtl/presets/query_free.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

namespace manager_sixteen_bits_test {

using namespace kvtl_test;

namespace {

using dynakv_in_memory = on_device<kvtl::presets::dynakv, kvtl::in_memory>;
using pqcache_in_memory = on_device<kvtl::presets::pqcache, kvtl::in_memory>;

/// A stream of which keys and values are rounded to E, as such and as floats.
template <kvtl::element E> class rounded {
  public:
    explicit rounded(const drift& data) : data_(&data) {
        for (std::size_t l = 0; l < data.shape().layers; ++l) {
            narrow_.push_back({round(data.k(l, 0, data.tokens())), round(data.v(l, 0, data.tokens()))});
            wide_.push_back({widen(narrow_[l].k), widen(narrow_[l].v)});
        }
    }
    [[nodiscard]] kvtl::layer_input input(std::size_t layer, std::size_t first, std::size_t n,
                                          bool as_floats) const {
        const std::size_t row = data_->key_floats();
        const auto of = [&](const auto& all) { return std::span(all).subspan(first * row, n * row); };
        kvtl::layer_input in{.q = data_->q(layer, first, n)};
        if (as_floats)
            in.k = of(wide_[layer].k), in.v = of(wide_[layer].v);
        else
            in.k = of(narrow_[layer].k), in.v = of(narrow_[layer].v);
        return in;
    }

  private:
    template <class T> struct rows { std::vector<T> k, v; };
    static std::vector<E> round(std::span<const float> in) {
        std::vector<E> out;
        for (const float x : in) out.push_back(kvtl::from_float<E>(x));
        return out;
    }
    static std::vector<float> widen(const std::vector<E>& in) {
        std::vector<float> out;
        for (const E x : in) out.push_back(kvtl::to_float(x));
        return out;
    }

    const drift* data_;
    std::vector<rows<E>> narrow_;
    std::vector<rows<float>> wide_;
};

/// Outputs of a prompt in two chunks, decode, and where the preset has them a turn and decode again.
template <class Cache, kvtl::element E>
std::vector<float> run(const typename Cache::config& c, const drift& data, const rounded<E>& rows,
                       bool as_floats, bool turns) {
    Cache cache = open_cache<Cache>(c);
    const auto seq = cache.begin();
    REQUIRE(seq.ok());
    std::vector<float> all;
    std::size_t done = 0;
    const auto chunk = [&](std::size_t n, bool last, bool decode) {
        for (std::size_t l = 0; l < data.shape().layers; ++l) {
            std::vector<float> out(n * data.query_floats());
            kvtl::layer_input in = rows.input(l, done, n, as_floats);
            in.last_chunk = last;
            require_ok(decode ? cache.attend(*seq, l, in, out) : cache.prefill(*seq, l, in, out));
            all.insert(all.end(), out.begin(), out.end());
        }
        done += n;
    };
    const auto decode = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) chunk(1, true, true);
    };
    chunk(300, false, false);
    chunk(100, true, false);
    decode(80);
    if (turns) {
        chunk(40, true, false);
        decode(20);
    }
    return all;
}

template <class Cache> typename Cache::config config_for(std::size_t tokens) {
    typename Cache::config c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = tokens;
    c.attend_tokens = 160;
    c.memory_bytes = std::size_t{16} << 20;
    return c;
}

template <class Cache, kvtl::element E> void check_same(const typename Cache::config& c, bool turns) {
    const drift data(c.shape, 600, 7);
    const rounded<E> rows(data);
    const auto floats = run<Cache>(c, data, rows, true, turns),
               narrow = run<Cache>(c, data, rows, false, turns);
    CHECK(floats.size() > 400 * data.query_floats());
    CHECK(same_bits(floats, narrow));
}
} // namespace

TEST_CASE_TEMPLATE("clusters", E, kvtl::f16, kvtl::bf16) {
    using cache = kvtl::kv_manager<dynakv_in_memory>;
    check_same<cache, E>(config_for<cache>(600), true);
}

TEST_CASE_TEMPLATE("rows that arrive with a score of their keys, and layers that slide", E, kvtl::f16,
                   kvtl::bf16) {
    using cache = kvtl::knorm;
    auto c = config_for<cache>(600);
    c.keep_tokens = 160;
    c.prefill_tokens = 400;
    c.attention.windows = {0, 50};
    check_same<cache, E>(c, false);
}

TEST_CASE_TEMPLATE("single tokens with a codebook fitted to the first of them", E, kvtl::f16, kvtl::bf16) {
    using cache_t = kvtl::kv_manager<pqcache_in_memory>;
    const auto c = config_for<cache_t>(600);
    check_same<cache_t, E>(c, true);
    const drift data(c.shape, 600, 7);
    const rounded<E> rows(data);
    cache_t cache = open_cache<cache_t>(c);
    const auto seq = cache.begin();
    std::vector<float> out(400 * data.query_floats());
    kvtl::layer_input mixed = rows.input(0, 0, 400, false);
    mixed.v = rows.input(0, 0, 400, true).v;
    CHECK(std::string(cache.prefill(*seq, 0, mixed, out).what()).find("k and v are of different types") !=
          std::string::npos);
    CHECK(cache.tokens(*seq, 0) == 0);
}

TEST_CASE("a number that is none, and a tensor of another size, are found in 16 bits too") {
    using cache_t = kvtl::kv_manager<dynakv_in_memory>;
    const auto c = config_for<cache_t>(600);
    const drift data(c.shape, 600, 7);
    const rounded<kvtl::bf16> rows(data);
    cache_t cache = open_cache<cache_t>(c);
    const auto seq = cache.begin();
    std::vector<kvtl::bf16> k(2 * data.key_floats());
    std::vector<float> out(2 * data.query_floats());
    kvtl::layer_input in = rows.input(0, 0, 2, false);
    in.k = k;
    k[77] = kvtl::bf16{0x7F80}; // infinity
    CHECK(std::string(cache.prefill(*seq, 0, in, out).what()).find("k holds a NaN, an infinity") !=
          std::string::npos);
    k[77] = kvtl::from_float<kvtl::bf16>(70000.0F); // more than the f16 of the cache can hold
    CHECK(std::string(cache.prefill(*seq, 0, in, out).what()).find("a number beyond f16") !=
          std::string::npos);
    k[77] = {};
    in.v = in.v.first(data.key_floats());
    CHECK(std::string(cache.prefill(*seq, 0, in, out).what()).find("v has 128 numbers; valid: 256") !=
          std::string::npos);
    CHECK(cache.tokens(*seq, 0) == 0);
}

} // namespace manager_sixteen_bits_test
