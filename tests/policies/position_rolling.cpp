// rolling: turning a query back is rotating it by less.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/position_rolling.hpp>

#include "contracts/position.hpp"

namespace position_rolling_test {

using kvtl::rolling;
using kvtl_test::check_refusal, kvtl_test::position_contract;
using state = rolling::state;

namespace {
/// Rotary embeddings by definition: pair i turns by its frequency times the position.
std::vector<double> rotate(std::vector<double> x, double position, const std::vector<double>& frequency,
                           bool neighbours) {
    for (std::size_t i = 0; i < frequency.size(); ++i) {
        double &a = x[neighbours ? 2 * i : i], &b = x[neighbours ? 2 * i + 1 : i + frequency.size()];
        const double c = std::cos(position * frequency[i]), s = std::sin(position * frequency[i]);
        const double turned = a * c - b * s;
        b = b * c + a * s;
        a = turned;
    }
    return x;
}
std::vector<double> plain(double base, std::uint32_t dims) {
    std::vector<double> f;
    for (std::uint32_t i = 0; i < dims / 2; ++i) f.push_back(std::pow(base, -2.0 * i / dims));
    return f;
}
} // namespace

TEST_CASE(
    "rolling: plain rotary embeddings of all of a head or of its first numbers, in either order of pairs") {
    for (const std::uint32_t dim : {2U, 16U, 64U, 80U, 128U})
        for (const std::uint32_t dims : {0U, 2U, dim / 4 * 2})
            for (const double base : {500.0, 10000.0, 500000.0})
                for (const bool neighbours : {false, true}) {
                    CAPTURE(dim);
                    CAPTURE(dims);
                    const auto frequency = plain(base, dims == 0 ? dim : dims);
                    position_contract<rolling>({.base = base, .dims = dims, .neighbours = neighbours}, dim,
                                               [&](const std::vector<double>& x, double p) {
                                                   return rotate(x, p, frequency, neighbours);
                                               });
                }
}

TEST_CASE("rolling: frequencies as given, which are copied") {
    std::vector<double> frequency = {1.0, 0.3, 0.011, 0.0};
    position_contract<rolling>({.frequencies = frequency}, 8, [&](const std::vector<double>& x, double p) {
        return rotate(x, p, frequency, false);
    });
    const auto given = frequency;
    std::vector<std::byte> memory(state::bytes(8));
    state s({.frequencies = frequency}, 8, memory);
    frequency.assign(4, 5.0);
    const std::vector<float> q = {1, 2, 3, 4, 5, 6, 7, 8};
    std::vector<float> out(8);
    s.turn_back(q.data(), 1, 9, out.data());
    const auto expected = rotate({q.begin(), q.end()}, -9, given, false);
    for (std::size_t d = 0; d < 8; ++d) CHECK(std::fabs(static_cast<double>(out[d]) - expected[d]) < 1e-5);
}

TEST_CASE("rolling: settings that can never work are named") {
    const std::vector<double> three(3, 1.0), missing = {1.0, 1.0, NAN, 1.0};
    check_refusal(state::check({.dims = 65}, 128), "position.dims is 65");
    check_refusal(state::check({.dims = 130}, 128), "position.dims is 130");
    check_refusal(state::check({.frequencies = three}, 8), "position.frequencies has 3 numbers");
    check_refusal(state::check({.frequencies = missing}, 8), "position.frequencies of pair 2 is");
    check_refusal(state::check({.base = 0.0}, 8), "position.base is 0");
    check_refusal(state::check({.base = NAN}, 8), "position.base is");
}

} // namespace position_rolling_test
