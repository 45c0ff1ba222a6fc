// geometry: static extents win, run-time ones are checked, errors name the field.
// SPDX-License-Identifier: MIT
#include <kvtl/geometry.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace kvtl;

namespace {

template <class G> std::string why(shape s) {
    const auto g = G::from(s);
    REQUIRE_FALSE(g.ok());
    CHECK(g.error().code == errc::invalid_argument);
    return g.error().message;
}
bool begins(const std::string& text, const char* with) {
    return text.find(with) == 0;
}

} // namespace

TEST_CASE("extents come from the type where it has them") {
    using fixed = geometry<shape{.kv_heads = 8, .head_dim = 128}>;
    const auto g = fixed::from({.layers = 32, .query_heads = 32});
    REQUIRE(g.ok());
    CHECK(g->extents() == shape{32, 32, 8, 128});
    CHECK(g->group() == 4);
    CHECK(fixed::from({.layers = 32, .query_heads = 32, .kv_heads = 8, .head_dim = 128}).ok());
    static_assert(fixed{}.head_dim() == 128); // known without any object's state
}

TEST_CASE("a wrong shape is refused by the name of its field") {
    using any = geometry<shape{}>;
    CHECK(begins(why<any>({0, 8, 2, 64}), "shape.layers is 0; valid: 1 to 65536"));
    CHECK(begins(why<any>({1, 0, 2, 64}), "shape.query_heads is 0"));
    CHECK(begins(why<any>({1, 8, 0, 64}), "shape.kv_heads is 0"));
    CHECK(begins(why<any>({1, 8, 2, 0}), "shape.head_dim is 0"));
    CHECK(begins(why<any>({1, 8, 2, 65537}), "shape.head_dim is 65537"));
    CHECK(begins(why<any>({1, 9, 2, 64}),
                 "shape.query_heads is 9, which is not a multiple of shape.kv_heads = 2"));
    CHECK(begins(why<any>({1, 130, 2, 64}), "shape.query_heads / shape.kv_heads is 65; valid: 1 to 64"));
    CHECK(any::from({1, 128, 2, 64}).ok());
    CHECK(begins(why<geometry<shape{.head_dim = 64}>>({1, 8, 2, 128}),
                 "shape.head_dim is 128, but this geometry was compiled for 64"));
}
