// Presets that evict when the prompt ends and then retrieve from flash in decode: presets that name
// a retention and retrieve (manager.hpp says what keep_tokens, attend_tokens, sinks and window mean there).
//
//   snapkv_then_dynakv  SnapKV (one choice per KV head) thins the prompt out to keep_tokens; DynaKV clusters
//                       what is left, and attends attend_tokens of it.
//   mpcache             MPCache: look-once static eviction, then a query-aware choice of small groups of
//                       consecutive kept tokens, scored by the box around their keys; every layer chooses.
//   mpcache_shared      the same with one choice for two adjacent layers, as the paper has it.
//
// Paper: "MPCache: MPC-Friendly KV Cache Eviction for Efficient Private LLM Inference". It runs the cache on
// secret shares, where comparisons and communication rounds are what costs; nothing of that is here, and no
// cost of it is measured. Kept are its ideas. Decided by measurement (bench/RESULTS.md): every layer chooses for
// itself, as in a model of 6 layers the second of a pair cannot live on what the first chose.
// As in the paper, boxes around 32 tokens are compared before boxes around 8 of the best of these; statistics count the
// scores, what is compared and what is opened (statistics::choosing). `index.units_per_block` 1 compares boxes of 8 alone.
// Deviations: how many boxes of 32 are looked into is open in the paper, here twice what may be chosen; the maxima of the
// box score are exact, which secret shares make expensive; every head keeps tokens of its own after the eviction, so that
// group u of two layers is the u-th run of what each kept, which need not be the same tokens: what mpcache_shared shares
// is a place in the kept prompt. It is the same tokens for everything after the prompt, and when nothing was dropped.
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

/// The second half of mpcache_shared by itself: nothing is dropped.
struct shared_boxes : offloaded {
    static constexpr std::string_view name = "shared_boxes";
    using clusterer = head_groups<8>;
    using index = two_level_box;
    using selector = shared_by_layers<2, topk<reduce::group_max>>;

    /// Longer groups: half as many boxes each time.
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
