// element: the scalar conversions, over every 16-bit pattern and against exact neighbours.
// SPDX-License-Identifier: MIT
#include <kvtl/element.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <type_traits>

using namespace kvtl;

namespace {

/// The definition: sign, exponent and mantissa as IEEE 754 reads them.
double meaning(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                             : sign * std::numeric_limits<double>::infinity();
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                         : sign * std::ldexp(1 + fraction, exponent - bias);
}
template <class E> double meaning(E x) {
    return std::is_same_v<E, f16> ? meaning(x.bits, 5, 10) : meaning(x.bits, 8, 7);
}

} // namespace

TEST_CASE_TEMPLATE("every pattern means what the format says, and comes back", E, f16, bf16) {
    std::uint32_t wrong = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const E x{static_cast<std::uint16_t>(bits)};
        const float value = to_float(x);
        if (std::isnan(meaning(x))) {
            wrong += !std::isnan(value) || !std::isnan(to_float(from_float<E>(value))) ? 1 : 0;
            continue;
        }
        wrong += static_cast<double>(value) != meaning(x) || !(from_float<E>(value) == x) ? 1 : 0;
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("midpoints go to the even neighbour, everything else to the nearer one", E, f16, bf16) {
    std::uint32_t wrong = 0;
    for (std::uint32_t bits = 0; bits < 0x7FFF; ++bits) {
        const E low{static_cast<std::uint16_t>(bits)}, high{static_cast<std::uint16_t>(bits + 1)};
        if (!std::isfinite(meaning(high))) break;
        const auto middle = static_cast<float>((meaning(low) + meaning(high)) / 2); // exact in binary32
        const E even = bits % 2 == 0 ? low : high;
        wrong += !(from_float<E>(middle) == even) ? 1 : 0;
        wrong += !(from_float<E>(std::nextafter(middle, 0.0F)) == low) && middle > 0 ? 1 : 0;
        wrong +=
            !(from_float<E>(std::nextafter(middle, std::numeric_limits<float>::infinity())) == high) ? 1 : 0;
        wrong += !(from_float<E>(-middle) == E{static_cast<std::uint16_t>(even.bits | 0x8000U)}) ? 1 : 0;
    }
    CHECK(wrong == 0);
}

TEST_CASE("overflow becomes infinity") {
    CHECK(from_float<f16>(65519.0F).bits == 0x7BFF);
    CHECK(from_float<f16>(65520.0F).bits == 0x7C00);
    CHECK(from_float<f16>(-1e30F).bits == 0xFC00);
    CHECK(from_float<bf16>(std::numeric_limits<float>::max()).bits == 0x7F80);
    CHECK(from_float<f16>(1e-30F).bits == 0);
    CHECK(from_float<f16>(-1e-30F).bits == 0x8000);
    static_assert(from_float<f16>(1.0F).bits == 0x3C00 &&
                  to_float(bf16{0x3F80}) == 1.0F); // at compile time too
}

TEST_CASE("names") {
    CHECK(element_name<float>() == "f32");
    CHECK(element_name<f16>() == "f16");
    CHECK(element_name<bf16>() == "bf16");
    static_assert(element<float> && element<f16> && element<bf16> && !element<double> &&
                  !element<std::uint16_t>);
}
