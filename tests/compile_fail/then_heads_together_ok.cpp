// The control of then_layer_wide.cpp and then_heads_together.cpp: heads decide together, units are of all heads.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynamickv.hpp>

struct good : kvtl::presets::then<kvtl::presets::compress_kv, kvtl::presets::flexgen> {};

template class kvtl::kv_manager<good, kvtl::geometry<kvtl::shape{}>>;
