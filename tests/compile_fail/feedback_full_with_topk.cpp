// Only a selector that reads everything sees the full attention mass.
// expect-error: \[kvtl\] feedback: a policy reads the full attention mass, but the selector does not read everything
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using retention = kvtl::drop<kvtl::heavy_hitters>;
};

template class kvtl::kv_manager<bad>;
