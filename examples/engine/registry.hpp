// The presets that the programs can choose by name. One line each in registry.cpp, one translation unit each
// in presets/. SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

namespace engine {

using cache_opener = kvtl::result<std::unique_ptr<kv_cache>>(const cache_options&);

cache_opener open_full;
cache_opener open_dynakv;
cache_opener open_dynakv_static;
cache_opener open_dynakv_sequence_order;
cache_opener open_dynakv_unit_contiguous;
cache_opener open_dynakv_lru;

} // namespace engine
