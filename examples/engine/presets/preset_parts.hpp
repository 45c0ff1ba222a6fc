// What every compiled preset shares: kept out of their translation units, of which there is one per header of presets.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/any_io.hpp>

#include "kv_cache.hpp"

namespace engine {

/// The device that cache_options::io names, with its path and limit.
[[nodiscard]] kvtl::result<kvtl::any_io::config> device_of(const cache_options& o);

/// The device of presets that need none.
[[nodiscard]] kvtl::any_io::config memory_device();

/// The file of trained bases in examples/data/ that has sections `kinds` for this model at this rate; says which rates
/// there are when it is none of them.
[[nodiscard]] kvtl::result<std::string> find_trained(const cache_options& o, std::uint32_t kinds, float rate);

/// Of the files POLICY.gates that ship, the one that was trained for this model.
[[nodiscard]] kvtl::result<std::string> find_gates(const cache_options& o);

} // namespace engine
