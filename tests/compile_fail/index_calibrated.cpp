// What an index reads of a calibration is one kind, not a number.
// expect-error: \[kvtl\] calibration: `calibrated` of an index or a score is a calibration_kind
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct numbered : kvtl::centroid {
    static constexpr int calibrated = 3;
};
struct bad : kvtl::presets::dynakv {
    using index = numbered;
};

template class kvtl::kv_manager<bad>;
