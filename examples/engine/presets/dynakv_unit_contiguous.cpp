// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include "preset_cache.hpp"

namespace engine {

kvtl::result<std::unique_ptr<kv_cache>> open_dynakv_unit_contiguous(const cache_options& o) {
    return preset_cache<kvtl::presets::dynakv_unit_contiguous>::open(o);
}

} // namespace engine
