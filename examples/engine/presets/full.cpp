// SPDX-License-Identifier: MIT
#include <kvtl/presets/full.hpp>

#include "preset_cache.hpp"

namespace engine {

kvtl::result<std::unique_ptr<kv_cache>> open_full(const cache_options& o) {
    return preset_cache<kvtl::presets::full>::open(o);
}

} // namespace engine
