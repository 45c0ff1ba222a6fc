// rows_view: rows with padding, and slices of them.
// SPDX-License-Identifier: MIT
#include <kvtl/views.hpp>

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

using namespace kvtl;

TEST_CASE("a slice shows the same rows") {
    std::vector<float> memory(10 * 7);
    std::iota(memory.begin(), memory.end(), 0.0F);
    const rows_view<float> rows{memory.data(), 10, 5, 7};
    CHECK(rows.row(3)[4] == 25.0F);
    const auto part = rows.slice(4, 3);
    CHECK(part.count == 3);
    CHECK(part.dim == 5);
    CHECK(part.row(2) == rows.row(6));
    CHECK(part.slice(1, 1).row(0) == rows.row(5));
}

TEST_CASE("a prompt is whole unless the engine says otherwise, and signals are empty unless supplied") {
    const layer_input in{};
    CHECK(in.last_chunk);
    for (const auto& signal : {in.q, in.k, in.v, in.k_pre, in.x, in.probe, in.external})
        CHECK(signal.empty());
}

TEST_CASE("an ended sequence's id differs from its successor's") {
    CHECK(sequence_id{1, 2} == sequence_id{1, 2});
    CHECK(sequence_id{1, 2} != sequence_id{1, 3});
    CHECK(sequence_id{0, 2} != sequence_id{1, 2});
}
