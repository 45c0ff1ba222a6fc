// What every compressor promises: the sizes it declares, a round trip within its error, and attention
// straight from records that equals decode-then-attend in double precision; for extreme rows too, for one
// head of a lane among several, and whatever lies around its records. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/attend_records.hpp>
#include <kvtl/core/store/page_format.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/slots/compressor.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

namespace compressor_suite {

/// What decoding to plain rows rounds, which attention straight from records does not.
template <class Policy>
inline constexpr double rounding =
    Policy::rows_are_records || std::same_as<typename Policy::plain_type, float> ? 0
    : std::same_as<typename Policy::plain_type, f16>                             ? 0x1p-11
                                                                                 : 0x1p-8;

/// Rows as caches meet them, and rows as nobody should.
enum class kind { normal, zeros, one_huge, denormal, constant, signs };
inline constexpr kind kinds[] = {kind::normal,   kind::zeros,    kind::one_huge,
                                 kind::denormal, kind::constant, kind::signs};

/// So many entries at least that are whole granules.
template <class Policy> [[nodiscard]] constexpr std::uint32_t whole(std::uint32_t entries) {
    return (entries + Policy::granule - 1) / Policy::granule * Policy::granule;
}

/// The records of an entry, or of a granule. A codec of inputs gets the two rows side by side as its input.
template <class Codec, class Plain>
record_bytes encode_entry(const Codec& codec, const record_shape& s, const Plain* k, const Plain* v,
                          std::uint32_t position, std::byte* key, std::byte* value) {
    if constexpr (requires { &Codec::encode_input; }) {
        std::vector<float> x;
        for (const Plain* row : {k, v})
            for (std::uint32_t d = 0; d < s.width(); ++d) x.push_back(to_float(row[d]));
        static_cast<void>(value);
        return {codec.encode_input(x.data(), position, key), 0};
    } else {
        static_cast<void>(s);
        return {codec.encode_key(k, position, key), codec.encode_value(v, value)};
    }
}

/// A page of encoded entries of a lane and the rows they came from.
template <class Policy> struct encoded {
    using plain = typename Policy::plain_type;
    using codec_type = typename Policy::state;
    record_shape shape;
    codec_type codec;
    page_format format;
    std::vector<plain> k, v;
    std::vector<std::byte> page;
    std::uint32_t n;

    encoded(const record_shape& s, std::uint32_t entries, kind what, std::uint64_t seed,
            const codec_type& of_lane)
        : shape(s), codec(of_lane),
          format(page_format::packed(codec.bytes(), whole<Policy>(entries), Policy::ragged, Policy::granule)),
          k(whole<Policy>(entries) * s.width()), v(k.size()), page(format.page_bytes, std::byte{0xEE}),
          n(whole<Policy>(entries)) {
        oracle::generator random(seed);
        for (std::uint32_t i = 0; i < n; ++i) {
            fill(&k[i * s.width()], what, random);
            fill(&v[i * s.width()], what, random);
        }
        format.begin(page.data());
        std::vector<std::byte> record(codec.bytes().entry() + 16);
        for (std::uint32_t i = 0; i < n; i += Policy::granule) {
            std::fill(record.begin(), record.end(), std::byte{0xAB});
            std::byte* value = record.data() + codec.bytes().key + 8;
            const auto [kb, vb] =
                encode_entry(codec, s, &k[i * s.width()], &v[i * s.width()], i, record.data(), value);
            REQUIRE(kb <= codec.bytes().key);
            REQUIRE(vb <= codec.bytes().value);
            if (!Policy::ragged) {
                CHECK(kb == codec.bytes().key);
                CHECK(vb == codec.bytes().value);
            }
            // Nothing behind a record is written.
            const auto untouched = [](std::byte b) { return b == std::byte{0xAB}; };
            CHECK(std::all_of(record.data() + kb, value, untouched));
            CHECK(std::all_of(value + vb, record.data() + record.size(), untouched));
            format.put(page.data(), i, {record.data(), value, {kb, vb}});
        }
    }
    void fill(plain* row, kind what, oracle::generator& random) const {
        for (std::uint32_t d = 0; d < shape.width(); ++d) {
            double x = random.normal();
            if (what == kind::zeros) x = 0;
            if (what == kind::one_huge) x = d % shape.dim == shape.dim / 3 ? 30000.0 : 0.01 * x;
            if (what == kind::denormal) x *= 1e-7; // below the smallest normal f16
            if (what == kind::constant) x = 1.25;
            if (what == kind::signs) x = random.below(2) == 0 ? -3.0 : 3.0;
            row[d] = from_float<plain>(static_cast<float>(x));
        }
    }
    [[nodiscard]] records_view keys() const { return format.keys(page.data(), 0, n); }
    [[nodiscard]] records_view values() const {
        return codec_encodes_input<Policy> ? keys() : format.values(page.data(), 0, n);
    }
    [[nodiscard]] std::vector<plain> decoded(bool of_keys) const {
        std::vector<plain> rows(k.size());
        if (of_keys)
            codec.decode_keys(keys(), rows.data());
        else
            codec.decode_values(values(), rows.data());
        return rows;
    }
};

/// Largest error of a number against the largest of its head in the rows of its record.
template <class Policy>
double round_trip_error(const encoded<Policy>& e, const std::vector<typename Policy::plain_type>& rows,
                        const std::vector<typename Policy::plain_type>& back) {
    oracle::largest_error error;
    const std::size_t width = e.shape.width(), record = Policy::granule * width;
    for (std::size_t first = 0; first < rows.size(); first += record)
        for (std::size_t head = first; head < first + width; head += e.shape.dim) {
            double largest = 0;
            const auto each = [&](auto&& visit) {
                for (std::size_t row = head; row < first + record; row += width)
                    for (std::size_t d = row; d < row + e.shape.dim; ++d) visit(d);
            };
            each([&](std::size_t d) { largest = std::max(largest, std::fabs(oracle::value(rows[d]))); });
            each([&](std::size_t d) {
                double off = std::fabs(oracle::value(back[d]) - oracle::value(rows[d]));
                // The rounding of a subnormal f16 is not relative.
                if (std::same_as<typename Policy::plain_type, f16> &&
                    std::fabs(oracle::value(back[d])) < 0x1p-14)
                    off = std::max(0.0, off - 0x1p-25);
                error.see(off == 0 ? 0.0 : off / largest);
            });
        }
    return error.value();
}

/// Codecs that keep sums of a row's numbers, or a number as a sum of parts (planes): the error of each goes with the largest
/// of them all.
template <class Policy>
inline constexpr bool mixes = Policy::relative_error == std::numeric_limits<double>::infinity() || requires {
    typename Policy::plane;
};
template <class Plain> std::vector<double> largest_of(const std::vector<Plain>& rows, std::size_t width) {
    std::vector<double> largest(rows.size() / width, 0.0);
    for (std::size_t i = 0; i < rows.size(); ++i)
        largest[i / width] = std::max(largest[i / width], std::fabs(oracle::value(rows[i])));
    return largest;
}

/// Softmax attention in double precision over decoded rows of one head. out: (G, D), then the mass of each
/// entry, (G, N).
template <class Plain>
std::vector<double> attend_decoded(const record_shape& s, std::uint32_t head, const std::vector<float>& q,
                                   std::size_t group, double scale, const std::vector<Plain>& k,
                                   const std::vector<Plain>& v, const std::vector<float>& log_weight) {
    const std::size_t n = k.size() / s.width(), dim = s.dim;
    std::vector<double> out(group * (dim + n), 0.0);
    for (std::size_t g = 0; g < group; ++g) {
        std::vector<double> logit(n);
        for (std::size_t i = 0; i < n; ++i) {
            double sum = 0;
            for (std::size_t d = 0; d < dim; ++d)
                sum += static_cast<double>(q[g * dim + d]) * oracle::value(k[i * s.width() + head * dim + d]);
            logit[i] = scale * sum + (log_weight.empty() ? 0.0 : static_cast<double>(log_weight[i]));
        }
        const double largest = *std::max_element(logit.begin(), logit.end());
        double total = 0;
        for (double& x : logit) total += x = std::exp(x - largest);
        for (std::size_t i = 0; i < n; ++i) {
            out[group * dim + g * n + i] = logit[i] / total;
            for (std::size_t d = 0; d < dim; ++d)
                out[g * dim + d] += logit[i] / total * oracle::value(v[i * s.width() + head * dim + d]);
        }
    }
    return out;
}

} // namespace compressor_suite

/// The codec of a lane, for codecs that need no more than their config.
template <class Policy> struct by_config {
    auto operator()(const record_shape& s) const {
        return typename Policy::state(typename Policy::config{}, s);
    }
};

/// For head sizes, lanes of one and of several heads, and every kind of rows. make(record_shape) gives the codec of a
/// lane, ready to encode.
template <class Policy, class Make = by_config<Policy>> void compressor_contract(const Make& make = {}) {
    using namespace compressor_suite;
    static_assert(compressor_for<Policy>);
    SUBCASE("sizes: known before the first row, the same for equal shapes, whole bytes of every head") {
        for (const std::uint32_t dim : {8U, 56U, 64U, 80U, 96U, 120U, 128U}) {
            const typename Policy::state one({}, {1, dim}), three({}, {3, dim}), again({}, {3, dim});
            CHECK(one.bytes().key > 0);
            CHECK((one.bytes().value == 0) == codec_encodes_input<Policy>);
            CHECK(three.bytes().key == again.bytes().key);
            CHECK(three.bytes().value == again.bytes().value);
            CHECK(three.bytes().key <= 3 * one.bytes().key);
            CHECK(three.bytes().value <= 3 * one.bytes().value);
            if (!Policy::ragged) { // rows of records stay aligned for what they consist of
                CHECK(one.bytes().key % sizeof(typename Policy::plain_type) == 0);
                CHECK(one.bytes().value % sizeof(typename Policy::plain_type) == 0);
            }
        }
    }
    SUBCASE("a round trip stays within the declared error") {
        std::uint64_t seed = 1;
        for (const std::uint32_t dim : {8U, 56U, 64U, 80U, 96U, 120U, 128U})
            for (const std::uint32_t heads : {1U, 3U})
                for (const kind what : kinds) {
                    CAPTURE(dim);
                    CAPTURE(heads);
                    CAPTURE(static_cast<int>(what));
                    const encoded<Policy> e({heads, dim}, 9, what, ++seed, make({heads, dim}));
                    const auto k = e.decoded(true), v = e.decoded(false);
                    CHECK(round_trip_error(e, e.k, k) <= Policy::relative_error);
                    CHECK(round_trip_error(e, e.v, v) <= Policy::relative_error);
                    // One by one they are the same rows.
                    constexpr std::uint32_t some = Policy::granule, at = whole<Policy>(9) - some;
                    std::vector<typename Policy::plain_type> row(some * e.shape.width());
                    e.codec.decode_keys(e.keys().slice(at, some), row.data());
                    CHECK(std::memcmp(row.data(), &k[at * e.shape.width()], row.size() * sizeof row[0]) == 0);
                }
    }
    SUBCASE("equal rows give equal records, whatever lay there before") {
        const record_shape s{3, 80};
        const encoded<Policy> e(s, 4, kind::normal, 77, make(s));
        std::vector<std::byte> a(e.codec.bytes().key, std::byte{0x11}), b(a.size(), std::byte{0xFE}),
            value(e.codec.bytes().value);
        const auto encode = [&](std::vector<std::byte>& to) {
            return encode_entry(e.codec, s, e.k.data(), e.v.data(), 0, to.data(), value.data()).key;
        };
        const std::uint32_t n = encode(a);
        CHECK(encode(b) == n);
        CHECK(std::equal(a.begin(), a.begin() + n, b.begin()));
    }
    SUBCASE("scores and sums from records equal those of decoded rows") {
        std::uint64_t seed = 1000;
        for (const std::uint32_t dim : {8U, 56U, 64U, 80U, 96U, 120U, 128U})
            for (const std::size_t group : {1U, 4U, 7U})
                for (const kind what : kinds) {
                    CAPTURE(dim);
                    CAPTURE(group);
                    CAPTURE(static_cast<int>(what));
                    const std::uint32_t n = whole<Policy>(19), heads = 2;
                    const encoded<Policy> e({heads, dim}, n, what, ++seed, make({heads, dim}));
                    const auto k = e.decoded(true), v = e.decoded(false);
                    const auto q = oracle::normal_values<float>(group * dim, ++seed);
                    std::vector<float> weight(group * simd::attend_block, NAN);
                    oracle::generator random(++seed);
                    for (std::size_t g = 0; g < group; ++g)
                        for (std::uint32_t i = 0; i < n; ++i)
                            weight[g * simd::attend_block + i] = static_cast<float>(random.uniform());
                    const auto largest_k = largest_of(k, heads * dim), largest_v = largest_of(v, heads * dim);
                    // Decoded rows are rounded to the plain type, records are not. A subnormal f16 has few digits left,
                    // or none.
                    const bool few = what == kind::denormal && rounding<Policy> > 0;
                    constexpr double allowed = 0.2;
                    const double lost = few ? 0x1p-25 / allowed : 0;
                    for (std::uint32_t head = 0; head < heads; ++head) {
                        std::vector<float> out(group * 40, -7.0F), acc(group * (dim + 3), 0.5F);
                        e.codec.score(q.data(), dim, group, e.keys(), head, out.data(), 40);
                        e.codec.accumulate(weight.data(), group, e.values(), head, acc.data(), dim + 3);
                        oracle::largest_error error;
                        for (std::size_t g = 0; g < group; ++g) {
                            for (std::uint32_t i = 0; i < n; ++i) {
                                double expected = 0, size = 1e-30;
                                for (std::size_t d = 0; d < dim; ++d) {
                                    const double x = oracle::value(k[(i * heads + head) * dim + d]) *
                                                     static_cast<double>(q[g * dim + d]);
                                    expected += x;
                                    size += mixes<Policy> ? largest_k[i] *
                                                                std::fabs(static_cast<double>(q[g * dim + d]))
                                                          : std::fabs(x);
                                    size += lost * std::fabs(static_cast<double>(q[g * dim + d]));
                                }
                                error.relative(static_cast<double>(out[g * 40 + i]), expected, size);
                            }
                            CHECK(out[g * 40 + n] == -7.0F);
                            for (std::size_t d = 0; d < dim; ++d) {
                                double expected = 0.5, size = 0.5;
                                for (std::uint32_t i = 0; i < n; ++i) {
                                    const double x = oracle::value(v[(i * heads + head) * dim + d]) *
                                                     static_cast<double>(weight[g * simd::attend_block + i]);
                                    expected += x;
                                    size += mixes<Policy> ? largest_v[i] * weight[g * simd::attend_block + i]
                                                          : std::fabs(x);
                                }
                                error.relative(static_cast<double>(acc[g * (dim + 3) + d]), expected, size);
                            }
                            CHECK(acc[g * (dim + 3) + dim] == 0.5F);
                        }
                        // Scores of bf16 rows may take q in two parts (simd/bf16_products.hpp).
                        using stored = std::remove_cvref_t<decltype(k[0])>;
                        const double cut =
                            simd::has_bf16_products<simd::default_arch> && std::is_same_v<stored, bf16>
                                ? 0x1p-17
                                : 0;
                        CHECK(error.value() <= 2e-6 + cut + (few ? allowed : rounding<Policy>));
                    }
                }
    }
    SUBCASE("a run of keys has the scores of its blocks, to the bit") {
        for (const std::size_t group : {1U, 4U}) {
            const std::uint32_t dim = 64, heads = 2;
            using codec = typename encoded<Policy>::codec_type;
            if constexpr (requires(const codec& c, const records_view& r) {
                              c.score_run(nullptr, dim, group, r, 0U, nullptr, r.count);
                          }) {
                // More than is read several rows at a time.
                const auto n = static_cast<std::uint32_t>(simd::streamed_bytes / dim / 2 + 21);
                const encoded<Policy> e({heads, dim}, n, kind::normal, 77, make({heads, dim}));
                const auto q = oracle::normal_values<float>(group * dim, 78);
                for (std::uint32_t head = 0; head < heads; ++head) {
                    std::vector<float> run(group * (n + 1), -7.0F), blocks = run;
                    e.codec.score_run(q.data(), dim, group, e.keys(), head, run.data(), n + 1);
                    for (std::uint32_t i = 0; i < n; i += simd::attend_block)
                        e.codec.score(q.data(), dim, group,
                                      e.keys().slice(i, std::min<std::size_t>(simd::attend_block, n - i)),
                                      head, blocks.data() + i, n + 1);
                    CHECK(run == blocks);
                }
            }
        }
    }
    SUBCASE("attention over records: any number of entries, log-weights, masks, kept logits") {
        std::uint64_t seed = 5000;
        for (const std::uint32_t entries : {1U, 31U, 32U, 33U, 100U})
            for (const std::size_t group : {1U, 4U, 7U})
                for (const bool weighted : {false, true}) {
                    const std::uint32_t n = whole<Policy>(entries);
                    CAPTURE(n);
                    CAPTURE(group);
                    CAPTURE(weighted);
                    const std::uint32_t dim = 80, heads = 3, head = 1;
                    const encoded<Policy> e({heads, dim}, n, kind::normal, ++seed, make({heads, dim}));
                    const auto k = e.decoded(true), v = e.decoded(false);
                    const auto q = oracle::normal_values<float>(group * dim, ++seed);
                    std::vector<float> log_weight;
                    if (weighted)
                        for (std::uint32_t i = 0; i < n; ++i)
                            log_weight.push_back(std::log(1.0F + static_cast<float>(i % 5)));
                    const float scale = 0.11F;
                    const auto expected =
                        attend_decoded(e.shape, head, q, group, static_cast<double>(scale), k, v, log_weight);
                    const auto g32 = static_cast<std::uint32_t>(group);
                    std::vector<float> memory(partial_floats(group, dim)),
                        scratch(simd::attend_scratch_floats(group)), out(group * dim), logit(group * (n + 2)),
                        mass(n);
                    const partial p = partial_at(memory.data(), g32, dim);
                    const record_attention records(e.codec, {q.data(), dim, scale, head}, e.keys(),
                                                   e.values());
                    const float* w = weighted ? log_weight.data() : nullptr;
                    reset(p);
                    records.attend(w, p, scratch);
                    finish(p, out.data(), dim);
                    const double tolerance = 5e-6 + 4 * rounding<Policy>;
                    oracle::largest_error error;
                    for (std::size_t i = 0; i < out.size(); ++i)
                        error.see(static_cast<double>(out[i]) - expected[i]);
                    CHECK(error.value() <= tolerance);
                    const std::vector<float> whole = out;
                    reset(p);
                    records.attend_keeping_logits(w, p, scratch, logit.data(), n + 2);
                    finish(p, out.data(), dim);
                    CHECK(out == whole);
                    simd::shares_of_softmax(logit.data(), n + 2, n, p, mass.data());
                    for (std::uint32_t i = 0; i < n; ++i) {
                        double mean = 0;
                        for (std::size_t g = 0; g < group; ++g)
                            mean += expected[group * dim + g * n + i] / static_cast<double>(group);
                        error.see(static_cast<double>(mass[i]) - mean);
                    }
                    CHECK(error.value() <= tolerance);
                    // A query that the mask leaves out sees nothing.
                    reset(p);
                    records.attend(w, p, scratch, 1U);
                    CHECK(p.sum[0] > 0);
                    for (std::size_t g = 1; g < group; ++g) CHECK(p.sum[g] == 0.0F);
                }
    }
}

} // namespace kvtl_test
