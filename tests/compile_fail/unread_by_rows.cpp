// What is kept in memory and attended whole needs neither storage nor a stand-in for what is not read.
// expect-error: \[kvtl\] layout: nothing reads it, as all entries of this preset stay in memory
// expect-error: \[kvtl\] replacement: nothing reads it, as all entries of this preset stay in memory
// expect-error: \[kvtl\] schedule: nothing reads it, as all entries of this preset stay in memory
// expect-error: \[kvtl\] io: nothing reads it, as all entries of this preset stay in memory
// expect-error: \[kvtl\] estimator: nothing reads it, as the selector takes every unit
// expect-errors: 5
// SPDX-License-Identifier: MIT
#include <kvtl/io/posix_file.hpp>
#include <kvtl/layout/dual_head.hpp>
#include <kvtl/policies/estimate_mean_value.hpp>
#include <kvtl/policies/replace_fifo.hpp>
#include <kvtl/policies/schedule_next_layer.hpp>
#include <kvtl/presets/snapkv.hpp>

struct bad : kvtl::presets::snapkv_group {
    using layout = kvtl::dual_head;
    using replacement = kvtl::fifo;
    using schedule = kvtl::next_layer;
    using io = kvtl::posix_file;
    using estimator = kvtl::mean_value;
};

template class kvtl::kv_manager<bad>;
