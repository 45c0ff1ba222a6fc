// channel_pruned: the compressor's contract, the channels against their definition in double precision, for each KV head its own,
// exact keys where nothing is pruned, and the sentences about what cannot be.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_channel_pruned.hpp>

#include "contracts/compressor.hpp"

#include <array>
#include <cstring>
#include <deque>

namespace compress_channel_pruned_test {

using namespace kvtl_test;

namespace {

/// A prompt of a layer of four query heads for each of `heads` KV heads.
struct prompt {
    static constexpr std::uint32_t group = 4;
    kvtl::record_shape shape;
    std::size_t tokens;
    std::vector<float> keys, queries; ///< (T, heads, D), (T, heads * group, D)

    prompt(const kvtl::record_shape& s, std::size_t n, std::uint64_t seed)
        : shape(s), tokens(n), keys(oracle::normal_values<float>(n * s.width(), seed)),
          queries(oracle::normal_values<float>(n * s.width() * group, seed + 1)) {
        for (std::size_t i = 0; i < keys.size(); ++i) keys[i] *= size(i, seed + 2);
        for (std::size_t i = 0; i < queries.size(); ++i) queries[i] *= size(i, seed + 3);
    }
    /// Of a channel: another for each head and each tensor.
    [[nodiscard]] float size(std::size_t i, std::uint64_t seed) const {
        return 0.2F + static_cast<float>(oracle::generator(seed + i % (shape.width() * group)).uniform());
    }
    [[nodiscard]] kvtl::prompt_queries all() const {
        return {queries, tokens, shape.heads * group, 0, group};
    }
    /// The channels of a head that stay, by definition.
    [[nodiscard]] std::vector<bool> kept(std::uint32_t head, std::size_t count, std::size_t last) const {
        std::vector<std::pair<double, std::uint32_t>> score;
        const auto square = [](float x) { return static_cast<double>(x) * static_cast<double>(x); };
        for (std::uint32_t d = 0; d < shape.dim; ++d) {
            double of_keys = 0, of_queries = 0;
            for (std::size_t t = 0; t < tokens; ++t)
                of_keys += square(keys[t * shape.width() + head * shape.dim + d]);
            for (std::uint32_t g = 0; g < group; ++g) {
                double sum = 0;
                for (std::size_t t = tokens - std::min(last, tokens); t < tokens; ++t)
                    sum += square(queries[((t * shape.heads + head) * group + g) * shape.dim + d]);
                of_queries += std::sqrt(sum);
            }
            score.emplace_back(-std::sqrt(of_keys) * of_queries, d);
        }
        std::sort(score.begin(), score.end());
        std::vector<bool> stays(shape.dim, false);
        for (std::size_t i = 0; i < count; ++i) stays[score[i].second] = true;
        return stays;
    }
};

/// Lanes of codecs, which stay where they are.
template <class Policy> class lanes {
  public:
    using state = typename Policy::state;
    [[nodiscard]] state fit(const typename Policy::config& c, const prompt& p, std::size_t queries) {
        const state codec(c, p.shape);
        all_.emplace_back(codec.lane_bytes(), std::byte{0});
        const kvtl::rows_view<float> rows{p.keys.data(), p.tokens, p.shape.width(), p.shape.width()};
        kvtl::prompt_queries q = p.all();
        q.count = queries;
        codec.fit(all_.back().data(), rows, rows, q, {});
        return codec.at({0, 0, all_.back().data()});
    }
    [[nodiscard]] state unfitted(const kvtl::record_shape& s) {
        const state codec({}, s);
        all_.emplace_back(codec.lane_bytes(), std::byte{0});
        return codec.at({0, 0, all_.back().data()});
    }

  private:
    std::deque<std::vector<std::byte>> all_;
};

/// Which channels of a head come back.
template <class State> std::vector<bool> there(const State& codec, const prompt& p, std::uint32_t head) {
    std::vector<std::byte> record(codec.bytes().key);
    std::vector<float> back(p.shape.width());
    CHECK(codec.encode_key(p.keys.data(), 0, record.data()) == record.size());
    codec.decode_keys({record.data(), 1, record.size()}, back.data());
    std::vector<bool> same;
    for (std::uint32_t d = 0; d < p.shape.dim; ++d) {
        const float x = back[head * p.shape.dim + d];
        same.push_back(x == p.keys[head * p.shape.dim + d]);
        CHECK((same.back() || x == 0.0F));
    }
    return same;
}
} // namespace

TEST_CASE_TEMPLATE("pruned channels keep to the compressor's contract", P, kvtl::channel_pruned<float>,
                   kvtl::channel_pruned<kvtl::f16>, kvtl::channel_pruned<kvtl::bf16>) {
    lanes<P> all;
    compressor_contract<P>(
        [&](const kvtl::record_shape& s) { return all.fit({}, prompt(s, 40, s.dim), 40); });
}

TEST_CASE("a lane without a prompt keeps to the compressor's contract") {
    lanes<kvtl::channel_pruned<>> all;
    compressor_contract<kvtl::channel_pruned<>>([&](const kvtl::record_shape& s) { return all.unfitted(s); });
}

TEST_CASE("the channels that stay have the largest products of lengths, for each head its own") {
    using policy = kvtl::channel_pruned<float>;
    lanes<policy> all;
    for (const std::uint32_t dim : {16U, 64U, 80U})
        for (const double pruned : {0.0, 0.25, 0.4, 0.5, 0.75}) {
            CAPTURE(dim);
            CAPTURE(pruned);
            const prompt p({2, dim}, 90, dim);
            const auto count = static_cast<std::size_t>(std::floor((1 - pruned) * dim + 1e-9));
            const auto codec = all.fit({.pruned = pruned}, p, p.tokens);
            CHECK(codec.bytes().key == 2 * count * sizeof(float));
            CHECK(codec.bytes().value == 2 * dim * sizeof(float));
            for (std::uint32_t head = 0; head < 2; ++head) {
                const auto expected = p.kept(head, count, 32);
                CHECK(there(codec, p, head) == expected);
                if (pruned == 0.4 && dim > 16) // so that each of these is seen
                    CHECK((expected != p.kept(head, count, 90) && expected != p.kept(1 - head, count, 32)));
            }
        }
}

TEST_CASE("without queries the lengths of the keys decide, and a short prompt has fewer queries") {
    using policy = kvtl::channel_pruned<float>;
    lanes<policy> all;
    prompt p({1, 64}, 20, 9);
    CHECK(there(all.fit({.pruned = 0.5}, p, 20), p, 0) == p.kept(0, 32, 32));
    const auto blind = there(all.fit({.pruned = 0.5}, p, 0), p, 0);
    std::fill(p.queries.begin(), p.queries.end(), 1.0F);
    CHECK(blind == p.kept(0, 32, 32));
}

TEST_CASE("settings out of range are refused, with the valid ones") {
    using state = kvtl::channel_pruned<>::state;
    const auto says = [](const kvtl::channel_pruned<>::config& c, std::uint32_t dim, const char* what) {
        const kvtl::status s = state::check(c, {1, dim});
        REQUIRE(!s);
        CHECK(std::string_view(s.what()) == what);
    };
    says({.pruned = 1}, 64, "compressor.pruned is 1; valid: 0 or more, less than 1");
    says({.pruned = -0.1}, 64, "compressor.pruned is -0.1; valid: 0 or more, less than 1");
    says({.pruned = NAN}, 64, "compressor.pruned is nan; valid: 0 or more, less than 1");
    says({.pruned = 0.95}, 8,
         "compressor.pruned is 0.95; valid for head_dim 8: at most 0.875, one channel must stay");
    says({.queries = 0}, 64, "compressor.queries is 0; valid: 1 or more");
    says({}, 2048, "shape.head_dim is 2048; valid for pruned channels: at most 1024");
    CHECK(state::check({.pruned = 0.875}, {1, 8}).ok());
}

} // namespace compress_channel_pruned_test
