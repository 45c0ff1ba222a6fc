// What check() says about a setting that can never work: its name and value, and what would be valid.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <doctest/doctest.h>

#include <string>

namespace kvtl_test {

/// `words`: the setting and its value as a user reads them, "budget.floor is -1".
inline void check_refusal(const kvtl::status& s, const std::string& words) {
    CHECK(s.code() == kvtl::errc::invalid_argument);
    const std::string text(s.what());
    INFO(text);
    INFO(words);
    CHECK(text.find(words) != std::string::npos);
    CHECK(text.find("valid: ") != std::string::npos);
    CHECK(text.size() < 238); // nothing was cut off
}

} // namespace kvtl_test
