// config.precision: what open() refuses and names, what products() returns, and outputs of both precisions.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_rotated.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/int8.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/scratch_folder.hpp"

namespace manager_precision_test {

using namespace kvtl_test;

namespace {

struct full_bf16 : kvtl::presets::full {
    using compressor = kvtl::raw<kvtl::bf16>;
};
struct by_mass_bf16 : kvtl::presets::h2o {
    using compressor = kvtl::raw<kvtl::bf16>;
};
struct full_rotated_bytes : kvtl::presets::full_int8 {
    using compressor = kvtl::rotated<kvtl::int8_row<float>>;
};
struct full_bytes_bf16 : kvtl::presets::full_int8 {
    using compressor = kvtl::int8_row<kvtl::bf16>;
};
template <class Preset> using cache_of = kvtl::kv_manager<without_file<Preset>>;

constexpr kvtl::shape model{2, 8, 2, 64};
constexpr std::size_t tokens = 200;

template <class Cache> typename Cache::config config_of(kvtl::precision precision) {
    typename Cache::config c;
    c.shape = model;
    c.precision = precision;
    c.max_tokens = tokens;
    c.attend_tokens = tokens;
    c.memory_bytes = 32 << 20;
    return c;
}

template <class Preset> std::vector<float> outputs(kvtl::precision precision, double tolerance) {
    using cache = cache_of<Preset>;
    static const drift data(model, tokens, 7);
    const auto reference =
        std::make_shared<dense_reference<typename cache::element_type>>(data, kvtl::attention_rule{});
    auto opened = open_cache<cache>(config_of<cache>(precision));
    reader<cache> one(opened, data, 1, reference);
    one.prefill(150, 64);
    one.decode(40);
    CHECK(one.error() < tolerance);
    return one.outputs();
}

} // namespace

TEST_CASE("relaxed products are used where the rows and the processor have them, and refused elsewhere") {
    using kvtl::precision;
    const auto exact = outputs<full_bf16>(precision::exact, 1e-2);
    const bool has = kvtl::simd::has_relaxed_products<kvtl::simd::default_arch, kvtl::bf16>;
    CHECK((outputs<full_bf16>(precision::relaxed_if_available, 2e-2) == exact) != has);

    auto opened =
        open_cache<cache_of<full_bf16>>(config_of<cache_of<full_bf16>>(precision::relaxed_if_available));
    CHECK((opened.products() == "relaxed") == has);
    if (!has) CHECK(opened.products().find("vdpbf16ps") != std::string_view::npos);
    const auto strict = cache_of<full_bf16>::open(config_of<cache_of<full_bf16>>(precision::relaxed));
    CHECK(strict.ok() == has);
    if (!has)
        CHECK(strict.error().message.find(kvtl::simd::no_relaxed_products<kvtl::bf16>) != std::string::npos);

    const auto refused = [](const auto& result, const char* why) {
        REQUIRE_FALSE(result.ok());
        CHECK_MESSAGE(result.error().message.find(why) != std::string::npos, result.error().message);
    };
    using plain = cache_of<kvtl::presets::full>; // f16
    refused(plain::open(config_of<plain>(precision::relaxed)),
            "neither bf16 rows nor int8_row codes; valid: exact");
    CHECK(open_cache<plain>(config_of<plain>(precision::relaxed_if_available)).products() ==
          "exact: neither bf16 rows nor int8_row codes");
    CHECK(open_cache<plain>(config_of<plain>(precision::exact)).products() == "exact");
    auto odd = config_of<cache_of<full_bf16>>(precision::relaxed);
    odd.shape.head_dim = 80;
    refused(cache_of<full_bf16>::open(odd),
            "head_dim 80, and products are exact: head_dim has no relaxed products");
}

TEST_CASE("products are called relaxed where some are") {
    const auto products = []<class Preset>(Preset, auto change) {
        auto c = config_of<cache_of<Preset>>(kvtl::precision::relaxed_if_available);
        change(c);
        return std::string(open_cache<cache_of<Preset>>(c).products());
    };
    const auto as_it_is = [](auto&) {};
    const bool bytes = kvtl::simd::has_relaxed_products<kvtl::simd::default_arch, std::int8_t>,
               rows = kvtl::simd::has_relaxed_products<kvtl::simd::default_arch, kvtl::bf16>;
    CHECK(products(by_mass_bf16{}, as_it_is) == "exact: the preset evicts by attention mass");
    CHECK((products(by_mass_bf16{}, [](auto& c) { c.attention.windows = {16, 0}; }) == "relaxed") == rows);
    CHECK((products(full_rotated_bytes{}, as_it_is) == "relaxed") == bytes);
    CHECK((products(full_bytes_bf16{}, as_it_is) == "relaxed") == (bytes || rows));
}

TEST_CASE("signed bytes: relaxed products stay close to exact ones") {
    const auto exact = outputs<kvtl::presets::full_int8>(kvtl::precision::exact, 4e-2),
               relaxed = outputs<kvtl::presets::full_int8>(kvtl::precision::relaxed_if_available, 6e-2);
    CHECK((exact == relaxed) != kvtl::simd::has_relaxed_products<kvtl::simd::default_arch, std::int8_t>);
}

TEST_CASE("a sequence that goes on with other products is not exact") {
    using cache = cache_of<kvtl::presets::full_int8>;
    const drift data(model, tokens, 7);
    const scratch_folder folder;
    const std::string file = folder.file("seq");
    auto saves = open_cache<cache>(config_of<cache>(kvtl::precision::exact));
    reader<cache> one(saves, data, 1);
    one.prefill(150, 64);
    REQUIRE(saves.save(one.id(), file).ok());
    for (const auto precision : {kvtl::precision::exact, kvtl::precision::relaxed_if_available}) {
        auto loads = open_cache<cache>(config_of<cache>(precision));
        const auto loaded = loads.load(file);
        REQUIRE(loaded.ok());
        CHECK(loaded->exact == (loads.products() == "exact" || loads.products().starts_with("exact:")));
    }
}

} // namespace manager_precision_test
