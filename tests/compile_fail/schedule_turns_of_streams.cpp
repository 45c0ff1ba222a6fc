// What is resident of entries in token order is no page of the file that could be read back for the layer's turn.
// expect-error: \[kvtl\] schedule: layers have their memory in turn, so what is resident must be whole pages of
// SPDX-License-Identifier: MIT
#include <kvtl/policies/schedule_layer_virtualised.hpp>
#include <kvtl/presets/flexgen.hpp>

struct bad : kvtl::presets::flexgen {
    using schedule = kvtl::layer_virtualised;
};

template class kvtl::kv_manager<bad>;
