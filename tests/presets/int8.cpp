// Presets of int8_row and fp8_row: with everything attended they are dense attention within the codec's error, they store
// half of the bytes, and what moves between pages is never encoded again.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/int8.hpp>

#include "support/cache_fixture.hpp"
#include "support/calibrated.hpp"

namespace int8_test {

namespace {
using namespace kvtl_test;

template <class Preset> struct in_ram : Preset { using io = kvtl::in_memory; };
template <class Preset> struct plain : Preset { using compressor = kvtl::raw<kvtl::f16>; };
template <class Preset>
using cache_of =
    kvtl::kv_manager<Preset, kvtl::engine_inputs<kvtl::engine_input::q, kvtl::engine_input::k,
                                                 kvtl::engine_input::v, kvtl::engine_input::calibration>>;

using dynakv = in_ram<kvtl::presets::dynakv_int8>;
using kvswap = in_ram<kvtl::presets::kvswap_int8>;

/// Logits of some tens, keys of a few: half a code of a key moves a logit by some hundredths.
constexpr double coded = 0.15;
/// Half a step of E4M3 is nine times as large where numbers are largest.
constexpr double coarse = 1.0;

/// One sequence; what it wrote and how far it was from dense attention.
struct outcome {
    double error;
    kvtl::statistics stats;
};
template <class Preset>
outcome run(typename cache_of<Preset>::config c, std::size_t prompt, std::size_t decode) {
    using cache_type = cache_of<Preset>;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = prompt + decode + 8;
    c.attend_tokens = c.max_tokens;
    if constexpr (kvtl::drops_entries<Preset>) c.keep_tokens = c.max_tokens;
    c.memory_bytes = std::size_t{16} << 20;
    const drift data(c.shape, c.max_tokens, 3);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 5);
    one.prefill(prompt, 300);
    one.decode(decode);
    one.check_tokens();
    return {one.error(), cache.stats()};
}
} // namespace

TEST_CASE("dynakv_int8 is dense attention within the codec's error") {
    kvtl_test::equals_dense<cache_of<dynakv>>({}, coded);
}
TEST_CASE("full_int8 is dense attention within the codec's error") {
    kvtl_test::equals_dense<kvtl::full_int8>({}, coded);
}

TEST_CASE("presets of 8-bit floats are dense attention within the codec's error, which is larger") {
    kvtl_test::equals_dense<cache_of<in_ram<kvtl::presets::dynakv_fp8>>>({}, coarse);
    kvtl_test::equals_dense<kvtl::full_fp8>({}, coarse);
    const outcome floats = run<kvtl::presets::full_fp8>({}, 400, 60),
                  bytes = run<kvtl::presets::full_int8>({}, 400, 60);
    CHECK(floats.error > bytes.error);
    CHECK(floats.stats.chosen_bytes == bytes.stats.chosen_bytes);
}

TEST_CASE("kvswap_int8 is dense attention within the codec's error") {
    const kvtl::shape shape{2, 4, 2, 64};
    std::vector<float> adapter;
    for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
        const auto rows = random_rotation(std::size_t{shape.kv_heads} * shape.head_dim, layer + 1);
        adapter.insert(adapter.end(), rows.begin(), rows.begin() + 32 * 128);
    }
    kvtl::calibration_writer out(shape, 1);
    REQUIRE(out.add(kvtl::calibration_kind::joint_adapter, 32, adapter));
    cache_of<kvswap>::config c;
    c.calibration =
        (std::filesystem::temp_directory_path() / ("kvtl-int8-" + std::to_string(::getpid()))).string();
    REQUIRE(out.write(c.calibration));
    c.index.rank = 32;
    c.engine_inputs = c.engine_inputs | kvtl::engine_input::calibration;
    const outcome bytes = run<kvswap>(c, 300, 60);
    std::filesystem::remove(c.calibration);
    CHECK(bytes.error < coded);
    CHECK(bytes.error > exact); // bytes were attended, not rows
}

TEST_CASE("snapkv_int8 that may keep everything is dense attention within the codec's error") {
    const outcome bytes = run<kvtl::presets::snapkv_int8>({}, 400, 60);
    CHECK(bytes.error < coded);
    CHECK(bytes.error > exact);
}

TEST_CASE_TEMPLATE("entries are counted, written and kept as records", P, dynakv, kvtl::presets::full_int8,
                   kvtl::presets::snapkv_int8) {
    const outcome bytes = run<P>({}, 600, 100), halves = run<plain<P>>({}, 600, 100);
    CHECK(bytes.error < coded);
    CHECK(halves.error < exact);
    CHECK(bytes.stats.chosen_bytes * 128 == halves.stats.chosen_bytes * 68); // D + 4 bytes against 2 D
    CHECK(bytes.stats.written_bytes * 10 <= halves.stats.written_bytes * 8);
}

namespace {
/// Attention of layer 0's query t over the rows that select() shows.
template <class Cache>
double select_error(Cache& cache, kvtl::sequence_id seq, const drift& data, std::size_t t) {
    const kvtl::shape& s = data.shape();
    const std::size_t dim = s.head_dim, group = s.query_heads / s.kv_heads;
    std::vector<std::vector<float>> k(s.kv_heads), v(s.kv_heads);
    const auto take = [dim](std::vector<float>& to, auto rows) {
        for (std::size_t i = 0; i < rows.count; ++i)
            for (std::size_t d = 0; d < dim; ++d) to.push_back(kvtl::to_float(rows.row(i)[d]));
    };
    require_ok(cache.select(seq, 0, data.q(0, t), [&](std::size_t head, auto keys, auto values) {
        take(k[head], keys);
        take(v[head], values);
    }));
    const auto dense = dense_attention<kvtl::f16>(data, 0, t);
    oracle::largest_error error;
    for (std::size_t g = 0; g < s.query_heads; ++g) {
        const auto &keys = k[g / group], &values = v[g / group];
        REQUIRE(keys.size() == (t + 1) * dim);
        std::vector<double> out(dim, 0.0);
        double sum = 0;
        for (std::size_t i = 0; i <= t; ++i) {
            const double share = std::exp(oracle::dot(data.q(0, t).data() + g * dim, &keys[i * dim], dim) /
                                          std::sqrt(static_cast<double>(dim)));
            sum += share;
            for (std::size_t d = 0; d < dim; ++d) out[d] += share * static_cast<double>(values[i * dim + d]);
        }
        for (std::size_t d = 0; d < dim; ++d) error.see(out[d] / sum - dense[g * dim + d]);
    }
    return error.value();
}
} // namespace

TEST_CASE_TEMPLATE("engines that attend themselves are shown decoded rows", P, dynakv,
                   kvtl::presets::full_int8, kvtl::presets::snapkv_int8) {
    using cache_type = cache_of<P>;
    typename cache_type::config c;
    c.shape = {1, 4, 2, 64};
    c.max_tokens = 500;
    c.attend_tokens = c.max_tokens;
    if constexpr (kvtl::drops_entries<P>) c.keep_tokens = c.max_tokens;
    c.memory_bytes = std::size_t{16} << 20;
    const drift data(c.shape, c.max_tokens, 4);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(400);
    one.decode(60);
    const double error = select_error(cache, one.id(), data, 459);
    CHECK(error < coded);
    CHECK(error > exact);
}

} // namespace int8_test
