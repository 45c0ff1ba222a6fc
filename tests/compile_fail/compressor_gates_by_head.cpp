// A gate is trained with a basis of all heads of a layer: there is none of a single head.
// expect-error: \[kvtl\] compressor: gates span the heads of a layer: coupling::layer
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/low_rank.hpp>

constexpr auto name = kvtl::token_adaptive_rank<kvtl::coupling::head, kvtl::learned_gate>::name;
