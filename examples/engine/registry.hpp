// What a compiled preset gives to the registry.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

namespace engine {

using cache_opener = kvtl::result<std::unique_ptr<kv_cache>>(const cache_options&);
using cache_measurer = kvtl::result<memory_use>(const cache_options&);
using cache_wanter = cache_wants();

} // namespace engine
