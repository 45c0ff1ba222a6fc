// The cores that the programs' presets have compiled (kvtl_presets). Caches of tests that have the policies of one of them, on
// whatever device, link that core and do not compile it again.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/open_core.hpp>

#include "preset_headers.inc"

#include <doctest/doctest.h>

#include <memory>

namespace kvtl { inline namespace v0 {

#define KVTL_PRESET(name, family, description)                                                               \
    extern template result<std::unique_ptr<core_of<policies_of<presets::name>>>> open_core(                  \
        const common_stores&, const planner<policies_of<presets::name>>&);
#include "preset_table.inc"
#undef KVTL_PRESET
#undef KVTL_FAMILIES

}} // namespace kvtl::v0
