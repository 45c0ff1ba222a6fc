// On storage, entries are chosen among at every step, not evicted.
// expect-error: \[kvtl\] retention: this score evicts while tokens come in
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_key_norm.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using retention = kvtl::drop<kvtl::key_norm>;
};

template class kvtl::kv_manager<bad>;
