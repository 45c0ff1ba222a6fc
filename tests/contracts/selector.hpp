// What every selector promises, run through the chooser that the manager uses, for both forms of units:
// records of any size, and groups of one size without records. Queries and means are small whole numbers, so
// that scores are exact in float and in double, and ties abound.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/chooser.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/policies/cluster_single_tokens.hpp>
#include <kvtl/policies/index_centroid.hpp>
#include <kvtl/slots/selector.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

namespace selector_suite {

/// What the chooser needs to know of a preset.
template <class Selector, class Index = centroid> struct types {
    using lane = lane_view<float, single_tokens::lane>;
    using selector = Selector;
    using selector_state = typename Selector::state;
    using index = Index;
    using index_state = typename Index::state;
};

/// Units, queries, and one choice among them.
template <class Selector> class instance {
  public:
    /// `fixed_entries`: the size of all units, which then have no records; 0: records of 0 to 19 entries.
    instance(const model_extents& m, std::uint32_t units, std::uint32_t fixed_entries, std::uint64_t seed)
        : model_(m), fixed_(fixed_entries), unit_(units) {
        oracle::generator random(seed);
        for (std::size_t i = 0; i < std::size_t{units} * m.width(); ++i)
            mean_.push_back(static_cast<float>(random.below(7)) - 3.0F);
        for (std::size_t i = 0; i < std::size_t{m.lane_queries()} * m.dim; ++i)
            query_.push_back(static_cast<float>(random.below(7)) - 3.0F);
        for (unit_record& u : unit_)
            u.entries = fixed_ != 0
                            ? fixed_
                            : static_cast<std::uint32_t>(random.below(20)); // 0: none is in its pages yet
    }

    /// The choice as it is, masks and cuts included. `out` has the room that a cache gives it, for the units of its table
    /// or for the budget of those that choose, and lies in front of others that nobody may touch.
    [[nodiscard]] std::vector<chosen_unit> choice(std::uint32_t budget) {
        const auto units = static_cast<std::uint32_t>(unit_.size());
        const std::uint32_t capacity = std::max(1U, units);
        const std::uint64_t may_be_chosen =
            std::uint64_t{chooser<types<Selector>>::choosers(model_)} * budget;
        const std::uint32_t room = Selector::takes_everything || may_be_chosen > capacity
                                       ? capacity
                                       : std::max(1U, static_cast<std::uint32_t>(may_be_chosen));
        std::vector<std::byte> memory(1 << 18);
        carver c(memory);
        chooser<types<Selector>> choose(model_, index_, selector_,
                                        chooser<types<Selector>>::scratch::take(c, model_, capacity, 32, 0));
        REQUIRE(c.used() <= memory.size());
        std::vector<chosen_unit> out(room + capacity, chosen_unit{.unit = 12345, .mask = 0});
        const std::uint32_t n = choose.choose(query_.data(), view(), budget, std::span(out).first(room));
        REQUIRE(n <= std::min(units, room));
        CHECK(std::all_of(out.begin() + room, out.end(),
                          [](const chosen_unit& past) { return past.unit == 12345 && past.mask == 0; }));
        out.resize(n);
        return out;
    }
    /// The units of one that is for all queries, by their numbers.
    [[nodiscard]] std::vector<std::uint32_t> choose(std::uint32_t budget) {
        std::vector<std::uint32_t> chosen;
        for (const chosen_unit& c : choice(budget)) {
            CHECK(c.mask == ~std::uint64_t{0});
            CHECK(c.cut == 0);
            chosen.push_back(c.unit);
        }
        std::sort(chosen.begin(), chosen.end());
        return chosen;
    }

    [[nodiscard]] units_view view() const {
        return {.unit = fixed_ != 0 ? nullptr : unit_.data(),
                .count = static_cast<std::uint32_t>(unit_.size()),
                .mean =
                    unit_means(rows_view<float>{mean_.data(), unit_.size(), model_.width(), model_.width()}),
                .dim = model_.width(),
                .max_entries = fixed_ != 0 ? fixed_ : 32,
                .tokens = 1000};
    }
    [[nodiscard]] const model_extents& model() const { return model_; }
    [[nodiscard]] const std::vector<unit_record>& unit() const { return unit_; }
    /// Inner product of a lane's query with the part of a unit's mean that belongs to its KV head.
    [[nodiscard]] double score(std::uint32_t head, std::uint32_t g, std::uint32_t u) const {
        return oracle::dot(&query_[(std::size_t{head} * model_.group + g) * model_.dim],
                           &mean_[std::size_t{u} * model_.width() + std::size_t{head} * model_.dim],
                           model_.dim);
    }

  private:
    model_extents model_;
    std::uint32_t fixed_ = 0;
    std::vector<unit_record> unit_; ///< what a naive choice may know of them
    std::vector<float> mean_, query_;
    typename types<Selector>::index_state index_{};
    typename types<Selector>::selector_state selector_{};
};

/// Calls body(instance, budget) over shapes, table sizes and budgets. Groups are powers of two: means stay
/// exact.
template <class Selector, class Body> void each_case(const Body& body) {
    std::uint64_t seed = 0;
    for (const model_extents& m : {model_extents{1, 2, 1, 8, 1}, model_extents{1, 2, 4, 16, 1},
                                   model_extents{1, 2, 8, 5, 1}, model_extents{1, 3, 2, 8, 3}})
        for (const std::uint32_t fixed_entries : {0U, 1U, 8U})
            for (const std::uint32_t units : {0U, 1U, 5U, 40U, 300U}) {
                instance<Selector> x(m, units, fixed_entries, ++seed);
                std::uint32_t all = 0;
                for (const unit_record& u : x.unit()) all += u.entries;
                for (const std::uint32_t budget : {0U, 1U, 7U, 50U, 128U, 400U, all, all + 100})
                    body(x, budget);
            }
}

template <class Selector> void keeps_its_promises() {
    each_case<Selector>([](instance<Selector>& x, std::uint32_t budget) {
        const auto chosen = x.choose(budget);
        std::uint32_t entries = 0, all = 0;
        for (const unit_record& u : x.unit()) all += u.entries;
        std::set<std::uint32_t> distinct;
        for (const std::uint32_t u : chosen) {
            REQUIRE(u < x.unit().size());
            distinct.insert(u);
            entries += x.unit()[u].entries;
        }
        CHECK(distinct.size() == chosen.size());
        CHECK(x.choose(budget) == chosen);
        if constexpr (Selector::takes_everything)
            CHECK(distinct.size() == x.unit().size());
        else
            CHECK(entries <= budget);
        if (budget >= all) CHECK(entries == all); // everything fits: everything is attended
    });
}

} // namespace selector_suite

/// `naive(instance, budget)` gives the exact choice, by the units' numbers.
template <class Selector, class Naive> void selector_contract(const Naive& naive) {
    static_assert(selector_for<Selector>);
    SUBCASE("never above the budget, no unit twice") {
        selector_suite::keeps_its_promises<Selector>();
    }
    SUBCASE("equals the naive choice") {
        selector_suite::each_case<Selector>([&](selector_suite::instance<Selector>& x, std::uint32_t budget) {
            CHECK(x.choose(budget) == naive(x, budget));
        });
    }
}

} // namespace kvtl_test
