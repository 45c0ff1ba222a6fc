// heavy_hitters: attention adds up; a layer's preference falls with how unevenly it is spread.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_heavy_hitters.hpp>

#include "contracts/retention.hpp"

namespace retain_heavy_hitters_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
struct adds_up {
    double sum;
    void feed(std::uint32_t, double mass) { sum += mass; }
    [[nodiscard]] double worth(std::uint32_t) const { return sum; }
};
const auto entry = [](std::uint32_t, double score) { return adds_up{score}; };
} // namespace

TEST_CASE("an entry is worth all the attention it was ever paid") {
    ranks_held_contract<heavy_hitters>({}, 1e-5, entry);
    ranks_held_contract<heavy_hitters_after_prompt>({}, 1e-5, entry);
    declares<heavy_hitters_of_prompt>();
}

TEST_CASE("the variants differ in when entries leave") {
    CHECK((heavy_hitters::evicts_in_prompt && heavy_hitters::evicts_in_decode));
    CHECK((!heavy_hitters_after_prompt::evicts_in_prompt && heavy_hitters_after_prompt::evicts_in_decode));
    CHECK((!heavy_hitters_of_prompt::evicts_in_prompt && !heavy_hitters_of_prompt::evicts_in_decode));
    CHECK(feedback_of<heavy_hitters_of_prompt>() == feedback::unused); // nothing to be paid for in decode
}

TEST_CASE(
    "preference: e to the minus the mean of the lanes' variances, on the way from the least to the most") {
    using state = state_of<heavy_hitters_after_prompt>;
    layer_notes notes;
    numbers variance;
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        const auto sums = oracle::normal_values(97, seed, 0.5 * static_cast<double>(seed));
        double mean = 0, square = 0;
        for (const float x : sums) mean += static_cast<double>(x) / 97;
        for (const float x : sums) square += std::pow(static_cast<double>(x) - mean, 2) / 97;
        variance.push_back(square);
        state::note(sums, notes);
        ++notes.lanes;
    }
    const auto [low, high] = std::minmax_element(variance.begin(), variance.end());
    double mean = 0;
    for (const double x : variance) mean += x / 5;
    const double expected = std::exp(-(mean - *low) / (*high - *low + 1e-6));
    CHECK(std::fabs(static_cast<double>(state::preference(notes)) - expected) < 1e-6);
    layer_notes even; // lanes without any spread
    state::note(std::vector<float>(10, 2.0F), even);
    even.lanes = 1;
    CHECK(state::preference(even) == 1.0F);
}

} // namespace retain_heavy_hitters_test
