// Squeezed Attention: the threshold that a prompt settles, and what follows from it.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/squeezed.hpp>

#include "support/size_knob.hpp"

#include <numeric>

namespace squeezed_test {

using namespace kvtl_test;

TEST_CASE("squeezed with the budget for everything is dense attention over f16 entries") {
    cache_of<kvtl::presets::squeezed>::config c;
    c.selector.kept = 1; // otherwise the threshold leaves some out
    equals_dense_in_short<cache_of<kvtl::presets::squeezed>>(c);
}

namespace {
constexpr kvtl::shape model{3, 4, 2, 32};
constexpr std::size_t prompt = 700;
using cache_t = cache_of<kvtl::presets::squeezed>;

cache_t::config settings(float kept) {
    cache_t::config c;
    c.shape = model;
    c.max_tokens = 1000;
    c.max_sequences = 2;
    c.attend_tokens = 260;
    c.memory_bytes = std::size_t{16} << 20;
    c.selector.kept = kept;
    return c;
}
/// Entries that each lane attends for the last of the prompt's queries, beside those that are always in memory.
std::vector<double> attended(cache_t& cache, kvtl::sequence_id seq, const drift& data, std::size_t queries) {
    const std::size_t in_memory = settings(1).sink_tokens + settings(1).window_tokens;
    std::vector<double> sum;
    for (std::size_t l = 0; l < model.layers; ++l) {
        std::vector<double> of_layer(model.kv_heads, 0.0);
        for (std::size_t t = prompt - queries; t < prompt; ++t) {
            std::vector<std::size_t> rows(model.kv_heads, 0);
            require_ok(cache.select(seq, l, data.q(l, t),
                                    [&](std::size_t head, auto keys, auto) { rows[head] += keys.count; }));
            for (std::size_t h = 0; h < model.kv_heads; ++h) {
                CHECK(rows[h] <= settings(1).attend_tokens); // whatever the threshold
                of_layer[h] += static_cast<double>(rows[h] - in_memory);
            }
        }
        sum.insert(sum.end(), of_layer.begin(), of_layer.end());
    }
    return sum;
}
double total(const std::vector<double>& x) {
    return std::accumulate(x.begin(), x.end(), 0.0);
}
} // namespace

TEST_CASE("squeezed: the prompt's last queries attend half of what top-k would, lanes unequally") {
    const drift data(model, 1000, 41), other(model, 1000, 42);
    for (const std::size_t chunk : {prompt, std::size_t{250}}) { // the last one has 100 queries of 200
        auto all = open_cache<cache_t>(settings(1)), half = open_cache<cache_t>(settings(0.5F));
        reader<cache_t> everything(all, data, 0), some(half, data, 0), second(half, other, 0);
        everything.prefill(prompt, chunk);
        some.prefill(prompt, chunk);
        const auto top = attended(all, everything.id(), data, 100),
                   mine = attended(half, some.id(), data, 100);
        CHECK(std::fabs(total(mine) / total(top) - 0.5) < 0.02);
        const auto part = [&](std::size_t lane) { return mine[lane] / top[lane]; };
        double least = 1, most = 0;
        for (std::size_t lane = 0; lane < top.size(); ++lane)
            least = std::min(least, part(lane)), most = std::max(most, part(lane));
        CHECK(most - least > 0.05); // one threshold for all

        second.prefill(prompt, chunk); // another sequence's prompt is its own affair
        CHECK(attended(half, some.id(), data, 100) == mine);
        require_ok(half.end(some.id()));
        reader<cache_t> again(half, data, 0); // in the same place
        again.prefill(prompt, chunk);
        CHECK(attended(half, again.id(), data, 100) == mine);
    }
}

TEST_CASE(
    "squeezed: without a prompt there is no threshold, and a sequence begins without that of the last one") {
    const drift data(model, 1000, 43);
    auto all = open_cache<cache_t>(settings(1)), half = open_cache<cache_t>(settings(0.5F));
    reader<cache_t> first(half, data, 0);
    first.prefill(prompt);
    require_ok(half.end(first.id()));
    reader<cache_t> everything(all, data, 0), some(half, data, 0);
    everything.decode(prompt);
    some.decode(prompt);
    CHECK(some.outputs() == everything.outputs());
}

TEST_CASE(
    "squeezed: all heads of a sequence have one shard, and the threshold is refused where it cannot be") {
    auto c = settings(0.5F);
    c.shards = 4; // of which two sequences use two
    CHECK(open_cache<cache_t>(c).shards() == 2);
    c.selector.kept = 1.5F;
    const auto refused = cache_t::open(c);
    REQUIRE(!refused);
    CHECK(refused.error().message.find("selector.kept is 1.5; valid: 0 to 1") != std::string::npos);
}

TEST_CASE("squeezed: a prompt whose last chunk comes without queries is refused: they settle the threshold") {
    const drift data(model, 1000, 43);
    auto cache = open_cache<cache_t>(settings(.5F));
    const auto seq = *cache.begin();
    reader<cache_t> one(cache, data, 0);
    const auto rows = [&](std::size_t first, std::size_t n, bool last) {
        kvtl::layer_input in = one.input(0, first, n);
        in.q = {}, in.last_chunk = last;
        return in;
    };
    require_ok(cache.prefill(seq, 0, rows(0, 300, false), {}));
    const kvtl::status s = cache.prefill(seq, 0, rows(300, 100, true), {});
    CHECK(s.code() == kvtl::errc::invalid_argument);
    CHECK_MESSAGE(std::string(s.what()).find("q is empty; valid: the queries of the prompt's last chunk") !=
                      std::string::npos,
                  s.what());
    CHECK(cache.tokens(seq, 0) == 300);
    kvtl::layer_input in = one.input(0, 300, 100);
    require_ok(cache.prefill(seq, 0, in, {}));
    CHECK(cache.tokens(seq, 0) == 400);
}

} // namespace squeezed_test
