// SPDX-License-Identifier: MIT
#include "preset_cache.hpp"

#include <kvtl/presets/dynakv.hpp>

namespace engine {

kvtl::result<std::unique_ptr<kv_cache>> open_dynakv_unit_contiguous(const cache_options& o) {
    return preset_cache<kvtl::presets::dynakv_unit_contiguous>::open(o);
}

} // namespace engine
