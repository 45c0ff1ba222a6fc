// A preset on a device of the test's choice, and with another compressor if it says so. Tests that name a preset so have the
// same types in common, which a translation unit of several of them instantiates once: each takes seconds.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/in_memory.hpp>
#include <kvtl/policies/compress_raw.hpp>
#include <kvtl/slots/preset.hpp>

#include <type_traits>

namespace kvtl_test {

template <class Preset, class Io, class Compressor = typename Preset::compressor> struct on_device : Preset {
    using io = Io;
    using compressor = Compressor;
};
template <class Preset, class Io> using f32_on = on_device<Preset, Io, kvtl::raw<float>>;

/// Without a file: presets that keep entries in storage keep them in memory.
template <class Preset>
using without_file = std::conditional_t<kvtl::retrieves<Preset>, on_device<Preset, kvtl::in_memory>, Preset>;

} // namespace kvtl_test
