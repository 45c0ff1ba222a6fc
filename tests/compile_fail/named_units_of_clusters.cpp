// Which tokens a cluster holds is not known to the engine.
// expect-error: \[kvtl\] selector: the engine names its units by number
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_chosen_by_engine.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using index = kvtl::no_index;
    using selector = kvtl::chosen_by_engine;
};

template class kvtl::kv_manager<bad, kvtl::all_engine_inputs>;
