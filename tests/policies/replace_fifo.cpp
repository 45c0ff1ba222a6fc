// fifo against a queue.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/replace_fifo.hpp>

#include "support/replacement_models.hpp"

namespace replace_fifo_test {

using namespace kvtl;

TEST_CASE("fifo") {
    kvtl_test::replacement_contract<fifo>(
        {}, [](std::uint32_t, std::uint32_t) { return kvtl_test::fifo_model{}; });
}

TEST_CASE("fifo with units that come back") {
    kvtl_test::same_on_all_traces<fifo>({}, [](std::uint32_t) { return kvtl_test::fifo_model{}; });
}

TEST_CASE("a loop that is one unit too long never hits") {
    using kvtl_test::unit_sequence, kvtl_test::unit_trace;
    CHECK(kvtl_test::same_as_model<fifo>({}, kvtl_test::fifo_model{}, 40, 2000,
                                         unit_sequence(unit_trace::loop, 41, 1)) == 0);
}

} // namespace replace_fifo_test
