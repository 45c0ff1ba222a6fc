// Entries that are computed again from the input of their layer: the contract's promises, with an engine whose keys and
// values are the two halves of x; what the engine is asked for; what is refused.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_recomputed.hpp>

#include "contracts/compressor.hpp"

#include <memory>

namespace compress_recomputed_test {

using namespace kvtl_test;
using compressor_suite::encoded;

namespace {

/// An engine whose inputs are keys and values side by side, (2, heads, D).
struct halves {
    record_shape shape;
    std::vector<recompute_rows> calls{};
    std::vector<std::uint32_t> positions{};

    static void recompute(void* engine, const recompute_rows& r) noexcept {
        auto& self = *static_cast<halves*>(engine);
        self.calls.push_back(r);
        self.positions.insert(self.positions.end(), r.positions, r.positions + r.count);
        const std::size_t width = self.shape.width(), dim = self.shape.dim;
        for (std::size_t i = 0; i < r.count; ++i)
            std::copy_n(r.x + 2 * i * width + (r.values ? width : 0) + (r.head % self.shape.heads) * dim, dim,
                        r.out + i * dim);
    }
};

/// A codec with an engine and the scratch of a shard.
template <class Policy> struct with_engine {
    struct parts {
        std::unique_ptr<halves> engine;
        std::vector<float> scratch;
    };
    std::shared_ptr<std::vector<parts>> all = std::make_shared<std::vector<parts>>();

    typename Policy::state operator()(const record_shape& s) const {
        auto& p = all->emplace_back(parts{std::make_unique<halves>(halves{s}), {}});
        const typename Policy::config c{
            .recompute = &halves::recompute, .engine = p.engine.get(), .width = 2 * s.width()};
        typename Policy::state codec(c, s);
        p.scratch.resize(codec.shared_bytes(1) / sizeof(float) + 1);
        codec.share(c, 1, std::as_writable_bytes(std::span(p.scratch)));
        return codec;
    }
};

} // namespace

TEST_CASE("recomputed keeps a compressor's promises") {
    compressor_contract<recomputed<float>>(with_engine<recomputed<float>>{});
}

TEST_CASE("the engine is asked for one head of one layer, with positions, at most 32 tokens at a time") {
    using policy = recomputed<float, float>;
    const with_engine<policy> make;
    const record_shape s{2, 8};
    const encoded<policy> e(s, 70, compressor_suite::kind::normal, 5, make(s).at({3, 4, nullptr}));
    halves& engine = *make.all->back().engine;
    CHECK(e.codec.bytes().key == 4 + 4 * 32);
    const auto k = e.decoded(true);
    CHECK(k == e.k);
    REQUIRE(engine.calls.size() == 6); // 32, 32 and 6 tokens, two heads
    for (std::size_t i = 0; i < 6; ++i) {
        CHECK(engine.calls[i].layer == 3);
        CHECK(engine.calls[i].head == 4 + i % 2);
        CHECK_FALSE(engine.calls[i].values);
        CHECK(engine.calls[i].count == (i < 4 ? 32 : 6));
    }
    CHECK(engine.positions.front() == 0);
    CHECK(engine.positions.back() == 69);
    engine.calls.clear();
    CHECK(e.decoded(false) == e.v);
    CHECK(engine.calls.front().values);
}

TEST_CASE("records of 16 bits have half the bytes and round x") {
    using policy = recomputed<f16, float>;
    const with_engine<policy> make;
    const record_shape s{1, 16};
    const encoded<policy> e(s, 3, compressor_suite::kind::normal, 6, make(s));
    CHECK(e.codec.bytes().key == 4 + 2 * 32);
    const auto v = e.decoded(false);
    for (std::size_t i = 0; i < v.size(); ++i) CHECK(v[i] == to_float(from_float<f16>(e.v[i])));
    CHECK(v != e.v);
}

TEST_CASE("what the codec cannot work with") {
    using policy = recomputed<f16>;
    const record_shape s{1, 8};
    const auto said = [&](policy::config c) { return std::string(policy::state::check(c, s).what()); };
    CHECK(said({}) ==
          "compressor.recompute is null; valid: the engine's function that computes keys and values from x");
    CHECK(said({.recompute = &halves::recompute}) ==
          "compressor.width is 0; valid: the numbers of x per token, 1 to 1048576");
    CHECK(said({.recompute = &halves::recompute, .width = (1U << 20) + 1}).find("is 1048577") !=
          std::string::npos);
    CHECK(policy::state::check({.recompute = &halves::recompute, .width = 6}, s).ok());

    const policy::state codec({.recompute = &halves::recompute, .width = 6}, s);
    std::vector<float> x(12, 1.0F);
    layer_input in;
    in.x = x;
    CHECK(codec.check_arrival(in, 2).ok());
    CHECK(std::string(codec.check_arrival(in, 3).what()) == "x has 12 numbers; valid: tokens * 6 = 18");
    x[7] = 70000; // more than f16 holds
    CHECK(std::string(codec.check_arrival(in, 2).what()) ==
          "x holds a NaN, an infinity or a number beyond f16; valid: finite numbers");
}

} // namespace compress_recomputed_test
