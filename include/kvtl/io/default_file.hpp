// The default file backend of presets: uring_file if the build links kvtl::uring (which defines
// KVTL_HAS_URING), otherwise posix_file.
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
