// SPDX-License-Identifier: MIT
#include <kvtl/presets/two_level.hpp>

#include "support/size_knob.hpp"

using namespace kvtl_test;

template class kvtl::kv_manager<kvtl::presets::dynakv_two_level>;
template class kvtl::kv_manager<kvtl::presets::dynakv_two_level_int8>;

namespace two_level_test {

namespace {

constexpr kvtl::shape model{1, 4, 2, 64};
constexpr std::size_t prompt = 1500, decoded = 80, attended = 128;

/// Attention of a sequence with clusters of 8 tokens, and how far it is from dense attention: the mean error of
/// decoded tokens.
struct run {
    std::vector<float> outputs;
    double error = 0;
};
template <class Preset, class Set> run decode(const drift& data, const Set& set) {
    using cache_type = cache_of<Preset>;
    typename cache_type::config c;
    c.shape = model;
    c.max_tokens = prompt + decoded;
    c.attend_tokens = attended;
    c.memory_bytes = std::size_t{16} << 20;
    c.clusterer.tokens_per_cluster = 8;
    set(c);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(prompt);
    const std::size_t before = one.outputs().size();
    one.decode(decoded);
    run r{{one.outputs().begin() + static_cast<std::ptrdiff_t>(before), one.outputs().end()}, 0};
    dense_reference<kvtl::f16> dense(data);
    for (std::size_t t = 0; t < decoded; ++t) {
        const auto& exact = dense.attention(0, prompt + t);
        for (std::size_t i = 0; i < exact.size(); ++i)
            r.error += std::abs(static_cast<double>(r.outputs[t * exact.size() + i]) - exact[i]) /
                       static_cast<double>(exact.size() * decoded);
    }
    return r;
}

} // namespace

TEST_CASE("dynakv_two_level with the budget for everything is dense attention over f16 entries") {
    equals_dense<cache_of<kvtl::presets::dynakv_two_level>>();
}

TEST_CASE(
    "dynakv_two_level_int8 with the budget for everything is dense attention within the codec's error") {
    run_scenario<cache_of<kvtl::presets::dynakv_two_level_int8>>({.prompt = 600, .decode = 100}, {}, 2e-2);
}

TEST_CASE("a budget for everything sees every block, however few are to be probed") {
    using cache_type = cache_of<kvtl::presets::dynakv_two_level>;
    typename cache_type::config c;
    c.index.least_units = 0;
    c.index.units_per_block = 4;
    c.index.probe_percent = 1;
    c.index.probe_entries = 1;
    c.index.near_blocks = 1;
    run_scenario<cache_type>({.prompt = 700, .decode = 150, .turn = 60, .turn_decode = 40}, c);
    run_scenario<cache_type>({.prompt = 700, .decode = 60, .smallest = true}, c);
}

TEST_CASE("two levels that probe every block are one level, bit for bit") {
    const drift data(model, prompt + decoded, 7);
    const run flat = decode<kvtl::presets::dynakv>(data, [](auto&) {});
    const run all = decode<kvtl::presets::dynakv_two_level>(data, [](auto& c) {
        c.index.least_units = 0;
        c.index.probe_percent = 100;
        c.index.near_blocks = 1024;
    });
    CHECK(same_bits(flat.outputs, all.outputs));
}

TEST_CASE(
    "a fifth of the blocks gives nearly what all of them give, and the best ones more than others would") {
    const drift data(model, prompt + decoded, 7);
    const run flat = decode<kvtl::presets::dynakv>(data, [](auto&) {});
    const auto probing = [&](std::uint32_t percent) {
        return decode<kvtl::presets::dynakv_two_level>(data, [percent](auto& c) {
            c.index.least_units = 0;
            c.index.units_per_block = 4;
            c.index.probe_percent = percent;
            c.index.probe_entries = 1;
            c.index.near_blocks = 2;
        });
    };
    const run some = probing(20), few = probing(1);
    CHECK_FALSE(same_bits(flat.outputs, some.outputs));
    CHECK(some.error < 1.2 * flat.error);
    CHECK(few.error > some.error);
}

TEST_CASE("dynakv_two_level refuses settings of its index by name") {
    using cache_type = cache_of<kvtl::presets::dynakv_two_level>;
    typename cache_type::config c;
    c.shape = model;
    c.max_tokens = 100;
    c.attend_tokens = 50;
    c.memory_bytes = std::size_t{16} << 20;
    c.index.units_per_block = 6;
    const auto opened = cache_type::open(c);
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().message == "index.units_per_block is 6; valid: multiples of 4 from 4 to 256");
}

} // namespace two_level_test
