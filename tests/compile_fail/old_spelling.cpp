// The spelling of 0.1 before a cache type lost its geometry. SPDX-License-Identifier: MIT
// expect-error: \[kvtl\] kv_manager: a cache type has no geometry any more; write kv_manager<Preset>
#include <kvtl/presets/quest.hpp>

template class kvtl::kv_manager<kvtl::presets::quest, kvtl::geometry>;
