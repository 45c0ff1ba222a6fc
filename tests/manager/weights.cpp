// Entries that carry log-weights: an entry of weight ln n counts as n equal ones, in the window, among the
// sinks, while it waits, and in units and groups, after every move.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>

#include "support/cache_fixture.hpp"

namespace manager_weights_test {

using namespace kvtl_test;

namespace {

struct clusters : kvtl::presets::dynakv {
    static constexpr bool weighted_entries = true;
    static constexpr std::uint32_t sink_tokens = 4;
    using compressor = kvtl::raw<float>;
    using io = kvtl::in_memory;
};
struct runs : kvtl::presets::full {
    static constexpr bool weighted_entries = true;
    static constexpr std::uint32_t window_tokens = 20;
    static constexpr std::uint32_t sink_tokens = 3;
    using clusterer = kvtl::head_groups<8>;
    using compressor = kvtl::raw<float>;
};
struct runs_of_layers : runs {
    using clusterer = kvtl::layer_groups<4>;
};
struct coded_clusters : clusters {
    using compressor = kvtl::int8_row<float>;
};

[[nodiscard]] float weight_of(std::size_t token, std::size_t prompt) {
    return token < prompt ? 0.0F : std::log(1.0F + static_cast<float>(token * token % 7));
}

/// Dense attention of token t in which entry i counts exp(weight) times.
std::vector<double> weighted_attention(const drift& data, std::size_t layer, std::size_t t,
                                       std::size_t prompt) {
    const kvtl::shape& s = data.shape();
    const std::size_t dim = s.head_dim, group = s.query_heads / s.kv_heads;
    std::vector<double> out(data.query_floats(), 0.0);
    for (std::size_t g = 0; g < s.query_heads; ++g) {
        double sum = 0;
        for (std::size_t i = 0; i <= t; ++i) {
            // The arriving token gets its weight after its own step.
            const double w = i == t ? 0.0 : static_cast<double>(weight_of(i, prompt));
            const double logit =
                oracle::dot(data.q(layer, t).data() + g * dim, data.key(layer, i, g / group), dim) /
                std::sqrt(static_cast<double>(dim));
            const double share = std::exp(logit + w);
            sum += share;
            for (std::size_t d = 0; d < dim; ++d)
                out[g * dim + d] += share * static_cast<double>(data.value(layer, i, g / group)[d]);
        }
        for (std::size_t d = 0; d < dim; ++d) out[g * dim + d] /= sum;
    }
    return out;
}

template <class Preset> double worst_error(std::size_t prompt, std::size_t decode, bool smallest) {
    using cache_type = kvtl::kv_manager<Preset>;
    typename cache_type::config c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = prompt + decode + 4;
    c.attend_tokens = c.max_tokens;
    c.memory_bytes = std::size_t{64} << 20;
    if (smallest) c.memory_bytes = least_memory<cache_type>(c);
    const drift data(c.shape, c.max_tokens, 21);
    auto cache = open_cache<cache_type>(c);
    const auto seq = *cache.begin();
    for (std::uint32_t l = 0; l < c.shape.layers && prompt > 0; ++l)
        require_ok(cache.prefill(seq, l, data.input(l, 0, prompt), {}));
    auto& store = kvtl::shard_access::of(cache, 0).store();
    const std::uint32_t lanes = cache_type::types::unit_of == kvtl::granularity::layer ? 1 : c.shape.kv_heads;
    oracle::largest_error error;
    for (std::size_t t = prompt; t < prompt + decode; ++t)
        for (std::uint32_t l = 0; l < c.shape.layers; ++l) {
            std::vector<float> out(data.query_floats());
            require_ok(cache.attend(seq, l, data.input(l, t), out));
            if (t % 9 == 0 || t + 1 == prompt + decode) {
                const auto exact_out = weighted_attention(data, l, t, prompt);
                for (std::size_t i = 0; i < out.size(); ++i)
                    error.see(static_cast<double>(out[i]) - exact_out[i]);
            }
            for (std::uint32_t h = 0; h < lanes; ++h) {
                const auto lane = store.at(l * lanes + h);
                REQUIRE(*lane.arrival_w(static_cast<std::uint32_t>(t)) == 0.0F);
                *lane.arrival_w(static_cast<std::uint32_t>(t)) = weight_of(t, prompt);
            }
        }
    CHECK(cache.stats().units > 4);
    return error.value();
}
} // namespace

TEST_CASE_TEMPLATE("attention adds an entry's log-weight wherever the entry is", Preset, clusters, runs,
                   runs_of_layers) {
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        CHECK(worst_error<Preset>(0, 300, smallest) < exact);
        CHECK(worst_error<Preset>(560, 300, smallest) < exact);
    }
}

TEST_CASE("encoded entries carry their weights too") {
    CHECK(worst_error<coded_clusters>(560, 200, true) < 0.15);
}

TEST_CASE("a cache without weights has no room for them") {
    struct sizes {
        static kvtl::lane_sizes of(bool weights) {
            kvtl::lane_sizes s;
            s.width = 64, s.max_units = 10, s.sinks = 4, s.window = 32, s.buffer = 8;
            s.weights = weights;
            return s;
        }
    };
    using offsets = kvtl::lane_offsets<float, int>;
    CHECK(offsets::make(sizes::of(true)).window_bytes > offsets::make(sizes::of(false)).window_bytes);
    const auto without = offsets::make(sizes::of(false));
    CHECK(without.sink_w == without.window_w);
    CHECK(without.window_w == without.units);
    using types = kvtl::cache_types<runs>;
    using plain = kvtl::cache_types<kvtl::presets::full>;
    CHECK(kvtl::weight_bytes<types> == 4);
    CHECK(kvtl::weight_bytes<plain> == 0);
}

} // namespace manager_weights_test
