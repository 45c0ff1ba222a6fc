// The version of kvtl. Every other copy (CMake, pkg-config, the inline namespace) is read from or checked
// against this file.
// SPDX-License-Identifier: MIT
#pragma once

#define KVTL_VERSION_MAJOR 0
#define KVTL_VERSION_MINOR 1
#define KVTL_VERSION_PATCH 0
#define KVTL_VERSION (KVTL_VERSION_MAJOR * 10000 + KVTL_VERSION_MINOR * 100 + KVTL_VERSION_PATCH)
#define KVTL_VERSION_STRING "0.1.0"

namespace kvtl { inline namespace v0 {

/// Version of the bytes in a cache file (superblock, page format). It changes less often than the library.
inline constexpr unsigned file_format_version = 1;

}} // namespace kvtl::v0
