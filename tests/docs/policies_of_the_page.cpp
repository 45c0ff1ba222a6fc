// Every policy that docs/write_a_policy.md shows, through the contract suite that the page names for its slot.
// WRITE_A_POLICY_PAGE is the page's program (extract.sh).
// SPDX-License-Identifier: MIT

// The page declares names for all to see, which suites use for their own.
#pragma GCC diagnostic ignored "-Wshadow"

// Before the page: its `using geometry` would be a second meaning of the name in these.
#include "contracts/budget.hpp"
#include "contracts/clusterer.hpp"
#include "contracts/compressor.hpp"
#include "contracts/estimator.hpp"
#include "contracts/index.hpp"
#include "contracts/io.hpp"
#include "contracts/layout.hpp"
#include "contracts/position.hpp"
#include "contracts/replacement.hpp"
#include "contracts/retention.hpp"
#include "contracts/schedule.hpp"
#include "contracts/selector.hpp"

#define main main_of_the_page
#include WRITE_A_POLICY_PAGE
#undef main

namespace docs_policies_of_the_page_test {

using oracle::dot;

TEST_CASE("runs, a clusterer") {
    kvtl_test::clusterer_contract<runs>({});
    kvtl_test::clusterer_contract<runs>({.entries = 3});
}

TEST_CASE("latest_key, an index") {
    const auto make = [](const kvtl::summary_shape&) { return latest_key::state(); };
    const auto bytes = [](const kvtl::summary_shape& s) { return s.width() * sizeof(float); };
    kvtl_test::summarising_index_contract<latest_key>(
        make, 1e-6, bytes,
        [](auto& lane, const float* q, std::uint32_t head, std::uint32_t u, std::uint32_t) {
            return dot(q, lane.key(u, lane.entries(u) - 1, head), lane.shape().dim);
        });
}

TEST_CASE("above_mean, a selector") {
    kvtl_test::selector_contract<above_mean>([](auto& x, std::uint32_t budget) {
        const auto units = static_cast<std::uint32_t>(x.unit().size());
        std::vector<float> score(units);
        float mean = 0;
        for (std::uint32_t u = 0; u < units; ++u) {
            for (std::uint32_t h = 0; h < x.model().lane_heads; ++h)
                for (std::uint32_t g = 0; g < x.model().group; ++g)
                    score[u] += static_cast<float>(x.score(h, g, u));
            mean += score[u] / static_cast<float>(units);
        }
        std::vector<std::uint32_t> chosen;
        for (const bool above : {true, false})
            for (std::uint32_t u = 0; u < units; ++u) {
                const std::uint32_t entries = x.unit()[u].entries;
                if ((score[u] > mean) != above || entries == 0 || entries > budget) continue;
                budget -= entries;
                chosen.push_back(u);
            }
        std::sort(chosen.begin(), chosen.end());
        return chosen;
    });
}

TEST_CASE("latest_entry, an estimator") {
    kvtl_test::estimator_contract<latest_entry>([](const auto& x, std::uint32_t head, std::uint32_t g,
                                                   std::uint32_t u) {
        const std::size_t at = std::size_t{head} * x.shape.dim;
        const auto first = x.value[u].back().begin() + static_cast<std::ptrdiff_t>(at);
        return std::optional(
            kvtl_test::estimator_suite::stand_in{x.scale() * x.dot(x.query(head, g), &x.key[u].back()[at]),
                                                 std::vector<double>(first, first + x.shape.dim)});
    });
}

TEST_CASE("half_rows, a compressor") {
    kvtl_test::compressor_contract<half_rows>();
}
TEST_CASE("apart, a layout") {
    kvtl_test::layout_contract<apart>();
}

/// The rule of the page on a list that is searched from end to end: the latest first.
struct newest_first_model {
    std::vector<std::uint32_t> order;
    void tick() {}
    void admit(std::uint32_t h, kvtl::resident_facts) { order.push_back(h); }
    void remove(std::uint32_t h) { order.erase(std::find(order.begin(), order.end(), h)); }
    void touch(std::uint32_t h) { remove(h), order.push_back(h); }
    void refresh(std::uint32_t, kvtl::resident_facts) {}
    template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) {
        const auto newest = std::find_if_not(order.rbegin(), order.rend(), pinned);
        return newest == order.rend() ? kvtl::none : *newest;
    }
};
TEST_CASE("newest_first, a replacement") {
    kvtl_test::replacement_contract<newest_first>(
        {}, [](std::uint32_t, std::uint32_t) { return newest_first_model{}; });
}

TEST_CASE("asked_early, a schedule") {
    kvtl_test::schedule_contract<asked_early>(true);
}
TEST_CASE("plain_file, a device") {
    kvtl_test::io_contract<plain_file>([] { return plain_file::config{}; });
}

TEST_CASE("long_values, a score") {
    using kvtl_test::arrivals;
    kvtl_test::ranks_arrivals_contract<long_values>({}, 1e-5,
                                                    [](const kvtl::arriving& a, std::uint32_t head) {
                                                        const float* v = &a.v[head * arrivals::dim];
                                                        return dot(v, v, arrivals::dim);
                                                    });
}
TEST_CASE("see_saw, a budget") {
    kvtl_test::budget_contract<see_saw>();
}
TEST_CASE("unturned, a position") {
    kvtl_test::position_contract<unturned>({}, 64, [](std::vector<double> x, double) { return x; });
}

} // namespace docs_policies_of_the_page_test
