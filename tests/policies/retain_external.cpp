// external_scores, external_mask: the number that the engine gives is the score.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_external.hpp>

#include "contracts/retention.hpp"

namespace retain_external_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
double given(const arriving& a, std::uint32_t head) {
    return static_cast<double>(a.external[head]);
}
struct worth_is_score {
    double score;
    [[nodiscard]] double worth(std::uint32_t) const { return score; }
};
} // namespace

TEST_CASE_TEMPLATE("the engine's number is score and worth", Score, external_scores, external_mask) {
    static_assert(contains(Score::needs, engine_input::external));
    ranks_arrivals_contract<Score>({}, 0.0, given);
    ranks_held_contract<Score>({}, 0.0, [](std::uint32_t, double score) { return worth_is_score{score}; });
}

TEST_CASE("a mask wants what is above 0, and says when a chunk holds nothing of that kind") {
    using state = state_of<external_mask>;
    CHECK(external_mask::drops_unwanted);
    CHECK_FALSE(external_scores::drops_unwanted);
    CHECK(state::wanted(1e-30F));
    CHECK_FALSE(state::wanted(0.0F));
    CHECK_FALSE(state::wanted(-1.0F));
    layer_input in;
    const std::vector<float> none_wanted = {0, -1, -2}, one_wanted = {0, 3, -2};
    in.external = none_wanted;
    CHECK_FALSE(state::wants_any(in));
    in.external = one_wanted;
    CHECK(state::wants_any(in));
}

TEST_CASE("numbers that are not finite are refused") {
    layer_input in;
    std::vector<float> x(70, 1.0F);
    in.external = x;
    CHECK(state_of<external_scores>::check_arrival(in, 35).ok());
    for (const float bad : {NAN, INFINITY, -INFINITY})
        for (const std::size_t at : {0U, 33U, 69U}) {
            x.assign(70, 1.0F);
            x[at] = bad;
            const status s = state_of<external_scores>::check_arrival(in, 35);
            CHECK(s.code() == errc::invalid_argument);
            CHECK(std::string(s.what()).find("external holds a number that is not finite") !=
                  std::string::npos);
        }
}

} // namespace retain_external_test
