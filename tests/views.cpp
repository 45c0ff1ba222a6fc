// rows_view: rows with padding, and slices of them.
// SPDX-License-Identifier: MIT
#include <kvtl/views.hpp>

#include <doctest/doctest.h>

#include <concepts>
#include <numeric>
#include <type_traits>
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
    for (const auto& signal :
         {in.q.floats(), in.k.floats(), in.v.floats(), in.k_pre, in.x, in.probe, in.external})
        CHECK(signal.empty());
}

TEST_CASE("an ended sequence's id differs from its successor's") {
    CHECK(sequence_id{1, 2} == sequence_id{1, 2});
    CHECK(sequence_id{1, 2} != sequence_id{1, 3});
    CHECK(sequence_id{0, 2} != sequence_id{1, 2});
}

TEST_CASE_TEMPLATE("numbers of any stored type are seen as they are, and parts of them", E, float, f16,
                   bf16) {
    std::vector<E> data;
    for (int i = 0; i < 12; ++i) data.push_back(from_float<E>(static_cast<float>(i)));
    const tensor_view all = data, none{};
    CHECK(all.size() == 12);
    CHECK(all.template holds<E>());
    CHECK(all.template holds<float>() == std::same_as<E, float>);
    CHECK(all.floats().size() == (std::same_as<E, float> ? 12 : 0));
    CHECK(none.empty());
    CHECK((none.template holds<f16>() && none.template holds<float>()));
    CHECK(none.subspan(0, 0).empty());
    const tensor_view part = all.subspan(5, 3);
    CHECK(part.size() == 3);
    CHECK(part.visit([](const auto* p) { return to_float(p[1]); }) == 6.0F);
    CHECK(all.first(2).size() == 2);
    std::vector<E> room(4);
    const tensor_span to = room, nowhere{};
    CHECK(to.size() == 4);
    CHECK(to.template holds<E>());
    CHECK((to.template as<float>() == nullptr) == !std::same_as<E, float>);
    to.subspan(1, 2).visit([](auto* p) { p[1] = from_float<std::remove_reference_t<decltype(*p)>>(7); });
    CHECK(room[2] == from_float<E>(7));
    CHECK(nowhere.empty());
    CHECK(to.first(3).size() == 3);
    static_assert(std::is_constructible_v<tensor_view, const std::vector<E>&>);
    static_assert(std::is_constructible_v<tensor_view, std::span<E>>); // looks at what another one has
    static_assert(!std::is_constructible_v<tensor_view, std::vector<E>>);
    static_assert(std::is_constructible_v<tensor_span, std::span<E>>);
    static_assert(!std::is_constructible_v<tensor_span, const std::vector<E>&>); // nobody could write there
    static_assert(!std::is_constructible_v<tensor_span, std::vector<E>>);        // nobody could read it
    const std::vector<std::uint32_t> chosen = {1, 2, 3, 4, 5, 6};
    const layer_input in{.k = all, .v = {data.data() + 6, 6}, .chosen = chosen};
    const layer_input rows = in.rows(1, 2, 3); // of three tokens the last two
    CHECK(rows.k.size() == 8);
    CHECK(rows.k.visit([](const auto* p) { return to_float(p[0]); }) == 4.0F);
    CHECK(rows.v.visit([](const auto* p) { return to_float(p[0]); }) == 8.0F);
    CHECK(rows.chosen.size() == 4);
    CHECK(rows.chosen[0] == 3);
}

TEST_CASE("rows_view: a slice knows how many rows are behind it") {
    const std::vector<float> numbers(10 * 4);
    const kvtl::rows_view<float> all{numbers.data(), 10, 3, 4};
    CHECK(all.following == 0);
    const auto middle = all.slice(2, 5);
    CHECK(middle.data == numbers.data() + 8);
    CHECK(middle.count == 5);
    CHECK(middle.following == 3);
    CHECK(middle.slice(1, 2).following == 5);
    CHECK(middle.slice(1, 4).following == 3);
    CHECK(all.slice(10, 0).following == 0);
}
