// Agreement of single frequency pairs with the whole head, worked out by hand.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/fit/pair_agreement.hpp>

#include <doctest/doctest.h>

#include <vector>

using kvtl::pair_agreement;
using kvtl::shape;

namespace {

constexpr shape two_heads{.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 8};
constexpr std::size_t dim = 8, row = 16, tokens = 20; // the top tenth: 2 keys

/// Keys of which all is 0 but what is set: (token, head, element).
struct key_rows {
    std::vector<float> numbers = std::vector<float>(tokens * row, 0.0F);
    float& at(std::size_t t, std::size_t head, std::size_t element) {
        return numbers[t * row + head * dim + element];
    }
};
const std::vector<float> ones(dim, 1.0F);

} // namespace

TEST_CASE("a pair has the share of the head's best keys that are its own best keys, too") {
    key_rows k;
    // The head's scores are largest for keys 17 (10) and 4 (9).
    k.at(17, 1, 0) = 5, k.at(17, 1, 3) = 5; // pairs 0 and 1
    k.at(4, 1, 1) = 9;                      // pair 0
    k.at(9, 1, 2) = 4, k.at(9, 1, 3) = 4;   // pair 1: its best key is only the head's third
    k.at(12, 1, 6) = 3, k.at(13, 1, 7) = 3; // pair 3: neither of the two
    pair_agreement sums(two_heads, 1);
    sums.ask(ones.data(), 1, k.numbers);
    const auto share = sums.of(1);
    CHECK(share[0] == 1.0); // 17 and 4
    CHECK(share[1] == 0.5); // 9 and 17
    CHECK(share[2] == 0.0); // nothing but zeros: ties go to keys 0 and 1
    CHECK(share[3] == 0.0);
    CHECK(sums.ranked(1) == std::vector<std::uint32_t>{0, 1, 2, 3}); // ties to the lower number
    for (const double x : sums.of(0)) CHECK(x == 0.0);               // the other head was not asked
    sums.ask(ones.data(), 1, k.numbers);
    CHECK(sums.of(1)[1] == 1.0); // sums over the queries
}

TEST_CASE("which elements make a pair is the model's affair, and so is the query") {
    key_rows k;
    k.at(3, 0, 1) = 6, k.at(8, 0, 1) = 6; // distance 4: pair 1 is elements 1 and 5
    k.at(3, 0, 5) = 1, k.at(8, 0, 5) = 1;
    k.at(11, 0, 2) = 9, k.at(11, 0, 6) = -9; // pair 2 adds up to nothing for a query of ones
    pair_agreement far(two_heads, 4), near(two_heads, 1);
    far.ask(ones.data(), 0, k.numbers);
    near.ask(ones.data(), 0, k.numbers);
    CHECK(far.of(0)[1] == 1.0);
    CHECK(far.ranked(0)[0] == 1);
    CHECK(near.of(0)[0] == 1.0); // elements 0 and 1
    CHECK(near.ranked(0)[0] == 0);
    std::vector<float> other = ones;
    other[6] = -1; // now it is what the query looks for
    pair_agreement turned(two_heads, 4);
    turned.ask(other.data(), 0, k.numbers);
    CHECK(turned.of(0)[2] == 0.5); // key 11; its second is a tie of zeros, key 0
    CHECK(turned.of(0)[1] == 0.5); // 3 of 11 and 3
}

TEST_CASE("the share is of a tenth, rounded up, of the keys there are") {
    const std::vector<float> one_key(row, 1.0F);
    pair_agreement sums(two_heads, 1);
    sums.ask(ones.data(), 0, one_key);
    for (const double x : sums.of(0)) CHECK(x == 1.0);
}
