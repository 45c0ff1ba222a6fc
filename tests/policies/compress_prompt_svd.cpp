// prompt_svd: keys of low rank before RoPE come back, and all keys at full rank; values come back as they were.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_prompt_svd.hpp>

#include "contracts/compressor.hpp"

#include <complex>
#include <cstring>
#include <memory>
#include <utility>

namespace compress_prompt_svd_test {

using namespace kvtl_test;

namespace {

using exact = kvtl::prompt_svd<float, float>;

struct alignas(64) line {
    std::byte bytes[64];
};

/// How a model turns keys.
struct rope {
    double base = 10000.0;
    std::uint32_t dims = 0;
    bool neighbours = false;

    [[nodiscard]] std::vector<double> frequencies(std::uint32_t dim) const {
        const std::uint32_t n = dims == 0 ? dim : dims;
        std::vector<double> f;
        for (std::uint32_t i = 0; i < n / 2; ++i) f.push_back(std::pow(base, -2.0 * i / n));
        return f;
    }
};

/// RoPE as it is defined: a pair is a complex number, multiplied by exp(i position frequency).
std::vector<double> rotated(std::vector<double> x, const rope& r, double position) {
    const std::size_t dims = r.dims == 0 ? x.size() : r.dims;
    const auto frequency = r.frequencies(static_cast<std::uint32_t>(x.size()));
    for (std::size_t p = 0; p < dims / 2; ++p) {
        const std::size_t a = r.neighbours ? 2 * p : p, b = r.neighbours ? 2 * p + 1 : p + dims / 2;
        const auto turned = std::complex<double>(x[a], x[b]) * std::polar(1.0, position * frequency[p]);
        x[a] = turned.real();
        x[b] = turned.imag();
    }
    return x;
}

/// Keys after RoPE whose flat vectors before it span `rank` directions: (tokens, width) at positions 0, 1, ...
std::vector<float> low_rank_keys(const kvtl::record_shape& s, std::uint32_t tokens, std::uint32_t rank,
                                 const rope& r, std::uint64_t seed) {
    const std::size_t width = s.width();
    const auto directions = oracle::normal_values<float>(rank * width, seed);
    oracle::generator random(seed + 1);
    std::vector<float> keys;
    for (std::uint32_t t = 0; t < tokens; ++t) {
        std::vector<double> pre(width, 0.0);
        for (std::uint32_t j = 0; j < rank; ++j) {
            const double c = random.normal() / (1.0 + j);
            for (std::size_t i = 0; i < width; ++i)
                pre[i] += c * static_cast<double>(directions[j * width + i]);
        }
        for (std::uint32_t h = 0; h < s.heads; ++h) {
            const auto first = pre.begin() + h * s.dim;
            for (const double x : rotated({first, first + s.dim}, r, t))
                keys.push_back(static_cast<float>(x));
        }
    }
    return keys;
}

/// A codec with its tables and a lane of its own, fitted to the first `prompt` of some keys.
template <class Policy> struct fitted {
    using state = typename Policy::state;
    std::vector<line> table, lane;
    state codec;

    fitted(const kvtl::record_shape& s, const typename Policy::config& c, const std::vector<float>& keys,
           std::size_t prompt)
        : codec(c, s) {
        REQUIRE(state::check(c, s).ok());
        table.resize(codec.shared_bytes(5000) / 64 + 1);
        lane.resize(codec.lane_bytes() / 64 + 1);
        codec.share(c, 5000, std::as_writable_bytes(std::span(table)));
        std::vector<line> scratch(codec.fit_scratch_bytes(prompt) / 64 + 1);
        auto* own = reinterpret_cast<std::byte*>(lane.data());
        const kvtl::rows_view<float> rows{keys.data(), prompt, s.width(), s.width()};
        if (prompt > 0) codec.fit(own, rows, rows, std::as_writable_bytes(std::span(scratch)));
        codec = codec.at({0, 0, own});
    }
    /// The lane goes to another address; where it was there is nonsense.
    void move() {
        std::vector<line> elsewhere = lane;
        std::memset(lane.data(), 0x5A, lane.size() * sizeof(line));
        lane = std::move(elsewhere);
        codec = codec.at({0, 0, reinterpret_cast<const std::byte*>(lane.data())});
    }
};

template <class Policy>
typename Policy::config config_for(std::uint32_t rank, const rope& r, std::uint32_t dim) {
    return {.rank = rank,
            .sample = 128,
            .frequencies = r.frequencies(dim),
            .dims = r.dims,
            .neighbours = r.neighbours};
}

/// The largest error of a key that comes back, relative to its length.
template <class Policy>
double error_of(const kvtl::record_shape& s, const typename Policy::config& c, const std::vector<float>& keys,
                std::size_t prompt) {
    using plain = typename Policy::plain_type;
    const fitted<Policy> x(s, c, keys, prompt);
    const std::size_t width = s.width(), bytes = x.codec.bytes().key;
    std::vector<std::byte> records(keys.size() / width * bytes);
    std::vector<plain> rows(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) rows[i] = kvtl::from_float<plain>(keys[i]);
    for (std::size_t t = 0; t < keys.size() / width; ++t)
        CHECK(x.codec.encode_key(&rows[t * width], static_cast<std::uint32_t>(t), &records[t * bytes]) ==
              bytes);
    x.codec.decode_keys({records.data(), keys.size() / width, bytes}, rows.data());
    oracle::largest_error worst;
    for (std::size_t t = 0; t < keys.size(); t += width) {
        double off = 0, length = 0;
        for (std::size_t i = t; i < t + width; ++i) {
            const double there = static_cast<double>(keys[i]), back = oracle::value(rows[i]);
            off += (back - there) * (back - there);
            length += there * there;
        }
        worst.see(std::sqrt(off / length));
    }
    return worst.value();
}

/// For the contract: fitted to rows of which no two shapes have the same.
template <class Policy> struct of_some_lane {
    auto operator()(const kvtl::record_shape& s) const {
        static std::vector<std::unique_ptr<fitted<Policy>>> made;
        made.push_back(std::make_unique<fitted<Policy>>(
            s, typename Policy::config{.rank = 24, .sample = 40, .iterations = 2},
            oracle::normal_values<float>(60 * s.width(), s.width()), 60));
        return made.back()->codec;
    }
};

} // namespace

TEST_CASE_TEMPLATE("prompt_svd keeps a compressor's promises", P, kvtl::prompt_svd<>, exact) {
    static_assert(kvtl::codec_keeps_keys<P>);
    compressor_contract<P>(of_some_lane<P>{});
}

TEST_CASE("keys of low rank before RoPE come back, later ones too, for every kind of RoPE") {
    for (const rope& r : {rope{}, rope{500000.0, 0, true}, rope{10000.0, 16, false}})
        for (const std::uint32_t heads : {1U, 3U}) {
            const kvtl::record_shape s{heads, 32};
            const auto keys = low_rank_keys(s, 300, 10, r, heads);
            CHECK(error_of<exact>(s, config_for<exact>(10, r, 32), keys, 200) < 1e-4);
            CHECK(error_of<kvtl::prompt_svd<>>(s, config_for<kvtl::prompt_svd<>>(10, r, 32), keys, 200) <
                  3e-3);
        }
}

TEST_CASE("the rotation, its pairing and the rank matter") {
    const rope r{10000.0, 0, true};
    const kvtl::record_shape s{1, 32};
    const auto keys = low_rank_keys(s, 200, 6, r, 9);
    CHECK(error_of<exact>(s, config_for<exact>(6, r, 32), keys, 200) < 1e-4);
    CHECK(error_of<exact>(s, config_for<exact>(6, {10000.0, 0, false}, 32), keys, 200) > 0.1);
    CHECK(error_of<exact>(s, config_for<exact>(6, {500.0, 0, true}, 32), keys, 200) > 0.1);
    CHECK(error_of<exact>(s, config_for<exact>(4, r, 32), keys, 200) > 0.1); // too few directions
}

TEST_CASE("full rank is exact, whatever was fitted or not") {
    const kvtl::record_shape s{2, 16};
    const auto keys = low_rank_keys(s, 100, 32, {}, 4);
    for (const std::size_t prompt : {100U, 3U, 0U}) // fewer keys than directions, no prompt
        CHECK(error_of<exact>(s, {.rank = 1000}, keys, prompt) < 1e-5);
}

TEST_CASE("a lane that was never fitted keeps evenly spaced channels") {
    const kvtl::record_shape s{2, 16};
    const auto key = oracle::normal_values<float>(32, 3);
    const fitted<exact> x(s, {.rank = 8}, key, 0);
    std::vector<std::byte> record(x.codec.bytes().key);
    static_cast<void>(x.codec.encode_key(key.data(), 0, record.data())); // RoPE turns nothing at position 0
    std::vector<float> back(32);
    x.codec.decode_keys({record.data(), 1, record.size()}, back.data());
    for (std::size_t i = 0; i < 32; ++i) CHECK(back[i] == (i % 4 == 0 ? key[i] : 0.0F));
}

TEST_CASE("what was fitted moves with its lane") {
    const kvtl::record_shape s{2, 32};
    constexpr std::size_t tokens = 60;
    const auto keys = low_rank_keys(s, tokens, 40, {}, 5);
    exact::config c = config_for<exact>(3, {}, 32);
    c.outliers = 2;
    const fitted<exact> still(s, c, keys, tokens);
    fitted<exact> moving(s, c, keys, tokens);
    const std::size_t bytes = still.codec.bytes().key;
    std::vector<std::byte> here(tokens * bytes), there(here.size());
    std::vector<float> rows(keys.size()), others(keys.size());
    for (std::size_t t = 0; t < tokens; ++t) {
        if (t % 7 == 3) moving.move();
        const auto position = static_cast<std::uint32_t>(t);
        static_cast<void>(still.codec.encode_key(&keys[t * s.width()], position, &here[t * bytes]));
        static_cast<void>(moving.codec.encode_key(&keys[t * s.width()], position, &there[t * bytes]));
    }
    CHECK(here == there);
    still.codec.decode_keys({here.data(), tokens, bytes}, rows.data());
    moving.move();
    moving.codec.decode_keys({there.data(), tokens, bytes}, others.data());
    CHECK(rows == others);
}

TEST_CASE("outlier chunks come back as they were, all others by their code") {
    const kvtl::record_shape s{2, 32};
    constexpr std::size_t tokens = 150, chunk = 6, skip = 5, outliers = 4;
    const auto keys = low_rank_keys(s, tokens, 40, {}, 21);
    exact::config c = config_for<exact>(3, {}, 32);
    c.outliers = outliers, c.chunk = chunk, c.skip = skip;
    const fitted<exact> x(s, c, keys, tokens);
    // The chunks that agree least: the smallest cosine of a key with the chunk's mean, in either head.
    std::vector<std::pair<double, std::size_t>> agreement;
    for (std::size_t first = skip; first + chunk <= tokens; first += chunk) {
        double least = 2;
        for (std::size_t h = 0; h < 2; ++h) {
            std::vector<float> sum(32, 0.0F);
            for (std::size_t t = first; t < first + chunk; ++t)
                for (std::size_t i = 0; i < 32; ++i) sum[i] += keys[t * 64 + h * 32 + i];
            for (std::size_t t = first; t < first + chunk; ++t) {
                const float* k = &keys[t * 64 + h * 32];
                least = std::min(
                    least, oracle::dot(k, sum.data(), 32) /
                               std::sqrt(oracle::dot(k, k, 32) * oracle::dot(sum.data(), sum.data(), 32)));
            }
        }
        agreement.emplace_back(least, first);
    }
    std::sort(agreement.begin(), agreement.end());
    std::vector<bool> kept(tokens, false);
    for (std::size_t i = 0; i < outliers; ++i)
        for (std::size_t t = 0; t < chunk; ++t) kept[agreement[i].second + t] = true;
    std::size_t same = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
        std::vector<std::byte> record(x.codec.bytes().key);
        static_cast<void>(x.codec.encode_key(&keys[t * 64], static_cast<std::uint32_t>(t), record.data()));
        std::vector<float> back(64);
        x.codec.decode_keys({record.data(), 1, record.size()}, back.data());
        const bool exactly = std::equal(back.begin(), back.end(), &keys[t * 64]);
        CHECK(exactly == kept[t]);
        same += exactly ? 1 : 0;
        std::vector<float> score(1);
        x.codec.score(&keys[32], 32, 1, {record.data(), 1, record.size()}, 1, score.data(), 1);
        CHECK(static_cast<double>(score[0]) ==
              doctest::Approx(oracle::dot(&keys[32], &back[32], 32)).epsilon(1e-4));
    }
    CHECK(same == outliers * chunk);
}

TEST_CASE("what cannot be is said") {
    const kvtl::record_shape s{2, 64};
    const auto says = [&](const exact::config& c, const kvtl::record_shape& shape, const char* what) {
        const kvtl::status bad = exact::state::check(c, shape);
        CHECK(!bad.ok());
        CHECK(std::string(bad.what()).find(what) != std::string::npos);
    };
    says({.rank = 0}, s, "compressor.rank is 0; valid: 1 or more");
    says({}, {72, 128}, "compressor: rows of 9216 numbers; valid: up to 8192");
    says({.outliers = 5000}, s, "compressor.outliers is 5000; valid: 0 to 4096");
    says({.chunk = 0}, s, "compressor.chunk is 0; valid: 1 to 1024");
    says({.dims = 66}, s, "compressor.dims is 66; valid: even, to head_dim (64)");
    says({.frequencies = {1.0}}, s, "compressor.frequencies has 1 numbers; valid: none, or 32");
}

TEST_CASE("orthonormal rows, even from dependent ones") {
    std::vector<float> y(6 * 8, 1.0F); // six times the same row
    for (std::size_t i = 0; i < 8; ++i) y[3 * 8 + i] = 0.0F;
    kvtl::detail::orthonormalise(y.data(), 6, 8);
    for (std::size_t i = 0; i < 6; ++i)
        for (std::size_t j = 0; j < 6; ++j)
            CHECK(oracle::dot(&y[i * 8], &y[j * 8], 8) == doctest::Approx(i == j ? 1.0 : 0.0).epsilon(1e-5));
}

} // namespace compress_prompt_svd_test
