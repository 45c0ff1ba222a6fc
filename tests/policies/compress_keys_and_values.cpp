// keys_and_values: the compressor's contract, and the records of the two codecs.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_keys_and_values.hpp>
#include <kvtl/policies/compress_raw.hpp>

#include "contracts/compressor.hpp"

namespace compress_keys_and_values_test {

using namespace kvtl;

// What a part declares, the whole declares.
struct layer_codes : int8_row<> {
    static constexpr bool layer_wide_only = true;
    static constexpr engine_input needs = engine_input::x;
};
static_assert(layer_wide_only<keys_and_values<raw<f16>, layer_codes>> && !layer_wide_only<k8v4<>>);
static_assert(needs_of<keys_and_values<layer_codes, raw<f16>>>() == engine_input::x);
static_assert(needs_of<k8v4<>>() == engine_input::nothing);
static_assert(!keys_and_values<raw<f16>, int4_group<>>::rows_are_records);
static_assert(k8v4<>::name == "keys_and_values(int8_row,int4_group)");
static_assert(k8v4<>::name != keys_and_values<int4_group<>, int8_row<>>::name);
template <class Codec>
constexpr bool scores_runs = requires(const typename Codec::state& s, const float* q, float* out) {
    s.score_run(q, 64, 1, records_view{}, 0U, out, 1);
};
static_assert(scores_runs<keys_and_values<raw<f16>, int4_group<>>> && !scores_runs<k8v4<>>);

TEST_CASE("plain keys and coded values keep to the compressor's contract") {
    kvtl_test::compressor_contract<keys_and_values<raw<f16>, int4_group<>>>();
}

TEST_CASE_TEMPLATE("k8v4 keeps to the compressor's contract", E, float, f16, bf16) {
    kvtl_test::compressor_contract<k8v4<E>>();
}

TEST_CASE("the key's record comes from the first codec, the value's from the second") {
    const record_shape shape{2, 64};
    const k8v4<float>::state both({}, shape);
    const int8_row<float>::state keys({}, shape);
    const int4_group<float>::state values({}, shape);
    CHECK(both.bytes().key == 2 * 68);
    CHECK(both.bytes().value == 2 * 36);
    const auto row = oracle::normal_values<float>(shape.width(), 1);
    std::vector<std::byte> a(2 * 68), b(2 * 68);
    CHECK(both.encode_key(row.data(), 7, a.data()) == keys.encode_key(row.data(), 7, b.data()));
    CHECK(a == b);
    a.resize(2 * 36), b.resize(2 * 36);
    CHECK(both.encode_value(row.data(), a.data()) == values.encode_value(row.data(), b.data()));
    CHECK(a == b);
}

TEST_CASE("a setting that one of the codecs refuses is refused") {
    using codec = k8v4<f16>;
    CHECK(codec::state::check({}, {1, 64}));
    const status s = codec::state::check({{}, {48, false}}, {1, 64});
    REQUIRE(!s);
    CHECK(std::string_view(s.what()) == "compressor.group_numbers is 48; valid: 32 or 64");
}

} // namespace compress_keys_and_values_test
