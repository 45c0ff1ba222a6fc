// What decides what is stored, by name: numbers and tables of a config.
// SPDX-License-Identifier: MIT
#include <kvtl/core/save/identity.hpp>
#include <kvtl/policies/budget_head_adaptive.hpp>
#include <kvtl/policies/budget_table.hpp>
#include <kvtl/policies/compress_prompt_svd.hpp>
#include <kvtl/policies/position_rolling.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_gate.hpp>
#include <kvtl/policies/retain_streaming_heads.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace kvtl_test::identity_test { namespace {

/// The names of the fields that differ between two configs of a slot.
template <class Config>
std::vector<std::string> differing(const std::type_identity_t<Config>& a, const Config& b) {
    kvtl::identity_list of_a, of_b;
    of_a.slot("slot", "policy", a), of_b.slot("slot", "policy", b);
    const auto all = of_a.take(), others = of_b.take();
    const auto same = [](const kvtl::identity_field& x, const kvtl::identity_field& y) {
        return x.name == y.name && x.value == y.value;
    };
    std::vector<std::string> names;
    for (const kvtl::identity_field& f : others)
        if (std::none_of(all.begin(), all.end(), [&](const auto& x) { return same(x, f); }))
            names.push_back(f.name);
    return names;
}
using names = std::vector<std::string>;

TEST_CASE("tables of a config are part of the identity") {
    kvtl::table::config layers;
    layers.importance = {1.0F, 2.0F};
    CHECK(differing(kvtl::table::config{}, layers) == names{"slot.importance"});

    kvtl::head_adaptive<kvtl::table>::config heads; // a policy shows the tables of the one inside it
    heads.layers = layers;
    CHECK(differing({}, heads) == names{"slot.importance"});

    kvtl::streaming_heads::config votes;
    votes.votes = {1, 0, 1};
    CHECK(differing({}, votes) == names{"slot.votes"});

    kvtl::voting_heads::config voters;
    voters.votes = votes.votes;
    CHECK(differing({}, voters) == names{"slot.votes"});

    kvtl::rolling::config rolling;
    rolling.frequencies = {1.0, 0.1};
    CHECK(differing({}, rolling) == names{"slot.frequencies"});

    kvtl::prompt_svd<>::config svd;
    svd.frequencies = {1.0}, svd.dims = 2, svd.neighbours = true;
    CHECK(differing({}, svd) == names{"slot.frequencies", "slot.dims", "slot.neighbours"});

    const std::array<std::byte, 3> blob{};
    kvtl::decaying_gate::config gate;
    gate.weights = blob;
    CHECK(differing({}, gate) == names{"slot.weights"});
}

TEST_CASE("equal configs have one identity, and another number or table differs") {
    kvtl::table::config a, b;
    a.importance = b.importance = {1.0F, 2.0F};
    CHECK(differing(a, b).empty());
    b.cap = 2.0F;
    CHECK(differing(a, b) == names{"slot.cap"});
    b = a, b.importance[1] = 3.0F;
    CHECK(differing(a, b) == names{"slot.importance"});
}

} // namespace
} // namespace kvtl_test::identity_test
