// The root of all presets: the whole cache stays in memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/layout/sequence_order.hpp>
#include <kvtl/layout/unit_contiguous.hpp>
#include <kvtl/manager.hpp>
#include <kvtl/policies/budget_uniform.hpp>
#include <kvtl/policies/cluster_single_tokens.hpp>
#include <kvtl/policies/compress_raw.hpp>
#include <kvtl/policies/estimate_nothing.hpp>
#include <kvtl/policies/index_no_index.hpp>
#include <kvtl/policies/position_original.hpp>
#include <kvtl/policies/replace_lru.hpp>
#include <kvtl/policies/retain_keep_all.hpp>
#include <kvtl/policies/schedule_on_demand.hpp>
#include <kvtl/policies/select_all_units.hpp>

#include <type_traits>

namespace kvtl { inline namespace v0 {

namespace presets {

/// Exact attention over a cache that stays in memory: the null object of every slot. The window holds every
/// token. There are no units, reads or writes, and memory_bytes must hold the whole cache.
struct full {
    static constexpr std::string_view name = "full";
    static constexpr std::uint32_t window_tokens = whole_sequence;
    static constexpr std::uint32_t sink_tokens = 0;
    using clusterer = single_tokens;
    using index = no_index;
    using selector = all_units;
    using estimator = nothing;
    using budget = uniform;
    using retention = keep_all;
    using compressor = raw<f16>;
    using position = original;
    using layout = sequence_order;
    using replacement = lru;
    using schedule = on_demand;
    using io = in_memory;
};

} // namespace presets

/// The default inputs of an alias: q, k, v and everything else that its preset needs. Engines that use such
/// an alias must supply these inputs. A call without one of them is refused, and the error names the missing
/// input.
template <class Preset>
using engine_inputs_for =
    std::conditional_t<contains(default_engine_inputs::value, needed_inputs<Preset>()), default_engine_inputs,
                       engine_inputs<default_engine_inputs::value, needed_inputs<Preset>()>>;

using full = kv_manager<presets::full>;

}} // namespace kvtl::v0
