// A dropping retention needs the manager that serves it.
// expect-error: \[kvtl\] retention: this preset drops entries; include <kvtl/core/eviction_manager.hpp>
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_key_norm.hpp>
#include <kvtl/presets/full.hpp>

struct bad : kvtl::presets::full {
    using retention = kvtl::drop<kvtl::key_norm>;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
