// ThinK: the key channels that matter least to the prompt's last queries are left out.
//
// Paper: "ThinK: Thinner Key Cache by Query-Driven Pruning". Composed here: flexgen with `channel_pruned` entries. They
// lie on storage unless they fit into memory. The latest 32 tokens are plain rows. 40 % of the key channels of each KV
// head are left out (compressor.pruned). Values stay whole, so an entry takes four fifths of its bytes. `think` fits the
// channels to the first chunk of a prompt. `snapkv_think` fits them to the kept keys and the queries of the last chunk.
//
//   think         all entries are attended.
//   snapkv_think  SnapKV (one choice per KV head) reduces the prompt to keep_tokens. Then the keys of the survivors lose
//                 channels. This is the paper's main setting.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_channel_pruned.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/snapkv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct think : flexgen {
    static constexpr std::string_view name = "think";
    static constexpr std::uint32_t sink_tokens = 0;
    using compressor = channel_pruned<>;
};

struct snapkv_think : think {
    static constexpr std::string_view name = "snapkv_think";
    using clusterer = head_groups<16>;
    using retention = snapkv_group::retention;
};

} // namespace presets

using think = kv_manager<presets::think>;
using snapkv_think = kv_manager<presets::snapkv_think>;

}} // namespace kvtl::v0
