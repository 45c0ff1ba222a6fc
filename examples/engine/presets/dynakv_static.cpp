// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include "preset_cache.hpp"

namespace engine {

kvtl::result<std::unique_ptr<kv_cache>> open_dynakv_static(const cache_options& o) {
    return preset_cache<kvtl::presets::dynakv_static>::open(o);
}

} // namespace engine
