// Presets that drop entries when the prompt ends, and retrieve the survivors from flash during decode. config.hpp
// explains keep_tokens, attend_tokens, sinks and window for them.
//
//   snapkv_then_dynakv  SnapKV (one choice per KV head) reduces the prompt to keep_tokens. DynaKV clusters
//                       the survivors, and attends attend_tokens of them.
//   mpcache             MPCache: look-once static eviction, then a query-aware choice of small groups of
//                       consecutive survivors, scored by the box around their keys. Every layer chooses.
//   mpcache_shared      as mpcache, with one choice for two adjacent layers, as in the paper.
//
// Paper: "MPCache: MPC-Friendly KV Cache Eviction for Efficient Private LLM Inference". The paper runs the
// cache on secret shares, where comparisons and communication rounds are expensive. These presets have only
// its ideas. They use no secret shares and do not measure their cost. Decided by measurement (bench/results):
// every layer chooses for itself. In a model of 6 layers, the second layer of a pair needs other entries than
// the first. As in the paper, boxes around 32 tokens are compared first, then boxes around 8
// tokens within the best of these. statistics::choosing counts the scores, the comparisons and the opened
// results. `index.units_per_block` = 1 compares only boxes of 8 tokens.
//
// Deviations:
//   - The paper does not give the number of boxes of 32 that are opened. Here they hold twice the entries
//     that may be chosen.
//   - The maxima of the box score are exact, which is expensive on secret shares.
//   - Every head keeps its own tokens at the eviction. Group u of a layer is the u-th run of its survivors,
//     so group u of two layers may hold different tokens: mpcache_shared shares a place in the kept prompt.
//     After the prompt, and if nothing was dropped, the tokens are equal.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_two_level_box.hpp>
#include <kvtl/policies/select_shared_by_layers.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/snapkv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct snapkv_then_dynakv : dynakv {
    static constexpr std::string_view name = "snapkv_then_dynakv";
    using retention = snapkv_group::retention;
};

/// The retrieval of mpcache_shared without its eviction.
struct shared_boxes : offloaded {
    static constexpr std::string_view name = "shared_boxes";
    using clusterer = head_groups<8>;
    using index = two_level_box;
    using selector = shared_by_layers<2, topk<reduce::group_max>>;

    /// Longer groups: each call halves the number of boxes.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.clusterer.group_tokens >= 128) return false;
        c.clusterer.group_tokens *= 2;
        return true;
    }
};

struct mpcache_shared : shared_boxes {
    static constexpr std::string_view name = "mpcache_shared";
    using retention = snapkv_group::retention;
};

struct mpcache : mpcache_shared {
    static constexpr std::string_view name = "mpcache";
    using selector = topk<reduce::group_max>;
};

} // namespace presets

using snapkv_then_dynakv = kv_manager<presets::snapkv_then_dynakv>;
using shared_boxes = kv_manager<presets::shared_boxes>;
using mpcache_shared = kv_manager<presets::mpcache_shared>;
using mpcache = kv_manager<presets::mpcache>;

}} // namespace kvtl::v0
