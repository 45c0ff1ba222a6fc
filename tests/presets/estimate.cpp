// SPDX-License-Identifier: MIT
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/best.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/retroinfer.hpp>
#include <kvtl/presets/sparq.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/decode_error.hpp"
#include "support/random_layer.hpp"

template class kvtl::kv_manager<kvtl::presets::dynakv_estimate>;

namespace estimate_test {

TEST_CASE("dynakv_estimate with the budget for everything is dense attention over f16 entries") {
    const kvtl_test::scratch_folder folder;
    kvtl_test::equals_dense<kvtl::dynakv_estimate>({.io = {.path = folder.file("a.kv")}});
}

TEST_CASE("dynakv_top_p with the share 1 is dynakv_estimate") {
    const kvtl_test::scratch_folder folder;
    kvtl::dynakv_top_p::config c;
    c.io.path = folder.file("a.kv");
    c.selector.p = 1;
    kvtl_test::equals_dense<kvtl::dynakv_top_p>(c);
}

TEST_CASE("at a small budget the estimate is closer to dense attention than what dynakv reads") {
    const double without = kvtl_test::decode_error<kvtl::dynakv>();
    const double with = kvtl_test::decode_error<kvtl::dynakv_estimate>();
    MESSAGE("error without " << without << ", with the estimate " << with);
    CHECK(with < 0.6 * without);
}

// What a model of small heads, or one with long queries, showed: an estimate that grows with the square of
// the query and takes units to be equally wide in all directions lets one wide unit have the whole softmax.
namespace {

struct in_ram : kvtl::presets::dynakv_estimate {
    using io = kvtl::in_memory;
};
struct first_order : in_ram {
    using index = kvtl::centroid;
    using estimator = kvtl::centroid_estimate;
};

/// Mean of |o - o_dense| / |o_dense| over decoded tokens, with this share of the units estimated.
template <class Preset> double relative_error(const kvtl_test::drift& data, float share) {
    using cache_type = kvtl::kv_manager<Preset>;
    constexpr std::size_t prompt = 200, every = 12;
    typename cache_type::config c;
    c.shape = data.shape();
    c.max_tokens = data.tokens();
    c.attend_tokens = 64;
    c.memory_bytes = std::size_t{16} << 20;
    c.estimator.share = share;
    auto cache = kvtl_test::open_cache<cache_type>(c);
    kvtl_test::reader<cache_type> one(cache, data, 0);
    one.prefill(prompt);
    one.decode(data.tokens() - prompt);
    double sum = 0;
    std::size_t outputs = 0;
    for (std::size_t t = prompt + every; t < data.tokens(); t += every, ++outputs) {
        const auto dense = kvtl_test::dense_attention<kvtl::f16>(data, 0, t);
        const float* out = &one.outputs()[t * data.query_floats()];
        double difference = 0, length = 0;
        for (std::size_t i = 0; i < dense.size(); ++i) {
            difference += std::pow(static_cast<double>(out[i]) - dense[i], 2);
            length += dense[i] * dense[i];
        }
        sum += std::sqrt(difference / length);
    }
    return sum / static_cast<double>(outputs);
}

} // namespace

TEST_CASE("estimates do no harm, whatever the head size, the length of queries and the form of units") {
    constexpr double scales[] = {0.25, 1, 8};
    constexpr std::uint64_t seeds[] = {5, 6};
    constexpr double runs = std::size(scales) * std::size(seeds);
    for (const std::uint32_t dim : {8U, 32U, 128U})
        for (const double positional : {0.0, 1.5}) {
            double without = 0, plain = 0, with = 0;
            for (const double scale : scales)
                for (const std::uint64_t seed : seeds) {
                    // Logits of head size 64 for all: those of a drift grow with the number of dimensions.
                    const kvtl_test::drift data({1, 4, 2, dim}, 440, seed,
                                                {.query_scale = scale * 64 / dim, .positional = positional});
                    without += relative_error<in_ram>(data, 0) / runs;
                    plain += relative_error<first_order>(data, 1) / runs;
                    with += relative_error<in_ram>(data, 1) / runs;
                }
            CAPTURE(dim);
            CAPTURE(positional);
            CHECK(with <= without);
            CHECK(with <= 1.02 * plain);
        }
}

namespace {

struct no_estimate : in_ram {
    using estimator = kvtl::nothing;
};

/// Mean of |o - o_dense| / |o_dense| over tokens of the second half, which is decoded.
template <class Preset>
double relative_error(const kvtl_test::random_layer& data, std::uint32_t sink_tokens) {
    using cache_type = kvtl::kv_manager<Preset>;
    const std::size_t prompt = data.tokens() / 2;
    constexpr std::size_t every = 10;
    typename cache_type::config c;
    c.shape = data.shape();
    c.max_tokens = data.tokens();
    c.attend_tokens = c.window_tokens + 16;
    c.sink_tokens = sink_tokens;
    c.memory_bytes = std::size_t{4} << 20;
    auto cache = kvtl_test::open_cache<cache_type>(c);
    const kvtl::sequence_id seq = *cache.begin();
    std::vector<float> ignored(prompt * data.query_floats()), out(data.query_floats());
    kvtl_test::require_ok(cache.prefill(seq, 0, data.input(0, prompt), ignored));
    double sum = 0;
    std::size_t outputs = 0;
    for (std::size_t t = prompt; t < data.tokens(); ++t) {
        kvtl_test::require_ok(cache.attend(seq, 0, data.input(t), out));
        if (t % every != 0) continue;
        const auto dense = data.dense(t);
        double difference = 0, length = 0;
        for (std::size_t i = 0; i < dense.size(); ++i) {
            difference += std::pow(static_cast<double>(out[i]) - dense[i], 2);
            length += dense[i] * dense[i];
        }
        sum += std::sqrt(difference / length);
        ++outputs;
    }
    return sum / static_cast<double>(outputs);
}

} // namespace

// Units of a trained model are not equally wide in all directions, and queries are short where keys are long. An
// estimate that overlooks this, or grows with the spread of logits without bound, lets one wide unit have the softmax.
TEST_CASE("estimates are never worse than leaving units out, on random models of any head size and logits") {
    for (const bool sink : {false, true})
        for (const std::uint32_t dim : {8U, 16U, 32U, 64U, 128U})
            for (const double deviation : {0.5, 2.0, 6.0, 12.0, 25.0}) {
                CAPTURE(sink);
                CAPTURE(dim);
                CAPTURE(deviation);
                const kvtl_test::random_layer data({.dim = dim, .deviation = deviation, .sink = sink});
                const std::uint32_t sink_tokens = sink ? 4 : 0;
                const double without = relative_error<no_estimate>(data, sink_tokens);
                const double with = relative_error<in_ram>(data, sink_tokens);
                CHECK(with <= 1.02 * without); // where logits differ much both read all that counts
                if (deviation <= 2) CHECK(with <= 0.8 * without);
            }
}

namespace {
/// The same choice, and what is not read is left out.
struct prices_only : kvtl::moment_estimate {
    class state : public kvtl::moment_estimate::state {
      public:
        using kvtl::moment_estimate::state::state;
        void add(const kvtl::estimator_input&, const kvtl::partial&) const noexcept {}
    };
};
template <class Preset> struct pair {
    struct with : Preset {
        using io = kvtl::in_memory;
    };
    struct without : with {
        using estimator =
            std::conditional_t<std::same_as<Preset, kvtl::presets::kvtl_best>, prices_only, kvtl::nothing>;
    };
};
} // namespace

TEST_CASE_TEMPLATE("nor are those of other presets", Preset, kvtl::presets::kvtl_best,
                   kvtl::presets::retroinfer, kvtl::presets::sparq) {
    for (const bool sink : {false, true})
        for (const std::uint32_t dim : {8U, 32U, 128U})
            for (const double deviation : {0.5, 2.0, 6.0, 12.0, 25.0}) {
                CAPTURE(sink);
                CAPTURE(dim);
                CAPTURE(deviation);
                const kvtl_test::random_layer data({.dim = dim, .deviation = deviation, .sink = sink});
                const std::uint32_t sink_tokens = sink ? 4 : 0;
                const double without = relative_error<typename pair<Preset>::without>(data, sink_tokens);
                const double with = relative_error<typename pair<Preset>::with>(data, sink_tokens);
                CHECK(with <= 1.02 * without);
            }
}

} // namespace estimate_test
