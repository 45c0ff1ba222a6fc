// FlexGen: no selection. The whole cache is read layer by layer at every step, in long runs, while the layer
// before computes; what fits in memory stays there.
//
// Paper: "FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU". Composed
// here: groups of consecutive tokens of all KV heads in token order, everything chosen, a static split
// between memory and storage (§4.2's percentages become memory_bytes), reads one layer ahead. Left out: 4-bit
// groups (a compressor) and the zig-zag schedule over a batch, which is the engine's.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/default_file.hpp>
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/policies/replace_lifo.hpp>
#include <kvtl/policies/schedule_next_layer.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

/// What the presets of retrieval methods start from: everything on storage in token order, 4 sinks and a
/// window of 32 where the paper has none.
struct offloaded : full {
    static constexpr std::string_view name = "offloaded";
    static constexpr std::uint32_t window_tokens = 32;
    static constexpr std::uint32_t sink_tokens = 4;
    using io = default_file;
};

struct flexgen : offloaded {
    static constexpr std::string_view name = "flexgen";
    using clusterer = layer_groups<16>;
    using replacement = lifo;
    using schedule = next_layer;
};

} // namespace presets

using flexgen = kv_manager<presets::flexgen>;

}} // namespace kvtl::v0
