// Units can only be packed in a stream: pages of a unit's own have no neighbours.
// expect-error: \[kvtl\] layout: packs_units goes with by_entry: pages that neighbours share belong to a stream
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct packed_pages : kvtl::unit_contiguous {
    static constexpr bool packs_units = true;
};
struct bad : kvtl::presets::dynakv {
    using layout = packed_pages;
};

template class kvtl::kv_manager<bad>;
