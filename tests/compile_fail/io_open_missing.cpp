// A device has to be opened.
// expect-error: \[kvtl\] io: the policy needs name, config, device and open\(config, io_plan\)
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct shut {
    static constexpr std::string_view name = "shut";
    using config = kvtl::in_memory::config;
    using device = kvtl::in_memory::device;
};
struct bad : kvtl::presets::dynakv {
    using io = shut;
};

template class kvtl::kv_manager<bad>;
