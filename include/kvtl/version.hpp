// The version of kvtl. Every other copy (CMake, pkg-config, the inline namespace) is read from or checked
// against this file. Every header of the library leads here, so this is also where an older C++ and arithmetic without NaN
// are refused.
// SPDX-License-Identifier: MIT
#pragma once

#if __cplusplus < 202002L
#error "[kvtl] kvtl needs C++20; compile with -std=c++20 or newer"
#include "kvtl needs C++20" // there is no such file: compilation ends here, not after thousands of lines
#endif

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error                                                                                                       \
    "[kvtl] compile without -Ofast, -ffast-math and -ffinite-math-only: NaN and infinity mean something in kvtl"
#endif

#define KVTL_VERSION_MAJOR 0
#define KVTL_VERSION_MINOR 1
#define KVTL_VERSION_PATCH 0
#define KVTL_VERSION (KVTL_VERSION_MAJOR * 10000 + KVTL_VERSION_MINOR * 100 + KVTL_VERSION_PATCH)
#define KVTL_VERSION_STRING "0.1.0"

namespace kvtl { inline namespace v0 {

/// Version of the bytes in a cache file (superblock, page format). It changes less often than the library.
inline constexpr unsigned file_format_version = 1;

}} // namespace kvtl::v0
