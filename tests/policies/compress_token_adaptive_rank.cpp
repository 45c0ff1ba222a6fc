// Eq. 1-8 with orthonormal bases, against double precision; the contract's promises; that error falls with rank and that
// a basis made for the rows beats a random one.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_token_adaptive_rank.hpp>
#include <kvtl/policies/support/rank_rules.hpp>

#include "contracts/compressor.hpp"
#include "support/calibrated.hpp"

#include <map>
#include <memory>

namespace compress_token_adaptive_rank_test {

using namespace kvtl_test;

namespace {

/// Random bases of every kind for a model of one layer, kept for as long as the test runs.
const kvtl::calibration_view& bases_for(const kvtl::record_shape& s) {
    static std::map<std::pair<std::uint32_t, std::uint32_t>, std::unique_ptr<calibrated>> made;
    auto& one = made[{s.heads, s.dim}];
    if (!one)
        one = std::make_unique<calibrated>(kvtl::shape{1, s.heads, s.heads, s.dim}, s.width(), s.width() + 3);
    return one->view();
}

/// A codec of lane (layer 0, first head 0), with its tables.
template <class Policy> struct bound {
    using state = typename Policy::state;
    static constexpr std::uint32_t tokens = 5000;

    state operator()(const kvtl::record_shape& s) const { return make(s, config); }
    static state make(const kvtl::record_shape& s, const typename Policy::config& c) {
        static std::vector<std::unique_ptr<std::vector<float>>> tables;
        state codec(c, s);
        tables.push_back(std::make_unique<std::vector<float>>(codec.shared_bytes(tokens) / sizeof(float)));
        codec.share(c, tokens, std::as_writable_bytes(std::span(*tables.back())));
        codec.bind(bases_for(s));
        return codec.at({});
    }
    typename Policy::config config{};
};

using joint = kvtl::token_adaptive_rank<kvtl::coupling::layer, kvtl::keep_energy, float>;
using palu_rows = kvtl::low_rank<kvtl::coupling::layer, float>;
using palu_heads = kvtl::low_rank<kvtl::coupling::head, float>;
using gated = kvtl::token_adaptive_rank<kvtl::coupling::layer, kvtl::learned_gate, float>;
using by_head = kvtl::token_adaptive_rank<kvtl::coupling::head, kvtl::keep_energy, float>;

std::uint16_t rank_in(const std::byte* record, std::size_t at) {
    std::uint16_t rank = 0;
    std::memcpy(&rank, record + at, sizeof rank);
    return rank;
}

} // namespace

TEST_CASE_TEMPLATE("token_adaptive_rank keeps a compressor's promises", Policy, joint, by_head,
                   kvtl::token_adaptive_rank<kvtl::coupling::layer>, palu_rows, palu_heads, gated) {
    compressor_contract<Policy>(bound<Policy>{});
}

TEST_CASE_TEMPLATE("full rank is the identity, up to 16 bits", Policy, joint, by_head) {
    const kvtl::record_shape s{3, 64};
    const auto codec = bound<Policy>::make(s, {{.share = 1.0F}});
    const auto rows = oracle::normal_values<float>(s.width(), 5);
    std::vector<std::byte> k(codec.bytes().key), v(codec.bytes().value);
    CHECK(codec.encode_key(rows.data(), 4321, k.data()) == codec.bytes().key);
    CHECK(codec.encode_value(rows.data(), v.data()) == codec.bytes().value);
    std::vector<float> back_k(s.width()), back_v(s.width());
    codec.decode_keys({k.data(), 1, k.size()}, back_k.data());
    codec.decode_values({v.data(), 1, v.size()}, back_v.data());
    oracle::largest_error error;
    for (std::uint32_t d = 0; d < s.width(); ++d) {
        error.see(static_cast<double>(back_k[d]) - static_cast<double>(rows[d]));
        error.see(static_cast<double>(back_v[d]) - static_cast<double>(rows[d]));
    }
    CHECK(error.value() < 4e-3);
}

TEST_CASE("a key is turned back, projected, cut, and comes back turned: Eq. 1-8 in double precision") {
    const kvtl::record_shape s{2, 32};
    const std::uint32_t width = s.width(), position = 777;
    const auto codec = bound<joint>::make(s, {{.share = 0.8F}});
    const auto basis = bases_for(s).basis(kvtl::calibration_kind::joint_keys, 0, 0);
    const auto row = oracle::normal_values<float>(width, 9);
    const auto turn = [&](std::vector<double>& x, double by) {
        for (std::uint32_t h = 0; h < s.heads; ++h)
            for (std::uint32_t i = 0; i < s.dim / 2; ++i) {
                const double angle = by * std::pow(10000.0, -2.0 * i / s.dim);
                double &a = x[h * s.dim + i], &b = x[h * s.dim + i + s.dim / 2];
                const double turned = a * std::cos(angle) - b * std::sin(angle);
                b = b * std::cos(angle) + a * std::sin(angle);
                a = turned;
            }
    };
    std::vector<double> x(row.begin(), row.end());
    turn(x, -1.0 * position);
    std::vector<double> c(width, 0.0);
    double all = 0;
    for (std::uint32_t r = 0; r < width; ++r) {
        for (std::uint32_t d = 0; d < width; ++d) c[r] += static_cast<double>(basis.row(r)[d]) * x[d];
        all += c[r] * c[r];
    }
    std::uint32_t rank = 0;
    for (double kept = 0; kept < 0.8 * all; ++rank) kept += c[rank] * c[rank];
    std::vector<double> expected(width, 0.0);
    for (std::uint32_t r = 0; r < rank; ++r)
        for (std::uint32_t d = 0; d < width; ++d) expected[d] += c[r] * static_cast<double>(basis.row(r)[d]);
    turn(expected, position);

    std::vector<std::byte> record(codec.bytes().key);
    const std::uint32_t bytes = codec.encode_key(row.data(), position, record.data());
    CHECK(rank_in(record.data(), sizeof position) == rank);
    CHECK(rank < width);
    CHECK(bytes == (4 + 2 + 2 * rank + 3) / 4 * 4);
    std::vector<float> back(width);
    codec.decode_keys({record.data(), 1, bytes}, back.data());
    oracle::largest_error error;
    for (std::uint32_t d = 0; d < width; ++d) error.see(static_cast<double>(back[d]) - expected[d]);
    CHECK(error.value() < 4e-3);
}

TEST_CASE("a trained gate counts coefficients, a trained basis has an inverse of its own: Eq. 1-8 in double "
          "precision") {
    const kvtl::record_shape s{2, 32};
    const std::uint32_t n = s.width();
    const kvtl::gated_basis basis = bases_for(s).gated(kvtl::calibration_kind::gated_values, 0);
    std::vector<std::uint32_t> ranks;
    for (const float tau : {0.02F, 0.1F, 0.6F}) {
        const auto codec = bound<gated>::make(s, {{.tau = tau}});
        for (std::uint64_t seed = 1; seed <= 30; ++seed) {
            const auto row = oracle::normal_values<float>(n, seed);
            std::vector<double> c(n), p(n), expected(n, 0.0);
            double all = 0;
            for (std::uint32_t j = 0; j < n; ++j) c[j] = oracle::dot(row.data(), basis.project.row(j), n);
            for (std::uint32_t j = 0; j < n; ++j) {
                p[j] = static_cast<double>(basis.bias[j]);
                for (std::uint32_t i = 0; i < n; ++i)
                    p[j] += c[i] * static_cast<double>(basis.gate.row(j)[i]);
                all += p[j] = std::exp(p[j]);
            }
            std::uint32_t rank = 0;
            for (std::uint32_t j = 0; j < n; ++j) { // m_j = the sum of the first n - j probabilities
                double m = 0;
                for (std::uint32_t i = 0; i < n - j; ++i) m += p[i] / all;
                rank += m > static_cast<double>(tau) ? 1 : 0;
            }
            for (std::uint32_t j = 0; j < rank; ++j)
                for (std::uint32_t i = 0; i < n; ++i)
                    expected[i] += c[j] * static_cast<double>(basis.rebuild.row(j)[i]);

            std::vector<std::byte> record(codec.bytes().value);
            const std::uint32_t bytes = codec.encode_value(row.data(), record.data());
            REQUIRE(rank_in(record.data(), 0) == rank);
            CHECK(bytes == (2 + 2 * rank + 3) / 4 * 4);
            std::vector<float> back(n);
            codec.decode_values({record.data(), 1, bytes}, back.data());
            oracle::largest_error error;
            for (std::uint32_t i = 0; i < n; ++i) error.see(static_cast<double>(back[i]) - expected[i]);
            CHECK(error.value() < 6e-3);
            ranks.push_back(rank);
        }
    }
    CHECK(*std::min_element(ranks.begin(), ranks.end()) < n / 2);
    CHECK(*std::max_element(ranks.begin(), ranks.end()) > n * 3 / 4);
}

TEST_CASE("bases that are not what the codec takes for granted are refused") {
    const kvtl::shape model{1, 2, 2, 32};
    const kvtl::record_shape s{2, 32};
    constexpr std::size_t n = 64;
    using enum kvtl::calibration_kind;
    const auto with = [&](auto&& fill) {
        const auto path =
            (std::filesystem::temp_directory_path() / ("kvtl-gates-" + std::to_string(::getpid()))).string();
        kvtl::calibration_writer out(model, 1);
        fill(out);
        REQUIRE(out.write(path));
        auto file = kvtl::calibration::load(path, model);
        std::filesystem::remove(path);
        REQUIRE(file.ok());
        return *std::move(file);
    };
    const auto says = [](const kvtl::status& refused, const char* text) {
        CHECK(refused.code() == kvtl::errc::file_refused);
        CHECK_MESSAGE(std::string(refused.what()).find(text) != std::string::npos, refused.what());
    };
    SUBCASE("gates of another rate") {
        const auto refused = [&](float rate) {
            return gated::state({{.rate = rate}}, s).check_calibration(bases_for(s));
        };
        CHECK(refused(0.2F).ok());
        says(refused(0.29F), "compressor.rate is 0.29; the gates were trained for 0.2");
        const auto none = with([&](auto& out) {
            REQUIRE(out.add_gated(gated_keys, random_gated_basis(n, 3), NAN));
            REQUIRE(out.add_gated(gated_values, random_gated_basis(n, 4), NAN));
        });
        says(gated::state({}, s).check_calibration(none.view()), "the gates were trained for nan");
    }
    SUBCASE("what rebuilds is not the inverse: a number, or two heads that changed places") {
        for (const bool heads : {false, true}) {
            auto values = random_gated_basis(n, 4);
            if (heads)
                for (std::size_t j = n; j < 2 * n; ++j)
                    std::swap_ranges(&values[j * n], &values[j * n + n / 2], &values[j * n + n / 2]);
            else
                values[n * n + 5] += 0.5F;
            const auto file = with([&](auto& out) {
                REQUIRE(out.add_gated(gated_keys, random_gated_basis(n, 3), 0.2F));
                REQUIRE(out.add_gated(gated_values, values, 0.2F));
            });
            says(gated::state({}, s).check_calibration(file.view()),
                 "gated_values of layer 0, head 0: what rebuilds is off by");
        }
    }
    SUBCASE("a basis that is not orthonormal, where no gate came with an inverse") {
        auto oblique = random_gated_basis(n, 3);
        oblique.resize(n * n);
        const auto file = with([&](auto& out) {
            REQUIRE(out.add(joint_keys, n, random_rotation(n, 4), true));
            REQUIRE(out.add(joint_values, n, oblique));
        });
        says(joint::state({}, s).check_calibration(file.view()), "joint_values of layer 0, head 0");
        says(palu_rows::state({}, s).check_calibration(file.view()), "joint_values of layer 0");
    }
    SUBCASE("a basis of keys after RoPE") {
        const auto file = with([&](auto& out) {
            REQUIRE(out.add(joint_keys, n, random_rotation(n, 4), false));
            REQUIRE(out.add(joint_values, n, random_rotation(n, 5)));
        });
        says(joint::state({}, s).check_calibration(file.view()),
             "joint_keys were fitted to keys after RoPE; valid: before");
    }
}

TEST_CASE_TEMPLATE(
    "one rank for all rows: records of one size without ranks, the leading coefficients in them", Policy,
    palu_rows, palu_heads) {
    static_assert(!Policy::ragged && Policy::name == "low_rank");
    const kvtl::record_shape s{2, 64};
    double last = 1e30;
    for (const float rate : {0.01F, 0.25F, 0.5F, 1.0F}) {
        const auto codec = bound<Policy>::make(s, {{.rate = rate}});
        const std::uint32_t n = Policy::joint ? 128 : 64, bases = 128 / n;
        const auto rank = std::max(1U, static_cast<std::uint32_t>(rate * static_cast<float>(n) + 0.5F));
        CHECK(codec.bytes().key == (4 + 2 * rank * bases + 3) / 4 * 4);
        CHECK(codec.bytes().value == (2 * rank * bases + 3) / 4 * 4);
        double lost = 0;
        for (std::uint64_t i = 0; i < 20; ++i) {
            const auto row = oracle::normal_values<float>(s.width(), 300 + i);
            std::vector<std::byte> k(codec.bytes().key), v(codec.bytes().value);
            CHECK(codec.encode_key(row.data(), static_cast<std::uint32_t>(i), k.data()) == k.size());
            CHECK(codec.encode_value(row.data(), v.data()) == v.size());
            std::vector<float> back(s.width()), expected(s.width(), 0.0F);
            codec.decode_values({v.data(), 1, v.size()}, back.data());
            for (std::uint32_t b = 0; b < bases; ++b) {
                const auto basis = bases_for(s).basis(Policy::value_basis, 0, b);
                for (std::uint32_t r = 0; r < rank; ++r) {
                    const auto c = static_cast<float>(oracle::dot(&row[b * n], basis.row(r), n));
                    for (std::uint32_t d = 0; d < n; ++d) expected[b * n + d] += c * basis.row(r)[d];
                }
            }
            for (std::uint32_t d = 0; d < s.width(); ++d) {
                CHECK(std::fabs(back[d] - expected[d]) < 4e-3F);
                const double off = static_cast<double>(row[d]) - static_cast<double>(back[d]);
                lost += off * off;
            }
        }
        CHECK(lost < last);
        last = lost;
    }
}

TEST_CASE_TEMPLATE("error falls and bytes rise with the share that is kept", Policy, joint, by_head) {
    const kvtl::record_shape s{2, 64};
    double last = 1e30;
    std::uint32_t last_bytes = 0;
    for (const float share : {0.3F, 0.6F, 0.9F, 0.99F, 1.0F}) {
        const auto codec = bound<Policy>::make(s, {{.share = share}});
        double sum = 0;
        std::uint32_t bytes = 0;
        for (std::uint64_t i = 0; i < 40; ++i) {
            const auto row = oracle::normal_values<float>(s.width(), 300 + i);
            std::vector<std::byte> record(codec.bytes().key);
            bytes += codec.encode_key(row.data(), static_cast<std::uint32_t>(i), record.data());
            std::vector<float> back(s.width());
            codec.decode_keys({record.data(), 1, record.size()}, back.data());
            double energy = 0, lost = 0;
            for (std::uint32_t d = 0; d < s.width(); ++d) {
                const double x = static_cast<double>(row[d]), off = x - static_cast<double>(back[d]);
                energy += x * x, lost += off * off;
            }
            CHECK(lost <= (1 - static_cast<double>(share)) * energy + 1e-4 * energy); // of what the rule says
            sum += lost;
        }
        CHECK(sum < last);
        CHECK(bytes > last_bytes);
        last = sum, last_bytes = bytes;
    }
}

TEST_CASE("what a codec cannot do is said by field, value and what is valid") {
    using codec = joint::state;
    const kvtl::record_shape s{2, 64};
    const auto says = [&](const joint::config& c, const kvtl::record_shape& shape, const char* text) {
        const kvtl::status refused = codec::check(c, shape);
        CHECK(refused.code() == kvtl::errc::invalid_argument);
        CHECK_MESSAGE(std::string(refused.what()).find(text) != std::string::npos, refused.what());
    };
    CHECK(codec::check({}, s).ok());
    const kvtl::status fixed = palu_rows::state::check({{.rate = 1.5F}}, s);
    CHECK(std::string(fixed.what()).find("compressor.rate is 1.5; valid: more than 0, to 1") !=
          std::string::npos);
    says({{.share = 0.0F}}, s, "compressor.share is 0; valid: more than 0, to 1");
    says({{.share = 1.5F}}, s, "compressor.share is 1.5");
    says({{.share = NAN}}, s, "compressor.share is nan");
    joint::config turned;
    turned.frequencies = {1.0};
    says(turned, s, "compressor.frequencies has 1 numbers; valid: none, or 32");
    turned.frequencies.assign(32, 0.5);
    CHECK(codec::check(turned, s).ok());
    turned.frequencies[7] = NAN;
    says(turned, s, "compressor.frequencies[7] is nan; valid: finite");
    joint::config wide;
    wide.dims = 65;
    says(wide, s, "compressor.dims is 65");
    for (const float tau : {1.0F, 0.0F, -0.1F, NAN}) {
        const auto no_gate = gated::state::check({{.tau = tau}}, s);
        CHECK(no_gate.code() == kvtl::errc::invalid_argument);
        CHECK(std::string(no_gate.what()).find("valid: more than 0, less than 1") != std::string::npos);
    }
    says({}, {40, 128}, "rows of 5120 numbers; valid: up to 4096");
}

} // namespace compress_token_adaptive_rank_test
