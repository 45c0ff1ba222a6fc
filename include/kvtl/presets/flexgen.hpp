// FlexGen: no selection. Every step reads the whole cache layer by layer, in long runs, while the layer
// before computes. Entries that fit in memory stay there.
//
// Paper: "FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU". Composed
// here: groups of consecutive tokens of all KV heads in token order, all of them chosen; a static split
// between memory and storage (memory_bytes replaces the percentages of §4.2); reads one layer ahead.
// flexgen_int4 stores 4 bits; presets/low_bits.hpp has the settings of the paper's groups. Left out: the
// zig-zag schedule over a batch, which is a task of the engine.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/default_file.hpp>
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/policies/replace_lifo.hpp>
#include <kvtl/policies/schedule_next_layer.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

/// The base of presets of retrieval methods: everything on storage in token order, and 4 sinks and a window
/// of 32 unless the paper has others.
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
