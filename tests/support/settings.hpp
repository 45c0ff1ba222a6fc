// What a policy's settings are called, and what check() says about one that can never work.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvtl_test {

/// The names under which a config shows its settings; no two may be the same.
template <class Config> std::vector<std::string> setting_names(Config c) {
    std::vector<std::string> names;
    c.fields([&](const char* name, auto&) { names.emplace_back(name); });
    auto sorted = names;
    std::sort(sorted.begin(), sorted.end());
    CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
    return names;
}

/// `words`: the setting and its value as a user reads them, "budget.floor is -1"; what is valid must follow.
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
