// A codec that says it is calibrated must take its calibration.
// expect-error: \[kvtl\] compressor::state: calibrated needs noexcept bind
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/presets/dynakv.hpp>

struct unbound : kvtl::int8_row<> {
    static constexpr std::uint32_t calibrated = 1;
};
struct bad : kvtl::presets::dynakv {
    using compressor = unbound;
};

template class kvtl::kv_manager<bad, kvtl::engine_inputs_for<bad>>;
