// Presets of int4_group, int2_group and k8v4, rotated and not: with everything attended they are dense attention within the codec's error, they
// store records of the codec's size, and a group size that no codec has is refused.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/int8.hpp>
#include <kvtl/presets/low_bits.hpp>

#include "support/cache_fixture.hpp"
#include "support/calibrated.hpp"

namespace low_bits_test {

namespace {
using namespace kvtl_test;

template <class Preset> struct in_ram : Preset { using io = kvtl::in_memory; };
template <class Preset> struct plain : Preset { using compressor = kvtl::raw<kvtl::f16>; };
template <class Preset>
using cache_of =
    kvtl::kv_manager<Preset, kvtl::engine_inputs<kvtl::engine_input::q, kvtl::engine_input::k,
                                                 kvtl::engine_input::v, kvtl::engine_input::calibration>>;

/// Errors of single numbers of outputs that are some units large. Half a step of a key of 4 bits moves a logit by some tenths.
constexpr double k8v4 = 0.5, int4 = 1.5;

struct outcome {
    double error;
    kvtl::statistics stats;
};
template <class Preset>
outcome run(std::size_t prompt, std::size_t decode, typename cache_of<Preset>::config c = {}) {
    using cache_type = cache_of<Preset>;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = prompt + decode + 8;
    c.attend_tokens = c.max_tokens;
    if constexpr (kvtl::drops_entries<Preset>) c.keep_tokens = c.max_tokens;
    c.memory_bytes = std::size_t{16} << 20;
    const drift data(c.shape, c.max_tokens, 3);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 5);
    one.prefill(prompt, 300);
    one.decode(decode);
    one.check_tokens();
    return {one.error(), cache.stats()};
}
} // namespace

TEST_CASE("presets of low bits are dense attention within the codec's error") {
    const auto check = [](double error, double most) {
        CHECK(error < most);
        CHECK(error > exact); // codes were attended, not rows
    };
    check(run<kvtl::presets::full_k8v4>(400, 60).error, k8v4);
    check(run<in_ram<kvtl::presets::dynakv_k8v4>>(400, 60).error, k8v4);
    check(run<kvtl::presets::full_int4>(400, 60).error, int4);
    check(run<kvtl::presets::snapkv_int4>(400, 60).error, int4);
    check(run<in_ram<kvtl::presets::flexgen_int4>>(400, 60).error, int4);
    check(run<kvtl::presets::full_k8v4_rotated>(400, 60).error, k8v4);
    check(run<kvtl::presets::full_int4_rotated>(400, 60).error, int4);
    check(run<in_ram<kvtl::presets::dynakv_int4_rotated>>(400, 60).error, int4);
}

TEST_CASE("fewer bits are further from dense attention") {
    const double bytes = run<kvtl::presets::full_int8>(400, 60).error;
    const double mixed = run<kvtl::presets::full_k8v4>(400, 60).error;
    const double four = run<kvtl::presets::full_int4>(400, 60).error;
    const double two = run<kvtl::presets::full_int2>(400, 60).error;
    CHECK(bytes < mixed);
    CHECK(mixed < four);
    CHECK(four < two);
    CHECK(run<kvtl::presets::full_k8v4_rotated>(400, 60).error <
          run<kvtl::presets::full_int4_rotated>(400, 60).error);
    CHECK(run<kvtl::presets::full_int4_rotated>(400, 60).error <
          run<kvtl::presets::full_int2_rotated>(400, 60).error);
}

TEST_CASE("entries are counted, written and kept as records") {
    const auto part = [](const outcome& some, const outcome& rows, std::size_t bytes) {
        CHECK(some.stats.chosen_bytes * 256 == rows.stats.chosen_bytes * bytes);
    };
    const outcome all = run<plain<kvtl::presets::full_k8v4>>(600, 100);
    part(run<kvtl::presets::full_k8v4>(600, 100), all, 68 + 36);
    part(run<kvtl::presets::full_int4>(600, 100), all, 36 + 36);
    part(run<kvtl::presets::full_int2>(600, 100), all, 20 + 20);
    part(run<kvtl::presets::full_int4_rotated>(600, 100), all, 36 + 36);
    const outcome codes = run<in_ram<kvtl::presets::dynakv_k8v4>>(600, 100),
                  rows = run<in_ram<plain<kvtl::presets::dynakv_k8v4>>>(600, 100);
    part(codes, rows, 68 + 36);
    CHECK(codes.stats.written_bytes * 10 <=
          rows.stats.written_bytes * 8); // last pages of clusters are not full
}

TEST_CASE("settings reach the codec, and a group of another size is refused when the cache is opened") {
    using cache_type = cache_of<kvtl::presets::full_int4>;
    typename cache_type::config c;
    c.compressor.group_numbers = 64;
    c.compressor.zero_point = true;
    const outcome other = run<kvtl::presets::full_int4>(400, 60, c),
                  usual = run<kvtl::presets::full_int4>(400, 60);
    CHECK(other.stats.chosen_bytes == usual.stats.chosen_bytes); // one step and one middle, or two steps
    CHECK(other.error != usual.error);
    c.shape = {1, 4, 2, 64};
    c.max_tokens = 64;
    c.memory_bytes = std::size_t{16} << 20;
    c.compressor.group_numbers = 48;
    const auto opened = cache_type::open(c);
    REQUIRE(!opened);
    CHECK(opened.error().message == "compressor.group_numbers is 48; valid: 32 or 64");
}

TEST_CASE("a head size without blocks to rotate is refused when the cache is opened") {
    using cache_type = cache_of<kvtl::presets::full_int4_rotated>;
    typename cache_type::config c;
    c.shape = {1, 4, 2, 60};
    c.max_tokens = 64;
    c.memory_bytes = std::size_t{16} << 20;
    const auto opened = cache_type::open(c);
    REQUIRE(!opened);
    CHECK(opened.error().message ==
          "shape.head_dim is 60; valid for rotated entries: a multiple of 8, at most 512");
}

} // namespace low_bits_test
