// two_level_centroid: the score is the inner product with the unit's mean; the coarse level names whole blocks, those
// with the best means.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_two_level_centroid.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <set>

namespace index_two_level_centroid_test {

using namespace kvtl;

namespace {

using state = two_level_centroid::state;

/// A lane whose units lie around centres, as many neighbours around each, with the memory that the manager lends.
struct blobs {
    std::uint32_t units, dim;
    two_level_centroid::config config;
    std::vector<float> mean;
    std::vector<unit_record> record;
    std::vector<std::byte> bytes;
    std::vector<std::byte> memory;
    narrowing few;
    state s;

    blobs(std::uint32_t n, std::uint32_t width, std::uint32_t alike, two_level_centroid::config c,
          std::uint64_t seed)
        : units(n), dim(width), config(c), mean(std::size_t{n} * width), record(n), s(c, {}) {
        oracle::generator random(seed);
        std::vector<float> centre(width);
        for (std::uint32_t u = 0; u < n; ++u) {
            if (u % alike == 0)
                for (float& x : centre) x = static_cast<float>(random.normal());
            for (std::uint32_t d = 0; d < width; ++d)
                mean[std::size_t{u} * width + d] = centre[d] + 0.2F * static_cast<float>(random.normal());
            record[u].entries = 1 + u % 7;
        }
        const summary_shape shape{1, 1, width, 8};
        bytes.assign(n * s.unit_bytes(shape) + s.tail_bytes(shape) + 64, std::byte{0xA5});
        for (std::uint32_t u = 0; u < n; ++u) s.clear(view().summary, u);
        carver counting;
        static_cast<void>(narrowing::take(counting, n, width));
        memory.resize(counting.used() + 64);
        carver lend(memory);
        few = narrowing::take(lend, n, width);
    }
    [[nodiscard]] units_view view() {
        units_view u;
        u.unit = record.data();
        u.count = units;
        u.mean = unit_means(rows_view<float>{mean.data(), units, dim, dim});
        u.dim = dim;
        u.max_entries = 8;
        u.tokens = 4 * units;
        u.summary.shape = {1, 1, dim, 8};
        u.summary.stride = s.unit_bytes(u.summary.shape);
        u.summary.unit = bytes.data();
        return u;
    }
    /// In double precision: the mean of the means of block b.
    [[nodiscard]] std::vector<double> block(std::uint32_t b) const {
        const std::uint32_t first = b * config.units_per_block,
                            end = std::min(units, first + config.units_per_block);
        std::vector<double> sum(dim);
        for (std::uint32_t u = first; u < end; ++u)
            for (std::uint32_t d = 0; d < dim; ++d)
                sum[d] += static_cast<double>(mean[std::size_t{u} * dim + d]) / (end - first);
        return sum;
    }
    [[nodiscard]] std::uint32_t blocks() const {
        return (units + config.units_per_block - 1) / config.units_per_block;
    }
    [[nodiscard]] std::set<std::uint32_t> named(std::uint32_t n) const {
        const std::set<std::uint32_t> all(few.unit.begin(), few.unit.begin() + n);
        CHECK(all.size() == n);
        CHECK(std::is_sorted(few.unit.begin(), few.unit.begin() + n));
        return all;
    }
    /// The named units are whole blocks, and no other block is better than one of these by more than rounding.
    template <class Rank> void are_the_best(const std::set<std::uint32_t>& units_named, const Rank& rank) {
        double worst_in = 1e30, best_out = -1e30;
        for (std::uint32_t b = 0; b < blocks(); ++b) {
            const std::uint32_t first = b * config.units_per_block,
                                end = std::min(units, first + config.units_per_block);
            const bool in = units_named.contains(first);
            for (std::uint32_t u = first; u < end; ++u) CHECK(units_named.contains(u) == in);
            if (in)
                worst_in = std::min(worst_in, rank(block(b)));
            else
                best_out = std::max(best_out, rank(block(b)));
        }
        CHECK(worst_in > best_out - 0.05 * dim); // codes of 8 bits
    }
};

double product(const float* q, const std::vector<double>& x) {
    double sum = 0;
    for (std::size_t d = 0; d < x.size(); ++d) sum += static_cast<double>(q[d]) * x[d];
    return sum;
}

} // namespace

TEST_CASE("two_level_centroid scores as centroid does") {
    kvtl_test::index_contract<two_level_centroid>(
        {}, [](const float* q, const float* mean, std::size_t dim) { return oracle::dot(q, mean, dim); });
}

TEST_CASE("two_level_centroid names the units of the best blocks, enough of them") {
    for (const std::uint32_t dim : {16U, 64U, 80U}) {
        const two_level_centroid::config c{.least_units = 0,
                                           .units_per_block = 8,
                                           .probe_percent = 10,
                                           .probe_entries = 2,
                                           .near_blocks = 3};
        blobs x(403, dim, 8, c, dim);
        for (const std::uint32_t queries : {1U, 3U}) {
            const auto q = oracle::normal_values<float>(std::size_t{queries} * dim, queries);
            const auto rank = [&](const std::vector<double>& mean) {
                double best = -1e30;
                for (std::uint32_t i = 0; i < queries; ++i) best = std::max(best, product(&q[i * dim], mean));
                return best;
            };
            // 51 blocks: 6 of them are a tenth.
            const auto few = x.named(x.s.narrow(q.data(), queries, x.view(), 4, x.few));
            CHECK(few.size() >= 43);
            CHECK(few.size() <= 48);
            x.are_the_best(few, rank);
            // Twice what may be chosen.
            const auto more = x.named(x.s.narrow(q.data(), queries, x.view(), 200, x.few));
            x.are_the_best(more, rank);
            // As many units as have 400 entries on average; the last block is not full.
            CHECK(more.size() + c.units_per_block > 400 * 403 / x.view().tokens);
            CHECK(std::includes(more.begin(), more.end(), few.begin(), few.end()));
            CHECK(x.s.narrow(q.data(), queries, x.view(), 2000, x.few) == 0); // all of them
            two_level_centroid::config whole = c;
            whole.least_units = 404;
            CHECK(state(whole, {}).narrow(q.data(), queries, x.view(), 4, x.few) == 0);
        }
    }
}

TEST_CASE("two_level_centroid asks its blocks for more queries than it has room for at once") {
    const two_level_centroid::config c{
        .least_units = 0, .units_per_block = 4, .probe_percent = 10, .probe_entries = 1, .near_blocks = 1};
    constexpr std::uint32_t dim = 32, queries = 7;
    for (const std::uint32_t units : {200U, 203U}) { // room for the best of a block and three more, or two
        blobs x(units, dim, 4, c, 6);
        const auto q = oracle::normal_values<float>(std::size_t{queries} * dim, 8);
        const auto named = x.named(x.s.narrow(q.data(), queries, x.view(), 1, x.few));
        CHECK(named.size() >= 20);
        x.are_the_best(named, [&](const std::vector<double>& mean) {
            double best = -1e30;
            for (std::uint32_t i = 0; i < queries; ++i) best = std::max(best, product(&q[i * dim], mean));
            return best;
        });
    }
}

TEST_CASE("two_level_centroid looks for an entry's cluster in the nearest blocks") {
    const two_level_centroid::config c{
        .least_units = 0, .units_per_block = 4, .probe_percent = 10, .probe_entries = 2, .near_blocks = 2};
    blobs x(120, 64, 4, c, 5);
    for (std::uint32_t u = 0; u < x.units; u += 7) {
        const float* key = &x.mean[std::size_t{u} * 64];
        const auto near = x.named(x.s.near(key, x.view(), x.few));
        CHECK(near.size() == 8);
        CHECK(near.contains(u));
        x.are_the_best(near, [&](const std::vector<double>& mean) {
            double apart = 0;
            for (std::size_t d = 0; d < 64; ++d)
                apart += (static_cast<double>(key[d]) - mean[d]) * (static_cast<double>(key[d]) - mean[d]);
            return -apart;
        });
    }
}

TEST_CASE("two_level_centroid sums a block up anew when one of its units has changed") {
    const two_level_centroid::config c{
        .least_units = 0, .units_per_block = 4, .probe_percent = 5, .probe_entries = 1, .near_blocks = 1};
    blobs x(200, 32, 4, c, 9);
    const auto q = oracle::normal_values<float>(32, 3);
    const auto before = x.named(x.s.narrow(q.data(), 1, x.view(), 1, x.few));
    std::uint32_t u = 0;
    while (before.contains(u)) ++u;
    for (std::uint32_t d = 0; d < 32; ++d) x.mean[std::size_t{u} * 32 + d] = 40.0F * q[d];
    CHECK(x.named(x.s.narrow(q.data(), 1, x.view(), 1, x.few)) == before); // nobody has said so
    x.s.absorb(x.view().summary, u, 1, nullptr, nullptr);
    CHECK(x.named(x.s.narrow(q.data(), 1, x.view(), 1, x.few)).contains(u));
}

TEST_CASE("two_level_centroid narrows nothing where there is little, or some are hidden already") {
    blobs x(32, 16, 4, {.least_units = 0}, 2);
    const auto q = oracle::normal_values<float>(16, 3);
    CHECK(x.s.narrow(q.data(), 1, x.view(), 1, x.few) > 0); // two blocks, one of them is enough
    CHECK(x.s.near(q.data(), x.view(), x.few) == 0);
    const std::vector<std::uint32_t> some{1, 5, 9};
    CHECK(x.s.narrow(q.data(), 1, x.view().only(some), 1, x.few) == 0);
    blobs one(15, 16, 4, {.least_units = 0}, 2);
    CHECK(one.s.narrow(q.data(), 1, one.view(), 1, one.few) == 0);
}

TEST_CASE("some units of a lane: numbers, entries, scores and distances are theirs") {
    blobs x(50, 24, 4, {}, 11);
    const std::vector<std::uint32_t> some{0, 1, 2, 7, 8, 30, 49};
    const units_view few = x.view().only(some), all = x.view();
    REQUIRE(few.count == some.size());
    CHECK(few.count + few.hidden == all.count);
    const auto q = oracle::normal_values<float>(2 * 24, 3);
    std::vector<float> of_few(2 * some.size()), of_all(2 * 50);
    few.mean_scores(q.data(), 2, of_few.data());
    all.mean_scores(q.data(), 2, of_all.data());
    std::vector<float> far_few(some.size()), far_all(50);
    few.mean_distances(q.data(), far_few.data());
    all.mean_distances(q.data(), far_all.data());
    for (std::uint32_t i = 0; i < some.size(); ++i) {
        CHECK(few.id(i) == some[i]);
        CHECK(few.entries(i) == x.record[some[i]].entries);
        CHECK(of_few[i] == doctest::Approx(of_all[some[i]]).epsilon(1e-5));
        CHECK(of_few[some.size() + i] == doctest::Approx(of_all[50 + some[i]]).epsilon(1e-5));
        CHECK(far_few[i] == doctest::Approx(far_all[some[i]]).epsilon(1e-5));
    }
    CHECK(x.view().only({}).count == 50);
    for (const std::uint32_t bits : {8U, 16U}) { // the same of means that are kept in fewer bits
        std::vector<std::byte> numbers(50 * 24 * bits / 8);
        std::vector<float> scale(50);
        units_view rounded = all;
        rounded.mean = unit_means(numbers.data(), scale.data(), bits, 24, 24);
        for (std::uint32_t u = 0; u < 50; ++u) rounded.mean.set(u, &x.mean[u * 24]);
        const units_view of_these = rounded.only(some);
        of_these.mean_scores(q.data(), 2, of_few.data());
        rounded.mean_scores(q.data(), 2, of_all.data());
        of_these.mean_distances(q.data(), far_few.data());
        rounded.mean_distances(q.data(), far_all.data());
        for (std::uint32_t i = 0; i < some.size(); ++i) {
            CHECK(of_few[some.size() + i] == doctest::Approx(of_all[50 + some[i]]).epsilon(1e-5));
            CHECK(far_few[i] == doctest::Approx(far_all[some[i]]).epsilon(1e-5));
        }
    }
}

TEST_CASE("two_level_centroid refuses what is out of range, by name") {
    const auto message = [](two_level_centroid::config c) { return std::string(state::check(c).what()); };
    CHECK(state::check({}).ok());
    CHECK(message({.units_per_block = 3}) ==
          "index.units_per_block is 3; valid: multiples of 4 from 4 to 256");
    CHECK(message({.units_per_block = 260}) ==
          "index.units_per_block is 260; valid: multiples of 4 from 4 to 256");
    CHECK(message({.probe_percent = 0}) == "index.probe_percent is 0; valid: 1 to 100");
    CHECK(message({.probe_percent = 101}) == "index.probe_percent is 101; valid: 1 to 100");
    CHECK(message({.probe_entries = 0}) == "index.probe_entries is 0; valid: 1 to 1024");
    CHECK(message({.near_blocks = 0}) == "index.near_blocks is 0; valid: 1 to 1024");
}

} // namespace index_two_level_centroid_test
