// The file backend that presets name when they just mean "a file": uring_file where the build links
// kvtl::uring (which defines KVTL_HAS_URING), posix_file otherwise.
// SPDX-License-Identifier: MIT
#pragma once

#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
#include <kvtl/io/uring_file.hpp>
#else
#include <kvtl/io/posix_file.hpp>
#endif

namespace kvtl { inline namespace v0 {

#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
using default_file = uring_file;
#else
using default_file = posix_file;
#endif

}} // namespace kvtl::v0
