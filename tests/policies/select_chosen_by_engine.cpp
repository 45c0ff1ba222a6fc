// chosen_by_engine: the units that the engine names, in its order, within the budget.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_chosen_by_engine.hpp>

#include "support/units_above_bar.hpp"

#include <vector>

namespace select_chosen_by_engine_test {

using namespace kvtl;
using namespace kvtl_test::selector_suite::bar;

namespace {

std::vector<std::uint32_t> choose(const units& x, std::uint32_t budget,
                                  const std::vector<std::uint32_t>& named) {
    std::vector<chosen_unit> out(x.unit.size());
    choice_input in({}, x.lane(), budget);
    in.named = named;
    const std::uint32_t n = chosen_by_engine::state({}, model()).choose(in, out);
    std::vector<std::uint32_t> chosen;
    for (std::uint32_t i = 0; i < n; ++i) {
        CHECK(out[i].mask == ~std::uint64_t{0});
        chosen.push_back(out[i].unit);
    }
    return chosen;
}

} // namespace

TEST_CASE("chosen_by_engine: what is named, as far as the budget goes") {
    static_assert(selector_for<chosen_by_engine>);
    static_assert(engine_names_units<chosen_by_engine>);
    const units x = random_units_of(10, 1, 4);
    using list = std::vector<std::uint32_t>;
    CHECK(choose(x, 100, {7, 2, none, 9}) == list{7, 2, 9});
    CHECK(choose(x, 11, {7, 2, 9}) == list{7, 2}); // 4 entries each
    CHECK(choose(x, 3, {7, 2, 9}).empty());
    CHECK(choose(x, 100, {10, 11, 3}) == list{3}); // still in the window
    CHECK(choose(x, 100, {}).empty());
}

} // namespace select_chosen_by_engine_test
