// Layers that share a choice: the others attend what the first of them chose, exactly, and ask no index.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/policies/select_shared_by_layers.hpp>
#include <kvtl/presets/composed.hpp>

#include "contracts/selector.hpp"
#include "support/cache_fixture.hpp"

#include <map>

namespace select_shared_by_layers_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape deep{7, 4, 2, 64};

/// How often the index was asked, by the first number of the query: there a test writes the layer.
std::map<int, int> asked;

struct counting_box : kvtl::minmax_box {
    class state : public kvtl::minmax_box::state {
        using base = kvtl::minmax_box::state;

      public:
        using base::base;
        void score(const float* q, std::uint32_t queries, const kvtl::units_view& u, std::span<float> out,
                   std::span<float> scratch) const noexcept {
            ++asked[static_cast<int>(q[0])];
            base::score(q, queries, u, out, scratch);
        }
    };
};

template <std::uint32_t Layers> struct boxes : kvtl::presets::shared_boxes {
    static constexpr std::string_view name = "boxes";
    using index = counting_box;
    using selector = kvtl::shared_by_layers<Layers, kvtl::topk<kvtl::reduce::group_max>>;
    using io = kvtl::in_memory;
};
/// Predicted queries, and the choice shared by all but the first of each three layers.
struct predicted : boxes<3> {
    using selector = kvtl::shared_by_layers<3, kvtl::topk<kvtl::reduce::group_max, kvtl::query::predicted>>;
    using schedule = kvtl::next_layer;
};
struct of_layers : boxes<2> {
    using clusterer = kvtl::layer_groups<8>;
};

template <class Cache> typename Cache::config sized(std::size_t attend) {
    typename Cache::config c;
    c.shape = deep;
    c.max_tokens = 500;
    c.attend_tokens = attend;
    c.window_tokens = 16;
    c.memory_bytes = std::size_t{32} << 20;
    return c;
}
/// The units that a layer's step chose, lane by lane.
template <class Cache>
std::vector<std::uint64_t> choice(Cache& cache, kvtl::sequence_id seq, std::uint32_t layer) {
    std::vector<std::uint64_t> words;
    constexpr std::uint32_t lanes = Cache::types::unit_of == kvtl::granularity::layer ? 1 : deep.kv_heads;
    for (std::uint32_t i = 0; i < lanes; ++i) {
        const auto lane = kvtl::shard_access::of(cache, i % cache.shards())
                              .store()
                              .at((seq.slot * deep.layers + layer) * lanes + i);
        const auto bits = lane.chosen_before();
        words.insert(words.end(), bits.begin(), bits.end());
    }
    return words;
}

} // namespace

TEST_CASE("shared_by_layers keeps a selector's promises") {
    using shared = kvtl::shared_by_layers<2, kvtl::topk<kvtl::reduce::group_max>>;
    static_assert(kvtl::selector_for<shared>);
    kvtl_test::selector_suite::keeps_its_promises<shared>();
}

TEST_CASE_TEMPLATE("with the budget for everything it is dense attention", Preset, boxes<1>, boxes<2>,
                   boxes<3>, of_layers) {
    using cache_t = kvtl::kv_manager<Preset>;
    run_scenario<cache_t>({.shape = deep, .prompt = 0, .decode = 60});
    run_scenario<cache_t>({.shape = deep,
                           .prompt = 200,
                           .chunk = 90,
                           .decode = 30,
                           .turn = 20,
                           .turn_decode = 8,
                           .smallest = true});
}

TEST_CASE_TEMPLATE("layers that share choose alike, others for themselves", Preset, boxes<1>, boxes<2>,
                   boxes<3>, of_layers) {
    using cache_t = kvtl::kv_manager<Preset>;
    const std::uint32_t share = Preset::selector::layers_that_share;
    const drift data(deep, 500, 5);
    auto c = sized<cache_t>(80);
    c.shards = 2;
    auto cache = open_cache<cache_t>(c);
    reader<cache_t> one(cache, data, 0);
    one.prefill(300);
    std::size_t different = 0;
    for (int step = 0; step < 60; ++step) { // units are added on the way
        one.decode(1);
        for (std::uint32_t l = 0; l < deep.layers; ++l) {
            const auto mine = choice(cache, one.id(), l);
            if (l % share != 0) {
                CHECK(mine == choice(cache, one.id(), l - l % share));
            } else if (l > 0) {
                different += mine != choice(cache, one.id(), l - share) ? 1 : 0;
            }
        }
    }
    CHECK(different > 60);
    CHECK(cache.stats().chosen_units > 0);
}

TEST_CASE("a layer that shares is not scored, and knows its units when it is prefetched") {
    using cache_t = kvtl::kv_manager<boxes<3>>;
    const drift data(deep, 500, 6);
    auto cache = open_cache<cache_t>(sized<cache_t>(80));
    const auto seq = *cache.begin();
    std::vector<float> out(300 * data.query_floats());
    for (std::size_t l = 0; l < deep.layers; ++l)
        require_ok(cache.prefill(seq, l, data.input(l, 0, 300), out));
    asked.clear();
    for (std::size_t t = 300; t < 320; ++t)
        for (std::size_t l = 0; l < deep.layers; ++l) {
            std::vector<float> q(data.q(l, t).begin(), data.q(l, t).end());
            for (std::size_t h = 0; h < deep.query_heads; ++h) q[h * deep.head_dim] = static_cast<float>(l);
            auto in = data.input(l, t);
            in.q = q;
            // A wrong guess costs a layer that shares nothing: it follows the first one.
            if (l % 3 != 0) require_ok(cache.prefetch(seq, l, data.q(0, 0)));
            const auto wasted = cache.stats().wasted_bytes;
            require_ok(cache.attend(seq, l, in, std::span(out).first(data.query_floats())));
            CHECK(cache.stats().wasted_bytes == wasted);
        }
    CHECK(asked.size() == 3);
    for (const int layer : {0, 3, 6}) CHECK(asked[layer] == 20 * 2);
}

TEST_CASE("a prediction counts for the layers that choose; the others follow") {
    using cache_t = kvtl::kv_manager<predicted>;
    const drift data(deep, 500, 7);
    auto cache = open_cache<cache_t>(sized<cache_t>(80));
    reader<cache_t> one(cache, data, 0);
    one.prefill(300);
    for (int step = 0; step < 20; ++step) {
        one.step([&](std::size_t l) { require_ok(cache.prefetch(one.id(), l, data.q(l, one.tokens()))); });
        for (std::uint32_t l = 0; l < deep.layers; ++l)
            CHECK(choice(cache, one.id(), l) == choice(cache, one.id(), l - l % 3));
    }
}

} // namespace select_shared_by_layers_test
