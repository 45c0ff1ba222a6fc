// The version's number, its text and the inline namespace agree.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include <doctest/doctest.h>

#include <string>

#define KVTL_JOIN_TEXT(a, b) a##b
#define KVTL_JOIN(a, b) KVTL_JOIN_TEXT(a, b)
static_assert(kvtl::KVTL_JOIN(v, KVTL_VERSION_MAJOR)::file_format_version >=
              1); // the namespace of this major version

TEST_CASE("the text is made of the numbers") {
    CHECK(std::string(KVTL_VERSION_STRING) == std::to_string(KVTL_VERSION_MAJOR) + "." +
                                                  std::to_string(KVTL_VERSION_MINOR) + "." +
                                                  std::to_string(KVTL_VERSION_PATCH));
    CHECK(KVTL_VERSION / 10000 == KVTL_VERSION_MAJOR);
    CHECK(KVTL_VERSION / 100 % 100 == KVTL_VERSION_MINOR);
    CHECK(KVTL_VERSION % 100 == KVTL_VERSION_PATCH);
}
