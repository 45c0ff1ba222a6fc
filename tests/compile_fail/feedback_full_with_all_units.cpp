// The control of feedback_full_with_topk.cpp: a selector that reads everything gives the full mass.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/presets/heavy_hitters.hpp>

template class kvtl::kv_manager<kvtl::presets::h2o>;
