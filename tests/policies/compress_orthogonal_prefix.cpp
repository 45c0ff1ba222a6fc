// Prefixes in an orthonormal basis per head, against double precision; the contract's promises; that scores of coefficients
// are scores of what they stand for, and that error falls with rank.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_orthogonal_prefix.hpp>

#include "contracts/compressor.hpp"
#include "support/calibrated.hpp"

#include <map>
#include <memory>

namespace compress_orthogonal_prefix_test {

using namespace kvtl_test;

namespace {

using policy = kvtl::orthogonal_prefix<float>;

const kvtl::calibration_view& bases_for(const kvtl::record_shape& s) {
    static std::map<std::pair<std::uint32_t, std::uint32_t>, std::unique_ptr<calibrated>> made;
    auto& one = made[{s.heads, s.dim}];
    if (!one)
        one = std::make_unique<calibrated>(kvtl::shape{2, s.heads, s.heads, s.dim}, s.width(), s.width() + 3);
    return one->view();
}
template <class Policy> struct bound {
    using state = typename Policy::state;
    state operator()(const kvtl::record_shape& s) const { return make(s, {}, {}); }
    static state make(const kvtl::record_shape& s, const typename Policy::config& c,
                      const kvtl::codec_lane& lane) {
        state codec(c, s);
        codec.bind(bases_for(s));
        return codec.at(lane);
    }
};

} // namespace

TEST_CASE_TEMPLATE("orthogonal_prefix keeps a compressor's promises", Policy, policy,
                   kvtl::orthogonal_prefix<>) {
    compressor_contract<Policy>(bound<Policy>{});
}

TEST_CASE("rows come back as their projection on the first directions of their head, of every lane") {
    const kvtl::record_shape two{2, 64}, one{1, 64};
    double last = 1e30;
    for (const float rate : {0.01F, 0.25F, 0.5F, 1.0F}) {
        const auto rank = std::max(1U, static_cast<std::uint32_t>(rate * 64 + 0.5F));
        double lost = 0;
        for (const std::uint32_t layer : {0U, 1U}) {
            const auto codec = bound<policy>::make(two, {.rate = rate}, {layer, 0, nullptr});
            CHECK(codec.bytes().key == (2 * 2 * rank + 3) / 4 * 4);
            CHECK(codec.bytes().value == codec.bytes().key);
            for (std::uint64_t seed = 1; seed <= 10; ++seed) {
                const auto row = oracle::normal_values<float>(two.width(), 10 * seed + layer);
                std::vector<std::byte> k(codec.bytes().key), v(codec.bytes().value);
                CHECK(codec.encode_key(row.data(), 5, k.data()) == k.size());
                CHECK(codec.encode_value(row.data(), v.data()) == v.size());
                std::vector<float> back_k(two.width()), back_v(two.width());
                codec.decode_keys({k.data(), 1, k.size()}, back_k.data());
                codec.decode_values({v.data(), 1, v.size()}, back_v.data());
                for (const auto& [kind, back] : {std::pair(kvtl::calibration_kind::prefix_keys, &back_k),
                                                 std::pair(kvtl::calibration_kind::prefix_values, &back_v)}) {
                    std::vector<double> expected(two.width(), 0.0);
                    for (std::uint32_t h = 0; h < 2; ++h) {
                        const auto basis = bases_for(two).basis(kind, layer, h);
                        for (std::uint32_t r = 0; r < rank; ++r) {
                            const double c = oracle::dot(&row[h * 64], basis.row(r), 64);
                            for (std::uint32_t d = 0; d < 64; ++d)
                                expected[h * 64 + d] += c * static_cast<double>(basis.row(r)[d]);
                        }
                    }
                    for (std::uint32_t d = 0; d < two.width(); ++d) {
                        CHECK(std::fabs(static_cast<double>((*back)[d]) - expected[d]) < 4e-3);
                        const double off = static_cast<double>(row[d]) - expected[d];
                        lost += off * off;
                    }
                }
            }
        }
        CHECK(lost < last);
        last = lost;
    }
    // A lane of the second head alone uses that head's basis.
    const auto joint = bound<policy>::make(two, {.rate = 0.25F}, {1, 0, nullptr});
    auto alone = policy::state({.rate = 0.25F}, one);
    alone.bind(bases_for(two));
    alone = alone.at({1, 1, nullptr});
    const auto row = oracle::normal_values<float>(128, 99);
    std::vector<std::byte> both(joint.bytes().key), second(alone.bytes().key);
    joint.encode_key(row.data(), 0, both.data());
    alone.encode_key(row.data() + 64, 0, second.data());
    CHECK(std::memcmp(both.data() + both.size() / 2, second.data(), second.size()) == 0);
}

TEST_CASE("bases that are not orthonormal are refused") {
    const kvtl::record_shape s{2, 64};
    CHECK(policy::state({}, s).check_calibration(bases_for(s)).ok());
    const kvtl::shape model{1, 2, 2, 64};
    auto values = random_rotation(64, 1);
    const auto second = random_rotation(64, 2);
    values.insert(values.end(), second.begin(), second.end());
    kvtl::calibration_writer out(model, 1);
    REQUIRE(out.add(kvtl::calibration_kind::prefix_keys, 64, values));
    values[64 * 64 + 3] += 0.5F;
    REQUIRE(out.add(kvtl::calibration_kind::prefix_values, 64, values));
    const auto path =
        (std::filesystem::temp_directory_path() / ("kvtl-prefix-" + std::to_string(::getpid()))).string();
    REQUIRE(out.write(path));
    const auto file = kvtl::calibration::load(path, model);
    std::filesystem::remove(path);
    REQUIRE(file.ok());
    const kvtl::status refused = policy::state({}, s).check_calibration(file->view());
    CHECK(refused.code() == kvtl::errc::file_refused);
    CHECK_MESSAGE(std::string(refused.what()).find("prefix_values of layer 0, head 1") != std::string::npos,
                  refused.what());
}

TEST_CASE("what an orthogonal prefix cannot do is said by field, value and what is valid") {
    using codec = policy::state;
    CHECK(codec::check({}, {2, 64}).ok());
    const auto says = [](const kvtl::status& refused, const char* text) {
        CHECK(refused.code() == kvtl::errc::invalid_argument);
        CHECK_MESSAGE(std::string(refused.what()).find(text) != std::string::npos, refused.what());
    };
    says(codec::check({.rate = 0.0F}, {2, 64}), "compressor.rate is 0; valid: more than 0, to 1");
    says(codec::check({.rate = NAN}, {2, 64}), "compressor.rate is nan");
    says(codec::check({}, {1, 512}), "heads of 512 numbers; valid: up to 256");
}

} // namespace compress_orthogonal_prefix_test
