// Queries and results of 16 bits where entries are dropped, and in layers that slide: by scores of the prompt's last
// queries, of all its queries, of decode's, of gates that read queries; chunks wait beside queries that were put aside.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/learned.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/presets/streaming.hpp>

#include "support/sixteen_bits.hpp"

#include <cstring>

namespace manager_sixteen_bit_rows_test {

using namespace kvtl_test;

namespace {

template <class Cache> typename Cache::config config_for(std::uint32_t sequences = 2) {
    typename Cache::config c;
    c.shape = {2, 4, 2, 32};
    c.max_tokens = 400;
    c.max_sequences = sequences;
    c.keep_tokens = 60;
    c.window_tokens = 16;
    c.memory_bytes = std::size_t{16} << 20;
    return c;
}
constexpr engine_habits habits{.prompt = 200, .chunk = 90, .decode = 30, .turns = true};
} // namespace

TEST_CASE("scores of the last queries, of a layer whose neighbour slides") {
    using cache_t = kvtl::snapkv_group;
    auto c = config_for<cache_t>();
    check_sixteen_bits<cache_t>(c, habits);
    c.attention.windows = {0, 50};
    c.shards = 2;
    check_sixteen_bits<cache_t>(c, habits);
}

TEST_CASE("scores of all queries, in the prompt and in decode") {
    using cache_t = kvtl::h2o;
    check_sixteen_bits<cache_t>(config_for<cache_t>(), habits);
    using once = kvtl::h2o_prefill_once;
    check_sixteen_bits<once>(config_for<once>(), habits);
}

TEST_CASE("gates that read queries") {
    using cache_t = kvtl::locret;
    auto c = config_for<cache_t>();
    kvtl::gate_header h;
    h.layers = 2, h.kv_heads = 2, h.inputs = (4 + 2 + 2) * 32;
    const auto weights = oracle::normal_values(2 * h.layer_floats(), 60, 0.2);
    std::vector<std::byte> bytes(sizeof h + weights.size() * sizeof(float));
    std::memcpy(bytes.data(), &h, sizeof h);
    std::memcpy(bytes.data() + sizeof h, weights.data(), weights.size() * sizeof(float));
    c.retention.weights = bytes;
    check_sixteen_bits<cache_t>(c, habits);
}

TEST_CASE("queries that are turned back to positions inside the cache") {
    using cache_t = kvtl::streaming_llm;
    check_sixteen_bits<cache_t>(config_for<cache_t>(), habits);
}

} // namespace manager_sixteen_bit_rows_test
