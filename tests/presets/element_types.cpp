// raw: the element of a cache's rows is the preset's, rounded once, and `open` reports it by its name.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_raw.hpp>
#include <kvtl/presets/full.hpp>

#include "support/cache_fixture.hpp"

namespace element_types_test {

using namespace kvtl_test;

namespace {
template <class E> struct full_in : kvtl::presets::full { using compressor = kvtl::raw<E>; };
} // namespace

TEST_CASE("raw bears the name of its element, f16 in `full`") {
    CHECK(kvtl::raw<float>::name == kvtl::element_name<float>());
    CHECK(kvtl::raw<kvtl::f16>::name != kvtl::raw<kvtl::bf16>::name);
    CHECK(std::is_same_v<kvtl::presets::full::compressor, kvtl::raw<kvtl::f16>>);
}

TEST_CASE_TEMPLATE("attention is dense over entries rounded to the element, and to no other", E, float,
                   kvtl::f16, kvtl::bf16) {
    using cache_type = kvtl::kv_manager<full_in<E>>;
    static_assert(std::is_same_v<typename cache_type::element_type, E>);
    const kvtl::shape small{2, 4, 2, 64};
    const drift data(small, 120, 8);
    auto cache = open_cache<cache_type>({.shape = small, .max_tokens = 120, .memory_bytes = 4 << 20});
    const auto seq = *cache.begin();
    std::vector<float> out(119 * data.query_floats());
    for (std::size_t l = 0; l < 2; ++l) require_ok(cache.prefill(seq, l, data.input(l, 0, 119), out));
    out.resize(data.query_floats());
    for (std::size_t l = 0; l < 2; ++l) {
        require_ok(cache.attend(seq, l, data.input(l, 119), out));
        const auto error = [&](const std::vector<double>& dense) {
            oracle::largest_error e;
            for (std::size_t i = 0; i < dense.size(); ++i) e.see(static_cast<double>(out[i]) - dense[i]);
            return e.value();
        };
        const double of[] = {error(dense_attention<float>(data, l, 119)),
                             error(dense_attention<kvtl::f16>(data, l, 119)),
                             error(dense_attention<kvtl::bf16>(data, l, 119))};
        const std::size_t own = std::is_same_v<E, float> ? 0 : std::is_same_v<E, kvtl::f16> ? 1 : 2;
        for (std::size_t i = 0; i < 3; ++i) CHECK((of[i] < exact) == (i == own));
    }
}

} // namespace element_types_test
