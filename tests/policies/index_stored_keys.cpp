// stored_keys says that it keeps nothing and leaves the scores to the codec. What is chosen with it:
// presets/token_topk.cpp, manager/homes.cpp.
// SPDX-License-Identifier: MIT
#include <kvtl/geometry.hpp>
#include <kvtl/policies/index_stored_keys.hpp>

#include <doctest/doctest.h>

namespace index_stored_keys_test {

using namespace kvtl;

TEST_CASE("stored_keys keeps nothing and scores entries") {
    static_assert(index_for<stored_keys>);
    static_assert(scores_stored_keys<stored_keys> && !summarises<stored_keys>);
    static_assert(scores_entries<stored_keys> && !stored_keys::needs_means);
    static_assert(scores_linearly<stored_keys>);
    CHECK(contains(needs_of<stored_keys>(), engine_input::k));
}

} // namespace index_stored_keys_test
