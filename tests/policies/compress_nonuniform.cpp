// Codes with levels of their own: the compressor's contract, every number against the nearest level in double precision, outliers
// that come back as they were, records' bytes, lanes, and bad input.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_nonuniform.hpp>

#include "contracts/compressor.hpp"
#include "support/calibrated.hpp"

#include <map>
#include <memory>
#include <numeric>

namespace compress_nonuniform_test {

using namespace kvtl_test;

namespace {

using policy = kvtl::nonuniform<float>;
using kind = kvtl::calibration_kind;

const kvtl::calibration_view& tables_for(std::uint32_t heads, std::uint32_t dim) {
    static std::map<std::pair<std::uint32_t, std::uint32_t>, std::unique_ptr<calibrated>> made;
    auto& one = made[{heads, dim}];
    if (!one) one = std::make_unique<calibrated>(kvtl::shape{2, heads, heads, dim}, heads * dim, 7);
    return one->view();
}

/// The codec of a lane of a model with as many heads as the lane.
template <class Policy> struct bound {
    using state = typename Policy::state;
    static constexpr std::uint32_t tokens = 5000;
    typename Policy::config config{};

    state operator()(const kvtl::record_shape& s) const { return make(s, config, {}, s.heads); }
    static state make(const kvtl::record_shape& s, const typename Policy::config& c,
                      const kvtl::codec_lane& lane, std::uint32_t heads) {
        static std::vector<std::unique_ptr<std::vector<float>>> tables;
        state codec(c, s);
        tables.push_back(std::make_unique<std::vector<float>>(codec.shared_bytes(tokens) / sizeof(float)));
        codec.share(c, tokens, std::as_writable_bytes(std::span(*tables.back())));
        codec.bind(tables_for(heads, s.dim));
        return codec.at(lane);
    }
};

std::vector<double> turned(const std::vector<double>& x, std::uint32_t position, double sign) {
    const std::size_t half = x.size() / 2;
    std::vector<double> out(x.size());
    for (std::size_t i = 0; i < half; ++i) {
        const double angle =
            sign * position * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
        out[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
        out[i + half] = x[i] * std::sin(angle) + x[i + half] * std::cos(angle);
    }
    return out;
}
std::vector<double> in_double(const float* x, std::size_t n) {
    std::vector<double> all(n);
    std::transform(x, x + n, all.begin(), [](float y) { return static_cast<double>(y); });
    return all;
}
/// The `count` largest of these distances.
std::vector<bool> largest(const std::vector<double>& distance, std::size_t count) {
    std::vector<std::size_t> order(distance.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return distance[a] > distance[b]; });
    std::vector<bool> out(distance.size());
    for (std::size_t i = 0; i < count; ++i) out[order[i]] = true;
    return out;
}
/// How far y (in half ranges) is from the nearest of n levels.
double off_level(double y, const float* level, std::uint32_t n) {
    double least = std::numeric_limits<double>::infinity();
    for (std::uint32_t i = 0; i < n; ++i)
        least = std::min(least, std::fabs(y - static_cast<double>(level[i])));
    return least;
}
std::vector<float> key_back(const policy::state& codec, const std::vector<float>& row,
                            std::uint32_t position) {
    std::vector<std::byte> record(codec.bytes().key);
    std::vector<float> out(row.size());
    CHECK(codec.encode_key(row.data(), position, record.data()) == record.size());
    codec.decode_keys({record.data(), 1, record.size()}, out.data());
    return out;
}
std::vector<float> value_back(const policy::state& codec, const std::vector<float>& row) {
    std::vector<std::byte> record(codec.bytes().value);
    std::vector<float> out(row.size());
    CHECK(codec.encode_value(row.data(), record.data()) == record.size());
    codec.decode_values({record.data(), 1, record.size()}, out.data());
    return out;
}

} // namespace

TEST_CASE("non-uniform codes keep to the compressor's contract") {
    SUBCASE("floats") {
        compressor_contract<policy>(bound<policy>{});
    }
    SUBCASE("2 bits, f16") {
        compressor_contract<kvtl::nonuniform<>>(bound<kvtl::nonuniform<>>{{.bits = 2}});
    }
    SUBCASE("3 bits, f16, more outliers") {
        compressor_contract<kvtl::nonuniform<>>(bound<kvtl::nonuniform<>>{{.bits = 3, .outliers = 0.1F}});
    }
}

TEST_CASE(
    "a number comes back as the nearest level in its range, an outlier as it was, of every width and lane") {
    const std::uint32_t dim = 64, heads = 3;
    const auto& view = tables_for(heads, dim);
    for (const std::uint32_t bits : {2U, 3U, 4U})
        for (const float share : {0.0F, 0.01F, 0.1F})
            for (const std::uint32_t layer : {0U, 1U}) {
                CAPTURE(bits);
                CAPTURE(share);
                const auto count = static_cast<std::size_t>(std::lround(share * static_cast<float>(dim)));
                const std::uint32_t first = layer, position = 4321 * layer; // lane: two of three heads
                const auto codec = bound<policy>::make({2, dim}, {.bits = bits, .outliers = share},
                                                       {layer, first, nullptr}, heads);
                const auto row = oracle::normal_values<float>(2 * dim, bits + layer);
                const auto k = key_back(codec, row, position), v = value_back(codec, row);
                const float* table = view.basis(kind::nuq_keys, layer, 0).data;
                const std::uint32_t n = 1U << bits, at = bits == 2 ? 0 : bits == 3 ? 4 : 12;
                const float* key_levels = table + 2 * heads * dim + at;
                const float* value_levels = view.basis(kind::nuq_values, layer, 0).data + at;
                for (std::uint32_t h = 0; h < 2; ++h) {
                    const auto x = turned(in_double(&row[h * dim], dim), position, -1),
                               back = turned(in_double(&k[h * dim], dim), position, -1);
                    std::vector<double> y(dim), distance(dim), range(dim);
                    for (std::uint32_t d = 0; d < dim; ++d) {
                        const std::uint32_t channel = (first + h) * dim + d;
                        range[d] = static_cast<double>(table[heads * dim + channel]);
                        y[d] = (x[d] - static_cast<double>(table[channel])) / range[d];
                        distance[d] = std::fabs(y[d]);
                    }
                    const auto kept = largest(distance, count);
                    for (std::uint32_t d = 0; d < dim; ++d) {
                        const double expected = kept[d] ? 0 : off_level(y[d], key_levels, n) * range[d];
                        CHECK(std::fabs(std::fabs(back[d] - x[d]) - expected) < 1e-4);
                    }
                    // Values: the range of what is no outlier, rounded to bf16.
                    const auto value = in_double(&row[h * dim], dim);
                    const double mean = std::accumulate(value.begin(), value.end(), 0.0) / dim;
                    for (std::uint32_t d = 0; d < dim; ++d) distance[d] = std::fabs(value[d] - mean);
                    const auto apart = largest(distance, count);
                    double least = 1e30, most = -1e30;
                    for (std::uint32_t d = 0; d < dim; ++d)
                        if (!apart[d]) least = std::min(least, value[d]), most = std::max(most, value[d]);
                    const auto rounded = [](double z) {
                        return static_cast<double>(
                            kvtl::to_float(kvtl::from_float<kvtl::bf16>(static_cast<float>(z))));
                    };
                    const double middle = rounded((least + most) / 2), half = rounded((most - least) / 2);
                    for (std::uint32_t d = 0; d < dim; ++d) {
                        const double off = std::fabs(static_cast<double>(v[h * dim + d]) - value[d]);
                        if (apart[d]) CHECK(off == 0);
                        if (!apart[d])
                            CHECK(std::fabs(off - off_level((value[d] - middle) / half, value_levels, n) *
                                                      half) < 1e-5);
                    }
                }
            }
}

TEST_CASE("with nothing but outliers rows come back, and attention is that of the rows") {
    const std::uint32_t dim = 64;
    const auto codec = bound<policy>::make({2, dim}, {.bits = 2, .outliers = 1}, {}, 2);
    const auto row = oracle::normal_values<float>(2 * dim, 3);
    CHECK(value_back(codec, row) == row);
    const auto k = key_back(codec, row, 777);
    for (std::size_t i = 0; i < row.size(); ++i) CHECK(std::fabs(k[i] - row[i]) < 1e-5F);
}

TEST_CASE("one large number of a head costs the others no accuracy") {
    const std::uint32_t dim = 64;
    const auto with = bound<policy>::make({1, dim}, {}, {}, 1),
               without = bound<policy>::make({1, dim}, {.outliers = 0}, {}, 1);
    const auto clean = oracle::normal_values<float>(dim, 4);
    auto row = clean;
    row[17] = -60;
    const auto error = [&](const std::vector<float>& back) {
        double sum = 0;
        for (std::uint32_t d = 0; d < dim; ++d)
            sum += std::pow(static_cast<double>(back[d]) - static_cast<double>(row[d]), 2);
        return sum;
    };
    CHECK(value_back(with, row)[17] == -60);
    CHECK(error(value_back(with, row)) < 0.02 * error(value_back(without, row)));
    CHECK(error(key_back(with, row, 0)) < 0.02 * error(key_back(without, row, 0)));
}

TEST_CASE("a channel without a range, and rows of one number, come back") {
    std::vector<float> keys(2 * 64 + kvtl::level_table::levels); // middles and half ranges are 0
    const auto levels = curved_levels();
    std::copy(levels.begin(), levels.end(), keys.begin() + 128);
    keys[5] = 2;
    kvtl::calibration_writer out({1, 1, 1, 64}, 1);
    REQUIRE(out.add(kind::nuq_keys, kvtl::level_table::levels, keys, true));
    REQUIRE(out.add(kind::nuq_values, kvtl::level_table::levels, levels));
    const calibrated file(out, {1, 1, 1, 64});
    policy::state codec({}, {1, 64});
    CHECK(codec.check_calibration(file.view()).ok());
    codec.bind(file.view());
    std::vector<float> room(codec.shared_bytes(10) / sizeof(float));
    codec.share({}, 10, std::as_writable_bytes(std::span(room)));
    std::vector<float> row(64, 0.0F);
    row[5] = 2;
    CHECK(key_back(codec, row, 0) == row);
    row[9] = -3; // off the middle: an outlier
    CHECK(key_back(codec, row, 0) == row);
    const std::vector<float> level(64, 1.25F);
    CHECK(value_back(codec, level) == level);
}

TEST_CASE("a record has a position, the outliers and their places, the codes, and of values a range") {
    const auto bytes = [](std::uint32_t bits, float outliers, const kvtl::record_shape& s) {
        return kvtl::nonuniform<>::state({.bits = bits, .outliers = outliers}, s).bytes();
    };
    CHECK(bytes(4, 0.01F, {1, 64}).key == 40); // 4 + 3 + 32, whole words
    CHECK(bytes(4, 0.01F, {1, 64}).value == 40);
    CHECK(bytes(3, 0.01F, {1, 64}).key == 32);
    CHECK(bytes(2, 0.01F, {1, 64}).value == 24);
    CHECK(bytes(2, 0, {2, 128}).key == 4 + 2 * 32);
    CHECK(bytes(4, 0.02F, {2, 128}).value == 2 * (3 * 3 + 64 + 4) + 2);
}

TEST_CASE("ranges of keys after RoPE, negative ranges and levels out of order are refused") {
    const kvtl::shape model{2, 2, 2, 64};
    const auto refusal = [&](bool pre_rope, std::size_t at, float number, std::size_t value_at) {
        std::vector<float> keys, values;
        for (std::uint32_t l = 0; l < 2; ++l) {
            keys.resize(keys.size() + 256, 1.0F);
            for (auto* to : {&keys, &values}) {
                const auto levels = curved_levels();
                to->insert(to->end(), levels.begin(), levels.end());
            }
        }
        if (at != 0) keys[at] = number;
        if (value_at != 0) values[value_at] = number;
        kvtl::calibration_writer out(model, 1);
        REQUIRE(out.add(kind::nuq_keys, kvtl::level_table::levels, keys, pre_rope));
        REQUIRE(out.add(kind::nuq_values, kvtl::level_table::levels, values));
        const calibrated file(out, model);
        const kvtl::status s = policy::state({}, {2, 64}).check_calibration(file.view());
        if (!s) CHECK(s.code() == kvtl::errc::file_refused);
        return std::string(s.ok() ? "" : s.what());
    };
    CHECK(refusal(true, 0, 0, 0).empty());
    CHECK(refusal(false, 0, 0, 0) == "calibration: nuq_keys were fitted to keys after RoPE; valid: before");
    CHECK(refusal(true, 284 + 128 + 7, -0.5F, 0) ==
          "calibration: nuq_keys of layer 1: half range 7 is -0.5; valid: 0 or more");
    CHECK(refusal(true, 256 + 27, 1.5F, 0) ==
          "calibration: nuq_keys of layer 0: levels of 4 bits do not ascend from -1 to 1");
    CHECK(refusal(true, 0, -0.9F, 28 + 20) ==
          "calibration: nuq_values of layer 1: levels of 4 bits do not ascend from -1 to 1");
    CHECK(refusal(true, 256 + 2, -1.0F, 0).empty()); // levels of another width
}

TEST_CASE("settings out of range are refused, with the valid ones") {
    const auto says = [](const policy::config& c, std::uint32_t dim, const char* what) {
        const kvtl::status s = policy::state::check(c, {1, dim});
        REQUIRE(!s);
        CHECK(s.code() == kvtl::errc::invalid_argument);
        CHECK(std::string_view(s.what()) == what);
    };
    CHECK(policy::state::check({}, {2, 64}).ok());
    says({.bits = 5}, 64, "compressor.bits is 5; valid: 2, 3 or 4");
    says({.bits = 1}, 64, "compressor.bits is 1; valid: 2, 3 or 4");
    says({.outliers = -0.1F}, 64, "compressor.outliers is -0.1; valid: 0 to 1");
    says({.outliers = NAN}, 64, "compressor.outliers is nan; valid: 0 to 1");
    says({}, 512, "compressor: heads of 512 numbers; valid: up to 256");
    says({.dims = 7}, 64, "compressor.dims is 7; valid: even, to head_dim (64)");
}

} // namespace compress_nonuniform_test
