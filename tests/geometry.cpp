// geometry: extents are checked, errors name the field.
// SPDX-License-Identifier: MIT
#include <kvtl/geometry.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace kvtl;

namespace {

std::string why(const shape& s) {
    const auto g = geometry::from(s);
    REQUIRE_FALSE(g.ok());
    CHECK(g.error().code == errc::invalid_argument);
    return g.error().message;
}
bool begins(const std::string& text, const char* with) {
    return text.find(with) == 0;
}

} // namespace

TEST_CASE("extents and the scale of logits") {
    const auto g = geometry::from({.layers = 32, .query_heads = 32, .kv_heads = 8, .head_dim = 64});
    REQUIRE(g.ok());
    CHECK(g->extents() == shape{32, 32, 8, 64});
    CHECK(g->group() == 4);
    CHECK(g->logit_scale() == 0.125F);
    CHECK(geometry::from(g->extents(), 0.5F)->logit_scale() == 0.5F);
}

TEST_CASE("a wrong shape is refused by the name of its field") {
    CHECK(begins(why({0, 8, 2, 64}), "shape.layers is 0; valid: 1 to 65536"));
    CHECK(begins(why({1, 0, 2, 64}), "shape.query_heads is 0"));
    CHECK(begins(why({1, 8, 0, 64}), "shape.kv_heads is 0"));
    CHECK(begins(why({1, 8, 2, 0}), "shape.head_dim is 0"));
    CHECK(begins(why({1, 8, 2, 65537}), "shape.head_dim is 65537"));
    CHECK(
        begins(why({1, 9, 2, 64}), "shape.query_heads is 9, which is not a multiple of shape.kv_heads = 2"));
    CHECK(begins(why({1, 130, 2, 64}), "shape.query_heads / shape.kv_heads is 65; valid: 1 to 64"));
    CHECK(geometry::from({1, 128, 2, 64}).ok());
}
