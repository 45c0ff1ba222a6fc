// A cache of a preset that is only declared so far would be another type than the one of the complete preset.
// expect-error: \[kvtl\] preset: only declared here; define it before kv_manager<...> is named
// SPDX-License-Identifier: MIT
#include <kvtl/manager.hpp>

struct preset;
using cache_t = kvtl::kv_manager<preset>;
